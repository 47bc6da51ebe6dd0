"""Block drafters in foreign layouts against the implementations that these come from: the same folder, the same logits.

Run with `pytest -m parity` where `dflash` (z-lab's) and `speculators` are installed; skipped where they are not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from drafterzoo import load
from drafterzoo.drafters.base import Drafter, UnrollBatch, Unrolling
from tests import foreign_blocks as made

pytestmark = pytest.mark.parity

TARGET = made.target()
ANCHOR, LENGTH = 10, 24
ZLAB = ("usual", "block size nested", "windows", "windows that see ahead", "yarn")
# but for windows: its trainer counts them from the anchor (speculators_dflash.py)
SPECULATORS = [key for key in made.speculators(TARGET) if not key.startswith("windows")]


def text(drafter: Drafter) -> tuple[Tensor, Tensor, UnrollBatch]:
    """(tokens, features, the one block below the anchor)."""
    tokens = torch.randint(3, made.V, (1, LENGTH), generator=torch.Generator().manual_seed(1))
    features = TARGET.read(tokens, drafter.taps).features
    queries = torch.tensor([[ANCHOR - 1]])
    return (
        tokens,
        features,
        UnrollBatch(tokens, features, torch.arange(LENGTH)[None], torch.zeros_like(tokens), queries=queries),
    )


@pytest.mark.parametrize("variant", ZLAB)
@pytest.mark.parametrize("ours_written", [False, True])
def test_z_labs_own_network_gives_the_same_block(variant: str, ours_written: bool, tmp_path: Path) -> None:
    theirs: Any = pytest.importorskip("dflash.model", reason="z-lab's package dflash is not installed")
    folder = made.zlab()[variant].write(tmp_path / "theirs")
    if ours_written:
        folder = made.zlab()[variant].ours(TARGET).export(tmp_path / "ours", "zlab-dflash")
    model = theirs.DFlashDraftModel.from_pretrained(folder, dtype=torch.float32).eval()
    drafter = load(f"dir:{folder}", TARGET)
    tokens, features, batch = text(drafter)
    slots = torch.full((1, made.BLOCK), made.MASK)
    slots[0, 0] = tokens[0, ANCHOR]
    with torch.no_grad():
        found = model(
            position_ids=torch.arange(ANCHOR + made.BLOCK)[None],
            noise_embedding=drafter.embed(slots),
            target_hidden=features[:, :ANCHOR],
        )[:, 1:]
        ours = drafter.block_rows(batch, made.BLOCK - 1, Unrolling())[:, 0]
    assert list(model.target_layer_ids) == list(made.IDS) and model.block_size == made.BLOCK
    torch.testing.assert_close(ours, found, rtol=1e-4, atol=1e-4)


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Any:
    """speculators' networks, which look for no verifier on the Hub."""
    dflash: Any = pytest.importorskip("speculators.models.dflash.core", reason="speculators is not installed")
    dspark: Any = pytest.importorskip("speculators.models.dspark.core", reason="speculators is not installed")
    monkeypatch.setattr(dflash, "resolve_verifier_norm_class", lambda _: dflash.Qwen3RMSNorm)
    return {"dflash": dflash.DFlashDraftModel, "dspark": dspark.DSparkDraftModel}


@pytest.mark.parametrize("variant", SPECULATORS)
def test_speculators_own_network_reads_what_we_write_and_proposes_the_same(
    variant: str, core: Any, tmp_path: Path
) -> None:
    one = made.speculators(TARGET)[variant]
    one.ours(TARGET).export(tmp_path, one.format)
    drafter = load(f"dir:{tmp_path}", TARGET)
    model = theirs(core, one.drafter, tmp_path)
    tokens, features, batch = text(drafter)
    with torch.no_grad():
        found = block_logits(model, tokens, features)
        ours = torch.stack([drafter.logits(row)[0, 0] for row in drafter.unroll(batch, drafter.config.proposals)])
    first = not model.config.sample_from_anchor
    assert len(ours) == made.BLOCK - first and len(set(ours.argmax(-1).tolist())) > 1
    torch.testing.assert_close(ours, found[first:], rtol=1e-4, atol=1e-4)


def theirs(core: Any, drafter: str, folder: Path) -> Any:
    """Their network with the weights of a folder, all of which it must take."""
    config = core[drafter].config_class.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = core[drafter](config=config)
    missing, extra = model.load_state_dict(safetensors.torch.load_file(folder / "model.safetensors"), strict=False)
    assert not extra and all(key.startswith("verifier_") for key in missing)
    return model.float().eval()


def block_logits(model: Any, tokens: Tensor, features: Tensor) -> Tensor:
    """Its logits [slots, D] of the block at the anchor, below the text's own tokens."""
    there = torch.zeros(1, LENGTH, dtype=torch.long)
    there[0, ANCHOR] = 1
    last, documents = torch.zeros(1, LENGTH, made.H), torch.zeros(1, LENGTH, dtype=torch.long)
    hidden, logits, *_ = model._backbone_forward(features, tokens, there, last, documents, max_anchors=1)
    logits = logits[0]
    if getattr(model, "markov_head", None) is not None:
        block = tokens[:, ANCHOR : ANCHOR + made.BLOCK]
        before = block if model.config.sample_from_anchor else torch.cat((block[:, :1], block[:, :-1]), dim=1)
        logits = logits + model.markov_head.block_bias(prev_token_ids=before, hidden_states=hidden)[0]
    return logits
