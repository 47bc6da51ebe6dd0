"""Block drafters in foreign layouts against the implementations that these come from: same folder, logits and drafts.

Run with `tox -e parity`, or `pytest -m parity` where `dflash` (z-lab's) and `speculators` are installed; skipped where
they are not. DFlash is in transformers, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from drafterzoo import generate, load
from drafterzoo.budget import Budget
from drafterzoo.drafters.base import Drafter, UnrollBatch, Unrolling
from tests import foreign_blocks as made

pytestmark = pytest.mark.parity

TARGET = made.target()
ANCHOR, LENGTH = 10, 24
ZLAB = ("usual", "block size nested", "windows", "windows that see ahead", "yarn")
PROMPT, NEW_TOKENS = [3, 9, 4, 9, 30], 24
ASSISTANT: dict[str, Any] = {
    **{key: made.QWEN3[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "head_dim")},
    **{key: made.QWEN3[key] for key in ("num_attention_heads", "num_key_value_heads", "rms_norm_eps")},
    "block_size": made.BLOCK,
    "mask_token_id": made.MASK,
    "target_layer_ids": list(made.IDS),
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
# Layers that slide see ahead. The window is wider than the text: whether its last row is seen depends on their cache.
LAYERS: dict[str, Any] = {"full": {"layer_types": ["full_attention"] * 2}, "sliding": {"sliding_window": 64}}
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


@pytest.mark.parametrize("variant", ZLAB)
def test_z_labs_own_decoding_drafts_the_same_blocks(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs: Any = pytest.importorskip("dflash.model", reason="z-lab's package dflash is not installed")
    folder = made.zlab()[variant].write(tmp_path)
    model = theirs.DFlashDraftModel.from_pretrained(folder, dtype=torch.float32).eval()
    found: list[list[int]] = []
    score = model.compute_logits

    def watched(hidden: Tensor, head: Any) -> Tensor:
        logits: Tensor = score(hidden, head)
        found.append(logits.argmax(-1)[0].tolist())
        return logits

    monkeypatch.setattr(model, "compute_logits", watched)
    answer = theirs.dflash_generate(model, TARGET.model, torch.tensor([PROMPT]), NEW_TOKENS, None)
    check_drafts(load(f"dir:{folder}", TARGET), answer[0].tolist(), found)


@pytest.mark.parametrize("ours_written", [False, True])
@pytest.mark.parametrize("layers", LAYERS)
def test_transformers_own_assistant_drafts_the_same_blocks(
    layers: str, ours_written: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package: Any = pytest.importorskip(
        "transformers.models.muse_glimmer_assistant", reason="this transformers has no DFlash"
    )
    from transformers.generation.candidate_generator import DFlashTokenCandidateGenerator

    config = package.MuseGlimmerAssistantConfig(**ASSISTANT, **LAYERS[layers])
    model = package.MuseGlimmerAssistantModel(config)
    model.load_state_dict({key: value.float() for key, value in made.zlab()["assistant"].tensors.items()})
    model.save_pretrained(tmp_path / "theirs")
    drafter = load(f"dir:{tmp_path / 'theirs'}", TARGET)
    if ours_written:
        drafter.export(tmp_path / "ours", "zlab-dflash")
        model = package.MuseGlimmerAssistantModel.from_pretrained(tmp_path / "ours")
    found: list[list[int]] = []
    propose = DFlashTokenCandidateGenerator.get_candidates

    def watched(self: Any, input_ids: Tensor, *rest: Any, **more: Any) -> Any:
        proposed = propose(self, input_ids, *rest, **more)
        found.append(proposed[0][0, input_ids.shape[1] :].tolist())
        return proposed

    monkeypatch.setattr(DFlashTokenCandidateGenerator, "get_candidates", watched)
    prompt = torch.tensor([PROMPT])
    answer = TARGET.model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        assistant_model=model.eval(),
        speculation_type="dflash",
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        eos_token_id=made.V,
        pad_token_id=made.V,
    )
    check_drafts(drafter, answer[0].tolist(), [block for block in found if block])


def check_drafts(drafter: Drafter, answer: list[int], blocks: list[list[int]]) -> None:
    """That decoding of ours gives an answer, prompt included, by these drafts."""
    own, rounds = decoded(drafter)
    assert own == answer
    assert blocks[: len(rounds)] == [draft for _, draft in rounds]


def decoded(drafter: Drafter) -> tuple[list[int], list[tuple[int, list[int]]]]:
    """(the whole text, of each round how long the text was and what was drafted).

    Without the last rounds: near the end, who drafts how far differs.
    """
    options: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "stop_token_ids": [made.V], "keep_trees": True}
    answer = generate(drafter, PROMPT, budget=Budget.chain(drafter.config.proposals), **options)
    length, rounds = len(PROMPT) + 1, []
    for one in answer.rounds[0][: -made.BLOCK]:
        assert one.tree is not None
        rounds.append((length, one.tree.tokens))
        length += one.committed
    assert len({tuple(draft) for _, draft in rounds}) > 3, "drafts that do not vary would prove little"
    return PROMPT + answer.tokens[0], rounds


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
        found = block_logits(model, tokens, features, ANCHOR)
        ours = torch.stack([drafter.logits(row)[0, 0] for row in drafter.unroll(batch, drafter.config.proposals)])
    first = not model.config.sample_from_anchor
    assert len(ours) == made.BLOCK - first and len(set(ours.argmax(-1).tolist())) > 1
    torch.testing.assert_close(ours, found[first:], rtol=1e-4, atol=1e-4)
    answer, rounds = decoded(drafter)
    for length, draft in rounds:
        assert their_block(model, drafter, answer[:length]) == draft


def theirs(core: Any, drafter: str, folder: Path) -> Any:
    """Their network with the weights of a folder, all of which it must take."""
    config = core[drafter].config_class.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = core[drafter](config=config)
    own, held = model.state_dict(), safetensors.torch.load_file(folder / "model.safetensors")
    assert all(key.startswith("verifier_") for key in own.keys() - held.keys())
    model.load_state_dict({**own, **held})
    return model.float().eval()


@torch.inference_mode()
def their_block(model: Any, drafter: Drafter, committed: list[int]) -> list[int]:
    """The block that its logits propose below the last token of a text, greedily: each slot after those before it."""
    first = not model.config.sample_from_anchor
    tokens = torch.tensor([committed + [0] * made.BLOCK])
    features = TARGET.read(tokens, drafter.taps).features
    for slot in range(first, made.BLOCK):
        draft = block_logits(model, tokens, features, len(committed) - 1)[slot].argmax()
        tokens[0, len(committed) + slot - first] = draft if model.d2t is None else draft + model.d2t[draft]
    return tokens[0, len(committed) :][: made.BLOCK - first].tolist()


def block_logits(model: Any, tokens: Tensor, features: Tensor, anchor: int) -> Tensor:
    """Its logits [slots, D] of the block at the anchor, below the text's own tokens."""
    there, documents = torch.zeros_like(tokens), torch.zeros_like(tokens)
    there[0, anchor] = 1
    last = torch.zeros(1, tokens.shape[1], made.H)
    hidden, logits, *_ = model._backbone_forward(features, tokens, there, last, documents, max_anchors=1)
    logits = logits[0]
    if getattr(model, "markov_head", None) is not None:
        block = tokens[:, anchor : anchor + made.BLOCK]
        before = block if model.config.sample_from_anchor else torch.cat((block[:, :1], block[:, :-1]), dim=1)
        logits = logits + model.markov_head.block_bias(prev_token_ids=before, hidden_states=hidden)[0]
    return logits
