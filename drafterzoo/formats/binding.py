"""Between a foreign folder and a drafter bound to its target: which layout it is, and what every layout shares.

Knows the registries of layouts and drafters, and what a target lends. A drafter keeps where it came from
(base.Origin), so that it goes back tensor for tensor. Knows no names of anybody's layout.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from drafterzoo import checkpoint
from drafterzoo.drafters.base import Drafter, check_together, with_options
from drafterzoo.errors import CheckpointError, Note, UsageError
from drafterzoo.formats.base import Contents, Convention, Files, Format, Origin, Translated
from drafterzoo.formats.files import check_unchanged, read_files
from drafterzoo.registry import DRAFTERS, FORMATS
from drafterzoo.target.target import Target

CONVENTIONS = ("auto", "boundary", "layer_output")
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
HEAD, EMBEDDING = "lm_head.weight", "embed_tokens.weight"
MAPS = ("d2t", "t2d")  # of a vocabulary that is part of the target's


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


def read(folder: Path, target: Target, **how: Any) -> Drafter:
    """The drafter in a foreign folder, bound to the target; how: as `read_from` takes it, and it raises the same."""
    return read_from(read_files(folder), target, **how)


def read_from(
    files: Files,
    target: Target,
    *,
    format: str | None = None,
    drafter: str | None = None,
    aux_convention: str = "auto",
    options: Mapping[str, Any] | None = None,
) -> Drafter:
    """The drafter of files that were read, bound to the target.

    format: its layout, where the files leave it open. drafter: under which name, where several share the network
    ("hass" for a head that the files know as "eagle2"). aux_convention: what layer ids say, "boundary" or
    "layer_output"; "auto": what the layout says, and where that is nothing, the one by which the drafter agrees with
    the target more often (agreement.py). options: of the drafter's config, over the file's.

    Raises CheckpointError for what is damaged or does not fit, UsageError for what cannot be meant.
    """
    if aux_convention not in CONVENTIONS:
        raise UsageError(f"aux_convention={aux_convention!r}, expected one of {', '.join(map(repr, CONVENTIONS))}.")
    for option, name in (("format", format), ("drafter", drafter)):
        if not isinstance(name, str | None):
            raise UsageError(f"{option}={name!r}, expected a name in quotes.")
    layout = recognise(files, format)
    found = layout.translate(files, target)
    if drafter is not None:
        found = attrs.evolve(found, drafter=_namesake(drafter, found.drafter))
    if aux_convention != "auto" and not found.names_taps:
        raise UsageError(
            f"{files.config_file}: says no layer ids, so aux_convention={aux_convention!r} has nothing to explain; "
            f"leave it out."
        )
    asked = found.taps_as if aux_convention == "auto" else convention(aux_convention)
    if asked is None:
        from drafterzoo.formats.agreement import better_convention

        asked = better_convention(lambda one: _bound(files, layout, found, target, one, options), files, target)
    return _bound(files, layout, found, target, asked, options)


def convention(name: str) -> Convention:
    """One of CONVENTIONS, but for "auto", as what it is."""
    return "boundary" if name == "boundary" else "layer_output"


def _namesake(asked: str, found: str) -> str:
    """The drafter asked for. Raises UsageError unless it has the network of the one that was found."""
    config = DRAFTERS.get(found).Config
    if DRAFTERS.get(asked).Config is not config:
        known = [name for name in DRAFTERS if getattr(DRAFTERS.get(name), "Config", None) is config]
        raise UsageError(
            f"drafter={asked!r}: the checkpoint holds the network of {found!r}; leave it out, or name one of "
            f"{', '.join(known)}."
        )
    return asked


def _bound(
    files: Files,
    layout: Format,
    found: Translated,
    target: Target,
    taps_as: Convention,
    options: Mapping[str, Any] | None,
) -> Drafter:
    cls = DRAFTERS.get(found.drafter)
    section = _with_taps(found, taps_as, files, target)
    own, borrowed = _lent(found, section, cls, target)
    if options:
        check_together(cls, section, options)
    config = checkpoint.structure(cls.Config, {**section, **(options or {})}, files.config_file)
    native = checkpoint.Native(
        files.folder,
        {"spec": cls.name, "drafter": {"name": cls.name, **attrs.asdict(config)}},
        own,
        _storage_dtype(own, files, found.called),
        found.called,
        Path(files.weights_file).name,
    )
    drafter = _made(cls, native, target, options)
    drafter.origin = Origin(
        layout.name,
        files,
        section,
        found.called,
        tuple(sorted({*found.ignored, *map(found.called, borrowed)})),
        taps_as,
        Path(files.weights_file).name.removesuffix(".index.json"),
    )
    drafter.training_record = {"from": layout.name}
    return drafter


def _made(cls: type[Drafter], native: checkpoint.Native, target: Target, options: Mapping[str, Any] | None) -> Drafter:
    try:
        return cls.from_checkpoint(native, target)
    except CheckpointError as error:
        if not options:
            raise
        raise UsageError(
            f"{native.folder}: its weights do not fit what was typed ({', '.join(options)}), or are damaged "
            f"({str(error).rstrip('.')}); leave out options that change the shape of a weight."
        ) from error


def _storage_dtype(tensors: Mapping[str, Tensor], files: Files, called: Callable[[str], str]) -> torch.dtype:
    """The dtype that a native checkpoint keeps these in, without loss. Raises CheckpointError for a quantised one."""
    dtype: torch.dtype | None = None
    for key, value in tensors.items():
        if value.is_floating_point():
            if value.dtype not in FLOATS:
                raise CheckpointError(
                    f"{files.weights_file}: tensor {called(key)!r} is {value.dtype}, expected float16, bfloat16 or "
                    f"float32; take the checkpoint before it was quantised."
                )
            dtype = value.dtype if dtype is None else torch.promote_types(dtype, value.dtype)
    return torch.float32 if dtype in (None, torch.float64) else dtype


def _with_taps(found: Translated, taps_as: Convention, files: Files, target: Target) -> dict[str, Any]:
    """The section, its taps as boundaries if the file's ids say `taps_as`. Raises CheckpointError beyond the target."""
    moved = (taps_as == "layer_output") - ((found.taps_as or "boundary") == "layer_output")
    if not moved or "taps" not in found.section:
        return dict(found.section)
    taps = [tap + moved for tap in found.section["taps"]]
    if min(taps) < 0 or max(taps) > target.num_layers:
        raise CheckpointError(
            f"{files.config_file}: its layer ids, read as {taps_as!r}, are the boundaries {taps}, but {target.name} "
            f"has 0 to {target.num_layers}; load it with its own target, or with another aux_convention."
        )
    return {**found.section, "taps": taps}


