"""EAGLE-3 heads in foreign layouts against speculators' own network: the same folder, the same logits and drafts.

Run with `tox -e parity`, or `pytest -m parity` where `speculators` is installed; skipped where it is not. SafeAILab's
and SpecForge's own code is in no package that a CPU runs: their layouts are read here by speculators' converter, too.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, Qwen3Config

from drafterzoo import generate, load
from drafterzoo.budget import Budget
from drafterzoo.drafters.base import Drafter, UnrollBatch
from drafterzoo.registry import DRAFTERS
from drafterzoo.target import Target
from tests.foreign_eagle import DIM, FF, HEADS, KV, D, H, V, foreign_files, vocabulary_maps, weights, write
from tests.tiny import tiny_model

pytestmark = pytest.mark.parity

TOKENS = [5, 9, 33, 2, 61, 17, 40, 8, 23, 50]
PROMPT = [3, 9, 4, 9, 30]
STEPS = 4
KINDS = {"llama": LlamaConfig, "qwen3": Qwen3Config}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
FLAGS = ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual")
LENDS = ("embed_tokens.", "verifier_")  # what speculators takes from the target


@attrs.frozen
class Head:
    """What one head is. flags: those of FLAGS that are true; rope: as transformers 5 says it; window: of all layers."""

    flags: tuple[str, ...] = ()
    kind: str = "llama"
    rows: int = D
    rope: dict[str, Any] = PLAIN
    layers: int = 1
    bias: bool = False
    taps: tuple[int, ...] = (2, 4, 5)
    window: int | None = None

    @property
    def said(self) -> dict[str, bool]:
        return {flag: flag in self.flags for flag in FLAGS}

    @property
    def steps(self) -> int:
        """How far the two must agree: speculators' later training steps look back one row further each."""
        return STEPS if self.window is None else 1


def flagged() -> dict[str, Head]:
    """Every set of flags that may be true together (eagle.md 1.3), in either body, with D < V and D = V."""
    found = {}
    for number, chosen in enumerate(itertools.product((False, True), repeat=len(FLAGS))):
        flags = tuple(itertools.compress(FLAGS, chosen))
        if not {"fc_norm", "norm_before_fc"} <= set(flags):
            for kind, rows in zip(KINDS, (D, V) if number % 2 else (V, D), strict=True):
                found[f"{kind} {rows} {' '.join(flags)}".strip()] = Head(flags, kind, rows)
    return found


