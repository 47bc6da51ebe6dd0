"""HASS (arXiv 2408.15766): the network of EAGLE-2, trained on the contexts that it meets when drafting.

Only the name stands here; the network is in eagle2_body.py, the training in training/objectives/hass.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from drafterzoo.drafters.eagle2_body import Eagle2Body
from drafterzoo.drafters.eagle2_options import MEANINGS


class Hass(Eagle2Body):
    """EAGLE-2's network, trained with harmonised contexts and top-K distillation."""

    name: ClassVar[str] = "hass"
    source: ClassVar[str] = "HASS, arXiv 2408.15766"
    meanings: ClassVar[Mapping[str, str]] = MEANINGS
