"""Places to write to: tried before long work begins, and refused in one sentence.

Knows folders, files and what a disk may say; nothing of what is written.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drafterzoo.errors import DiskError

ANOTHER_FOLDER = "free some space or name another folder with --out"
_TRIED = 1 << 14  # bytes: a disk that has no room for these has none for anything


def unwritable(what: str, error: OSError, remedy: str = ANOTHER_FOLDER) -> DiskError:
    """The error for a place that cannot be written to; `what` names it, and what was to lie there."""
    return DiskError(f"{what} cannot be written ({error.strerror or error}); {remedy}.")


@contextmanager
def writing(what: str, remedy: str = ANOTHER_FOLDER) -> Iterator[None]:
    """Around writes to a place. Raises DiskError in place of an OSError."""
    try:
        yield
    except OSError as error:
        raise unwritable(what, error, remedy) from error


def check_folder(folder: Path, what: str, remedy: str = ANOTHER_FOLDER) -> None:
    """Raise DiskError unless files can be made in the folder, or it can be made itself. Leaves nothing behind."""
    with writing(what, remedy):
        _try(_standing(folder))


def check_file(path: Path, what: str, remedy: str) -> None:
    """Raise DiskError unless the file can be made or appended to. Leaves nothing behind, and what there is as it is."""
    with writing(what, remedy):
        if not path.exists():
            _try(_standing(path.parent))
            return
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with open(path, "ab"):
            pass
        if os.access(path.parent, os.W_OK):  # else the file alone is ours, and how full its disk is shows later
            _try(path.parent)


def _standing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder


def _try(folder: Path) -> None:
    """Write to a file that has no name, or loses it at once."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(_TRIED))
        file.flush()
