"""Rows of JSONL and Parquet files, one at a time, each with the place it came from.

Knows file formats and how a file can be broken; nothing of prompts, suites or where files are kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from drafterzoo.errors import DataError, UsageError
from drafterzoo.parsing import parse_json

PARQUET = ".parquet"
SUFFIXES = (".jsonl", ".json", PARQUET)


@attrs.frozen
class Row:
    """One row, and its place in the file, counted from 1: the line of a JSONL file, the row of a Parquet file."""

    path: Path
    number: int
    values: Mapping[str, Any]

    @property
    def place(self) -> str:
        return f"{'row' if self.path.suffix == PARQUET else 'line'} {self.number}"

    @property
    def where(self) -> str:
        return f"{self.path}, row {self.number}" if self.path.suffix == PARQUET else f"{self.path}:{self.number}"


def read_rows(path: Path, fields: Sequence[str] = ()) -> Iterator[Row]:
    """The rows of a file. fields: read no others, where any are named.

    Raises UsageError for a file that cannot be opened or read without an extra, DataError, naming file and line, for
    one that is not what its name says.
    """
    return _parquet(path, fields) if path.suffix == PARQUET else _lines(path, fields)


def _lines(path: Path, fields: Sequence[str]) -> Iterator[Row]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    values = _object(line, f"{path}:{number}")
                    if fields:
                        values = {key: values[key] for key in fields if key in values}
                    yield Row(path, number, values)
    except OSError as error:
        raise UsageError(
            f"suite file {path} cannot be read: {error.strerror}; check the path and its permissions."
        ) from error


def _object(line: bytes, where: str) -> Mapping[str, Any]:
    try:
        row = parse_json(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: byte {error.start + 1} is not UTF-8; save the file as UTF-8.") from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}: not JSON at column {error.colno} ({error.msg}); write one JSON object per line."
        ) from error
    if not isinstance(row, dict):
        raise DataError(f'{where}: expected a JSON object such as {{"turns": ["..."]}}, found {kind(row)}.')
    return row


def _parquet(path: Path, fields: Sequence[str]) -> Iterator[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(
            f"suite file {path} is Parquet, which pyarrow reads; type: pip install 'drafterzoo[suites]'."
        ) from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            columns = [name for name in file.schema_arrow.names if not fields or name in fields]
            number = 0
            for batch in file.iter_batches(batch_size=1024, columns=columns):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(path, number, values)
    except pyarrow.ArrowInvalid as error:
        said = str(error).splitlines()[0].rstrip(".")
        raise DataError(f"suite file {path} is no Parquet file ({said}); fetch or write it again.") from error
    except OSError as error:
        raise UsageError(f"suite file {path} cannot be read ({error}); check the path and its permissions.") from error


def kind(value: object) -> str:
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
    return kinds.get(type(value), f"a {type(value).__name__}")
