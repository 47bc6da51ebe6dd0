"""Finds what a report is about: results of benchmarks, evaluations and diagnoses, and the grids whose cells failed.

Knows which files make a folder which; nothing of what is in results or of how it is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs

from drafterzoo.errors import DataError, UsageError
from drafterzoo.evaluation.diagnosis.folder import FILE as DIAGNOSIS
from drafterzoo.evaluation.grid_folder import FAILURES, GRID, failures_of
from drafterzoo.evaluation.offline.lines import LINES
from drafterzoo.evaluation.results import CONDITIONS, ROUNDS, SUMMARY, read_object
from drafterzoo.evaluation.summary import PLAIN
from drafterzoo.evaluation.tables import short_budget

MAKERS = "`drafterzoo bench`, `grid`, `evaluate` or `diagnose`"


@attrs.frozen
class Failure:
    """Cells of one drafter that raised for one reason in the last session of their grid.

    drafter: as rows call it. budgets: none for plain decoding.
    """

    grid: str
    drafter: str
    budgets: tuple[str, ...]
    tables: tuple[str, ...]
    reason: str

    @property
    def spent(self) -> str:
        return ", ".join(map(short_budget, self.budgets))

    def __str__(self) -> str:
        cells = f"{self.drafter} at {self.spent}" if self.budgets else self.drafter
        return f"failed: {cells} in {', '.join(self.tables)} of grid {self.grid}: {self.reason}"


@attrs.frozen(eq=False)
class Folders:
    """Results directories, without doubles; whole grids; and remarks on what was passed over on the way."""

    benches: list[Path]
    evaluations: list[Path]
    diagnoses: list[Path]
    grids: list[Path]
    remarks: list[str]


def find(directories: Sequence[Path]) -> Folders:
    """The results directories meant. Raises UsageError when one of those given holds none."""
    if not directories:
        raise UsageError(f"report: no folder was given; name one or several that {MAKERS} wrote.")
    folders: list[Path] = []
    diagnoses: list[Path] = []
    grids: list[Path] = []
    remarks: list[str] = []
    for given in directories:
        if not given.is_dir():
            raise UsageError(f"report: {given} is not a folder; name one or several that {MAKERS} wrote.")
        below = _holding(CONDITIONS, given)
        ours = [folder for folder in below if _is(folder, ROUNDS) or _is(folder, LINES)]
        asked = _holding(DIAGNOSIS, given)
        if not ours and not asked:
            lacks = [f"{folder} has {CONDITIONS} but no {_lines_of(folder)}" for folder in below[:1]]
            other = lacks[0] if lacks else f"no {CONDITIONS} or {DIAGNOSIS} in it or below it"
            raise UsageError(f"report: {given} holds no results ({other}); give folders that {MAKERS} wrote.")
        remarks += [f"{folder} is left out: it has no {_lines_of(folder)}." for folder in below if folder not in ours]
        folders += ours
        diagnoses += asked
        grids += [path.resolve() for path in _holding(GRID, given)]
    found = _once(folders)
    benches = [folder for folder in found if _is(folder, ROUNDS)]
    evaluations = [folder for folder in found if folder not in benches]
    return Folders(benches, evaluations, _once(diagnoses), list(dict.fromkeys(grids)), remarks)


def _once(folders: Sequence[Path]) -> list[Path]:
    """Each folder once, however often and by whatever path it was named."""
    return list({folder.resolve(): folder for folder in folders}.values())


def _lines_of(folder: Path) -> str:
    """The file that a results directory without lines lacks: which, its conditions say."""
    try:
        evaluated = read_object(folder / CONDITIONS).get("kind") == "evaluate"
    except DataError:  # somebody else's, or damaged: nobody can tell
        evaluated = False
    return LINES if evaluated else ROUNDS


def _is(folder: Path, file: str) -> bool:
    return (folder / file).is_file()


def _holding(file: str, folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.rglob(file))


def failures(folders: Folders) -> list[Failure]:
    """The cells that failed in the last session of every grid; where single tables of a grid were given, theirs."""
    tables: dict[Path, set[str]] = {}
    for table in map(Path.resolve, folders.benches):
        if _is(table.parent, GRID):
            tables.setdefault(table.parent, set()).add(table.name)
    found = []
    for grid in dict.fromkeys([*folders.grids, *tables]):
        found += _of_grid(grid, None if grid in folders.grids else tables[grid])
    return found


def _of_grid(grid: Path, tables: set[str] | None) -> list[Failure]:
    """What failed in some tables of a grid, or in all of them; equal reasons of one drafter together."""
    together: dict[tuple[str, str], list[tuple[str, str]]] = {}
    try:
        name = str(read_object(grid / GRID).get("name", grid.name))
        if _is(grid, SUMMARY):
            read_object(grid / SUMMARY)
        for failure in failures_of(grid):
            table, cell, reason = (str(failure[key]) for key in ("table", "cell", "reason"))
            drafter, _, budget = cell.rpartition("@")  # a drafter's own address may hold one too
            if tables is None or table in tables:
                key = ("plain", reason) if cell == PLAIN else (drafter, reason)
                together.setdefault(key, []).append((table, "" if cell == PLAIN else budget))
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{grid / FAILURES}: expected failures, each with table, cell and reason; delete the file, and the next "
            f"run of the grid writes it anew."
        ) from error
    return [
        Failure(
            name,
            drafter,
            tuple(dict.fromkeys(budget for _, budget in places if budget)),
            tuple(dict.fromkeys(table for table, _ in places)),
            reason,
        )
        for (drafter, reason), places in together.items()
    ]
