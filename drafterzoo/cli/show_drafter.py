"""`drafterzoo show <drafter>`, or a wrapper: what it is, its options, what it needs or gives, how to come by weights.

Knows what a drafter's class says of itself and the catalogue's names; loads no target and no weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from drafterzoo.cli.console import out, print_json
from drafterzoo.errors import UsageError
from drafterzoo.registry import DRAFTERS, WRAPPERS

if TYPE_CHECKING:
    from drafterzoo.drafters.base import Drafter

INDENT = 16  # of what stands behind a key


def show_drafter(name: str, typed: Mapping[str, Any], json: bool) -> None:
    """Print what a registered drafter or wrapper says of itself. typed: options as they were typed behind its name.

    Raises UsageError for an option it has not, or a value that one cannot take.
    """
    facts = drafter_facts(name)
    _check(_part(name), typed)
    for option in facts["options"]:
        if option["name"] in typed:
            option["value"] = typed[option["name"]]
    if json:
        print_json(facts)
    else:
        _print(facts)


def drafter_facts(name: str) -> dict[str, Any]:
    """A drafter or wrapper as plain values. checkpoints: those of it that come with drafterzoo, whatever the target."""
    from drafterzoo import catalogue
    from drafterzoo.drafters.options import options_of

    drafter = _part(name)
    return {
        "name": name,
        "what": (drafter.__doc__ or "").strip().partition("\n")[0],
        "source": drafter.source,
        "origin": (DRAFTERS if name in DRAFTERS else WRAPPERS).origin(name),
        "wraps": name not in DRAFTERS,
        "capabilities": sorted(drafter.capabilities),
        "needs": sorted(drafter.needs),
        "has_weights": drafter.has_weights,
        "checkpoints": catalogue.checkpoints_of(name),
        "options": [attrs.asdict(option) for option in options_of(drafter)],
    }


def _part(name: str) -> type[Drafter]:
    return DRAFTERS.get(name) if name in DRAFTERS else WRAPPERS.get(name)


def _check(drafter: type[Drafter], typed: Mapping[str, Any]) -> None:
    """Raise UsageError for options that cannot be set; together, where the target need not be asked for the others."""
    from drafterzoo.drafters.base import check_options, with_options
    from drafterzoo.drafters.options import options_of

    options = options_of(drafter)
    if typed and not options:
        raise UsageError(f"{drafter.name}: it says of no options, so none can be shown; leave the brackets out.")
    check_options(drafter, typed)
    if typed and all(option.given_by == "drafter" for option in options):
        with_options(drafter.Config, drafter.name, drafter.flags, typed)


def _print(facts: dict[str, Any]) -> None:
    from rich.text import Text

    console = out()
    console.print(Text(facts["name"], style="bold"))
    _line("what", facts["what"])
    _line("source", facts["source"])
    console.print(Text(f"  {'from':<{INDENT - 2}}{facts['origin']}"), soft_wrap=True)  # a path is copied as one word
    if facts["wraps"]:
        _line("around", f"drafters that are {', '.join(facts['needs']) or 'of any kind'}")
    else:
        _line("capabilities", ", ".join(facts["capabilities"]) or "none")
    _line("weights", _weights(facts))
    if not facts["options"]:
        return
    _line("options", f"typed as {_typed(facts)}")
    for option in facts["options"]:
        default = "from the target" if option["given_by"] == "target" else repr(option["default"])
        said = f"{option['value']!r}, as typed; otherwise {default}" if "value" in option else default
        console.print(Text(f"    {option['name']}  ", style="cyan").append(f"[{said}]", style="dim"))
        if option["meaning"]:
            console.print(_hanging(option["meaning"], INDENT))


def _line(key: str, text: str) -> None:
    """A key and what belongs to it, which goes on under itself."""
    from rich.table import Table
    from rich.text import Text

    if not text:
        return
    table = Table.grid(padding=0)
    table.add_column(width=INDENT, no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(f"  {key}"), Text(text))
    out().print(table)


def _hanging(text: str, indent: int) -> Any:
    from rich.padding import Padding
    from rich.text import Text

    return Padding(Text(text), (0, 0, 0, indent))


def _weights(facts: dict[str, Any]) -> str:
    from drafterzoo.catalogue import recipe_for

    if facts["wraps"]:
        return ", ".join(facts["checkpoints"]) or "no checkpoint with it comes with drafterzoo: train one"
    if not facts["has_weights"]:
        return f"none: `drafterzoo generate -d {facts['name']}` drafts for any target"
    if facts["checkpoints"]:
        return ", ".join(facts["checkpoints"])
    recipe = recipe_for(facts["name"])
    return (
        f"no checkpoint of it comes with drafterzoo: train one with `drafterzoo train{recipe}`, or name one as "
        "'hub:org/name' or 'dir:path'"
    )


def _typed(facts: dict[str, Any]) -> str:
    """Up to two options as they are written behind the drafter's name."""
    settable = [option for option in facts["options"] if option["given_by"] == "drafter"][:2]
    given = ", ".join(f"{option['name']}={option['default']!r}" for option in settable)
    return f"{'...+' if facts['wraps'] else ''}{facts['name']}({given or 'option=value'})"
