"""The EAGLE-3 network, shared by `eagle3` and `eagle3.1`, which differ in the default of two flags.

Source: eagle.md 1.2 and 1.3 (EAGLE-3, arXiv 2503.01840; EAGLE-3.1, arXiv 2605.09992). Knows the sizes, the norms and
the fusion of the taps; how it drafts and unrolls is in recurrent.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import attrs
import torch
from torch import Tensor, nn

from drafterzoo.checkpoint import LATER
from drafterzoo.drafters.base import with_options
from drafterzoo.drafters.blocks import Attention, Layer, PlainLayer, check_sizes, widths_of
from drafterzoo.drafters.headed import check_vocabulary
from drafterzoo.drafters.recurrent import RecurrentBody
from drafterzoo.errors import UsageError

if TYPE_CHECKING:
    from drafterzoo.target.target import Target


@attrs.frozen
class Eagle3Config:
    """Sizes and flags of an EAGLE-3 body; what is not said here is in headed.HeadedConfig.

    taps: boundaries of the target, fused in this order. The four norm flags are those of eagle.md 1.2 and 1.3.
    sliding_window: how many positions every layer looks back, its own included (eagle.md 3.2, speculators).
    """

    vocab_size: int
    target_hidden_size: int
    taps: tuple[int, ...]
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    draft_vocab_size: int
    num_layers: int = 1
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    attention_bias: bool = False
    qk_norm: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    head: Literal["own", "borrowed"] = "own"
    embedding: Literal["own", "borrowed"] = "borrowed"
    rope_scaling: dict[str, Any] | None = attrs.field(default=None, metadata=LATER)
    sliding_window: int | None = attrs.field(default=None, metadata=LATER)
    coupling: tuple[float, float] = attrs.field(default=(1.0, 1.0), metadata=LATER)
    packed_dtype: Literal["auto", "float32", "bfloat16", "float16"] = attrs.field(default="auto", metadata=LATER)

    # Several drafters share this config: whoever builds one says for which, and the messages here name none.

    def __attrs_post_init__(self) -> None:
        if self.fc_norm and self.norm_before_fc:
            raise UsageError("fc_norm and norm_before_fc exclude each other (eagle.md 1.3); set one of them to false.")
        check_sizes(self)
        if not self.taps or self.num_layers < 1:
            raise UsageError("at least one tap and one layer are needed, for example taps=(2, 15, 27), num_layers=1.")
        check_vocabulary(self)
        if self.sliding_window is not None and self.sliding_window < 1:
            raise UsageError(f"sliding_window={self.sliding_window}, expected at least 1, or none.")
        if len(set(self.taps)) < len(self.taps):
            raise UsageError(
                f"taps={list(self.taps)} name a boundary more than once; name each once, for example taps=(2, 15, 27)."
            )
        if self.hidden_size != self.target_hidden_size and "borrowed" in (self.head, self.embedding):
            raise UsageError(
                f"hidden_size={self.hidden_size} differs from target_hidden_size={self.target_hidden_size}, so head "
                f"and embedding cannot be borrowed; correct either, or set head='own' and embedding='own'."
            )


class FirstLayer(Layer):
    """The layer that reads the normed token embedding beside the normed feature."""

    def __init__(self, config: Eagle3Config, **attention: Any) -> None:
        super().__init__(config, Attention(config, 2 * config.hidden_size, **attention))
        self.norm_before_residual = config.norm_before_residual
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def enter(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        normed = self.hidden_norm(hidden)
        residual = normed if self.norm_before_residual else hidden
        return residual, torch.cat((self.input_layernorm(embedded), normed), dim=-1)


class Eagle3Body(RecurrentBody):
    """An EAGLE-3 drafter: one or more layers, fused taps, reduced vocabulary, recurrence on its own output."""

    Config: ClassVar[type] = Eagle3Config

    config: Eagle3Config

    def __init__(self, config: Eagle3Config, target: Target) -> None:
        super().__init__(config, target)
        h, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(len(config.taps) * config.target_hidden_size, h, bias=False)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(nn.RMSNorm(config.target_hidden_size, eps=eps) for _ in config.taps)
        if config.norm_before_fc:
            self.input_norm = nn.RMSNorm(len(config.taps) * config.target_hidden_size, eps=eps)
        how = {"bias": config.attention_bias, "out_bias": config.attention_bias, "qk_norm": config.qk_norm}
        later = (PlainLayer(config, **how) for _ in range(1, config.num_layers))
        layers = nn.ModuleList([FirstLayer(config, **how), *later])
        self.layers = cast("Sequence[Layer]", layers)  # a ModuleList does not say what it holds
        self.norm = nn.RMSNorm(h, eps=eps)
        self.furnish()

    @classmethod
    def default_config(cls, target: Target, **options: Any) -> Eagle3Config:
        """Taps 2, L//2, L-3 (eagle.md 0.4), the target's widths, D = 32000 or the whole vocabulary."""
        layers = target.num_layers
        if "taps" not in options and layers < 7:
            raise UsageError(
                f"{cls.name}: the usual taps 2, L//2, L-3 need a target of at least 7 layers and this one has "
                f"{layers}; name them, for example taps=(1, {layers})."
            )
        values = dict(
            target_hidden_size=target.hidden_size,
            taps=(2, layers // 2, layers - 3),
            draft_vocab_size=min(32000, target.vocab_size),
            **widths_of(target),
            **cls.flags,
        )
        return with_options(cls.Config, cls.name, values, options)

    @classmethod
    def debug_config(cls, target: Target) -> Eagle3Config:
        return cls.default_config(
            target,
            draft_vocab_size=max(2, target.vocab_size * 3 // 4),
            intermediate_size=48,
            num_heads=4,
            num_kv_heads=2,
            head_dim=8,
        )

    @property
    def window(self) -> int | None:
        return self.config.sliding_window

    def fc_input(self, features: Tensor) -> Tensor:
        """The concatenated taps [..., T*H] with the norms that the flags put before `fc`."""
        features = features.to(self.like.dtype)
        if self.config.norm_before_fc:
            features = self.input_norm(features)
        if self.config.fc_norm:
            parts = features.unflatten(-1, (len(self.taps), -1)).unbind(-2)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return features

    def fc_rows(self, features: Tensor, next_tokens: Tensor) -> Tensor:
        return self.fc_input(features)

    def begin_with(self, weight: Tensor, gain: Tensor, explained: float) -> None:
        """The final norm takes the gain, times the prediction's length: no confidence in what cannot be predicted."""
        self.fc.weight.copy_(weight)
        self.norm.weight.copy_(gain * explained**0.5)

    def fuse(self, features: Tensor) -> Tensor:
        # under autocast too, what recurs is a sum in the dtype of the weights
        return self.fc(self.fc_input(features)).to(self.like.dtype)

    # The final norm applies exactly once, to what the head reads; with norm_output that recurs, too.

    def recurring(self, hidden: Tensor) -> Tensor:
        return self.norm(hidden) if self.config.norm_output else hidden

    def head_input(self, recurs: Tensor) -> Tensor:
        return recurs if self.config.norm_output else self.norm(recurs)
