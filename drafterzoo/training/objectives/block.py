"""What the objectives of block drafters share: whole blocks below many anchors, and how their depths are weighed.

Source: block.md 1.5, 3.4 and 5.3. Knows `Drafter.unroll`, what objectives share and a loss per row; what that loss is,
is a subclass's, one in each file. Knows nothing of optimisers, of data or of what a drafter looks like inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import attrs
import torch
from torch import Tensor

from drafterzoo.drafters.base import Drafter
from drafterzoo.drafters.block_body import BlockBody
from drafterzoo.drafters.rows import at_rows, shift_left
from drafterzoo.errors import UsageError
from drafterzoo.training.mixed import Mix, RowLosses, mixed_losses
from drafterzoo.training.objectives.base import Lesson, Objective, PassNotes, TeacherHead, TrainingBatch

MOST_DECAY = 1e6


@attrs.frozen(eq=False)
class Judged:
    """Of all depths at once: the judged rows one after the other, where each comes from, and what was found.

    anchors [R]: the number of the block, n*Q in all; depth [R]: 0 for the first proposal; weight [R]: 0 where the
    target's choice cannot be drafted.
    """

    lessons: Sequence[Lesson]
    anchors: Tensor
    depth: Tensor
    weight: Tensor
    losses: RowLosses
    shape: tuple[int, int]

    def by_block(self, values: Tensor, fill: float) -> Tensor:
        """values [R] as [n*Q, depths], `fill` where a depth is not judged."""
        whole = values.new_full(self.shape, fill)
        return whole.index_put((self.anchors, self.depth), values)

    def by_row(self, whole: Tensor) -> Tensor:
        """[n*Q, depths] at the judged rows [R]."""
        return whole[self.anchors, self.depth]


@attrs.frozen(kw_only=True)
class BlockObjective(Objective):
    """Options of every objective of block drafters; a step takes whole blocks, and `passes` is not theirs to set.

    weights: what a depth counts: "decay" exp(-k/gamma), k = 0 for the first proposal (7, 5, 4 for blocks of 16, 10,
    8); "dpace" by how likely the drafter finds the text up to each depth behind it, smoothed by `smoothing`; "even".
    """

    passes: tuple[int, ...] = (1,)
    weights: Literal["decay", "dpace", "even"] = "decay"
    gamma: float = 4.0
    smoothing: float = 0.5

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.passes != (1,) or self.chances or self.single:
            raise UsageError(
                f"objective {self.called}: passes, chances and single are for recurrent drafters; a block is always "
                f"trained whole, so leave them out."
            )
        if not (0 < self.gamma <= MOST_DECAY and 0 <= self.smoothing <= 1):
            raise UsageError(
                f"objective {self.called}: gamma={self.gamma} and smoothing={self.smoothing}, expected a number above "
                f"zero and a share from 0 to 1."
            )

    def check(self, drafter: Drafter) -> None:
        if "block" not in drafter.capabilities:
            raise UsageError(
                f"recipe [objective]: {self.called} trains block drafters, and {drafter.spec!r} is none; "
                f'train it by "ttt".'
            )

    def mix(self) -> Mix:
        """What a row's loss is made of."""
        raise NotImplementedError(f"objective {self.called} must define mix")

    def loss(
        self, drafter: Drafter, batch: TrainingBatch, passes: int, teacher_head: TeacherHead
    ) -> tuple[Tensor, list[PassNotes]]:
        """The loss of whole blocks, weighed depth by depth, and what each depth says of itself."""
        return self.of_blocks(drafter, batch, drafter.unroll(batch, whole_block(drafter)), teacher_head)

    def of_blocks(
        self, drafter: Drafter, batch: TrainingBatch, unrolled: list[Tensor], teacher_head: TeacherHead
    ) -> tuple[Tensor, list[PassNotes]]:
        """The same, of blocks that have been drafted below the batch's queries."""
        judged = self.judge(drafter, batch, unrolled, teacher_head)
        return self.total(drafter, batch, unrolled, judged), notes(judged)

    def judge(
        self, drafter: Drafter, batch: TrainingBatch, unrolled: list[Tensor], teacher_head: TeacherHead
    ) -> Judged:
        """The rows of all depths, each with its loss."""
        judges = self.judges(batch, len(unrolled), teacher_head)
        lessons = list(self.lessons(drafter, batch, unrolled, judges))
        blocks = unrolled[0].shape[1]
        depth = torch.cat([torch.full_like(rows[0], step) for step, rows in enumerate(judges.judged)])
        anchors = torch.cat([rows * blocks + column for rows, column in judges.judged])
        columns = teacher_head.inside.cumsum(0) - 1
        text = [at_rows(shift_left(batch.tokens, 2 + step), batch.queries) for step in range(len(unrolled))]
        labels = torch.cat([one[rows] for one, rows in zip(text, judges.judged, strict=True)])
        labels = torch.where(teacher_head.inside[labels], columns[labels], -1)
        losses = mixed_losses(
            torch.cat([lesson.hidden for lesson in lessons]),
            lessons[0].head,
            labels,
            attrs.evolve(judges.teacher, at=torch.cat(judges.at)),
            self.mix(),
            trained_from=drafter.head_trained_from,
        )
        weight = torch.cat([lesson.weight for lesson in lessons])
        shape = (unrolled[0].shape[0] * blocks, len(unrolled))
        return Judged(lessons, anchors, depth, weight, losses, shape)

    def total(self, drafter: Drafter, batch: TrainingBatch, unrolled: list[Tensor], judged: Judged) -> Tensor:
        """The loss of a step: the weighed mean over all judged rows."""
        weight = self.row_weights(judged)
        return (weight * judged.losses.loss).sum() / weight.sum().clamp(min=1e-6)

    def row_weights(self, judged: Judged) -> Tensor:
        """What every judged row counts [R]."""
        if self.weights == "decay":
            return judged.weight * (-judged.depth.to(judged.weight.dtype) / self.gamma).exp()
        if self.weights == "even":
            return judged.weight
        sure = judged.by_block(judged.losses.chance, 0.0)
        reached = ((1 - self.smoothing) * sure + self.smoothing).cumprod(-1)
        reached = reached * judged.by_block(torch.ones_like(judged.losses.chance), 0.0)
        return judged.weight * judged.by_row(reached.flip(-1).cumsum(-1).flip(-1))


def whole_block(drafter: Drafter) -> int:
    """How many tokens a block of this drafter proposes, whatever wrappers are around it."""
    base: Drafter | None = drafter
    while base is not None and not isinstance(base, BlockBody):
        base = getattr(base, "base", None)
    assert base is not None, "checked before a run begins"
    return base.config.proposals


def notes(judged: Judged) -> list[PassNotes]:
    """What each depth says of itself: its mean loss, and how often both argmaxes agree."""
    sizes = [len(lesson.weight) for lesson in judged.lessons]
    parts = [values.detach().split(sizes) for values in (judged.losses.loss, judged.losses.agree, judged.losses.sure)]
    return [
        lesson.notes(loss.sum() / max(len(loss), 1), agree, sure)
        for lesson, loss, agree, sure in zip(judged.lessons, *parts, strict=True)
    ]
