"""Verification is exact: `match` by its definition, `rejection` by adding up every outcome of the real code."""

from __future__ import annotations

import math

import attrs
import pytest
import torch
from torch import Tensor

from drafterzoo.budget import Budget
from drafterzoo.engine.contract import Committed, Counters, DraftTree, Frontier, Offers
from drafterzoo.engine.sampling import Sampler, Sampling, Selector
from drafterzoo.engine.tree import bare_tree, grow
from drafterzoo.engine.verify import match, rejection
from tests.enumeration import Law, Rigged, Weighing, emitted, joint, weights

# ---------------------------------------------------------------------------------------------------------- match


class Choosing(Sampler):
    """A sampler whose choice at a row of logits is written in the row's first column."""

    def choose(self, logits: Tensor, positions: Tensor) -> Tensor:
        return logits[:, 0].long()


def tree_of(tokens: list[int], parents: list[int], valid: list[bool] | None = None) -> DraftTree:
    depths = [0]
    for parent in parents:
        depths.append(depths[parent] + 1)
    row = lambda values: torch.tensor([values])  # noqa: E731
    return DraftTree(
        row(tokens), row(parents), row(depths[1:]), torch.zeros(1, len(tokens)), row(valid or [True] * len(tokens))
    )


def choices(*per_index: int) -> Tensor:
    return torch.tensor(per_index, dtype=torch.float32)[None, :, None]


def walk(tree: DraftTree, *per_index: int, depth: int) -> tuple[list[int], int, int]:
    sampler = Choosing(Sampling(), torch.zeros(1, dtype=torch.int64), 8, depth + 1)
    verdict = match(choices(*per_index), tree, sampler, depth)
    return verdict.path[0].tolist(), int(verdict.accepted), int(verdict.next_token)


def test_match_follows_the_choice_of_every_node() -> None:
    #        root -> 5 (1), 6 (2);  6 -> 5 (3), 7 (4);  7 -> 1 (5)
    tree = tree_of([5, 6, 5, 7, 1], [0, 0, 2, 2, 4])
    assert walk(tree, 6, 0, 7, 0, 1, 3, depth=3) == ([0, 2, 4, 5], 3, 3)
    assert walk(tree, 6, 0, 7, 0, 2, 3, depth=3) == ([0, 2, 4, 4], 2, 2)
    assert walk(tree, 6, 0, 1, 0, 1, 3, depth=3) == ([0, 2, 2, 2], 1, 1)
    assert walk(tree, 4, 0, 7, 0, 1, 3, depth=3) == ([0, 0, 0, 0], 0, 4)


def test_match_does_not_take_padding_or_another_parents_child() -> None:
    tree = tree_of([5, 6, 0], [0, 0, 0], [True, True, False])
    assert walk(tree, 0, 0, 0, 0, depth=2) == ([0, 0, 0], 0, 0)
    assert walk(tree_of([5, 6], [0, 1]), 6, 6, 0, depth=2) == ([0, 0, 0], 0, 6)


def test_match_without_a_tree_is_plain_decoding() -> None:
    assert walk(bare_tree(1, torch.device("cpu")), 3, depth=0) == ([0], 0, 3)


# ------------------------------------------------------------------------------------------------------ rejection

VOCABULARY = 3
SAMPLING = Sampling(temperature=1.0, verification="rejection")


class Toy:
    """A drafter whose distribution is a fixed table over (depth, parent's token, token)."""

    taps: tuple[int, ...] = ()
    capabilities: frozenset[str] = frozenset()

    def __init__(self, table: Tensor, deterministic: bool = False) -> None:
        self.table, self.deterministic = table, deterministic
        self.counters = Counters()

    def observe(self, state: object, committed: Committed) -> None:
        raise AssertionError("the toy has no context")

    def rows_per_round(self, depth: int, grow: int) -> int:
        return (depth - 1) * grow

    def expand(self, state: object, frontier: Frontier, select: Selector) -> Offers:
        logits = self.table[frontier.positions, frontier.tokens]
        if not self.deterministic:
            return select(logits, frontier)
        scores, tokens = logits.log_softmax(-1).topk(select.offer, dim=-1)
        return Offers(frontier.nodes, tokens, scores)


