"""`drafterzoo list`: what can be named, where it comes from, and which plug-ins are broken and why.

Knows the registries and the catalogue's names; imports no drafter, and opens no checkpoint unless asked to choose.
"""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

from cyclopts import Parameter

from drafterzoo.cli.console import Json, out, print_json
from drafterzoo.errors import UsageError
from drafterzoo.registry import DRAFTERS, FORMATS, SUITES, WRAPPERS, Registry
from drafterzoo.wording import quantity, verb

Kind = Literal["drafters", "wrappers", "formats", "suites", "checkpoints", "recipes"]
REGISTRIES: dict[str, Registry] = {"drafters": DRAFTERS, "wrappers": WRAPPERS, "formats": FORMATS, "suites": SUITES}


def listing(
    kind: Kind | None = None,
    /,
    *,
    match: Annotated[str | None, Parameter(alias="-m")] = None,
    drafter: Annotated[str | None, Parameter(alias="-d")] = None,
    target: Annotated[str | None, Parameter(alias="-t")] = None,
    json: Json = False,
) -> None:
    """List drafters, wrappers, formats, suites, checkpoints and recipes.

    Example: `drafterzoo list drafters --match 'eagle*'`, or `drafterzoo list checkpoints --drafter '*+pr'`

    Parameters
    ----------
    kind
        Only this kind; without it, all of them.
    match
        Only names that fit this shell pattern.
    drafter
        Only checkpoints of a drafter, wrappers and all, that fits this shell pattern.
    target
        Only checkpoints for a target whose name fits this shell pattern.
    """
    if kind != "checkpoints" and (drafter or target):
        raise UsageError(
            "list: --drafter and --target choose among checkpoints; type `drafterzoo list checkpoints` with them."
        )
    kinds = [kind] if kind else [*REGISTRIES, "checkpoints", "recipes"]
    beside: dict[str, Callable[[str | None], dict[str, str]]] = {
        "checkpoints": partial(_checkpoints, drafter=drafter, target=target),
        "recipes": _recipes,
    }
    found = {name: beside[name](match) if name in beside else _entries(REGISTRIES[name], match) for name in kinds}
    broken = {
        name: reasons
        for name in kinds
        if name in REGISTRIES
        and (
            reasons := {
                k: v for k, v in REGISTRIES[name].broken().items() if match is None or fnmatch.fnmatch(k, match)
            }
        )
    }
    if json:
        print_json({**found, "broken": broken})
    else:
        _print(found, broken)


def _entries(registry: Registry, match: str | None) -> dict[str, str]:
    """Name -> origin; of a suite or a layout, what it is."""
    names = registry.names(match)
    if registry is FORMATS:
        return {name: FORMATS.get(name).about for name in names}
    if registry is SUITES:
        return {name: _suite(name) for name in names}
    return {name: registry.origin(name) for name in names}


def _suite(name: str) -> str:
    """What a suite is, its number of prompts and licence, and whether its data is at hand, on one line."""
    suite = SUITES.get(name)
    size = f"{quantity(suite.count, 'prompt')}; " if suite.count else ""
    licence = f" ({suite.licence})" if suite.licence else ""
    return f"{_place(name)}; {size}{suite.description}{licence}"


def _place(suite: str) -> str:
    """Where a suite's data is."""
    from drafterzoo.evaluation.suites import at_hand

    return (
        "at hand"
        if at_hand(suite)
        else "on the Hub"
        if SUITES.get(suite).hub
        else f"not here (`drafterzoo show {suite}` tells more)"
    )


def _checkpoints(match: str | None, *, drafter: str | None, target: str | None) -> dict[str, str]:
    from drafterzoo import catalogue
    from drafterzoo.elsewhere import elsewhere

    names = catalogue.list_checkpoints(match, drafter=drafter, target=target)
    here = {name: str(catalogue.checkpoint_folder(name)) for name in names}
    there = elsewhere(match, drafter=drafter, target=target)
    return {**here, **{name: one.said for name, one in there.items()}}


def _recipes(match: str | None) -> dict[str, str]:
    """Name -> the verb that runs it, and what its first comment says."""
    from drafterzoo.resources import folder

    verbs = {"train": "train", "grids": "grid", "bench": "bench"}
    paths = [path for kind in verbs for path in sorted((folder("recipes") / kind).glob("*.toml"))]
    return {
        path.stem: f"{verbs[path.parent.name]}: {_first_sentence(path.read_text(encoding='utf-8'))}"
        for path in paths
        if match is None or fnmatch.fnmatch(path.stem, match)
    }


def _first_sentence(recipe: str) -> str:
    """Of the comment that a recipe begins with, as far as it tells what it is."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), recipe.splitlines())
    said = " ".join(line.lstrip("# ") for line in lines)
    return re.split(r"(?<=[.:;])\s", said)[0].rstrip(".:;")


def _print(found: dict[str, dict[str, str]], broken: dict[str, dict[str, str]]) -> None:
    from rich.text import Text

    console = out()
    for kind, entries in found.items():
        console.print(Text(kind, style="bold"))
        missing = [(name, f"broken: {reason}") for name, reason in broken.get(kind, {}).items()]
        width = max((len(name) for name in [*entries, *dict(missing)]), default=0)
        if kind == "suites":
            _print_suites(list(entries), width)
            entries = {}
        for name, said, style in [*((n, o, "cyan") for n, o in entries.items()), *((n, r, "red") for n, r in missing)]:
            shown = Text(name.ljust(width), style=style)
            console.print("  ", shown, "  ", said, sep="", markup=False, soft_wrap=True, highlight=False)
        if not width:
            console.print(Text("  none", style="dim"))


def _print_suites(names: list[str], width: int) -> None:
    """Each suite's name, and beside it what it is, then how large, where its data is, and its licence."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(min_width=width + 2, no_wrap=True)
    table.add_column(overflow="fold")
    for name in names:
        suite = SUITES.get(name)
        size = f"{suite.count:,} {verb(suite.count, 'prompt', 'prompts')}, " if suite.count else ""
        licence = f"; licence: {suite.licence}" if suite.licence else ""
        about = Text(f"{suite.description}\n").append(f"{size}{_place(name)}{licence}", style="dim")
        table.add_row(Text(f"  {name}", style="cyan"), about)
    if names:
        out().print(table)
