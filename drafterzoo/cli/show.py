"""`drafterzoo show`: one checkpoint of the catalogue, read without torch; or a suite, which show_suite.py shows.

Knows the names of a checkpoint's files and the header of a safetensors file; nothing of what the config means.
"""

from __future__ import annotations

import json as jsonlib
import math
import struct
from pathlib import Path
from typing import Any

from drafterzoo.cli.console import Json, out, print_json
from drafterzoo.cli.show_suite import show_suite
from drafterzoo.errors import CheckpointError
from drafterzoo.parsing import parse_json
from drafterzoo.registry import SUITES


def show(name: str, /, *, data_dir: Path | None = None, json: Json = False) -> None:
    """Show a checkpoint or a suite.

    Example: `drafterzoo show eagle3.1-smollm2-135m`, or `drafterzoo show gsm8k`

    Of a checkpoint: its config, its card and its sizes. Of a suite: what it is, and whether its data is at hand.

    Parameters
    ----------
    name
        A name that `drafterzoo list checkpoints` or `drafterzoo list suites` gives, a spec that has a checkpoint
        (`eagle3.1`), or `dir:path`.
    data_dir
        Where to look for a suite's data. Default: $DRAFTERZOO_DATA, and the Hub's cache.
    """
    from drafterzoo import catalogue

    if name in SUITES and name not in catalogue.list_checkpoints():
        return show_suite(name, data_dir, json)
    folder = catalogue.find(name)
    facts = {
        "name": name,
        "folder": str(folder),
        "card": _card(folder),
        "sizes": _sizes(folder),
        "config": _config(folder),
    }
    if json:
        print_json(facts)
    else:
        _print(facts)


def _card(folder: Path) -> str | None:
    return str(folder / "README.md") if (folder / "README.md").is_file() else None


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
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


def _print(facts: dict[str, Any]) -> None:
    from rich.text import Text

    console = out()
    console.print(Text(facts["name"], style="bold"))
    console.print(Text(f"  folder  {facts['folder']}"), soft_wrap=True)
    console.print(Text(f"  card    {facts['card'] or 'none'}"), soft_wrap=True)
    for file, size in facts["sizes"].items():
        said = f"{size['bytes'] / 1e6:.1f} MB, {size['values'] / 1e6:.2f} M values in {size['tensors']} tensors"
        console.print(Text(f"  {file}  {said} ({', '.join(size['dtypes'])})"), soft_wrap=True)
    if not facts["sizes"]:
        console.print(Text("  no weights here"))
    console.print(Text("  config"))
    for line in jsonlib.dumps(facts["config"], indent=2, ensure_ascii=False).splitlines():
        console.print(Text(f"    {line}"), soft_wrap=True)
