"""Acceptance and cost at single positions, from the target's p and the drafter's proposal (methods.md 2.2, 2.3, 2.9).

Knows probabilities and token ids; nothing of rounds, drafters or texts. Every function takes R positions and returns
float64 (A [R], c [R]): A, the chance that the draft was accepted given that the text's token was committed; c, the
chance that the target's token is not the draft, given that it is no stop token (0 where it must be one).
"""

from __future__ import annotations

import torch
from torch import Tensor


def sampled(
    p: Tensor, q: Tensor, tokens: Tensor, stops: Tensor, vocabulary: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Of proposals drawn from q, under `rejection`: A = min(1, q/p) at the text's token, c from [p - q]_+.

    p [R, V]; q [R, D] over the draft vocabulary [D] (None: all of V): outside it q is 0. tokens [R], stops [S] ids.
    """
    width = p.shape[-1]
    ids = torch.arange(width, device=p.device) if vocabulary is None else vocabulary
    column = torch.full((width,), -1, dtype=torch.int64, device=p.device)
    column[ids] = torch.arange(len(ids), device=p.device)
    at = column[tokens]
    chosen = q.gather(1, at.clamp(min=0)[:, None])[:, 0].double()
    chosen = torch.where(at >= 0, chosen, 0.0)
    likely = p.gather(1, tokens[:, None])[:, 0].double()
    accept = torch.where(chosen >= likely, (chosen > 0).double(), chosen / likely.clamp(min=1e-300))
    ordinary = torch.ones(width, dtype=torch.bool, device=p.device).index_fill_(0, stops, False)
    overlap = (torch.minimum(p if vocabulary is None else p[:, ids], q) * ordinary[ids]).sum(-1, dtype=torch.float64)
    return accept, _missed(overlap, p, ordinary)


def proposed(p: Tensor, drafts: Tensor, tokens: Tensor, stops: Tensor) -> tuple[Tensor, Tensor]:
    """Of certain proposals, drafts [R] (-1: none), judged by the target's own token: q is one-hot."""
    ordinary = torch.ones(p.shape[-1], dtype=torch.bool, device=p.device).index_fill_(0, stops, False)
    at = drafts.clamp(min=0)
    overlap = p.gather(1, at[:, None])[:, 0].double() * (ordinary[at] & (drafts >= 0))
    return (drafts == tokens).double(), _missed(overlap, p, ordinary)


def greedy(drafts: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """At temperature 0, where p too is one-hot: A is 0 or 1 and c = 1 - A."""
    accept = (drafts == tokens).double()
    return accept, 1.0 - accept


def _missed(overlap: Tensor, p: Tensor, ordinary: Tensor) -> Tensor:
    """1 - overlap / (mass of ordinary tokens); the two are sums over the same p, so nothing cancels."""
    mass = (p * ordinary).sum(-1, dtype=torch.float64)
    return torch.where(mass > 0, 1.0 - overlap / mass.clamp(min=1e-300), 0.0).clamp(min=0.0)
