"""Between a foreign folder and a drafter bound to its target: which layout it is, and what every layout shares.

Knows the registries of layouts and drafters, and what a target lends. A drafter keeps where it came from
(base.Origin), so that it goes back tensor for tensor. Knows no names of anybody's layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from drafterzoo import checkpoint
from drafterzoo.drafters.base import Drafter, check_together, with_options
from drafterzoo.errors import CheckpointError, UsageError
from drafterzoo.formats.base import Convention, Files, Format, Origin, Translated
from drafterzoo.formats.files import read_files
from drafterzoo.registry import DRAFTERS, FORMATS
from drafterzoo.target.target import Target

CONVENTIONS = ("auto", "boundary", "layer_output")
HEAD, EMBEDDING = "lm_head.weight", "embed_tokens.weight"


def recognise(files: Files, name: str | None = None) -> Format:
    """The layout of a folder: the one named, or the only one that recognises it.

    Raises CheckpointError where none does, or several do, with what to type.
    """
    if name is not None:
        return FORMATS.get(name)
    found = [each for each in FORMATS if FORMATS.get(each).detect(files)]
    if len(found) == 1:
        return FORMATS.get(found[0])
    known = ", ".join(found or FORMATS.names())
    said = files.config.get("architectures") or files.config.get("speculators_model_type") or "nothing"
    keys = ", ".join(sorted(files.tensors)[:3])
    raise CheckpointError(
        f"{files.folder}: {'several layouts fit' if found else 'no known layout fits'} (architectures says {said}, and "
        f"the tensors begin with {keys}); say which it is, format=... of {known}."
    )


def read(
    folder: Path,
    target: Target,
    *,
    format: str | None = None,
    aux_convention: str = "auto",
    options: Mapping[str, Any] | None = None,
) -> Drafter:
    """The drafter in a foreign folder, bound to the target.

    format: its layout, where the files leave it open. aux_convention: what layer ids say, "boundary" or
    "layer_output"; "auto": what the layout says, and where that is nothing, the one by which the drafter agrees with
    the target more often (`self_test.py`). options: of the drafter's config, over the file's.

    Raises CheckpointError for what is damaged or does not fit, UsageError for what cannot be meant.
    """
    if aux_convention not in CONVENTIONS:
        raise UsageError(f"aux_convention={aux_convention!r}, expected one of {', '.join(map(repr, CONVENTIONS))}.")
    files = read_files(folder)
    layout = recognise(files, format)
    found = layout.translate(files, target)
    asked = found.taps_as if aux_convention == "auto" else _convention(aux_convention)
    if asked is None:
        from drafterzoo.formats.agreement import better_convention

        asked = better_convention(lambda one: _bound(files, layout, found, target, one, options), files)
    return _bound(files, layout, found, target, asked, options)


def _convention(name: str) -> Convention:
    return "boundary" if name == "boundary" else "layer_output"


def _bound(
    files: Files,
    layout: Format,
    found: Translated,
    target: Target,
    taps_as: Convention,
    options: Mapping[str, Any] | None,
) -> Drafter:
    cls = DRAFTERS.get(found.drafter)
    section = _with_taps(found, taps_as)
    own, borrowed = _lent(found, section, cls, target)
    if options:
        check_together(cls, section, options)
        section = {**section, **options}
    config = checkpoint.structure(cls.Config, section, files.config_file)
    dtype = next((value.dtype for key, value in own.items() if value.is_floating_point()), torch.float32)
    native = checkpoint.Native(
        files.folder,
        {"spec": cls.name, "drafter": {"name": cls.name, **attrs.asdict(config)}},
        own,
        dtype,
        found.called,
        Path(files.weights_file).name,
    )
    drafter = cls.from_checkpoint(native, target)
    copies = {*found.ignored, *(found.called(key) for key in borrowed)}
    drafter.origin = Origin(
        layout.name,
        files.config,
        found.called,
        {key: value.dtype for key, value in files.tensors.items()},
        {key: files.tensors[key] for key in sorted(copies)},
        taps_as,
    )
    drafter.training_record = {"from": layout.name}
    return drafter


def _with_taps(found: Translated, taps_as: Convention) -> dict[str, Any]:
    """The section, its taps as boundaries if the file's ids say `taps_as`."""
    moved = (taps_as == "layer_output") - ((found.taps_as or "boundary") == "layer_output")
    if not moved or "taps" not in found.section:
        return dict(found.section)
    return {**found.section, "taps": [tap + moved for tap in found.section["taps"]]}


