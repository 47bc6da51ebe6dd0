"""A foreign checkpoint's folder: config.json and weights in one file, several, or PyTorch's own.

Reading runs no code of a file's and is strict; writing is whole or not at all. Knows files and tensors; nothing of any
layout, of drafters or of targets.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from drafterzoo.checkpoint import CONFIG, WEIGHTS, check_finite, write_together
from drafterzoo.errors import CheckpointError, UsageError
from drafterzoo.formats.base import Contents, Files
from drafterzoo.parsing import parse_json

INDEX, PICKLED = f"{WEIGHTS}.index.json", "pytorch_model.bin"
PICKLED_INDEX = f"{PICKLED}.index.json"
READ_ORDER = (WEIGHTS, INDEX, PICKLED, PICKLED_INDEX)  # the first that is there
SUFFIXES = (".safetensors", ".bin")
AGAIN = "download it again"


def read_files(folder: Path) -> Files:
    """Read a folder's config and weights. Raises CheckpointError for anything missing, damaged or not finite."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; expected one holding {CONFIG} and {WEIGHTS} or {PICKLED}.")
    config = _object(folder / CONFIG)
    stamps = {path: _stamp(path) for suffix in SUFFIXES for path in sorted(folder.glob(f"*{suffix}"))}
    path, tensors = _weights(folder)
    check_finite(tensors, path)
    return Files(folder, str(folder / CONFIG), str(path), config, tensors, stamps)


def check_unchanged(files: Files) -> None:
    """Raise CheckpointError where a file of weights has been written over since, under the tensors mapped from it.

    One that was taken away, or replaced by another file, is still there for those who have it open.
    """
    for path, stamp in files.stamps.items():
        now = _stamp(path) if path.exists() else stamp
        if now[0] == stamp[0] and now != stamp:
            raise CheckpointError(f"{path}: has been written over since the drafter was read from it; load it again.")


def _stamp(path: Path) -> tuple[int, ...]:
    """Which file it is, and when it was last written, and how long it is."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


def write_files(contents: Contents, folder: Path) -> Path:
    """Write a layout's config and weights into `folder`, both or neither.

    Raises CheckpointError, and UsageError where other weights lie there that would be read in the place of these.
    """
    before = READ_ORDER[: READ_ORDER.index(contents.weights)]
    for name in before:
        if (folder / name).exists():
            raise UsageError(
                f"{folder}: holds {name}, which is read rather than the {contents.weights} to be written; choose "
                f"another folder."
            )
    text = json.dumps(contents.config, indent=2, ensure_ascii=False) + "\n"
    if contents.weights.endswith(".bin"):
        buffer = io.BytesIO()
        torch.save({key: value.contiguous() for key, value in contents.tensors.items()}, buffer)
        weights = buffer.getvalue()
    else:
        weights = safetensors.torch.save(_apart(contents.tensors), {"format": "pt"})
    write_together({folder / contents.weights: weights, folder / CONFIG: text.encode()})
    return folder


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors in order, each in memory of its own: of a tied target, head and embedding are one, and safetensors
    refuses that."""
    ordered, seen = {}, set[int]()
    for key, value in sorted(tensors.items()):
        ordered[key] = value.clone() if value.untyped_storage().data_ptr() in seen else value.contiguous()
        seen.add(value.untyped_storage().data_ptr())
    return ordered


def _object(path: Path) -> dict[str, Any]:
    try:
        value = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing; a checkpoint holds it beside its weights, {AGAIN}.") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error}); {AGAIN}.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a {type(value).__name__}, expected an object with keys; {AGAIN}.")
    return value


def _weights(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """The file that is asked for its tensors, and these; safetensors rather than PyTorch's own where both are there."""
    for name in READ_ORDER:
        path, read = folder / name, _safetensors if name in (WEIGHTS, INDEX) else _pickled
        if path.exists():
            return path, _sharded(path, read) if name in (INDEX, PICKLED_INDEX) else read(path)
    raise CheckpointError(
        f"{folder}: holds no weights; expected {WEIGHTS}, {INDEX} with its shards, or {PICKLED}, {AGAIN}."
    )


def _safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: truncated or damaged ({error}); {AGAIN}.") from error


def _pickled(path: Path) -> dict[str, Tensor]:
    """PyTorch's own file, of tensors alone: what would run code is refused before it does."""
    try:
        value = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path}: holds more than tensors ({_first_line(error)}), which may be code and is not run; take a "
            f"safetensors file, or convert it where you trust it."
        ) from error
    except (RuntimeError, OSError, EOFError, ValueError) as error:
        raise CheckpointError(f"{path}: truncated or damaged ({_first_line(error)}); {AGAIN}.") from error
    if isinstance(value, dict) and isinstance(value.get("state_dict"), dict):
        value = value["state_dict"]
    wrong = None if isinstance(value, dict) else type(value).__name__
    for key, part in value.items() if isinstance(value, dict) else ():
        if not isinstance(key, str) or not isinstance(part, Tensor):
            wrong = f"{key!r}, a {type(part).__name__}"
    if wrong is not None:
        raise CheckpointError(f"{path}: holds {wrong}, expected tensors by name; save the model's state_dict alone.")
    return dict(value)


def _sharded(index: Path, read: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    places = _object(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise CheckpointError(f"{index}: has no 'weight_map' of names of files; {AGAIN}.")
    parts: dict[str, dict[str, Tensor]] = {}
    for name in sorted(set(places.values())):
        path = index.parent / name
        if Path(name).name != name or not path.is_file():
            raise CheckpointError(f"{index}: names {name!r}, which is not a file beside it; {AGAIN}.")
        parts[name] = read(path)
    for key, name in places.items():
        if key not in parts[name]:
            raise CheckpointError(f"{index}: says that {name} holds {key!r}, which it does not; {AGAIN}.")
    return {key: parts[name][key] for key, name in places.items()}


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")
