"""Writing a drafter in a named layout so that what is written is known to load back as the same drafter.

A folder appears whole or not at all. Knows drafters, layouts' round trips and folders; no names of anybody's layout.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import torch

from drafterzoo.composition import innermost
from drafterzoo.drafters.base import WEIGHTLESS, Drafter
from drafterzoo.errors import DiskError, UsageError
from drafterzoo.formats.binding import MAPS, origin_in, read_from
from drafterzoo.formats.files import read_files, write_files
from drafterzoo.registry import FORMATS

NATIVE = "native"


def write_layout(drafter: Drafter, folder: Path, layout: str) -> Path:
    """Write a bare drafter into a new folder in a layout, ours or a registered one, and read it back before it stands.

    Raises UsageError for a layout that is unknown or cannot express this drafter and for a folder that holds anything,
    DiskError where it cannot be made.
    """
    with staged(folder) as beside:
        if layout == NATIVE:
            drafter.save_pretrained(beside)
        else:
            write_files(FORMATS.get(layout).contents(drafter), beside)
            _check_back(drafter, beside, layout)
    return folder


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` to be filled, which takes its place at the end, and is gone after a failure."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: is there already and not an empty folder; name a new one.")
    beside = folder.parent / f".{folder.name}.{os.getpid()}.partial"
    try:
        beside.mkdir(parents=True)
        yield beside
        beside.rename(folder)  # over an empty folder, too
    except OSError as error:
        raise DiskError(
            f"{folder}: cannot be made ({error.strerror}); free some space or choose another folder."
        ) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _check_back(drafter: Drafter, folder: Path, layout: str) -> None:
    """Raise UsageError unless the folder reads back as the same weights and options."""
    base = innermost(drafter)
    files = read_files(folder)
    found = FORMATS.get(layout).translate(files, base.target)
    # what layer ids say is no part of most files: whoever read them was told, or found it out
    origin = origin_in(base, layout)
    convention = origin.taps_as if origin is not None and found.names_taps else "auto"
    difference = _difference(base, read_from(files, base.target, format=layout, aux_convention=convention))
    if difference is not None:
        raise UsageError(
            f"{drafter.spec}: the layout {layout!r} does not hold this drafter: read back, {difference}; choose "
            f"another layout, or save it with save_pretrained."
        )


def _difference(drafter: Drafter, again: Drafter) -> str | None:
    """In what a drafter that was read back is another, in words; None where it is the same."""
    ours, theirs = attrs.asdict(drafter.config), attrs.asdict(again.config)
    own, found = drafter.tensors(), again.tensors()
    if again.vocabulary is None and getattr(drafter.config, "head", None) == "borrowed":
        # the target's whole head in the place of some rows of it: what these propose, and more
        ours["draft_vocab_size"] = theirs["draft_vocab_size"]
        own = {key: value for key, value in own.items() if key not in MAPS}
    for key, value in ours.items():
        if key not in WEIGHTLESS and theirs.get(key) != value:
            return f"{key} is {theirs.get(key)!r} and was {value!r}"
    for key in sorted(own.keys() ^ found.keys()):
        return f"{key} is {'new' if key in found else 'missing'}"
    held = {key: value.dtype for key, value in drafter.state_dict().items()}  # beside its target: maybe rounded
    for key, tensor in own.items():
        if not torch.equal(tensor.float(), found[key].to(held.get(key, tensor.dtype)).float()):
            return f"{key} holds other numbers"
    return None