def _lent(
    found: Translated, section: dict[str, Any], cls: type[Drafter], target: Target
) -> tuple[dict[str, Tensor], list[str]]:
    """(the tensors that the drafter holds itself, those that are copies of the target's), and both in the section."""
    own, borrowed = dict(found.tensors), []
    fields = {field.name for field in attrs.fields(cls.Config)}
    for key, field in ((HEAD, "head"), (EMBEDDING, "embedding")):
        if field not in fields:
            continue
        if key in own and _is_copy(own[key], key, own, target):
            borrowed.append(key)
            del own[key]
        section.setdefault(field, "own" if key in own else "borrowed")
    return own, borrowed


def _is_copy(value: Tensor, key: str, tensors: Mapping[str, Tensor], target: Target) -> bool:
    """Whether a head or an embedding is the target's, as far as the file's dtype can tell."""
    if key == EMBEDDING:
        theirs = target.embedding_weight()
    else:
        offsets = tensors.get("d2t")
        ids = None if offsets is None else torch.arange(len(offsets)) + offsets
        if ids is not None and (int(ids.min()) < 0 or int(ids.max()) >= target.vocab_size):
            return False  # which is said when the maps are checked
        theirs = target.head_weight(None if ids is None else ids.to(target.device))
    return value.shape == theirs.shape and torch.equal(value, theirs.detach().to("cpu", value.dtype))


def as_file(drafter: Drafter, format: str, native: Mapping[str, Tensor], called: Any = str) -> dict[str, Tensor]:
    """Native tensors under a layout's names and in its dtypes; as they were read, if they were read in this layout.

    called: a native name in the layout's words, for a drafter that comes from elsewhere.
    """
    origin = drafter.origin
    if origin is None or origin.format != format:
        return {called(key): value for key, value in native.items()}
    tensors = {origin.called(key): value for key, value in native.items()}
    cast = {key: value.to(origin.dtypes.get(key, value.dtype)) for key, value in tensors.items()}
    return {**cast, **origin.others}


def sections(drafter: Drafter) -> dict[str, Any]:
    """The config of a bare drafter as plain values. Raises UsageError for a wrapped one: no layout but ours has any."""
    if getattr(drafter, "base", None) is not None:
        raise UsageError(
            f"{drafter.spec}: no layout but drafterzoo's own holds a wrapper; export the drafter without it, or save "
            f"it with save_pretrained."
        )
    return attrs.asdict(drafter.config)


def default_section(drafter: str, target: Target, **values: Any) -> dict[str, Any]:
    """What a layout that says nothing of a field means by it: the drafter's default for this target, under `values`."""
    cls = DRAFTERS.get(drafter)
    return attrs.asdict(with_options(cls.Config, cls.name, attrs.asdict(cls.default_config(target)), values))


def needs(files: Files, key: str, kind: type | tuple[type, ...], where: Mapping[str, Any] | None = None) -> Any:
    """A key that the config must have. Raises CheckpointError naming file, key and what was expected."""
    values = files.config if where is None else where
    if key not in values or not isinstance(values[key], kind) or isinstance(values[key], bool) != (kind is bool):
        found = repr(values[key]) if key in values else "missing"
        names = kind.__name__ if isinstance(kind, type) else " or ".join(one.__name__ for one in kind)
        raise CheckpointError(f"{files.config_file}: key {key!r} is {found}, expected {names}; download it again.")
    return values[key]
