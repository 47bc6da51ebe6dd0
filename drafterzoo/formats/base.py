"""What a foreign checkpoint layout is: a file that recognises and translates somebody else's names, both ways.

Knows configs, tensors and drafters; nothing of disks, and nothing of any particular layout. Every layout is one file
beside this one, or a plug-in's. What all layouts need, and no name of anybody's, is in files.py and binding.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import attrs
from torch import Tensor

from drafterzoo.drafters.base import Drafter
from drafterzoo.target.target import Target

# What a layer id says (eagle.md 2.3): the boundary itself, or the layer whose output is meant, one boundary further.
# None where producers disagree and the file does not tell.
Convention = Literal["boundary", "layer_output"]


@attrs.frozen(eq=False)
class Files:
    """A checkpoint's folder as it is: its config, and its tensors under their own names (memory-mapped).

    stamps: what tells of a file of weights whether it has been written over since (files.check_unchanged).
    """

    folder: Path
    config_file: str
    weights_file: str
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    stamps: Mapping[Path, tuple[int, ...]] = attrs.Factory(dict)


@attrs.frozen(eq=False)
class Translated:
    """A checkpoint in our words.

    drafter: a name of the registry. section: its config as a native checkpoint says it, but for head and embedding,
    which binding.py decides; what is left out has the config's default. tensors: under native names, the head
    (`lm_head.weight`) and the embedding (`embed_tokens.weight`) where the file has them; a name that means nothing is
    left as it is, and is complained of. called: a native name as this file says it. ignored: what the file holds and a
    drafter does not (a verifier's copies), to be written back as it was. taps_as: what the layer ids of the file say,
    which `section["taps"]` has as boundaries; None where nobody can know it from the file, and then they are read as
    boundaries there. names_taps: whether the file says layer ids at all.
    """

    drafter: str
    section: dict[str, Any]
    tensors: dict[str, Tensor]
    called: Callable[[str], str] = str
    ignored: tuple[str, ...] = ()
    taps_as: Convention | None = "boundary"
    names_taps: bool = True


@attrs.frozen(eq=False)
class Contents:
    """What a layout's folder holds: config.json, and tensors under the layout's names in one file of that name."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    weights: str = "model.safetensors"


@attrs.frozen(eq=False)
class Origin:
    """Where a drafter was read from, so that it is written back in the same layout as it was, tensor for tensor.

    section: what the config says in our words, before options were set over it. called: a native name as the file says
    it. others: names in the file of tensors that the drafter does not hold itself: what was ignored, and copies of the
    target's head and embedding. weights: the file of all tensors.
    """

    format: str
    files: Files
    section: Mapping[str, Any]
    called: Callable[[str], str]
    others: tuple[str, ...]
    taps_as: Convention
    weights: str


@runtime_checkable
class Format(Protocol):
    """One layout. An instance of it is registered by name (registry.register_format).

    name: what people type. about: whose layout it is, one line. `detect` looks at config and names alone, never at the
    name of a repository or folder. `translate` raises CheckpointError, strictly, naming file and key. `contents`
    raises UsageError for what the layout cannot express; where `drafter.origin` is of this layout it begins with that.
    """

    name: str
    about: str

    def detect(self, files: Files) -> bool: ...

    def translate(self, files: Files, target: Target) -> Translated: ...

    def contents(self, drafter: Drafter) -> Contents: ...
