"""How long a large checkpoint takes to load, and how much memory at most: native, and in somebody else's layout.

    python benchmarks/loading.py --megabytes 1000

A drafter with random weights of about that size is written into a temporary folder and loaded in float32, the dtype of
the file, onto the embedded target, unpacked; and once more packed, as `load` does it on a CPU. The peak is what the
process held at most while loading, over what it held before (Linux). Pages of the file were written just now, so they
need not come from the disk. One line of JSON comes last.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from asking import at_least, run
from memory import resident
from rich.console import Console
from rich.table import Table

import drafterzoo
from drafterzoo.composition import create
from drafterzoo.formats.writing import write_layout
from drafterzoo.registry import parse_spec
from drafterzoo.target.target import Target

LAYOUTS = ("native", "torchspec-eagle3")
WIDTH = 64  # of a head; the drafter is as wide as its size asks for


def drafter_of(target: Target, megabytes: int) -> drafterzoo.Drafter:
    """An eagle3.1 with a head and an embedding of its own that takes about so much room in float32."""
    numbers = megabytes * 1e6 / 4
    hidden = WIDTH
    while _numbers(target, hidden + WIDTH) <= numbers:
        hidden += WIDTH
    heads = hidden // WIDTH
    options = {"hidden_size": hidden, "intermediate_size": 3 * hidden, "num_heads": heads, "num_kv_heads": heads}
    whole = {"head": "own", "embedding": "own", "draft_vocab_size": target.vocab_size, "head_dim": WIDTH}
    return create(parse_spec("eagle3.1"), target, {**options, **whole})


def _numbers(target: Target, hidden: int) -> int:
    """Numbers of such a drafter: head and embedding, the layer, and the fusion of three taps."""
    return 2 * target.vocab_size * hidden + 16 * hidden * hidden + 3 * target.hidden_size * hidden


def loads(folder: Path, target: Target, repeats: int) -> Iterator[tuple[float, int]]:
    """(seconds, bytes at most) of each time the folder is loaded."""
    for _ in range(repeats):
        gc.collect()
        before = resident()
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        started = time.perf_counter()
        drafter = drafterzoo.load(f"dir:{folder}", target)
        yield time.perf_counter() - started, peak() - before
        del drafter


def peak() -> int:
    """Bytes that this process has held at most since its peak was last begun anew."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=at_least(50), default=1000)
    parser.add_argument("--repeats", type=at_least(1), default=3)
    asked = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    with tempfile.TemporaryDirectory() as made:
        writing = drafter_of(drafterzoo.load_target(packed=False), asked.megabytes)
        for layout in LAYOUTS:
            write_layout(writing, Path(made) / layout, layout)
        del writing
        for packed in (False, True):
            target = drafterzoo.load_target(packed=packed)
            for layout in LAYOUTS:
                folder = Path(made) / layout
                size = sum(file.stat().st_size for file in folder.iterdir())
                seconds, most = zip(*loads(folder, target, asked.repeats), strict=True)
                rows.append(
                    {
                        "layout": layout,
                        "packed": packed,
                        "bytes": size,
                        "seconds": statistics.median(seconds),
                        "peak": max(most),
                    }
                )
    table = Table(title="loading a checkpoint in float32", title_justify="left")
    for head in ("layout", "packed", "file MB", "seconds", "peak MB", "peak / file"):
        table.add_column(head, justify="right")
    for row in rows:
        figures = (f"{row['bytes'] / 1e6:,.0f}", f"{row['seconds']:.2f}", f"{row['peak'] / 1e6:,.0f}")
        table.add_row(row["layout"], "yes" if row["packed"] else "no", *figures, f"{row['peak'] / row['bytes']:.2f}")
    Console().print(table)
    print(json.dumps(rows))


if __name__ == "__main__":
    run(main)
