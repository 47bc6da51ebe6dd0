"""From a row to a prompt: rows that hold their turns already, and published ones whose template is filled here.

Knows the fields of rows and what a declaration says about them; nothing of files, the Hub, counts or hashes.
"""

from __future__ import annotations

from string import Template
from typing import Any

import attrs

from drafterzoo.errors import DataError
from drafterzoo.evaluation.suite_declarations import SuiteFile
from drafterzoo.evaluation.suite_rows import Row
from drafterzoo.parsing import kind


@attrs.frozen
class Prompt:
    """One conversation to hold: the user's turns, in order."""

    id: str
    category: str
    turns: tuple[str, ...]


def belongs(row: Row, suite: SuiteFile | None) -> bool:
    """Whether the suite takes this row of its file."""
    wanted = suite.where if suite else {}
    return all(row.values.get(key) in ([value] if isinstance(value, str) else value) for key, value in wanted.items())


def rendered(row: Row, suite: SuiteFile | None, otherwise: str) -> Prompt:
    """The prompt of a row that holds "turns" or "prompt". otherwise: its id, where it has none.

    Raises DataError, naming file and line, for a row that is not of this form.
    """
    keys = ("id", *([suite.id_field] if suite and suite.id_field else []))
    identifier = next((found for key in keys if (found := _identifier(row, key))), otherwise)
    return Prompt(identifier, _category(row, suite), _turns(row))


def published(row: Row, suite: SuiteFile, otherwise: str) -> Prompt:
    """The prompt of a row as its authors publish it, by the suite's field or template.

    Raises DataError, naming file and row, when a field is missing or holds something else than text.
    """
    identifier = (suite.id_field and _identifier(row, suite.id_field)) or otherwise
    turns = _listed(row, suite.field) if suite.field else (_filled(row, suite),)
    return Prompt(identifier, _category(row, suite), turns)


def split_of(row: Row) -> str | None:
    """Which split the row says it is of, if it says so."""
    return _text(row, "split")


def _filled(row: Row, suite: SuiteFile) -> str:
    template = suite.template or ""
    template += "".join(text for key, text in suite.when_present.items() if (_text(row, key) or "").strip())
    try:
        return Template(template).substitute(
            {key: value for key in suite.fields if (value := _text(row, key)) is not None}
        )
    except KeyError as error:
        raise _missing(row, error.args[0]) from error


def _listed(row: Row, field: str) -> tuple[str, ...]:
    """The text of a field, or its list of turns."""
    value = row.values.get(field)
    if value is None:
        raise _missing(row, field)
    return _texts(row, value if isinstance(value, list) else [value], field, isinstance(value, list))


def _missing(row: Row, field: str) -> DataError:
    there_is = ", ".join(row.values) or "none of those the suite reads"
    return DataError(f"{row.where}: the field {field!r} is missing, and there is {there_is}; fetch the file again.")


def _turns(row: Row) -> tuple[str, ...]:
    values, where = row.values, row.where
    if ("turns" in values) == ("prompt" in values):
        found = "both" if "turns" in values else f"neither (the keys are {', '.join(values) or 'none'})"
        raise DataError(f'{where}: expected either "turns" or "prompt", found {found}.')
    key = "turns" if "turns" in values else "prompt"
    turns = values[key] if key == "turns" else [values[key]]
    if not isinstance(turns, list):
        raise DataError(
            f'{where}: "turns" must be a list of texts, found {kind(turns)}; for a single text use "prompt".'
        )
    if not turns:
        raise DataError(f'{where}: "turns" is empty; give at least one text.')
    return _texts(row, turns, key, key == "turns")


def _texts(row: Row, turns: list[Any], key: str, numbered: bool) -> tuple[str, ...]:
    for index, turn in enumerate(turns):
        name = f'"{key}"[{index}]' if numbered else f'"{key}"'
        if not isinstance(turn, str):
            raise DataError(f"{row.where}: {name} must be a text, found {kind(turn)}.")
        if not turn.strip():
            raise DataError(f"{row.where}: {name} is empty; a prompt needs some text.")
    return tuple(turns)


def _identifier(row: Row, key: str) -> str | None:
    value = row.values.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return _text(row, key)


def _category(row: Row, suite: SuiteFile | None) -> str:
    keys = ([suite.category_field] if suite and suite.category_field else []) + ["category", "source"]
    named = next((found for key in keys if (found := _text(row, key))), "all")
    return suite.categories.get(named, named) if suite else named


def _text(row: Row, key: str) -> str | None:
    value = row.values.get(key)
    if value is not None and not isinstance(value, str):
        raise DataError(f'{row.where}: "{key}" must be a text, found {kind(value)}.')
    return value
