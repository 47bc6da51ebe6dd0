"""The target's features of a set of rollouts, kept on disk so that every epoch need not run the target again.

Knows how to read the target once, in batches of like length, and how to slice the result; nothing of drafters'
networks or of losses. Stopped at any moment, even by kill -9, the making goes on after the last documents known to be
whole. One folder per (target and its weights, rollouts, taps):

    features.f16  [N, T*H]   taps, concatenated in tap order
    hidden.f16    [N, H]     after the final norm: what the target's head reads
    argmax.i32    [N]        the target's greedy choice for the next token
    lse.f32       [N]        log-sum-exp of the target's logits, so that exp(logit - lse) is its probability
    index.json               what all of this was made from; written last, so that half a cache is never taken for whole
    progress.json            until then: the same, and how many documents are whole, longest first
    making.lock              held by the process that makes the cache; others wait for it
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import attrs
import numpy as np
import torch
from torch import Tensor

from drafterzoo import checkpoint
from drafterzoo.errors import DataError
from drafterzoo.locks import waited_for
from drafterzoo.progress import console, progress
from drafterzoo.target.target import Target
from drafterzoo.training.identity import target_identity
from drafterzoo.training.kept import read_kept
from drafterzoo.training.rollouts import Rollouts
from drafterzoo.wording import size

_FILES = {"features.f16": np.float16, "hidden.f16": np.float16, "argmax.i32": np.int32, "lse.f32": np.float32}
_INDEX, _PROGRESS, _LOCK = "index.json", "progress.json", "making.lock"
_TOKENS_AT_ONCE = 4096
_MOST_FLOAT16 = float(np.finfo(np.float16).max)
_SECONDS_BETWEEN_SAVES = 10.0  # what a kill -9 costs at most; a Ctrl-C costs one batch
ANOTHER = 'set features = "online" or another `cache` folder in the recipe\'s [data]'

Precision = Literal["float32", "bfloat16"]


@attrs.frozen(eq=False)
class Document:
    """One rollout as training reads it.

    tokens [T], features [T, T*H], hidden [T, H], argmax [T], lse [T]; prompt: how many of the tokens are the prompt's.
    """

    tokens: Tensor
    features: Tensor
    hidden: Tensor
    argmax: Tensor
    lse: Tensor
    prompt: int


class FeatureCache:
    """Memory-mapped features of all rollouts, opened read-only."""

    def __init__(self, folder: Path, rollouts: Rollouts, max_length: int, widths: dict[str, int]) -> None:
        self.rollouts = rollouts
        lengths = [min(len(row.ids), max_length) for row in rollouts.rows]
        self.offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self._maps = {
            name: np.memmap(folder / name, dtype=kind, mode="r", shape=_shape(self.total, widths[name]))
            for name, kind in _FILES.items()
        }

    @property
    def total(self) -> int:
        return int(self.offsets[-1])

    def document(self, index: int) -> Document:
        """The rollout at `index`, features in float32."""
        start, end = int(self.offsets[index]), int(self.offsets[index + 1])
        row = self.rollouts.rows[index]
        cut = {name: torch.from_numpy(np.array(self._maps[name][start:end])) for name in _FILES}
        return Document(
            tokens=torch.tensor(row.ids[: end - start]),
            features=cut["features.f16"].float(),
            hidden=cut["hidden.f16"].float(),
            argmax=cut["argmax.i32"].long(),
            lse=cut["lse.f32"],
            prompt=len(row.prompt_ids),
        )


class OnlineFeatures:
    """The same documents, with the target run anew for every one: no disk, one target forward a step."""

    def __init__(
        self,
        target: Target,
        rollouts: Rollouts,
        taps: tuple[int, ...],
        max_length: int,
        precision: Precision = "float32",
    ) -> None:
        self.target, self.rollouts, self.taps, self.max_length = target, rollouts, taps, max_length
        self.precision: Precision = precision

    def document(self, index: int) -> Document:
        row = self.rollouts.rows[index]
        ids = row.ids[: self.max_length]
        read = read_batch(self.target, [ids], self.taps, self.precision)
        return Document(
            tokens=torch.tensor(ids),
            features=read["features.f16"][0].float().cpu(),
            hidden=read["hidden.f16"][0].float().cpu(),
            argmax=read["argmax.i32"][0].long().cpu(),
            lse=read["lse.f32"][0].cpu(),
            prompt=len(row.prompt_ids),
        )


def read_batch(
    target: Target, sequences: Sequence[Sequence[int]], taps: tuple[int, ...], precision: Precision = "float32"
) -> dict[str, Tensor]:
    """One target forward over right-padded sequences: what the cache files hold, each [n, T, ...].

    precision: of its products of matrices (autocast).
    """
    longest = max(map(len, sequences))
    tokens = torch.zeros(len(sequences), longest, dtype=torch.int64)
    valid = torch.zeros(len(sequences), longest, dtype=torch.bool)
    for i, ids in enumerate(sequences):
        tokens[i, : len(ids)] = torch.tensor(ids)
        valid[i, : len(ids)] = True
    argmax, lse = [], []
    with torch.autocast(target.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        reading = target.read(tokens.to(target.device), taps, valid.to(target.device))
        assert reading.hidden is not None, "a target's teacher forward gives hidden states"
        for rows in reading.hidden.flatten(0, 1).split(256):  # 256 rows of logits at a time bound the memory
            logits = target.head(rows).float()
            argmax.append(logits.argmax(-1))
            lse.append(logits.logsumexp(-1))
    shape = tokens.shape
    return {
        "features.f16": reading.features,
        "hidden.f16": reading.hidden,
        "argmax.i32": torch.cat(argmax).view(shape),
        "lse.f32": torch.cat(lse).view(shape),
    }


def open_cache(
    target: Target,
    rollouts: Rollouts,
    taps: tuple[int, ...],
    max_length: int,
    root: Path,
    precision: Precision = "float32",
) -> FeatureCache:
    """Open the cache for this target, these rollouts and taps, making it first, or what is missing of it, if need be.

    A finished one with a file that is missing or of another size is made again, and stderr says so. Raises DataError
    when it cannot be read or made, naming the size needed where the disk has no room for it.
    """
    identity = {
        "target": target_identity(target),
        "rollouts": rollouts.sha256,
        "taps": list(taps),
        "max_length": max_length,
    }
    if precision != "float32":
        identity["precision"] = precision
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    folder = root / key
    widths = {
        "features.f16": len(taps) * target.hidden_size,
        "hidden.f16": target.hidden_size,
        "argmax.i32": 0,
        "lse.f32": 0,
    }
    making = _Making(folder, identity, [row.ids[:max_length] for row in rollouts.rows], widths)
    if not (folder / _INDEX).is_file() or making.fault():
        _make(making, target, taps, precision)
    try:
        return FeatureCache(folder, rollouts, max_length, widths)
    except OSError as error:
        raise DataError(f"{folder}: the feature cache cannot be read ({error.strerror}); {ANOTHER}.") from error


def cache_bytes(total: int, widths: dict[str, int]) -> int:
    """Size on disk of a cache of `total` rows."""
    return sum(total * max(widths[name], 1) * np.dtype(kind).itemsize for name, kind in _FILES.items())


def _shape(total: int, width: int) -> tuple[int, ...]:
    return (total, width) if width else (total,)


def _bytes(kind: type, shape: tuple[int, ...]) -> int:
    return int(np.prod(shape)) * np.dtype(kind).itemsize


def _room(path: Path, kind: type, shape: tuple[int, ...]) -> np.memmap:
    """A new file on disk with all its blocks, mapped. A sparse one would end the process when the disk fills up later.

    Raises DataError when the disk has no room.
    """
    needed = _bytes(kind, shape)
    try:
        with open(path, "wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, needed)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise DataError(
            f"{path}: no room for {size(needed)} ({error.strerror}); free some space, or {ANOTHER}."
        ) from error
    return np.memmap(path, dtype=kind, mode="r+" if path.stat().st_size else "w+", shape=shape)


class _Making:
    """A cache on its way: its files, and how many documents of `order`, longest first, are whole in them.

    `done` counts documents that are written; on disk `progress.json` follows it, never ahead of what is in the files.
    """

    def __init__(
        self, folder: Path, identity: dict[str, Any], sequences: Sequence[Sequence[int]], widths: dict[str, int]
    ) -> None:
        self.folder, self.identity, self.sequences, self.widths = folder, identity, sequences, widths
        self.offsets = np.concatenate([[0], np.cumsum([len(s) for s in sequences])]).astype(np.int64)
        self.total = int(self.offsets[-1])
        self.bytes = cache_bytes(self.total, widths)
        self.order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]), reverse=True)
        self.done = 0
        self.files = {name: (folder / name, kind, _shape(self.total, widths[name])) for name, kind in _FILES.items()}
        self.maps: dict[str, np.memmap] = {}
        self.saved = time.monotonic()

    def fault(self) -> str | None:
        """What is wrong with the files, in words, as far as their sizes tell; None when all are there in full."""
        for path, kind, shape in self.files.values():
            needed = _bytes(kind, shape)
            try:
                found = path.stat().st_size
            except OSError:
                return f"{path.name} is missing"
            if found != needed:
                return f"{path.name} holds {found:,} bytes, expected {needed:,}"
        return None

    def open(self) -> None:
        """Open what an earlier process left, or make room anew. Raises DataError when the disk has none."""
        self.done = self._known_whole()
        if self.done:
            self.maps = {
                name: np.memmap(path, kind, "r+", shape=shape) for name, (path, kind, shape) in self.files.items()
            }
            return
        # Progress first, which speaks of the others; and none is emptied, since another training may still read it.
        for path in (self.folder / _PROGRESS, *(path for path, _, _ in self.files.values())):
            path.unlink(missing_ok=True)
        free = shutil.disk_usage(self.folder).free
        if self.bytes > free * 0.95:
            raise DataError(
                f"{self.folder}: the feature cache needs {size(self.bytes)} and {size(free)} are free; {ANOTHER}."
            )
        self.maps = {name: _room(*file) for name, file in self.files.items()}

    def _known_whole(self) -> int:
        """How many documents an earlier process says are whole; 0 where its files are not there in full."""
        kept = read_kept(self.folder / _PROGRESS) or {}
        done = kept.get("documents")
        if kept.get("identity") != self.identity or type(done) is not int or self.fault():
            return 0
        return done if 0 < done <= len(self.order) else 0

    def batches(self) -> Iterator[list[int]]:
        """What is left to read: documents of like length, cut alike however often the making was stopped."""
        while self.done < len(self.order):
            several = max(1, _TOKENS_AT_ONCE // len(self.sequences[self.order[self.done]]))
            yield self.order[self.done : self.done + several]

    def write(self, batch: Sequence[int], read: dict[str, Tensor]) -> None:
        """Write one batch into the files, and every few seconds say on disk that it is there.

        Raises DataError for a value that its file has no room for: as an infinity it would be found hours later.
        """
        plain = {name: value.float() if value.is_floating_point() else value for name, value in read.items()}
        arrays = {name: value.to("cpu").numpy() for name, value in plain.items()}  # NumPy knows no bfloat16
        for row, i in enumerate(batch):
            for name, array in arrays.items():
                own = array[row, : len(self.sequences[i])]
                if _FILES[name] is np.float16 and not (most := float(np.abs(own).max())) <= _MOST_FLOAT16:
                    raise DataError(
                        f"{self.folder}: {name} would hold {most:,.0f}, beyond what 16 bits can; set features = "
                        f'"online" in the recipe\'s [data].'
                    )
                self.maps[name][self.offsets[i] : self.offsets[i + 1]] = own
        self.done += len(batch)
        if time.monotonic() - self.saved >= _SECONDS_BETWEEN_SAVES:
            self.save()

    def save(self) -> None:
        """Bring the files to disk, then the number of documents that are whole in them."""
        for array in self.maps.values():
            array.flush()
        kept = {"identity": self.identity, "documents": self.done}
        checkpoint.write_whole(self.folder / _PROGRESS, json.dumps(kept, indent=2).encode())
        self.saved = time.monotonic()

    def finish(self) -> None:
        """Say on disk that the cache is whole."""
        for array in self.maps.values():
            array.flush()
        checkpoint.write_whole(self.folder / _INDEX, json.dumps(self.identity, indent=2).encode())
        (self.folder / _PROGRESS).unlink(missing_ok=True)


@contextmanager
def _making_room(folder: Path) -> Iterator[None]:
    """Raises DataError in place of an OSError."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{folder}: the feature cache cannot be made ({error.strerror}); {ANOTHER}.") from error


