"""Growth keeps the budget, the order and the masks right, whatever is offered."""

from __future__ import annotations

import itertools
import math

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from drafterzoo.budget import Budget
from drafterzoo.engine.contract import Committed, Counters, DraftTree, Frontier, Offers
from drafterzoo.engine.tree import Growth, allocation, ancestors, grow, narrowed


@attrs.define(eq=False)
class Scripted:
    """A drafter of random scores that remembers its frontiers.

    `ties`: every score 0. `extra`: rows beyond the frontier's, which offer once more under the frontier's nodes, as a
    wrapper would. `gaps`: some offers are none. `drawn`: ranked in the cut by other numbers, as `rejection` does.
    """

    offer: int
    seed: int = 0
    n: int = 2
    ties: bool = False
    gaps: bool = False
    extra: int = 0
    drawn: bool = False
    taps: tuple[int, ...] = ()
    capabilities: frozenset[str] = frozenset()
    counters: Counters = attrs.Factory(Counters)
    frontiers: list[Frontier] = attrs.Factory(list)

    def open(self, *args: object) -> Scripted:
        return self

    def keep(self, requests: Tensor) -> None:
        """No state of its own."""

    def observe(self, state: object, committed: Committed) -> None:
        """No context."""

    def rows_per_round(self, depth: int, grow: int) -> int:
        return (depth - 1) * (grow + self.extra)

    def expand(self, state: object, frontier: Frontier, select: object) -> Offers:
        self.frontiers.append(frontier)
        nodes = frontier.nodes
        if self.extra and frontier.step:
            nodes = torch.cat((nodes, nodes[:, : self.extra]), dim=1)
        generator = torch.Generator().manual_seed(self.seed * 100 + frontier.step)
        shape = (self.n, nodes.shape[1], self.offer)
        scores = torch.rand(shape, generator=generator).clamp(min=1e-6).log()
        if self.ties:
            scores = torch.zeros(shape)
        if self.gaps:
            scores = scores.masked_fill(torch.rand(shape, generator=generator) < 0.3, -math.inf)
        tokens = torch.randint(1, 50, shape, generator=generator)
        keep = torch.rand(shape, generator=generator).log().masked_fill(scores == -math.inf, -math.inf)
        return Offers(nodes, tokens, scores, keep if self.drawn else None)


@attrs.define(eq=False)
class Told(Scripted):
    """Offers that are a request's own, for the depth and the token they hang under: wherever the node stands.

    `extra` rows offer once more under the root. first: the number of the first request.
    """

    first: int = 0

    def expand(self, state: object, frontier: Frontier, select: object) -> Offers:
        self.frontiers.append(frontier)
        generator = torch.Generator().manual_seed(self.seed)
        shape = (4, 6, 50, self.offer)  # requests, depths, tokens, children
        sureness = torch.linspace(0, 0.35, 4).view(4, 1, 1, 1)
        chances = 0.6 * torch.rand(shape, generator=generator) + sureness
        tokens = torch.randint(1, 50, shape, generator=generator)
        nodes, depths, above = frontier.nodes, frontier.positions - ROOTS[self.first :][: self.n, None], frontier.tokens
        if self.extra and frontier.step:
            roots = torch.full((self.n, self.extra), -1)
            nodes = torch.cat((nodes, roots), dim=1)
            depths = torch.cat((depths, torch.zeros_like(roots)), dim=1)
            above = torch.cat((above, torch.full_like(roots, frontier.step)), dim=1)
        at = torch.arange(self.first, self.first + self.n)[:, None], depths, above
        return Offers(nodes, tokens[at], chances[at].log())


ROOTS = torch.tensor([20, 30, 40, 50])


def told(budget: Budget, seed: int, first: int, n: int, extra: int) -> tuple[DraftTree, Told]:
    """The tree of some of the four requests, padding left out, and who drafted it."""
    drafter = Told(budget.offer, seed, n, extra=extra, first=first)
    tree = grow(drafter, drafter, budget, torch.full((n,), 7), ROOTS[first : first + n], None)
    return narrowed(tree, int(tree.valid.sum(1).max())), drafter


