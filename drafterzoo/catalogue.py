"""Checkpoints known by name, and `load`: from a spec or an address to a drafter bound to its target.

Knows the registry, the folders under model_cards/ (each a snapshot of a Hub repository), addresses, and how a
checkpoint states its target; nothing of networks, of drafting, or of the Hub's protocol.
"""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drafterzoo import elsewhere
from drafterzoo.errors import CheckpointError, DrafterzooError, UsageError, suggest
from drafterzoo.registry import DRAFTERS, WRAPPERS, Spec, parse_spec, split_options
from drafterzoo.resources import folder

if TYPE_CHECKING:
    import torch

    from drafterzoo.drafters.base import Drafter
    from drafterzoo.target.target import Target


EMBEDDED = "smollm2-135m"  # the target that load_target means when nothing is said


def list_checkpoints(glob: str | None = None, *, drafter: str | None = None, target: str | None = None) -> list[str]:
    """Names of the checkpoints that come with drafterzoo, sorted.

    Filters, each a shell pattern: `glob` for names (`*smollm2*`), `drafter` for what they are of, wrappers and all
    (`hass*`, `*+pr`), `target` for the name of their target.
    """
    cards = folder("model_cards")
    names = sorted(path.parent.name for path in cards.glob("*/config.json")) if cards.is_dir() else []
    names = [name for name in names if glob is None or fnmatch.fnmatch(name, glob)]
    if drafter is None and target is None:
        return names
    from drafterzoo import checkpoint

    configs = {name: checkpoint.read_config(cards / name) for name in names}
    return [
        name
        for name, config in configs.items()
        if fnmatch.fnmatch(config["spec"], drafter or "*") and fnmatch.fnmatch(config["target"]["name"], target or "*")
    ]


def checkpoints_of(drafter: str) -> list[str]:
    """Names of the checkpoints that come with drafterzoo: of this drafter alone, or with this wrapper."""
    return [
        name
        for name, config in _known_checkpoints().items()
        if config["spec"] == drafter or drafter in [part["name"] for part in config.get("wrappers", [])]
    ]


def checkpoint_folder(name: str) -> Path:
    """The folder of a checkpoint known by name. Raises UsageError with the nearest name."""
    names = list_checkpoints()
    if name not in names:
        raise UsageError(f"no checkpoint named {name!r}{suggest(name, names)}; known: {', '.join(names) or 'none'}.")
    return folder("model_cards") / name


def find(name: str) -> Path | None:
    """The folder that a checkpoint's name, `dir:path`, or a spec with a checkpoint for the embedded target stands for.

    Options behind it change nothing. None for a spec that has none. Raises UsageError for one that names what nobody
    has registered, and for what lies on the Hub.
    """
    address, _ = _parted(name)
    if address is not None:
        if not address.startswith("dir:") and address not in list_checkpoints():
            raise UsageError(f"{address!r} lies on the Hub; load it, and give 'dir:path' here.")
        return _place(address, None)
    spec = parse_spec(name)
    check_names(spec)
    return _fitting(spec, None, _known_checkpoints())


def lacking(name: str) -> str | None:
    """Why a drafter cannot be loaded, found out without loading anything; None where nothing is missing here.

    name: a spec, a checkpoint's name or an address, as `load` takes it; what lies on the Hub counts as there. Raises
    UsageError for options that what is there does not take.
    """
    from drafterzoo import checkpoint

    try:
        address, options = _parted(name)
        spec = parse_spec(name) if address is None else None
        if spec is not None:
            place = _checkpoint_of(spec, None)
        elif address is not None and (address.startswith("dir:") or address in list_checkpoints()):
            place = _place(address, None)
        else:
            return None
        if place is None or not checkpoint.is_native(place):
            return None
        config = checkpoint.read_config(place)
    except DrafterzooError as error:
        return str(error)
    own, around = (options, {}) if spec is None else (spec.options, dict(spec.wrappers))
    _dealt(config, place, own, around)
    return None


def _dealt(
    config: dict[str, Any], place: Path, options: Mapping[str, Any], around: Mapping[str, Mapping[str, Any]]
) -> tuple[type[Drafter], dict[str, Any], dict[str, Mapping[str, Any]]]:
    """The base's class and what was typed for a checkpoint of this config: the base's options, and each wrapper's.

    Raises UsageError for what they do not take.
    """
    from drafterzoo.drafters.base import check_options, check_together

    _check_composition(config, place)
    cls = DRAFTERS.get(config["drafter"]["name"])
    own, beside = deal(options, cls, config, named=bool(around))
    every = {**beside, **around}
    for part, section, given in _typed(cls, config, own, every):
        check_options(part, given)
        check_together(part, section, given)
    return cls, own, every


