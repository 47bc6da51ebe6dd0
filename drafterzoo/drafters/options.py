"""What may be set on a drafter: its options, their defaults and what they mean, read from the class alone.

Knows a drafter's config and what the class says of itself; loads no target, builds no drafter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import attrs

if TYPE_CHECKING:
    from drafterzoo.drafters.base import Drafter


@attrs.frozen
class Option:
    """One option, written `name=value` in brackets after the drafter's name.

    given_by: where its value comes from when nobody sets it: the drafter's `default`, or the target (default is None).
    """

    name: str
    default: Any
    given_by: Literal["drafter", "target"]
    meaning: str


def options_of(drafter: type[Drafter]) -> tuple[Option, ...]:
    """The options of a drafter in the order of its config; none where it has no config of attrs."""
    config = getattr(drafter, "Config", None)
    if not (isinstance(config, type) and attrs.has(config)):
        return ()
    return tuple(_option(drafter, field) for field in attrs.fields(config))


def _option(drafter: type[Drafter], field: attrs.Attribute[Any]) -> Option:
    meaning = drafter.meanings.get(field.name, "")
    if field.name in drafter.flags:
        return Option(field.name, drafter.flags[field.name], "drafter", meaning)
    if field.default is attrs.NOTHING:
        return Option(field.name, None, "target", meaning)
    default: Any = field.default
    factory = isinstance(default, attrs.Factory)  # type: ignore[arg-type]  # a class, whatever its stub says
    return Option(field.name, default.factory() if factory else default, "drafter", meaning)
