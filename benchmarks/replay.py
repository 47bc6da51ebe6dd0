"""What offline replay saves: the wall time of a sweep of budgets replayed on rollouts, over decoding the same cells.

    python benchmarks/replay.py                        eagle3.1 and lookup at four budgets, 8 prompts of `starter`
    python benchmarks/replay.py --prompts 3 -n 32      a short look

The target answers the prompts once; that is what rollouts are, and its time is printed apart. Then each cell is decoded
by the engine, and all cells are replayed on the answers, at the same batch size, in turns, so that a machine that slows
down slows both. The rounds of both must be equal, cell by cell; one that rounding decided otherwise is counted. The
ratio is the median over repeats. One line of JSON comes last.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from asking import at_least, run
from rich.console import Console
from rich.progress import track

import drafterzoo
from drafterzoo.budget import Budget
from drafterzoo.drafters.base import Drafter
from drafterzoo.engine.decode import Settings, decode
from drafterzoo.engine.sampling import Sampling
from drafterzoo.evaluation.offline.run import evaluate
from drafterzoo.target import Target
from drafterzoo.training.generating import make_rollouts
from drafterzoo.training.prompts import read_prompts
from drafterzoo.training.rollouts import Rollout, read_rollouts

AHEAD = 8  # the deepest default tree: how far a last round can go beyond the answer


def cells(drafters: Sequence[Drafter], budgets: Sequence[Budget]) -> Iterator[tuple[Drafter, Budget]]:
    return ((drafter, budget) for budget in budgets for drafter in drafters)


def decoded(
    target: Target, drafter: Drafter, budget: Budget, rows: Sequence[Rollout], length: int, batch: int
) -> list[int]:
    """Rounds of every row, by the engine."""
    rounds = [0] * len(rows)
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        sampling = Sampling(temperature=part[0].temperature, seed=part[0].seed or 0)
        settings = Settings(budget, sampling, length, target.eos_token_ids)
        keys = [row.request or 0 for row in part]
        for emission in decode(drafter, target, [row.prompt_ids for row in part], settings, keys):
            rounds[start + emission.request] += emission.round is not None
    return rounds


def measure(
    drafters: Sequence[Drafter], budgets: Sequence[Budget], file: Path, asked: argparse.Namespace
) -> dict[str, Any]:
    """Seconds of both ways for the whole sweep, per repeat, and whether they counted the same rounds."""
    target = drafters[0].target
    rows = read_rollouts(file, target.vocab_size).rows
    times: dict[str, list[float]] = {"decode": [], "replay": []}
    unequal = 0
    for repeat in track(range(asked.repeats), "timing", console=Console(stderr=True)):
        began = time.perf_counter()
        found = {
            (drafter.spec, str(budget)): decoded(target, drafter, budget, rows, asked.max_new_tokens, asked.batch_size)
            for drafter, budget in cells(drafters, budgets)
        }
        times["decode"].append(time.perf_counter() - began)
        began = time.perf_counter()
        out = file.parent / f"out{repeat}"
        evaluate(drafters, file, budget=list(budgets), batch_size=asked.batch_size, out=out)
        times["replay"].append(time.perf_counter() - began)
        for line in map(json.loads, (out / "rollouts.jsonl").read_text().splitlines()):
            unequal += line["rounds"] != found[line["drafter"], line["budget"]][line["rollout"]]
    ratios = [d / r for d, r in zip(times["decode"], times["replay"], strict=True)]
    return {
        "target": target.name,
        "threads": torch.get_num_threads(),
        "packed": target.packed,
        "prompts": len(rows),
        "max_new_tokens": asked.max_new_tokens,
        "temperature": asked.temperature,
        "batch_size": asked.batch_size,
        "drafters": [drafter.spec for drafter in drafters],
        "budgets": [str(budget) for budget in budgets],
        "decode_s": times["decode"],
        "replay_s": times["replay"],
        "ratio": statistics.median(ratios),
        "answers_compared": len(rows) * len(drafters) * len(budgets) * asked.repeats,
        "unequal_rounds": unequal,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Replaying a sweep of budgets against decoding it.")
    parser.add_argument("-d", "--drafters", nargs="+", default=["eagle3.1", "lookup"])
    parser.add_argument("-t", "--target", help="name or directory; default: the first drafter's own")
    parser.add_argument("-b", "--budgets", nargs="+", default=["chain:4", "8", "24", "48"])
    parser.add_argument("-n", "--max-new-tokens", type=at_least(1), default=128)
    parser.add_argument("--prompts", type=at_least(1), default=8)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--batch-size", type=at_least(1), default=8)
    parser.add_argument("--repeats", type=at_least(1), default=3)
    asked = parser.parse_args()
    first = drafterzoo.load(asked.drafters[0], asked.target)
    drafters = [first, *(drafterzoo.load(name, first.target) for name in asked.drafters[1:])]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rollouts.jsonl"
        began = time.perf_counter()
        make_rollouts(
            first.target,
            read_prompts("starter", limit=asked.prompts),
            file,
            max_new_tokens=asked.max_new_tokens,
            temperatures=[asked.temperature],
            batch_size=asked.batch_size,
            look_ahead=AHEAD,
        )
        rollouts_s = time.perf_counter() - began
        found = {**measure(drafters, [Budget.parse(b) for b in asked.budgets], file, asked), "rollouts_s": rollouts_s}
    console = Console()
    console.print(
        f"{len(found['drafters'])} drafters at {len(found['budgets'])} budgets on {found['prompts']} prompts, batches "
        f"of {found['batch_size']}: decoding {statistics.median(found['decode_s']):.1f} s, replay "
        f"{statistics.median(found['replay_s']):.1f} s, ratio {found['ratio']:.1f} (median of {asked.repeats}); the "
        f"rollouts themselves {rollouts_s:.1f} s; {found['unequal_rounds']} of {found['answers_compared']} answers "
        f"counted differently"
    )
    print(json.dumps(found))


if __name__ == "__main__":
    run(main)
