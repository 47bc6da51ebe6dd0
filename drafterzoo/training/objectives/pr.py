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
from drafterzoo.training.objectives.base import Judges, Objective, PassNotes, TeacherHead, TrainingBatch
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
        judges = self.base.judges(batch, passes, teacher_head)
        total, notes = self.base.judged(drafter, batch, [one.first for one in levels], judges)
        sure = [note.sure for note in notes]
        stress = self._stress(drafter, batch, levels, judges, sure)
        more, again = self.base.judged(drafter, batch, [one.second for one in levels], judges, stress)
        if drafter.config.balance == "keep" and drafter.config.beta:
            more = more + drafter.config.beta * self._apart(drafter, batch, levels, judges, sure)
        return total + more, [*notes, *(attrs.evolve(note, level=1) for note in again)]

    def _stress(
        self,
        drafter: Reconsideration,
        batch: TrainingBatch,
        levels: list[Levels],
        judges: Judges,
        sure: list[Tensor],
    ) -> list[Tensor]:
        """Factors [R] of the second pass's losses, which alpha * L1 and the balance term share."""
        config = drafter.config
        if config.balance == "hesitant":
            doubts = [1 - one for one in sure]
            return [config.alpha + config.beta * u * len(u) / u.sum().clamp(min=1e-6) for u in doubts]
        if config.balance == "keep" or not config.beta:
            return [torch.full_like(one, config.alpha) for one in sure]
        losses = [
            [row_losses(lesson.hidden, lesson.head, lesson.teacher) for lesson in lessons]
            for lessons in (
                self.base.lessons(drafter, batch, [getattr(one, level) for one in levels], judges)
                for level in ("first", "second")
            )
        ]
        return [config.alpha + config.beta * (b > a).to(b.dtype) for a, b in zip(*losses, strict=True)]

    def _apart(
        self,
        drafter: Reconsideration,
        batch: TrainingBatch,
        levels: list[Levels],
        judges: Judges,
        sure: list[Tensor],
    ) -> Tensor:
        """KL of the second pass from the first, where the first is sure: a mean over those rows of every pass."""
        total = judges.teacher.norm.new_zeros(())
        for lesson in self.base.lessons(drafter, batch, [one.second for one in levels], judges):
            held = (sure[lesson.step] >= SURE).to(total.dtype)
            before = levels[lesson.step].first[judges.judged[lesson.step]].detach()
            own = Teacher.of(before, lesson.head.detach(), torch.zeros_like(held))
            cross, *_ = soft_cross_entropy(lesson.hidden, lesson.head, held, own)
            entropy = (held * row_losses(before, lesson.head, own)).sum()
            total = total + self.base.pass_weight(lesson.step) * (cross - entropy) / held.sum().clamp(min=1)
        return total
