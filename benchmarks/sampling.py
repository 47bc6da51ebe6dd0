"""What sampling costs a drafter: tau at temperature 0, and above it by how proposals are chosen and verified.

    python benchmarks/sampling.py -d eagle3.1 --suite starter --limit 20
    python benchmarks/sampling.py -d dir:runs/mine/best --suite rollouts.jsonl --temperature 0.7

Rows: greedy; coupled proposals with the drafter's own weights, with weights 1 (rank and grow by log q + g as they are)
and with one fitted scale; plain top-k; and the `rejection` rule. Columns: budgets. Every row answers the same prompts
with the same seed; under `match` the texts of all rows at one temperature are the same, and that is checked. tau counts
the bonus token and is pooled over rounds. The intervals are of the ratio of tau to the plain top-k row, by bootstrap
over prompts.
One line of JSON comes last. Nothing here is timed, so the machine may be busy.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import attrs
import torch
from asking import at_least, run
from rich.console import Console
from rich.progress import track
from rich.table import Table

import drafterzoo
from drafterzoo.budget import Budget
from drafterzoo.evaluation.statistics import paired_ratio
from drafterzoo.evaluation.suites import load_suite
from drafterzoo.generation import Generation, generate

PLAIN = "plain top-k"


@attrs.frozen
class Row:
    """One way of sampling. coupling: weights in place of the drafter's own; None keeps them."""

    name: str
    options: dict[str, Any]
    coupling: tuple[float, float] | None = None


def rows(temperature: float, scale: float | None) -> list[Row]:
    """The rows of the table; `scale` adds one with both weights at 1/scale."""
    warm = {"temperature": temperature}
    made = [
        Row("greedy (T=0)", {"temperature": 0.0}),
        Row(PLAIN, {**warm, "coupled": False}),
        Row("coupled, the drafter's weights", warm),
        Row("coupled, weights 1", warm, (1.0, 1.0)),
        Row("rejection", {**warm, "verification": "rejection"}),
    ]
    return (
        made if scale is None else [*made[:4], Row(f"coupled, scale {scale:g}", warm, (1 / scale, 1 / scale)), made[4]]
    )


def per_prompt(result: Generation) -> tuple[list[float], list[float]]:
    """Tokens committed and rounds, per prompt."""
    return [float(sum(r.committed for r in each)) for each in result.rounds], [
        float(len(each)) for each in result.rounds
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-d", "--drafter", default="eagle3.1")
    parser.add_argument("-s", "--suite", default="starter")
    parser.add_argument("-b", "--budget", action="append", default=None)
    parser.add_argument("--limit", type=at_least(1), default=20)
    parser.add_argument("-n", "--max-new-tokens", type=at_least(1), default=64)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--scale", type=float, default=None, help="add a row with this one fitted scale")
    parser.add_argument("--seed", type=at_least(0), default=0)
    parser.add_argument("--threads", type=at_least(0), default=0)
    asked = parser.parse_args()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    drafter = drafterzoo.load(asked.drafter)
    budgets = [Budget.parse(b) for b in asked.budget or ["chain:4", "8", "24"]]
    prompts = [prompt.turns[0] for prompt in load_suite(asked.suite, limit=asked.limit).prompts]
    own = drafter.config
    results: dict[str, dict[str, Generation]] = {}
    work = [(row, budget) for row in rows(asked.temperature, asked.scale) for budget in budgets]
    for row, budget in track(work, "decoding", console=Console(stderr=True)):
        drafter.config = own if row.coupling is None else attrs.evolve(own, coupling=row.coupling)
        results.setdefault(row.name, {})[str(budget)] = generate(
            drafter,
            prompts,
            budget=budget,
            max_new_tokens=asked.max_new_tokens,
            seed=asked.seed,
            batch_size=1,
            **row.options,
        )
    matched = [
        r.tokens for name, cells in results.items() if name not in ("greedy (T=0)", "rejection") for r in cells.values()
    ]
    if any(tokens != matched[0] for tokens in matched):
        raise SystemExit("texts under `match` differ between rows: not lossless")
    print_table(results, budgets, asked, len(prompts))


def print_table(results: dict[str, dict[str, Generation]], budgets: list[Budget], asked: Any, prompts: int) -> None:
    title = f"tau (bonus included, pooled) at temperature {asked.temperature:g}, {prompts} prompts of {asked.suite}"
    table = Table(
        title=title, title_justify="left", caption=f"in brackets: over {PLAIN!r}, 95 % interval, paired by prompt"
    )
    table.add_column("proposals")
    for budget in budgets:
        table.add_column(budget.brief, justify="right")
    record: dict[str, Any] = {"temperature": asked.temperature, "suite": asked.suite, "prompts": prompts, "tau": {}}
    for name, cells in results.items():
        words = [name]
        for budget in budgets:
            result, base = cells[str(budget)], results[PLAIN][str(budget)]
            ratio = paired_ratio(*per_prompt(result), *per_prompt(base))
            told = name in (PLAIN, "greedy (T=0)") or ratio.low is None or ratio.high is None
            words.append(
                f"{result.tau:.3f}" + ("" if told else f" ({ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}])")
            )
            record["tau"].setdefault(name, {})[str(budget)] = {"tau": round(result.tau, 4), "ratio": ratio.as_dict()}
        table.add_row(*words)
    Console().print(table)
    print(json.dumps(record))


if __name__ == "__main__":
    run(main)