def grown(drafter: Scripted, budget: Budget) -> DraftTree:
    roots = torch.full((drafter.n,), 7)
    return grow(drafter, drafter, budget, roots, torch.tensor([20, 30])[: drafter.n], None)


budgets = st.builds(
    lambda depth, width, offer, share: Budget(
        max(1, int(share * Budget(1, depth, width, offer).capacity)), depth, width, offer
    ),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 4),
    st.floats(0, 1),
)


@settings(max_examples=60, deadline=None)
@given(budgets, st.integers(0, 5), st.booleans(), st.booleans(), st.booleans(), st.sampled_from([0.0, 0.05, 0.4]))
def test_a_tree_is_a_tree_within_its_budget(
    budget: Budget, seed: int, ties: bool, gaps: bool, drawn: bool, p_min: float
) -> None:
    drafter = Scripted(budget.offer, seed, ties=ties, gaps=gaps, drawn=drawn)
    tree = grown(drafter, attrs.evolve(budget, p_min=p_min))
    assert tree.width <= budget.nodes and len(drafter.frontiers) <= budget.depth
    assert gaps or drawn or p_min or (tree.valid.all() and tree.width == budget.nodes)
    for row in range(2):
        valid = tree.valid[row].tolist()
        assert valid == sorted(valid, reverse=True), "padding must stand last"
        for i in range(sum(valid)):
            parent = int(tree.parents[row, i])
            assert 0 <= parent <= i and (parent == 0 or valid[parent - 1])
            above = 0 if parent == 0 else int(tree.depths[row, parent - 1])
            assert int(tree.depths[row, i]) == above + 1 <= budget.depth
            best = 0.0 if parent == 0 else float(tree.scores[row, parent - 1])
            assert float(tree.scores[row, i]) <= best
            assert parent == 0 or math.exp(best) >= p_min * (1 - 1e-6), "nothing grows below an unlikely node"


@settings(max_examples=30, deadline=None)
@given(budgets, st.integers(0, 5))
def test_ancestors_are_what_following_parents_gives(budget: Budget, seed: int) -> None:
    tree = grown(Scripted(budget.offer, seed), budget)
    mask = ancestors(tree, budget.depth)
    for row in range(2):
        for i in range(1 + tree.width):
            seen, at = {i}, i
            while at:
                at = int(tree.parents[row, at - 1])
                seen.add(at)
            assert set(mask[row, i].nonzero()[:, 0].tolist()) == seen


@pytest.mark.parametrize("p_min", [0.0, 0.1, 0.4])
def test_growth_is_the_beam_of_a_plain_search(p_min: float) -> None:
    """Against a search written with lists: the same frontier at every step, the same cut."""
    budget, drafter = Budget(nodes=9, depth=4, grow=2, offer=3, p_min=p_min), Scripted(3, seed=3, n=1)
    tree = grown(drafter, budget)
    pool: list[tuple[float, int, int]] = []  # path score, parent, token
    frontier, offered = [-1], []
    for step in range(len(drafter.frontiers)):
        offers = Scripted(3, seed=3, n=1).expand(None, attrs.evolve(drafter.frontiers[step]), None)
        newest = []
        for row, node in enumerate(frontier):
            for j in range(3):
                path = float(offers.scores[0, row, j]) + (pool[node][0] if node >= 0 else 0.0)
                pool.append((path, node, int(offers.tokens[0, row, j])))
                newest.append(len(pool) - 1)
        assert drafter.frontiers[step].nodes[0].tolist() == frontier
        offered.append(newest)
        likely = [i for i in newest if math.exp(pool[i][0]) >= p_min]
        frontier = sorted(likely, key=lambda i: (-pool[i][0], i))[: budget.grow]
    assert not frontier or len(drafter.frontiers) == budget.depth, "a draft ends where nothing may grow"
    kept = sorted(sorted(range(len(pool)), key=lambda i: (-pool[i][0], i))[: budget.nodes])
    assert tree.tokens[0].tolist() == [pool[i][2] for i in kept]
    assert tree.parents[0].tolist() == [0 if pool[i][1] < 0 else kept.index(pool[i][1]) + 1 for i in kept]


def test_ties_go_to_the_parent_and_to_the_earlier_offer() -> None:
    tree = grown(Scripted(2, ties=True), Budget(nodes=3, depth=3, grow=1, offer=2))
    assert tree.depths[0].tolist() == [1, 1, 2] and tree.parents[0].tolist() == [0, 0, 1]


