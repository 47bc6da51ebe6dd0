"""Metrics and statistics against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafterzoo.evaluation import metrics, statistics
from drafterzoo.evaluation.results import Record


def record(
    committed, accepted, *, prompt="p", category="chat", seconds=1.0, prefill=0.5, repeat=0, group=-1, **more
) -> Record:
    rounds = len(committed)
    fields = {
        "cell": "c", "drafter": "d", "budget": "chain:3", "prompt": prompt, "category": category, "turn": 0,
        "repeat": repeat, "group": group, "prompt_tokens": 5, "tokens": range(1 + sum(committed)),
        "committed": committed,
        "emitted": committed, "accepted": accepted,
        "nodes": [3] * rounds, "forwards": [2] * rounds, "rows": [4] * rounds, "draft_s": [0.001] * rounds,
        "verify_s": [0.003] * rounds, "rest_s": [0.001] * rounds, "prefill_s": prefill, "decode_s": seconds,
    }  # fmt: skip
    return Record(**{**fields, **more})


# Answer A: rounds commit 4 (3 drafts + bonus), 1 (nothing accepted), and 2 that end at EOS, itself an accepted draft.
# Answer B: one round that commits 2 (1 draft + bonus).
A = record([4, 1, 2], [3, 0, 2], prompt="a")
B = record([2], [1], prompt="b", category="maths", seconds=3.0)
BOTH = [A, B]


def test_tau_is_pooled_over_rounds_and_counts_the_bonus():
    assert metrics.tau(BOTH) == 9 / 4
    assert metrics.tau_macro(BOTH) == (7 / 3 + 2) / 2
    assert metrics.accepted_per_round(BOTH) == 6 / 4


def test_the_length_limit_cuts_the_answer_but_not_tau():
    cut = [record([4, 4], [3, 3], emitted=[4, 1], tokens=range(6), seconds=2.0)]
    assert metrics.tau(cut) == 4 and metrics.tokens_per_second(cut) == 5 / 2


def test_plain_decoding_has_tau_one():
    assert metrics.tau([record([1, 1, 1], [0, 0, 0])]) == 1


def test_depths_by_hand():
    assert metrics.survival(BOTH, 4) == [3 / 4, 2 / 4, 1 / 4, 0]
    assert sum(metrics.survival(BOTH, 4)) == metrics.accepted_per_round(BOTH)
    # depth 1: all four rounds tried, three held. depth 2: A1, A3 held, B failed. depth 3: A1 held; A3 ended at its
    # second token and is no witness. depth 4: A1 tried and failed.
    assert metrics.conditional(BOTH, 4) == [3 / 4, 2 / 3, 1.0, 0.0]
    assert metrics.conditional(BOTH, 5)[4] is None


def test_counters_and_times():
    assert metrics.nodes_per_round(BOTH) == 3
    assert metrics.forwards_per_round(BOTH) == 2
    assert metrics.rows_per_round(BOTH) == 4
    assert metrics.milliseconds_per_round(BOTH) == pytest.approx({"draft": 1, "verify": 3, "rest": 1})
    assert metrics.time_shares(BOTH) == pytest.approx({"draft": 0.2, "verify": 0.6, "rest": 0.2})
    assert metrics.tokens_per_second(BOTH) == 9 / 4
    assert metrics.tokens_per_second_with_prefill(BOTH) == 11 / 5


def test_repeats_are_timed_by_their_median_and_counted_once():
    repeats = [record([2], [1], repeat=i, seconds=s) for i, s in enumerate([1.0, 9.0, 2.0])]
    assert metrics.decode_seconds(repeats) == 2.0
    assert metrics.tokens_per_second(repeats) == 1.0
    assert metrics.tau(repeats) == 2.0
    assert metrics.first(repeats) == repeats[:1]


def test_nothing_decoded_gives_none_and_no_exception():
    empty = [record([], [])]
    assert metrics.tau(empty) is metrics.tau_macro(empty) is metrics.tau([]) is None
    assert metrics.survival(empty, 2) == [None, None] == metrics.conditional(empty, 2)
    assert metrics.time_shares(empty) == {"draft": None, "verify": None, "rest": None}
    assert statistics.speedup(empty, empty).value is None


def test_categories_keep_their_order():
    assert {name: len(rows) for name, rows in metrics.by_category([B, A, B]).items()} == {"maths": 2, "chat": 1}


def test_a_record_whose_lists_disagree_is_refused():
    with pytest.raises(ValueError, match="nodes has 1 entry, committed has 2"):
        record([1, 1], [0, 0], nodes=[3])
    with pytest.raises(ValueError, match="there are 2 tokens, expected 1 and the 2 that rounds emitted"):
        record([1, 1], [0, 0], tokens=[7, 7])
    with pytest.raises(ValueError, match="more accepted than committed"):
        record([1], [2])


def test_speedup_by_hand():
    """Three prompts: plain takes 2, 4, 6 s and the drafter 1, 2, 5 s for the same tokens."""
    plain = [record([2], [0], prompt=p, seconds=s) for p, s in zip("xyz", [2.0, 4.0, 6.0], strict=True)]
    fast = [record([2], [1], prompt=p, seconds=s) for p, s in zip("xyz", [1.0, 2.0, 5.0], strict=True)]
    ratio = statistics.speedup(plain, fast)
    rho = 12 / 8
    errors = [2 - rho * 1, 4 - rho * 2, 6 - rho * 5]  # 0.5, 1, -1.5
    se = math.sqrt(3 / 2 * sum(e * e for e in errors)) / 8
    assert ratio.value == rho and ratio.clusters == 3
    assert ratio.delta_low == pytest.approx(rho - 1.959963984540054 * se)
    assert ratio.delta_high == pytest.approx(rho + 1.959963984540054 * se)
    assert 6 / 5 <= ratio.low <= rho <= ratio.high <= 2
    # with prefill: 0.5 s more on each answer of both
    assert statistics.speedup(plain, fast, with_prefill=True).value == pytest.approx(13.5 / 9.5)


def test_tau_ratio_by_hand():
    base = [record([1, 1, 1, 1], [0] * 4, prompt="x"), record([1, 1], [0] * 2, prompt="y")]
    better = [record([2, 2], [1, 1], prompt="x"), record([2], [1], prompt="y")]
    ratio = statistics.tau_ratio(better, base)
    assert ratio.value == 2.0
    assert ratio.delta_low == ratio.delta_high == ratio.low == ratio.high == 2.0  # every prompt says exactly 2


def test_only_common_prompts_are_compared_and_groups_are_clusters():
    plain = [record([2], [0], prompt=p, seconds=4.0, group=g) for p, g in [("a", 0), ("b", 0), ("c", 1)]]
    fast = [record([2], [1], prompt=p, seconds=2.0, group=g) for p, g in [("a", 0), ("b", 0), ("d", 1)]]
    ratio = statistics.speedup(plain, fast)
    assert ratio.value == 2.0 and ratio.clusters == 1 and ratio.low is None and ratio.delta_low is None


positive = st.floats(0.1, 10.0)


@given(st.lists(st.tuples(positive, positive), min_size=2, max_size=12), st.floats(0.2, 5.0))
def test_interval_scales_with_the_ratio_and_contains_it(times, factor):
    a, b = np.array(times).T
    ones = np.ones(len(a))
    ratio = statistics.paired_ratio(a, ones, b, ones, draws=200)
    scaled = statistics.paired_ratio(a * factor, ones, b, ones, draws=200)
    assert ratio.delta_low <= ratio.value <= ratio.delta_high
    assert (a / b).min() - 1e-9 <= ratio.low <= ratio.high <= (a / b).max() + 1e-9
    assert scaled.value == pytest.approx(ratio.value * factor) and scaled.low == pytest.approx(ratio.low * factor)


def test_bootstrap_is_seeded_and_covers_as_promised():
    rng = np.random.default_rng(1)
    truth, hits = 2.0, 0
    for trial in range(200):
        b = rng.uniform(1, 3, 40)
        a = truth * b + rng.normal(0, 0.5, 40)
        ratio = statistics.paired_ratio(a, np.ones(40), b, np.ones(40), seed=trial, draws=400)
        hits += ratio.low <= truth <= ratio.high
        assert ratio == statistics.paired_ratio(a, np.ones(40), b, np.ones(40), seed=trial, draws=400)
    assert hits >= 180  # 95 % promised, 40 clusters give a little less