def options_typed(name: str) -> dict[str, Any]:
    """The options of the base drafter in a spec, or behind an address. Raises UsageError as `load` does."""
    address, options = _parted(name)
    return parse_spec(name).options if address is None else options


def wrappers_typed(spec: str) -> dict[str, dict[str, Any]]:
    """The options of each wrapper in a spec, by its name. Raises UsageError as `load` does."""
    return dict(parse_spec(spec).wrappers)


def load(
    spec_or_address: str,
    target: Target | str | None = None,
    *,
    revision: str | None = None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    self_test: bool = False,
    **overrides: Any,
) -> Drafter:
    """Load a drafter, bound to its target and ready to draft.

    spec_or_address: a spec ("eagle3.1", "hass+pr(reconsider=5)"), a checkpoint's name ("eagle3.1-smollm2-135m"),
    "hub:org/name@revision", or "dir:path", each with options behind it if need be ("dir:path(packed_dtype='float32')");
    a bare "org/name" is taken as hub:. target: a Target, or what load_target takes; None loads the checkpoint's own,
    for a spec without weights the embedded default. self_test: compare a block drafter's proposals with a few answers
    of the target first (seconds), since a wrong block layout shows in nothing else. overrides: options of the base
    drafter; those behind an address may be a wrapper's, too. Of a checkpoint in somebody else's layout, which needs a
    target, also `format`, `drafter` and `aux_convention` (formats/binding.py).

    Raises UsageError (nothing of that name, an impossible combination) or CheckpointError (damaged, or for another
    target).
    """
    from drafterzoo import checkpoint
    from drafterzoo.composition import create, restore
    from drafterzoo.drafters.base import check_options
    from drafterzoo.engine.faults import blamed
    from drafterzoo.target.target import Target

    if not isinstance(spec_or_address, str):
        raise UsageError(
            f"load: the drafter is a {type(spec_or_address).__name__}, expected a text such as 'eagle3.1', "
            f"'hub:org/name' or 'dir:path'."
        )
    if target is not None and not isinstance(target, str | Target):
        raise UsageError(
            f"load: the target is a {type(target).__name__}, expected what load_target() returns, a name or a folder; "
            f"wrap a loaded model in load_target(model)."
        )
    address, options = _parted(spec_or_address)
    around: dict[str, Mapping[str, Any]] = {}
    if address is not None:
        place = _place(address, revision)
    else:
        spec = parse_spec(spec_or_address)
        check_names(spec)
        for name, typed in spec.wrappers:  # before weights are looked for: a typing error is the nearer reason
            check_options(WRAPPERS.get(name), typed)
        found = _checkpoint_of(spec, target)
        if found is None:
            bound = _target(target, None, device, dtype)
            cls = DRAFTERS.get(spec.base)
            with blamed(cls, "being made"):
                return create(spec, bound, overrides)
        place, options, around = found, spec.options, dict(spec.wrappers)
    if not checkpoint.is_native(place):
        if (known := elsewhere.find(address or "")) is not None:
            target = known.target if target is None else target
            options = {"format": known.layout, **options}
        return _ready(_read_foreign(place, target, device, dtype, {**options, **overrides}), place, self_test)
    config = checkpoint.read_config(place)
    cls, overrides, around = _dealt(config, place, {**options, **overrides}, around)
    bound = _target(target, config["target"], device, dtype)
    check_fingerprint(config["target"], bound, place)
    saved = checkpoint.read(place, bound.dtype)
    changed = _changed(saved.config["drafter"], overrides)
    for section in saved.config.get("wrappers", []):
        changed += _changed(section, around.get(section["name"], {}))
    with blamed(cls, f"being made from {place}"):
        try:
            drafter = restore(saved, bound)
        except CheckpointError as error:
            if not changed:
                raise
            raise UsageError(
                f"{spec_or_address!r}: its weights do not fit what was typed ({', '.join(changed)}), or are damaged "
                f"({str(error).rstrip('.')}); leave out options that change the shape of a weight."
            ) from error
    return _ready(drafter, place, self_test)


def _ready(drafter: Drafter, place: Path, self_test: bool) -> Drafter:
    """A drafter just read, in its target's dtype and packed as it is; self_test: its layout looked at, too."""
    from drafterzoo import checkpoint

    drafter = drafter.to(dtype=drafter.target.dtype)
    drafter.borrow()
    if drafter.target.packed:
        drafter.pack()
    if self_test:
        from drafterzoo.self_test import check_layout, has_layout

        if has_layout(drafter):
            check_layout(drafter, where=str(place / checkpoint.CONFIG))
    return drafter


