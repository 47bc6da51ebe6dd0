"""benchmarks/carried.py: what returns to the text, and how much attention falls on carried rows."""

from __future__ import annotations

import argparse
import importlib
import math
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from drafterzoo.budget import Budget
from drafterzoo.engine.decode import Round, TreeView
from tests.test_invariants import PROMPTS, build
from tests.tiny import tiny_target


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    return importlib.import_module("carried")


def a_round(accepted: int, drafts: list[int]) -> Round:
    tree = TreeView(drafts, list(range(len(drafts))), list(range(1, 1 + len(drafts))), [0.0], [True], [0])
    return Round(accepted, accepted + 1, accepted + 1, len(drafts), 1, 1, 0, 0, 0, 1, tree, walked=accepted)


def test_what_returns_is_counted_behind_the_first_wrong_draft(carried: Any) -> None:
    answer = [9, 1, 2, 3, 4, 5, 6, 7]
    # the first: 1 is right, 8 wrong, 3 and 4 right again; the second, behind 1 and 2: 3 and 4 right, 8 and 8 wrong
    rounds = [a_round(1, [1, 8, 3, 4]), a_round(2, [3, 4, 8, 8]), a_round(1, [6])]
    assert carried.returned(rounds, answer) == (2, 2)
    assert carried.returned([a_round(0, [7, 7, 7])], [9, 1]) == (0, 1), "beyond the answer nothing is known"


def test_the_gain_s_correlation_is_pearson_s(carried: Any) -> None:
    lines = [
        {"on_over_off": {"value": gain}, "returned_per_rejecting_round": back}
        for gain, back in ((1.0, 1.0), (1.1, 2.0), (1.2, 3.0), (None, 4.0))
    ]
    assert carried.correlation(lines) == pytest.approx(1.0)
    assert carried.correlation(lines[:2]) is None


@pytest.mark.parametrize("name", ["dflash", "dspark", "dfly"])
def test_it_compares_the_same_weights_and_sees_where_the_block_looks(carried: Any, name: str) -> None:
    target = tiny_target(dtype=torch.float64)
    on = build(f"{name}+carryover", target)
    off = carried.Carryover(on.base, attrs.evolve(on.config, carry=0)).eval()
    asked = argparse.Namespace(budget=Budget.chain(3), max_new_tokens=16, temperature=0.0, seed=0)
    kinds = {"a": [list(p) for p in PROMPTS[:2]], "b": [list(p) for p in PROMPTS[2:]]}
    found = carried.measure({"on": on, "off": off, "control": off}, kinds, asked)
    assert [line["equal_texts"] for line in found["lines"]] == [len(kinds["a"]), len(kinds["b"])]
    for line in found["lines"]:
        value = line["on_over_off"]["value"]
        assert value == pytest.approx(line["tau"]["on"] / line["tau"]["off"]) == line["on_over_control"]["value"]
    assert 0 < found["attention_on_carried_rows"] <= found["where_there_are_any"] < 1
    carried.show(found)


@pytest.mark.parametrize("depth", [2, 3, 9])
def test_it_looks_where_the_carried_rows_lie(carried: Any, depth: int) -> None:
    """A shallow budget takes fewer slots of a block, and what is carried lies right behind them."""
    target = tiny_target(dtype=torch.float64)
    on = build("dflash+carryover", target)
    with carried.watched(on, depth) as seen:
        state = on.open(target, 1, 40, depth, on.rows_per_round(depth, 1))
    assert seen.first == state.slots and seen.rows == on.carry


def test_attention_is_the_softmax_s_mass_on_those_rows(carried: Any) -> None:
    seen = carried.Attention(first=2, rows=2)
    q, k = torch.zeros(1, 2, 2, 4), torch.zeros(1, 1, 6, 4)
    mask = torch.tensor([True, True, True, True, False, True]).expand(1, 2, 6)
    seen.note(q, k, mask)
    assert seen.share == pytest.approx(2 / 5) == seen.share_where_carried
    mask = torch.tensor([True, True, False, False, False, True]).expand(1, 2, 6)
    seen.note(q, k, mask)
    assert seen.share == pytest.approx(1 / 5) and seen.share_where_carried == pytest.approx(2 / 5)
    assert math.isfinite(seen.total)
