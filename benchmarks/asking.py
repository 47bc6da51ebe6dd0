"""What the benchmarks share: whole numbers typed on a command line, and what is wrong said in one sentence.

Knows argparse and the command line's way with errors; nothing of what is measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from drafterzoo.cli import spoken


def at_least(least: int) -> Callable[[str], int]:
    """A type for argparse: a whole number, not below `least`."""

    def whole(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number from {least} on")
        return number

    return whole


def run(main: Callable[[], None]) -> None:
    """Run a benchmark and leave with its status: 0 done, 1 failed, 2 asked for wrongly; no traceback for a mistake."""
    sys.exit(spoken(main))
