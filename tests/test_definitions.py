"""Other projects' τ, each worked out on paper on the hand-made results: p1 has two turns, p2 one.

Rounds of `good`, walked/committed: p1 3/4, 0/1 (nothing proposed), 3/2 (EOS was the second draft), then 1/2; p2 2/3 (of
which the length limit leaves one). Answers have 8, 3 and 2 tokens, of which prefill gave one each.
"""

from __future__ import annotations

import attrs
import handmade
import pytest

from drafterzoo.errors import UsageError
from drafterzoo.evaluation import metrics
from drafterzoo.evaluation.report.definitions import DEFINITIONS, find

GOOD = [one for one in handmade.records() if one.drafter == "good"]
BY_HAND = {
    "deepspec": (4 + 1 + 2 + 2 + 3) / 5,  # pooled, cut at EOS
    "eagle": (4 + 1 + 4 + 2 + 3) / 5,  # walked + 1 in every round
    "vllm": 1 + (3 + 3 + 1 + 2) / 4,  # the round without a proposal is no draft
    "hass": ((4 + 1 + 4 + 2) / 4 + 3 / 1) / 2,  # question by question, both turns together
    "sglang": (8 + 3 + 2) / 5,  # prefill's tokens count, what the limit cut off does not
    "specforge": (8 / 3 + 3 / 1 + 2 / 1) / 3,  # request by request
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_every_definition_by_hand(name):
    definition = find(name)
    assert definition.compute(GOOD) == pytest.approx(BY_HAND[name])
    assert not definition.falls_short(GOOD)
    assert definition.compute([]) is None


def test_all_six_differ_here():
    assert len({round(value, 6) for value in BY_HAND.values()}) == len(DEFINITIONS) == 6


def test_the_headline_is_the_one_that_deepspec_has_too():
    assert find("deepspec").compute(GOOD) == metrics.tau(GOOD)


def test_results_older_than_the_counter_give_a_lower_bound_and_say_so():
    old = [attrs.evolve(one, walked=None) for one in GOOD]
    assert {name: find(name).falls_short(old) for name in DEFINITIONS} == {
        "vllm": True, "sglang": False, "eagle": True, "hass": True, "specforge": False, "deepspec": False,
    }  # fmt: skip
    assert find("eagle").compute(old) == (4 + 1 + 3 + 2 + 3) / 5 < BY_HAND["eagle"]
    assert find("vllm").compute(old) == 1 + (3 + 2 + 1 + 2) / 4 < BY_HAND["vllm"]


def test_nothing_proposed_is_no_draft():
    assert find("vllm").compute([one for one in handmade.records() if one.drafter == "none"]) is None


def test_an_unknown_definition_is_one_sentence():
    with pytest.raises(UsageError, match=r"unknown definition 'vlm' \(did you mean 'vllm'\?\); use .*deepspec"):
        find("vlm")
