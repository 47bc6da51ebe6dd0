"""The layers that recurrent drafters are built of: grouped-query attention in two halves, and the gated feed-forward.

Knows widths and rotary positions; nothing of any drafter, of caches or of what attends what. Attention stands in two
halves, queries and keys, because drafting writes keys into a memory before anything attends them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn
from torch.nn import functional

from drafterzoo.drafters.attention import rotate
from drafterzoo.drafters.rope import check_rope
from drafterzoo.errors import UsageError

if TYPE_CHECKING:
    from drafterzoo.target.target import Target

MOST_LAYERS, WIDEST = 256, 1 << 17
WIDTHS = ("hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim")


class Sizes(Protocol):
    """What of a drafter's config a block is built from."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def rms_norm_eps(self) -> float: ...
    @property
    def rope_theta(self) -> float: ...
    @property
    def rope_scaling(self) -> Mapping[str, Any] | None: ...


def check_sizes(config: Sizes) -> None:
    """Raise UsageError for sizes that no block can have, or that only a damaged config asks for."""
    for name in (*WIDTHS, "rope_theta"):
        if not 0 < getattr(config, name) < math.inf:
            raise UsageError(f"{name}={getattr(config, name)}, expected a number above zero.")
    # a damaged config must not be answered by allocating until the machine gives up
    for name, most in (("num_layers", MOST_LAYERS), *((name, WIDEST) for name in WIDTHS)):
        if getattr(config, name) > most:
            raise UsageError(f"{name}={getattr(config, name)}, expected at most {most}.")
    if config.head_dim % 2:
        raise UsageError(f"head_dim={config.head_dim} cannot be rotated in pairs; give an even number.")
    check_rope(config)
    if config.num_heads % config.num_kv_heads:
        raise UsageError(f"num_heads={config.num_heads} is not a multiple of num_kv_heads={config.num_kv_heads}.")


def widths_of(target: Target) -> dict[str, int]:
    """The sizes of a block as wide as the target's own, and its vocabulary, as a drafter's config calls them."""
    text = target.model.config.get_text_config()
    heads = text.num_attention_heads
    return {
        "vocab_size": target.vocab_size,
        "hidden_size": target.hidden_size,
        "intermediate_size": getattr(text, "intermediate_size", 4 * target.hidden_size),
        "num_heads": heads,
        "num_kv_heads": getattr(text, "num_key_value_heads", heads),
        "head_dim": getattr(text, "head_dim", None) or target.hidden_size // heads,
    }


class Attention(nn.Module):
    """The projections of self-attention over rows of `width`; what attends what is the caller's."""

    def __init__(
        self, sizes: Sizes, width: int, *, bias: bool = False, out_bias: bool = False, qk_norm: bool = False
    ) -> None:
        super().__init__()
        dim = self.head_dim = sizes.head_dim
        self.q_proj = nn.Linear(width, sizes.num_heads * dim, bias=bias)
        self.k_proj = nn.Linear(width, sizes.num_kv_heads * dim, bias=bias)
        self.v_proj = nn.Linear(width, sizes.num_kv_heads * dim, bias=bias)
        self.o_proj = nn.Linear(sizes.num_heads * dim, sizes.hidden_size, bias=out_bias)
        self.qk_norm = qk_norm
        if qk_norm:
            self.q_norm = nn.RMSNorm(dim, eps=sizes.rms_norm_eps)
            self.k_norm = nn.RMSNorm(dim, eps=sizes.rms_norm_eps)

    def queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """q [n, H, R, d] of x [n, R, width], rotated."""
        q = self.q_proj(x).unflatten(-1, (-1, self.head_dim))
        return rotate((self.q_norm(q) if self.qk_norm else q).transpose(1, 2), cos, sin)

    def keys(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """k (rotated) and v [n, KV, R, d] of x [n, R, width]."""
        k, v = (p(x).unflatten(-1, (-1, self.head_dim)) for p in (self.k_proj, self.v_proj))
        return rotate((self.k_norm(k) if self.qk_norm else k).transpose(1, 2), cos, sin), v.transpose(1, 2)


class Mlp(nn.Module):
    """The gated feed-forward block."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.hidden_size, sizes.intermediate_size, bias=False)
        self.up_proj = nn.Linear(sizes.hidden_size, sizes.intermediate_size, bias=False)
        self.down_proj = nn.Linear(sizes.intermediate_size, sizes.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """What every decoder layer has: attention, feed-forward, and the norm between; a subclass says how it begins."""

    def __init__(self, sizes: Sizes, attention: Attention) -> None:
        super().__init__()
        self.self_attn = attention
        self.post_attention_layernorm = nn.RMSNorm(sizes.hidden_size, eps=sizes.rms_norm_eps)
        self.mlp = Mlp(sizes)

    def enter(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The residual and the attention input, both before any attention."""
        raise NotImplementedError

    def leave(self, residual: Tensor, attended: Tensor) -> Tensor:
        """The layer's output from its residual and what attention brought (before o_proj)."""
        residual = residual + self.self_attn.o_proj(attended)
        return residual + self.mlp(self.post_attention_layernorm(residual))


class PlainLayer(Layer):
    """A layer after the first: it reads the layer below alone."""

    def __init__(self, sizes: Sizes, **attention: Any) -> None:
        super().__init__(sizes, Attention(sizes, sizes.hidden_size, **attention))
        self.input_layernorm = nn.RMSNorm(sizes.hidden_size, eps=sizes.rms_norm_eps)

    def enter(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return hidden, self.input_layernorm(hidden)
