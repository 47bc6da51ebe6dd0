"""What the layouts of block drafters share beside their configs: names, heads and copies, and the way back.

Source: block.md 1.4, 3.3 and 6. Knows tensors by name and block drafters; a framework's own names and switches are in
that layout's file, and what a config says in block_config.py.

How drafterzoo runs a drafter (coupling, packed_dtype, fitted temperatures, a budget) is part of nobody's layout but its
own, and is not written. A vector that stands in the empty slots (mask_token_id=None) has no place in any either: they
all take an embedding's row, and a drafter with such a vector is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from drafterzoo.drafters.base import Drafter
from drafterzoo.drafters.headed import HeadedDrafter
from drafterzoo.errors import CheckpointError, UsageError
from drafterzoo.formats.base import Contents, Convention, Files, Translated
from drafterzoo.formats.binding import EMBEDDING, HEAD, as_file, is_copy, sections
from drafterzoo.target.target import Target

PREFIXES = ("module.", "draft_model.", "model.")  # that some trainers leave on every name (block.md 5.2 and 6)


class BlockLayout:
    """A layout that writes a drafter's config anew, or as it was where it came from this layout and says the same.

    A subclass says what a config means (`section`), what it cannot hold (`check`), and how it would write one (`anew`).
    drafter: what its folders become. carries: which of head and embedding they hold, even where these are the target's;
    frozen: which are the target's in any case. taps_as: what its layer ids say.
    """

    name: str
    about: str
    drafter: str
    weights = "model.safetensors"
    carries: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    taps_as: Convention = "layer_output"

    def detect(self, files: Files) -> bool:
        raise NotImplementedError(f"{self.name} must define detect")

    def section(self, config: Mapping[str, Any], where: str, target: Target) -> dict[str, Any]:
        """Our config, but for head and embedding. Raises CheckpointError naming `where` and the key."""
        raise NotImplementedError(f"{self.name} must define section")

    def check(self, drafter: Drafter, section: Mapping[str, Any]) -> None:
        """Raise UsageError for a drafter that the layout cannot hold."""
        raise NotImplementedError(f"{self.name} must define check")

    def anew(self, drafter: Drafter, section: Mapping[str, Any]) -> dict[str, Any]:
        """config.json as the framework would write it."""
        raise NotImplementedError(f"{self.name} must define anew")

    def called(self, key: str) -> str:
        """A native name as the framework says it."""
        return key

    def native(self, key: str) -> str:
        """A name of the framework's as drafterzoo says it."""
        return bare(key)

    def ignores(self, key: str) -> bool:
        """Whether a tensor of that native name means nothing to a drafter, and is only kept."""
        return False

    def translate(self, files: Files, target: Target) -> Translated:
        section = self.section(files.config, files.config_file, target)
        every, names = renamed(files, self.native)
        tensors = {key: value for key, value in every.items() if not self.ignores(key)}
        tensors = split_fused(files, section, tensors)
        check_flags(files, section, tensors)
        check_fusion(files, section, tensors, names.get("fc.weight", "fc.weight"))
        check_copies(files, {names[key]: key for key in self.frozen if key in names}, target)
        ignored = tuple(names[key] for key in every.keys() - tensors.keys() if self.ignores(key))
        return Translated(
            self.drafter, section, tensors, lambda key: names.get(key, self.called(key)), ignored, self.taps_as
        )

    def contents(self, drafter: Drafter) -> Contents:
        section = sections(drafter)
        self.check(drafter, section)
        tensors = as_file(drafter, self.name, drafter.tensors(), self.called)
        origin = drafter.origin
        if origin is None or origin.format != self.name:
            lent = {self.called(key): value for key, value in copies(drafter, self.carries).items()}
            return Contents(self.anew(drafter, section), {**lent, **tensors}, self.weights)
        said = self.section(origin.config, self.name, drafter.target)
        same = all(section[key] == value for key, value in said.items())
        config = dict(origin.config) if same else self.anew(drafter, section)
        return Contents(config, fuse_again(tensors, origin.dtypes), self.weights)


# -- checking tensors ------------------------------------------------------------------------------------------------


def check_flags(files: Files, section: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
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
                f"{files.weights_file}: tensor {there!r} is here, but {flag!r} in {files.config_file} asks for no such "
                f"head; the flag is wrong, or the two files do not belong together."
            )


def check_fusion(files: Files, section: Mapping[str, Any], tensors: Mapping[str, Tensor], called: str) -> None:
    """Raise CheckpointError where what fuses the taps is not as wide as the layer ids say."""
    fusion, count, width = tensors.get("fc.weight"), len(section["taps"]), section["target_hidden_size"]
    if fusion is not None and (fusion.dim() != 2 or fusion.shape[1] != count * width):
        raise CheckpointError(
            f"{files.weights_file}: tensor {called!r} has shape {list(fusion.shape)}, expected {count * width} columns "
            f"for {count} layer ids of width {width}; the ids are not those it was trained with."
        )


