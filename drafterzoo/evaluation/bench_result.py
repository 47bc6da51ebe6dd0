"""What a benchmark gives back: its summary, where the raw counters lie, and the tables drawn from them.

Knows summaries; nothing of how they were measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from drafterzoo.evaluation.tables import markdown, rich_tables

if TYPE_CHECKING:
    from rich.console import Group


@attrs.frozen(eq=False)
class BenchResult:
    """What a benchmark found. summary is a plain dict, directory holds the raw counters."""

    summary: dict[str, Any]
    directory: Path

    def table(self) -> Group:
        """The tables as a rich renderable: `rich.print(result.table())`."""
        return rich_tables(self.summary)

    def markdown(self) -> str:
        """The same tables in Markdown."""
        return markdown(self.summary)
