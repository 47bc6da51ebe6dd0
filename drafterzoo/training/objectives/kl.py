"""The objective `kl`: KL divergence from the target's distribution (speculators' default, block.md 1.5).

Knows nothing beside what objectives of block drafters share.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import attrs

from drafterzoo.training.mixed import Mix
from drafterzoo.training.objectives.block import BlockObjective


@attrs.frozen(kw_only=True)
class Divergence(BlockObjective):
    """Options of the objective: those of every block objective. It minds most the tokens that the target may choose."""

    called: ClassVar[str] = "kl"

    name: Literal["kl"] = "kl"

    def mix(self) -> Mix:
        return Mix(kl=1.0)
