"""What a foreign checkpoint layout is: a file that recognises, reads and writes somebody else's key names.

Knows folders and drafters; nothing of any particular layout. Every layout is one file beside this one, or a plug-in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

from drafterzoo.drafters.base import Drafter
from drafterzoo.target.target import Target


@runtime_checkable
class Format(Protocol):
    """One layout. `detect` looks at the files alone, never at the repository's name."""

    name: str

    def detect(self, folder: Path) -> bool:
        """Whether the folder holds a checkpoint of this layout."""
        ...

    def read(self, folder: Path, target: Target) -> Drafter:
        """The drafter in the folder, bound to the target. Raises CheckpointError, strictly."""
        ...

    def write(self, drafter: Drafter, folder: Path) -> None:
        """Write the drafter in this layout. Raises UsageError for what the layout cannot express."""
        ...
