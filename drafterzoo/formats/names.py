"""A layout's names for our tensors, and back: other beginnings, and what trainers leave before them.

Source: eagle.md 2.1, block.md 5.2 and 6. Knows texts; nothing of any layout or of what is in a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import attrs
from torch import Tensor

from drafterzoo.errors import CheckpointError
from drafterzoo.formats.base import Files

MODEL = "model."  # before all names where a whole model was saved, and not its inside
PREFIXES = ("module.", "draft_model.", MODEL)  # what may stand before a name, also several of them


@attrs.frozen(eq=False)
class Names:
    """Called with a native name it gives the file's; for one that the file has not, what it would be called there.

    begins: how names begin in the layout, and how they do here. seen: the file's names by native ones.
    """

    begins: tuple[tuple[str, str], ...] = ()
    seen: Mapping[str, str] = attrs.Factory(dict)

    @classmethod
    def of(cls, files: Files, *begins: tuple[str, str]) -> Self:
        """Those of a file. Raises CheckpointError where two names mean the same tensor."""
        seen: dict[str, str] = {}
        for name in files.tensors:
            native = _native(name, begins)
            if native in seen:
                raise CheckpointError(
                    f"{files.weights_file}: holds both {seen[native]!r} and {name!r}, which are one tensor; take out "
                    f"the one that was not trained."
                )
            seen[native] = name
        return cls(begins, seen)

    def __call__(self, native: str) -> str:
        if native in self.seen:
            return self.seen[native]
        prefix = max((_prefix(name) for name in self.seen.values()), key=len, default="")
        for theirs, ours in self.begins:
            if native.startswith(ours):
                return prefix + theirs + native.removeprefix(ours)
        return prefix + native

    def native(self, files: Files) -> dict[str, Tensor]:
        """The file's tensors under native names."""
        return {native: files.tensors[name] for native, name in self.seen.items()}


def _native(name: str, begins: tuple[tuple[str, str], ...]) -> str:
    bare = name.removeprefix(_prefix(name))
    for theirs, ours in begins:
        if bare.startswith(theirs):
            return ours + bare.removeprefix(theirs)
    return bare


def _prefix(name: str) -> str:
    """What stands before a name."""
    at = 0
    while (one := next((prefix for prefix in PREFIXES if name.startswith(prefix, at)), None)) is not None:
        at += len(one)
    return name[:at]
