"""Block drafters: every switch drafts as it trains, nothing from the anchor on leaks in, trees are what they say."""

from __future__ import annotations

import heapq
import math
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from drafterzoo.budget import Budget
from drafterzoo.drafters.attention import block_attention, flex_block_attention
from drafterzoo.drafters.base import UnrollBatch
from drafterzoo.drafters.block_body import BlockBody, published_taps
from drafterzoo.drafters.dflash import DFlash
from drafterzoo.drafters.dfly import DFly
from drafterzoo.drafters.dspark import DSpark
from drafterzoo.engine.contract import Frontier
from drafterzoo.engine.decode import Batch, Settings
from drafterzoo.engine.sampling import Sampler, Sampling, Selector
from drafterzoo.errors import UsageError
from drafterzoo.registry import DRAFTERS
from tests.test_drafters import check_drafts_as_trained, text
from tests.tiny import tiny_target

SWITCHES: list[tuple[type[BlockBody], dict[str, Any]]] = [
    (DFlash, {}),
    (DFlash, {"layout": "anchor_first"}),
    (DFlash, {"causal": True}),
    (DFlash, {"causal": True, "layout": "anchor_first"}),
    (DFlash, {"sliding_window": 3, "sliding_layers": (0,)}),
    (DFlash, {"sliding_window": 4, "sliding_layers": (0, 1), "causal": False}),
    (DFlash, {"mask_token_id": 5, "qk_norm": False, "attention_bias": True}),
    (DFlash, {"hidden_size": 48, "head": "own", "embedding": "own"}),
    (DFlash, {"draft_vocab_size": 64, "num_layers": 1}),
    (DSpark, {"markov": "none", "confidence_with_markov": False}),
    (DSpark, {"markov": "vanilla"}),
    (DSpark, {"markov": "gated", "layout": "same_position"}),
    (DSpark, {"markov": "rnn", "head": "own", "confidence": False}),
    (DFly, {}),
    (DFly, {"correction": False}),
    (DFly, {"correction_size": 20, "layout": "anchor_first"}),
]


def randomised(cls: type[BlockBody], options: dict[str, Any], *, vocab: int = 64) -> BlockBody:
    """A drafter of debug size none of whose weights is silent."""
    torch.manual_seed(0)
    target = tiny_target("llama", vocab=vocab)
    drafter = cls(attrs.evolve(cls.debug_config(target), **options), target).eval()
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.normal_(std=0.3) if parameter.dim() > 1 else parameter.uniform_(0.5, 1.5)
    drafter.borrow()
    return drafter


def named(value: Any) -> str:
    return value.name if isinstance(value, type) else ",".join(f"{k}={v}" for k, v in value.items()) or "plain"


@pytest.mark.parametrize(("cls", "options"), SWITCHES, ids=named)
def test_drafting_is_the_training_forward_with_every_switch(cls: type[BlockBody], options: dict[str, Any]) -> None:
    drafter = randomised(cls, options)
    for passes in (1, 3, 4):
        check_drafts_as_trained(drafter, passes)


def test_fewer_slots_than_the_block_has_change_what_a_bidirectional_slot_sees_and_no_causal_one() -> None:
    for causal in (False, True):
        drafter = randomised(DFlash, {"causal": causal})
        tokens, features = text(drafter)
        at = torch.arange(tokens.shape[1]).expand_as(tokens)
        batch = UnrollBatch(tokens, features, at, torch.zeros_like(at))
        short, long = drafter.unroll(batch, 2)[0], drafter.unroll(batch, 4)[0]
        assert torch.allclose(short, long, atol=1e-5) is causal


