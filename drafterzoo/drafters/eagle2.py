"""EAGLE-2 (arXiv 2406.16858): the EAGLE network, drafting a tree that follows the drafter's own confidence.

Only the name stands here; the network is in eagle2_body.py, which `hass` shares. The tree is the engine's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from drafterzoo.drafters.eagle2_body import Eagle2Body
from drafterzoo.drafters.eagle2_options import MEANINGS


class Eagle2(Eagle2Body):
    """One layer that goes on with the target's last feature, read by the target's own head."""

    name: ClassVar[str] = "eagle2"
    source: ClassVar[str] = "EAGLE-2, arXiv 2406.16858"
    meanings: ClassVar[Mapping[str, str]] = MEANINGS
