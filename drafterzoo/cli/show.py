"""`drafterzoo show`: a checkpoint, with the results on its card; show_drafter.py and show_suite.py show the others.

Knows the names of a checkpoint's files and the header of a safetensors file; nothing of what the config means.
"""

from __future__ import annotations

import json as jsonlib
import math
import re
import struct
from pathlib import Path
from typing import Annotated, Any

import attrs
from cyclopts import Parameter

from drafterzoo import elsewhere
from drafterzoo.cli.card_results import drawn, results_of
from drafterzoo.cli.console import Json, out, print_json
from drafterzoo.cli.show_drafter import drafter_facts, show_drafter
from drafterzoo.cli.show_suite import show_suite
from drafterzoo.errors import CheckpointError, UsageError, suggest
from drafterzoo.parsing import parse_json
from drafterzoo.registry import DRAFTERS, SUITES, WRAPPERS
from drafterzoo.wording import quantity


def show(
    name: str,
    /,
    *,
    config: Annotated[bool, Parameter(negative="")] = False,
    data_dir: Path | None = None,
    json: Json = False,
) -> None:
    """Show a drafter, a wrapper, a checkpoint or a suite.

    Example: `drafterzoo show lookup`, `drafterzoo show pr`, `drafterzoo show eagle3.1-smollm2-135m`, or
    `drafterzoo show gsm8k`

    Of a drafter or wrapper: what it is, its options, where it comes from. Of a checkpoint: its sizes, and the results
    on its card. Options typed behind either, as in `lookup(max_ngram=4)`, are shown in place of its own. Of
    a suite: what it is, and whether its data is at hand.

    Parameters
    ----------
    name
        A name that `drafterzoo list` gives, `dir:path`, or `hub:org/name`, which is fetched. A drafter that has a
        checkpoint (`eagle3.1`) stands for it.
    config
        Print a checkpoint's config.json, too.
    data_dir
        Where to look for a suite's data. Default: $DRAFTERZOO_DATA, and the Hub's cache.
    """
    from drafterzoo import catalogue

    checkpoints, typed = catalogue.list_checkpoints(), name
    name = catalogue.fetched(name)
    if name in SUITES and name not in checkpoints:
        return show_suite(name, data_dir, json)
    base = re.split(r"[(+]", name)[0].strip()
    if name in WRAPPERS:
        return show_drafter(name, {}, json)
    if (there := elsewhere.find(name)) is not None:
        return _show_elsewhere(there, json)
    if not name.startswith("dir:") and base not in checkpoints and base not in DRAFTERS:
        _refuse(name, base, checkpoints)
    folder, options = catalogue.find(name), catalogue.options_typed(name)
    if folder is None and "+" in name:
        raise UsageError(
            f"no checkpoint of {name!r} comes with drafterzoo, so there is nothing to show of it; show its parts, as "
            f"in `drafterzoo show {base}`, or a checkpoint's folder, 'dir:path'."
        )
    if folder is None:
        return show_drafter(base, options, json)
    held, card = _config(folder), _card(folder)
    around = {} if name.startswith("dir:") or base in checkpoints else catalogue.wrappers_typed(name)
    if options or any(around.values()):
        held = _with_options(held, options, around, folder)
    facts = {
        "name": typed,
        "folder": str(folder),
        "card": str(card) if card else None,
        "sizes": _sizes(folder),
        "options": options,
        "config": held,
        "drafter": _drafter(held),
        "results": results_of(card),
    }
    if json:
        print_json(facts)
    else:
        _print(facts, config or bool(options))


def _show_elsewhere(one: elsewhere.Elsewhere, json: bool) -> None:
    """A checkpoint that lies on the Hub: its address, and its card."""
    from rich.markdown import Markdown

    card = elsewhere.card_of(one.name)
    if json:
        print_json({**attrs.asdict(one), "card": str(card)})
        return
    out().print(one.said, markup=False, soft_wrap=True)
    out().print(Markdown(card.read_text(encoding="utf-8").split("---\n", 2)[2]))


def _refuse(name: str, base: str, checkpoints: list[str]) -> None:
    """Raise UsageError for what is neither drafter, checkpoint nor suite: the nearest name, or why it is broken."""
    if base in DRAFTERS.broken():
        DRAFTERS.get(base)
    known = [*DRAFTERS, *WRAPPERS, *checkpoints, *elsewhere.names(), *SUITES]
    raise UsageError(
        f"nothing to show is named {name!r}{suggest(name, known)}; `drafterzoo list` gives the names of drafters, "
        f"wrappers, checkpoints and suites, and 'dir:path' means a checkpoint's folder."
    )


def _drafter(config: dict[str, Any]) -> dict[str, Any] | None:
    """What the drafter of a checkpoint says of itself; None where nobody has registered it."""
    spec = config.get("spec")
    base = re.split(r"[(+]", spec)[0] if isinstance(spec, str) else ""
    return drafter_facts(base) if base in DRAFTERS else None


def _wrappers(config: dict[str, Any]) -> list[str]:
    """The wrappers of a checkpoint, as they are typed: with the options that are not at their defaults."""
    said = []
    for part in config.get("wrappers") or []:
        name = part.get("name") if isinstance(part, dict) else None
        if name not in WRAPPERS:
            said.append(f"{name}, which nobody has registered here")
            continue
        wrapper = WRAPPERS.get(str(name))
        usual = {field.name: field.default for field in attrs.fields(wrapper.Config)}
        given = [f"{key}={value!r}" for key, value in part.items() if key != "name" and value != usual.get(key)]
        typed = f"({', '.join(given)})" if given else ""
        said.append(f"{name}{typed} ({wrapper.source}); options: `show {name}`")
    return said


