"""EAGLE-3 (Li et al., arXiv 2503.01840): fused taps, one decoder layer, recurrence on the layer's own output.

Only the name and the defaults stand here; the network is in eagle3_body.py, which `eagle3.1` shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from drafterzoo.drafters.eagle3_body import Eagle3Body
from drafterzoo.drafters.eagle3_options import MEANINGS


class Eagle3(Eagle3Body):
    """Fused taps of three layers, one decoder layer, recurrence on its own output before the norm.

    All norm flags are off, and the taps enter `fc` as they are (eagle.md 1.2).
    """

    name: ClassVar[str] = "eagle3"
    source: ClassVar[str] = "EAGLE-3, arXiv 2503.01840"
    meanings: ClassVar[Mapping[str, str]] = MEANINGS
