"""What the layouts of block drafters share beside their configs: names, heads and copies, and the way back.

Source: block.md 1.4, 3.3 and 6. Knows tensors by name and block drafters; a framework's own names and switches are in
that layout's file, and what a config says in block_config.py.

How drafterzoo runs a drafter (coupling, packed_dtype, fitted temperatures, a budget) is part of nobody's layout but its
own, and is not written. A vector that stands in the empty slots (mask_token_id=None) has no place in any either: they
all take an embedding's row, and a drafter with such a vector is refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from drafterzoo.checkpoint import WEIGHTS
from drafterzoo.drafters.base import Drafter
from drafterzoo.errors import CheckpointError, UsageError
from drafterzoo.formats.base import Contents, Convention, Files, Translated
from drafterzoo.formats.binding import (
    as_contents,
    is_copy,
    lent_tensors,
    origin_in,
    sections,
    whole_head,
)
from drafterzoo.formats.block_config import aligned
from drafterzoo.formats.names import Names
from drafterzoo.target.target import Target


class BlockLayout(ABC):
    """A layout of block drafters. A subclass says what a config means, what it cannot hold, and how it writes one.

    drafter: what its folders become. begins: how names begin there, and how they do here; older: how they began once,
    which is read, and written only to go back. ignored: beginnings of native names that mean nothing to a drafter.
    carries: which of head and embedding its folders hold, even where these are the target's; frozen: which are the
    target's in any case; whole: whether the head is the target's whole one. taps_as: what its layer ids say.
    """

    name: str
    about: str
    drafter: str
    weights: str = WEIGHTS
    begins: tuple[tuple[str, str], ...] = ()
    older: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    carries: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    whole: bool = False
    taps_as: Convention = "layer_output"

    @abstractmethod
    def detect(self, files: Files) -> bool:
        """Whether a folder is of this layout, by config and names alone."""

    @abstractmethod
    def section(self, files: Files, target: Target) -> dict[str, Any]:
        """Our config, but for head and embedding. Raises CheckpointError naming file and key."""

    @abstractmethod
    def check(self, drafter: Drafter, section: Mapping[str, Any]) -> None:
        """Raise UsageError for a drafter that the layout cannot hold."""

    @abstractmethod
    def anew(self, drafter: Drafter, section: Mapping[str, Any]) -> dict[str, Any]:
        """A section as a config that the framework would write."""

    def translate(self, files: Files, target: Target) -> Translated:
        section = self.section(files, target)
        names = attrs.evolve(Names.of(files, *self.begins, *self.older), begins=self.begins)
        ignored = tuple(name for native, name in names.seen.items() if native.startswith(self.ignored))
        tensors = {key: value for key, value in names.native(files).items() if names(key) not in ignored}
        tensors = split_fused(files, section, tensors)
        check_flags(files, section, tensors, names)
        check_fusion(files, section, tensors, names)
        check_copies(files, self.frozen, tensors, names, target)
        return Translated(self.drafter, section, tensors, names, ignored, self.taps_as)

    def contents(self, drafter: Drafter) -> Contents:
        self.check(drafter, sections(drafter))
        origin = origin_in(drafter, self.name)
        if origin is not None and origin.taps_as != self.taps_as:
            raise UsageError(
                f"{drafter.spec}: was read with aux_convention={origin.taps_as!r}, and layout {self.name!r} always "
                f"means {self.taps_as!r}; save it with save_pretrained."
            )
        made = as_contents(
            drafter,
            self.name,
            written=lambda section: self.anew(drafter, section),
            called=Names(self.begins),
            lent=lambda: lent_tensors(drafter, *self.carries),
            weights=self.weights,
        )
        tensors = made.tensors if origin is None else fuse_again(made.tensors, origin.files.tensors)
        tensors = whole_head(tensors, drafter, self.name) if self.whole else tensors
        return Contents(aligned(made.config), tensors, made.weights)


# -- reading tensors -------------------------------------------------------------------------------------------------


def split_fused(files: Files, section: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors with every `qkv_proj` taken apart, as some exports write the three projections."""
    widths = [section[heads] * section["head_dim"] for heads in ("num_heads", "num_kv_heads", "num_kv_heads")]
    found: dict[str, Tensor] = {}
    for key, value in tensors.items():
        if ".qkv_proj." not in key:
            found[key] = value
            continue
        if not value.dim() or value.shape[0] != sum(widths):
            raise CheckpointError(
                f"{files.weights_file}: tensor {key!r} has {value.shape[0] if value.dim() else 'no'} rows, expected "
                f"{sum(widths)} for queries, keys and values of {widths}; the file does not belong to its config.json."
            )
        parts = dict(zip(_parts(key), value.split(widths), strict=True))
        if parts.keys() & tensors.keys():
            raise CheckpointError(f"{files.weights_file}: tensor {key!r} is there, and its parts are, too; remove one.")
        found |= parts
    return found


