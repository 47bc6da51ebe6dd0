"""Training-time test (EAGLE-3, eagle.md 3.2): the drafter unrolled J passes along the text, a loss at every pass.

The loss is soft cross-entropy. Knows `Drafter.unroll` and what objectives share; nothing of optimisers or of data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import attrs
from torch import Tensor

from drafterzoo.drafters.base import Drafter
from drafterzoo.training.chunked import soft_cross_entropy
from drafterzoo.training.objectives.base import Objective, PassNotes, TeacherHead, TrainingBatch


@attrs.frozen(kw_only=True)
class TTT(Objective):
    """Options of the objective, beside those of every one. decay: pass j weighs decay**j."""

    called: ClassVar[str] = "ttt"

    name: Literal["ttt"] = "ttt"
    passes: tuple[int, ...] = (7,)
    decay: float = 0.8

    def pass_weight(self, step: int) -> float:
        return self.decay**step

    def judged(
        self,
        drafter: Drafter,
        batch: TrainingBatch,
        unrolled: list[Tensor],
        teacher_head: TeacherHead,
        stress: Sequence[Tensor] | None = None,
    ) -> tuple[Tensor, list[PassNotes]]:
        total, notes = teacher_head.matrix.new_zeros(()), list[PassNotes]()
        for lesson in self.lessons(drafter, batch, unrolled, teacher_head, stress):
            loss, agree = soft_cross_entropy(lesson.hidden, lesson.head, lesson.weight, lesson.teacher)
            loss = loss / lesson.count
            total = total + self.pass_weight(lesson.step) * loss
            notes.append(lesson.notes(loss, agree))
        return total, notes