def _with_options(
    config: dict[str, Any], options: dict[str, Any], typed: dict[str, dict[str, Any]], folder: Path
) -> dict[str, Any]:
    """The config with what was typed in place of its own: behind all of it, and behind each wrapper of a spec.

    Raises UsageError for what cannot be set on it.
    """
    from drafterzoo.catalogue import deal
    from drafterzoo.drafters.base import check_options, check_together

    section = config.get("drafter")
    name = section.get("name") if isinstance(section, dict) else None
    if not isinstance(section, dict) or name not in DRAFTERS:
        raise UsageError(f"{folder} holds no checkpoint of a drafter known here, so no options can be set on it.")
    own, around = deal(options, DRAFTERS.get(str(name)), config, named=bool(typed))
    check_options(DRAFTERS.get(str(name)), own)
    wrappers = []
    for part in config.get("wrappers", []):
        theirs = {**around.get(part["name"], {}), **typed.get(part["name"], {})}
        check_options(WRAPPERS.get(part["name"]), theirs)
        check_together(WRAPPERS.get(part["name"]), part, theirs)
        wrappers.append({**part, **theirs})
    return {**config, "drafter": {**section, **own}, "wrappers": wrappers}


def _card(folder: Path) -> Path | None:
    return folder / "README.md" if (folder / "README.md").is_file() else None


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; give a checkpoint's, as in 'dir:runs/eagle3.1/best'.")
    try:
        config = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{folder} has no config.json; it is no checkpoint, or its download was cut short."
        ) from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); give the folder of a checkpoint.") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON ({error}); fetch the checkpoint again.") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} holds no JSON object; fetch the checkpoint again.")
    return config


def _sizes(folder: Path) -> dict[str, dict[str, Any]]:
    """Per weights file: bytes, tensors, values and dtypes."""
    return {path.name: {"bytes": path.stat().st_size, **_header(path)} for path in sorted(folder.glob("*.safetensors"))}


def _header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        room = path.stat().st_size - 8
        raw = file.read(length) if 0 < length <= room else b""
    try:
        tensors = {key: entry for key, entry in jsonlib.loads(raw).items() if key != "__metadata__"}
        values = sum(math.prod(entry["shape"]) for entry in tensors.values())
        dtypes = sorted({entry["dtype"] for entry in tensors.values()})
        end = max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
    except (ValueError, AttributeError, KeyError, TypeError, IndexError) as error:
        raise CheckpointError(
            f"{path} does not begin as a safetensors file does; fetch the checkpoint again."
        ) from error
    if 8 + length + end != path.stat().st_size:
        raise CheckpointError(
            f"{path} holds {path.stat().st_size} bytes where its header announces {8 + length + end}; fetch it again."
        )
    return {"tensors": len(tensors), "values": values, "dtypes": dtypes}


def _print(facts: dict[str, Any], config: bool) -> None:
    from rich.text import Text

    console = out()
    console.print(Text(facts["name"], style="bold"))
    drafter = facts["drafter"]
    if drafter is not None:
        console.print(Text(f"  drafter  {drafter['name']} ({drafter['source'] or drafter['what']})"), soft_wrap=True)
    for wrapper in _wrappers(facts["config"]):
        console.print(Text(f"  wrapper  {wrapper}"), soft_wrap=True)
    console.print(Text(f"  folder   {facts['folder']}"), soft_wrap=True)
    console.print(Text(f"  card     {facts['card'] or 'none'}"), soft_wrap=True)
    for file, size in facts["sizes"].items():
        said = f"{size['bytes'] / 1e6:.1f} MB, {size['values'] / 1e6:.2f} M values in "
        said += quantity(size["tensors"], "tensor")
        console.print(Text(f"  {file}  {said} ({', '.join(size['dtypes'])})"), soft_wrap=True)
    if facts["options"]:
        typed = ", ".join(f"{key}={value!r}" for key, value in facts["options"].items())
        console.print(Text(f"  options  {typed}, as typed: the config below is shown with them"), soft_wrap=True)
    if not facts["sizes"]:
        console.print(Text("  no weights here"))
    _print_results(facts)
    if not config:
        console.print(Text("  --config shows its config.json, too"), soft_wrap=True)
        return
    console.print(Text("\nconfig\n", style="bold"))
    for line in jsonlib.dumps(facts["config"], indent=2, ensure_ascii=False).splitlines():
        console.print(Text(f"  {line}"), soft_wrap=True)


def _print_results(facts: dict[str, Any]) -> None:
    """What was measured: in training, as the config holds it, and on the card, as it is written there."""
    from rich.text import Text

    console = out()
    training = facts["config"].get("training")
    taus = training.get("held_out_tau") if isinstance(training, dict) else None
    for budget, tau in (taus if isinstance(taus, dict) else {}).items():
        said = f"{tau:.2f}" if isinstance(tau, int | float) else str(tau)  # anybody's config may hold anything
        told = f"  tau {said} at {budget} on held-out prompts, when it was trained"
        console.print(
            Text(f"{told}; the card's prompts and lengths are others" if facts["results"] else told), soft_wrap=True
        )
    if facts["results"]:
        console.print(Text("\nresults, as the card gives them\n", style="bold"))
        for part in drawn(facts["results"]):
            console.print(part, soft_wrap=getattr(part, "no_wrap", None))  # a command is copied as one line
