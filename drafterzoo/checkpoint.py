"""The native checkpoint: `config.json` and `model.safetensors` in one folder, written whole or not at all.

Reading is strict. Knows files and tensors; nothing of any drafter, of other people's layouts, or of the Hub.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import cattrs
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from drafterzoo.errors import CheckpointError, DrafterzooError, UsageError, suggest
from drafterzoo.parsing import parse_json, wanted

FORMAT_VERSION = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"
AT_ONCE = 1 << 20  # numbers of a tensor that are looked at together


@attrs.frozen(eq=False)
class Native:
    """A checkpoint as read: its config, its tensors, where they came from and the dtype they are stored in.

    called: what a tensor is called in the file, for complaints; weights: that file's name. wanted: the dtype that
    floats are to have, None for what a drafter is made with.
    """

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    dtype: torch.dtype
    called: Callable[[str], str] = str
    weights: str = WEIGHTS
    wanted: torch.dtype | None = None

    @property
    def config_file(self) -> str:
        return str(self.folder / CONFIG)

    @property
    def weights_file(self) -> str:
        return str(self.folder / self.weights)


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` beside `path`, flush it to disk, then rename: readers see the old file or the new one.

    Raises CheckpointError (no permission, disk full, not a folder); the partial file is removed and the old one stays.
    """
    write_together({path: data})


