"""What the engine itself costs: the time of a whole round over the bare forwards it cannot do without.

    python benchmarks/overhead.py                    eagle3.1 with random weights on the embedded target
    python benchmarks/overhead.py -d dir:runs/mine   a trained drafter, on its own target

Every repeat times one real round, then at once the same target forward and the same drafter forwards alone, with the
inputs that the round had: all three see the same state of the machine. The ratio of a setting is the median over
repeats. Bare drafter forwards include the drafter's head and exclude the choice of offers, which is the engine's work.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from asking import at_least, run
from rich.console import Console
from rich.progress import track
from rich.table import Table

from drafterzoo.budget import Budget
from drafterzoo.drafters.base import Drafter
from drafterzoo.engine.contract import Committed, DraftState, Frontier, Offers
from drafterzoo.engine.decode import Batch, Settings
from drafterzoo.engine.sampling import Sampling, Selector

PROMPT = "Explain to a child why the sky is blue in the day and red in the evening, and what the sea has to do with it."
WARM_UP = 3


class Recorder:
    """A drafter or target that passes everything on and remembers the calls of the current round."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def verify(self, *args: Any) -> Any:
        self.calls = [args]
        return self._inner.verify(*args)

    def observe(self, state: DraftState, committed: Committed) -> None:
        self.calls = [(committed,)]
        self._inner.observe(state, committed)

    def expand(self, state: DraftState, frontier: Frontier, select: Selector) -> Offers:
        offers = self._inner.expand(state, frontier, select)
        self.calls.append((frontier, offers))
        return offers


class Answered:
    """A selector that already knows the offers: it costs nothing."""

    def __init__(self, offers: Offers, offer: int) -> None:
        self.offers, self.offer = offers, offer

    def __call__(self, *args: object) -> Offers:
        return self.offers


def seconds(work: Callable[[], Any], device: torch.device) -> float:
    """Wall seconds of `work`, waiting for the device before and after."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


@torch.inference_mode()
def draft_bare(drafter: Recorder, state: DraftState, offer: int) -> None:
    """The drafter calls of the last round once more, without choosing anything."""
    for call in drafter.calls:
        if len(call) == 1:
            drafter._inner.observe(state, call[0])
        else:
            drafter._inner.expand(state, call[0], Answered(call[1], offer))


def opened(drafter: Any, target: Any, budget: Budget, n: int, temperature: float, repeats: int) -> Batch:
    """The same prompt n times, read, with room for so many rounds after the warm-up."""
    prompt = target.encode_chat([{"role": "user", "content": PROMPT}]) if target.tokenizer else list(range(5, 45))
    room = min(target.max_positions - len(prompt), (budget.depth + 1) * (repeats + WARM_UP) + 1)
    settings = Settings(budget, Sampling(temperature=temperature), room)
    batch = Batch(drafter, target, [prompt] * n, settings, list(range(n)))
    batch.prefill()
    return batch


def measure(drafter: Drafter, budget: Budget, n: int, temperature: float, repeats: int) -> dict[str, Any]:
    """Times of one setting: medians in milliseconds, and the ratio with its quartiles."""
    target, recorder, reader = drafter.target, Recorder(drafter), Recorder(drafter.target)
    batch = opened(recorder, reader, budget, n, temperature, repeats)
    rounds, verifies, drafts = [], [], []
    for repeat in range(WARM_UP + repeats):
        whole = seconds(batch.round, target.device)
        verify = seconds(lambda: target.verify(*reader.calls[0]), target.device)
        draft = seconds(lambda: draft_bare(recorder, batch.state, budget.offer), target.device)
        if repeat >= WARM_UP:
            rounds.append(whole), verifies.append(verify), drafts.append(draft)
    ratios = sorted(w / (v + d) for w, v, d in zip(rounds, verifies, drafts, strict=True))
    costs = [w - v - d for w, v, d in zip(rounds, verifies, drafts, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    median = {"round": rounds, "verify": verifies, "draft": drafts, "engine": costs}
    return {
        "nodes": budget.nodes, "n": n, "temperature": temperature, "repeats": repeats,
        **{f"{name}_ms": round(1e3 * statistics.median(values), 3) for name, values in median.items()},
        "ratio": round(middle, 4), "quartiles": [round(low, 4), round(high, 4)],
    }  # fmt: skip


def the_drafter(address: str | None, target: str | None, draft_vocab_size: int = 8192) -> Drafter:
    """The drafter asked for, or eagle3.1 with random weights and so many draft tokens, not packed."""
    import drafterzoo
    from drafterzoo.registry import DRAFTERS

    if address is not None:
        return drafterzoo.load(address, target)
    bound = drafterzoo.load_target(target) if target else drafterzoo.load_target()
    torch.manual_seed(0)
    return DRAFTERS.get("eagle3.1").create(bound, draft_vocab_size=min(draft_vocab_size, bound.vocab_size)).eval()


def a_parser(description: str) -> argparse.ArgumentParser:
    """A parser that asks for a drafter and a target, as `the_drafter` takes them."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("-d", "--drafter", help="name, dir:path or hub:address; default: eagle3.1 with random weights")
    parser.add_argument("-t", "--target", help="name or directory; default: the drafter's own, or the embedded target")
    return parser


def show(rows: list[dict[str, Any]], title: str) -> None:
    table = Table(title=title)
    names = ("nodes", "n", "T", "round ms", "target ms", "drafter ms", "engine ms", "round / bare", "quartiles")
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        times = (f"{row[key]:.2f}" for key in ("round_ms", "verify_ms", "draft_ms", "engine_ms"))
        spread = " to ".join(f"{value:.3f}" for value in row["quartiles"])
        table.add_row(
            str(row["nodes"]), str(row["n"]), f"{row['temperature']:g}", *times, f"{row['ratio']:.3f}", spread
        )
    Console().print(table)


def main() -> None:
    parser = a_parser("Round time over the bare target and drafter forwards.")
    parser.add_argument("--nodes", type=at_least(1), nargs="+", default=[8, 48])
    parser.add_argument("--batches", type=at_least(1), nargs="+", default=[1, 4, 8])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--repeats", type=at_least(5), default=15, help="rounds timed per setting, at least 5")
    asked = parser.parse_args()
    drafter = the_drafter(asked.drafter, asked.target)
    settings = [(b, n, t) for t in asked.temperatures for n in asked.batches for b in asked.nodes]
    rows = [
        measure(drafter, Budget.tree(nodes), n, temperature, asked.repeats)
        for nodes, n, temperature in track(settings, "timing", console=Console(stderr=True))
    ]
    target = drafter.target
    show(
        rows,
        f"{drafter.spec} on {target.name}, {target.device}, {torch.get_num_threads()} threads, packed={target.packed}",
    )
    print(json.dumps({"drafter": drafter.spec, "target": target.name, "device": str(target.device), "rows": rows}))


if __name__ == "__main__":
    run(main)