def _lent(
    found: Translated, section: dict[str, Any], cls: type[Drafter], target: Target
) -> tuple[dict[str, Tensor], list[str]]:
    """(the tensors that the drafter holds itself, those that are copies of the target's), and both in the section."""
    own, borrowed = dict(found.tensors), []
    fields = {field.name for field in attrs.fields(cls.Config)}
    for key, field in ((HEAD, "head"), (EMBEDDING, "embedding")):
        if field not in fields:
            continue
        if key in own and is_copy(own[key], key, own, target):
            borrowed.append(key)
            del own[key]
        section.setdefault(field, "own" if key in own else "borrowed")
    return own, borrowed


def is_copy(value: Tensor, key: str, tensors: Mapping[str, Tensor], target: Target) -> bool:
    """Whether a head or an embedding is the target's, as far as the file's dtype can tell."""
    if key == EMBEDDING:
        theirs = target.embedding_weight()
    else:
        offsets = tensors.get("d2t")
        if offsets is not None and (offsets.dim() != 1 or not offsets.numel() or offsets.is_floating_point()):
            return False  # which is said when the maps are checked
        ids = None if offsets is None else torch.arange(len(offsets)) + offsets
        if ids is not None and (int(ids.min()) < 0 or int(ids.max()) >= target.vocab_size):
            return False  # likewise
        theirs = target.head_weight(None if ids is None else ids.to(target.device))
    return value.shape == theirs.shape and torch.equal(value, theirs.detach().to("cpu", value.dtype))


def origin_in(drafter: Drafter, format: str) -> Origin | None:
    """Where a drafter comes from, if it was read in this layout."""
    return drafter.origin if drafter.origin is not None and drafter.origin.format == format else None


def as_contents(
    drafter: Drafter,
    format: str,
    *,
    written: Callable[[Mapping[str, Any]], dict[str, Any]],
    called: Callable[[str], str] = str,
    lent: Callable[[], Mapping[str, Tensor]] = dict,
    weights: str = checkpoint.WEIGHTS,
) -> Contents:
    """A drafter in a layout; as it was read, if it was read in this one.

    For a drafter that comes from elsewhere: called: a native name in the layout's words; lent: what the layout holds
    beside the drafter's own tensors, under native names; weights: the file's name. written: a section as a config.
    """
    origin = origin_in(drafter, format)
    native = drafter.tensors()
    if origin is None:
        tensors = as_file(drafter, format, {**native, **lent()}, called)
        return Contents(written(sections(drafter)), tensors, weights)
    return Contents(as_config(drafter, format, written), as_file(drafter, format, native), origin.weights)