def write_together(files: Mapping[Path, bytes]) -> None:
    """Like `write_whole`, for files that belong together: none is renamed before all are on disk."""
    beside = {path: path.with_name(f".{path.name}.{os.getpid()}.partial") for path in files}
    path = next(iter(files))
    try:
        for path, data in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(beside[path], "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for path, partial in beside.items():
            os.replace(partial, path)
    except OSError as error:
        for partial in beside.values():
            with suppress(OSError):
                partial.unlink()
        raise CheckpointError(
            f"{path}: cannot be written ({error.strerror}); "
            f"nothing was changed, free some space or choose another folder."
        ) from error


def clear_partials(folder: Path) -> None:
    """Remove what processes that were killed while they wrote here have left; for whoever alone writes in a folder."""
    for left_over in folder.glob(".*.partial"):
        with suppress(OSError):
            left_over.unlink()


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """Write a native checkpoint into `folder` and return it.

    The weights are replaced first, so that a folder with a new config always holds its own weights. Raises
    CheckpointError; an older checkpoint survives a failure.
    """
    whole = {"library_name": "drafterzoo", "format_version": FORMAT_VERSION, **config}
    text = json.dumps(whole, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    weights = safetensors.torch.save(dict(sorted(tensors.items())), {"format": "pt"})
    write_together({folder / WEIGHTS: weights, folder / CONFIG: text.encode()})
    return folder


def is_native(folder: Path) -> bool:
    """Whether a folder is to be read as a checkpoint of ours: unless its config says otherwise, or is nowhere."""
    try:
        config = parse_json((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError):
        return True  # reading it says what is wrong
    return not isinstance(config, dict) or config.get("library_name") == "drafterzoo"


def read_config(folder: Path) -> dict[str, Any]:
    """Read and check config.json alone. Raises CheckpointError."""
    path = folder / CONFIG
    try:
        if not folder.is_dir():
            raise CheckpointError(f"{folder}: no such folder; expected one holding {CONFIG} and {WEIGHTS}.")
        config = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing; a drafterzoo checkpoint holds {CONFIG} and {WEIGHTS}.") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(
            f"{path}: cannot be read as JSON ({error}); download or save the checkpoint again."
        ) from error
    if not isinstance(config, dict) or config.get("library_name") != "drafterzoo":
        raise CheckpointError(
            f"{path}: library_name is not 'drafterzoo', so this is not a native checkpoint; convert it first."
        )
    version = config.get("format_version")
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: format_version is {version!r}, this release reads {FORMAT_VERSION}; "
            f"update drafterzoo or save again."
        )
    _check_sections(config, path)
    if not re.fullmatch(r"float16|bfloat16|float32", str(config["dtype"])):
        raise CheckpointError(f"{path}: dtype is {config['dtype']!r}, expected float16, bfloat16 or float32.")
    return config


_REQUIRED: dict[str, type] = {"spec": str, "target": dict, "drafter": dict, "dtype": str}
_TARGET: dict[str, tuple[type, ...]] = {
    "revision": (str, type(None)),
    "architecture": (str,),
    "hidden_size": (int,),
    "num_layers": (int,),
    "vocab_size": (int,),
    "tokenizer": (str, type(None)),
}
_OPTIONAL: dict[str, type] = {"wrappers": list, "budget": dict, "training": dict}


def _check_sections(config: Mapping[str, Any], path: Path) -> None:
    """Raise CheckpointError for a section that is missing or of the wrong type, or one that does not say its name."""
    for key, kind in (_REQUIRED | _OPTIONAL).items():
        if key not in config and key in _REQUIRED:
            raise CheckpointError(f"{path}: key {key!r} is missing; save the checkpoint again with drafterzoo.")
        if key in config and not isinstance(config[key], kind):
            raise CheckpointError(
                f"{path}: key {key!r} is {config[key]!r}, expected {wanted(kind)}; "
                f"save the checkpoint again with drafterzoo."
            )
    for part in config.get("wrappers", []):
        if not isinstance(part, dict) or not isinstance(part.get("name"), str):
            raise CheckpointError(
                f"{path}: a section of 'wrappers' is {part!r}, expected a table with a name; "
                f"save the checkpoint again with drafterzoo."
            )
    for section in ("target", "drafter"):
        if not isinstance(config[section].get("name"), str):
            raise CheckpointError(
                f"{path}: {section!r} has no name, expected a text; save the checkpoint again with drafterzoo."
            )
    for key, kinds in _TARGET.items():  # each is compared when a checkpoint is bound: a lost one would not be
        if key not in config["target"] or type(config["target"][key]) not in kinds:
            found = repr(config["target"][key]) if key in config["target"] else "missing"
            raise CheckpointError(
                f"{path}: 'target' key {key!r} is {found}, expected {wanted(kinds[0])}; restore the file, or download "
                f"or save the checkpoint again."
            )


def read(folder: Path, wanted: torch.dtype | None = None) -> Native:
    """Read a native checkpoint, for a drafter of dtype `wanted` (None: of whatever it is made with).

    Raises CheckpointError for anything missing, truncated or not finite.
    """
    config = read_config(folder)
    path = folder / WEIGHTS
    try:
        tensors = safetensors.torch.load_file(path)
    except FileNotFoundError as error:
        if path.exists():  # what safetensors says of a file that it may not open, too
            raise CheckpointError(f"{path}: cannot be opened; check who may read it.") from error
        raise CheckpointError(f"{path}: missing; a drafterzoo checkpoint holds {CONFIG} and {WEIGHTS}.") from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path}: truncated or damaged ({error}); download or save the checkpoint again."
        ) from error
    check_finite(tensors, path)
    return Native(folder, config, tensors, getattr(torch, config["dtype"]), wanted=wanted)