@pytest.mark.parametrize("nodes", [12, 30])
@pytest.mark.parametrize("advance", [0, 2])
def test_a_frontier_row_sees_its_ancestors_rows_and_itself(nodes: int, advance: int) -> None:
    drafter = Scripted(3, seed=1)
    grown(drafter, Budget(nodes=nodes - 6 * (advance > 0), depth=4, grow=3 - advance // 2, offer=3, advance=advance))
    for before, frontier in itertools.pairwise(drafter.frontiers):
        assert before.first_row + before.width <= frontier.first_row, "no row is overwritten within a round"
    row_of = {(r, -1): 0 for r in range(2)}
    parent_of: dict[tuple[int, int], int] = {}
    offset = 0
    for frontier in drafter.frontiers:
        for r, w in itertools.product(range(2), range(frontier.width)):
            node = int(frontier.nodes[r, w])
            row_of[r, node] = frontier.first_row + w
            wanted, at = {frontier.first_row + w}, node
            while at >= 0:
                at = parent_of[r, at]
                wanted.add(row_of[r, at])
            assert set(frontier.visible[r, w].nonzero()[:, 0].tolist()) == wanted
            assert int(frontier.positions[r, w]) == [20, 30][r] + len(wanted) - 1
            if node >= 0:
                assert int(frontier.sources[r, w]) == row_of[r, parent_of[r, node]]
            for j in range(3):
                parent_of[r, offset + w * 3 + j] = node
        offset += frontier.width * 3


def test_children_of_an_extra_row_hang_under_its_node_but_come_from_that_row() -> None:
    budget = Budget(nodes=20, depth=4, grow=2, offer=2, reconsider=2)
    drafter = Scripted(2, seed=4, extra=2)
    tree = grown(drafter, budget)
    starts = [f.first_row for f in drafter.frontiers]
    assert starts == [0, 1, 5, 9]  # a step's extra rows are numbered after its frontier's
    from_extra = 0
    for before, frontier in itertools.pairwise(drafter.frontiers):
        extra = frontier.sources >= before.first_row + before.width
        from_extra += int(extra.sum())
        assert not frontier.visible[..., before.first_row + before.width : frontier.first_row].any()
    assert from_extra > 0, "the seed should make an extra row's offer win once"
    assert tree.valid.all()


@settings(max_examples=60, deadline=None)
@given(budgets)
def test_the_allocation_spends_the_budget_and_every_level_has_parents(budget: Budget) -> None:
    levels = allocation(budget)
    assert sum(levels) == budget.nodes and len(levels) == budget.depth
    above = 1
    for level, slots in enumerate(levels):
        assert slots <= budget.offer * (1 if level == 0 else min(budget.grow, above))
        above = slots


def test_a_drafter_gone_wrong_offers_nothing() -> None:
    class Broken(Scripted):
        def expand(self, state: object, frontier: Frontier, select: object) -> Offers:
            return attrs.evolve(
                super().expand(state, frontier, select), scores=torch.full((2, frontier.width, 3), math.nan)
            )

    assert not grown(Broken(3), Budget(nodes=6, depth=3, grow=2, offer=3)).valid.any()


def test_narrowing_drops_padding_only() -> None:
    tree = grown(Scripted(3, seed=2, gaps=True), Budget(nodes=21, depth=3, grow=3, offer=3))
    width = int(tree.valid.sum(1).max())
    cut = narrowed(tree, width)
    assert cut.width == width < tree.width
    assert cut.valid.sum().equal(tree.valid.sum())


@pytest.mark.parametrize("n", [1, 3])
def test_requests_do_not_see_each_other(n: int) -> None:
    """A request's tree is the same alone and in a batch."""
    budget = Budget(nodes=10, depth=4, grow=3, offer=3)
    together = Scripted(3, seed=6, n=3)
    whole = grow(together, together, budget, torch.full((3,), 7), torch.tensor([20, 30, 40]), None)

    class Slice(Scripted):
        def expand(self, state: object, frontier: Frontier, select: object) -> Offers:
            offers = Scripted(3, seed=6, n=3).expand(None, frontier, None)
            return Offers(frontier.nodes, offers.tokens[:n], offers.scores[:n])

    alone = Slice(3, n=n)
    part = grow(alone, alone, budget, torch.full((n,), 7), torch.tensor([20, 30, 40])[:n], None)
    for field in ("tokens", "parents", "depths", "scores"):
        assert torch.equal(getattr(part, field), getattr(whole, field)[:n])


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([(5, 1, 1), (4, 1, 2), (3, 2, 2), (3, 3, 2), (5, 2, 3)]),
    st.sampled_from([0.0, 0.05, 0.2, 0.4, 0.7]),
    st.sampled_from([0.2, 0.5, 1.0]),
    st.integers(0, 50),
    st.integers(0, 2),
    st.integers(0, 2),
)
def test_the_tree_is_the_same_alone_in_a_batch_and_at_fixed_width(
    widths: tuple[int, int, int], p_min: float, share: float, seed: int, extra: int, advance: int
) -> None:
    """Narrow frontiers are the CPU's alone: every other device grows at fixed width, and must grow the same."""
    depth, beam, offer = widths
    nodes = max(1, int(share * Budget(1, depth, beam, offer, advance=advance).capacity))
    budget = Budget(nodes, depth, beam, offer, p_min=p_min, advance=advance)
    together, whole = told(budget, seed, 0, 4, extra)
    with pytest.MonkeyPatch.context() as patch:
        narrow = Growth.frontier
        patch.setattr(Growth, "frontier", lambda self, step, *_: narrow(self, step))
        fixed, wide = told(budget, seed, 0, 4, extra)
    assert len(wide.frontiers) == depth
    first_rows = [f.first_row for f in wide.frontiers]
    assert sum(f.width for f in whole.frontiers) <= sum(f.width for f in wide.frontiers)
    keep_numbers = not advance  # and are not drawn: Growth.may_leave_out
    assert not keep_numbers or [f.first_row for f in whole.frontiers] == first_rows[: len(whole.frontiers)]
    for request in range(4):
        alone, single = told(budget, seed, request, 1, extra)
        assert not keep_numbers or [f.first_row for f in single.frontiers] == first_rows[: len(single.frontiers)]
        for tree in (together, fixed):
            assert int(tree.valid[request].sum()) == int(alone.valid.sum())
            for field in ("tokens", "parents", "depths", "scores"):
                assert torch.equal(getattr(tree, field)[request, : alone.width], getattr(alone, field)[0])


@settings(max_examples=80, deadline=None)
@given(budgets, st.integers(0, 50), st.integers(1, 4))
def test_what_is_not_forwarded_would_not_have_been_kept(budget: Budget, seed: int, n: int) -> None:
    """The tree of few rows is that of all rows, which is drafted where nothing is known of the final cut."""
    few, drafter = told(budget, seed, 0, n, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Growth, "_still_fertile", lambda self: self.fertile)
        all_of_it, thorough = told(budget, seed, 0, n, 0)
    for field in ("tokens", "parents", "depths", "scores", "valid"):
        assert torch.equal(getattr(few, field), getattr(all_of_it, field))
    assert sum(f.width for f in drafter.frontiers) <= sum(f.width for f in thorough.frontiers)


def test_a_draft_ends_where_all_that_is_left_would_be_cut() -> None:
    """Eight sure siblings below the root fill a tree of eight: below them nothing is forwarded."""

    class Flat(Scripted):
        def expand(self, state: object, frontier: Frontier, select: object) -> Offers:
            self.frontiers.append(frontier)
            shape = (self.n, frontier.width, 8)
            return Offers(frontier.nodes, torch.arange(1, 9).expand(shape), torch.full(shape, math.log(0.125)))

    drafter = Flat(8)
    tree = grown(drafter, Budget(nodes=8, depth=5, grow=4, offer=8))
    assert [f.width for f in drafter.frontiers] == [1] and tree.depths.tolist() == [[1] * 8] * 2
    drafter = Flat(8)
    tree = grown(drafter, Budget(nodes=9, depth=5, grow=4, offer=8))
    assert [f.width for f in drafter.frontiers] == [1, 4] and tree.depths.tolist() == [[1] * 8 + [2]] * 2
