"""JSON and TOML that somebody else wrote, parsed so that every way of being wrong is one kind of error.

Python's parsers leave three of them to other errors: brackets nested deeper than the stack, numbers of thousands of
digits, and escapes of half a character, which are read without complaint and can never be written again. Its JSON takes
NaN and Infinity, which JSON does not have, and of two values of one key the second. Knows no more than text.
"""

from __future__ import annotations

import json
import re
import tomllib
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from drafterzoo.errors import DataError

_HALF = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


class _NotANumber(ValueError):
    """NaN or an infinity, which Python's reader would take and JSON has no word for."""


class _Twice(ValueError):
    """A key that one object has twice: whoever wrote the first of both meant it."""


def _no_number(word: str) -> Any:
    raise _NotANumber(word)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _Twice(next(key for key in keys if keys.count(key) > 1))
    return made


def parse_json(text: str) -> Any:
    """What `json.loads` gives. Raises json.JSONDecodeError, and nothing else, with the line and column it knows."""
    try:
        value = json.loads(text, parse_constant=_no_number, object_pairs_hook=_once)
    except json.JSONDecodeError:
        raise
    except RecursionError as error:
        raise json.JSONDecodeError("brackets are nested too deeply", text, 0) from error
    except _NotANumber as error:
        raise json.JSONDecodeError(f"{error} is no number", text, text.find(str(error))) from error
    except _Twice as error:
        key = json.dumps(str(error))
        raise json.JSONDecodeError(f"key {key} is given twice", text, max(text.rfind(key), 0)) from error
    except ValueError as error:
        raise json.JSONDecodeError("a number has too many digits", text, 0) from error
    half = _HALF.search(text)
    if half is not None:  # most such escapes come in pairs and are whole: only writing them tells
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise json.JSONDecodeError("an escape stands for half a character", text, half.start()) from error
    return value


def parse_object(line: bytes, where: str, advice: str, example: str = "") -> dict[str, Any]:
    """One line of a JSONL file as a JSON object; a byte order mark is skipped.

    where: file and line, advice: what to do about a bad one, example: what an object may look like. Raises DataError.
    """
    try:
        row = parse_json(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: byte {error.start + 1} is not UTF-8; {advice}.") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON at column {error.colno} ({error.msg}); {advice}.") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected a JSON object{example}, found {kind(row)}; {advice}.")
    return row


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


def wanted(of: Any) -> str:
    """Words for a type that a value should have had: `a whole number`, `a list of texts`, `one of 'a', 'b'`."""
    parts = [part for part in get_args(of) if part not in (type(None), ...)]
    if get_origin(of) is Literal:
        return f"one of {', '.join(map(repr, parts))}"
    if get_origin(of) in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(wanted, parts)))
    if get_origin(of) in (tuple, list) and len(set(parts)) == 1:
        one = wanted(parts[0]).partition(" ")[2]
        return f"a list of {one}s" if parts[0] in (int, float, str) else "a list"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    named = {**words, list: "a list", tuple: "a list", dict: "keys with their values"}
    return named.get(get_origin(of) or of, "keys with their values")


def reason(error: Exception) -> str:
    """Why a file cannot be read, without its path, which the sentence around it names."""
    return getattr(error, "strerror", None) or str(error)


def toml_key(text: str) -> str:
    """A key as it is written in TOML: bare where that is allowed, else in quotes."""
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else json.dumps(text)


def parse_toml(text: str) -> dict[str, Any]:
    """What `tomllib.loads` gives; a byte order mark is skipped. Raises tomllib.TOMLDecodeError, and nothing else."""
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError as error:
        raise tomllib.TOMLDecodeError("brackets are nested too deeply") from error
    except ValueError as error:
        raise tomllib.TOMLDecodeError("a number has too many digits") from error
