"""EAGLE-3 (Li et al., arXiv 2503.01840): fused taps, one decoder layer, recurrence on the layer's own output.

Only the name and the defaults stand here; the network is in eagle3_body.py, which `eagle3.1` shares.
"""

from __future__ import annotations

from typing import ClassVar

from drafterzoo.drafters.eagle3_body import Eagle3Body


class Eagle3(Eagle3Body):
    """All norm flags off: the pre-norm output recurs, the taps enter `fc` as they are (eagle.md 1.2)."""

    name: ClassVar[str] = "eagle3"
