"""Of what kind the values of a file must be, checked and said in words: "two numbers", not `tuple[float, float]`.

Knows the annotations of attrs classes; nothing of what a key means, or of which values of its kind make sense.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import attrs

from drafterzoo.errors import DataError, UsageError, suggest

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
        if not fits(value, fields[key]):
            raise UsageError(f"{where}: key {key!r} is {value!r}, expected {in_words(fields[key])}.")


def check_required(cls: type, values: Mapping[str, Any], where: str) -> None:
    """Raise UsageError, which begins with `where`, for a key that has no default and is not among `values`."""
    for field in attrs.fields(attrs.resolve_types(cls)):
        if field.init and field.default is attrs.NOTHING and field.name not in values:
            raise UsageError(f"{where}: key {field.name!r} is missing; expected {in_words(field.type)}.")


def check_shape(cls: type, value: Any, where: str, remedy: str, path: str = "") -> None:
    """Raise DataError unless a JSON object has what `cls` declares, at any depth; what it has beside that is its own.

    where: the file; path: what leads to the object in it. `remedy` ends the sentence.
    """
    if not isinstance(value, dict):
        raise DataError(f"{where}: {path.rstrip('.') or 'the whole'} is {value!r}, expected an object; {remedy}.")
    for field in attrs.fields(attrs.resolve_types(cls)):
        named, kind = f"{path}{field.name}", field.type
        if field.name not in value:
            if field.default is attrs.NOTHING:
                raise DataError(f"{where}: {named} is missing; {remedy}.")
        elif attrs.has(kind):
            check_shape(kind, value[field.name], where, remedy, f"{named}.")
        elif get_origin(kind) is tuple and attrs.has(get_args(kind)[0]) and isinstance(value[field.name], list):
            for index, one in enumerate(value[field.name]):
                check_shape(get_args(kind)[0], one, where, remedy, f"{named}[{index}].")
        elif not fits(value[field.name], kind):
            raise DataError(f"{where}: {named} is {value[field.name]!r}, expected {in_words(kind)}; {remedy}.")


def check_fields(made: Any, signed: Collection[str] = ()) -> None:
    """Raise ValueError for a field of an attrs object that is of another kind than declared, or below zero.

    signed: the fields that may be.
    """
    for field in attrs.fields(attrs.resolve_types(type(made))):
        value = getattr(made, field.name)
        if not fits(value, field.type):
            raise ValueError(f"{field.name} is {value!r}, expected {in_words(field.type)}")
        numbers = [one for one in (value if isinstance(value, tuple) else (value,)) if isinstance(one, int | float)]
        if not all(math.isfinite(number) and (number >= 0 or field.name in signed) for number in numbers):
            raise ValueError(f"{field.name} is {value!r}, expected numbers that can be counted or timed")


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


def fits(value: Any, kind: Any) -> bool:
    """Whether `value` is of `kind`. Strictly: 1 is not true and "3" is not 3, but a whole number is a number, too."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in args)
    if origin in (Union, UnionType):
        return any(fits(value, arg) for arg in args)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            return False
        each = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
        return len(each) == len(value) and all(map(fits, value, each))
    if kind is dict or origin is dict:
        each = list(value.values()) if isinstance(value, dict) and args else []
        return isinstance(value, dict) and all(fits(one, args[1]) for one in each)
    if kind is float:
        return type(value) in (float, int) and _finite(value)
    return type(value) is kind if kind in (*_WORDS, NoneType) else True  # of others, whoever builds `cls` is the judge


def _finite(value: float) -> bool:
    """Whether a number is one that can be computed with: nan, infinities and what only integers can hold are not."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _listed(words: list[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
