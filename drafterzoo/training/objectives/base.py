"""What objectives share: what a step's batch holds, how many passes it takes, and which rows judge which.

Knows `Drafter.unroll`'s row order and the target's head; nothing of optimisers, of data on disk, of any one loss, or of
what a drafter looks like inside.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

import attrs
import torch
from torch import Tensor

from drafterzoo.drafters.base import Drafter, UnrollBatch, Unrolling
from drafterzoo.drafters.rows import row_numbers
from drafterzoo.errors import UsageError
from drafterzoo.training.chunked import Teacher

MOST_PASSES = 64  # no draft goes as deep, and every pass is kept for its gradient


@attrs.frozen(eq=False)
class TrainingBatch(UnrollBatch):
    """An UnrollBatch with what the loss needs.

    answer [n, T] bool: x_t is a token of the response. hidden [n, T, H]: the target after its final norm at row t,
    which predicts x_{t+1}. argmax, lse [n, T]: the target's greedy choice and log-sum-exp at row t.
    """

    answer: Tensor = attrs.field(kw_only=True)
    hidden: Tensor = attrs.field(kw_only=True)
    argmax: Tensor = attrs.field(kw_only=True)
    lse: Tensor = attrs.field(kw_only=True)

    def to(self, device: torch.device) -> TrainingBatch:
        held = {f.name: getattr(self, f.name) for f in attrs.fields(type(self))}
        return attrs.evolve(self, **{name: value.to(device) for name, value in held.items() if value is not None})


@attrs.frozen(eq=False)
class TeacherHead:
    """The target's head cut to the draft vocabulary [D, H], and which target ids are in it [V] bool.

    Made once per run.
    """

    matrix: Tensor
    inside: Tensor

    @classmethod
    def of(cls, drafter: Drafter) -> TeacherHead:
        vocabulary = drafter.vocabulary
        inside = torch.ones(drafter.target.vocab_size, dtype=torch.bool, device=drafter.target.device)
        if vocabulary is not None:
            inside = torch.zeros_like(inside).index_fill_(0, vocabulary, True)
        return cls(drafter.target.head_weight(vocabulary).detach().float(), inside)


@attrs.frozen(eq=False)
class Judges:
    """What the target says at every row by which some pass of a step is judged: made once, for all passes and levels.

    teacher: at these rows. judged: of every pass, the rows that are, as indices (n, q); at: of every pass, which of the
    teacher's rows judges each of them; where: the teacher's rows as indices (n, t). inside [V] bool: the draft
    vocabulary.
    """

    teacher: Teacher
    judged: list[tuple[Tensor, Tensor]]
    at: list[Tensor]
    where: tuple[Tensor, Tensor]
    inside: Tensor


@attrs.frozen(eq=False)
class PassNotes:
    """Of one pass: its loss, at how many rows both argmaxes agree, and how many rows there were.

    sure [R]: the chance that the drafter gives its likeliest token at each of them.
    """

    loss: Tensor
    right: Tensor
    rows: int
    sure: Tensor
    level: int = 0  # 1: a wrapper's second thoughts


@attrs.frozen(eq=False)
class Lesson:
    """One pass of a step: what the drafter gave at the judged rows, and what the target says there.

    hidden [R, h]: the drafter's head inputs; features [R, H]: the target's own, after its final norm; weight [R]: what
    a row counts in the cross-entropy, stress [R] in every other term; known [R] bool: the target's choice lies in the
    draft vocabulary; count: by what the sum is divided.
    head [D, h]: the drafter's, in the dtype in which it is multiplied.
    """

    step: int
    hidden: Tensor
    features: Tensor
    teacher: Teacher
    weight: Tensor
    stress: Tensor
    known: Tensor
    count: int
    head: Tensor

    def notes(self, loss: Tensor, agree: Tensor, sure: Tensor) -> PassNotes:
        """Of the pass's whole loss (already divided), and where both argmaxes agree [R]."""
        return PassNotes(loss.detach(), (agree & self.known).sum(), len(self.weight), sure)


