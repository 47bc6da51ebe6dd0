"""What of a checkpoint's folder goes to the Hub: gathered in a folder of its own, and loaded back before it may go.

Knows the files of a native checkpoint and what belongs beside them; nothing of the Hub or of what a card says.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from drafterzoo.checkpoint import CONFIG, WEIGHTS
from drafterzoo.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from drafterzoo.drafters.base import Drafter
    from drafterzoo.target.target import Target

CARD = "README.md"
BESIDE = ("*.md", "LICENSE*", ".eval_results/*.yaml")  # what a repository may hold beside the checkpoint


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A copy of what is to go, for as long as the block lasts: what happens to `folder` meanwhile changes nothing.

    Raises UsageError for a folder of another layout, CheckpointError where there is none.
    """
    from drafterzoo import checkpoint

    if not checkpoint.is_native(folder):
        raise UsageError(
            f"{folder}: not a drafterzoo checkpoint, and no other is pushed; load it, and push the drafter: "
            f"drafterzoo.load('dir:...', target='org/name').push_to_hub('me/name')."
        )
    checkpoint.read_config(folder)
    with TemporaryDirectory(prefix="drafterzoo-push-") as place:
        for path in going(folder):
            copy = Path(place) / path
            copy.parent.mkdir(exist_ok=True)
            _link_or_copy(folder / path, copy)
        yield Path(place)


def going(folder: Path) -> list[str]:
    """The files of a folder that go, by their paths in it."""
    beside = [path for pattern in BESIDE for path in sorted(folder.glob(pattern))]
    named = [path for path in (folder / CONFIG, folder / WEIGHTS, *beside) if path.is_file()]
    return [path.relative_to(folder).as_posix() for path in dict.fromkeys(named)]


def staying(folder: Path) -> list[str]:
    """The names in a folder that do not go."""
    gone = {path.partition("/")[0] for path in going(folder)}
    return sorted(path.name for path in folder.iterdir() if path.name not in gone)


def sizes(folder: Path) -> dict[str, int]:
    """Every file of a staged folder and its bytes; the checkpoint's own first."""
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return {path: (folder / path).stat().st_size for path in dict.fromkeys([*going(folder), *files])}


def loads_back(folder: Path, target: Target | str | None) -> Drafter:
    """Load what was staged as anybody would who pulls it. Raises CheckpointError unless every tensor is as it was.

    target: as `load` takes it; None means the checkpoint's own.
    """
    from drafterzoo import catalogue, checkpoint
    from drafterzoo.composition import restore

    drafter = catalogue.load(f"dir:{folder}", target)
    saved = checkpoint.read(folder)
    again = restore(saved, drafter.target).tensors()  # `load` has turned them into its target's dtype
    changed = [key for key in saved.tensors if not _same_bits(saved.tensors[key], again[key])]
    if changed:
        raise CheckpointError(
            f"{folder / WEIGHTS}: tensor {min(changed)!r} comes back other than it was saved ({len(changed)} in all), "
            f"so nothing was pushed; save the drafter again with this drafterzoo."
        )
    return drafter


def _same_bits(one: Tensor, other: Tensor) -> bool:
    import torch

    alike = (one.dtype, one.shape) == (other.dtype, other.shape)
    return alike and torch.equal(*(tensor.reshape(-1).view(torch.uint8) for tensor in (one, other)))


def _link_or_copy(source: Path, copy: Path) -> None:
    """A second name for the file, which stays when the first is replaced; on another disk, a copy."""
    try:
        os.link(os.path.realpath(source), copy)
    except OSError:
        shutil.copyfile(source, copy)