def _read_foreign(
    place: Path,
    target: Target | str | None,
    device: str | torch.device | None,
    dtype: torch.dtype | None,
    options: dict[str, Any],
) -> Drafter:
    """The drafter in a folder of somebody else's layout, which says nothing of a target that could be trusted.

    Among the options may stand `format`, `drafter` and `aux_convention` (formats/binding.py).
    """
    from drafterzoo.formats.binding import read

    if target is None:
        raise UsageError(
            f"{place}: not a drafterzoo checkpoint, and other layouts do not say what target they are for; name it, "
            f"load(..., target='org/name')."
        )
    how = {key: options.pop(key) for key in ("format", "drafter", "aux_convention") if key in options}
    return read(place, _target(target, None, device, dtype), **how, options=options)


def _changed(section: dict[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Put what was typed into a section of a config, and return the keys that say something else by that."""
    changed = [key for key, value in given.items() if key not in section or section[key] != value]
    section.update(given)
    return changed


def _typed(
    base: type[Drafter], config: Mapping[str, Any], own: Mapping[str, Any], around: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[type[Drafter], Mapping[str, Any], Mapping[str, Any]]]:
    """(part, its section, the options typed for it) of those for which any were."""
    if own:
        yield base, config["drafter"], own
    for section in config.get("wrappers", []):
        if around.get(section["name"]):
            yield WRAPPERS.get(section["name"]), section, around[section["name"]]


def deal(
    options: Mapping[str, Any], base: type[Drafter], config: Mapping[str, Any], *, named: bool = False
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Options typed behind an address: the base drafter's, and by name those that only a wrapper of it has.

    named: they were typed behind the base's own name. Otherwise what nobody has is refused with all there is.
    """
    import attrs

    own, beside = dict(options), dict[str, dict[str, Any]]()
    config_class = getattr(base, "Config", object)
    known = [field.name for field in attrs.fields(config_class)] if attrs.has(config_class) else []
    every = list(known)
    for section in config.get("wrappers", []):
        theirs = [field.name for field in attrs.fields(WRAPPERS.get(section["name"]).Config) if field.name not in known]
        beside[section["name"]] = {key: own.pop(key) for key in list(own) if key in theirs}
        every += theirs
    for key in own:
        if beside and not named and key not in known:
            raise UsageError(
                f"{config['spec']}: no option {key!r}{suggest(key, every)}; the options are {', '.join(every)}."
            )
    return own, beside


def composition(spec_or_address: str) -> list[type[Drafter]]:
    """The classes that `load` would compose: of the base, then of the wrappers. No target and no weights are read.

    Raises UsageError or CheckpointError as `load` does.
    """
    from drafterzoo import checkpoint

    address, _ = _parted(spec_or_address)
    text = spec_or_address if address is None else checkpoint.read_config(_place(address, None))["spec"]
    spec = parse_spec(text)
    return [DRAFTERS.get(spec.base), *(WRAPPERS.get(name) for name, _ in spec.wrappers)]


def check_spelling(text: str) -> None:
    """Raise UsageError for what `load` could not load by its spelling alone; nothing is read or downloaded."""
    if _parted(text)[0] is None:
        check_names(parse_spec(text))


def _refuse_folder(text: str) -> None:
    if text.startswith((".", "/", "~")):
        raise UsageError(f"drafter {text!r} looks like a folder; write 'dir:{text}'.")


def _parted(text: str) -> tuple[str | None, dict[str, Any]]:
    """An address, or a checkpoint's name, and the options typed behind it; None and nothing for a spec.

    A folder that is there by its whole name has no options: its name may end in a bracket.
    """
    known = {*list_checkpoints(), *elsewhere.names()}
    if text in known or (text.startswith("dir:") and os.path.exists(_folder(text))):
        return text, {}
    _refuse_folder(text)
    address, options = split_options(text)
    if address.startswith("dir:"):
        _folder(address)  # refuses one without a name
    if address.startswith(("dir:", "hub:")) or address in known or ("/" in address and "(" not in address):
        return address, options
    return None, {}


def _folder(address: str) -> Path:
    """The folder of `dir:path`. Raises UsageError where no path is given: that would be whatever folder one is in."""
    path = address.removeprefix("dir:")
    before, plus, wrapper = path.rpartition("+")
    if plus and wrapper.partition("(")[0] in WRAPPERS.names() and os.path.isdir(os.path.expanduser(before)):
        raise UsageError(
            f"{address!r}: 'dir:{before}' is a checkpoint and takes no wrapper; one is trained around it by a recipe "
            f"that begins with it, as recipes/train/hass-pr-smollm2.toml does."
        )
    if not path.strip():
        raise UsageError(f"{address!r} names no folder; write 'dir:path', or 'dir:.' for the folder you are in.")
    return Path(os.path.expanduser(path))


def _place(address: str, revision: str | None) -> Path:
    """The folder that an address or a checkpoint's name stands for, downloaded if need be."""
    if address.startswith("dir:"):
        return _folder(address)
    if address in list_checkpoints():
        return checkpoint_folder(address)
    if (known := elsewhere.find(address)) is not None:
        from drafterzoo import hub

        return hub.pull(known.source, revision=revision or known.revision)
    if not address.startswith("hub:") and Path(address).exists():
        raise UsageError(
            f"{address!r} could be a folder or a Hub repository; write 'dir:{address}' or 'hub:{address}'."
        )
    from drafterzoo import hub

    name, at = on_hub(address, revision)
    return hub.pull(name, revision=at)


def on_hub(address: str, revision: str | None = None) -> tuple[str, str | None]:
    """Repository and revision of `hub:org/name@revision`, or of a bare `org/name`. revision: one given beside it.

    Raises UsageError for an address of anything else, and for two revisions.
    """
    name, at, typed = address.removeprefix("hub:").partition("@")
    if address.startswith("dir:") or not name or (at and not typed):
        raise UsageError(f"{address!r} is no address on the Hub; write 'hub:org/name' or 'hub:org/name@revision'.")
    if typed and revision not in (None, typed):
        raise UsageError(f"{address!r} names another revision than revision={revision!r}; leave one of them out.")
    return name, typed or revision


def fetched(name: str) -> str:
    """`hub:org/name`, once it is in the cache, as `dir:path`, options and all; any other name as it is."""
    if not name.startswith("hub:"):
        return name
    address, _ = split_options(name)
    return f"dir:{_place(address, None)}{name.removeprefix(address)}"


def check_names(spec: Spec) -> None:
    """Raise UsageError for a drafter or wrapper that nobody has registered, with the nearest name, or out of place."""
    if spec.base not in DRAFTERS and spec.base in WRAPPERS:
        raise UsageError(
            f"spec {str(spec)!r}: {spec.base!r} is a wrapper and stands behind a drafter, as in 'eagle3.1+{spec.base}'."
        )
    if spec.base not in DRAFTERS and spec.base not in DRAFTERS.broken():
        _refuse_base(spec)
    base, names = DRAFTERS.get(spec.base), [spec.base]
    for name, _ in spec.wrappers:
        if name not in WRAPPERS and name in DRAFTERS:
            raise UsageError(f"spec {str(spec)!r}: {name!r} is a drafter and stands first, before any wrapper.")
        WRAPPERS.get(name).check_base("+".join(names), base.capabilities, names)
        names.append(name)


def _refuse_base(spec: Spec) -> None:
    """Raise UsageError for what names no drafter but means something where it stands alone."""
    if spec.base == "none":
        raise UsageError(
            f"spec {str(spec)!r}: 'none' is plain decoding, which is no drafter; name one, for example 'eagle3.1'."
        )
    if spec.base in list_checkpoints():
        raise UsageError(
            f"spec {str(spec)!r}: {spec.base!r} is a checkpoint's name and takes no wrapper; `drafterzoo list "
            f"checkpoints` says which have one, as 'hass+pr' has, and `drafterzoo train` makes others."
        )


def _check_composition(config: dict[str, Any], place: Path) -> None:
    """Raise CheckpointError when a checkpoint's spec cannot be read, or says other things than its sections."""
    try:
        spec = parse_spec(config["spec"])
        check_names(spec)
    except UsageError as error:
        raise CheckpointError(
            f"{place}/config.json: {str(error).rstrip('.')}; install what it needs, or save it again with drafterzoo."
        ) from error
    parts, sections = [(spec.base, spec.options), *spec.wrappers], [config["drafter"], *config.get("wrappers", [])]
    if [name for name, _ in parts] != [section["name"] for section in sections]:
        raise CheckpointError(
            f"{place}/config.json: spec is {config['spec']!r}, but the sections are those of "
            f"{[section['name'] for section in sections]}; save the checkpoint again with drafterzoo."
        )
    for (name, options), section in zip(parts, sections, strict=True):
        for key, value in options.items():
            plain = list(value) if isinstance(value, tuple) else value
            if section.get(key, plain) != plain:
                raise CheckpointError(
                    f"{place}/config.json: spec says {name}({key}={value!r}), but the section says {section[key]!r}; "
                    f"save the checkpoint again with drafterzoo."
                )


def _checkpoint_of(spec: Spec, target: Target | str | None) -> Path | None:
    """The catalogue's checkpoint for this drafter and target; None when the drafter has no weights to load.

    Raises UsageError when it has, and the catalogue holds none for this target.
    """
    known = _known_checkpoints()
    fitting = _fitting(spec, target, known)
    if fitting is not None:
        return fitting
    if not DRAFTERS.get(spec.base).has_weights and not spec.wrappers:
        return None
    others = ", ".join(f"{name} ({config['spec']})" for name, config in known.items()) or "none"
    raise UsageError(
        f"no checkpoint of {_bare(spec)!r} for {_called(target)} comes with drafterzoo (there is: {others}); "
        f"train one with `drafterzoo train{recipe_for(_bare(spec), _called(target))}`, or load 'hub:org/name' or "
        f"'dir:path'."
    )


def recipe_for(spec: str, target: str = EMBEDDED) -> str:
    """` name` of the recipe that comes with drafterzoo and trains this drafter for this target; "" where none does.

    Rather one that begins with nothing than one that goes on from another's checkpoint, and none with other options.
    """
    from drafterzoo.parsing import parse_toml

    found = []
    for path in sorted((folder("recipes") / "train").glob("*.toml")):
        values = parse_toml(path.read_text(encoding="utf-8"))
        named = values.get("target", {}).get("name", EMBEDDED)
        if str(parse_spec(values["spec"])) == spec and named == target:
            found.append(("from_checkpoint" in values.get("init", {}), path.stem))
    return f" {min(found)[1]}" if found else ""


def _known_checkpoints() -> dict[str, dict[str, Any]]:
    """The catalogue's checkpoints and their configs."""
    from drafterzoo import checkpoint

    return {name: checkpoint.read_config(checkpoint_folder(name)) for name in list_checkpoints()}


def _fitting(spec: Spec, target: Target | str | None, known: Mapping[str, dict[str, Any]]) -> Path | None:
    """The first of the catalogue's checkpoints that is of this drafter and for this target."""
    for name, config in known.items():
        if config["spec"] == _bare(spec) and _names(target, config["target"]):
            return checkpoint_folder(name)
    return None


def _bare(spec: Spec) -> str:
    """A spec without its options."""
    return "+".join([spec.base, *(name for name, _ in spec.wrappers)])


def _called(target: Target | str | None) -> str:
    return EMBEDDED if target is None else target if isinstance(target, str) else target.name


def _names(target: Target | str | None, recorded: dict[str, Any]) -> bool:
    """Whether a checkpoint's target is the one asked for; a loaded one may lie in any folder, so it is compared."""
    if target is None or isinstance(target, str):
        return _called(target) == recorded.get("name")
    return _difference(recorded, target) is None


def _target(
    target: Target | str | None,
    recorded: dict[str, Any] | None,
    device: str | torch.device | None,
    dtype: torch.dtype | None,
) -> Target:
    from drafterzoo.target import load_target

    if isinstance(target, str):
        return load_target(target, device=device, dtype=dtype)
    if target is not None:
        if device is not None or dtype is not None:
            raise UsageError(
                f"load: {target.name} is loaded already, so device and dtype are settled; "
                f"give them to load_target instead."
            )
        return target
    if recorded is None:
        return load_target(device=device, dtype=dtype)
    return load_target(str(recorded["name"]), revision=recorded.get("revision"), device=device, dtype=dtype)


def check_fingerprint(recorded: dict[str, Any], target: Target, where: Path) -> None:
    """Raise CheckpointError when a checkpoint was made for another target: other sizes, vocabulary or tokenizer.

    The name alone is no reason: the same model may lie in another folder.
    """
    key = _difference(recorded, target)
    if key is not None:
        own, alike = target.fingerprint(), recorded.get("name") == target.name
        raise CheckpointError(
            f"{where}: made for {recorded.get('name')}, whose {key} is {_short(recorded[key])}, but "
            f"{'the one here' if alike else target.name} has {_short(own[key])}; load it with its own target, which is "
            f"done where none is named, or restore its config.json."
        )


def _difference(recorded: dict[str, Any], target: Target) -> str | None:
    """The first key, names apart, in which a recorded target differs from a loaded one; unknown values do not count."""
    own = target.fingerprint()
    for key in (key for key in own if key not in ("name", "revision")):
        if None not in (recorded.get(key), own[key]) and recorded[key] != own[key]:
            return key
    return None


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