def check_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise CheckpointError for a tensor that holds NaN, an infinity, or what float32 has no room for."""
    for key, value in tensors.items():
        # as float32, the widest that is computed with: a float64 may be too great for it, a float8 cannot be asked; a
        # part at a time, since a large file is not to be held twice
        parts = value.flatten().split(AT_ONCE) if value.is_floating_point() else ()
        if not all(torch.isfinite(part.float()).all() for part in parts):
            raise CheckpointError(
                f"{path}: tensor {key!r} holds values that are not finite in float32; train or download it again."
            )


def fill(module: nn.Module, saved: Native, *, but_for: str | None = None) -> None:
    """Load every tensor of the checkpoint into the module, strictly.

    but_for: a submodule that has its weights. A module on the meta device takes the checkpoint's tensors themselves.

    Raises CheckpointError when a tensor is left over, a parameter is left empty, or a shape differs.
    """
    whole = module.state_dict()
    own = {key: value for key, value in whole.items() if but_for is None or not key.startswith(f"{but_for}.")}
    missing, extra = sorted(own.keys() - saved.tensors.keys()), sorted(saved.tensors.keys() - own.keys())
    if missing:
        raise CheckpointError(
            f"{saved.weights_file}: tensor {saved.called(missing[0])!r} is missing ({len(missing)} in all), expected "
            f"shape {list(own[missing[0]].shape)}; the file does not belong to its {CONFIG}, download or save it again."
        )
    if extra:
        raise CheckpointError(
            f"{saved.weights_file}: tensor {saved.called(extra[0])!r} is not used by this drafter ({len(extra)} in all)"
            f"{suggest(extra[0], own)}; a flag in {CONFIG} may be wrong, or the file belongs to another drafter."
        )
    for key, value in saved.tensors.items():
        if value.shape != own[key].shape:
            raise CheckpointError(
                f"{saved.weights_file}: tensor {saved.called(key)!r} has shape {list(value.shape)}, expected "
                f"{list(own[key].shape)} from {CONFIG}; the two files do not belong together."
            )
        if value.is_floating_point() != own[key].is_floating_point():
            raise CheckpointError(
                f"{saved.weights_file}: tensor {saved.called(key)!r} is {value.dtype}, expected {own[key].dtype}."
            )
    read = {key: value.to(_dtype_of(own[key], saved)) for key, value in saved.tensors.items()}
    # what was made without memory takes the file's, mapped, where no dtype changes
    module.load_state_dict({**whole, **read}, assign=any(value.is_meta for value in own.values()))


def _dtype_of(value: Tensor, saved: Native) -> torch.dtype:
    return saved.wanted if saved.wanted is not None and value.is_floating_point() else value.dtype


LATER = {"later": True}  # metadata of an option that checkpoints were saved without before there was one


_converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=False)


def _exactly(*kinds: type) -> Callable[[Any, Any], Any]:
    """A structuring hook that accepts these types alone: cattrs would turn "3" into 3 and 1 into True."""

    def hook(value: Any, _: Any) -> Any:
        if type(value) not in kinds:
            raise TypeError(f"{value!r} is not {kinds[0].__name__}")
        return kinds[0](value)

    return hook


_converter.register_structure_hook(bool, _exactly(bool))
_converter.register_structure_hook(int, _exactly(int))
_converter.register_structure_hook(float, _exactly(float, int))
_converter.register_structure_hook(str, _exactly(str))


def structure(cls: type, values: Mapping[str, Any], where: str, error: type[DrafterzooError] = CheckpointError) -> Any:
    """Build an attrs object from plain values.

    Raises `error` naming the key that is unknown, missing or of the wrong type.
    """
    check_values(cls, values, where, error)
    for name, field in _fields(cls).items():
        if name not in values and field.default is attrs.NOTHING:
            raise error(f"{where}: key {name!r} is missing; expected {wanted(field.type)}.")
    try:
        return _converter.structure(dict(values), cls)
    except UsageError as problem:  # values that contradict each other: say in which file
        raise error(f"{where}: {problem}") from problem


def check_whole(cls: type, values: Mapping[str, Any], where: str) -> None:
    """Raise CheckpointError for an option that a saved section lacks: its default may not be what it was saved with.

    Checkpoints older than an option have it not; that option is declared with `metadata=LATER`.
    """
    for name, field in _fields(cls).items():
        if name not in values and not field.metadata.get("later"):
            raise CheckpointError(
                f"{where}: key {name!r} is missing, and every option is saved; restore the file, or download or save "
                f"the checkpoint again."
            )


def check_values(cls: type, values: Mapping[str, Any], where: str, error: type[DrafterzooError]) -> None:
    """Raise `error` naming a key that the class has not, or one of the wrong type; keys may be missing."""
    fields = _fields(cls)
    for key, value in values.items():
        if key not in fields:
            raise error(f"{where}: unknown key {key!r}{suggest(key, fields)}; the keys are {', '.join(fields)}.")
        try:
            _converter.structure(value, fields[key].type)
        except DrafterzooError:
            raise
        except Exception as problem:
            expected = wanted(fields[key].type)
            raise error(f"{where}: key {key!r} is {value!r}, expected {expected}.") from problem


def _fields(cls: type) -> dict[str, Any]:
    return {f.name: f for f in attrs.fields(attrs.resolve_types(cls)) if f.init}
