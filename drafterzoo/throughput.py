"""What a forward of a target costs on this machine, by its rows: measured once, kept, and found again.

`drafterzoo doctor --profile` measures it; budgets with a schedule ask for it (engine/schedule.py). Knows a target's
forward over a tree and the cache folder; nothing of drafters or of schedules.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from drafterzoo.checkpoint import write_whole
from drafterzoo.cpu import cpu_model
from drafterzoo.engine.schedule import Throughput
from drafterzoo.errors import UsageError
from drafterzoo.parsing import parse_json
from drafterzoo.progress import progress
from drafterzoo.target.embedded import cache_folder
from drafterzoo.target.target import Target

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
CONTEXT = 256  # committed tokens that the rows attend
REPEATS = 9  # of each number of rows, one of each in turn
FORMAT = 1


def measured(target: Target, repeats: int = REPEATS, context: int = CONTEXT) -> Throughput:
    """Median seconds of a forward over 1 to 128 rows behind a text, each number of rows in turn."""
    context = min(context, target.max_positions - 1)
    cache = target.open_cache(1, context, max(ROWS))
    target.prefill(cache, [[1 + i % (target.vocab_size - 1) for i in range(context)]])
    times: dict[int, list[float]] = {count: [] for count in ROWS}
    with progress("measuring the target's forward", (1 + repeats) * len(ROWS), "forwards") as bar:
        for turn in range(1 + repeats):
            for count in ROWS:
                took = _timed(target, cache, count, context)
                if turn:  # the first is to warm up
                    times[count].append(took)
                bar(1)
    seconds: list[float] = []
    least = 0.0
    for count in ROWS:  # more rows never cost less: what says otherwise is noise
        least = max(least, statistics.median(times[count]))
        seconds.append(least)
    return Throughput(ROWS, tuple(seconds))


def _timed(target: Target, cache: Any, count: int, context: int) -> float:
    device = target.device
    tokens = torch.ones(1, count, dtype=torch.int64, device=device)
    positions = context + torch.arange(count, device=device)[None]
    visible = torch.ones(count, count, dtype=torch.bool, device=device).tril()[None]
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    logits = target.verify(cache, tokens, positions, visible).logits
    assert logits is not None, "verifying gives logits"
    logits.argmax(-1).tolist()  # waits for a device
    return time.perf_counter() - started


def conditions(target: Target) -> dict[str, Any]:
    """Everything that the times depend on."""
    cuda = target.device.type == "cuda"
    return {
        "target": target.fingerprint(),
        "dtype": str(target.dtype).removeprefix("torch."),
        "packed": str(target.packed),
        "device": torch.cuda.get_device_name(target.device) if cuda else cpu_model(),
        "threads": None if cuda else torch.get_num_threads(),
        "torch": torch.__version__,
    }


def kept_at(target: Target) -> Path:
    """The file that holds this target's times under the present conditions."""
    key = hashlib.sha256(json.dumps(conditions(target), sort_keys=True).encode()).hexdigest()[:16]
    return cache_folder() / "throughput" / f"{key}.json"


def keep(target: Target, found: Throughput) -> Path:
    """Write the times down, for `kept`."""
    path = kept_at(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {"format": FORMAT, "conditions": conditions(target), "rows": found.rows, "seconds": found.seconds}
    write_whole(path, json.dumps(whole, indent=2).encode())
    return path


def kept(target: Target) -> Throughput | None:
    """This target's times under the present conditions; None where nobody has measured them.

    Raises UsageError for a file that is damaged.
    """
    path = kept_at(target)
    if not path.is_file():
        return None
    try:
        whole = parse_json(path.read_text(encoding="utf-8"))
        return Throughput(tuple(map(int, whole["rows"])), tuple(map(float, whole["seconds"])))
    except (ValueError, TypeError, KeyError, OSError, UsageError) as error:
        raise UsageError(f"{path}: not a throughput profile; run `drafterzoo doctor --profile` anew.") from error
