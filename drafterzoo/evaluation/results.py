"""The results directory of a benchmark: raw counters, written as they come and read back with clear errors.

    conditions.json   everything that can change a number
    rounds.jsonl      one line per (cell, prompt, turn, repeat): what each round did, how long it took, the tokens
    summary.json      what was computed from the lines; can be computed again at any time

Knows nothing of models, drafters or of what the numbers mean. A line is complete once its newline is on disk, so an
interrupted run loses at most the prompt it was at.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Self

import attrs

from drafterzoo.disk import unwritable, writing
from drafterzoo.errors import DataError, Note, UsageError
from drafterzoo.kinds import check_fields
from drafterzoo.parsing import kind, parse_json, reason
from drafterzoo.wording import quantity, verb

FORMAT_VERSION = 1
_UNFINISHED = re.compile(r"\.(.+)\.[a-z0-9_]{8}")  # tempfile's names
CONDITIONS, ROUNDS, SUMMARY = "conditions.json", "rounds.jsonl", "summary.json"
AGAIN = "restore the file, or run the command again in another folder"
BEGINNING = b'{"cell"'  # of every line of results


def _entries(values: Sequence[Any]) -> str:
    return quantity(len(values), "entry", "entries")


def _seconds(values: Any) -> Any:
    values = listed(values)
    if not isinstance(values, tuple):
        return values
    return tuple(round(value, 7) if type(value) is float else value for value in values)


def listed(values: Any) -> Any:
    """A tuple of a list; what is none is left for the check, which names it."""
    return tuple(values) if isinstance(values, Sequence) and not isinstance(values, str) else values


@attrs.frozen
class Record:
    """One cell's answer to one turn of one prompt. Lists have one entry per round; a round is one target call.

    cell, drafter, budget: the row of the table; budget is empty for plain decoding.
    prompt, category, turn (0 first), repeat (0 first), group (which prompts were decoded together; -1: alone).
    prompt_tokens: length of the prompt. tokens: the answer; prefill gave the first, the rounds the rest.
    committed: tokens the round committed, the target's own included, cut at EOS. accepted: the draft nodes among them.
    emitted: committed, cut at the length limit too, so that len(tokens) == 1 + sum(emitted).
    nodes: draft nodes verified, root excluded.
    walked: accepted draft nodes before the cut at EOS, which other projects count; None in results older than it.
    forwards, rows: forwards of the drafter's block, and rows in them. draft_s, verify_s, rest_s: seconds of the round.
    prefill_s, decode_s: this prompt's share of the seconds before and in the rounds (all of them when decoded alone).

    What a server answered (evaluation/served) may lack some of this: a column that it does not tell is None; of rounds
    that it does not tell the lists are empty. text: its words. counted: the tokens it counted, where it gives no ids;
    tokens is None then.
    """

    cell: str
    drafter: str
    budget: str
    prompt: str
    category: str
    turn: int
    repeat: int
    group: int
    prompt_tokens: int
    tokens: tuple[int, ...] | None = attrs.field(converter=listed)
    committed: tuple[int, ...] = attrs.field(converter=listed)
    emitted: tuple[int, ...] = attrs.field(converter=listed)
    accepted: tuple[int, ...] = attrs.field(converter=listed)
    nodes: tuple[int, ...] | None = attrs.field(converter=listed)
    forwards: tuple[int, ...] | None = attrs.field(converter=listed)
    rows: tuple[int, ...] | None = attrs.field(converter=listed)
    draft_s: tuple[float, ...] | None = attrs.field(converter=_seconds)
    verify_s: tuple[float, ...] | None = attrs.field(converter=_seconds)
    rest_s: tuple[float, ...] | None = attrs.field(converter=_seconds)
    prefill_s: float
    decode_s: float
    walked: tuple[int, ...] | None = attrs.field(default=None, converter=attrs.converters.optional(listed))
    text: str | None = None
    counted: int | None = None

    def __attrs_post_init__(self) -> None:
        check_fields(self, signed=("group",))
        rounds = len(self.committed)
        for name in ("emitted", "accepted", "nodes", "forwards", "rows", "draft_s", "verify_s", "rest_s", "walked"):
            column = getattr(self, name)
            if column is not None and len(column) != rounds:
                raise ValueError(f"{name} has {_entries(column)}, committed has {rounds}")
        if any(a > c for a, c in zip(self.accepted, self.committed, strict=True)):
            raise ValueError("a round has more accepted than committed tokens")
        if self.tokens is None and self.counted is None:
            raise ValueError("tokens is null, and counted does not say how many there were")
        untold = self.text is not None and not rounds  # a server that does not tell its rounds
        if not untold and self.length != 1 + sum(self.emitted):
            there = f"there {verb(self.length, 'is', 'are')} {quantity(self.length, 'token')}"
            raise ValueError(f"{there}, expected 1 and the {sum(self.emitted)} that rounds emitted")

    @property
    def rounds(self) -> int:
        """Target calls after prefill, as far as they are known."""
        return len(self.committed)

    @property
    def length(self) -> int:
        """Tokens of the answer, the one that prefill gave included."""
        return len(self.tokens) if self.tokens is not None else self.counted or 0

    @property
    def decoded(self) -> int:
        """Tokens of the answer that rounds gave: all but the first, which prefill gave."""
        return max(self.length - 1, 0)

    @property
    def ids(self) -> tuple[int, ...]:
        """The answer's tokens, for whoever decoded it in this process and so has them."""
        assert self.tokens is not None, "only a server leaves them out"
        return self.tokens

    @property
    def key(self) -> tuple[str, int, int]:
        """What must be equal for two cells' answers to be compared: prompt, turn, repeat."""
        return self.prompt, self.turn, self.repeat


