"""Names of drafters cut to the room there is: an address to its last parts, what is longer still in its middle.

Knows text only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

PARTS_TRIED = 8


def short_names(names: Iterable[str], longest: int) -> dict[str, str]:
    """Every name with what stands for it: at most about `longest` characters, and unlike that of any other name.

    Of `dir:runs/2026/hass/best` the end tells most: `hass/best`, or more of it beside another that ends alike. Of many
    that begin and end alike, what is in between.
    """
    every = list(dict.fromkeys(names))
    for parts in range(2, PARTS_TRIED + 1):
        short = {name: name if len(name) <= longest else _cut(_end(name, parts), longest) for name in every}
        if len(set(short.values())) == len(every):
            return short
    between = _between([name for name in every if len(name) > longest])
    short = {name: _cut(between.get(name, name), longest) for name in every}
    if between and len(set(short.values())) == len(every):
        return short
    return {name: name if len(name) <= longest else f"{_cut(name, longest - 3)} #{i}" for i, name in enumerate(every)}


def _between(names: Sequence[str]) -> dict[str, str]:
    """Each name without the whole words that all of them begin and end with, options behind it left out of account.

    Nothing where one of them has nothing else.
    """
    parted = {name: name.partition("(") for name in names}
    bases = [base for base, _, _ in parted.values()]
    head = re.sub(r"[^/:._-]*$", "", _beginning(bases))
    left = [base[len(head) :] for base in bases]
    tail = re.sub(r"^[^/:._-]*", "", _beginning([base[::-1] for base in left])[::-1])
    cores = {name: base[len(head) : len(base) - len(tail)] for name, (base, _, _) in parted.items()}
    if len(names) < 2 or not all(cores.values()) or not (head or tail):
        return {}
    before, behind = "…" if head else "", "…" if tail else ""
    return {name: f"{before}{cores[name]}{behind}{opens}{rest}" for name, (_, opens, rest) in parted.items()}


def _beginning(texts: Sequence[str]) -> str:
    """What all of them begin with: what the first and the last of them in their order do."""
    first, last = min(texts, default=""), max(texts, default="")
    shared = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:shared]


def _end(name: str, parts: int) -> str:
    """The last parts of an address; anything else stays whole."""
    return "/".join(name.split("/")[-parts:]) if name.startswith(("dir:", "hub:")) else name


def _cut(text: str, longest: int) -> str:
    """Without its middle: what sets checkpoints apart, such as a step, mostly stands at the end."""
    if len(text) <= longest:
        return text
    head = (longest - 1) // 2
    return f"{text[:head]}…{text[head + 1 - longest :]}"
