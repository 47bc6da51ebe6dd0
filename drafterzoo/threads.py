"""CPU threads: how many may be asked for, and computing with that many for a while.

Knows torch's thread pool; nothing of what is computed. Shared by recipes and the command line.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

MOST_THREADS = 4096  # more than any machine has; torch itself fails far beyond


@contextmanager
def with_threads(count: int) -> Iterator[None]:
    """Compute with that many CPU threads, and afterwards with as many as before; 0 leaves them as they are."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
