"""Rows of JSONL and Parquet files, one at a time, each with the place it came from.

Knows file formats and how a file can be broken; nothing of prompts, suites or where files are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from drafterzoo.errors import DataError, NotInstalledError, UsageError
from drafterzoo.parsing import parse_object, reason

PARQUET = ".parquet"
SUFFIXES = (".jsonl", ".json", PARQUET)
ADVICE = "write one JSON object per line, in UTF-8"
EXAMPLE = ' such as {"turns": ["..."]}'


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

    Raises UsageError for a file that cannot be opened, NotInstalledError for one that an extra reads, DataError, naming
    file and line, for one that is not what its name says.
    """
    return _parquet(path, fields) if path.suffix == PARQUET else _lines(path, fields)


def _lines(path: Path, fields: Sequence[str]) -> Iterator[Row]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    values = parse_object(line, f"{path}:{number}", ADVICE, EXAMPLE)
                    if fields:
                        values = {key: values[key] for key in fields if key in values}
                    yield Row(path, number, values)
    except OSError as error:
        raise UsageError(
            f"suite file {path} cannot be read: {error.strerror}; check the path and its permissions."
        ) from error


def _parquet(path: Path, fields: Sequence[str]) -> Iterator[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise NotInstalledError(
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
        raise UsageError(
            f"suite file {path} cannot be read ({reason(error)}); check the path and its permissions."
        ) from error
