"""Carryover: which rejected rows are kept, where they stand, and that training drafts as decoding does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from drafterzoo.budget import Budget
from drafterzoo.drafters.base import Drafter, UnrollBatch, Unrolling
from drafterzoo.drafters.block_body import BlockState, Carried
from drafterzoo.engine.contract import Committed, DraftTree, Verdict
from drafterzoo.engine.decode import Batch, Settings
from drafterzoo.engine.sampling import Sampling
from drafterzoo.errors import UsageError
from drafterzoo.registry import DRAFTERS
from drafterzoo.target import Target
from drafterzoo.training.objectives.base import TeacherHead
from drafterzoo.training.objectives.carryover import Carrying, transitions
from drafterzoo.training.objectives.ce import CrossEntropy
from drafterzoo.training.objectives.ttt import TTT
from drafterzoo.wrappers.carryover import Carryover
from tests.oracle import plainly
from tests.test_invariants import BLOCKS, build, run
from tests.test_mixed import a_batch
from tests.tiny import tiny_target

PROMPT = [5, 6, 7, 5, 6, 9, 5]


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(dtype=torch.float64)


def seen(drafter: Drafter) -> list[Carried | None]:
    """Notes what the base is given to carry, round by round."""
    given: list[Carried | None] = []
    base = drafter.base
    observe = base.observe

    def noting(state: Any, committed: Committed, carried: Carried | None = None) -> None:
        given.append(carried)
        observe(state, committed, carried)

    base.observe = noting
    return given


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("budget", [Budget.chain(4), Budget.tree(8)], ids=str)
def test_without_any_rows_it_is_the_bare_drafter_bit_for_bit(name: str, budget: Budget, target: Target) -> None:
    for sampling in (Sampling(), Sampling(temperature=1.0, seed=3)):
        settings = Settings(budget, sampling, 20, keep_trees=True)
        bare = run(build(name, target), [PROMPT, [3]], settings, [0, 1])[1]
        off = run(build(f"{name}+carryover(carry=0)", target), [PROMPT, [3]], settings, [0, 1])[1]
        assert [[r.tree for r in rounds] for rounds in bare] == [[r.tree for r in rounds] for rounds in off]


@pytest.mark.parametrize("name", BLOCKS)
def test_what_a_round_rejects_is_carried_into_the_next_and_no_further(name: str, target: Target) -> None:
    drafter = build(f"{name}+carryover", target)
    given = seen(drafter)
    batch = Batch(drafter, target, [PROMPT], Settings(Budget.chain(4), Sampling(), 20, keep_trees=True), [0])
    text = PROMPT + batch.prefill()[0].tokens
    rounds = []
    while batch.alive:
        root, emission = len(text) - 1, batch.round()[0]
        assert emission.round is not None and emission.round.tree is not None
        rounds.append((root, list(text), emission.round))
        text += emission.tokens
    assert given[0] is None and len(given) == len(rounds) > 3
    for (root, before, made), carried in zip(rounds[:-1], given[1:], strict=True):
        assert carried is not None and made.tree is not None
        real = carried.valid[0]
        assert carried.positions[0][real].tolist() == list(range(root + made.walked + 1, root + 1 + made.drafted))
        branch = target.read(torch.tensor([before + made.tree.tokens]), drafter.taps).features[0]
        wanted = branch[root + 1 + made.walked :] + drafter.mark
        torch.testing.assert_close(carried.features[0][real], wanted, rtol=1e-9, atol=1e-9)
    fresh = build(name, target)  # and the first round of an answer carries nothing
    bare = Batch(fresh, target, [text[:9]], Settings(Budget.chain(4), Sampling(), 20), [0])
    bare.prefill(), bare.round()
    carrying = Batch(drafter, target, [text[:9]], Settings(Budget.chain(4), Sampling(), 20), [0])
    carrying.prefill(), carrying.round()
    torch.testing.assert_close(bare.state.outputs, carrying.state.outputs, rtol=1e-12, atol=1e-12)


def test_which_rows_are_kept_and_where_they_stand(target: Target) -> None:
    """A tree by hand. Accepted: nodes 0 and 3. Rejected: 1 - 4 - 6 (the deepest branch), 2 and 5."""
    tree = DraftTree(
        tokens=torch.arange(10, 18)[None],
        parents=torch.tensor([[0, 0, 0, 1, 2, 1, 5, 0]]),
        depths=torch.tensor([[1, 1, 1, 2, 2, 2, 3, 1]]),
        scores=torch.tensor([[-0.1, -0.9, -0.5, -0.2, -1.0, -0.3, -2.0, -torch.inf]]),
        valid=torch.tensor([[True] * 7 + [False]]),
    )
    verdict = Verdict(torch.tensor([[0, 1, 4, 4]]), torch.tensor([2]), torch.tensor([40]))
    features = torch.arange(9.0, dtype=torch.float64)[None, :, None].expand(1, 9, 3 * 32).contiguous()
    committed = Committed(
        tokens=torch.tensor([[9, 10, 13]]),
        next_tokens=torch.tensor([[10, 13, 40]]),
        positions=torch.tensor([[20, 21, 22]]),
        features=features[:, :3],
        valid=torch.ones(1, 3, dtype=torch.bool),
        last=torch.tensor([2]),
        longest=23,
        tree=tree,
        verdict=verdict,
        tree_features=features,
    )

    def kept(**options: Any) -> list[tuple[int, int]]:
        drafter = Carryover(build("dflash", target), Carryover.default_config(target, **options))
        carried = drafter._rejected(committed)
        assert carried is not None
        rows = zip(carried.features[0, :, 0].tolist(), carried.positions[0].tolist(), strict=True)
        return [(int(row) - 1, at) for (row, at), real in zip(rows, carried.valid[0].tolist(), strict=True) if real]

    assert kept(carry=3) == [(1, 21), (4, 22), (6, 23)]
    assert kept(carry=2) == [(1, 21), (4, 22)]
    assert kept(carry=4) == [(1, 21), (4, 22), (6, 23), (5, 22)]
    assert kept(carry=3, keep="likeliest") == [(5, 22), (2, 21), (1, 21)]
    assert kept(carry=9) == [(1, 21), (4, 22), (6, 23), (5, 22), (2, 21)]
    assert kept(carry=1, positions="next") == [(1, 22)]


@pytest.mark.parametrize("embedding", ["taps", "context"])
@pytest.mark.parametrize("name", BLOCKS)
def test_the_mark_is_added_where_it_is_said(name: str, embedding: str, target: Target) -> None:
    drafter = build(f"{name}+carryover(embedding='{embedding}')", target)
    features = torch.randn(1, 2, 3 * 32, dtype=torch.float64)
    carried = drafter.marked(features, torch.zeros(1, 2, dtype=torch.int64), torch.ones(1, 2, dtype=torch.bool))
    found = drafter.base._context_keys(carried.features, carried.positions, carried.mark)
    base, mark = drafter.base, drafter.mark
    if embedding == "taps":
        contexts = base.contexts(features + mark)
    else:
        contexts = [context + mark for context in base.contexts(features)]
    for layer, (context, (_, values)) in enumerate(zip(contexts, found, strict=True)):
        wanted = base.layers[layer].self_attn.v_proj(context).unflatten(-1, (-1, 8)).transpose(1, 2)
        torch.testing.assert_close(values, wanted)


@pytest.mark.parametrize("positions", ["verified", "next"])
@pytest.mark.parametrize("name", BLOCKS)
def test_training_drafts_what_decoding_drafts_in_the_second_round(name: str, positions: str, target: Target) -> None:
    """Along the target's own greedy text, from many anchors: the block after a rejection, with all it carries."""
    text = PROMPT + plainly(target, [PROMPT], Sampling(), 30)[0]
    drafter = build(f"{name}+carryover(positions='{positions}', fresh=0.0)", target)
    tokens = torch.tensor([text])
    at = torch.arange(len(text))[None]
    features = target.read(tokens, drafter.taps).features
    queries = torch.arange(len(PROMPT) - 1, 25)[None]
    batch = UnrollBatch(tokens, features, at, torch.zeros_like(at), queries=queries)
    moved, carried = transitions(drafter, batch)
    rows = drafter.base.block_rows(moved, drafter.base.config.proposals, Unrolling(), carried)
    for column, row in enumerate(queries[0].tolist()):
        root = row + 1
        settings = Settings(Budget.chain(drafter.base.config.proposals), Sampling(), 20)
        engine = Batch(drafter, target, [text[:root]], settings, [0])
        assert engine.prefill()[0].tokens == [text[root]]
        emitted = engine.round()[0].tokens
        assert int(moved.queries[0, column]) == root - 1 + len(emitted)
        engine.round()
        state: BlockState = engine.state
        torch.testing.assert_close(state.outputs[0], rows[0, column], rtol=1e-9, atol=1e-9)


