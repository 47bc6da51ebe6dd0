"""Rows of teacher-forced text: which a batch asks for, and what of its own document each of them may see.

Knows tensors and `UnrollBatch`; nothing of any drafter, of losses or of files.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from drafterzoo.drafters.base import UnrollBatch


def at_rows(x: Tensor, rows: Tensor | None) -> Tensor:
    """x [n, T, ...] at `rows` [n, Q]; all of it for None."""
    return x if rows is None else x[torch.arange(len(x), device=x.device)[:, None], rows]


def causal(batch: UnrollBatch, window: int | None = None, further: int = 0) -> Tensor:
    """Mask [n, Q, T]: a wanted row sees the rows of its document up to itself.

    window: how many positions it looks back, its own included, if it looks from `further` positions on; None: all.
    """
    own, at = own_document(batch)
    rows = torch.arange(batch.tokens.shape[1], device=own.device)
    seen = own & (rows <= at[:, :, None])
    return seen if window is None else seen & (at[:, :, None] + further - rows < window)


def row_numbers(batch: UnrollBatch) -> Tensor:
    """Row numbers t [n, Q] of what `unroll` returns."""
    everything = torch.arange(batch.tokens.shape[1], device=batch.tokens.device).expand_as(batch.tokens)
    return everything if batch.queries is None else batch.queries


def own_document(batch: UnrollBatch) -> tuple[Tensor, Tensor]:
    """(mask [n, Q, T]: rows of a wanted row's own document; the wanted rows' numbers [n, Q])."""
    own = at_rows(batch.documents, batch.queries)
    return own[:, :, None] == batch.documents[:, None, :], row_numbers(batch)


def shift_left(x: Tensor, by: int) -> Tensor:
    """x [n, T] moved `by` rows to the left, zeros filling in at the end."""
    return functional.pad(x[:, by:], (0, by))
