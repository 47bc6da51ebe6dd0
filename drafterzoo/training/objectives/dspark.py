"""The objective `dspark`: cross-entropy, L1 distance and a confidence head that learns what is accepted (DSpark).

Source: block.md 3.4. Knows a drafter with a confidence head, and what objectives of block drafters share.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import attrs
import torch
from torch import Tensor
from torch.nn import functional

from drafterzoo.composition import innermost
from drafterzoo.drafters.base import Drafter
from drafterzoo.drafters.dspark import DSpark
from drafterzoo.drafters.rows import at_rows, shift_left
from drafterzoo.errors import UsageError
from drafterzoo.training.mixed import Mix
from drafterzoo.training.objectives.base import TrainingBatch
from drafterzoo.training.objectives.block import BlockObjective, Judged


@attrs.frozen(kw_only=True)
class ThreeParts(BlockObjective):
    """Options of the objective. ce, l1: weights of the cross-entropy with the text and of sum |p - q|.

    confidence: weight of the confidence head's binary cross-entropy, whose target, the overlap of p and q, carries no
    gradient. detached: nor does what the head reads, which keeps its loss out of the block (block.md 3.4).
    """

    called: ClassVar[str] = "dspark"

    name: Literal["dspark"] = "dspark"
    ce: float = 0.1
    l1: float = 0.9
    confidence: float = 1.0
    detached: bool = False

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        for key in ("ce", "l1", "confidence"):
            if not 0 <= getattr(self, key) <= 1e6:
                raise UsageError(f"objective dspark: {key} is {getattr(self, key)}, expected a weight from 0 to 1e6.")
        if not self.ce and not self.l1:
            raise UsageError("objective dspark: ce and l1 are both 0, so nothing is drafted better; set l1 = 0.9.")

    def check(self, drafter: Drafter) -> None:
        super().check(drafter)
        bare = innermost(drafter)
        if self.confidence and not (isinstance(bare, DSpark) and bare.config.confidence):
            raise UsageError(
                f"recipe [objective]: dspark trains a confidence head, and {drafter.spec!r} has none; set confidence = "
                f"0, or train another drafter."
            )

    def mix(self) -> Mix:
        return Mix(ce=self.ce, tv=2.0 * self.l1)

    def total(self, drafter: Drafter, batch: TrainingBatch, unrolled: list[Tensor], judged: Judged) -> Tensor:
        drafted = super().total(drafter, batch, unrolled, judged)
        bare = innermost(drafter)
        if not self.confidence or not isinstance(bare, DSpark):
            return drafted
        logits = []
        for step, (lesson, read) in enumerate(zip(judged.lessons, unrolled, strict=True)):
            tokens = at_rows(shift_left(batch.tokens, 1 + step), batch.queries)
            at = judged.anchors[judged.depth == step]
            hidden = lesson.hidden[:, : bare.config.hidden_size]
            hidden = hidden.detach() if self.detached else hidden
            assert len(at) == len(hidden) and read.shape[:2] == tokens.shape, "a row for every judge"
            logits.append(bare.confidence(hidden, tokens.flatten()[at]))
        weight = self.row_weights(judged)
        doubt = functional.binary_cross_entropy_with_logits(
            torch.cat(logits).float(), judged.losses.overlap.float().clamp(0, 1), reduction="none"
        )
        return drafted + self.confidence * (weight * doubt).sum() / weight.sum().clamp(min=1e-6)
