"""The objective `tv`: total variation from the target's distribution, half its L1 distance (block.md 1.5).

Knows nothing beside what objectives of block drafters share.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import attrs

from drafterzoo.training.mixed import Mix
from drafterzoo.training.objectives.block import BlockObjective


@attrs.frozen(kw_only=True)
class TotalVariation(BlockObjective):
    """Options of the objective: those of every block objective. It is one minus the chance of being accepted."""

    called: ClassVar[str] = "tv"

    name: Literal["tv"] = "tv"

    def mix(self) -> Mix:
        return Mix(tv=1.0)
