"""Drafters and wrappers put together: from the parts of a spec, and from the sections of a native checkpoint.

Knows the registries and the native checkpoint; nothing of names of checkpoints, of addresses or of any one part. A
checkpoint holds the base's tensors under their own keys and a wrapper's under `wrappers.<name>.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from drafterzoo import checkpoint
from drafterzoo.drafters.base import Drafter
from drafterzoo.registry import DRAFTERS, WRAPPERS, Spec
from drafterzoo.target.target import Target

PREFIX = "wrappers."


def create(spec: Spec, target: Target, options: Mapping[str, Any] | None = None) -> Drafter:
    """A composition with random weights. options: of the base drafter, over those of the spec.

    Raises UsageError for parts that do not fit, and options that they have not.
    """
    drafter = DRAFTERS.get(spec.base).create(target, **{**spec.options, **(options or {})})
    return wrap(drafter, spec)


def wrap(drafter: Drafter, spec: Spec) -> Drafter:
    """The wrappers of a spec around a bare drafter, with weights of their own where they have any."""
    for name, given in spec.wrappers:
        cls = WRAPPERS.get(name)
        drafter = cls(drafter, cls.default_config(drafter.target, **given)).to(drafter.target.device)
    return drafter


def restore(saved: checkpoint.Native, target: Target) -> Drafter:
    """The drafter of a checkpoint that has been read, wrappers and all. Raises CheckpointError as its parts do."""
    base, _ = _split(saved)
    drafter: Drafter = DRAFTERS.get(str(saved.config["drafter"]["name"])).from_checkpoint(base, target)
    return wrap_as(drafter, saved)


def wrap_as(drafter: Drafter, saved: checkpoint.Native) -> Drafter:
    """The wrappers of a checkpoint, with their options and weights, around a bare drafter of its kind."""
    _, parts = _split(saved)
    for section in saved.config.get("wrappers", []):
        drafter = WRAPPERS.get(section["name"]).around(drafter, parts[section["name"]])
    drafter.spec = saved.config["spec"]
    return drafter


def innermost(drafter: Drafter) -> Drafter:
    """The bare drafter that all wrappers are around."""
    base = getattr(drafter, "base", None)
    return drafter if base is None else innermost(base)


def _split(saved: checkpoint.Native) -> tuple[checkpoint.Native, dict[str, checkpoint.Native]]:
    """The checkpoint cut into its base's part and, by name, its wrappers', each with its own section and tensors."""
    base, parts = dict(saved.tensors), {}
    for section in saved.config.get("wrappers", []):
        prefix = f"{PREFIX}{section['name']}."
        own = {key.removeprefix(prefix): base.pop(key) for key in list(base) if key.startswith(prefix)}
        config = {**saved.config, "drafter": section}
        parts[section["name"]] = attrs.evolve(saved, config=config, tensors=own, called=prefix.__add__)
    bare = {"spec": saved.config["drafter"]["name"]} if parts else {}
    # what is nobody's stays the base's, which says so
    return attrs.evolve(saved, config={**saved.config, **bare}, tensors=base), parts
