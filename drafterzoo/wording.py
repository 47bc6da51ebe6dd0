"""Numbers in sentences: a count and what is counted, in the singular or the plural. Knows words, nothing else."""

from __future__ import annotations

from collections.abc import Sequence


def quantity(count: int, word: str, plural: str | None = None) -> str:
    """`1 row`, `2,000 rows`; plural: where it is not the word with an s (`1 entry`, `2 entries`)."""
    return f"{count:,} {word if count == 1 else plural or word + 's'}"


def verb(count: int, one: str, several: str) -> str:
    """The verb that goes with a count: `1 of 4 differs`, `2 of 4 differ`."""
    return one if count == 1 else several


def portion(counts: Sequence[int], whole: int, word: str) -> str:
    """`40 prompts` where all are there, else `12 of 40 prompts`; of counts that differ, their span."""
    least, most = min(counts), max(counts)
    if least >= whole:
        return quantity(whole, word)
    return f"{least if least == most else f'{least} to {most}'} of {quantity(whole, word)}"


def shown(counts: Sequence[int], whole: int, word: str) -> str:
    """`12 of 40 prompts are shown`; nothing where all of them are."""
    return "" if min(counts) >= whole else f"{portion(counts, whole, word)} {verb(max(counts), 'is', 'are')} shown"


def listed(some: Sequence[object]) -> str:
    """The first three by name, and how many more there are."""
    return ", ".join(map(str, some[:3])) + (f" and {len(some) - 3} more" if len(some) > 3 else "")


def size(count: int) -> str:
    """`18.9 MB`, `3.2 GB` of so many bytes."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
