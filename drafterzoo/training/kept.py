"""JSON that an earlier call left on disk, read back by one that goes on from it.

Knows that a file may be missing, cut short or junk; nothing of what is in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drafterzoo.parsing import parse_json


def read_kept(path: Path) -> dict[str, Any] | None:
    """The JSON object in `path`; None where the file is missing, cannot be read, or holds anything else."""
    try:
        value = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
