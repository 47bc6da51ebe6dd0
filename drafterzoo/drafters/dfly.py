"""DFly (arXiv 2607.25852): DFlash's block over a fusion of its own for every layer, corrected by the token before.

Source: block.md 5. Knows the residual fusion of the taps and the hidden correction; how a block is drafted and trained
is in block_body.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import torch
from torch import Tensor, nn
from torch.nn import functional

from drafterzoo.drafters.block_body import BlockBody, BlockConfig, Read
from drafterzoo.drafters.block_options import CORRECTION_MEANINGS
from drafterzoo.drafters.blocks import WIDEST
from drafterzoo.errors import UsageError

if TYPE_CHECKING:
    from drafterzoo.target.target import Target


@attrs.frozen
class DFlyConfig(BlockConfig):
    """A block drafter's config, and the correction's (block.md 5.1).

    correction: whether the token before corrects what the head reads; correction_size: width inside it, 0 for the
    drafter's own.
    """

    correction: bool = True
    correction_size: int = 0

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if not 0 <= self.correction_size <= WIDEST:
            raise UsageError(
                f"correction_size={self.correction_size}, expected a width up to {WIDEST}, or 0 for hidden_size."
            )
        if self.hidden_size != self.target_hidden_size:
            raise UsageError(
                f"hidden_size={self.hidden_size} differs from target_hidden_size={self.target_hidden_size}, but taps "
                f"are added to what the layers read; give both the target's."
            )


class HiddenCorrection(nn.Module):
    """A gated feed-forward block over a row and the token before it, added to the row."""

    def __init__(self, config: DFlyConfig) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.correction_size or config.hidden_size
        self.hidden_norm = nn.RMSNorm(width, eps=config.rms_norm_eps)
        self.embed_norm = nn.RMSNorm(width, eps=config.rms_norm_eps)
        self.gate_proj = nn.Linear(2 * width, inner, bias=False)
        self.up_proj = nn.Linear(2 * width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)
        nn.init.zeros_(self.down_proj.weight)  # at first nothing is corrected

    def forward(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        normed = self.hidden_norm(hidden).expand_as(embedded)
        x = torch.cat((normed, self.embed_norm(embedded)), dim=-1)
        return hidden + self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class DFly(BlockBody):
    """A whole block in one forward, over taps fused for each layer, corrected left to right by the token before.

    The correction stands between the block and the head, so every node of a tree costs a row of the head.
    """

    name: ClassVar[str] = "dfly"
    Config: ClassVar[type] = DFlyConfig
    source: ClassVar[str] = "DFly (AngelSpec), arXiv 2607.25852"
    meanings: ClassVar[Mapping[str, str]] = CORRECTION_MEANINGS
    flags: ClassVar[dict[str, Any]] = {"block_size": 8}

    config: DFlyConfig

    def __init__(self, config: DFlyConfig, target: Target) -> None:
        super().__init__(config, target)
        width = config.hidden_size
        self.fc = nn.Linear(len(config.taps) * config.target_hidden_size, width, bias=False)
        self.hidden_norm = nn.RMSNorm(width, eps=config.rms_norm_eps)
        self.layer_fusion_weights = nn.Parameter(torch.zeros(config.num_layers, len(config.taps)))
        if config.correction:
            self.hidden_correction = HiddenCorrection(config)
        self.furnish()

    def contexts(self, features: Tensor) -> Sequence[Tensor]:
        projected, taps = self.fc(features), features.unflatten(-1, (len(self.taps), -1))
        shares = self.layer_fusion_weights.softmax(-1).to(taps.dtype)
        return [self.hidden_norm(projected + torch.einsum("t,...th->...h", own, taps)) for own in shares]

    @torch.no_grad()
    def begin_with(self, fusion: Tensor) -> None:
        own = self.layer_fusion_weights[0].softmax(-1)  # at first the same in every layer
        beside = torch.cat([share * torch.eye(len(fusion)).to(fusion) for share in own], dim=1)
        self.fc.weight.copy_(fusion - beside)
        self.hidden_norm.weight.fill_(1.0)

    def settle(self, hidden: Tensor, tokens: Tensor, memory: Tensor | None) -> Read:
        if not self.config.correction:
            return Read(hidden)
        return Read(self.hidden_correction(hidden, self.embed(tokens)))