def test_a_share_of_the_anchors_stays_and_documents_do_not_mix() -> None:
    torch.manual_seed(0)
    cls = DRAFTERS.get("dflash")
    target = tiny_target()
    base = cls(cls.debug_config(target), target)
    batch = a_batch(base, (30, 5, 28))
    for fresh, low, high in ((1.0, 1.0, 1.0), (0.5, 0.25, 0.85), (0.0, 0.0, 0.2)):
        drafter = Carryover(base, Carryover.default_config(target, fresh=fresh))
        moved, carried = transitions(drafter, batch)
        stays = moved.queries == batch.queries
        assert low <= float(stays.float().mean()) <= high
        empty = ~carried.valid.unflatten(1, (stays.shape[1], -1)).any(-1)
        assert bool(empty[stays].all())
        owners = batch.documents[0]
        assert torch.equal(owners[moved.queries], owners[batch.queries])


def test_the_objective_teaches_the_mark_and_the_drafter_but_not_through_the_first_draft() -> None:
    torch.manual_seed(0)
    cls = DRAFTERS.get("dspark")
    target = tiny_target()
    drafter = Carryover(cls(cls.debug_config(target), target), Carryover.default_config(target, fresh=0.0))
    batch = a_batch(drafter, (30, 28))
    loss, notes = Carrying(CrossEntropy()).loss(drafter, batch, 1, TeacherHead.of(drafter))
    loss.backward()
    assert drafter.mark.grad is not None and drafter.mark.grad.any()
    assert drafter.base.fc.weight.grad is not None and notes[0].rows > 0


def test_what_it_cannot_be_around_is_said_in_a_sentence() -> None:
    import drafterzoo

    with pytest.raises(UsageError, match=r"cannot wrap 'eagle3\.1', which takes no context rows"):
        drafterzoo.load("eagle3.1+carryover", target=tiny_target())
    cls = DRAFTERS.get("dflash")
    target = tiny_target()
    base = cls(cls.debug_config(target), target)
    for options, said in (({"carry": -1}, "carry=-1"), ({"carry": 999}, "from 0 to 256"), ({"fresh": 2.0}, "fresh=2")):
        with pytest.raises(UsageError, match=said):
            Carryover.default_config(target, **options)
    with pytest.raises(UsageError, match="trained by an objective of blocks"):
        Carrying(TTT()).check(Carryover(base, Carryover.default_config(target)))
