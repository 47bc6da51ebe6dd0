"""How a block drafter begins: in closed form, looking at the rows that matter, or as layers of its target."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from drafterzoo.drafters.base import Unrolling
from drafterzoo.drafters.block_body import BlockBody
from drafterzoo.drafters.dflash import DFlash
from drafterzoo.drafters.dfly import DFly
from drafterzoo.drafters.dspark import DSpark
from drafterzoo.drafters.rope import rotary
from drafterzoo.errors import UsageError
from drafterzoo.target import Target
from drafterzoo.training.batches import pack
from drafterzoo.training.block_ridge import block_ridge_start
from drafterzoo.training.features import Document, OnlineFeatures
from drafterzoo.training.inherit import begin_as_layers
from drafterzoo.training.objectives.base import TrainingBatch
from drafterzoo.training.rollouts import Rollout, Rollouts
from tests.tiny import tiny_target

WIDTH, VOCAB = 64, 48


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("llama", hidden=WIDTH, vocab=VOCAB)


@pytest.fixture(scope="module")
def documents(target: Target, tmp_path_factory: pytest.TempPathFactory) -> list[Document]:
    drawn = torch.randint(3, VOCAB, (24, 40), generator=torch.Generator().manual_seed(0)).tolist()
    rows = tuple(Rollout(tuple(ids[:4]), tuple(ids[4:]), "train", "t", 0.0) for ids in drawn)
    rollouts = Rollouts(tmp_path_factory.mktemp("r"), rows, "0" * 64)
    source = OnlineFeatures(target, rollouts, (2, 4, 7), 512)
    return [source.document(i) for i in range(len(rows))]


def build(cls: type[BlockBody], target: Target, **options: Any) -> BlockBody:
    torch.manual_seed(0)
    sizes = {"taps": (2, 4, 7), "num_layers": 2, "block_size": 5, "mask_token_id": 1, "qk_norm": True}
    return cls.create(target, **{**sizes, **options})


def attention(drafter: BlockBody, batch: TrainingBatch, index: int) -> tuple[Tensor, Tensor]:
    """Of a layer, by head and slot, the mean weight [H, slots] on the last row of the context, and on the anchor."""
    config, layer, heard = drafter.config, drafter.layers[index], []
    hook = layer.self_attn.q_proj.register_forward_pre_hook(lambda _, given: heard.append(given[0]))
    drafter.block_rows(batch, config.proposals, Unrolling())
    hook.remove()
    (read,) = heard
    at = batch.positions[0][batch.queries[0]][:, None] + 1 + torch.arange(config.block_size)
    queries = layer.self_attn.queries(read, *rotary(at.flatten()[None], config, torch.float32))[0]
    own = layer.self_attn.keys(read, *rotary(at.flatten()[None], config, torch.float32))[0][0]
    far = drafter._context_keys(batch.features, batch.positions)[index][0][0]
    shared, blocks = len(queries) // len(own), len(at)
    queries = queries.unflatten(1, (blocks, -1)) * config.head_dim**-0.5
    own = own.unflatten(1, (blocks, -1)).repeat_interleave(shared, 0)
    seen = torch.arange(far.shape[1]) <= batch.queries[0][:, None]
    score = torch.einsum("hqsd,htd->hqst", queries, far.repeat_interleave(shared, 0))
    score = score.masked_fill(~seen[:, None], float("-inf"))
    weights = torch.cat((score, torch.einsum("hqsd,hqkd->hqsk", queries, own)), dim=-1).softmax(-1)
    last = weights[..., : far.shape[1]].gather(-1, batch.queries[0][None, :, None, None].expand(*weights.shape[:3], 1))
    return last[..., 0].mean(1), weights[..., far.shape[1]].mean(1)


def error(drafter: BlockBody, documents: list[Document]) -> Tensor:
    """By depth, how far what the head reads is from the target's hidden state, as a share of its square."""
    found = []
    for document in documents:
        batch = pack([document])
        wanted = batch.queries[0] + 1 + torch.arange(drafter.config.proposals)[:, None]
        there = wanted < len(document.tokens)
        rows = drafter.block_rows(batch, drafter.config.proposals, Unrolling())[0].transpose(0, 1)
        truth = document.hidden[wanted.clamp(max=len(document.tokens) - 1)]
        off = (rows - truth).square().mean(-1) / truth.square().mean(-1)
        found.append(torch.stack([one[here].mean() for one, here in zip(off, there, strict=True)]))
    return torch.stack(found).mean(0)


