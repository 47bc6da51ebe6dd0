"""What packing buys on this machine: the target's linear layers, dense against packed, for few rows and for many.

    python benchmarks/packing.py                     the embedded target's layers
    python benchmarks/packing.py --rows 1 --rows 2   other numbers of rows

All the layers of a target are multiplied in turn, as one forward does, so that no weight waits in a cache for its next
use. Dense and packed alternate within a repeat: both see the same state of the machine. The last column is what
`load_target` chooses here (target/packed.py). Attention and norms are not timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from asking import at_least, run
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from drafterzoo.cpu import cpu_vendor
from drafterzoo.target import embedded, load_target
from drafterzoo.target.packed import PackedLinear, can_pack, packing_works, quickest_dense_rows

Layers = Sequence[Callable[[Tensor], Tensor]]


def layers_of(name: str) -> list[nn.Linear]:
    """Every linear layer of the target, dense."""
    model = load_target(name, packed=False).model
    return [module for module in model.modules() if can_pack(module)]


def pass_over(layers: Layers, inputs: dict[int, Tensor], widths: Sequence[int]) -> float:
    """Milliseconds of one product with every layer. widths: of the layers' inputs."""
    began = time.perf_counter()
    for layer, width in zip(layers, widths, strict=True):
        layer(inputs[width])
    return (time.perf_counter() - began) * 1e3


@torch.inference_mode()
def measure(dense: list[nn.Linear], rows: Sequence[int], repeats: int) -> list[dict[str, Any]]:
    """For every number of rows the median milliseconds of both, and the median ratio of their alternating runs."""
    packed = [PackedLinear(layer) for layer in dense]
    widths = [layer.in_features for layer in dense]
    found = []
    for count in track(rows, description="rows", transient=True):
        inputs = {width: torch.randn(count, width) for width in set(widths)}
        pairs = [(pass_over(dense, inputs, widths), pass_over(packed, inputs, widths)) for _ in range(repeats + 1)][1:]
        found.append(
            {
                "rows": count,
                "dense_ms": statistics.median(pair[0] for pair in pairs),
                "packed_ms": statistics.median(pair[1] for pair in pairs),
                "packed_over_dense": statistics.median(pair[1] / pair[0] for pair in pairs),
                "chosen": "dense" if count <= quickest_dense_rows() else "packed",
            }
        )
    return found


def main() -> None:
    """Measure and print a table, or JSON with --json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=embedded.NAME)
    parser.add_argument("--rows", type=at_least(1), action="append", help="default: 1, 2, 4, 5, 9, 25, 49")
    parser.add_argument("--repeats", type=at_least(1), default=15)
    parser.add_argument("--threads", type=at_least(1))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if not packing_works():
        raise SystemExit("packing: this build of torch has not the operators, so there is nothing to compare.")
    found = measure(layers_of(options.target), options.rows or [1, 2, 4, 5, 9, 25, 49], options.repeats)
    if options.json:
        print(json.dumps(found))
        return
    table = Table(title=f"linear layers of {options.target}; CPU of {cpu_vendor() or 'unknown make'}", title_style="")
    for head in ("rows", "dense, ms", "packed, ms", "packed / dense"):
        table.add_column(head, justify="right")
    table.add_column("chosen here")
    for row in found:
        ratio = f"{row['packed_over_dense']:.2f}"
        table.add_row(str(row["rows"]), f"{row['dense_ms']:.1f}", f"{row['packed_ms']:.1f}", ratio, row["chosen"])
    Console().print(table)


if __name__ == "__main__":
    run(main)
