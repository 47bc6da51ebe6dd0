"""Which cells of a grid are meant: the small grammar of `--where`, of a recipe's `skip` and of its overrides.

    where     = condition ("," condition)*        all must hold
    condition = key "=" value ("|" value)*        one of the values must be the cell's
    key       = drafter | suite | temperature | batch_size | seed
              | budget | nodes | depth | grow | offer | reconsider | p_min | advance

`budget=8`, `budget=chain:4` and `budget=chain:6,p_min=0.1` name a budget as it is typed elsewhere; `nodes=24` all
budgets of 24 nodes, whatever their shape (so `budget=nodes=24,depth=8,grow=6,offer=6` works as it reads). Values of
drafter and suite may be shell patterns (`eagle*`). A comma inside brackets or quotes belongs to the value. Knows keys
and values; nothing of plans or files.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from drafterzoo.budget import Budget
from drafterzoo.errors import UsageError, suggest

TABLE_KEYS = ("suite", "temperature", "batch_size", "seed")
SHAPE = tuple(field.name for field in attrs.fields(Budget))
KEYS = ("drafter", *TABLE_KEYS, "budget", *SHAPE)
_PART = re.compile(r"(?:'[^']*'|\"[^\"]*\"|\([^)]*\)|[^,])+")

Facts = Mapping[str, Any]  # a value for every key but those of SHAPE, which are read from the budget


@attrs.frozen
class Where:
    """A selection: key and wanted values of every condition, and the text they were read from."""

    text: str
    conditions: tuple[tuple[str, tuple[str, ...]], ...]

    @classmethod
    def parse(cls, text: str, said: str = "--where", keys: Sequence[str] = KEYS) -> Where:
        """Read a selection; `said` names its place in errors. Raises UsageError for an unknown key or a bare word."""
        conditions: list[tuple[str, tuple[str, ...]]] = []
        for part in _PART.findall(text):
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if key == "budget" and value.partition("=")[0].strip() in SHAPE:
                key, equals, value = (piece.strip() for piece in value.partition("="))
            if not equals or not value:
                raise UsageError(f"{said}: cannot read {part.strip()!r}; write key=value, such as drafter=eagle3.1.")
            if key not in keys:
                raise UsageError(f"{said}: unknown key {key!r}{suggest(key, keys)}; the keys are {', '.join(keys)}.")
            if key == "p_min" and conditions and conditions[-1][0] == "budget":  # the end of the last budget named
                _, (*others, last) = conditions.pop()
                conditions.append(("budget", (*others, *_ended(last, _options(value)))))
            else:
                conditions.append((key, _options(value)))
        if not conditions:
            raise UsageError(f"{said}: it is empty; write key=value, such as drafter=eagle3.1,temperature=0.")
        return cls(text, tuple(conditions))

    def takes(self, facts: Facts) -> bool:
        """Whether a cell with these facts is meant."""
        return all(any(_is(_fact(facts, key), key, wanted) for wanted in values) for key, values in self.conditions)

    def check(self, cells: Iterable[Facts], said: str = "--where") -> None:
        """Raise UsageError, naming what there is, when some value or the whole selection meets none of the cells."""
        known = list(cells)
        for key, values in self.conditions:
            there = [_fact(facts, key) for facts in known]
            for wanted in values:
                if not any(_is(fact, key, wanted) for fact in there):
                    names = list(dict.fromkeys(_show(fact, key) for fact in there))
                    raise UsageError(
                        f"{said}: no cell has {key}={wanted}{suggest(wanted, names)}; there is {', '.join(names)}."
                    )
        if not any(self.takes(facts) for facts in known):
            raise UsageError(
                f"{said}: {self.text!r} selects no cell, though every value in it occurs; leave a condition out."
            )


def _options(value: str) -> tuple[str, ...]:
    return tuple(option.strip() for option in value.split("|"))


def _ended(budget: str, options: Sequence[str]) -> list[str]:
    """A budget with each of some values of p_min behind it. What is no such value is a budget of its own."""
    ends = [not i or option.startswith(("0", ".")) for i, option in enumerate(options)]  # no budget begins like that
    return [f"{budget},p_min={option}" if end else option for end, option in zip(ends, options, strict=True)]


def _fact(facts: Facts, key: str) -> Any:
    return getattr(facts["budget"], key) if key in SHAPE else facts[key]


def _show(fact: Any, key: str) -> str:
    """A fact as it may be typed, and as tables print it."""
    if key == "budget":
        return Budget.parse(str(fact)).brief
    return f"{fact:g}" if isinstance(fact, float) else str(fact)


def _is(fact: Any, key: str, wanted: str) -> bool:
    """Whether a cell's fact is what was typed."""
    if key in ("drafter", "suite"):
        return fact == wanted or fnmatch.fnmatchcase(fact, wanted)
    try:
        return fact == (Budget.parse(wanted) if key == "budget" else float(wanted))
    except ValueError:  # a UsageError of Budget.parse is one, too
        return False