@pytest.mark.parametrize("layout", ["same_position", "anchor_first"])
@pytest.mark.parametrize("cls", [DFlash, DSpark, DFly])
@torch.no_grad()
def test_it_looks_at_the_last_row_and_the_anchor(
    cls: type[BlockBody], layout: str, target: Target, documents: list[Document]
) -> None:
    drafter = build(cls, target, layout=layout, head_dim=64)
    first = drafter.config.first_slot
    block_ridge_start(drafter, documents, 2000)
    batch = pack([documents[3]])
    last, anchor = attention(drafter, batch, 0)  # two heads share keys: one for each
    assert last[::2, first:].min() > 0.6 and anchor[1::2, first:].min() > 0.6
    last, anchor = attention(drafter, batch, 1)  # these, from the slot that proposes the first token alone
    assert (last[::2, first] > 2 * last[::2, first + 2]).all() and (
        anchor[1::2, first] > 2 * anchor[1::2, first + 2]
    ).all()


@pytest.mark.parametrize("cls", [DFlash, DSpark, DFly])
@torch.no_grad()
def test_it_says_more_of_what_comes_next_than_the_mean_does(
    cls: type[BlockBody], target: Target, documents: list[Document]
) -> None:
    drafter = build(cls, target)
    random = error(drafter, documents[18:])
    block_ridge_start(drafter, documents[:18], 2000)
    solved = error(drafter, documents[18:])
    assert (solved < random).all() and solved[0] < 0.8 * random[0] and solved[0] < solved[1:].min()


@torch.no_grad()
def test_the_same_documents_give_the_same_start(target: Target, documents: list[Document]) -> None:
    one, other = (build(DFlash, target) for _ in range(2))
    for drafter in (one, other):
        block_ridge_start(drafter, documents, 500, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(
    "options", [{"qk_norm": False}, {"hidden_size": 48, "head": "own", "embedding": "own"}], ids=["norms", "width"]
)
def test_what_cannot_begin_so_is_refused(options: dict[str, Any], target: Target, documents: list[Document]) -> None:
    with pytest.raises(UsageError, match=r'fc = "ridge" needs a block drafter with qk_norm = true and the target'):
        block_ridge_start(build(DFlash, target, **options), documents, 100)


def test_layers_of_the_target_are_copied_and_their_input_passed_on(target: Target) -> None:
    drafter = build(DFlash, target, qk_norm=False)
    begin_as_layers(drafter, (3, 6))
    for own, index in zip(drafter.layers, (3, 6), strict=True):
        weights = target.layer_weights(index)
        assert all(torch.equal(value, weights[key]) for key, value in own.state_dict().items())
    features = torch.randn(1, 5, 3 * WIDTH)
    passed = drafter.contexts(features)[0]  # of boundaries 2, 4 and 7, layer 3's own input is nearest to 2
    nearest = features[..., :WIDTH]
    scale = nearest.square().mean(-1, keepdim=True).add(drafter.config.rms_norm_eps).rsqrt()
    assert torch.allclose(passed, nearest * scale * target.layer_weights(3)["input_layernorm.weight"], atol=1e-5)


@pytest.mark.parametrize(
    ("layers", "options", "words"),
    [
        ((3,), {}, "expected 2 numbers from 0 to 7"),
        ((3, 8), {}, "expected 2 numbers from 0 to 7"),
        ((3, 6), {"qk_norm": True}, "has none as self_attn.q_norm.weight"),
        ((3, 6), {"intermediate_size": 96}, r"has \[128, 64\] as mlp"),
    ],
)
def test_layers_that_do_not_fit_are_refused(
    layers: tuple[int, ...], options: dict[str, Any], words: str, target: Target
) -> None:
    with pytest.raises(UsageError, match=words):
        begin_as_layers(build(DFlash, target, **{"qk_norm": False, **options}), layers)


def test_a_drafter_that_does_not_say_how_it_fuses_is_refused_by_name(target: Target) -> None:
    with pytest.raises(UsageError, match=r'fc = "ridge" is not defined for dflash; leave it out'):
        BlockBody.begin_with(build(DFlash, target), torch.zeros(WIDTH, 3 * WIDTH))
