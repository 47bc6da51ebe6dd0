"""Prompt lookup finds the longest and latest match, branches where matches part, and offers nothing without one."""

from __future__ import annotations

import pytest
import torch

from drafterzoo.budget import Budget
from drafterzoo.drafters.lookup import Lookup
from drafterzoo.engine.contract import Committed, DraftTree
from drafterzoo.engine.sampling import Sampler, Sampling, Selector
from drafterzoo.engine.tree import grow
from drafterzoo.errors import UsageError
from drafterzoo.target import Target
from tests.tiny import tiny_target


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(layers=1)


def drafted(target: Target, texts: list[list[int]], budget: Budget, **options: int) -> DraftTree:
    """The tree after texts whose last token is the root, given to the drafter as a left-padded prefill."""
    drafter = Lookup.create(target, **options)
    n, width = len(texts), max(len(text) for text in texts) - 1
    state = drafter.open(target, n, width + 20, budget.depth, drafter.rows_per_round(budget.depth, budget.grow))
    rows = torch.zeros(n, width + 1, dtype=torch.int64)
    for row, text in enumerate(texts):
        rows[row, width + 1 - len(text) :] = torch.tensor(text)
    lengths = torch.tensor([len(text) - 1 for text in texts])
    pads = (width - lengths)[:, None]
    columns = torch.arange(width)
    committed = Committed(
        tokens=rows[:, :-1], next_tokens=rows[:, 1:], positions=(columns - pads).clamp(min=0),
        features=torch.zeros(n, width, 0), valid=columns >= pads, last=torch.full((n,), width - 1), longest=width,
    )  # fmt: skip
    drafter.observe(state, committed)
    sampler = Sampler(Sampling(), torch.zeros(n, dtype=torch.int64), target.vocab_size, budget.depth + 1)
    assert state.counters.take() == (0, 0)
    return grow(drafter, state, budget, rows[:, -1], lengths, Selector(sampler, budget.offer))


def chain(target: Target, text: list[int], n: int = 4, **options: int) -> list[int]:
    tree = drafted(target, [text], Budget.chain(n), **options)
    return tree.tokens[0][tree.valid[0]].tolist()


def test_what_followed_the_same_words_is_drafted(target: Target) -> None:
    assert chain(target, [1, 2, 3, 4, 5, 6, 7, 1, 2, 3]) == [4, 5, 6, 7]


def test_a_longer_match_beats_a_later_one(target: Target) -> None:
    assert chain(target, [1, 2, 3, 10, 9, 3, 20, 8, 1, 2, 3], 1) == [10]


def test_of_equal_matches_the_later_wins(target: Target) -> None:
    assert chain(target, [5, 3, 10, 6, 3, 20, 7, 3], 1) == [20]


def test_without_a_match_nothing_is_offered(target: Target) -> None:
    assert chain(target, [1, 2, 3, 4]) == []
    assert chain(target, [1, 2, 9, 2], min_ngram=2) == []
    assert chain(target, [7, 8]) == []


def test_a_loop_is_followed_round(target: Target) -> None:
    assert chain(target, [9, 1, 2, 1, 2], 5) == [1, 2, 1, 2, 1]
    assert chain(target, [9, 9], 3) == [9, 9, 9]


def test_matches_that_part_make_branches(target: Target) -> None:
    text = [1, 2, 3, 4, 7, 1, 2, 3, 5, 8, 1, 2, 3]
    tree = drafted(target, [text], Budget(nodes=6, depth=3, grow=2, offer=2))
    paths = set()
    for i in range(int(tree.valid.sum())):
        path, at = [], i + 1
        while at:
            path.insert(0, int(tree.tokens[0, at - 1]))
            at = int(tree.parents[0, at - 1])
        paths.add(tuple(path))
    assert paths == {(5,), (5, 8), (5, 8, 1), (4,), (4, 7), (4, 7, 1)}


def test_siblings_are_distinct(target: Target) -> None:
    tree = drafted(target, [[1, 2, 1, 2, 1, 3, 1, 2, 1]], Budget(nodes=8, depth=2, grow=3, offer=4))
    seen = [(int(p), int(t)) for p, t, v in zip(tree.parents[0], tree.tokens[0], tree.valid[0], strict=True) if v]
    assert len(seen) == len(set(seen))


def test_a_ragged_batch_equals_singles(target: Target) -> None:
    texts = [[1, 2, 3, 4, 5, 6, 7, 1, 2, 3], [9, 9], [1, 2, 3], [5, 3, 10, 6, 3, 20, 7, 3]]
    budget = Budget(nodes=8, depth=4, grow=2, offer=2)
    together = drafted(target, texts, budget)
    for row, text in enumerate(texts):
        alone = drafted(target, [text], budget)
        count = int(alone.valid.sum())
        assert int(together.valid[row].sum()) == count
        assert together.tokens[row, :count].tolist() == alone.tokens[0, :count].tolist()
        assert together.parents[row, :count].tolist() == alone.parents[0, :count].tolist()


def test_options_are_checked(target: Target) -> None:
    with pytest.raises(UsageError, match=r"^options of lookup: min_ngram=4 and max_ngram=3"):
        Lookup.create(target, min_ngram=4)
    with pytest.raises(UsageError, match="max_ngram"):
        Lookup.create(target, max_ngrm=4)
