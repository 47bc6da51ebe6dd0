"""Prompt suites: which questions a benchmark asks, read from JSONL, checked line by line, and hashed.

Knows nothing of models, chat templates, drafters or results. A line is `{"turns": ["...", ...]}` or
`{"prompt": "..."}`, with `id`, `category` (or `source`) and `split` where the file has them; other keys are left alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from drafterzoo.errors import DataError, UsageError, suggest
from drafterzoo.parsing import parse_json
from drafterzoo.registry import SUITES

DATA_VARIABLE = "DRAFTERZOO_DATA"
DATA_FOLDERS = (Path("data"), Path("../shared/data"))


@attrs.frozen
class Prompt:
    """One conversation to hold: the user's turns, in order."""

    id: str
    category: str
    turns: tuple[str, ...]


@attrs.frozen
class Suite:
    """The prompts of one run.

    sha256 is taken over the turns in order, so it is equal for equal questions, whatever the file is called, and
    differs when a limit or a category chose other prompts. source says where they came from.
    """

    name: str
    prompts: tuple[Prompt, ...]
    sha256: str
    source: str

    @property
    def categories(self) -> dict[str, int]:
        """Number of prompts per category, in order of first appearance."""
        counts: dict[str, int] = {}
        for prompt in self.prompts:
            counts[prompt.category] = counts.get(prompt.category, 0) + 1
        return counts

    def __len__(self) -> int:
        return len(self.prompts)

    def __iter__(self) -> Iterator[Prompt]:
        return iter(self.prompts)


@attrs.frozen
class SuiteFile:
    """A suite known by name: what other packages register under `drafterzoo.suites`.

    A relative path is looked for in the data folder (see `load_suite`); an absolute one is taken as it is.
    """

    path: Path = attrs.field(converter=Path)
    description: str


STARTER = SuiteFile(
    Path(__file__).parent / "data" / "starter.jsonl", "40 prompts of seven kinds, written for this project"
)
GSM8K = SuiteFile("gsm8k.jsonl", "grade-school maths, 1319 test questions (MIT); needs a data folder")
HUMANEVAL = SuiteFile("humaneval.jsonl", "164 Python functions to complete (MIT); needs a data folder")
MBPP = SuiteFile("mbpp.jsonl", "257 small Python tasks, sanitized (CC-BY-4.0); needs a data folder")
MT_BENCH = SuiteFile("mt-bench.jsonl", "80 conversations of two turns (Apache-2.0); needs a data folder")


def load_suite(
    name_or_path: str | Path,
    *,
    limit: int | None = None,
    seed: int = 0,
    category: str | Sequence[str] | None = None,
    split: str | None = None,
    data_dir: str | Path | None = None,
) -> Suite:
    """Load a suite by name (`starter`, `gsm8k`) or a JSONL file by path.

    limit: ask this many prompts, drawn by `seed` evenly over the categories and kept in file order.
    category: only these. split: only rows of this split; without it, rows marked `train` are left out, so that a
    training file can be used for its held-out rows. data_dir: where files of named suites lie; without it the folder in
    $DRAFTERZOO_DATA, else `data` or `../shared/data` beside the working directory.

    Raises UsageError for an unknown suite, category or split, a missing file or a bad limit; DataError, naming file and
    line, for a file that is not a suite.
    """
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise UsageError(f"suite: limit is {limit!r}, expected at least 1; leave it out to ask every prompt.")
    name, path = _locate(name_or_path, data_dir)
    rows = [row for row in _read(path) if (row[1] == split if split else row[1] != "train")]
    if not rows:
        wanted = (
            f"split {split!r}"
            if split
            else "a split other than 'train' (to measure on those all the same, give split='train')"
        )
        raise UsageError(f"suite {path}: no prompt has {wanted}.")
    prompts = _of_category([prompt for prompt, _ in rows], category, path)
    if limit is not None:
        prompts = _draw(prompts, limit, seed)
    source = f"built-in {name}" if path == STARTER.path else str(path)
    return Suite(name=name, prompts=tuple(prompts), sha256=_digest(prompts), source=source)


def _locate(name_or_path: str | Path, data_dir: str | Path | None) -> tuple[str, Path]:
    """The suite's name and its file."""
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith((".jsonl", ".json")) or os.sep in text:
        path = Path(os.path.expanduser(name_or_path))
        if not path.is_file():
            raise UsageError(
                f"suite file {path} does not exist or is no file; give a JSONL file or one of {', '.join(SUITES)}."
            )
        return path.stem, path
    folders = _folders(data_dir)
    if text not in SUITES:
        for folder in folders:  # any JSONL file of the data folder has a name as well: its own
            if (folder / f"{text}.jsonl").is_file():
                return text, folder / f"{text}.jsonl"
        SUITES.get(text)
    relative = SUITES.get(text).path
    candidates = [relative] if relative.is_absolute() else [folder / relative for folder in folders]
    for path in candidates:
        if path.is_file():
            return text, path
    looked = " and ".join(str(path.parent) for path in candidates)
    raise UsageError(
        f"suite {text!r} needs the file {relative.name}, which is not in {looked}; "
        f"name its folder with --data-dir (data_dir=) or ${DATA_VARIABLE}."
    )


