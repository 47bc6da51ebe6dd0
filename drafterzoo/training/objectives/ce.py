"""The objective `ce`: position-decayed cross-entropy with the text's own tokens (DFlash, block.md 1.5).

Knows nothing beside what objectives of block drafters share.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import attrs

from drafterzoo.training.mixed import Mix
from drafterzoo.training.objectives.block import BlockObjective


@attrs.frozen(kw_only=True)
class CrossEntropy(BlockObjective):
    """Options of the objective: those of every block objective. Nothing of the target's distribution enters."""

    called: ClassVar[str] = "ce"

    name: Literal["ce"] = "ce"

    def mix(self) -> Mix:
        return Mix(ce=1.0)
