"""Prompts to train on, made from the templates in `data/prompts.toml`: many, varied, the same on every machine.

Knows templates, their slots, and where else prompts can be read from; nothing of targets or answers. None is taken from
an evaluation suite.
"""

from __future__ import annotations

import itertools
import math
import random
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from drafterzoo.errors import UsageError, suggest
from drafterzoo.evaluation.suites import load_suite
from drafterzoo.registry import SUITES

TEMPLATES = Path(__file__).parent / "data" / "prompts.toml"
# Of one template at most this many fillings are used: beyond, little but names and numbers would change.
LARGEST_SHARE = 300

_BUILTIN = "builtin"
_SLOT = re.compile(r"\{(?P<name>\w+)(?::(?P<low>\d+)-(?P<high>\d+)(?:/(?P<by>\d+))?)?\}")
_T = TypeVar("_T")


def training_prompts(count: int, seed: int = 0, families: Sequence[str] = ()) -> list[tuple[str, str]]:
    """`count` distinct (family, prompt) pairs, the families in turn, so that a smaller count is the beginning of it.

    families: only these; none named means all. A family whose templates are used up leaves its turns to the others.
    Raises UsageError for a family that does not exist, and when fewer prompts exist than asked for.
    """
    if count < 1:
        raise UsageError(f"training prompts: {count} are asked for, expected at least 1, as in {_BUILTIN}:2000.")
    made = list(itertools.islice(_every(seed, families), count))
    if len(made) < count:
        those = ":".join(["", ",".join(families)] if families else [""])
        raise UsageError(
            f"training prompts: {count} are asked for and the templates give {len(made)}; ask for "
            f"{_BUILTIN}:{len(made)}{those} at most, or give a JSONL file of your own."
        )
    return made


def read_prompts(source: str, *, seed: int = 0, limit: int | None = None) -> list[tuple[str, str]]:
    """(family, prompt) pairs from `builtin:<count>`, a suite's name or a JSONL file; of conversations the first turn.

    Raises UsageError and DataError as `training_prompts` and `load_suite` do.
    """
    builtin = builtin_source(source)
    if builtin is None:
        return [(prompt.category, prompt.turns[0]) for prompt in load_suite(source, limit=limit)]
    if limit is not None and limit < 1:
        raise UsageError(f"training prompts: limit is {limit}, expected at least 1; leave it out to answer all.")
    count, families = builtin
    return training_prompts(count, seed, families)[:limit]


def evaluation_suite(source: str) -> bool:
    """Whether `source` is a registered suite, by name or as a file of one's name: its prompts are measured with."""
    if builtin_source(source) is not None:
        return False
    path = Path(source)
    return path.stem in SUITES or any(path.name == file.name for name in SUITES for file in SUITES.get(name).names)


def builtin_source(source: str) -> tuple[int, tuple[str, ...]] | None:
    """What `builtin:<count>` or `builtin:<count>:<family>,<family>` means; None for a suite or a file.

    Raises UsageError for what begins like one and is none.
    """
    name, _, rest = source.partition(":")
    if name != _BUILTIN:
        return None
    count, _, families = rest.partition(":")
    if not (count.isascii() and count.isdigit() and len(count) < 10 and int(count)):
        raise UsageError(
            f"prompts {source!r}: expected {_BUILTIN}:<how many>, for example '{_BUILTIN}:2000', or families of them, "
            f"as in '{_BUILTIN}:500:translate,code'."
        )
    named = tuple(families.split(",")) if families or rest.endswith(":") else ()
    known = _families()
    for family in named:
        if family not in known:
            raise UsageError(
                f"prompts {source!r}: there is no family {family!r}{suggest(family, known)}; "
                f"the families are {', '.join(known)}."
            )
    return int(count), named


@cache
def _templates() -> dict[str, Any]:
    return tomllib.loads(TEMPLATES.read_text(encoding="utf-8"))


def _families() -> list[str]:
    return list(_templates()["families"])


def _every(seed: int, families: Sequence[str]) -> Iterator[tuple[str, str]]:
    """All prompts of the families (none: of all), in the order that `seed` gives."""
    content, seen = _templates(), set[str]()
    return _in_turn(
        [
            _family(name, body, content["fillers"], seed, seen)
            for name, body in content["families"].items()
            if not families or name in families
        ]
    )


def _family(
    name: str, body: Mapping[str, Any], shared: Mapping[str, Sequence[str]], seed: int, seen: set[str]
) -> Iterator[tuple[str, str]]:
    """The prompts of one family, its templates in turn; none that is in `seen`, which grows."""
    fillers = {**shared, **body.get("fillers", {})}
    # Text seeds `Random` alike on every machine and gives each template an order of its own.
    streams = [
        _fillings(template, fillers, random.Random(f"{seed} {name} {number}"))
        for number, template in enumerate(body["templates"])
    ]
    for text in _in_turn(streams):
        if text not in seen:
            seen.add(text)
            yield name, text


def _fillings(template: str, fillers: Mapping[str, Sequence[str]], order: random.Random) -> Iterator[str]:
    """A template's fillings in random order, none twice, LARGEST_SHARE at most."""
    values: dict[str, Sequence[object]] = {}
    for slot in _SLOT.finditer(template):
        name, low, high, by = slot.group("name", "low", "high", "by")
        if low is not None:
            values[name] = range(int(low), int(high) + 1, int(by or 1))
        elif name not in values:
            values[name] = fillers[name]
    size = math.prod(map(len, values.values()))
    for index in order.sample(range(size), min(size, LARGEST_SHARE)):
        chosen: dict[str, str] = {}
        for name, options in values.items():  # the digits of `index`, one slot's number of entries after the other
            index, digit = divmod(index, len(options))
            chosen[name] = str(options[digit])
        yield _fill(template, chosen)


def _fill(template: str, chosen: Mapping[str, str]) -> str:
    return _SLOT.sub(lambda slot: chosen[slot["name"]], template)


def _in_turn(streams: Iterable[Iterator[_T]]) -> Iterator[_T]:
    """One item of each stream after the other, until all have ended."""
    live = list(streams)
    while live:
        still = []
        for stream in live:
            for item in itertools.islice(stream, 1):
                still.append(stream)
                yield item
        live = still
