"""EAGLE-3.1 (arXiv 2605.09992): EAGLE-3 with a norm on every tap before `fc`, and the post-norm output recurring.

Only the name and the defaults stand here; the network is in eagle3_body.py, which `eagle3` shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from drafterzoo.drafters.eagle3_body import Eagle3Body
from drafterzoo.drafters.eagle3_options import MEANINGS


class Eagle31(Eagle3Body):
    """EAGLE-3 with a norm on every tap, and the normed output recurring.

    The two flags of eagle.md 1.3: they keep a deep chain from drifting away from the prompt.
    """

    name: ClassVar[str] = "eagle3.1"
    source: ClassVar[str] = "EAGLE-3.1, arXiv 2605.09992"
    meanings: ClassVar[Mapping[str, str]] = MEANINGS
    flags: ClassVar[dict[str, Any]] = {"fc_norm": True, "norm_output": True}
