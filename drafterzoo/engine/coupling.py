"""Fitting the score of coupled proposals: how likely a child is the target's choice, given the noise both share.

Knows the sampler and decoding; nothing of any particular drafter. `collect` decodes real text and notes, at every
root, the drafter's log q, the noise, and what the target chose; `fit` finds the weights of `Coupling` by maximum
likelihood. Both are for after training: the result goes into the drafter's config.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import torch
from torch import Tensor

from drafterzoo.budget import Budget
from drafterzoo.engine.contract import Frontier, Offers, Proposer
from drafterzoo.engine.decode import Batch, Settings
from drafterzoo.engine.sampling import Coupling, Sampling, Selector, process
from drafterzoo.errors import UsageError
from drafterzoo.target.target import Target

NEWTON_STEPS = 50


@attrs.frozen(eq=False)
class Samples:
    """What was seen at S roots, at one temperature.

    log_q, noise [S, D] float32: the processed draft distribution, and the noise at the child's position. choices [S]
    int64: the column of the target's choice; -1 where the draft vocabulary lacks it.
    """

    log_q: Tensor
    noise: Tensor
    choices: Tensor
    temperature: float

    @property
    def covered(self) -> float:
        """Share of choices that the draft vocabulary holds."""
        return float((self.choices >= 0).float().mean())


@attrs.frozen
class Fit:
    """The best weights of one form, as at temperature 1. log_likelihood: mean, in nats, over the covered samples."""

    coupling: Coupling
    log_likelihood: float


class _Listening(Selector):
    """A selector that keeps what it was shown at the root."""

    heard: tuple[Tensor, Tensor, Tensor | None] | None = None

    def __call__(self, logits: Tensor, frontier: Frontier, vocabulary: Tensor | None = None) -> Offers:
        if frontier.step == 0 and self.sampler.book is not None:
            noise = self.sampler.book.at(frontier.positions + 1, vocabulary)
            self.heard = (process(logits, self.sampler.sampling)[:, 0].float(), noise[:, 0], vocabulary)
        return super().__call__(logits, frontier, vocabulary)


def collect(
    drafter: Proposer,
    target: Target,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    max_new_tokens: int = 128,
    limit: int = 4000,
    noted: Callable[[int], object] = lambda amount: None,
) -> Samples:
    """Decode prompts one by one with the drafter (chains of one), noting log q, noise and the choice at each root.

    Stops after `limit` roots; noted is told of each. Raises UsageError for settings without match noise, temperature 0
    or `rejection`, and where no answer is long enough to have a root.
    """
    if sampling.greedy or sampling.rejects:
        raise UsageError("coupling: there is no match noise to fit; use temperature above 0 and verification='match'.")
    settings = Settings(Budget.chain(1), sampling, max_new_tokens, target.eos_token_ids)
    log_q: list[Tensor] = []
    noise: list[Tensor] = []
    choices: list[int] = []
    for number, prompt in enumerate(prompts):
        batch = Batch(drafter, target, [prompt], settings, [number])
        batch.select = listening = _Listening(batch.sampler, 1)
        batch.prefill()
        while batch.alive and len(choices) < limit:
            choice = batch.round()[0].tokens[0]
            if listening.heard is None:
                raise UsageError("coupling: this drafter has no distribution, so there is nothing to fit.")
            q, g, vocabulary = listening.heard
            log_q.append(q.clone())
            noise.append(g.clone())
            choices.append(choice if vocabulary is None else _column(vocabulary, choice))
            noted(1)
        if len(choices) >= limit:
            break
    if not choices:
        raise UsageError("coupling: every answer ended with its first token, so there is nothing to fit; give others.")
    chosen = torch.tensor(choices, device=target.device)
    return Samples(torch.cat(log_q), torch.cat(noise), chosen, sampling.temperature)


def _column(vocabulary: Tensor, token: int) -> int:
    found = (vocabulary == token).nonzero()
    return int(found[0, 0]) if len(found) else -1


def fit(samples: Samples, *, weights: int = 2) -> Fit:
    """Maximum likelihood of the choices under softmax(prior * log q + noise * g).

    weights 1 ties the two (the scale s of `Coupling` is 1 / prior), 2 frees them. The likelihood is concave: Newton's
    method finds its only maximum. Raises UsageError when no choice lies in the draft vocabulary.
    """
    known = samples.choices >= 0
    if not bool(known.any()):
        raise UsageError(
            "coupling: no choice lies in the draft vocabulary; collect more samples, or check the vocabulary map."
        )
    features = [samples.log_q[known].clamp(min=-60.0), samples.noise[known]]
    allowed = samples.log_q[known] > -60.0
    if weights == 1:
        features = [features[0] + features[1]]
    chosen = samples.choices[known][:, None]
    value = torch.ones(len(features), dtype=torch.float64)
    best = _likelihood(value, features, allowed, chosen)
    for _ in range(NEWTON_STEPS):
        step = _newton_step(value, features, allowed, chosen)
        while (after := _likelihood(value + step, features, allowed, chosen)) < best and float(step.abs().max()) > 1e-9:
            step = step / 2
        value, best = value + step, max(best, after)
        if float(step.abs().max()) < 1e-6:
            break
    prior, noise = (float(w) / samples.temperature for w in (value[0], value[-1]))
    return Fit(Coupling(prior, noise), best)


def _likelihood(value: Tensor, features: list[Tensor], allowed: Tensor, chosen: Tensor) -> float:
    return float(_log_chance(value, features, allowed).gather(1, chosen).double().mean())


def _log_chance(value: Tensor, features: list[Tensor], allowed: Tensor) -> Tensor:
    total = sum(float(w) * f for w, f in zip(value, features, strict=True))
    assert isinstance(total, Tensor)
    return total.masked_fill(~allowed, float("-inf")).log_softmax(1)


def _newton_step(value: Tensor, features: list[Tensor], allowed: Tensor, chosen: Tensor) -> Tensor:
    """Covariance of the features under the model, times what the choices have above their mean; on the CPU."""
    chance = _log_chance(value, features, allowed).exp()
    means = [(chance * f).sum(1) for f in features]
    gradient = torch.stack(
        [(f.gather(1, chosen)[:, 0] - m).double().mean() for f, m in zip(features, means, strict=True)]
    ).cpu()
    rows = []
    for f, m in zip(features, means, strict=True):
        rows.append(
            torch.stack(
                [((chance * f * h).sum(1) - m * k).double().mean() for h, k in zip(features, means, strict=True)]
            )
        )
    curvature = torch.stack(rows).cpu() + 1e-9 * torch.eye(len(features), dtype=torch.float64)
    return torch.linalg.solve(curvature, gradient)
