"""Of what kind a recipe's values must be, checked and said in words: "two numbers", not `tuple[float, float]`.

Knows the annotations of attrs classes; nothing of what a key means, or of which values of its kind make sense.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import attrs

from drafterzoo.errors import UsageError, suggest

_WORDS: dict[Any, tuple[str, str]] = {
    bool: ("true or false", "values, true or false"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a text", "texts"),
}
_COUNTS = {1: "one", 2: "two", 3: "three", 4: "four"}


def check_kinds(cls: type, values: Mapping[str, Any], where: str) -> None:
    """Raise UsageError, which begins with `where`, for a key that `cls` lacks or whose value is of another kind."""
    fields = {f.name: f.type for f in attrs.fields(attrs.resolve_types(cls)) if f.init}
    for key, value in values.items():
        if key not in fields:
            raise UsageError(f"{where}: unknown key {key!r}{suggest(key, fields)}; the keys are {', '.join(fields)}.")
        if not _fits(value, fields[key]):
            raise UsageError(f"{where}: key {key!r} is {value!r}, expected {in_words(fields[key])}.")


def check_required(cls: type, values: Mapping[str, Any], where: str) -> None:
    """Raise UsageError, which begins with `where`, for a key that has no default and is not among `values`."""
    for field in attrs.fields(attrs.resolve_types(cls)):
        if field.init and field.default is attrs.NOTHING and field.name not in values:
            raise UsageError(f"{where}: key {field.name!r} is missing; expected {in_words(field.type)}.")


def in_words(kind: Any) -> str:
    """What a value of this annotation is, with its article."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return _listed([repr(choice) for choice in args])
    if origin in (Union, UnionType):
        return _listed([in_words(arg) for arg in args if arg is not NoneType])
    if origin is tuple and args[0] in _WORDS:
        number = "a list of" if args[-1] is Ellipsis else _COUNTS.get(len(args), str(len(args)))
        return f"{number} {_WORDS[args[0]][1]}"
    if kind is dict or origin is dict or attrs.has(kind):
        return "a table"
    return _WORDS[kind][0] if kind in _WORDS else str(kind)


def _fits(value: Any, kind: Any) -> bool:
    """Whether `value` is of `kind`. Strictly: 1 is not true and "3" is not 3, but a whole number is a number, too."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in args)
    if origin in (Union, UnionType):
        return any(_fits(value, arg) for arg in args)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            return False
        each = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
        return len(each) == len(value) and all(map(_fits, value, each))
    if kind is dict or origin is dict:
        return isinstance(value, dict)
    if kind is float:
        return type(value) in (float, int)
    return type(value) is kind if kind in (*_WORDS, NoneType) else True  # of others, whoever builds `cls` is the judge


def _listed(words: list[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