ROPES = {
    "theta": {"rope_type": "default", "rope_theta": 500000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16},
}
HEADS_OF_ALL_KINDS = {
    **flagged(),
    **{f"{kind} {name}": Head(kind=kind, rope=rope) for name, rope in ROPES.items() for kind in KINDS},
    "two layers": Head(layers=2),
    "two layers, qwen3, 3.1": Head(("fc_norm", "norm_output"), "qwen3", layers=2),
    "biases": Head(bias=True),
    "other taps": Head(("fc_norm",), taps=(0, 3, 6, 8)),
    "window": Head(window=4),
    "window, qwen3": Head(kind="qwen3", window=4),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """A tiny target that lies where its name says: speculators looks there for what a head borrows."""
    folder = tmp_path_factory.mktemp("target")
    model = tiny_model("llama")
    model.save_pretrained(folder)
    return Target(model, name=str(folder))


@pytest.fixture(scope="module")
def eagle3() -> Any:
    """speculators' EAGLE-3 network."""
    package: Any = pytest.importorskip("speculators.models.eagle3", reason="speculators is not installed")
    return package.Eagle3DraftModel


@pytest.mark.parametrize("written_by", ["speculators", "drafterzoo"])
@pytest.mark.parametrize("name", HEADS_OF_ALL_KINDS)
def test_speculators_own_network_drafts_the_same(
    name: str, written_by: str, target: Target, eagle3: Any, tmp_path: Path
) -> None:
    head = HEADS_OF_ALL_KINDS[name]
    if written_by == "speculators":
        write_theirs(head, target, eagle3, tmp_path)
    else:
        made(head, target).export(tmp_path, "speculators-eagle3")
    drafter = load(f"dir:{tmp_path}", target)
    assert drafter.origin is not None and drafter.origin.format == "speculators-eagle3"
    assert drafter.spec == ("eagle3.1" if {"fc_norm", "norm_output"} <= set(head.flags) else "eagle3")
    check_same(drafter, network(eagle3, tmp_path), head.steps)


FLAT = [("safeailab-eagle3", "hand"), ("safeailab-eagle3", "drafterzoo"), ("specforge-eagle3", "drafterzoo")]


@pytest.mark.filterwarnings("ignore:--target-layer-ids is not explicitly set")
@pytest.mark.parametrize("rows", [D, V])
@pytest.mark.parametrize(("layout", "written_by"), FLAT)
def test_speculators_converts_flat_layouts_into_the_same_network(
    layout: str, written_by: str, rows: int, target: Target, eagle3: Any, tmp_path: Path
) -> None:
    """All flags that its converter keeps: it drops the tensors of `fc_norm`."""
    converters: Any = pytest.importorskip("speculators.convert.entrypoints", reason="speculators is not installed")
    folder = tmp_path / "flat"
    if written_by == "hand":
        config, half = foreign_files(layout, target, reduced=rows < V)
        write(folder, config, {key: one.float() if one.is_floating_point() else one for key, one in half.items()})
    else:
        flags = ("norm_output",) if layout == "specforge-eagle3" else ()
        made(Head(flags, rows=rows), target).export(folder, layout)
    drafter = load(f"dir:{folder}", target)
    assert drafter.origin is not None and drafter.origin.format == layout
    converters.convert_model(str(folder), target.name, "eagle3", str(tmp_path / "theirs"))
    model = network(eagle3, tmp_path / "theirs")
    model.embed_tokens.weight.data.copy_(target.embedding_weight())  # left out, for a server to lend
    check_same(drafter, model, STEPS)


# -- checkpoints -------------------------------------------------------------------------------------------------------


def write_theirs(head: Head, target: Target, eagle3: Any, folder: Path) -> None:
    """A checkpoint as their trainer makes and saves it, of random weights."""
    kinds = {"layer_types": ["sliding_attention"] * head.layers, "sliding_window": head.window}
    layer = KINDS[head.kind](
        vocab_size=V,
        hidden_size=H,
        intermediate_size=FF,
        num_hidden_layers=head.layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KV,
        head_dim=DIM,
        rms_norm_eps=1e-5,
        attention_bias=head.bias,
        rope_parameters=head.rope,
        **({} if head.window is None else {**kinds, "use_sliding_window": True}),
    )
    model = eagle3.from_training_args(
        layer,
        **(vocabulary_maps() if head.rows < V else {}),
        draft_vocab_size=head.rows,
        **head.said,
        target_layer_ids=list(head.taps),
        ttt_steps=STEPS,
        verifier_name_or_path=target.name,
        draft_attn_impl="eager",
    )
    own = {key: value for key, value in model.state_dict().items() if not key.startswith(LENDS)}
    model.load_state_dict({**model.state_dict(), **random_like(own)})
    model.save_pretrained(folder)


def made(head: Head, target: Target) -> Drafter:
    """A drafter of ours of random weights."""
    scaling = {key: value for key, value in head.rope.items() if key != "rope_theta"}
    drafter: Any = DRAFTERS.get("eagle3").create(
        target,
        taps=head.taps,
        hidden_size=H,
        intermediate_size=FF,
        num_heads=HEADS,
        num_kv_heads=KV,
        head_dim=DIM,
        draft_vocab_size=head.rows,
        num_layers=head.layers,
        rope_theta=head.rope["rope_theta"],
        rope_scaling=None if head.rope["rope_type"] == "default" else scaling,
        attention_bias=head.bias,
        qk_norm=head.kind == "qwen3",
        sliding_window=head.window,
        **head.said,
    )
    if head.rows < V:
        drafter.set_vocabulary(vocabulary_maps()["t2d"].nonzero()[:, 0])
    drafter.load_state_dict({**drafter.state_dict(), **random_like(dict(drafter.named_parameters()))})
    return drafter.eval()


def random_like(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return weights({key: tuple(value.shape) for key, value in tensors.items() if value.is_floating_point()})


def network(eagle3: Any, folder: Path) -> Any:
    """Their network of a folder, as they load it; attention without a compiler."""
    config = eagle3.config_class.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    return eagle3.from_pretrained(folder, config=config, dtype=torch.float32).eval()


# -- what both compute -------------------------------------------------------------------------------------------------


def check_same(drafter: Drafter, model: Any, steps: int) -> None:
    """Logits of `steps` draft steps at every row of a text, and the greedy drafts of every round of an answer."""
    tokens = torch.tensor([TOKENS])
    features, at = drafter.target.read(tokens, drafter.taps).features, torch.arange(len(TOKENS))[None]
    found, _ = their_steps(model, features[:, :-1], tokens[:, 1:], torch.zeros_like(at)[:, 1:], steps)
    with torch.inference_mode():
        passes = drafter.unroll(UnrollBatch(tokens, features, at, torch.zeros_like(at)), steps)
        ours = [drafter.logits(hidden) for hidden in passes]
    for step, (own, wanted) in enumerate(zip(ours, found, strict=True)):
        rows = len(TOKENS) - 1 - step  # further rows would read tokens after the text
        torch.testing.assert_close(own[:, :rows], wanted[:, :rows], rtol=1e-4, atol=1e-4)
    check_same_drafts(drafter, model, steps)


def check_same_drafts(drafter: Drafter, model: Any, steps: int) -> None:
    answer = generate(drafter, PROMPT, budget=Budget.chain(steps), max_new_tokens=12, keep_trees=True)
    text = PROMPT + answer.tokens[0]
    length, lengths, ours = len(PROMPT) + 1, [], []
    for one in answer.rounds[0]:
        assert one.tree is not None
        lengths.append(length)
        ours.append(one.tree.tokens)
        length += one.committed
    assert len(set(map(tuple, ours))) > 3, "drafts that do not vary would prove little"
    assert their_drafts(model, drafter, text, lengths, steps) == ours


def their_steps(
    model: Any, features: Tensor, tokens: Tensor, documents: Tensor, steps: int
) -> tuple[list[Tensor], list[Tensor]]:
    """(logits [1, rows, D], draft ids [1, rows]) of each draft step. tokens: x_{t+1} beside the features of row t."""
    logits: list[Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda module, given, found: logits.append(found))
    with torch.inference_mode():
        drafts = model(features, tokens, documents, ttt_steps=steps)
    hook.remove()
    return logits, drafts


def their_drafts(model: Any, drafter: Drafter, text: list[int], lengths: list[int], steps: int) -> list[list[int]]:
    """Their greedy chains, in the target's ids, after the first tokens of a text, as many as each of `lengths` says.

    Their steps are teacher-forced: what row t reads in step j is token t+1+j. So each draft is put after the text, and
    read in the next step; rows after the text's have no features, and no earlier row sees them. All chains are made at
    once, each in a document of its own.
    """
    known = drafter.target.read(torch.tensor([text]), drafter.taps).features[0]
    most = max(lengths) - 1 + steps
    features, tokens = torch.zeros(len(lengths), most, known.shape[-1]), torch.zeros(len(lengths), most).long()
    for number, length in enumerate(lengths):
        features[number, : length - 1] = known[: length - 1]
        tokens[number, : length - 1] = torch.tensor(text[1:length])
    each, last = torch.arange(len(lengths)), torch.tensor(lengths) - 2
    documents = each.repeat_interleave(most)[None]
    for step in range(steps):
        _, drafts = their_steps(model, features.flatten(0, 1)[None], tokens.flatten()[None], documents, step + 1)
        draft = drafts[step].view_as(tokens)[each, last]
        tokens[each, last + 1 + step] = draft if model.d2t is None else draft + model.d2t[draft]
    return [row[length - 1 : length - 1 + steps].tolist() for row, length in zip(tokens, lengths, strict=True)]
