"""Confidence temperatures: found where they are known, kept in the checkpoint, refused where there is no head."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from drafterzoo import generate, load
from drafterzoo.budget import Budget
from drafterzoo.engine.confidence import BINS, Trials, calibration_error, collect, fit
from drafterzoo.engine.sampling import Sampling
from drafterzoo.errors import UsageError
from drafterzoo.target import Target
from drafterzoo.training.run import train
from tests.test_invariants import PROMPTS, build
from tests.tiny import tiny_rollouts, tiny_target


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(dtype=torch.float64)


def overconfident(scales: list[float], rounds: int = 60_000) -> Trials:
    """Rounds whose drafts are accepted with the chance that the logits have once divided by `scales`."""
    generator = torch.Generator().manual_seed(0)
    true = torch.randn(rounds, len(scales), generator=generator) + 1.0
    follows = torch.rand(rounds, len(scales), generator=generator) < true.sigmoid()
    return Trials(true * torch.tensor(scales), follows.long().cumprod(1).sum(1))


def test_the_temperatures_are_those_the_logits_were_multiplied_by() -> None:
    scales = [2.0, 0.5, 1.0, 4.0]
    fitted = fit(overconfident(scales))
    for found, true in zip(fitted.temperatures, scales, strict=True):
        assert abs(math.log2(found / true)) <= 0.26, "two steps of the grid"
    assert all(error < 0.01 for error in fitted.error_after)
    assert fitted.error_before[0] > 0.05


def test_what_nothing_reached_stays_as_it_was() -> None:
    trials = Trials(torch.full((50, 2), -40.0), torch.zeros(50, dtype=torch.int64))
    assert fit(trials).temperatures == (1.0, 1.0)


def test_the_error_is_the_mean_gap_between_hoped_and_found() -> None:
    chances, found = torch.tensor([0.9, 0.9, 0.1, 1.0]).double(), torch.tensor([1.0, 0.0, 0.0, 1.0]).double()
    assert BINS == 15
    # 0.9 stands in one bin (1.8 hoped, 1 found), 0.1 and 1.0 in others
    assert float(calibration_error(chances, found)) == pytest.approx((0.8 + 0.1 + 0.0) / 4)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, verification="rejection")])
def test_hopes_are_collected_as_the_head_gave_them(sampling: Sampling, target: Target) -> None:
    drafter = build("dspark", target)
    depth = drafter.config.proposals
    told = []
    hope = drafter.hope

    def noted(*args: object) -> torch.Tensor:
        told.append(hope(*args))
        return told[-1]

    drafter.hope = noted
    trials = collect(drafter, target, PROMPTS, sampling, depth=depth, max_new_tokens=20, limit=6)
    assert trials.logits.shape == (6, depth) and trials.accepted.shape == (6,)
    assert bool((trials.accepted >= 0).all() and (trials.accepted <= depth).all())
    first = torch.stack([one[0, 0] for one in told[:depth]]).exp()
    torch.testing.assert_close(trials.logits[0].double().sigmoid(), first.double(), atol=1e-6, rtol=0)


def test_a_temperature_divides_what_the_head_says(target: Target) -> None:
    drafter = build("dspark", target)
    depth = drafter.config.proposals
    plain = collect(drafter, target, PROMPTS[:1], Sampling(), depth=depth, max_new_tokens=12)
    drafter.config = attrs.evolve(drafter.config, confidence_temperatures=(2.0,) * depth)
    cooler = collect(drafter, target, PROMPTS[:1], Sampling(), depth=depth, max_new_tokens=12)
    torch.testing.assert_close(cooler.logits, plain.logits / 2, atol=1e-5, rtol=1e-4)
    assert torch.equal(cooler.accepted, plain.accepted), "a hope changes no draft"


def test_a_drafter_without_such_a_head_has_nothing_to_fit(target: Target) -> None:
    with pytest.raises(UsageError, match="this drafter has no confidence head, so there is nothing to fit; try dspark"):
        collect(build("dflash", target), target, PROMPTS, Sampling(), depth=3)


def test_only_rounds_that_a_stop_token_ends_are_left_out(target: Target) -> None:
    """One that meets the limit is counted as far as it went; and a head that despairs is heard out."""
    drafter = build("dspark", target)
    depth = drafter.config.proposals
    with torch.no_grad():
        drafter.confidence_head.proj.bias.fill_(-60.0)
    answer = generate(drafter, PROMPTS[:1], budget=Budget.chain(depth), max_new_tokens=20)
    trials = collect(drafter, target, PROMPTS[:1], Sampling(), depth=depth, max_new_tokens=20)
    assert answer.finished == ["length"] and trials.accepted.tolist() == [r.walked for r in answer.rounds[0]]
    assert bool((trials.logits < -20).all())
    none = collect(drafter, target, PROMPTS[:1], Sampling(), depth=depth, max_new_tokens=1)
    with pytest.raises(UsageError, match="nothing to fit"):
        fit(none)


def test_a_run_ends_with_the_fit_and_saves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_target("llama")
    monkeypatch.setattr("drafterzoo.training.run.load_target", lambda *args, **options: target)
    monkeypatch.setattr("drafterzoo.training.trainer.LEARNT_NOTHING", 0.0)
    rollouts = tiny_rollouts(tmp_path, target.vocab_size)
    recipe: dict[str, Any] = {
        "spec": "dspark",
        "budget": "chain:3",
        "drafter": {"taps": [1], "num_layers": 1, "block_size": 3, "mask_token_id": 1, "intermediate_size": 48},
        "data": {"rollouts": str(rollouts.path), "features": "online", "pack": 40, "anchors": 4},
        "objective": {"name": "dspark"},
        "run": {"epochs": 2.0, "fit_confidence": 12},
        "evaluate": {"every": 1000, "prompts": 1, "max_new_tokens": 3},
    }
    result = train(recipe, out=tmp_path / "run", quiet=True)
    found = result.summary["confidence"]
    assert 0 < found["rounds"] <= 12 and len(found["temperatures"]) == 3
    loaded = load(f"dir:{tmp_path / 'run' / 'best'}", target=target)
    assert list(loaded.config.confidence_temperatures) == found["temperatures"]
    assert train(recipe, out=tmp_path / "run", quiet=True).already
    with pytest.raises(UsageError, match=r"fit_confidence is 12, but dflash has no confidence head; leave the key out"):
        train({**recipe, "spec": "dflash", "objective": {"name": "ce"}}, out=tmp_path / "none", quiet=True)
