"""HASS (arXiv 2408.15766, eagle.md 3.1 and 3.3): aligned contexts over n passes, and distillation of the top K.

One pass and no top-K term are EAGLE-2's own training. Each pass is a loss of its own with the same weight, and what
recurs carries no gradient into the pass before. Knows `Drafter.unroll` and what objectives share; nothing of optimisers
or of data.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import attrs
import torch
from torch import Tensor
from torch.nn import functional

from drafterzoo.drafters.base import Drafter, UnrollBatch, Unrolling
from drafterzoo.drafters.eagle2_body import Eagle2Body
from drafterzoo.drafters.eagle3_body import Eagle3Body
from drafterzoo.errors import UsageError
from drafterzoo.training.chunked import soft_cross_entropy
from drafterzoo.training.objectives.base import Lesson, Objective, TrainingBatch

BODIES: dict[str, type[Drafter]] = {"eagle2": Eagle2Body, "eagle3": Eagle3Body}
MOST = 1_000_000  # of a weight, a width or a count: beyond, sums overflow
USUAL_LENGTH = 512  # of a document, in the scale of the noise (eagle.md 3.1)


@attrs.frozen(kw_only=True)
class Hass(Objective):
    """Options of the objective, beside those of every one.

    body: on which network the alignment is trained; "eagle3" is what stacks it on EAGLE-3. top_k, top_weight: K and w
    of the top-K distillation. ce_weight: of the cross-entropy against the target's whole distribution. feature_weight:
    of the smooth L1 distance to the target's next feature, by default 1 on "eagle2", whose output imitates it, and 0 on
    "eagle3". noise: the features get uniform noise of this width, times 512 over the document's length. legacy: see
    `Unrolling`.
    """

    called: ClassVar[str] = "hass"

    name: Literal["hass"] = "hass"
    body: Literal["eagle2", "eagle3"] = "eagle2"
    passes: tuple[int, ...] = (3,)
    top_k: int = 10
    top_weight: float = 1.0
    ce_weight: float = 0.1
    feature_weight: float | None = None
    noise: float = 0.0
    legacy: bool = False

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        for name in ("top_k", "top_weight", "ce_weight", "noise", "feature_weight"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= MOST:
                raise UsageError(f"objective hass: {name} is {value}, expected a number from 0 to {MOST:,}.")
        if not (self.ce_weight or self._features or (self.top_k and self.top_weight)):
            raise UsageError("objective hass: every weight is 0, so nothing is learnt; set ce_weight, for example 0.1.")

    @property
    def _features(self) -> float:
        return float(self.body == "eagle2") if self.feature_weight is None else self.feature_weight

    def check(self, drafter: Drafter) -> None:
        if not isinstance(drafter, BODIES[self.body]):
            fitting = [body for body, kind in BODIES.items() if isinstance(drafter, kind)]
            advice = f"set body = {fitting[0]!r}" if fitting else "train it by another objective"
            raise UsageError(
                f"recipe [objective]: hass with body = {self.body!r} cannot train {drafter.spec!r}; {advice}."
            )
        if self._features and drafter.config.hidden_size != drafter.target.hidden_size:
            raise UsageError(
                f"recipe [objective]: feature_weight is {self._features:g}, but {drafter.spec!r} has width "
                f"{drafter.config.hidden_size}, and the target's features {drafter.target.hidden_size}; set it to 0."
            )

    def unrolling(self, batch: TrainingBatch) -> Unrolling:
        noise = feature_noise(batch, self.noise) if self.noise else None
        return Unrolling(detached=True, noise=noise, legacy=self.legacy)

    def lost(self, lesson: Lesson) -> tuple[Tensor, Tensor, Tensor]:
        teacher = attrs.evolve(lesson.teacher, weight=self.ce_weight, top_k=self.top_k, top_weight=self.top_weight)
        loss, agree, sure = soft_cross_entropy(lesson.hidden, lesson.head, lesson.weight, teacher)
        if self._features:
            apart = functional.smooth_l1_loss(lesson.hidden.float(), lesson.features, reduction="none").mean(-1)
            loss = loss + self._features * (lesson.stress * apart).sum()
        return loss, agree, sure


def feature_noise(batch: UnrollBatch, width: float) -> Tensor:
    """Uniform noise [n, T, T*H] of total `width`, narrower in documents longer than 512 tokens, wider in shorter."""
    number = torch.arange(len(batch.documents), device=batch.documents.device)[:, None]
    longest = int(batch.documents.max()) + 1
    own = batch.documents.clamp(min=0)
    lengths = torch.zeros(len(own), longest, device=own.device).index_put_(
        (number.expand_as(own), own), (batch.documents >= 0).float(), accumulate=True
    )
    scale = width * USUAL_LENGTH / lengths.gather(1, own).clamp(min=1)
    return (torch.rand_like(batch.features) - 0.5) * scale[..., None]