@attrs.frozen(kw_only=True)
class Objective:
    """Options of every objective that unrolls passes.

    passes: how many passes a step unrolls, drawn with `chances` (equal when empty); the first `single` share of the run
    takes one. out_of_vocabulary: what a row counts whose target choice lies outside the draft vocabulary: "mask"
    nothing (eagle.md 3.2), "share" the draft tokens' share of the target's mass, "keep" all. mean: over the supervised
    rows ("valid") or over all rows ("all", as the first releases had it).
    """

    passes: tuple[int, ...] = (1,)
    chances: tuple[float, ...] = ()
    single: float = 0.0
    out_of_vocabulary: Literal["mask", "share", "keep"] = "mask"
    mean: Literal["valid", "all"] = "valid"

    called: ClassVar[str]

    def __attrs_post_init__(self) -> None:
        if not self.passes or not 1 <= min(self.passes) <= max(self.passes) <= MOST_PASSES:
            raise UsageError(
                f"objective {self.called}: passes must list numbers from 1 to {MOST_PASSES}, for example "
                f"passes = [1, 2, 3]."
            )
        if self.chances and len(self.chances) != len(self.passes):
            raise UsageError(
                f"objective {self.called}: {len(self.chances)} chances for {len(self.passes)} passes; give one each."
            )
        if self.chances and not (all(0 <= c < math.inf for c in self.chances) and sum(self.chances) > 0):
            raise UsageError(
                f"objective {self.called}: chances are {list(self.chances)}, expected numbers from 0, not all of them "
                f"0, for example chances = [0.5, 0.5]."
            )
        if not 0 <= self.single <= 1:
            raise UsageError(
                f"objective {self.called}: single is {self.single}, expected the share of the run that takes one pass, "
                f"from 0 to 1."
            )

    def check(self, drafter: Drafter) -> None:
        """Raise UsageError where this objective cannot train this drafter."""

    def draw_passes(self, progress: float, generator: torch.Generator) -> int:
        """The number of passes of a step that lies `progress` (0..1) into the run."""
        chances = torch.tensor(self.chances or [1.0] * len(self.passes))
        drawn = self.passes[int(torch.multinomial(chances, 1, generator=generator))]
        return 1 if progress < self.single else drawn

    def loss(
        self, drafter: Drafter, batch: TrainingBatch, passes: int, teacher_head: TeacherHead
    ) -> tuple[Tensor, list[PassNotes]]:
        """The weighted loss of one step, and what each pass says of itself."""
        unrolled = drafter.unroll(batch, passes, self.unrolling(batch))
        return self.judged(drafter, batch, unrolled, self.judges(batch, passes, teacher_head))

    def unrolling(self, batch: TrainingBatch) -> Unrolling:
        """How the drafter is unrolled."""
        return Unrolling()

    def judged(
        self,
        drafter: Drafter,
        batch: TrainingBatch,
        unrolled: list[Tensor],
        judges: Judges,
        stress: Sequence[Tensor] | None = None,
    ) -> tuple[Tensor, list[PassNotes]]:
        """The weighted loss of what `Drafter.unroll` gave, and what each pass says of itself.

        stress: of every pass, what multiplies the weights of its judged rows [R].
        """
        total, notes = judges.teacher.norm.new_zeros(()), list[PassNotes]()
        for lesson in self.lessons(drafter, batch, unrolled, judges, stress):
            loss, agree, sure = self.lost(lesson)
            loss = loss / lesson.count
            total = total + self.pass_weight(lesson.step) * loss
            notes.append(lesson.notes(loss, agree, sure))
        return total, notes

    def lost(self, lesson: Lesson) -> tuple[Tensor, Tensor, Tensor]:
        """The loss summed over the rows of a pass; where both argmaxes agree [R]; how sure the drafter is [R]."""
        raise NotImplementedError(f"objective {self.called} must define lost")

    def pass_weight(self, step: int) -> float:
        """What a pass weighs in the loss."""
        return 1.0

    def judges(self, batch: TrainingBatch, passes: int, teacher_head: TeacherHead) -> Judges:
        """Whatever the target has to say of a step of so many passes."""
        at, longest = row_numbers(batch), batch.tokens.shape[1]
        judged = [supervised(batch, step) for step in range(passes)]
        # the target's row t+1+j predicts x_{t+2+j}, as row t of pass j does
        by = [rows[0] * longest + at[rows] + step + 1 for step, rows in enumerate(judged)]
        needed, which = torch.cat(by).unique(return_inverse=True)
        where = (needed // longest, needed % longest)
        teacher = Teacher.of(
            batch.hidden[where],
            _as_multiplied(teacher_head.matrix),
            batch.lse[where],
            renormalise=self.out_of_vocabulary != "share",
        )
        return Judges(teacher, judged, list(which.split([len(one) for one in by])), where, teacher_head.inside)

    def lessons(
        self,
        drafter: Drafter,
        batch: TrainingBatch,
        unrolled: list[Tensor],
        judges: Judges,
        stress: Sequence[Tensor] | None = None,
    ) -> Iterator[Lesson]:
        """Pass by pass, the judged rows of what `Drafter.unroll` gave, beside the target's rows that judge them."""
        head = _as_multiplied(drafter.head_matrix())
        for step, (hidden, rows, at) in enumerate(zip(unrolled, judges.judged, judges.at, strict=True)):
            judge = (judges.where[0][at], judges.where[1][at])
            known = judges.inside[batch.argmax[judge]]
            # "share" needs no weight of its own: the un-normalised p of the draft tokens already sums to their share.
            weight = torch.ones_like(batch.lse[judge])
            if self.out_of_vocabulary == "mask":
                weight = known.to(weight.dtype)
            factor = torch.ones_like(weight) if stress is None else stress[step]
            count = max(len(weight), 1) if self.mean == "valid" else batch.tokens.numel()
            teacher = attrs.evolve(judges.teacher, at=at)
            yield Lesson(step, hidden[rows], batch.hidden[judge], teacher, weight * factor, factor, known, count, head)


def _as_multiplied(matrix: Tensor) -> Tensor:
    """A head in the dtype in which autocast multiplies, cast once instead of with every chunk."""
    kind = matrix.device.type
    return matrix.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else matrix


def supervised(batch: TrainingBatch, step: int) -> tuple[Tensor, Tensor]:
    """Which of the batch's rows pass `step` is judged at: indices (n, q) into `batch.queries` (or all rows).

    The root x_{t+1} and the predicted x_{t+2+step} must both be tokens of the response in the row's own document: the
    loss mask is shifted with the inputs (eagle.md 3.2 and 5, row 12), and the response's first token is never drafted.
    """
    at, ahead, last = row_numbers(batch), step + 2, batch.tokens.shape[1] - 1
    number = torch.arange(len(at), device=at.device)[:, None]
    root, label = (at + 1).clamp(max=last), (at + ahead).clamp(max=last)
    own = batch.documents[number, at]
    ok = batch.answer[number, root] & batch.answer[number, label] & (own == batch.documents[number, label]) & (own >= 0)
    rows, columns = (ok & (at + ahead <= last)).nonzero(as_tuple=True)
    return rows, columns
