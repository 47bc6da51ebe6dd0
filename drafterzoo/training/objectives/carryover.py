"""Carryover's training (methods.md 3.3): draft, let the target verify, draft again with what it rejected in sight.

Every anchor is a transition of its own, all of them in parallel: a first draft without gradient, one forward of the
frozen target over all branches, and the base objective on the block that follows, below the place up to which the draft
agreed with the text. Knows a block objective, `Carryover` and the target's forward; nothing of the loss itself.
"""

from __future__ import annotations

from typing import cast

import attrs
import torch
from torch import Tensor

from drafterzoo.drafters.base import Drafter, UnrollBatch, Unrolling
from drafterzoo.drafters.block_body import BlockBody, Carried
from drafterzoo.drafters.rows import at_rows, own_document, row_numbers, shift_left
from drafterzoo.errors import UsageError
from drafterzoo.training.objectives.base import Objective, PassNotes, TeacherHead, TrainingBatch
from drafterzoo.training.objectives.block import BlockObjective
from drafterzoo.wrappers.carryover import Carryover


@attrs.frozen
class Carrying:
    """A block objective on the second of two rounds, whose block sees what the target rejected in the first."""

    base: Objective

    @property
    def called(self) -> str:
        return f"{self.base.called}+carryover"

    def check(self, drafter: Drafter) -> None:
        if not isinstance(self.base, BlockObjective):
            raise UsageError(
                f'recipe [objective]: carryover is trained by an objective of blocks, and "{self.base.called}" is '
                f'none; take for example "ce".'
            )
        self.base.check(drafter)

    def draw_passes(self, progress: float, generator: torch.Generator) -> int:
        return self.base.draw_passes(progress, generator)

    def loss(
        self, drafter: Drafter, batch: TrainingBatch, passes: int, teacher_head: TeacherHead
    ) -> tuple[Tensor, list[PassNotes]]:
        """The base objective's loss of the second drafts."""
        drafter, objective = cast(Carryover, drafter), cast(BlockObjective, self.base)
        moved, carried = transitions(drafter, batch)
        base = drafter.base
        rows = base.block_rows(moved, base.config.proposals, Unrolling(), carried)
        return objective.of_blocks(base, cast(TrainingBatch, moved), base.settled(moved, rows), teacher_head)


def transitions(drafter: Carryover, batch: UnrollBatch) -> tuple[UnrollBatch, Carried]:
    """The batch with its queries moved to where the second round begins, and what each of them carries [n, Q*C].

    A share of the anchors stays where it is and carries nothing, as the first round of an answer does; so do those
    whose second round would begin beyond their document.
    """
    base, at = drafter.base, row_numbers(batch)
    drafts = first_drafts(base, batch)
    features = branch_features(base, batch, drafts)
    n, blocks, count = drafts.shape
    text = torch.stack([at_rows(shift_left(batch.tokens, 2 + k), at) for k in range(count)], dim=-1)
    agreed = (drafts == text).to(torch.int64).cumprod(-1).sum(-1)
    last = batch.tokens.shape[1] - 1
    after = (at + agreed + 1).clamp(max=last)
    inside = at_rows(batch.documents, after) == at_rows(batch.documents, at)
    inside &= at + agreed + 1 <= last
    carries = inside & (torch.rand(n, blocks, device=at.device) >= drafter.config.fresh)
    position = at_rows(batch.positions, at)[..., None] + 2 + torch.arange(count, device=at.device)
    rejected = carries[..., None] & (torch.arange(count, device=at.device) >= agreed[..., None])
    kept = min(drafter.carry, count)
    first = agreed.clamp(max=count - kept)[..., None] + torch.arange(kept, device=at.device)  # the first rejected ones
    carried = drafter.marked(
        features.gather(2, first[..., None].expand(*first.shape, features.shape[-1])).flatten(1, 2),
        position.gather(2, first).flatten(1),
        rejected.gather(2, first).flatten(1),
    )
    return attrs.evolve(batch, queries=torch.where(carries, after, at)), carried


@torch.no_grad()
def first_drafts(base: BlockBody, batch: UnrollBatch) -> Tensor:
    """The drafter's own likeliest block [n, Q, proposals] below every wanted row's root, as target ids."""
    rows = base.block_rows(batch, base.config.proposals, Unrolling())
    tokens = at_rows(shift_left(batch.tokens, 1), batch.queries)
    memory = rows.new_zeros(*rows.shape[:2], base.memory_size) if base.memory_size else None
    drafts = []
    for step in range(rows.shape[2]):
        read = base.settle(rows[:, :, step], tokens, memory)
        columns, memory = base.logits_below(read).argmax(-1), read.memory
        tokens = columns if base.ids is None else base.ids[columns]
        drafts.append(tokens)
    return torch.stack(drafts, dim=-1)


@torch.no_grad()
def branch_features(base: BlockBody, batch: UnrollBatch, drafts: Tensor) -> Tensor:
    """The target's taps [n, Q, G, T*H] of drafts [n, Q, G], each branch behind its own root, in one forward.

    A draft sees the text up to its root, and what its own branch has before it.
    """
    n, blocks, count = drafts.shape
    own, at = own_document(batch)
    length = batch.tokens.shape[1]
    rows = torch.arange(length, device=at.device)
    same = batch.documents[:, :, None] == batch.documents[:, None]
    text = torch.cat((same & (rows <= rows[:, None]), same.new_zeros(n, length, blocks * count)), dim=-1)
    above = (own & (rows <= at[..., None] + 1)).repeat_interleave(count, dim=1)
    branch = torch.ones(count, count, dtype=torch.bool, device=at.device).tril()
    branch = torch.block_diag(*[branch] * blocks) if blocks else branch.new_zeros(0, 0)
    below = torch.cat((above, branch.bool().expand(n, -1, -1)), dim=-1)
    position = at_rows(batch.positions, at)[..., None] + 2 + torch.arange(count, device=at.device)
    features = base.target.read_rows(
        torch.cat((batch.tokens, drafts.flatten(1)), dim=1),
        torch.cat((batch.positions, position.flatten(1)), dim=1),
        torch.cat((text, below), dim=1),
        base.taps,
    )
    return features[:, length:].unflatten(1, (blocks, count))