def law_of(target: Tensor) -> Law:
    """The next token depends on depth and the token before it; the root is token 0."""
    p = target.softmax(-1)
    return lambda head: p[len(head), head[-1] if head else 0]


def emitted_law(drafter: Toy, target: Tensor, budget: Budget, length: int) -> tuple[Tensor, int]:
    """The joint law of the first `length` tokens after the root, and the greatest number of nodes in a tree."""
    rows = 0 if drafter.deterministic else 1 + drafter.rows_per_round(budget.depth, budget.grow)
    draws, bits = Rigged.cases(rows, VOCABULARY, budget.nodes)
    roots = torch.zeros(len(bits), dtype=torch.int64)
    sampler = Rigged(SAMPLING, roots, VOCABULARY, budget.depth + 1)
    sampler.rig(draws, bits)
    sampler.begin(roots)
    tree = grow(drafter, drafter, budget, roots, roots, Weighing(sampler, budget.offer))
    walk = rejection(table_logits(target, tree), tree, sampler, budget.depth)
    found = emitted(walk, tree, weights(walk, sampler), law_of(target), VOCABULARY, length)
    return found, int(tree.valid.sum(1).max())


def table_logits(target: Tensor, tree: DraftTree) -> Tensor:
    root = torch.zeros_like(tree.tokens[:, :1])
    return target[torch.cat((root, tree.depths), dim=1), torch.cat((root, tree.tokens), dim=1)]


def truth(target: Tensor, length: int) -> Tensor:
    return joint(law_of(target), VOCABULARY, length)


