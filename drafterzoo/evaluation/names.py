"""Names of drafters cut to the room there is: an address to its last parts, what is longer still in its middle.

Knows text only.
"""

from __future__ import annotations

from collections.abc import Iterable

PARTS_TRIED = 8


def short_names(names: Iterable[str], longest: int) -> dict[str, str]:
    """Every name with what stands for it: at most about `longest` characters, and unlike that of any other name.

    Of `dir:runs/2026/hass/best` the end tells most: `hass/best`, or more of it beside another that ends alike.
    """
    every = list(dict.fromkeys(names))
    for parts in range(2, PARTS_TRIED + 1):
        short = {name: name if len(name) <= longest else _cut(_end(name, parts), longest) for name in every}
        if len(set(short.values())) == len(every):
            return short
    return {name: name if len(name) <= longest else f"{_cut(name, longest - 3)} #{i}" for i, name in enumerate(every)}


def _end(name: str, parts: int) -> str:
    """The last parts of an address; anything else stays whole."""
    return "/".join(name.split("/")[-parts:]) if name.startswith(("dir:", "hub:")) else name


def _cut(text: str, longest: int) -> str:
    """Without its middle: what sets checkpoints apart, such as a step, mostly stands at the end."""
    if len(text) <= longest:
        return text
    head = (longest - 1) // 2
    return f"{text[:head]}…{text[head + 1 - longest :]}"
