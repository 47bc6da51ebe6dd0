"""The target's features of a set of rollouts, kept on disk so that every epoch need not run the target again.

Knows how to read the target once, in batches of like length, and how to slice the result; nothing of drafters'
networks or of losses. One folder per (target, rollouts, taps):

    features.f16  [N, T*H]   taps, concatenated in tap order
    hidden.f16    [N, H]     after the final norm: what the target's head reads
    argmax.i32    [N]        the target's greedy choice for the next token
    lse.f32       [N]        log-sum-exp of the target's logits, so that exp(logit - lse) is its probability
    index.json               what all of this was made from; written last, so that half a cache is never taken for whole
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from drafterzoo import checkpoint
from drafterzoo.errors import DataError
from drafterzoo.progress import progress
from drafterzoo.target.target import Target
from drafterzoo.training.rollouts import Rollouts

_FILES = {"features.f16": np.float16, "hidden.f16": np.float16, "argmax.i32": np.int32, "lse.f32": np.float32}
_TOKENS_AT_ONCE = 2048


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

    def __init__(self, target: Target, rollouts: Rollouts, taps: tuple[int, ...], max_length: int) -> None:
        self.target, self.rollouts, self.taps, self.max_length = target, rollouts, taps, max_length

    def document(self, index: int) -> Document:
        row = self.rollouts.rows[index]
        ids = row.ids[: self.max_length]
        read = read_batch(self.target, [ids], self.taps)
        return Document(
            tokens=torch.tensor(ids),
            features=read["features.f16"][0].float().cpu(),
            hidden=read["hidden.f16"][0].float().cpu(),
            argmax=read["argmax.i32"][0].long().cpu(),
            lse=read["lse.f32"][0].cpu(),
            prompt=len(row.prompt_ids),
        )


def read_batch(target: Target, sequences: Sequence[Sequence[int]], taps: tuple[int, ...]) -> dict[str, Tensor]:
    """One target forward over right-padded sequences: what the cache files hold, each [n, T, ...]."""
    longest = max(map(len, sequences))
    tokens = torch.zeros(len(sequences), longest, dtype=torch.int64)
    valid = torch.zeros(len(sequences), longest, dtype=torch.bool)
    for i, ids in enumerate(sequences):
        tokens[i, : len(ids)] = torch.tensor(ids)
        valid[i, : len(ids)] = True
    reading = target.read(tokens.to(target.device), taps, valid.to(target.device))
    assert reading.hidden is not None, "a target's teacher forward gives hidden states"
    argmax, lse = [], []
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


def open_cache(target: Target, rollouts: Rollouts, taps: tuple[int, ...], max_length: int, root: Path) -> FeatureCache:
    """Open the cache for this target, these rollouts and taps, making it first if need be.

    Raises DataError when the disk has no room for it, naming the size needed.
    """
    identity = {
        "target": target.fingerprint(),
        "rollouts": rollouts.sha256,
        "taps": list(taps),
        "max_length": max_length,
    }
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    folder = root / key
    widths = {
        "features.f16": len(taps) * target.hidden_size,
        "hidden.f16": target.hidden_size,
        "argmax.i32": 0,
        "lse.f32": 0,
    }
    if not (folder / "index.json").is_file():
        _make(folder, identity, target, rollouts, taps, max_length, widths)
    return FeatureCache(folder, rollouts, max_length, widths)


def cache_bytes(total: int, widths: dict[str, int]) -> int:
    """Size on disk of a cache of `total` rows."""
    return sum(total * max(widths[name], 1) * np.dtype(kind).itemsize for name, kind in _FILES.items())


def _shape(total: int, width: int) -> tuple[int, ...]:
    return (total, width) if width else (total,)


def _room(path: Path, kind: type, shape: tuple[int, ...]) -> np.memmap:
    """A new file on disk with all its blocks, mapped. A sparse one would end the process when the disk fills up later.

    Raises DataError when the disk has no room.
    """
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    try:
        with open(path, "wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise DataError(
            f'{path}: no room for {size / 1e9:.1f} GB ({error.strerror}); free some space, or set features = "online" '
            f"or another `cache` folder in the recipe's [data]."
        ) from error
    return np.memmap(path, dtype=kind, mode="r+" if path.stat().st_size else "w+", shape=shape)


def _make(
    folder: Path,
    identity: dict[str, Any],
    target: Target,
    rollouts: Rollouts,
    taps: tuple[int, ...],
    max_length: int,
    widths: dict[str, int],
) -> None:
    sequences = [row.ids[:max_length] for row in rollouts.rows]
    offsets = np.concatenate([[0], np.cumsum([len(s) for s in sequences])]).astype(np.int64)
    total = int(offsets[-1])
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f'{folder}: the feature cache cannot be made ({error.strerror}); set features = "online" or another '
            f"`cache` folder in the recipe's [data]."
        ) from error
    need, free = cache_bytes(total, widths), shutil.disk_usage(folder).free
    if need > free * 0.95:
        raise DataError(
            f"{folder}: the feature cache needs {need / 1e9:.1f} GB and {free / 1e9:.1f} GB are free; "
            f'set features = "online" or another `cache` folder in the recipe\'s [data].'
        )
    maps = {name: _room(folder / name, kind, _shape(total, widths[name])) for name, kind in _FILES.items()}
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]), reverse=True)
    with progress(f"features of {total:,} rows, {need / 1e9:.1f} GB in {folder}", total, "rows") as advance:
        while order:
            several = max(1, _TOKENS_AT_ONCE // len(sequences[order[0]]))
            batch, order = order[:several], order[several:]
            read = read_batch(target, [sequences[i] for i in batch], taps)
            arrays = {name: value.to("cpu").numpy() for name, value in read.items()}
            for row, i in enumerate(batch):
                for name, array in arrays.items():
                    maps[name][offsets[i] : offsets[i + 1]] = array[row, : len(sequences[i])]
            advance(sum(len(sequences[i]) for i in batch))
    for array in maps.values():
        array.flush()
    checkpoint.write_whole(folder / "index.json", json.dumps(identity, indent=2).encode())
