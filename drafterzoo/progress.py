"""Progress on stderr for anything that takes more than a moment: a bar with a count, a rate, the time left, a remark.

Knows rich; nothing of what is being done. Where stderr is not a terminal, the title and the remarks become plain lines,
at most one every ten seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

# Text is printed as it stands: what stands in brackets may be part of a path.
console = Console(stderr=True, highlight=False, markup=False)
_QUIET_SECONDS = 10.0


class Bar:
    """What `progress` yields: call it with the amount done since the last call."""

    def __init__(self, bar: Progress | None, task: TaskID | None, unit: str) -> None:
        self._bar, self._task, self._unit = bar, task, unit
        self._spoke = time.monotonic()

    def __call__(self, amount: float) -> None:
        if self._bar is None or self._task is None:
            return
        self._bar.advance(self._task, amount)
        speed = self._bar.tasks[self._task].speed
        self._bar.update(self._task, rate=f"{speed:,.1f} {self._unit}" if speed else "")

    def remark(self, text: str) -> None:
        """Show a short remark beside the bar."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, remark=text)
        elif time.monotonic() - self._spoke >= _QUIET_SECONDS:
            console.print(text, soft_wrap=True)
            self._spoke = time.monotonic()


@contextmanager
def progress(title: str, total: float, unit: str = "tok/s") -> Iterator[Bar]:
    """Show `title` and a bar up to `total`; `unit` is what the rate counts."""
    if not console.is_terminal:
        console.print(title, soft_wrap=True)
        yield Bar(None, None, unit)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[remark]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        yield Bar(bar, bar.add_task(title, total=total, rate="", remark=""), unit)