def bare(key: str) -> str:
    """A name without what trainers leave in front of it."""
    while (prefix := next((one for one in PREFIXES if key.startswith(one)), None)) is not None:
        key = key.removeprefix(prefix)
    return key


def check_copies(files: Files, frozen: Mapping[str, str], target: Target) -> None:
    """Raise CheckpointError for a head or an embedding that is not the target's, where the framework takes that.

    frozen: native names, by name in the file.
    """
    for called, key in frozen.items():
        if not is_copy(files.tensors[called], key, {}, target):
            raise CheckpointError(
                f"{files.weights_file}: tensor {called!r} is not that of {target.name}, which this layout takes in any "
                f"case; load it with its own target, or remove the tensor."
            )


def renamed(files: Files, native: Callable[[str], str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(tensors under native names, by native name what the file calls them).

    Raises CheckpointError for two tensors that are the same one by different names.
    """
    tensors: dict[str, Tensor] = {}
    names: dict[str, str] = {}
    for key, value in files.tensors.items():
        own = native(key)
        if own in names:
            raise CheckpointError(
                f"{files.weights_file}: tensors {names[own]!r} and {key!r} are the same one by two names; remove one."
            )
        tensors[own], names[own] = value, key
    return tensors, names


# -- writing ---------------------------------------------------------------------------------------------------------


def check_expressible(drafter: Drafter, layout: str, *problems: tuple[bool, str]) -> None:
    """Raise UsageError for the first (whether it is so, what the layout holds in its place) that is so.

    The first must be the drafter's name, since nothing is known of the config of others.
    """
    section = sections(drafter)
    usual = (
        (not section.get("qk_norm"), "no drafter without norms of queries and keys (qk_norm=False)"),
        (section.get("mask_token_id") is None, "no mask vector of a drafter's own (mask_token_id=None), only an id"),
        (section["hidden_size"] != section["target_hidden_size"], "no drafter of another width than its target's"),
    )
    for found, what in (*problems, *usual):
        if found:
            raise UsageError(
                f"{drafter.spec}: layout {layout!r} holds {what}; choose another layout, or save it with "
                f"save_pretrained."
            )


def copies(drafter: Drafter, keys: Sequence[str]) -> dict[str, Tensor]:
    """Of head and embedding those that are borrowed, in the dtype that the drafter is stored in."""
    assert isinstance(drafter, HeadedDrafter), "block drafters have a head"
    lent = {
        HEAD: (drafter.config.head, drafter.target.head_weight(drafter.vocabulary)),
        EMBEDDING: (drafter.config.embedding, drafter.target.embedding_weight()),
    }
    return {
        key: value.detach().to("cpu", drafter.storage_dtype, copy=True)
        for key, (whose, value) in lent.items()
        if key in keys and whose == "borrowed"
    }


def split_fused(files: Files, section: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors with every `qkv_proj` taken apart, as some exports write the three projections."""
    widths = [section[heads] * section["head_dim"] for heads in ("num_heads", "num_kv_heads", "num_kv_heads")]
    found: dict[str, Tensor] = {}
    for key, value in tensors.items():
        if ".qkv_proj." not in key:
            found[key] = value
            continue
        if value.shape[0] != sum(widths):
            raise CheckpointError(
                f"{files.weights_file}: tensor {key!r} has {value.shape[0]} rows, expected {sum(widths)} for queries, "
                f"keys and values of {widths}; the file does not belong to its config.json."
            )
        parts = dict(zip(_parts(key), value.split(widths), strict=True))
        if parts.keys() & tensors.keys():
            raise CheckpointError(f"{files.weights_file}: tensor {key!r} is there, and its parts are, too; remove one.")
        found |= parts
    return found


def fuse_again(tensors: Mapping[str, Tensor], dtypes: Mapping[str, torch.dtype]) -> dict[str, Tensor]:
    """The opposite, for a file of these names and dtypes."""
    fused = [key for key in dtypes if ".qkv_proj." in key]
    gone = {part for key in fused for part in _parts(key)}
    whole = {key: torch.cat([tensors[part] for part in _parts(key)]).to(dtypes[key]) for key in fused}
    return {**{key: value for key, value in tensors.items() if key not in gone}, **whole}


def _parts(key: str) -> tuple[str, str, str]:
    q, k, v = (key.replace(".qkv_proj.", f".{part}_proj.") for part in "qkv")
    return q, k, v
