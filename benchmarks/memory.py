"""What memory goes where: the process after each step of a decode, and the K/V cache as computed and as measured.

    python benchmarks/memory.py -d eagle3.1 --requests 4 --capacity 1024 --nodes 24

Resident size is read from the operating system, so pages that were reserved and never written do not count: the
caches are filled before they are measured. One line of JSON comes last.
"""

from __future__ import annotations

import argparse
import gc
import json
from pathlib import Path

import torch
from asking import at_least, run
from rich.console import Console
from rich.table import Table

import drafterzoo
from drafterzoo.budget import Budget
from drafterzoo.drafters.recurrent import RecurrentState
from drafterzoo.evaluation.runner import peak_memory
from drafterzoo.generation import generate


def resident() -> int:
    """Bytes of this process in memory now (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-d", "--drafter", default="eagle3.1")
    parser.add_argument("--requests", type=at_least(1), default=4)
    parser.add_argument("--capacity", type=at_least(1), default=1024)
    parser.add_argument("--nodes", type=at_least(1), default=24)
    asked = parser.parse_args()
    figures = {"interpreter and libraries": resident()}
    target = drafterzoo.load_target()
    figures["target loaded"] = resident()
    drafter = drafterzoo.load(asked.drafter, target)
    figures["drafter loaded"] = resident()
    budget = Budget.tree(asked.nodes)
    generate(drafter, "Name three colours.", budget=budget, max_new_tokens=16)
    gc.collect()
    before = figures["after a first answer"] = resident()
    cache = target.open_cache(asked.requests, asked.capacity, 1 + budget.nodes)
    rows = drafter.rows_per_round(budget.depth, budget.grow)
    state = drafter.open(target, asked.requests, asked.capacity, budget.depth, rows)
    with torch.inference_mode():
        for layer in cache.kv.layers:  # touch every page
            layer.keys.fill_(0)
            layer.values.fill_(0)
        if isinstance(state, RecurrentState):
            for rows_of_layer in (*state.cache.keys, *state.cache.values):
                rows_of_layer.fill_(0)
    measured = resident() - before
    computed = target.cache_nbytes(asked.requests, asked.capacity, 1 + budget.nodes)
    own = state.cache.nbytes if isinstance(state, RecurrentState) else 0
    figures["with the caches open"] = resident()
    figures["peak of the process"] = peak_memory(target.device)["peak_resident_bytes"]
    table = Table(title=f"memory, {drafter.spec} on {target.name}", title_justify="left")
    table.add_column("after")
    table.add_column("MB resident", justify="right")
    for name, size in figures.items():
        table.add_row(name, f"{size / 1e6:,.0f}")
    console = Console()
    console.print(table)
    console.print(
        f"K/V of {asked.requests} requests of {asked.capacity} tokens and {budget.nodes} nodes: target "
        f"{computed / 1e6:.1f} MB computed, {cache.nbytes / 1e6:.1f} MB held; drafter {own / 1e6:.1f} MB held; "
        f"together {measured / 1e6:.1f} MB measured"
    )
    print(json.dumps({**figures, "computed": computed, "held": cache.nbytes, "drafter": own, "measured": measured}))


if __name__ == "__main__":
    run(main)