def check_flags(files: Files, section: Mapping[str, Any], tensors: Mapping[str, Tensor], names: Names) -> None:
    """Raise CheckpointError for a head without its flag, and for a flag without its head."""
    flags = (
        ("markov_head.", "markov_rank", section.get("markov", "none") != "none"),
        ("confidence_head.", "enable_confidence_head", section.get("confidence", False)),
        ("hidden_correction.", "enable_hidden_correction", section.get("correction", False)),
    )
    for prefix, flag, on in flags:
        there = min((key for key in tensors if key.startswith(prefix)), default=None)
        if on and there is None:
            raise CheckpointError(
                f"{files.weights_file}: no tensor begins with {prefix!r}, expected such because {flag!r} in "
                f"{files.config_file} asks for them; the two files do not belong together."
            )
        if not on and there is not None:
            raise CheckpointError(
                f"{files.weights_file}: tensor {names(there)!r} is here, but {flag!r} in {files.config_file} asks for "
                f"no such head; the flag is wrong, or the two files do not belong together."
            )


def check_fusion(files: Files, section: Mapping[str, Any], tensors: Mapping[str, Tensor], names: Names) -> None:
    """Raise CheckpointError where what fuses the taps is not as wide as the layer ids say."""
    fusion, count, width = tensors.get("fc.weight"), len(section["taps"]), section["target_hidden_size"]
    if fusion is not None and (fusion.dim() != 2 or fusion.shape[1] != count * width):
        raise CheckpointError(
            f"{files.weights_file}: tensor {names('fc.weight')!r} has shape {list(fusion.shape)}, expected "
            f"{count * width} columns for {count} layer ids of width {width}; they are not the ids of its training."
        )


def check_copies(
    files: Files, frozen: tuple[str, ...], tensors: Mapping[str, Tensor], names: Names, target: Target
) -> None:
    """Raise CheckpointError for a head or an embedding that is not the target's, where the framework takes that."""
    for key in frozen:
        if key in tensors and not is_copy(tensors[key], key, tensors, target):
            raise CheckpointError(
                f"{files.weights_file}: tensor {names(key)!r} is not that of {target.name}, which this layout takes in "
                f"any case; load it with its own target, or remove the tensor."
            )


# -- writing ---------------------------------------------------------------------------------------------------------


def check_expressible(drafter: Drafter, layout: str, *problems: tuple[bool, str]) -> None:
    """Raise UsageError for the first (whether it is so, what the layout holds in its place) that is so.

    The first must be the drafter's name, since nothing is known of the config of others.
    """
    section = sections(drafter)
    usual = (
        (not section.get("qk_norm"), "no drafter without norms of queries and keys (qk_norm=False)"),
        (section.get("mask_token_id") is None, "no mask vector of a drafter's own (mask_token_id=None), only an id"),
        (
            section.get("hidden_size") != section.get("target_hidden_size"),
            "no drafter of another width than its target's",
        ),
    )
    for found, what in (*problems, *usual):
        if found:
            raise UsageError(
                f"{drafter.spec}: layout {layout!r} holds {what}; choose another layout, or save it with "
                f"save_pretrained."
            )


def fuse_again(tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The opposite, for a file that holds what `like` does."""
    fused = [key for key in like if ".qkv_proj." in key]
    gone = {part for key in fused for part in _parts(key)}
    whole = {key: torch.cat([tensors[part] for part in _parts(key)]).to(like[key].dtype) for key in fused}
    return {**{key: value for key, value in tensors.items() if key not in gone}, **whole}


def _parts(key: str) -> tuple[str, str, str]:
    q, k, v = (key.replace(".qkv_proj.", f".{part}_proj.") for part in "qkv")
    return q, k, v
