"""The objective `lk`: KL where p and q are apart, total variation where they are near (LK-hybrid, block.md 5.3).

Knows nothing beside what objectives of block drafters share.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import attrs

from drafterzoo.training.mixed import Mix
from drafterzoo.training.objectives.block import BlockObjective


@attrs.frozen(kw_only=True)
class Hybrid(BlockObjective):
    """Options of the objective: those of every block objective. KL's share is exp(-3a), a being the overlap."""

    called: ClassVar[str] = "lk"

    name: Literal["lk"] = "lk"

    def mix(self) -> Mix:
        return Mix(hybrid=True)
