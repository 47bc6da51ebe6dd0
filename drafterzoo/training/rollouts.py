"""Rollouts on disk: the target's own answers, one JSON object a line.

Knows the file and its fields; nothing of drafters or training. Fields: `prompt_ids` and `response_ids` (token ids of
the target, chat template applied), optionally `split` ("val" rows are held out), `source`, `prompt`, how the answer was
drawn (`temperature`, `top_p`, `top_k`, `seed`, `request`), and `ahead_ids`, what follows where a length limit cut it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import attrs

from drafterzoo.errors import DataError
from drafterzoo.parsing import parse_object

OR_GENERATE = ", or let a table [generate] in the recipe say how to make it"  # said to whoever trains
ADVICE = "mend or drop the line"  # of a file of rollouts


@attrs.frozen
class Rollout:
    """One answer of the target.

    top_p, top_k, seed, request: None where the file does not say. seed and request name the noise it was drawn with
    (the request is the key of `generate`). ahead_ids: the target's next tokens after an answer that the limit cut.
    """

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    split: str
    source: str
    temperature: float
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    request: int | None = None
    ahead_ids: tuple[int, ...] = ()

    @property
    def ids(self) -> tuple[int, ...]:
        return self.prompt_ids + self.response_ids


@attrs.frozen
class Rollouts:
    """A file of rollouts: its rows in order, and the sha256 of its bytes."""

    path: Path
    rows: tuple[Rollout, ...]
    sha256: str

    def split(self, name: str) -> tuple[int, ...]:
        """Indices of the rows of one split, in file order."""
        return tuple(i for i, row in enumerate(self.rows) if row.split == name)


def expand_path(text: str) -> Path:
    """Replace `$NAME` and `~`, unless there is such a file as it stands. Raises DataError naming a variable not set."""
    if os.path.exists(text):
        return Path(text)
    expanded = os.path.expanduser(os.path.expandvars(text))
    if "$" in expanded:
        missing = expanded.partition("$")[2].strip("{").split("}")[0].split("/")[0]
        raise DataError(f"{text}: the environment variable {missing} is not set; set it or write the path out.")
    return Path(expanded)


def read_rollouts(path: str | Path, vocab_size: int, or_else: str = "") -> Rollouts:
    """Read a JSONL file of rollouts. Raises DataError naming file and line of the first row that cannot be used.

    or_else: what else a user may do who has no such file.
    """
    path = expand_path(str(path))
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); give a JSONL file of rollouts, or make one with "
            f"`drafterzoo rollout`{or_else}."
        ) from error
    rows = [
        _row(parse_object(line, f"{path}:{number}", ADVICE), f"{path}:{number}", vocab_size)
        for number, line in enumerate(data.split(b"\n"), 1)  # not splitlines(): texts may hold U+2028
        if line.strip()
    ]
    if not rows:
        raise DataError(f"{path}: holds no rollouts; make some with `drafterzoo rollout`.")
    return Rollouts(path, tuple(rows), hashlib.sha256(data).hexdigest())


def thinned(rollouts: Rollouts, documents: int | None) -> Rollouts:
    """So many of the rows that are trained on, evenly over the file, and every other row; None keeps them all.

    The sha256 is that of the choice: what is read of these rows is not what is read of the whole file.
    """
    train = rollouts.split("train")
    if documents is None or documents >= len(train):
        return rollouts
    kept = {train[(2 * i + 1) * len(train) // (2 * documents)] for i in range(documents)}
    left = set(train) - kept
    rows = tuple(row for i, row in enumerate(rollouts.rows) if i not in left)
    return attrs.evolve(rollouts, rows=rows, sha256=_of_the_choice(rollouts.sha256, documents))


def may_be_of(sha256: str | None, whole: str, documents: int | None) -> bool:
    """Whether this sha256 is that of a file of rollouts, or of so many `documents` chosen from it."""
    return sha256 == whole or (documents is not None and sha256 == _of_the_choice(whole, documents))


def _of_the_choice(whole: str, documents: int) -> str:
    return hashlib.sha256(f"{whole} {documents}".encode()).hexdigest()


def _row(row: dict[str, Any], where: str, vocab_size: int) -> Rollout:
    return Rollout(
        prompt_ids=_ids(row, "prompt_ids", where, vocab_size),
        response_ids=_ids(row, "response_ids", where, vocab_size),
        split=str(row.get("split", "train")),
        source=str(row.get("source", "")),
        temperature=float(_number(row, "temperature", where, (int, float), 0.0)),
        top_p=_number(row, "top_p", where, (int, float), None),
        top_k=_number(row, "top_k", where, (int,), None),
        seed=_number(row, "seed", where, (int,), None),
        request=_number(row, "request", where, (int,), None),
        ahead_ids=_ids(row, "ahead_ids", where, vocab_size) if row.get("ahead_ids") else (),
    )


def _ids(row: dict[str, Any], key: str, where: str, vocab_size: int) -> tuple[int, ...]:
    value = row.get(key)
    if not isinstance(value, list) or not value or not all(type(i) is int for i in value):
        raise DataError(f"{where}: {key!r} must be a non-empty list of token ids; {ADVICE}.")
    if min(value) < 0 or max(value) >= vocab_size:
        raise DataError(
            f"{where}: {key!r} holds an id outside the target's vocabulary of {vocab_size}; "
            f"was it made for another target?"
        )
    return tuple(value)


def _number(row: dict[str, Any], key: str, where: str, kinds: tuple[type, ...], missing: Any) -> Any:
    value = row.get(key, missing)
    known = isinstance(value, kinds) and not isinstance(value, bool)
    if value is not missing and not (known and -1e300 < value < 1e300):
        kind = "a number" if float in kinds else "a whole number"
        raise DataError(f"{where}: {key!r} is {value!r}, expected {kind}.")
    return value