@pytest.mark.parametrize("cls", [DFlash, DSpark, DFly], ids=named)
def test_documents_packed_into_one_row_do_not_see_each_other(cls: type[BlockBody]) -> None:
    drafter = randomised(cls, {})
    tokens, features = text(drafter)
    length = tokens.shape[1]
    at = torch.arange(length).expand(2, length)
    apart = UnrollBatch(tokens, features, at, torch.zeros_like(at))
    packed = UnrollBatch(
        tokens.reshape(1, -1),
        features.reshape(1, 2 * length, -1),
        at.reshape(1, -1),
        torch.arange(2).repeat_interleave(length)[None],
    )
    for step, (a, b) in enumerate(zip(drafter.unroll(apart, 3), drafter.unroll(packed, 3), strict=True)):
        known = length - 1 - step
        torch.testing.assert_close(a[:, :known], b.view(2, length, -1)[:, :known], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cls", [DFlash, DSpark, DFly], ids=named)
def test_features_from_the_anchor_on_never_matter_and_the_last_before_it_does(cls: type[BlockBody]) -> None:
    drafter = randomised(cls, {})
    tokens, features = text(drafter)
    at, anchor = torch.arange(tokens.shape[1]).expand_as(tokens), 5

    def drafts(features: Tensor) -> Tensor:
        batch = UnrollBatch(tokens, features, at, torch.zeros_like(at), queries=torch.full((2, 1), anchor - 1))
        return torch.stack(drafter.unroll(batch, 4))

    clean, later, last = drafts(features), features.clone(), features.clone()
    later[:, anchor:] += 100.0
    last[:, anchor - 1] += 1.0
    assert torch.equal(drafts(later), clean) and not torch.allclose(drafts(last), clean, atol=1e-3)


def test_every_empty_slot_stands_at_a_position_of_its_own() -> None:
    drafter = randomised(DFlash, {"layout": "anchor_first"})
    tokens, features = text(drafter)
    at = torch.arange(tokens.shape[1]).expand_as(tokens)
    rows = torch.stack(drafter.unroll(UnrollBatch(tokens, features, at, torch.zeros_like(at)), 4))
    for one in range(1, 4):
        for other in range(1, one):  # the same embedding, apart in nothing but where they stand
            assert not torch.allclose(rows[one], rows[other], atol=1e-3)


def test_a_recurrent_head_begins_anew_in_every_block_and_remembers_along_it() -> None:
    drafter = randomised(DSpark, {"markov": "rnn"})
    tokens, features = text(drafter)
    at = torch.arange(tokens.shape[1]).expand_as(tokens)

    def drafts(tokens: Tensor) -> list[Tensor]:
        return drafter.unroll(UnrollBatch(tokens, features, at, torch.zeros_like(at)), 3)

    other = tokens.clone()
    other[:, 5] = (other[:, 5] + 1) % 64
    clean, changed = drafts(tokens), drafts(other)
    rank = drafter.config.markov_rank
    # below the root x_6 nothing of x_5 is read; at depth 2 below the root x_4, x_5 is remembered
    assert torch.equal(clean[0][:, 5, -rank:], changed[0][:, 5, -rank:])
    assert not torch.allclose(clean[2][:, 3, -rank:], changed[2][:, 3, -rank:], atol=1e-4)


@pytest.mark.parametrize("name", ["dflash", "dspark", "dfly"])
def test_a_round_is_one_forward_of_the_slots_that_the_budget_asks_for(name: str) -> None:
    target = tiny_target()
    cls = DRAFTERS.get(name)
    drafter = cls(cls.debug_config(target), target).eval()
    for budget in (Budget.chain(2), Budget.tree(24), Budget(24, 12, 4, 4)):
        batch = Batch(drafter, target, [[5, 6, 7]], Settings(budget, Sampling(), 12), [0])
        batch.prefill(), batch.round()
        made = batch.round()[0].round
        assert made is not None and made.forwards == 1
        assert made.rows == min(drafter.config.block_size, budget.depth + drafter.config.first_slot)
        assert made.drafted > 0


def test_a_budget_deeper_than_the_block_drafts_as_deep_as_the_block() -> None:
    drafter = randomised(DFlash, {})
    deep = drafter.config.proposals
    for budget in (Budget.chain(deep + 3), Budget(40, deep + 3, 4, 4)):
        batch = Batch(drafter, drafter.target, [[5, 6, 7]], Settings(budget, Sampling(), 12, keep_trees=True), [0])
        batch.prefill()
        made = batch.round()[0].round
        assert made is not None and made.tree is not None
        assert max(d for d, real in zip(made.tree.depths, made.tree.valid, strict=True) if real) == deep


def test_the_tree_of_independent_positions_holds_the_likeliest_prefixes() -> None:
    """DDTree's best-first search over the factorised distribution, done the plain way with a heap."""
    drafter = randomised(DFlash, {"draft_vocab_size": 64})
    nodes, deep = 9, drafter.config.proposals
    budget = Budget(nodes, deep, nodes, nodes)
    batch = Batch(drafter, drafter.target, [[5, 6, 7, 8]], Settings(budget, Sampling(), 12, keep_trees=True), [0])
    batch.prefill()
    made = batch.round()[0].round
    assert made is not None and made.tree is not None
    logs = drafter.logits(batch.state.outputs[0]).log_softmax(-1)
    heap: list[tuple[float, tuple[int, ...]]] = [(-float(logs[0, t]), (t,)) for t in range(64)]
    heapq.heapify(heap)
    wanted = set()
    while len(wanted) < nodes:
        cost, prefix = heapq.heappop(heap)
        wanted.add(prefix)
        if len(prefix) < deep:
            for t in range(64):
                heapq.heappush(heap, (cost - float(logs[len(prefix), t]), (*prefix, t)))
    tree = made.tree
    found = set()
    for node in range(nodes):
        prefix, at = [tree.tokens[node]], tree.parents[node]
        while at:
            prefix.append(tree.tokens[at - 1])
            at = tree.parents[at - 1]
        found.add(tuple(reversed(prefix)))
    assert found == wanted


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=1.0, seed=1), Sampling(temperature=1.0, seed=2, verification="rejection")],
    ids=["greedy", "coupled", "rejection"],
)
@pytest.mark.parametrize("vocabulary", [None, torch.tensor([1, 4, 5, 9, 11])], ids=["whole", "reduced"])
def test_one_row_of_logits_stands_for_all_rows_of_a_frontier(sampling: Sampling, vocabulary: Tensor | None) -> None:
    width = 12 if vocabulary is None else len(vocabulary)
    sampler = Sampler(sampling, torch.tensor([3, 4]), 12, 5)
    sampler.begin(torch.tensor([7, 9]))
    frontier = Frontier(
        step=1,
        first_row=1,
        tokens=torch.zeros(2, 3, dtype=torch.int64),
        nodes=torch.arange(3).expand(2, 3),
        positions=torch.tensor([[8] * 3, [10] * 3]),
        sources=torch.zeros(2, 3, dtype=torch.int64),
        visible=torch.ones(2, 3, 4, dtype=torch.bool),
        valid=torch.ones(2, 3, dtype=torch.bool),
    )
    logits = torch.randn(2, 1, width, generator=torch.Generator().manual_seed(0))
    select = Selector(sampler, 2)
    once, each = select(logits, frontier, vocabulary), select(logits.expand(2, 3, width), frontier, vocabulary)
    for name in ("nodes", "tokens", "scores", "keep", "q"):
        a, b = getattr(once, name), getattr(each, name)
        assert (a is None and b is None) or torch.equal(a, b), name


