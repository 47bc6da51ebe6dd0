"""How far to verify: the scheduler against its algorithm in a loop, what its choice may depend on, and equal texts."""

from __future__ import annotations

import math

import attrs
import pytest
import torch
from torch import Tensor

from drafterzoo.budget import Budget
from drafterzoo.engine.decode import Batch, Settings
from drafterzoo.engine.sampling import Sampling
from drafterzoo.engine.schedule import SCHEDULES, Throughput, prefix_lengths, uniform_length
from drafterzoo.errors import UsageError
from drafterzoo.target import Target
from tests.oracle import plainly
from tests.test_invariants import PROMPTS, build, run
from tests.tiny import tiny_target

CURVE = Throughput((1, 2, 4, 8, 32), (1.0, 1.05, 1.2, 1.6, 5.0))


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(dtype=torch.float64)


def survivals(seed: int, n: int = 3, depth: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hopes = torch.rand(n, depth, generator=generator).clamp(min=0.05).log().cumsum(1)
    lengths = torch.randint(0, depth + 1, (n, 1), generator=generator)
    return hopes, torch.arange(depth) < lengths


def algorithm_one(hopes: Tensor, valid: Tensor, rates: Tensor) -> list[int]:
    """DSpark's algorithm 1 as it is written: one draft at a time, and an end at the first that does not pay."""
    n, depth = hopes.shape
    rest = [(float(hopes[r, j].exp()), r, j) for r in range(n) for j in range(depth) if valid[r, j]]
    rest.sort(key=lambda one: -one[0])
    lengths, rows, worth = [0] * n, n, float(n)
    best = worth * float(rates[rows])
    for survival, request, depth_of in rest:
        rows, worth = rows + 1, worth + survival
        gained = worth * float(rates[rows])
        if gained <= best:
            break
        assert lengths[request] == depth_of, "a prefix"
        best, lengths[request] = gained, depth_of + 1
    return lengths


@pytest.mark.parametrize("seed", range(20))
def test_the_prefix_schedule_is_the_paper_s_algorithm(seed: int) -> None:
    hopes, valid = survivals(seed)
    rates = CURVE.rates(3 * 6, torch.device("cpu"))
    assert prefix_lengths(hopes, valid, rates).tolist() == algorithm_one(hopes, valid, rates)


@pytest.mark.parametrize("seed", range(20))
def test_the_uniform_schedule_pays_for_one_width(seed: int) -> None:
    hopes, valid = survivals(seed)
    rates = CURVE.rates(3 * 6, torch.device("cpu"))
    width, best = 0, 3 * float(rates[3])
    for tried in range(1, 6):
        worth = 3 + float((hopes.exp() * valid)[:, :tried].sum())
        if worth * float(rates[3 * (1 + tried)]) <= best:
            break
        width, best = tried, worth * float(rates[3 * (1 + tried)])
    wanted = [min(width, int(row.sum())) for row in valid]
    assert uniform_length(hopes, valid, rates).tolist() == wanted


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_whether_a_draft_is_taken_depends_on_nothing_behind_it(schedule: str) -> None:
    """What a draft's own token decides are the chances behind it: whatever these are, it is taken or left as before."""
    rates = CURVE.rates(3 * 6, torch.device("cpu"))
    for seed in range(40):
        hopes, _ = survivals(seed)
        whole = torch.ones_like(hopes, dtype=torch.bool)
        before = SCHEDULES[schedule](hopes, whole, rates)
        for depth in range(1, 5):
            other = hopes.clone()
            other[0, depth:] = hopes[0, depth - 1] + torch.rand(5 - depth).clamp(min=0.01).log().cumsum(0)
            after = SCHEDULES[schedule](other, whole, rates)
            assert (before[0] >= depth) == (after[0] >= depth)


def test_times_are_interpolated_and_go_on_beyond_the_last() -> None:
    rates = CURVE.rates(56, torch.device("cpu"))
    assert [round(1 / float(rates[i]), 4) for i in (0, 1, 3, 8, 20, 56)] == [1.0, 1.0, 1.125, 1.6, 3.3, 8.4]
    for rows, seconds in (((1,), (1.0,)), ((2, 1), (1.0, 1.0)), ((1, 2), (1.0,)), ((1, 2), (1.0, 0.0))):
        with pytest.raises(UsageError, match="throughput"):
            Throughput(rows, seconds)


@pytest.mark.parametrize("ending", ["c_min=0.5", "schedule=prefix", "schedule=uniform", "c_min=0.3,schedule=prefix"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=1)], ids=["greedy", "sampled"])
def test_the_text_stays_the_target_s_and_drafts_get_fewer(ending: str, sampling: Sampling, target: Target) -> None:
    drafter = build("dspark", target)
    settings = Settings(Budget.parse(f"chain:4,{ending}"), sampling, 20, (2,), throughput=CURVE)
    tokens, rounds = run(drafter, PROMPTS, settings, range(4))
    assert tokens == plainly(target, PROMPTS, sampling, 20, stops=(2,))
    drafted = [made.drafted for request in rounds for made in request]
    assert min(drafted) < 4 and max(drafted) <= 4


def test_nothing_hangs_below_a_node_whose_children_are_doubted(target: Target) -> None:
    drafter = build("dspark", target)
    for c_min in (0.0, 0.4, 0.6):
        budget = attrs.evolve(Budget(24, 4, 6, 6), c_min=c_min)
        batch = Batch(drafter, target, PROMPTS[:1], Settings(budget, Sampling(), 20, keep_trees=True), [0])
        batch.prefill()
        tree = batch._draft()
        parents = {int(p) for p, real in zip(tree.parents[0], tree.valid[0], strict=True) if real}
        for node in parents - {0}:
            depth = int(tree.depths[0, node - 1])
            token = tree.tokens[:, node - 1 : node]
            hope = drafter.hope(batch.state.outputs[:, depth : depth + 1], token, depth)
            assert math.exp(float(hope.detach())) >= c_min


def test_who_cannot_say_how_sure_it_is_and_what_nobody_measured_is_said(target: Target) -> None:
    with pytest.raises(UsageError, match="c_min needs a drafter with a confidence head, and 'dflash' has none"):
        Batch(
            build("dflash", target),
            target,
            PROMPTS,
            Settings(Budget.parse("chain:3,c_min=0.2"), Sampling(), 4),
            [0] * 4,
        )
    with pytest.raises(UsageError, match="drafterzoo doctor --profile"):
        budget = Budget.parse("chain:3,schedule=prefix")
        Batch(build("dspark", target), target, PROMPTS, Settings(budget, Sampling(), 4), [0] * 4)
    with pytest.raises(UsageError, match="schedule=prefix is for chains"):
        Budget.parse("8,schedule=prefix")
    with pytest.raises(UsageError, match="expected one of none, prefix, uniform"):
        Budget.parse("chain:4,schedule=best")


@pytest.mark.parametrize("text", ["chain:7,c_min=0.3", "chain:7,schedule=prefix", "tree:8,p_min=0.1,c_min=0.2"])
def test_budgets_are_printed_as_they_are_typed(text: str) -> None:
    budget = Budget.parse(text)
    assert budget.brief == text and Budget.parse(str(budget)) == budget and budget.ends_early
