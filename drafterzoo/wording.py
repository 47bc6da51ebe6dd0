"""Numbers in sentences: a count and what is counted, in the singular or the plural. Knows words, nothing else."""

from __future__ import annotations


def quantity(count: int, word: str, plural: str | None = None) -> str:
    """`1 row`, `2 rows`; plural: where it is not the word with an s (`1 entry`, `2 entries`)."""
    return f"{count} {word if count == 1 else plural or word + 's'}"


def verb(count: int, one: str, several: str) -> str:
    """The verb that goes with a count: `1 of 4 differs`, `2 of 4 differ`."""
    return one if count == 1 else several
