"""Waiting for another process that does the same work: whoever waits says so, once.

Knows lock files and the console; nothing of what is locked. Where nobody should wait, a lock is refused on the spot
instead (`timeout=0` where it is taken).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from drafterzoo.progress import console


@contextmanager
def waited_for(path: Path, why: str) -> Iterator[None]:
    """Hold the lock file `path`. While another process holds it, `why` is said once on stderr, and this one waits."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        console.print(why, soft_wrap=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
