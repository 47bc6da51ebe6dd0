"""The EAGLE-2 network, shared by `eagle2` and `hass`, which differ in how they are trained.

Source: eagle.md 1.1 and 1.4 (EAGLE, arXiv 2401.15077; EAGLE-2, arXiv 2406.16858; HASS, arXiv 2408.15766). The output
imitates the target's feature after its final norm, so it recurs as it is and the target's own head reads it. Knows the
sizes and the fusion of embedding and feature; how it drafts and unrolls is in recurrent.py.
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
class Eagle2Config:
    """Sizes of an EAGLE-2 body; what is not said here is in headed.HeadedConfig.

    tap: the boundary that is read, after the target's final norm. hidden_size is the target's own, since the target's
    head reads the output. fc_bias, qkv_bias: which biases there are (eagle.md 1.1).
    """

    vocab_size: int
    tap: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    draft_vocab_size: int
    num_layers: int = 1
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    fc_bias: bool = True
    qkv_bias: bool = False
    embedding: Literal["own", "borrowed"] = "borrowed"
    rope_scaling: dict[str, Any] | None = attrs.field(default=None, metadata=LATER)
    coupling: tuple[float, float] = attrs.field(default=(1.0, 1.0), metadata=LATER)
    packed_dtype: Literal["auto", "float32", "bfloat16", "float16"] = attrs.field(default="auto", metadata=LATER)

    # Two drafters share this config: whoever builds one says for which, and the messages here name none.

    def __attrs_post_init__(self) -> None:
        check_sizes(self)
        if self.num_layers < 1:
            raise UsageError("at least one layer is needed, for example num_layers=1.")
        check_vocabulary(self)

    @property
    def head(self) -> Literal["own", "borrowed"]:
        return "borrowed"

    @property
    def taps(self) -> tuple[int, ...]:
        return (self.tap,)

    @property
    def target_hidden_size(self) -> int:
        return self.hidden_size


class Eagle2Body(RecurrentBody):
    """An EAGLE-2 drafter: one layer without a norm before it, over embedding and feature, read by the target's head."""

    Config: ClassVar[type] = Eagle2Config

    config: Eagle2Config

    def __init__(self, config: Eagle2Config, target: Target) -> None:
        super().__init__(config, target)
        h = config.hidden_size
        self.fc = nn.Linear(2 * h, h, bias=config.fc_bias)
        first = Layer(config, Attention(config, h, bias=config.qkv_bias))
        later = (PlainLayer(config, bias=config.qkv_bias) for _ in range(1, config.num_layers))
        self.layers = cast("Sequence[Layer]", nn.ModuleList([first, *later]))  # a ModuleList says not what it holds
        self.furnish()

    @classmethod
    def default_config(cls, target: Target, **options: Any) -> Eagle2Config:
        """The target's widths, its whole vocabulary, and the boundary after its final norm."""
        values = dict(tap=target.num_layers + 1, draft_vocab_size=target.vocab_size, **widths_of(target), **cls.flags)
        return with_options(cls.Config, cls.name, values, options)

    @classmethod
    def debug_config(cls, target: Target) -> Eagle2Config:
        return cls.default_config(
            target,
            draft_vocab_size=max(2, target.vocab_size * 3 // 4),
            intermediate_size=48,
            num_heads=4,
            num_kv_heads=2,
            head_dim=8,
        )

    def fc_rows(self, features: Tensor, next_tokens: Tensor) -> Tensor:
        """The embedding first."""
        return torch.cat((self.embed(next_tokens), features), dim=-1)

    def begin_with(self, weight: Tensor, gain: Tensor, explained: float) -> None:
        self.fc.weight.copy_(weight * gain[:, None])
        if self.config.fc_bias:
            self.fc.bias.zero_()

    def fuse(self, features: Tensor) -> Tensor:
        return features.to(self.like.dtype)

    def enter(self, index: int, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        if index:
            return super().enter(index, embedded, hidden)
        fused = self.fc(torch.cat((embedded, hidden), dim=-1)).to(self.like.dtype)  # the embedding first
        return fused, fused

    def recurring(self, hidden: Tensor) -> Tensor:
        return hidden

    def head_input(self, recurs: Tensor) -> Tensor:
        return recurs
