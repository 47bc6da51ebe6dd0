"""Grouped-query attention without copies of K and V, registered with transformers under `NAME`.

Knows nothing of caches or targets. Query heads that share a K/V head are laid out as further rows of one head, which
gives the same sums as repeating K and V for every query head, and reads each cached row once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "drafterzoo"
_FOLD_ROWS = 64  # beyond, the arithmetic outweighs the copies and folding only enlarges the mask


def folded_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of query [n, heads, Q, d] over key/value [n, kv_heads, W, d] -> [n, Q, heads, d].

    attention_mask [n, 1, Q, W] is additive or boolean. A causal forward without a mask, and wide ones, take the stock
    path.
    """
    n, heads, rows, dim = query.shape
    unusual = dropout or attention_mask is None or kwargs.get("position_bias") is not None
    if softcap is None and (unusual or rows > _FOLD_ROWS or heads == key.shape[1]):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    groups = heads // key.shape[1]
    folded = query.reshape(n, key.shape[1], groups * rows, dim)
    if attention_mask is None:
        attention_mask = torch.ones(rows, key.shape[2], dtype=torch.bool, device=key.device).tril()[None, None]
    mask = attention_mask[:, :, None].expand(-1, -1, groups, -1, -1).flatten(2, 3)
    if softcap is None:
        output = scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    else:
        output = _softcapped(folded, key, value, mask, dim**-0.5 if scaling is None else scaling, softcap)
    return output.view(n, heads, rows, -1).transpose(1, 2).contiguous(), None


def _softcapped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, softcap: float) -> Tensor:
    """Attention with scores squashed to (-softcap, softcap) before the mask (Gemma-2); no fused kernel does this."""
    scores = torch.tanh(query @ key.transpose(-1, -2) * (scaling / softcap)) * softcap
    hidden = torch.finfo(scores.dtype).min
    scores = scores.masked_fill(~mask, hidden) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(dim=-1, dtype=torch.float32).to(value.dtype) @ value


def register() -> str:
    """Make the function known to transformers (again is harmless); return the name to load models with."""
    AttentionInterface.register(NAME, folded_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return NAME