def _folders(data_dir: str | Path | None) -> Sequence[Path]:
    if data_dir is not None:
        folder = Path(os.path.expanduser(data_dir))
        if not folder.is_dir():
            raise UsageError(
                f"data folder {folder} does not exist; give the folder that holds gsm8k.jsonl and the like."
            )
        return (folder,)
    named = os.environ.get(DATA_VARIABLE)
    return (Path(os.path.expanduser(named)),) if named else DATA_FOLDERS


def _read(path: Path) -> list[tuple[Prompt, str | None]]:
    """The prompts of a file, each with its split."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError(
            f"suite file {path} cannot be read: {error.strerror}; check the path and its permissions."
        ) from error
    rows: list[tuple[Prompt, str | None]] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        row = _row(line, where)
        prompt = Prompt(_identifier(row, where, f"{path.stem}-{number}"), _category(row, where), _turns(row, where))
        if prompt.id in seen:
            raise DataError(f"{where}: id {prompt.id!r} is already that of line {seen[prompt.id]}; ids must differ.")
        seen[prompt.id] = number
        rows.append((prompt, _text(row, "split", where)))
    if not rows:
        raise DataError(f'suite file {path} is empty; write one JSON object per line, such as {{"prompt": "..."}}.')
    return rows


def _row(line: bytes, where: str) -> Mapping[str, Any]:
    try:
        row = parse_json(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: byte {error.start + 1} is not UTF-8; save the file as UTF-8.") from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}: not JSON at column {error.colno} ({error.msg}); write one JSON object per line."
        ) from error
    if not isinstance(row, dict):
        raise DataError(f'{where}: expected a JSON object such as {{"turns": ["..."]}}, found {_kind(row)}.')
    return row


def _turns(row: Mapping[str, Any], where: str) -> tuple[str, ...]:
    if ("turns" in row) == ("prompt" in row):
        found = "both" if "turns" in row else f"neither (the keys are {', '.join(row) or 'none'})"
        raise DataError(f'{where}: expected either "turns" or "prompt", found {found}.')
    key = "turns" if "turns" in row else "prompt"
    turns = row[key] if key == "turns" else [row[key]]
    if not isinstance(turns, list):
        raise DataError(
            f'{where}: "turns" must be a list of texts, found {_kind(turns)}; for a single text use "prompt".'
        )
    if not turns:
        raise DataError(f'{where}: "turns" is empty; give at least one text.')
    for index, turn in enumerate(turns):
        name = f'"{key}"' if key == "prompt" else f'"turns"[{index}]'
        if not isinstance(turn, str):
            raise DataError(f"{where}: {name} must be a text, found {_kind(turn)}.")
        if not turn.strip():
            raise DataError(f"{where}: {name} is empty; a prompt needs some text.")
    return tuple(turns)


def _identifier(row: Mapping[str, Any], where: str, otherwise: str) -> str:
    value = row.get("id")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return _text(row, "id", where) or otherwise


def _category(row: Mapping[str, Any], where: str) -> str:
    return _text(row, "category", where) or _text(row, "source", where) or "all"


def _text(row: Mapping[str, Any], key: str, where: str) -> str | None:
    value = row.get(key)
    if value is not None and not isinstance(value, str):
        raise DataError(f'{where}: "{key}" must be a text, found {_kind(value)}.')
    return value


def _kind(value: object) -> str:
    """JSON's word for a value, with its article."""
    if value is None:
        return "null"
    kinds = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "a text",
        list: "a list",
        dict: "an object",
    }
    return kinds[type(value)]


def _of_category(prompts: list[Prompt], category: str | Sequence[str] | None, path: Path) -> list[Prompt]:
    if category is None:
        return prompts
    wanted = [category] if isinstance(category, str) else list(category)
    known = sorted({prompt.category for prompt in prompts})
    for name in wanted:
        if name not in known:
            raise UsageError(
                f"suite {path}: unknown category {name!r}{suggest(name, known)}; there is {', '.join(known)}."
            )
    return [prompt for prompt in prompts if prompt.category in wanted]


def _draw(prompts: list[Prompt], limit: int, seed: int) -> list[Prompt]:
    """`limit` prompts, taken in turn from each category's shuffled ones; a smaller limit draws a subset of a larger."""
    order = random.Random(seed)
    piles: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        piles.setdefault(prompt.category, []).append(index)
    for pile in piles.values():
        order.shuffle(pile)
    ranked = sorted(
        (place, number, index) for number, pile in enumerate(piles.values()) for place, index in enumerate(pile)
    )
    return [prompts[index] for index in sorted(index for _, _, index in ranked[:limit])]


def _digest(prompts: Iterable[Prompt]) -> str:
    """SHA-256 over the turns as canonical JSON."""
    text = json.dumps([prompt.turns for prompt in prompts], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
