"""Training-time test (EAGLE-3, eagle.md 3.2): the drafter unrolled J passes along the text, a loss at every pass.

The loss is soft cross-entropy. Knows `Drafter.unroll` and what objectives share; nothing of optimisers or of data.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import attrs
from torch import Tensor

from drafterzoo.training.chunked import soft_cross_entropy
from drafterzoo.training.objectives.base import Lesson, Objective


@attrs.frozen(kw_only=True)
class TTT(Objective):
    """Options of the objective, beside those of every one. decay: pass j weighs decay**j."""

    called: ClassVar[str] = "ttt"

    name: Literal["ttt"] = "ttt"
    passes: tuple[int, ...] = (7,)
    decay: float = 0.8

    def pass_weight(self, step: int) -> float:
        return self.decay**step

    def lost(self, lesson: Lesson) -> tuple[Tensor, Tensor, Tensor]:
        return soft_cross_entropy(lesson.hidden, lesson.head, lesson.weight, lesson.teacher)