def table(seed: int, depth: int, sharpness: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return sharpness * torch.randn(depth + 1, VOCABULARY, VOCABULARY, generator=generator, dtype=torch.float64)


SHAPES = {
    "chain 1": Budget.chain(1),
    "chain 2": Budget.chain(2),
    "chain 3": Budget.chain(3),
    "two siblings": Budget(nodes=2, depth=1, grow=1, offer=2),
    "all siblings": Budget(nodes=3, depth=1, grow=1, offer=3),
    "whole tree": Budget(nodes=6, depth=2, grow=2, offer=2),
    "the cut bites": Budget(nodes=4, depth=2, grow=2, offer=2),
    "the cut bites hard": Budget(nodes=3, depth=2, grow=2, offer=3),
    "narrow beam": Budget(nodes=5, depth=3, grow=1, offer=2),
    "fewer verified than grow": Budget(nodes=2, depth=2, grow=2, offer=2),
    "an unsure chain ends early": Budget.chain(3, p_min=0.4),
    "an unsure tree ends early": Budget(nodes=4, depth=2, grow=2, offer=2, p_min=0.08),
    "a half-sure tree": Budget(nodes=5, depth=2, grow=2, offer=3, p_min=0.3),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rejection_gives_exactly_the_targets_law(shape: str, seed: int) -> None:
    budget = SHAPES[shape]
    target, drafter = table(seed, 3, 1.0), Toy(table(seed + 10, 3, 1.5))
    found, most = emitted_law(drafter, target, budget, length=min(budget.depth + 1, 3))
    assert most <= budget.nodes
    assert torch.allclose(found, truth(target, found.dim()), atol=1e-9)
    assert math.isclose(float(found.sum()), 1.0, abs_tol=1e-9)


@pytest.mark.parametrize("shape", ["chain 3", "all siblings", "the cut bites", "whole tree"])
def test_deterministic_proposals_are_read_as_one_hot(shape: str) -> None:
    target, drafter = table(2, 3, 1.0), Toy(table(12, 3, 1.5), deterministic=True)
    found, _ = emitted_law(drafter, target, SHAPES[shape], length=2)
    assert torch.allclose(found, truth(target, 2), atol=1e-9)


def test_rejection_survives_a_draft_equal_to_the_target() -> None:
    same = table(3, 3, 1.0)
    found, _ = emitted_law(Toy(same), same, SHAPES["whole tree"], length=3)
    assert torch.allclose(found, truth(same, 3), atol=1e-9)


def test_rejection_with_a_draft_that_cannot_say_every_token() -> None:
    target, lacking = table(5, 3, 1.0), table(15, 3, 1.5)
    lacking[:, :, 1] = -math.inf  # a reduced draft vocabulary, as the verifier sees it
    lacking[2, :, 2] = -math.inf  # and a node with a single possible child
    found, _ = emitted_law(Toy(lacking), target, SHAPES["the cut bites"], length=3)
    assert torch.allclose(found, truth(target, 3), atol=1e-9)


def test_a_biased_cut_would_be_noticed() -> None:
    """The enumeration has teeth: a final cut that ranks sampled children by their own probability is not exact."""

    class Biased(Toy):
        def expand(self, state: object, frontier: Frontier, select: Selector) -> Offers:
            return attrs.evolve(super().expand(state, frontier, select), keep=None)

    target, drafter = table(0, 3, 1.0), Biased(table(10, 3, 1.5))
    found, _ = emitted_law(drafter, target, SHAPES["the cut bites"], length=2)
    assert (found - truth(target, 2)).abs().max() > 1e-5


def test_real_noise_draws_the_targets_law() -> None:
    """The unrigged sampler, over many requests: every cell of the law of two tokens within five standard errors."""
    n, budget, target = 40_000, SHAPES["the cut bites"], table(4, 3, 1.0)
    sampler = Sampler(Sampling(temperature=1.0, seed=5, verification="rejection"), torch.arange(n), VOCABULARY, 3)
    roots = torch.zeros(n, dtype=torch.int64)
    sampler.begin(roots)
    tree = grow(Toy(table(14, 3, 1.5)), Toy(table(14, 3, 1.5)), budget, roots, roots, Selector(sampler, budget.offer))
    verdict = rejection(table_logits(target, tree), tree, sampler, budget.depth).verdict
    tokens = torch.cat((roots[:, None], tree.tokens), dim=1)
    first = torch.where(verdict.accepted > 0, tokens.gather(1, verdict.path[:, 1:2])[:, 0], verdict.next_token)
    two = verdict.accepted > 0  # these rounds decided a second token too
    second = torch.where(verdict.accepted > 1, tokens.gather(1, verdict.path[:, 2:3])[:, 0], verdict.next_token)
    p = target.softmax(-1)
    counts = torch.bincount(first, minlength=VOCABULARY) / n
    assert ((counts - p[0, 0]).abs() < 5 * (p[0, 0] * (1 - p[0, 0]) / n).sqrt()).all()
    for x in range(VOCABULARY):
        drawn = second[two & (first == x)]
        share, wanted = torch.bincount(drawn, minlength=VOCABULARY) / len(drawn), p[1, x]
        assert ((share - wanted).abs() < 5 * (wanted * (1 - wanted) / len(drawn)).sqrt()).all(), f"after {x}"


def test_a_walk_may_make_more_tests_than_there_are_tokens() -> None:
    """Where the noise has a column for each token alone, a long walk over a tiny vocabulary runs out of them."""
    sampler = Sampler(SAMPLING, torch.arange(2), 5, 3)
    sampler.begin(torch.tensor([3, 4]))
    few, many = sampler.acceptance_uniforms(5), sampler.acceptance_uniforms(40)
    assert many.shape == (2, 40) and torch.equal(few, many[:, :5]) and len(many.unique()) == 80
    assert sampler.residual_draw(torch.full((2, 5), 0.2)).max() < 5