_FIELDS = tuple(field.name for field in attrs.fields(Record))
_REQUIRED = tuple(field.name for field in attrs.fields(Record) if field.default is attrs.NOTHING)


@attrs.frozen
class Results:
    """A results directory read back. summary is None when the run was interrupted."""

    directory: Path
    conditions: dict[str, Any]
    records: list[Record]
    summary: dict[str, Any] | None


def default_directory(suite: str, root: Path = Path("runs")) -> Path:
    """`runs/bench-<date>-<suite>-<short id>`, not there yet."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", suite).strip("-.") or "suite"
    return root / f"bench-{datetime.now():%Y-%m-%d}-{name}-{secrets.token_hex(3)}"


def check_free(directory: str | os.PathLike[str]) -> None:
    """Raise UsageError when the folder already holds results: they are never overwritten."""
    rounds = Path(directory) / ROUNDS
    if rounds.exists() and rounds.stat().st_size:  # an empty file is what a run leaves that was killed while warming up
        raise UsageError(f"{directory} already holds results; name another folder, or move that one away.")


class ResultsWriter:
    """Writes a results directory. A context manager; leaving it without `finish` leaves a readable, unfinished run.

    Left before anything was appended, it takes its files away again: there is nothing in them to read.
    """

    def __init__(
        self, directory: str | os.PathLike[str], conditions: Mapping[str, Any], *, go_on: bool = False
    ) -> None:
        """Create the folder, take it for this process, and write the conditions.

        go_on: add to the lines that are there (see `cut_back`). Raises UsageError when the folder already holds results
        (unless it is to go on) or is another process's, DiskError when it cannot be written.
        """
        self.directory = Path(directory)
        self._what = f"{self.directory}: results"
        if not go_on:
            check_free(self.directory)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._file: IO[str] = open(self.directory / ROUNDS, "a", encoding="utf-8")  # noqa: SIM115  see close()
        except OSError as error:
            raise unwritable(self._what, error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # let go when the process ends, however it does
            if not go_on:
                check_free(self.directory)  # whoever held it may have finished just now
            write_json(self.directory / CONDITIONS, {"format_version": FORMAT_VERSION, **conditions})
        except BlockingIOError as error:
            self.close()
            raise UsageError(
                f"{self.directory}: another process is writing its results there; name another folder."
            ) from error
        except OSError as error:
            self.close()
            raise unwritable(self._what, error) from error
        except UsageError:
            self.close()
            raise

    def append(self, record: Record) -> None:
        """Add one line. Raises DiskError when that fails (a full disk)."""
        self.extend([record])

    def extend(self, records: Sequence[Record]) -> None:
        """Add lines that belong together, and wait until they are on disk. Raises DiskError when that fails."""
        lines = [json.dumps(attrs.asdict(r), ensure_ascii=False, separators=(",", ":")) + "\n" for r in records]
        with writing(self._what):
            self._file.write("".join(lines))
            self._file.flush()
            os.fsync(self._file.fileno())

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, whole or not at all. Raises DiskError."""
        with writing(self._what):
            write_json(self.directory / SUMMARY, {"format_version": FORMAT_VERSION, **summary})

    def close(self) -> None:
        with suppress(OSError):  # what could not be written has been said when it was tried
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        with suppress(OSError):  # somebody has taken the folder away, or something else lies in it
            if not (self.directory / ROUNDS).stat().st_size:
                (self.directory / ROUNDS).unlink()
                (self.directory / CONDITIONS).unlink()
                self.directory.rmdir()


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON as `write_whole` does. Raises ValueError for what JSON has no word for, such as nan."""
    write_whole(path, (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def write_whole(path: Path, content: bytes) -> None:
    """Write beside `path`, then move it into place, so that a reader sees the old file or the whole new one."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp makes private files; results are meant to be shared
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(directory: str | os.PathLike[str]) -> Results:
    """Read a results directory, finished or interrupted.

    A last line without its newline was being written when the run stopped: it is left out, with a warning that names
    it. Raises UsageError when the folder holds no results, DataError naming file and line for anything else broken.
    """
    folder = Path(directory)
    if not (folder / CONDITIONS).is_file():
        raise UsageError(
            f"{folder} holds no benchmark results ({CONDITIONS} is missing); give a folder that `bench` wrote."
        )
    summary = folder / SUMMARY
    return Results(
        directory=folder,
        conditions=read_object(folder / CONDITIONS),
        records=list(_read_records(folder / ROUNDS)),
        summary=read_object(summary) if summary.is_file() else None,
    )


