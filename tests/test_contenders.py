"""Drafters, their one target and their budgets: `bench` and `evaluate` understand them alike, each in its own name."""

from __future__ import annotations

import pytest

from drafterzoo.budget import Budget
from drafterzoo.errors import UsageError
from drafterzoo.evaluation.contenders import bind, budgets_of
from tests.test_invariants import build
from tests.tiny import tiny_target


@pytest.mark.parametrize("verb", ["bench", "evaluate"])
def test_the_first_target_is_everybodys(verb: str) -> None:
    target, other = tiny_target(), tiny_target(seed=9)
    first, stranger = build("eagle3", target), build("eagle3.1", other)
    loaded, bound = bind(verb, ["lookup", first, "lookup(max_ngram=2)"], None)
    assert bound is target and list(loaded) == ["lookup", "eagle3", "lookup(max_ngram=2)"]
    assert all(drafter.target is target for drafter in loaded.values())
    assert bind(verb, [], target) == ({}, target)
    with pytest.raises(
        UsageError, match=f"^{verb}: 'eagle3.1' is bound to tiny-llama, .* load all .* one target="
    ) as e:
        bind(verb, [first, stranger], None)
    assert "\n" not in str(e.value)
    with pytest.raises(UsageError, match=f"^{verb}: two drafters are called 'eagle3'"):
        bind(verb, [first, build("eagle3", target)], None)


def test_budgets_come_in_every_form_and_once() -> None:
    own = [Budget.tree(8), Budget.tree(8), Budget.chain(4)]
    assert budgets_of("bench", None, own) == [Budget.tree(8), Budget.chain(4)]
    assert budgets_of("bench", "chain:4", own) == budgets_of("bench", Budget.chain(4), own) == [Budget.chain(4)]
    assert budgets_of("bench", ["8", 8, Budget.chain(4)], own) == [Budget.tree(8), Budget.chain(4)]
    with pytest.raises(UsageError, match=r"^evaluate: no budget was given"):
        budgets_of("evaluate", [], own)
