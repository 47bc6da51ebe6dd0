"""What runs and rows are called in a report, so that no two of them share a name.

Knows folders and names; nothing of what is in results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path


def folder_names(folders: Sequence[Path]) -> list[str]:
    """Each folder's last name, with as many of the folders above it as tell it from the others: `a/run`, `b/run`."""
    parts = [folder.resolve().parts for folder in folders]
    lengths = [1] * len(parts)
    while True:
        names = ["/".join(part[-length:]) for part, length in zip(parts, lengths, strict=True)]
        counts = Counter(names)
        alike = [i for i, name in enumerate(names) if counts[name] > 1 and lengths[i] < len(parts[i])]
        if not alike:
            return names
        for i in alike:
            lengths[i] += 1


def row_names(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Each row by its drafter; where several rows have one name, each by its drafter and its run.

    rows: (drafter, run), no two alike.
    """
    qualified = [False] * len(rows)
    while True:
        names = [f"{drafter} ({run})" if q else drafter for (drafter, run), q in zip(rows, qualified, strict=True)]
        counts = Counter(names)
        alike = [i for i, name in enumerate(names) if counts[name] > 1 and not qualified[i]]
        if not alike:
            return names
        for i in alike:
            qualified[i] = True


def by_budget(rows: Iterable[tuple[str, str, int]], runs: Sequence[str]) -> dict[tuple[str, str, int], str]:
    """What every row (drafter, budget, number of its run) is called: a name stands once at each budget.

    runs: their names.
    """
    budgets: dict[str, list[tuple[str, str, int]]] = {}
    for row in dict.fromkeys(rows):
        budgets.setdefault(row[1], []).append(row)
    named: dict[tuple[str, str, int], str] = {}
    for some in budgets.values():
        names = row_names([(drafter, runs[run]) for drafter, _, run in some])
        named.update(zip(some, names, strict=True))
    return named
