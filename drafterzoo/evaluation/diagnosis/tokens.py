"""Every token that a chain would draft along recorded greedy answers, and how sure drafter and target were of it.

Source: methods.md 1.1 and 1.7 (Parallel Reconsideration, its two figures and its table of recovery). Every token of an
answer is a root once, whatever rounds a drafter would make, so that drafters are asked the same questions. A draft
counts where all drafts before it were right, which is where decoding gets to it. Knows the drafter's training forward
and the target's head; nothing of tables, files or figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from drafterzoo.drafters.base import Drafter, Unrolling
from drafterzoo.errors import UsageError
from drafterzoo.evaluation.offline.proposals import unroll_batch
from drafterzoo.evaluation.offline.teacher import ROWS_AT_ONCE, Lesson
from drafterzoo.wrappers.pr import Reconsideration


@attrs.frozen(eq=False)
class Tokens:
    """R drafted tokens.

    depth [R] int64: 1 is the root's child; sure, target [R]: the chances that the drafter gives its choice, and the
    target its own; right [R] bool: the two choices agree. again, right_again [R]: sure and right of second thoughts
    about the node above; None where a drafter has none.
    """

    depth: Tensor
    sure: Tensor
    target: Tensor
    right: Tensor
    again: Tensor | None = None
    right_again: Tensor | None = None


def check_drafter(drafter: Drafter) -> None:
    """Raise UsageError for a drafter that has no training forward to ask."""
    if type(drafter).unroll is Drafter.unroll:
        raise UsageError(
            f"diagnose: {drafter.spec!r} gives no chances to look at; diagnose a trained drafter, such as 'eagle3.1'."
        )


def joined(parts: Sequence[Tokens]) -> Tokens:
    """All of them in one."""
    columns: dict[str, Any] = {
        field.name: None
        if getattr(parts[0], field.name) is None
        else torch.cat([getattr(p, field.name) for p in parts])
        for field in attrs.fields(Tokens)
    }
    return Tokens(**columns)


@torch.inference_mode()
def drafted(drafter: Drafter, lesson: Lesson, depth: int) -> Tokens:
    """What a chain of `depth` drafts along the lesson's answers, from every root, as far as it is right."""
    prompts = torch.tensor([len(recording.prompt) for recording in lesson.recordings], device=lesson.tokens.device)
    answers = torch.tensor([len(recording.answer) for recording in lesson.recordings], device=lesson.tokens.device)
    starts = torch.arange(max(int(answers.max()) - 1, 1), device=lesson.tokens.device)
    rows = (prompts[:, None] - 1 + starts).clamp(max=lesson.tokens.shape[1] - 1)
    batch = unroll_batch(drafter, lesson, rows)
    levels: list[tuple[Tensor, Tensor | None]]
    if isinstance(drafter, Reconsideration) and drafter.config.reconsider:  # with none it drafts as the bare one does
        levels = [(one.first, one.second) for one in drafter.unroll_levels(batch, depth, Unrolling())]
    else:
        levels = [(first, None) for first in drafter.unroll(batch, depth)]
    reached = torch.ones_like(rows, dtype=torch.bool)
    parts = []
    for step, (first, second) in enumerate(levels):
        wanted = reached & (starts + 1 + step < answers[:, None])
        texts, at = wanted.nonzero(as_tuple=True)
        positions = prompts[texts] + at + 1 + step
        parts.append(joined(list(_asked(drafter, lesson, step, first[texts, at], second, (texts, at), positions))))
        reached = torch.zeros_like(reached).index_put((texts, at), parts[-1].right)
    return joined(parts)


def _asked(
    drafter: Drafter,
    lesson: Lesson,
    step: int,
    first: Tensor,
    second: Tensor | None,
    where: tuple[Tensor, Tensor],
    positions: Tensor,
) -> Iterator[Tokens]:
    """The drafts of one step [R], a few rows of logits at a time."""
    for rows in torch.arange(len(positions), device=positions.device).split(ROWS_AT_ONCE) or [positions[:0]]:
        texts, at = where[0][rows], where[1][rows]
        wanted = drafter.target.head(lesson.hidden[texts, positions[rows] - 1]).float().softmax(-1).max(-1)
        sure, right = _choice(drafter, first[rows], wanted.indices)
        thoughts: tuple[Tensor | None, Tensor | None] = (None, None)
        if second is not None:
            thoughts = _choice(drafter, second[texts, at], wanted.indices)
        yield Tokens(torch.full_like(rows, step + 1), sure, wanted.values, right, *thoughts)


def _choice(drafter: Drafter, hidden: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """(the chance of the drafter's choice [R], whether it is the target's [R])."""
    best = drafter.logits(hidden).float().softmax(-1).max(-1)
    ids = best.indices if drafter.vocabulary is None else drafter.vocabulary[best.indices]
    return best.values, ids == wanted