def as_config(drafter: Drafter, format: str, written: Callable[[Mapping[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """The config of a drafter in a layout; the one that was read, but for what has been set since."""
    origin, now = origin_in(drafter, format), written(sections(drafter))
    return now if origin is None else _changed(origin.files.config, written(origin.section), now)


def _changed(config: Mapping[str, Any], then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """A config with what differs between `then` and `now` as `now` has it."""
    kept = {key: value for key, value in config.items() if key in now or key not in then}
    for key, value in now.items():
        if key in then and then[key] == value:
            continue
        nested = [part.get(key) for part in (config, then)]
        if isinstance(value, dict) and all(isinstance(part, dict) for part in nested):
            kept[key] = _changed(config[key], then[key], value)
        else:
            kept[key] = value
    return kept


def as_file(
    drafter: Drafter, format: str, native: Mapping[str, Tensor], called: Callable[[str], str] = str
) -> dict[str, Tensor]:
    """Native tensors under a layout's names; if they were read in this layout, in its dtypes and bit for bit.

    called: a native name in the layout's words, for a drafter that comes from elsewhere.
    """
    origin = origin_in(drafter, format)
    if origin is None:
        return {called(key): value for key, value in native.items()}
    check_unchanged(origin.files)
    held = {name: value.dtype for name, value in drafter.state_dict().items()}
    tensors = {name: origin.files.tensors[name] for name in origin.others}
    for key, value in native.items():
        name = origin.called(key)
        was = origin.files.tensors.get(name)
        tensors[name] = value if was is None else _as_it_was(was, value, held.get(key, value.dtype))
    return tensors


def _as_it_was(was: Tensor, value: Tensor, held: torch.dtype) -> Tensor:
    """What was read, if `value` is no more than its rounding to the dtype that it is held in; else `value`, as wide."""
    same = was.shape == value.shape and torch.equal(was.to(held).to(value.dtype), value)
    return was if same else value.to(was.dtype)


def whole_head(tensors: Mapping[str, Tensor], drafter: Drafter, format: str) -> dict[str, Tensor]:
    """A drafter's tensors for a layout that takes the target's whole head: without the maps of a draft vocabulary.

    Rows that it never proposed come back with the others, which a warning says.
    """
    if drafter.vocabulary is not None:
        warnings.warn(
            f"{drafter.spec}: {format} has no draft vocabulary, so the head as it is written proposes any of "
            f"{drafter.config.vocab_size} tokens and not {drafter.config.draft_vocab_size} of them.",
            Note,
            stacklevel=3,
        )
    return {key: value for key, value in tensors.items() if key not in MAPS}


def lent_tensors(drafter: Drafter, *keys: str) -> dict[str, Tensor]:
    """The target's head rows (HEAD) and embedding (EMBEDDING), those of `keys` that the drafter borrows.

    Under native names and as it would save them, for layouts that hold copies; a tied target's are two, as a file of
    safetensors wants it.
    """
    config, target = drafter.config, drafter.target
    found = {}
    if HEAD in keys and config.head == "borrowed":
        found[HEAD] = target.head_weight(drafter.vocabulary)
    if EMBEDDING in keys and config.embedding == "borrowed":
        found[EMBEDDING] = target.embedding_weight()
    return {key: value.detach().to("cpu", drafter.storage_dtype, copy=True) for key, value in found.items()}


def check_bare(drafter: Drafter) -> None:
    """Raise UsageError for a wrapped drafter: no layout but ours has wrappers."""
    if getattr(drafter, "base", None) is not None:
        raise UsageError(
            f"{drafter.spec}: no layout but drafterzoo's own holds a wrapper; export the drafter without it, or save "
            f"it with save_pretrained."
        )


def sections(drafter: Drafter) -> dict[str, Any]:
    """The config of a bare drafter as plain values. Raises UsageError for a wrapped one."""
    check_bare(drafter)
    return attrs.asdict(drafter.config)


def default_section(drafter: str, target: Target, **values: Any) -> dict[str, Any]:
    """What a layout that says nothing of a field means by it: the drafter's default for this target, under `values`."""
    cls = DRAFTERS.get(drafter)
    return attrs.asdict(with_options(cls.Config, cls.name, attrs.asdict(cls.default_config(target)), values))


def check_made_for(files: Files, target: Target, *, vocab_size: int, hidden_size: int) -> None:
    """Raise CheckpointError unless a config's sizes are the target's: vocabulary as padded, and width of features."""
    for key, said, have in (
        ("vocab_size", vocab_size, target.vocab_size),
        ("hidden_size", hidden_size, target.hidden_size),
    ):
        if said != have:
            raise CheckpointError(
                f"{files.config_file}: made for a target with {key} {said}, but {target.name} has {have}; load it with "
                f"the target it was trained for."
            )


def needs(files: Files, key: str, kind: type | tuple[type, ...], where: Mapping[str, Any] | None = None) -> Any:
    """A key that the config must have. Raises CheckpointError naming file, key and what was expected."""
    values = files.config if where is None else where
    if key not in values or not isinstance(values[key], kind) or isinstance(values[key], bool) != (kind is bool):
        found = repr(values[key]) if key in values else "missing"
        names = kind.__name__ if isinstance(kind, type) else " or ".join(one.__name__ for one in kind)
        raise CheckpointError(f"{files.config_file}: key {key!r} is {found}, expected {names}; download it again.")
    return values[key]


def may_have(files: Files, key: str, kind: type | tuple[type, ...], where: Mapping[str, Any] | None = None) -> Any:
    """A key that the config may leave out, or have as null: None then. Raises CheckpointError as `needs` does."""
    return None if (files.config if where is None else where).get(key) is None else needs(files, key, kind, where)