def cut_back(directory: Path, lines: int) -> None:
    """Keep the first `lines` lines of rounds.jsonl, for a run that goes on after a write was cut short."""
    with open(directory / ROUNDS, "r+b") as file:
        kept = 0
        while kept < lines:
            kept += bool(file.readline().strip())
        if file.tell() < os.fstat(file.fileno()).st_size:
            file.truncate()
            os.fsync(file.fileno())


def unfinished(name: str) -> str | None:
    """The file that `write_whole` was making when it was killed, by the name of what it left; None for other names."""
    found = _UNFINISHED.fullmatch(name)
    return found and found[1]


def read_object(path: Path) -> dict[str, Any]:
    """One of the JSON objects beside the lines, without its version. Raises DataError, naming the file."""
    try:
        value = parse_json(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not JSON ({error.msg}); {AGAIN}.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({reason(error)}); {AGAIN}.") from error
    if not isinstance(value, dict) or "format_version" not in value:
        found = "an object without one" if isinstance(value, dict) else kind(value)
        raise DataError(f"{path}: expected an object with a format_version, found {found}; {AGAIN}.")
    version = value.pop("format_version")
    if version != FORMAT_VERSION:
        raise DataError(
            f"{path}: format_version is {version!r}, expected {FORMAT_VERSION}; "
            f"read it with the drafterzoo that wrote it."
        )
    return value


def check_beginning(torn: bytes, path: Path) -> None:
    """Raise DataError where a file without a whole line holds what no interrupted write leaves."""
    if torn and not torn.startswith(BEGINNING):
        raise DataError(f"{path}:1: not a line of results, nor the beginning of one; {AGAIN}.")


def _read_records(path: Path) -> Iterator[Record]:
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); the results are incomplete.") from error
    torn = lines.pop()  # what follows the last newline: nothing, unless the run was stopped while writing
    if not any(line.strip() for line in lines):
        check_beginning(torn, path)
    seen: set[tuple[Any, ...]] = set()
    for number, line in enumerate(lines, start=1):
        if line.strip():
            record = _record(line, f"{path}:{number}")
            place = record.cell, *record.key
            if place in seen:
                raise DataError(
                    f"{path}:{number}: {record.cell} has answered turn {record.turn + 1} of prompt {record.prompt!r}, "
                    f"repeat {record.repeat + 1}, before; delete one of the lines, or run the benchmark again."
                )
            seen.add(place)
            yield record
    if torn:
        warnings.warn(f"{path}:{len(lines) + 1}: the last line is half-written and was left out", Note, stacklevel=3)


def _record(line: bytes, where: str) -> Record:
    try:
        row = parse_json(line.decode("utf-8"))
        if not isinstance(row, dict):
            raise DataError(f"{where}: expected an object with cell, prompt and rounds, found {type(row).__name__}.")
        missing = [name for name in _REQUIRED if name not in row]
        if missing:
            raise DataError(
                f"{where}: {', '.join(missing)} missing; the line was not written by this version of drafterzoo."
            )
        return Record(**{name: row[name] for name in _FIELDS if name in row})
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}: not JSON at column {error.colno} ({error.msg}); delete the line or run the benchmark again."
        ) from error
    except (TypeError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{where}: {error}; delete the line or run the benchmark again.") from error
