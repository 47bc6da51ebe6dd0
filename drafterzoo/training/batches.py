"""Which documents a step sees: shuffled anew every epoch, packed whole into rows of bounded length.

Knows lengths and seeds, and how to lay documents side by side; nothing of losses or models. The order is a pure
function of (seed, epoch), so a resumed run need only remember how many steps it has taken.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from drafterzoo.training.features import Document
from drafterzoo.training.objectives.base import TrainingBatch


def packs(lengths: Sequence[int], indices: Sequence[int], limit: int, seed: int, epoch: int) -> list[list[int]]:
    """The steps of one epoch: lists of document indices whose lengths add up to at most `limit`.

    A document longer than that stands alone.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = [indices[i] for i in torch.randperm(len(indices), generator=generator).tolist()]
    steps: list[list[int]] = [[]]
    room = limit
    for index in order:
        if steps[-1] and lengths[index] > room:
            steps.append([])
            room = limit
        steps[-1].append(index)
        room -= lengths[index]
    return steps


def pack(documents: Sequence[Document], anchors: int = 0, generator: torch.Generator | None = None) -> TrainingBatch:
    """Lay documents side by side into a batch of one row; its queries are the rows whose root is in the response.

    anchors: only so many of them in each document, drawn by the generator; 0: all.
    """
    positions = torch.cat([torch.arange(len(d.tokens)) for d in documents])
    owner = torch.cat([torch.full((len(d.tokens),), i) for i, d in enumerate(documents)])
    answer = torch.cat([torch.arange(len(d.tokens)) >= d.prompt for d in documents])
    starts = torch.tensor([len(d.tokens) for d in documents]).cumsum(0) - torch.tensor(
        [len(d.tokens) for d in documents]
    )
    queries = [
        start + _drawn(torch.arange(max(d.prompt - 1, 0), len(d.tokens) - 2), anchors, generator)
        for start, d in zip(starts, documents, strict=True)
    ]
    return TrainingBatch(
        tokens=torch.cat([d.tokens for d in documents])[None],
        features=torch.cat([d.features for d in documents])[None],
        positions=positions[None],
        documents=owner[None],
        queries=torch.cat(queries)[None],
        answer=answer[None],
        hidden=torch.cat([d.hidden for d in documents])[None],
        argmax=torch.cat([d.argmax for d in documents])[None],
        lse=torch.cat([d.lse for d in documents])[None],
    )


def _drawn(rows: torch.Tensor, count: int, generator: torch.Generator | None) -> torch.Tensor:
    """`count` of the rows in their order, or all of them."""
    if not 0 < count < len(rows):
        return rows
    return rows[torch.randperm(len(rows), generator=generator)[:count].sort().values]
