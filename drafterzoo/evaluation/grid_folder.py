"""The folder of a grid: what it was made from, who may go on with it, what is there already, and what failed.

    grid.json       recipe, plan, and every session that worked on it
    failures.json   the cells that raised in the last session, each with its reason (only when there are any)
    summary.json    all tables at a glance
    <table>/        one results directory of bench per table

Knows files and the shape of a run; nothing of models or of what the numbers mean.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
from filelock import FileLock, Timeout

from drafterzoo.disk import check_folder, unwritable, writing
from drafterzoo.errors import DataError, UsageError
from drafterzoo.evaluation import results
from drafterzoo.evaluation.conditions import unlike
from drafterzoo.evaluation.grid_plan import Plan
from drafterzoo.evaluation.results import FORMAT_VERSION, ROUNDS, Record, cut_back, read_object, write_json
from drafterzoo.evaluation.runner import Run
from drafterzoo.evaluation.shapes import Failures, GridFile, check_conditions
from drafterzoo.kinds import check_shape
from drafterzoo.wording import quantity

GRID, FAILURES, LOCK = "grid.json", "failures.json", ".lock"


@contextmanager
def claimed(directory: Path, plan: Plan) -> Iterator[None]:
    """Hold the folder, for a whole plan, against other processes. Left empty, it is taken away again.

    Raises UsageError when it holds something else, another grid, or is in another process's hands; DataError when a
    newer drafterzoo wrote it; DiskError when it cannot be written.
    """
    check_place(directory, plan)
    check_folder(directory, _what(directory))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = FileLock(directory / LOCK, timeout=0)
        lock.acquire()
    except Timeout as error:
        raise UsageError(
            f"{directory}: another process is working on this grid; wait for it, or name another folder with --out."
        ) from error
    except OSError as error:
        raise unwritable(_what(directory), error) from error
    try:
        yield
    finally:
        if not has_records(directory):
            for name in (GRID, FAILURES, results.SUMMARY):
                (directory / name).unlink(missing_ok=True)
        lock.release()
        if {path.name for path in directory.iterdir()} <= {LOCK}:
            (directory / LOCK).unlink(missing_ok=True)
            directory.rmdir()


def _what(directory: Path) -> str:
    return f"{directory}: the grid"


def save(directory: Path, name: str, content: Mapping[str, Any]) -> None:
    """Write one of the folder's own files, whole or not at all. Raises DiskError."""
    with writing(_what(directory)):
        write_json(directory / name, {"format_version": FORMAT_VERSION, **content})


def check_place(directory: Path, plan: Plan) -> None:
    """Raise UsageError or DataError unless the folder is free or holds this very grid."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise UsageError(f"{directory} is no folder; name another place with --out.")
    if not (directory / GRID).is_file():
        if {path.name for path in directory.iterdir()} - {LOCK}:
            raise UsageError(
                f"{directory} is not empty and holds no grid ({GRID} is missing); name another folder with --out."
            )
        return
    old = _read(directory / GRID, GridFile)
    if not has_records(directory):
        return
    if (directory / results.SUMMARY).is_file():  # made anew at the end, but never over a newer drafterzoo's
        read_object(directory / results.SUMMARY)
    changed = unlike(old["recipe"], plan.recipe.what_matters())
    if changed:
        key, (was, now) = next(iter(changed.items()))
        more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
        raise UsageError(
            f"{directory} holds the grid {old['name']!r}, made with {key} = {was!r}, now {now!r}{more}; "
            f"go on with its own recipe, or name another folder with --out."
        )


def has_records(directory: Path) -> bool:
    """Whether some table of the grid holds an answer."""
    return any(path.stat().st_size for path in directory.glob(f"*/{ROUNDS}"))


def begin(directory: Path, plan: Plan, commit: str | None) -> None:
    """Write down the plan, and that a session begins; what failed in the last one is forgotten."""
    path = directory / GRID
    sessions = _read(path, GridFile)["sessions"] if path.is_file() and has_records(directory) else []
    sessions.append({"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit})
    tables = [
        {"table": table.name, **table.facts, "cells": [cell.name for cell in table.cells]} for table in plan.tables
    ]
    (directory / FAILURES).unlink(missing_ok=True)
    save(
        directory,
        GRID,
        {
            "name": plan.recipe.name,
            "recipe": plan.recipe.what_matters(),
            "tables": tables,
            "sessions": sessions,
        },
    )


def note_failures(directory: Path, failures: Sequence[Mapping[str, Any]]) -> None:
    """Write down every cell that has failed in this session."""
    save(directory, FAILURES, {"failures": list(failures)})


def failures_of(directory: Path) -> list[dict[str, Any]]:
    """What failed in the last session."""
    path = directory / FAILURES
    return list(_read(path, Failures)["failures"]) if path.is_file() else []


def _read(path: Path, shape: type) -> dict[str, Any]:
    """One of the folder's own files. Raises DataError, naming file and key, where it is not what was written."""
    value = read_object(path)
    check_shape(shape, value, str(path), results.AGAIN)
    return value


