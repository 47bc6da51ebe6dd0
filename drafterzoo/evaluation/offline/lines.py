"""The results directory of an evaluation: one line per (cell, rollout), written as it goes, gone on with after a stop.

    conditions.json   everything that can change a number, and a key over it
    rollouts.jsonl    one line per (cell, rollout)
    summary.json      computed from the lines

Knows nothing of models or of what the numbers mean. A line is complete once its newline is on disk; what follows the
last newline is cut off when the evaluation goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

import attrs
from filelock import FileLock, Timeout

from drafterzoo.disk import unwritable, writing
from drafterzoo.errors import DataError, UsageError
from drafterzoo.evaluation.results import (
    CONDITIONS,
    FORMAT_VERSION,
    ROUNDS,
    SUMMARY,
    check_beginning,
    listed,
    read_object,
    write_json,
)
from drafterzoo.kinds import check_fields
from drafterzoo.parsing import parse_json

LINES, LOCK = "rollouts.jsonl", ".lock"
OF_NO_ACCOUNT = ("machine", "date")  # of the conditions: nothing here is timed


@attrs.frozen
class Line:
    """One cell's rounds on one rollout.

    cell, drafter, budget: the row of the table. rollout: the row's number in the file, 0 first. prompt names the
    prompt, category its source. tokens: the answer's tokens that rounds gave. rounds: target calls; under `rejection`
    their expectation given the text. smoothed: the second estimator of it (None under `match`). at_least: rounds that
    committed at least 1, 2, ... depth+1 of the answer's tokens. doubtful: tokens whose probability is 0 under the
    settings stated. open: whether the last round may have gone further than the text shows.

    Under `match`, one entry per round, as in bench's rounds.jsonl: accepted, committed, emitted, nodes, forwards, rows.
    """

    cell: str
    drafter: str
    budget: str
    rollout: int
    prompt: str
    category: str
    tokens: int
    rounds: float
    at_least: tuple[float, ...] = attrs.field(converter=listed)
    smoothed: float | None = None
    doubtful: int = 0
    open: bool = False
    accepted: tuple[int, ...] = attrs.field(default=(), converter=listed)
    committed: tuple[int, ...] = attrs.field(default=(), converter=listed)
    emitted: tuple[int, ...] = attrs.field(default=(), converter=listed)
    nodes: tuple[int, ...] = attrs.field(default=(), converter=listed)
    forwards: tuple[int, ...] = attrs.field(default=(), converter=listed)
    rows: tuple[int, ...] = attrs.field(default=(), converter=listed)

    def __attrs_post_init__(self) -> None:
        check_fields(self)


_FIELDS = tuple(field.name for field in attrs.fields(Line))


def key_of(conditions: Mapping[str, Any]) -> str:
    """A hash over everything in the conditions that can change a number."""
    rest = {name: value for name, value in conditions.items() if name not in OF_NO_ACCOUNT}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]


class LinesFile:
    """A results directory being written. A context manager; one process at a time.

    `done` holds the lines of an earlier call of the same conditions, `conditions` those that it recorded.
    """

    def __init__(self, directory: str | os.PathLike[str], conditions: Mapping[str, Any]) -> None:
        """Open the folder, or go on in it.

        Raises UsageError when it holds something else or is in use, DiskError when it cannot be written, DataError for
        a broken line or a summary of another format version.
        """
        self.directory = Path(directory)
        self._what = f"{self.directory}: results"
        self.conditions: dict[str, Any] = json.loads(json.dumps(conditions))  # as a later call will read them
        self.done: list[Line] = []
        place, key = self.directory / CONDITIONS, key_of(self.conditions)
        before = _recorded(place)
        if (self.directory / ROUNDS).exists() or (place.exists() and before.pop("key", None) != key):
            raise UsageError(
                f"{self.directory} holds the results of something else; name another folder with --out, or move that "
                f"one away."
            )
        if (self.directory / SUMMARY).is_file():  # made anew at the end, but never over a newer drafterzoo's
            read_object(self.directory / SUMMARY)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(self.directory / LOCK)
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise UsageError(
                f"{self.directory}: another evaluation is writing there; wait for it, or name another with --out."
            ) from error
        except OSError as error:
            raise unwritable(self._what, error) from error
        try:
            if before:
                self.conditions = before
            else:
                write_json(place, {"format_version": FORMAT_VERSION, "key": key, **self.conditions})
            self.done = _read(self.directory / LINES)
            self._file: IO[str] = open(self.directory / LINES, "a", encoding="utf-8")  # noqa: SIM115  see __exit__
        except OSError as error:
            self._lock.release()
            raise unwritable(self._what, error) from error
        except DataError:
            self._lock.release()
            raise

    def append(self, lines: Sequence[Line]) -> None:
        """Add some lines and hand them to the operating system. Raises DiskError when that fails (a full disk)."""
        text = "".join(
            json.dumps(attrs.asdict(line), ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines
        )
        with writing(self._what):
            self._file.write(text)
            self._file.flush()
        self.done += lines

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, whole or not at all. Raises DiskError."""
        with writing(self._what):
            write_json(self.directory / SUMMARY, {"format_version": FORMAT_VERSION, **summary})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave what there is; before the first line there is nothing, and the folder goes."""
        with suppress(OSError):  # what could not be written has been said when it was tried
            self._file.close()
        self._lock.release()
        if not self.done:
            with suppress(OSError):  # something else lies in it
                for name in (LINES, CONDITIONS, LOCK):
                    (self.directory / name).unlink(missing_ok=True)
                self.directory.rmdir()


def _recorded(path: Path) -> dict[str, Any]:
    """A conditions file's contents without their version; empty where there is none of this version."""
    try:
        value = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    fits = isinstance(value, dict) and value.pop("format_version", None) == FORMAT_VERSION
    return value if fits else {}


def read_lines(directory: str | os.PathLike[str]) -> tuple[dict[str, Any], list[Line], bool]:
    """The conditions and whole lines of a results directory, and whether a half-written last line was passed over.

    Nothing on disk is changed. Raises DataError for a broken file or another format version.
    """
    folder = Path(directory)
    conditions = read_object(folder / CONDITIONS)
    conditions.pop("key", None)
    lines, length = _whole_lines(folder / LINES)
    return conditions, lines, length < (folder / LINES).stat().st_size


def _read(path: Path) -> list[Line]:
    """The whole lines of a file; what an interruption left half-written is cut off the file."""
    if not path.exists():
        return []
    lines, length = _whole_lines(path)
    if length < path.stat().st_size:
        os.truncate(path, length)
    return lines


def _whole_lines(path: Path) -> tuple[list[Line], int]:
    """The lines that end in a newline, and the bytes they take."""
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if not whole:
        check_beginning(data, path)
    return [_line(line, f"{path}:{number}") for number, line in enumerate(whole.split(b"\n")[:-1], start=1)], len(whole)


def _line(line: bytes, where: str) -> Line:
    try:
        row = parse_json(line.decode("utf-8"))
        return Line(**{name: row[name] for name in _FIELDS})
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{where}: not a line of an evaluation ({error}); delete the line, and the same command makes it anew."
        ) from error
