"""The results on a model card: cut out of it, and drawn for a terminal, tables as tables.

Knows under which heading a card holds its results and what a Markdown table looks like; nothing of what was measured.
The numbers stand on the card alone: nothing here holds a copy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

SECTION = re.compile(r"^## Results[ \t]*\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_BLANK_LINES = re.compile(r"\n{2,}")
_BETWEEN_CELLS = re.compile(r"(?<!\\)\|")


def results_of(card: Path | None) -> str | None:
    """The section of a card that holds its results, as it is written; None where there is none."""
    try:
        text = card.read_text(encoding="utf-8") if card else ""
    except (OSError, UnicodeDecodeError):
        return None  # a card that cannot be read takes nothing from the checkpoint
    found = SECTION.search(text)
    return (found.group(1).strip() or None) if found else None


def drawn(results: str) -> Iterator[Any]:
    """What rich prints of a section, block by block: tables drawn, prose flowing, commands and lists as they stand."""
    from rich.text import Text

    for block in _BLANK_LINES.split(results):
        lines = block.splitlines()
        if block.startswith("|") and len(lines) > 2:
            yield _table(lines)
        elif block.startswith((" ", "* ", "- ")):
            yield Text(f"{block}\n", no_wrap=True, overflow="ignore")
        else:
            yield Text(" ".join(lines) + ("" if block.startswith("#") else "\n"))


def _table(lines: list[str]) -> Table:
    """Head, rule and rows of a Markdown table. Narrow terminals fold its cells: none is cut."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    head, rule, *rows = map(_cells, lines)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name, mark in zip(head, rule, strict=False):  # anybody's Markdown may be ragged
        table.add_column(Text(name), justify="right" if mark.endswith(":") else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _cells(line: str) -> list[str]:
    """The cells of a row as they are read: a terminal shows no code in code marks."""
    return [cell.strip().replace("\\|", "|").replace("`", "") for cell in _BETWEEN_CELLS.split(line.strip().strip("|"))]
