"""Soft cross-entropy against the target, a few rows at a time: the drafter's logits of a batch never exist at once.

Knows two heads and a weight per row; nothing of drafters, passes or recipes. The gradient is formed in the forward
pass, chunk by chunk, in memory bounded by `chunk_bytes` whatever the batch and the vocabulary are. The target's logits
are made once for all passes and levels that they judge, and kept for the step.
"""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch import Tensor
from torch.autograd import Function

CHUNK_BYTES = 1 << 25


@attrs.frozen(eq=False)
class Teacher:
    """The target's distribution at R rows, over the D draft tokens.

    logits [N, D] and norm [N]: of the rows that judge, in whatever order; p = exp(logits - norm). at [R]: which of them
    judges each row. whole: p sums to 1. weight: of p in the cross-entropy. top_weight: of its top_k greatest entries
    besides (HASS's top-K distillation, eagle.md 3.3).
    """

    logits: Tensor
    norm: Tensor
    at: Tensor
    whole: bool = True
    weight: float = 1.0
    top_k: int = 0
    top_weight: float = 0.0

    @classmethod
    def of(cls, hidden: Tensor, head: Tensor, lse: Tensor, *, renormalise: bool = True) -> Teacher:
        """Of hidden [N, H] after the final norm, row by row; head [D, H]; lse [N] over the *whole* vocabulary.

        renormalise: p sums to 1 over the draft tokens, not to their share of the target's mass.
        """
        logits = hidden @ head.T
        if renormalise:
            parts = logits.split(chunk_rows(hidden, head, CHUNK_BYTES))
            norm = torch.cat([lse.new_zeros(0), *(part.to(lse.dtype).logsumexp(-1) for part in parts)])
        else:
            norm = lse
        return cls(logits, norm, torch.arange(len(logits), device=logits.device), renormalise)

    def probabilities(self, rows: slice) -> Tensor:
        """p [r, D]."""
        at = self.at[rows]
        return self.logits[at].to(self.norm.dtype).sub_(self.norm[at, None]).exp_()

    def wanted(self, p: Tensor) -> tuple[Tensor, Tensor | None]:
        """What multiplies -log q [r, D], made of p in place, and its sum [r, 1] (None: 1)."""
        if self.top_k and self.top_weight:
            top = p.topk(min(self.top_k, p.shape[-1]), dim=-1)
            p = p.mul_(self.weight).scatter_add_(-1, top.indices, top.values * self.top_weight)
        elif self.weight != 1:
            p = p.mul_(self.weight)
        elif self.whole:
            return p, None
        return p, p.sum(-1, keepdim=True)


class _SoftCrossEntropy(Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        weight: Tensor,
        teacher: Teacher,
        rows_at_once: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        grad_hidden = torch.empty_like(hidden)
        grad_head = torch.zeros_like(head, dtype=weight.dtype) if ctx.needs_input_grad[1] else None
        loss, agree = weight.new_zeros(()), torch.empty(len(hidden), dtype=torch.bool, device=hidden.device)
        sure = torch.empty_like(weight)
        for start in range(0, len(hidden), rows_at_once):
            rows = slice(start, start + rows_at_once)
            p = teacher.probabilities(rows)
            log_q = (hidden[rows] @ head.T).to(weight.dtype).log_softmax(-1)
            likeliest = p.max(-1).indices  # several times as fast as argmax on a CPU
            greatest = log_q.amax(-1)
            agree[rows] = log_q.gather(-1, likeliest[:, None])[:, 0] == greatest
            sure[rows] = greatest
            w = weight[rows, None]
            p, mass = teacher.wanted(p)
            loss -= (w[:, 0] * torch.linalg.vecdot(p, log_q)).sum()
            # in place from here on: the step is bound by the memory that these [r, D] pass through
            grad = log_q.exp_()
            if mass is not None:
                grad.mul_(mass)
            grad.sub_(p).mul_(w)
            grad_hidden[rows] = grad @ head
            if grad_head is not None:
                grad_head += grad.T @ hidden[rows]
        ctx.save_for_backward(grad_hidden, grad_head) if grad_head is not None else ctx.save_for_backward(grad_hidden)
        sure.exp_()
        ctx.mark_non_differentiable(agree, sure)
        return loss, agree, sure

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        grad_head = grad_loss * saved[1] if len(saved) == 2 else None
        return grad_loss * saved[0], grad_head, None, None, None


@torch.no_grad()
def row_losses(hidden: Tensor, head: Tensor, teacher: Teacher, *, chunk_bytes: int = CHUNK_BYTES) -> Tensor:
    """CE(p, q) of every row [R], without any weight; no gradients. Arguments as below."""
    losses = [hidden.new_zeros(0, dtype=teacher.norm.dtype)]
    rows_at_once = chunk_rows(hidden, head, chunk_bytes)
    for start in range(0, len(hidden), rows_at_once):
        rows = slice(start, start + rows_at_once)
        log_q = (hidden[rows] @ head.T).to(teacher.norm.dtype).log_softmax(-1)
        losses.append(-torch.linalg.vecdot(teacher.probabilities(rows), log_q))
    return torch.cat(losses)


def chunk_rows(hidden: Tensor, head: Tensor, chunk_bytes: int) -> int:
    return max(1, chunk_bytes // (head.shape[0] * hidden.element_size() * 4))


def soft_cross_entropy(
    hidden: Tensor, head: Tensor, weight: Tensor, teacher: Teacher, *, chunk_bytes: int = CHUNK_BYTES
) -> tuple[Tensor, Tensor, Tensor]:
    """Sum over rows of weight * CE(p, q), p weighed as the teacher says, and what the drafter thinks likeliest.

    hidden [R, h] draft head inputs, head [D, h], weight [R]. Returns (loss, agree [R] bool: the two argmaxes are one,
    sure [R]: the drafter's chance of its own). Gradients reach hidden, and head when it is trained. Under autocast the
    heads are best given in its dtype, or each chunk casts them anew; sums and softmaxes are in the dtype of weight.
    """
    rows_at_once = chunk_rows(hidden, head, chunk_bytes)
    return _SoftCrossEntropy.apply(hidden, head, weight, teacher, rows_at_once)
