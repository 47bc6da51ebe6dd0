"""Progress on stderr for anything that takes more than a moment: a bar with a count, a rate and the time left.

Knows rich; nothing of what is being done. Silent when stderr is not a terminal, but for one line at the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

console = Console(stderr=True)


@contextmanager
def progress(title: str, total: float, unit: str = "tok/s") -> Iterator[Callable[[float], None]]:
    """Show `title` and a bar up to `total`; yields `advance(amount)`."""
    if not console.is_terminal:
        console.print(title, highlight=False)
        yield lambda amount: None
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total, rate="")

        def advance(amount: float) -> None:
            bar.advance(task, amount)
            speed = bar.tasks[task].speed
            bar.update(task, rate=f"{speed:,.0f} {unit}" if speed else "")

        yield advance
