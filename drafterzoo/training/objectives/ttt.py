"""Training-time test (EAGLE-3, eagle.md 3.2): the drafter unrolled J passes along the text, a loss at every pass.

The loss is soft cross-entropy. Knows `Drafter.unroll`, the head and the target's distribution; nothing of optimisers,
of data on disk, or of what the drafter looks like inside.
"""

from __future__ import annotations

from typing import Literal

import attrs
import torch
from torch import Tensor

from drafterzoo.drafters.base import Drafter, UnrollBatch
from drafterzoo.errors import UsageError
from drafterzoo.training.chunked import Teacher, soft_cross_entropy


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
class PassNotes:
    """Of one pass: its loss, at how many rows both argmaxes agree, and how many rows there were."""

    loss: Tensor
    right: Tensor
    rows: int


@attrs.frozen
class TTT:
    """Options of the objective.

    passes: how many passes a step unrolls, drawn with `chances` (equal when empty); the first `single` share of the run
    takes one. decay: pass j weighs decay**j. out_of_vocabulary: what a row counts whose target choice lies outside the
    draft vocabulary: "mask" nothing (eagle.md 3.2), "share" the draft tokens' share of the target's mass, "keep" all.
    mean: over the supervised rows ("valid") or over all rows ("all", as the first releases had it).
    """

    name: Literal["ttt"] = "ttt"
    passes: tuple[int, ...] = (7,)
    chances: tuple[float, ...] = ()
    single: float = 0.0
    decay: float = 0.8
    out_of_vocabulary: Literal["mask", "share", "keep"] = "mask"
    mean: Literal["valid", "all"] = "valid"

    def __attrs_post_init__(self) -> None:
        if not self.passes or min(self.passes) < 1:
            raise UsageError("objective ttt: passes must list numbers of at least 1, for example passes = [1, 2, 3].")
        if self.chances and len(self.chances) != len(self.passes):
            raise UsageError(
                f"objective ttt: {len(self.chances)} chances for {len(self.passes)} passes; give one each."
            )

    def draw_passes(self, progress: float, generator: torch.Generator) -> int:
        """The number of passes of a step that lies `progress` (0..1) into the run."""
        chances = torch.tensor(self.chances or [1.0] * len(self.passes))
        drawn = self.passes[int(torch.multinomial(chances, 1, generator=generator))]
        return 1 if progress < self.single else drawn

    def loss(
        self, drafter: Drafter, batch: TrainingBatch, passes: int, teacher_head: TeacherHead
    ) -> tuple[Tensor, list[PassNotes]]:
        """The weighted loss of one step, and what each pass says of itself."""
        head, matrix, at = drafter.head_matrix(), teacher_head.matrix, row_numbers(batch)
        total, notes, kind = head.new_zeros(()), list[PassNotes](), head.device.type
        if torch.is_autocast_enabled(kind):
            low = torch.get_autocast_dtype(kind)
            head, matrix = head.to(low), matrix.to(low)
        for step, hidden in enumerate(drafter.unroll(batch, passes)):
            rows = supervised(batch, step)
            judge = (rows[0], at[rows] + step + 1)  # the target's row t+1+j predicts x_{t+2+j}, as row t of pass j does
            teacher = Teacher(batch.hidden[judge], matrix, batch.lse[judge])
            known = teacher_head.inside[batch.argmax[judge]]
            # "share" needs no weight of its own: the un-normalised p of the draft tokens already sums to their share.
            weight = known.to(teacher.lse.dtype) if self.out_of_vocabulary == "mask" else torch.ones_like(teacher.lse)
            loss, agree = soft_cross_entropy(
                hidden[rows], head, weight, teacher, renormalise=self.out_of_vocabulary != "share"
            )
            count = max(len(weight), 1) if self.mean == "valid" else batch.tokens.numel()
            total = total + self.decay**step * loss / count
            notes.append(PassNotes(loss.detach() / count, (agree & known).sum(), len(weight)))
        return total, notes


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


def row_numbers(batch: UnrollBatch) -> Tensor:
    """Row numbers t [n, Q] of what `unroll` returns."""
    everything = torch.arange(batch.tokens.shape[1], device=batch.tokens.device).expand_as(batch.tokens)
    return everything if batch.queries is None else batch.queries
