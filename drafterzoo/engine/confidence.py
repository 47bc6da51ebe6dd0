"""Fitting the temperatures of a confidence head, depth by depth: sequential temperature scaling.

Source: block.md 3.2. Knows decoding and `Offers.hope`; nothing of any particular drafter. `collect` decodes real text
in chains and notes what the head hoped for and how far the target followed; `fit` divides the head's logits, from the
first depth on, by what makes the chance that a draft and all before it are accepted true on the average.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.nn import functional

from drafterzoo.budget import Budget
from drafterzoo.engine.contract import Frontier, Offers
from drafterzoo.engine.decode import Batch, Settings
from drafterzoo.engine.sampling import Sampling, Selector
from drafterzoo.errors import UsageError
from drafterzoo.target.target import Target

BINS = 15  # of chances from 0 to 1, in which hoped and found are compared
GRID = 49  # temperatures tried at every depth, from an eighth to eight, evenly on a log scale
_AS_GOOD = 1e-6  # an error that is larger by less is none
_ASKING = 5e-324  # of a budget's c_min, the least number there is: has the head asked, and cuts nothing


@attrs.frozen(eq=False)
class Trials:
    """What was seen in S rounds of chains: logits [S, K] float32 of the head, and how many drafts were accepted [S]."""

    logits: Tensor
    accepted: Tensor


@attrs.frozen
class ConfidenceFit:
    """A temperature per depth, and the expected calibration error of the chance to get so deep, before and after."""

    temperatures: tuple[float, ...]
    error_before: tuple[float, ...]
    error_after: tuple[float, ...]


class _Noting:
    """A drafter that passes everything on and keeps the hopes of the present round, as logits."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.logits: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def expand(self, state: Any, frontier: Frontier, select: Selector) -> Offers:
        offers: Offers = self._inner.expand(state, frontier, select)
        assert offers.hope is not None, "who has a confidence head answers when asked"
        if frontier.step == 0:
            self.logits = []
        chance = float(offers.hope[0, 0].double().exp().clamp(1e-9, 1 - 1e-9))
        self.logits.append(math.log(chance / (1 - chance)))
        return offers


def collect(
    drafter: Any,
    target: Target,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    depth: int,
    max_new_tokens: int = 128,
    limit: int = 4000,
    noted: Callable[[int], object] = lambda amount: None,
) -> Trials:
    """Decode prompts one by one in chains of `depth`, noting hopes and acceptance.

    Stops after `limit` rounds; noted is told of each. A round that a stop token ended is left out: how far it would
    have gone is not known. Raises UsageError for a drafter without a confidence head.
    """
    if "confidence" not in drafter.capabilities:
        raise UsageError("confidence: this drafter has no confidence head, so there is nothing to fit; try dspark.")
    budget = Budget(depth, depth, 1, 1, c_min=_ASKING)
    settings = Settings(budget, sampling, max_new_tokens, target.eos_token_ids)
    noting = _Noting(drafter)
    logits: list[list[float]] = []
    accepted: list[int] = []
    for number, prompt in enumerate(prompts):
        batch = Batch(noting, target, [prompt], settings, [number])
        batch.prefill()
        while batch.alive and len(accepted) < limit:
            emission = batch.round()[0]
            if emission.round is not None and emission.finished != "stop" and len(noting.logits) == depth:
                logits.append(noting.logits)
                accepted.append(emission.round.accepted)
                noted(1)
        if len(accepted) >= limit:
            break
    return Trials(torch.tensor(logits).view(-1, depth), torch.tensor(accepted, dtype=torch.int64))


def fit(trials: Trials) -> ConfidenceFit:
    """From the first depth on, the temperature of least calibration error, those before it kept as they are.

    Of several that are as good the one nearest to 1 is taken, so that a depth which nothing reached stays as it was.
    Raises UsageError where there is no round to fit on.
    """
    if not len(trials.accepted):
        raise UsageError("confidence: no answer has a round that no stop token ends, so there is nothing to fit.")
    grid = torch.logspace(-3, 3, GRID, base=2.0, dtype=torch.float64)
    nearest = grid[grid.log().abs().argsort(stable=True)]
    before = after = torch.zeros(len(trials.accepted), dtype=torch.float64)
    temperatures, raw, scaled = [], [], []
    for k in range(trials.logits.shape[1]):
        logits, found = trials.logits[:, k].double(), (trials.accepted > k).double()
        tried = after[:, None] + functional.logsigmoid(logits[:, None] / nearest)
        errors = torch.stack([calibration_error(one.exp(), found) for one in tried.unbind(1)])
        best = int((errors <= errors.amin() + _AS_GOOD).int().argmax())  # the first
        before, after = before + functional.logsigmoid(logits), tried[:, best]
        temperatures.append(round(float(nearest[best]), 4))
        raw.append(float(calibration_error(before.exp(), found)))
        scaled.append(float(errors[best]))
    return ConfidenceFit(tuple(temperatures), tuple(raw), tuple(scaled))


def calibration_error(chances: Tensor, found: Tensor) -> Tensor:
    """How far the mean chance [S] of a bin lies from the share found [S] in it, weighted by what the bins hold."""
    bins = (chances * BINS).long().clamp(max=BINS - 1)
    gap = torch.zeros(BINS, dtype=chances.dtype).scatter_add_(0, bins, chances - found)
    return gap.abs().sum() / len(chances)
