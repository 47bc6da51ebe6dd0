"""What reconsidering costs: the time of a whole round with `+pr` over the bare drafter's, and done serially instead.

    python benchmarks/coforward.py                          eagle3.1 with random weights on the embedded target
    python benchmarks/coforward.py -d dir:runs/mine/best    a trained drafter, bare or with `+pr`

Three drafters of the same weights decode the same prompt at the same budget, a round of each in turn, so that all see
the same state of the machine: the bare one, `+pr` as it is, whose second passes ride in the batch of the next draft
step, and `+pr` that forwards them in a call of their own after it. A ratio is the median over turns.
With random weights hardly a draft is accepted; the cost of a round hardly depends on that.
"""

from __future__ import annotations

import json
import statistics
from typing import Any

import torch
from asking import at_least, run
from overhead import WARM_UP, a_parser, opened, the_drafter
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from drafterzoo.budget import Budget
from drafterzoo.composition import innermost
from drafterzoo.drafters.base import Drafter
from drafterzoo.drafters.recurrent import RecurrentBody
from drafterzoo.engine.contract import Frontier
from drafterzoo.engine.decode import Round
from drafterzoo.wrappers.pr import PrState, Reconsideration


class Serial(Reconsideration):
    """Parallel Reconsideration without its parallel: the second passes get a forward of block and head of their own."""

    def logits_of_rows(self, state: PrState, rows: Frontier, width: int, embedded: Tensor, hidden: Tensor) -> Tensor:
        parts = []
        for start, stop in ((0, width), (width, rows.width)):
            of = (embedded[:, start:stop], hidden[:, start:stop], rows.positions[:, start:stop])
            first, settle = rows.first_row + start, self.settling(width - start, hidden[:, start:stop])
            seen = rows.visible[:, start:stop, : rows.first_row + stop]
            if stop > start:
                parts.append(self.base.draft_rows(state.base, first, *of, seen, settle))
        return torch.cat([self.base.logits(part) for part in parts], dim=1)


def three(address: str | None, target: str | None, options: dict[str, Any]) -> dict[str, Drafter]:
    """The bare drafter, with `+pr`, and with `+pr` done serially, all of one set of weights."""
    loaded = the_drafter(address, target, draft_vocab_size=12288)
    base = innermost(loaded)
    if base.target.packed and base.packed is None:
        base.pack()
    config = loaded.config if isinstance(loaded, Reconsideration) else None
    if not isinstance(base, RecurrentBody):
        raise SystemExit(f"coforward: {base.spec} is no recurrent drafter, and pr cannot be around it.")
    config = Reconsideration.default_config(base.target, **options) if config is None or options else config
    both = (Reconsideration(base, config), Serial(base, config))
    for one in both:
        if base.packed is not None:
            one.pack()
    return {"bare": base, "co-forwarded": both[0].eval(), "serial": both[1].eval()}


def measure(drafters: dict[str, Drafter], budget: Budget, n: int, repeats: int) -> dict[str, Any]:
    """Medians of a round of each: milliseconds, drafter's forwards, ratio to the bare drafter's with its quartiles."""
    batches = {name: opened(drafter, drafter.target, budget, n, 0.0, repeats) for name, drafter in drafters.items()}
    rounds: dict[str, list[Round]] = {name: [] for name in batches}
    for _ in range(WARM_UP + repeats):
        for name, batch in batches.items():
            found = batch.round()[0].round
            assert found is not None, "prefill alone has none"
            rounds[name].append(found)
    bare = rounds["bare"][WARM_UP:]
    rows = {name: _row(made[WARM_UP:], bare) for name, made in rounds.items()}
    return {"nodes": budget.nodes, "n": n, "repeats": repeats, "rounds": rows}


def _row(made: list[Round], bare: list[Round]) -> dict[str, Any]:
    ratios = [_seconds(one) / _seconds(other) for one, other in zip(made, bare, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "ms": round(1e3 * statistics.median(map(_seconds, made)), 3),
        "draft_ms": round(1e3 * statistics.median(one.draft_s for one in made), 3),
        "forwards": statistics.median(one.forwards for one in made),
        "ratio": round(middle, 4),
        "quartiles": [round(low, 4), round(high, 4)],
    }


def _seconds(one: Round) -> float:
    return one.draft_s + one.verify_s + one.rest_s


def show(rows: list[dict[str, Any]], title: str) -> None:
    """A table for a terminal."""
    table = Table(title=title)
    for head in ("nodes", "n"):
        table.add_column(head, justify="right")
    table.add_column("second passes")
    for head in ("forwards", "drafter ms", "round ms", "round / bare", "quartiles"):
        table.add_column(head, justify="right")
    for row in rows:
        for name, of in row["rounds"].items():
            spread = " to ".join(f"{value:.3f}" for value in of["quartiles"])
            table.add_row(
                str(row["nodes"]), str(row["n"]), "none" if name == "bare" else name,
                f"{of['forwards']:g}", f"{of['draft_ms']:.2f}", f"{of['ms']:.2f}", f"{of['ratio']:.3f}", spread,
            )  # fmt: skip
    Console().print(table)


def main() -> None:
    parser = a_parser("The time of a round with reconsideration over that without.")
    parser.add_argument("--nodes", type=at_least(1), nargs="+", default=[24, 48])
    parser.add_argument("--depth", type=at_least(1), default=8)
    parser.add_argument("--grow", type=at_least(1), default=6)
    parser.add_argument("--reconsider", type=at_least(0), help="nodes per draft step; default: the checkpoint's, or 3")
    parser.add_argument("--batches", type=at_least(1), nargs="+", default=[1])
    parser.add_argument("--repeats", type=at_least(5), default=100, help="rounds timed of each, at least 5")
    asked = parser.parse_args()
    drafters = three(asked.drafter, asked.target, {} if asked.reconsider is None else {"reconsider": asked.reconsider})
    rows = [
        measure(drafters, Budget(nodes, asked.depth, asked.grow, 6), n, asked.repeats)
        for n in asked.batches
        for nodes in track(asked.nodes, "timing", console=Console(stderr=True))
    ]
    bare = drafters["bare"]
    show(rows, f"{bare.spec} on {bare.target.name}, {bare.target.device}, {torch.get_num_threads()} threads")
    print(json.dumps({"drafter": bare.spec, "target": bare.target.name, "rows": rows}))


if __name__ == "__main__":
    run(main)
