"""Parallel Reconsideration's training (methods.md 1.5): a base objective on both passes, and a term that balances them.

L = L0 + alpha * L1 + beta * L_bal. Most rows are easy, so L1 alone teaches the second pass to copy the first. Knows a
base objective and `Reconsideration.unroll_levels`; nothing of the base objective's own loss, of optimisers or of data.
"""

from __future__ import annotations

from typing import cast

import attrs
import torch
from torch import Tensor

from drafterzoo.drafters.base import Drafter
from drafterzoo.training.chunked import Teacher, row_losses, soft_cross_entropy
from drafterzoo.training.objectives.base import Objective, PassNotes, TeacherHead, TrainingBatch, supervised
from drafterzoo.wrappers.pr import Levels, Reconsideration

SURE = 0.5  # confidence of the first pass from which on "keep" holds it


@attrs.frozen
class Reconsidering:
    """A base objective, and what `+pr` adds to it, by the wrapper's own options alpha, beta and balance.

    balance: "hesitant" is the mean of the second pass's loss weighed by the first's doubt; "hinge" what the second
    loses over the first, where it does; "keep" how far the second is from the first, where that is sure.
    """

    base: Objective

    @property
    def called(self) -> str:
        return f"{self.base.called}+pr"

    def check(self, drafter: Drafter) -> None:
        self.base.check(cast(Reconsideration, drafter).base)

    def draw_passes(self, progress: float, generator: torch.Generator) -> int:
        return self.base.draw_passes(progress, generator)

    def loss(
        self, drafter: Drafter, batch: TrainingBatch, passes: int, teacher_head: TeacherHead
    ) -> tuple[Tensor, list[PassNotes]]:
        """The weighted loss of one step, and what each pass says of itself, first levels before second ones."""
        drafter = cast(Reconsideration, drafter)
        levels = drafter.unroll_levels(batch, passes, self.base.unrolling(batch))
        first, second = [one.first for one in levels], [one.second for one in levels]
        total, notes = self.base.judged(drafter, batch, first, teacher_head)
        stress = self._stress(drafter, batch, levels, teacher_head)
        more, again = self.base.judged(drafter, batch, second, teacher_head, stress)
        if drafter.config.balance == "keep" and drafter.config.beta:
            more = more + drafter.config.beta * self._apart(drafter, batch, levels, teacher_head)
        return total + more, [*notes, *(attrs.evolve(note, level=1) for note in again)]

    def _stress(
        self, drafter: Reconsideration, batch: TrainingBatch, levels: list[Levels], teacher_head: TeacherHead
    ) -> list[Tensor]:
        """Factors [R] of the second pass's losses, which alpha * L1 and the balance term share."""
        config = drafter.config
        if config.balance == "hesitant":
            doubts = [1 - one.confidence[supervised(batch, step)] for step, one in enumerate(levels)]
            return [config.alpha + config.beta * u * len(u) / u.sum().clamp(min=1e-6) for u in doubts]
        losses = [
            [row_losses(lesson.hidden, lesson.head, lesson.teacher) for lesson in lessons]
            for lessons in (
                self.base.lessons(drafter, batch, [getattr(one, level) for one in levels], teacher_head)
                for level in ("first", "second")
            )
        ]
        hinge = config.beta if config.balance == "hinge" else 0.0
        return [config.alpha + hinge * (b > a).to(b.dtype) for a, b in zip(*losses, strict=True)]

    def _apart(
        self, drafter: Reconsideration, batch: TrainingBatch, levels: list[Levels], teacher_head: TeacherHead
    ) -> Tensor:
        """KL of the second pass from the first, where the first is sure: a mean over those rows of every pass."""
        total = teacher_head.matrix.new_zeros(())
        for lesson in self.base.lessons(drafter, batch, [one.second for one in levels], teacher_head):
            rows, one = supervised(batch, lesson.step), levels[lesson.step]
            sure = (one.confidence[rows] >= SURE).to(total.dtype)
            own = Teacher(one.first[rows].detach(), lesson.head.detach(), torch.zeros_like(sure))
            cross, _ = soft_cross_entropy(lesson.hidden, lesson.head, sure, own)
            entropy = (sure * row_losses(own.hidden, own.head, own)).sum()
            total = total + self.base.pass_weight(lesson.step) * (cross - entropy) / sure.sum().clamp(min=1)
        return total