def test_the_published_taps() -> None:
    # block.md 1.1: ids of layer outputs, and the boundary after layer i is i+1
    assert [t - 1 for t in published_taps(36)] == [1, 9, 17, 25, 33]
    assert [t - 1 for t in published_taps(40)] == [1, 10, 19, 28, 37]
    assert [t - 1 for t in published_taps(64)] == [1, 16, 31, 46, 61]
    assert published_taps(36, 1) == (19,)
    with pytest.raises(UsageError, match="name them"):
        published_taps(6)


@pytest.mark.parametrize(
    ("cls", "options", "said"),
    [
        (DFlash, {"block_size": 1}, "block_size=1, expected a number from 2"),
        (DFlash, {"mask_token_id": 64}, "no id of a vocabulary of 64"),
        (DFlash, {"sliding_window": 4}, "or neither"),
        (DFlash, {"sliding_layers": (0,)}, "or neither"),
        (DFlash, {"sliding_window": 4, "sliding_layers": (2,)}, "layers from 0 to 1"),
        (DFlash, {"sliding_window": 0, "sliding_layers": (1,)}, "at least 1"),
        (DFlash, {"taps": (1, 1)}, "each named once"),
        (DFlash, {"hidden_size": 48}, "cannot be borrowed"),
        (DSpark, {"markov_rank": 0}, "markov_rank=0"),
        (DSpark, {"markov": "none"}, "confidence_with_markov"),
        (DSpark, {"confidence_temperatures": (1.0,)}, "expected 5 numbers"),
        (DFly, {"correction_size": -1}, "correction_size=-1"),
        (DFly, {"hidden_size": 48, "head": "own", "embedding": "own"}, "give both the target's"),
    ],
    ids=str,
)
def test_what_no_block_drafter_can_have_is_refused(cls: type[BlockBody], options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        attrs.evolve(cls.debug_config(tiny_target()), **options)


def test_more_passes_than_a_block_proposes_are_refused() -> None:
    drafter = randomised(DFlash, {})
    tokens, features = text(drafter)
    at = torch.arange(tokens.shape[1]).expand_as(tokens)
    with pytest.raises(UsageError, match="proposes 4 tokens"):
        drafter.unroll(UnrollBatch(tokens, features, at, torch.zeros_like(at)), 5)


def test_no_wrapper_for_recurrent_drafters_goes_around_a_block() -> None:
    import drafterzoo

    with pytest.raises(UsageError, match="cannot wrap 'dflash'"):
        drafterzoo.load("dflash+pr", target=tiny_target())


def test_a_mask_of_its_own_is_as_long_as_an_embedding() -> None:
    torch.manual_seed(0)
    target = tiny_target()
    drafter = DFlash.create(target, taps=(1, 3), num_layers=1, block_size=4)
    assert math.isclose(
        float(drafter.mask_embedding.detach().std()), float(target.embedding_weight().std()), rel_tol=0.5
    )


@pytest.mark.parametrize("each", [1, 4])
def test_flex_attention_sees_and_gives_what_the_dense_form_does(each: int) -> None:
    """Eager on a CPU, where it has no backward; compiled it is the training forward's on a GPU."""
    from torch.nn.attention.flex_attention import flex_attention

    n, heads, kv, blocks, slots, rows, width = 2, 4, 2, 3, 4, 10, 16
    generator = torch.Generator().manual_seed(each)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    q = drawn(n, heads, blocks, slots, width)
    context = [drawn(n, kv, rows, width) for _ in range(2)]
    own = [drawn(n, kv, blocks, slots, width) for _ in range(2)]
    seen = torch.rand(n, blocks, each, rows, generator=generator) < 0.5
    inside = (torch.rand(n, blocks, slots, slots, generator=generator) < 0.5) | torch.eye(slots, dtype=torch.bool)
    dense = block_attention(q, context, own, seen, inside)
    flex = flex_block_attention(q, context, own, seen, inside, flex_attention)
    torch.testing.assert_close(flex, dense, rtol=1e-4, atol=1e-5)