def agreed(directory: Path, conditions: Mapping[str, Any], order: Sequence[str]) -> dict[str, Any]:
    """A table's conditions, those of earlier sessions included; order: of the drafters' rows.

    Raises UsageError, naming what changed, when what is there was measured under other conditions. The commit may
    differ, since a checkout moves on for many reasons; so may the drafters' number, since a selection loads some only.
    """
    path = directory / results.CONDITIONS
    if not (directory / ROUNDS).is_file() or not (directory / ROUNDS).stat().st_size:
        return dict(conditions)
    old = read_object(path)
    check_conditions(old, path)
    both = [name for name in old["drafters"] if name in conditions["drafters"]]
    one, other = (_fixed(c, both) for c in (old, conditions))
    changed = unlike(one, other)
    if changed:
        key, (was, now) = next(iter(changed.items()))
        advice = f"give --threads {was}" if key == "machine.threads" else "restore it"
        raise UsageError(
            f"{directory}: cannot go on, since {key} was {was!r} and is {now!r}; "
            f"{advice}, or name another folder with --out."
        )
    drafters = {**conditions["drafters"], **old["drafters"]}
    return {**old, "drafters": {name: drafters[name] for name in order if name in drafters}}


def _fixed(conditions: Mapping[str, Any], drafters: Sequence[str]) -> dict[str, Any]:
    """What must stay equal from session to session."""
    kept = {key: value for key, value in conditions.items() if key not in ("budgets", "date")}
    revised = ("commit", "sources_sha256")  # a grid goes on after the code was mended; its sessions are noted
    kept["code"] = {key: value for key, value in conditions["code"].items() if key not in revised}
    return {**kept, "drafters": {name: conditions["drafters"][name] for name in drafters}}


@attrs.frozen(eq=False)
class Standing:
    """How far a table has come: the groups with something missing, with the records they have; answers there are."""

    missing: dict[int, list[Record]]
    answers: int


def standing(run: Run, directory: Path) -> Standing:
    """What a table's folder holds of a run. A tail that was being written when the process died is cut off.

    Raises DataError for lines that cannot be from this run.
    """
    records = _whole(run, directory) if (directory / ROUNDS).is_file() else []
    starts = _starts(run)
    cells = {cell.name for cell in run.cells}
    by_group: dict[int, list[Record]] = {start: [] for start in run.starts}
    for r in records:
        by_group[starts[r.prompt]].append(r)
    missing = {}
    for start, kept in by_group.items():
        turns = max(run.turns(number) for number in run.members(start))
        wanted = {(c, t, r) for c in cells for t in range(turns) for r in range(run.settings.repeats)}
        if not wanted <= {(r.cell, r.turn, r.repeat) for r in kept}:
            missing[start] = kept
    return Standing(missing, sum(r.cell in cells for r in records))


def _starts(run: Run) -> dict[str, int]:
    """Each prompt's group."""
    return {run.suite.prompts[number].id: start for start in run.starts for number in run.members(start)}


def _whole(run: Run, directory: Path) -> list[Record]:
    """The records of whole batches; those of one that was cut short can only be the last, and are taken away."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a half-written last line is what we are here for
        records = results.read(directory).records
    starts = _starts(run)
    strangers = [r.prompt for r in records if r.prompt not in starts]
    if strangers:
        raise DataError(
            f"{directory / ROUNDS}: prompt {strangers[0]!r} is not in {run.suite.name}; name another folder with --out."
        )

    def call(r: Record) -> tuple[str, int, int, int]:
        return r.cell, starts[r.prompt], r.turn, r.repeat

    counts = Counter(map(call, records))
    partial = [made for made, count in counts.items() if count != len(run.members(made[1], made[2]))]
    tail = counts[partial[0]] if partial else 0
    kept = records[: len(records) - tail]
    if len(partial) > 1 or any(call(r) in partial for r in kept):
        cell, start, turn, repeat = partial[0]
        raise DataError(
            f"{directory / ROUNDS}: {cell} has {quantity(counts[partial[0]], 'line')} for the group of prompt "
            f"{start + 1}, turn "
            f"{turn + 1}, repeat {repeat + 1}, expected {len(run.members(start, turn))}; restore the file, or name "
            f"another folder with --out."
        )
    cut_back(directory, len(kept))  # also cuts a half-written line; without either it changes nothing
    return kept
