"""Grouped-query attention and rotary positions, as every drafter needs them.

Knows tensors only: no drafter, no cache policy, no target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn import functional


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply `rotary` to x [n, heads, R, head_dim]."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Softmax attention without repeating keys and values.

    q [n, H, R, d], k and v [n, KV, S, d] with H a multiple of KV, mask [n, R, S] bool (True: may attend; every row must
    see something). Returns [n, R, H*d]. The H/KV query heads that share a key head are laid along the query axis.
    """
    n, heads, rows, width = q.shape
    kv_heads = k.shape[1]
    group = heads // kv_heads
    folded = q.reshape(n, kv_heads, group * rows, width)
    spread = mask[:, None].repeat(1, 1, group, 1)
    out = functional.scaled_dot_product_attention(folded, k, v, attn_mask=spread)
    return out.view(n, heads, rows, width).transpose(1, 2).reshape(n, rows, heads * width)


def block_attention(
    q: Tensor, context: Sequence[Tensor], own: Sequence[Tensor], seen: Tensor, inside: Tensor
) -> Tensor:
    """Attention of many blocks over one context and, each of them, over its own rows: one softmax over both.

    The sparse rule of block.md 1.5 without a mask of all rows by all rows. q [n, H, Q, b, d]: b slots of Q blocks;
    context: k and v [n, KV, T, d]; own: k and v [n, KV, Q, S, d] of each block; seen [n, Q, 1 or b, T] and inside
    [n, Q, b, S] bool: what of both a slot attends, something at least. Returns [n, Q, b, H*d].

    In training on a GPU by FlexAttention, where this torch can compile it for these heads: it skips what no slot sees
    and holds no weights. Elsewhere densely.
    """
    if q.is_cuda and torch.is_grad_enabled() and q.shape[-1] >= 16 and q.dtype != torch.float64 and has_flex():
        return flex_block_attention(q, context, own, seen, inside, compiled_flex())
    (k, v), (own_k, own_v) = context, own
    folded = q.unflatten(1, (k.shape[1], -1)) * q.shape[-1] ** -0.5
    far = torch.einsum("ngmqbd,ngtd->ngmqbt", folded, k).masked_fill(~seen[:, None, None], -math.inf)
    near = torch.einsum("ngmqbd,ngqsd->ngmqbs", folded, own_k).masked_fill(~inside[:, None, None], -math.inf)
    weights = torch.cat((far, near), dim=-1).softmax(-1)
    rows = k.shape[2]
    out = torch.einsum("ngmqbt,ngtd->ngmqbd", weights[..., :rows], v)
    out = out + torch.einsum("ngmqbs,ngqsd->ngmqbd", weights[..., rows:], own_v)
    return out.flatten(1, 2).permute(0, 2, 3, 1, 4).flatten(3)


def flex_block_attention(
    q: Tensor,
    context: Sequence[Tensor],
    own: Sequence[Tensor],
    seen: Tensor,
    inside: Tensor,
    attend: Callable[..., Tensor],
) -> Tensor:
    """`block_attention` by FlexAttention: one row of keys, the context's and then every block's own."""
    from torch.nn.attention.flex_attention import create_block_mask

    n, heads, blocks, slots, width = q.shape
    k, v = (torch.cat((far, near.flatten(2, 3)), dim=2) for far, near in zip(context, own, strict=True))
    rows, each = context[0].shape[2], own[0].shape[3]

    def visible(request: Tensor, head: Tensor, query: Tensor, column: Tensor) -> Tensor:
        block, slot = query // slots, query % slots
        place = (column - rows).clamp(min=0)
        far = seen[request, block, slot if seen.shape[2] > 1 else 0, column.clamp(max=rows - 1)]
        near = (place // each == block) & inside[request, block, slot, place % each]
        return torch.where(column < rows, far, near)

    mask = create_block_mask(visible, n, None, blocks * slots, k.shape[2], device=q.device)
    out = attend(q.flatten(2, 3), k, v, block_mask=mask, enable_gqa=True)
    return out.view(n, heads, blocks, slots, width).permute(0, 2, 3, 1, 4).flatten(3)


@cache
def has_flex() -> bool:
    """Whether this torch has FlexAttention, and what compiles it."""
    return all(find_spec(name) is not None for name in ("torch.nn.attention.flex_attention", "triton"))


@cache
def compiled_flex() -> Callable[..., Tensor]:
    """FlexAttention as one kernel; uncompiled it would hold all scores."""
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Callable[..., Tensor] = torch.compile(flex_attention)
    return compiled
