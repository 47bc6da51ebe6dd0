"""Handing a drafter to a server: the folder it loads, the command that starts it, and what gets lost on the way.

Source: field.md 5c to 5e. Knows which layout each server reads for which drafter, its flags, and how it counts drafts;
nothing of layouts' key names.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import attrs

from drafterzoo.budget import Budget
from drafterzoo.composition import innermost
from drafterzoo.drafters.base import Drafter
from drafterzoo.errors import UsageError
from drafterzoo.formats.writing import write_layout
from drafterzoo.target import embedded
from drafterzoo.target.target import Target
from drafterzoo.wording import quantity
from drafterzoo.wrappers.base import Wrapper


@attrs.frozen
class Server:
    """A server: its name, and by drafter the layout it reads and what it calls the method. trees: whether it drafts
    them for recurrent drafters."""

    name: str
    reads: Mapping[str, tuple[str, str]]
    command: Callable[[str, str, str, Budget], list[str]]
    trees: bool


@attrs.frozen
class Served:
    """A drafter in a server's layout. command: what to type; lost: what that server does not do with it, in words."""

    server: str
    layout: str
    folder: str
    command: str
    lost: tuple[str, ...]


def _vllm(target: str, folder: str, method: str, budget: Budget) -> list[str]:
    config = {"method": method, "model": folder, "num_speculative_tokens": budget.depth}
    return ["vllm", "serve", target, "--speculative-config", json.dumps(config)]


def _sglang(target: str, folder: str, method: str, budget: Budget) -> list[str]:
    """Its numbers of draft tokens count the root, too (field.md 5d)."""
    start = [*("python", "-m", "sglang.launch_server", "--model-path", target), "--speculative-algorithm", method]
    model = ["--speculative-draft-model-path", folder]
    if method == "DSPARK":
        return [*start, *model, "--speculative-dspark-block-size", str(budget.depth)]
    if method == "DFLASH":
        return [*start, *model, "--speculative-num-draft-tokens", str(budget.depth + 1)]
    tree = {"num-steps": budget.depth, "eagle-topk": budget.offer, "num-draft-tokens": budget.nodes + 1}
    return [*start, *model, *(word for key, value in tree.items() for word in (f"--speculative-{key}", str(value)))]


_RECURRENT = ("eagle2", "hass", "eagle3", "eagle3.1")
SERVERS: Mapping[str, Server] = MappingProxyType(
    {
        "vllm": Server(
            "vLLM",
            {
                "eagle2": ("safeailab-eagle2", "eagle"),
                "hass": ("safeailab-eagle2", "eagle"),
                "eagle3": ("speculators-eagle3", "eagle3"),
                "eagle3.1": ("speculators-eagle3", "eagle3"),
                "dflash": ("speculators-dflash", "dflash"),
                "dspark": ("speculators-dspark", "dspark"),
            },
            _vllm,
            trees=False,
        ),
        "sglang": Server(
            "SGLang",
            {
                "eagle2": ("safeailab-eagle2", "EAGLE"),
                "hass": ("safeailab-eagle2", "EAGLE"),
                "eagle3": ("specforge-eagle3", "EAGLE3"),
                "eagle3.1": ("specforge-eagle3", "EAGLE3"),
                "dflash": ("zlab-dflash", "DFLASH"),
                "dspark": ("specforge-dspark", "DSPARK"),
            },
            _sglang,
            trees=True,
        ),
    }
)
WRAPPED = {  # why a server has no such wrapper
    "pr": "it forwards no rows beside those that grow the draft, so nothing is thought over twice",
    "carryover": "it forgets what was rejected between rounds",
}


def export(drafter: Drafter, server: str, folder: Path, budget: Budget | None = None) -> Served:
    """Write a drafter for a server into a new folder and say how to start it.

    budget: what a round may draft, the drafter's own if none is given; where the server drafts no trees, a chain as
    deep. Wrappers are left out, which `lost` says first.

    Raises UsageError for a server or a drafter it has no layout for, and what `write_layout` raises.
    """
    layout, _ = _read_by(server, innermost(drafter))
    write_layout(innermost(drafter), folder, layout)
    target = target_path(drafter.target)
    return described(drafter, server, target, str(folder.absolute()), budget, folder=str(folder))


def described(
    drafter: Drafter, server: str, target: str, path: str, budget: Budget | None = None, folder: str = ""
) -> Served:
    """What `export` returns, of a folder that the server finds at `path`, and a target that it finds at `target`."""
    served, base = SERVERS[server], innermost(drafter)
    layout, method = _read_by(server, base)
    asked = budget or drafter.budget
    shape = asked if served.trees and base.name in _RECURRENT else Budget.chain(_depth(base, asked))
    words = served.command(target, path, method, shape)
    return Served(server, layout, folder or path, shlex.join(words), _lost(drafter, served, asked, shape))


def _read_by(server: str, base: Drafter) -> tuple[str, str]:
    """The layout that a server reads of a bare drafter, and what it calls the method. Raises UsageError for none."""
    if server not in SERVERS:
        raise UsageError(f"export: unknown server {server!r}; there is {', '.join(SERVERS)}.")
    served = SERVERS[server]
    if base.name not in served.reads:
        raise UsageError(
            f"export: {served.name} drafts with nothing like {base.name!r}; it has {', '.join(served.reads)}."
        )
    return served.reads[base.name]


def _depth(base: Drafter, budget: Budget) -> int:
    """How deep a chain is drafted: no deeper than a block."""
    most = getattr(base.config, "proposals", budget.depth)
    return min(budget.depth, most)


def target_path(target: Target) -> str:
    """What a server is to load as the target."""
    return str(embedded.converted_folder()) if target.name == embedded.NAME else target.name


def _lost(drafter: Drafter, server: Server, asked: Budget, shape: Budget) -> tuple[str, ...]:
    """What the server does not do, one sentence each, the weightiest first."""
    said = []
    part = drafter
    while isinstance(part, Wrapper):
        why = WRAPPED.get(part.name, "it has nothing like it")
        said.append(f"+{part.name} is left out, with its weights: {server.name} drafts without, since {why}.")
        part = part.base
    if asked.nodes > shape.nodes:
        said.append(
            f"No trees: {server.name} drafts a chain of {shape.depth} here, in the place of "
            f"{quantity(asked.nodes, 'node')}."
        )
    if asked.p_min or asked.c_min or asked.schedule != "none":
        said.append(f"No early end of a draft: {server.name} knows neither p_min nor c_min nor a schedule of ours.")
    if getattr(drafter.config, "confidence_temperatures", ()):
        said.append("The fitted temperatures of the confidence head are not part of this layout.")
    said.append(
        f"No coupled sampling: above temperature 0 {server.name} draws drafts without the target's noise, and accepts "
        f"fewer of them than drafterzoo. Its own rule, not ours, says whether a text is the target's."
    )
    return tuple(said)
