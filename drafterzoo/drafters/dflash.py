"""DFlash (arXiv 2602.06036): a block of masks filled in by one forward, every position on its own.

Source: block.md 1. Knows how the taps are fused; how a block is drafted and trained is in block_body.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from drafterzoo.drafters.block_body import BlockBody, BlockConfig
from drafterzoo.drafters.block_options import MEANINGS

if TYPE_CHECKING:
    from drafterzoo.target.target import Target


class SharedContext(BlockBody):
    """A block drafter all of whose layers read one fusion of the taps."""

    def __init__(self, config: BlockConfig, target: Target) -> None:
        super().__init__(config, target)
        self.fc = nn.Linear(len(config.taps) * config.target_hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def contexts(self, features: Tensor) -> Sequence[Tensor]:
        return [self.hidden_norm(self.fc(features))] * len(self.layers)

    @torch.no_grad()
    def begin_with(self, fusion: Tensor) -> None:
        self.fc.weight.copy_(fusion)
        self.hidden_norm.weight.fill_(1.0)


class DFlash(SharedContext):
    """A whole block in one forward, its positions drafted independently of each other.

    In a tree every node of one depth offers the same children (the factorised tree of DDTree, arXiv 2604.12989).
    """

    name: ClassVar[str] = "dflash"
    source: ClassVar[str] = "DFlash, arXiv 2602.06036"
    meanings: ClassVar[Mapping[str, str]] = MEANINGS

    def __init__(self, config: BlockConfig, target: Target) -> None:
        super().__init__(config, target)
        self.furnish()
