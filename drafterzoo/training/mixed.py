"""Losses row by row: cross-entropy with the text, divergence from the target, total variation, or a mix of them.

Knows a drafter's head inputs, its head and the target's distribution; nothing of depths, blocks or recipes. A few rows
at a time: neither the drafter's logits nor its probabilities ever exist at once. What multiplies a row's loss may be
chosen after all rows are known, as block.md 1.5 and 5.3 need it.
"""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch import Tensor
from torch.autograd import Function

from drafterzoo.training.chunked import CHUNK_BYTES, Teacher, chunk_rows

STEEPNESS = 3.0  # of the hybrid's share (block.md 5.3)


@attrs.frozen
class Mix:
    """What a row's loss is made of: ce: -log q of the text's own token; kl: KL(p, q); tv: the total variation of p, q.

    hybrid: kl and tv are shared out row by row: exp(-3a) and 1 - exp(-3a), a being how much of p and q overlaps.
    """

    ce: float = 0.0
    kl: float = 0.0
    tv: float = 0.0
    hybrid: bool = False


@attrs.frozen(eq=False)
class RowLosses:
    """Of R rows: the loss, and what has no gradient: overlap, the sum of min(p, q), and chance, q of the text's token.

    agree bool: both argmaxes are one; sure: the drafter's chance of its own.
    """

    loss: Tensor
    overlap: Tensor
    chance: Tensor
    agree: Tensor
    sure: Tensor


def mixed_losses(
    hidden: Tensor,
    head: Tensor,
    labels: Tensor,
    teacher: Teacher,
    mix: Mix,
    *,
    trained_from: int = 0,
    chunk_bytes: int = CHUNK_BYTES,
) -> RowLosses:
    """The losses of rows hidden [R, h] below a head [D, h], against the teacher and the text.

    labels [R]: the text's tokens as columns of the head, -1 where they have none (which then costs nothing in ce).
    Gradients reach hidden and, where it is trained, the head's columns from `trained_from` on.
    """
    size = chunk_rows(hidden, head, chunk_bytes)
    return RowLosses(*_Mixed.apply(hidden, head, labels, teacher, mix, trained_from, size))


class _Mixed(Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, labels: Tensor, teacher: Teacher, mix: Mix, trained_from: int, size: int
    ) -> tuple[Tensor, ...]:
        grad_hidden = torch.empty_like(hidden)
        loss, overlap, chance, sure = (teacher.norm.new_empty(len(hidden)) for _ in range(4))
        agree = torch.empty(len(hidden), dtype=torch.bool, device=hidden.device)
        for start in range(0, len(hidden), size):
            rows = slice(start, start + size)
            p, log_q = _distributions(hidden[rows], head, teacher, rows)
            likeliest, greatest = p.max(-1).indices, log_q.amax(-1)
            agree[rows] = log_q.gather(-1, likeliest[:, None])[:, 0] == greatest
            sure[rows] = greatest.exp()
            loss[rows], overlap[rows], chance[rows], grad = _loss(p, log_q, labels[rows], mix)
            grad_hidden[rows] = grad.to(head.dtype) @ head
        ctx.save_for_backward(grad_hidden, hidden, head, labels)
        ctx.rest = (teacher, mix, trained_from, size)
        ctx.mark_non_differentiable(overlap, chance, agree, sure)
        return loss, overlap, chance, agree, sure

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, hidden, head, labels = ctx.saved_tensors
        teacher, mix, trained_from, size = ctx.rest
        grad_head = None
        if ctx.needs_input_grad[1]:  # only now is it known what every row counts: its gradient is formed once more
            grad_head = torch.zeros_like(head)
            for start in range(0, len(hidden), size):
                rows = slice(start, start + size)
                p, log_q = _distributions(hidden[rows], head, teacher, rows)
                grad = _loss(p, log_q, labels[rows], mix)[3].mul_(grad_loss[rows, None])
                grad_head[:, trained_from:] += grad.to(head.dtype).T @ hidden[rows, trained_from:]
        return grad_loss[:, None].to(hidden.dtype) * grad_hidden, grad_head, None, None, None, None, None


def _distributions(hidden: Tensor, head: Tensor, teacher: Teacher, rows: slice) -> tuple[Tensor, Tensor]:
    """(p, log q) [r, D] of some rows."""
    p = teacher.probabilities(rows)
    return p, (hidden @ head.T).to(p.dtype).log_softmax(-1)


def _loss(p: Tensor, log_q: Tensor, labels: Tensor, mix: Mix) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(loss [r], overlap [r], chance [r], gradient of the loss to the logits [r, D])."""
    q = log_q.exp()
    below = q < p
    overlap = torch.minimum(p, q).sum(-1)
    known = labels >= 0
    at = labels.clamp(min=0)[:, None]
    log_chance = log_q.gather(-1, at)[:, 0]
    chance = torch.where(known, log_chance.exp(), 0.0)
    loss, grad = torch.zeros_like(overlap), torch.zeros_like(q)
    if mix.ce:
        share = mix.ce * known.to(q.dtype)
        loss = loss - share * torch.where(known, log_chance, 0.0)
        grad += share[:, None] * q
        grad.scatter_add_(1, at, -share[:, None])
    kl, tv = overlap.new_tensor(mix.kl), overlap.new_tensor(mix.tv)
    if mix.hybrid:
        kl = (-STEEPNESS * overlap).exp()
        tv = 1.0 - kl
    if mix.kl or mix.hybrid:
        loss = loss + kl * (torch.xlogy(p, p) - p * log_q).sum(-1)
        grad += kl.expand(len(p))[:, None] * (q * p.sum(-1, keepdim=True) - p)
    if mix.tv or mix.hybrid:
        loss = loss + tv * (1.0 - overlap)
        inside = (q * below).sum(-1, keepdim=True)
        grad += tv.expand(len(p))[:, None] * q * (inside - below.to(q.dtype))
    return loss, overlap, chance, grad