def _make(making: _Making, target: Target, taps: tuple[int, ...], precision: Precision) -> None:
    """Read the target until the cache is whole. Ctrl-C keeps what is there; another process's making is waited for."""
    folder = making.folder
    with _making_room(folder):
        folder.mkdir(parents=True, exist_ok=True)
    waiting = f"{folder}: another process is making these features; waiting for it"
    with waited_for(folder / _LOCK, waiting):
        if (folder / _INDEX).is_file():
            fault = making.fault()
            if fault is None:  # another process has just made it
                return
            console.print(f"{folder}: the feature cache is damaged ({fault}); making it again", soft_wrap=True)
        with _making_room(folder):
            (folder / _INDEX).unlink(missing_ok=True)
            making.open()
        title = f"features of {making.total:,} rows, {size(making.bytes)} in {folder}"
        if making.done:
            title += f", {making.done} of {len(making.order)} documents made before"
        there = sum(len(making.sequences[i]) for i in making.order[: making.done])
        with progress(title, making.total, "rows", there) as advance:
            try:
                for batch in making.batches():
                    making.write(batch, read_batch(target, [making.sequences[i] for i in batch], taps, precision))
                    advance(sum(len(making.sequences[i]) for i in batch))
            except KeyboardInterrupt:
                making.save()
                raise
        making.finish()
