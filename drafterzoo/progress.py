"""Progress on stderr for anything that takes more than a moment: how much is done, how fast, the time left, a remark.

Knows rich; nothing of what is being done. On a terminal it is a bar with a remark below it. Where stderr is a file or
a pipe, it is plain lines, one every thirty seconds, also while a single unit takes longer than that, and one that says
how it ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

# Text is printed as it stands: what stands in brackets may be part of a path.
console = Console(stderr=True, highlight=False, markup=False)
QUIET_SECONDS = 30.0  # between two lines
SLOW_SECONDS = 30.0  # after which a unit at work is worth a word
POLL_SECONDS = 1.0


class Bar:
    """What `progress` yields: call it with the amount done since the last call."""

    def __init__(self, total: float, unit: str, done: float) -> None:
        self.total, self.unit, self.done = total, unit, done
        self._before, self._began, self._remark = done, time.monotonic(), ""
        self._advanced = self._began

    def __call__(self, amount: float) -> None:
        self.done += amount
        self._advanced = time.monotonic()

    def remark(self, text: str) -> None:
        """Say in a few words what is at work."""
        self._remark = text

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def rate(self) -> float:
        """Units a second since the beginning."""
        return (self.done - self._before) / self.seconds if self.seconds else 0.0

    @property
    def speed(self) -> str:
        """The rate in words; empty before there is one."""
        rate = self.rate
        return f"{rate:,.0f} {self.unit}/s" if rate >= 10 else f"{rate:.2g} {self.unit}/s" if rate else ""

    @property
    def count(self) -> str:
        unit = self.unit.removesuffix("s") if self.total == 1 else self.unit
        return f"{self.done:,.0f} of {self.total:,.0f} {unit}"

    def said(self) -> str:
        """All of it in one line: `12 of 40 answers, 0.5 answers/s, 56 s left; eagle3.1 chain:4 on starter`."""
        left = f", {self.speed}, {duration((self.total - self.done) / self.rate)} left" if self.rate else ""
        since = time.monotonic() - self._advanced
        slow = f", {duration(since)} into the next" if since >= SLOW_SECONDS else ""
        return f"{self.count}{slow}{left}" + (f"; {self._remark}" if self._remark else "")


class _Lines(Bar):
    """Plain lines, seldom. A thread of its own speaks while whoever reports has nothing to say."""

    def __init__(self, total: float, unit: str, done: float) -> None:
        super().__init__(total, unit, done)
        self._spoke = time.monotonic()
        self._lock, self._over = threading.Lock(), threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def __call__(self, amount: float) -> None:
        super().__call__(amount)
        self._speak()

    def remark(self, text: str) -> None:
        super().remark(text)
        self._speak()

    def close(self) -> None:
        """No line comes after this."""
        self._over.set()
        self._watcher.join()

    def _watch(self) -> None:
        with suppress(OSError, ValueError):  # stderr has gone: whoever reports will find out and say so
            while not self._over.wait(max(QUIET_SECONDS - (time.monotonic() - self._spoke), POLL_SECONDS)):
                self._speak()

    def _speak(self) -> None:
        with self._lock:
            if time.monotonic() - self._spoke >= QUIET_SECONDS:
                console.print(self.said(), soft_wrap=True)
                self._spoke = time.monotonic()


class _Drawn(Bar):
    """A bar on a terminal."""

    def __init__(self, total: float, unit: str, done: float, shown: Progress, task: TaskID) -> None:
        super().__init__(total, unit, done)
        self._shown, self._task = shown, task

    def __call__(self, amount: float) -> None:
        super().__call__(amount)
        self._shown.update(self._task, completed=self.done, rate=self.speed)

    def remark(self, text: str) -> None:
        super().remark(text)
        self._shown.update(self._task, remark=text)


class _Progress(Progress):
    """A bar whose remark stands in a line of its own, so that both fit 80 columns."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        for task in self.tasks:
            if remark := task.fields["remark"]:
                yield Text(remark, style="dim", no_wrap=True, overflow="ellipsis")


@contextmanager
def progress(title: str, total: float, unit: str = "tokens", done: float = 0) -> Iterator[Bar]:
    """Show `title`, and how much of `total` is done; `unit` is what is counted, `done` what there is already."""
    console.print(title, soft_wrap=True)
    if not console.is_terminal:
        lines = _Lines(total, unit, done)
        try:
            yield lines
        finally:
            lines.close()
            console.print(f"{lines.count} in {duration(lines.seconds)}", soft_wrap=True)
        return
    columns = (
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with _Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("", total=total, rate="", remark="")
        shown.update(task, completed=done)
        yield _Drawn(total, unit, done, shown, task)


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:,.1f} h"
