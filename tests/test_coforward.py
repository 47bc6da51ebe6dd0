"""benchmarks/coforward.py: what is timed serially is the same reconsideration, in twice the forwards."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

from drafterzoo.budget import Budget
from drafterzoo.engine.decode import Settings, decode
from drafterzoo.engine.sampling import Sampling
from drafterzoo.registry import DRAFTERS
from tests.tiny import tiny_target

BUDGET = Budget(nodes=12, depth=4, grow=2, offer=3)


@pytest.mark.parametrize("kv", ["level0", "level1"])
def test_serial_drafts_what_co_forwarding_drafts(monkeypatch, kv):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    coforward = importlib.import_module("coforward")
    target = tiny_target()
    torch.manual_seed(0)
    base = DRAFTERS.get("eagle3.1").create(target, taps=(2, 4, 6)).eval()
    config = coforward.Reconsideration.default_config(target, reconsider=2, kv=kv)
    seen = {}
    for kind in (coforward.Reconsideration, coforward.Serial):
        settings = Settings(BUDGET, Sampling(), 12, keep_trees=True)
        emissions = decode(kind(base, config).eval(), target, [[5, 6, 7], [9]], settings, [0, 1])
        seen[kind] = [(e.request, e.tokens, e.round) for e in emissions if e.round is not None]
    together, apart = seen.values()
    assert len(together) == len(apart) > 4
    for (request, tokens, one), (same, these, other) in zip(together, apart, strict=True):
        assert (request, tokens, one.tree.tokens) == (same, these, other.tree.tokens)
        assert one.rows == other.rows and other.forwards == one.forwards + BUDGET.depth - 1
