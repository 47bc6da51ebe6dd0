"""What Carryover's rows are worth and why: the same weights with them and without, by kind of prompt.

    python benchmarks/carried.py -d dir:runs/dflash-carryover-smollm2/best --suite starter --limit 21
    python benchmarks/carried.py -d dir:runs/mine/best --base dir:runs/mine-more/best    beside a control

Every prompt is answered with the rejected rows carried, with none of them (carry=0), and by the control where one is
named: the texts are the same, the rounds are not. Beside tau, paired by prompt with 95 % intervals, stand how often a
rejected branch comes back to the text behind the token it was wrong in, which the paper finds the gain to follow, and
the share of the block's attention that falls on carried rows (methods.md 3.4). One line of JSON comes last.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import attrs
import numpy as np
import torch
from asking import at_least, run
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import drafterzoo
from drafterzoo.budget import Budget
from drafterzoo.drafters import block_body
from drafterzoo.drafters.base import Drafter
from drafterzoo.engine.decode import Round
from drafterzoo.evaluation.statistics import PairedRatio, paired_ratio
from drafterzoo.evaluation.suites import load_suite
from drafterzoo.generation import Generation, generate
from drafterzoo.wrappers.carryover import Carryover


@attrs.define
class Attention:
    """What the slots of all blocks gave to carried rows: the sum of shares, over calls, and how many had any."""

    first: int
    rows: int
    total: float = 0.0
    calls: int = 0
    carrying: int = 0

    def note(self, q: Tensor, k: Tensor, mask: Tensor) -> None:
        """q [1, H, R, d], k [1, KV, S, d], mask [1, R, S] of one layer's attention in one round."""
        groups = q.shape[1] // k.shape[1]
        scores = q @ k.repeat_interleave(groups, dim=1).mT * q.shape[-1] ** -0.5
        weights = scores.masked_fill(~mask[:, None], -torch.inf).softmax(-1)
        self.total += float(weights[..., self.first : self.first + self.rows].sum(-1).mean())
        self.carrying += bool(mask[..., self.first : self.first + self.rows].any())
        self.calls += 1

    @property
    def share(self) -> float | None:
        """Of all rounds, those that carry nothing counted as none."""
        return self.total / self.calls if self.calls else None

    @property
    def share_where_carried(self) -> float | None:
        return self.total / self.carrying if self.carrying else None


@contextmanager
def watched(drafter: Carryover, depth: int) -> Iterator[Attention]:
    """Note the attention of every block that `drafter` drafts meanwhile, `depth` proposals, one request at a time."""
    config, attend = drafter.base.config, block_body.grouped_attention
    found = Attention(min(config.block_size, depth + config.first_slot), drafter.carry)  # behind the block's own slots

    def noted(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        found.note(q, k, mask)
        return attend(q, k, v, mask)

    with patch.object(block_body, "grouped_attention", noted):
        yield found


def returned(rounds: Sequence[Round], answer: Sequence[int]) -> tuple[int, int]:
    """(rejected drafts behind the first wrong one that the text has at their place, rounds with a rejected draft).

    The token that prefill gave is the answer's first; a round's chain stands behind the token committed before it.
    """
    at, places, rejecting = 1, 0, 0
    for one in rounds:
        drafts = [] if one.tree is None else one.tree.tokens
        behind = range(one.accepted + 1, len(drafts))
        places += sum(at + i < len(answer) and drafts[i] == answer[at + i] for i in behind)
        rejecting += one.accepted < len(drafts)
        at += one.committed
    return places, rejecting


def compare(kind: str, on: Generation, off: Generation, base: Generation | None) -> dict[str, Any]:
    """One line: tau of each, the ratios, and how many places of a rejected branch the text has."""
    places, rejecting = np.sum([returned(*pair) for pair in zip(off.rounds, off.tokens, strict=True)], axis=0)
    return {
        "kind": kind,
        "prompts": len(on.tokens),
        "tau": {"on": on.tau, "off": off.tau, **({} if base is None else {"control": base.tau})},
        "on_over_off": ratio(on, off).as_dict(),
        "on_over_control": None if base is None else ratio(on, base).as_dict(),
        "returned_per_rejecting_round": float(places / rejecting) if rejecting else None,
        "equal_texts": sum(a == b for a, b in zip(on.tokens, off.tokens, strict=True)),
    }


def ratio(one: Generation, other: Generation) -> PairedRatio:
    """tau of one over that of the other, paired by prompt."""
    columns = [
        ([sum(made.committed for made in rounds) for rounds in side.rounds], [len(rounds) for rounds in side.rounds])
        for side in (one, other)
    ]
    return paired_ratio(*columns[0], *columns[1])


def correlation(lines: Sequence[dict[str, Any]]) -> float | None:
    """Pearson's r over kinds of prompts, of the gain in tau and of the places returned to; None of fewer than three."""
    pairs = [(line["on_over_off"]["value"], line["returned_per_rejecting_round"]) for line in lines]
    known = np.array([pair for pair in pairs if None not in pair], dtype=np.float64)
    if len(known) < 3 or not known.std(axis=0).all():
        return None
    return float(np.corrcoef(known.T)[0, 1])


def measure(drafters: dict[str, Drafter], prompts: dict[str, list[list[int]]], asked: Any) -> dict[str, Any]:
    """Everything about every kind of prompts."""
    on = drafters["on"]
    assert isinstance(on, Carryover)
    options = {"budget": asked.budget, "max_new_tokens": asked.max_new_tokens, "temperature": asked.temperature}
    options |= {"seed": asked.seed, "keep_trees": True, "batch_size": 1}
    lines: list[dict[str, Any]] = []
    answers: dict[str, list[Generation]] = {name: [] for name in drafters}
    with watched(on, asked.budget.depth) as attention:
        for kind in track(prompts, "answering", console=Console(stderr=True)):
            answers["on"].append(generate(on, prompts[kind], **options))
    for name in drafters:
        for kind in track(prompts if name != "on" else [], f"{name}: answering", console=Console(stderr=True)):
            answers[name].append(generate(drafters[name], prompts[kind], **options))
    for number, kind in enumerate(prompts):
        of = {name: each[number] for name, each in answers.items()}
        lines.append(compare(kind, of["on"], of["off"], of.get("control")))
    return {
        "drafter": on.spec,
        "budget": str(asked.budget),
        "temperature": asked.temperature,
        "lines": lines,
        "correlation_of_gain_and_return": correlation(lines),
        "attention_on_carried_rows": attention.share,
        "where_there_are_any": attention.share_where_carried,
    }


def show(found: dict[str, Any]) -> None:
    """A table for a terminal, and the figures that are of all kinds together."""
    table = Table(title=f"{found['drafter']}, {found['budget']}, temperature {found['temperature']:g}", title_style="")
    table.add_column("kind")
    for head in ("prompts", "τ on", "τ off", "on / off [95 %]", "on / control [95 %]", "returned", "equal texts"):
        table.add_column(head, justify="right")
    for line in found["lines"]:
        returned_to = line["returned_per_rejecting_round"]
        table.add_row(
            line["kind"], str(line["prompts"]), f"{line['tau']['on']:.2f}", f"{line['tau']['off']:.2f}",
            interval(line["on_over_off"]), interval(line["on_over_control"]),
            "-" if returned_to is None else f"{returned_to:.2f}", f"{line['equal_texts']}/{line['prompts']}",
        )  # fmt: skip
    console = Console()
    console.print(table)
    parts = {"correlation of gain and return": "correlation_of_gain_and_return"}
    parts |= {"attention on carried rows": "attention_on_carried_rows", "where there are any": "where_there_are_any"}
    console.print("; ".join(f"{name} {found[key]:.3f}" for name, key in parts.items() if found[key] is not None))


def interval(one: dict[str, Any] | None) -> str:
    if one is None or one["value"] is None:
        return "-"
    return f"{one['value']:.3f}" + ("" if one["low"] is None else f" [{one['low']:.3f}, {one['high']:.3f}]")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-d", "--drafter", required=True, help="a drafter with +carryover, by name or address")
    parser.add_argument("--base", default=None, help="the control: the drafter trained as long without")
    parser.add_argument("-s", "--suite", default="starter")
    parser.add_argument("--limit", type=at_least(1), default=21, help="prompts, spread over kinds")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("-n", "--max-new-tokens", type=at_least(2), default=64)
    parser.add_argument("-b", "--budget", type=Budget.parse, default=None, help="a chain; default: the drafter's own")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    on = drafterzoo.load(asked.drafter)
    if not isinstance(on, Carryover):
        raise SystemExit(f"carried: {on.spec} carries nothing over; name a drafter with +carryover.")
    asked.budget = asked.budget or on.budget
    if asked.budget is None or not asked.budget.is_chain:
        raise SystemExit("carried: what returns to the text is counted along chains; add --budget chain:7, say.")
    off = Carryover(on.base, attrs.evolve(on.config, carry=0)).eval()
    drafters: dict[str, Drafter] = {"on": on, "off": off}
    if asked.base is not None:
        drafters["control"] = drafterzoo.load(asked.base, on.target)
    prompts: dict[str, list[list[int]]] = {}
    for prompt in load_suite(asked.suite, limit=asked.limit, data_dir=asked.data_dir):
        ids = on.target.encode_chat([{"role": "user", "content": prompt.turns[0]}])
        prompts.setdefault(prompt.category or asked.suite, []).append(ids)
    found = measure(drafters, prompts, asked)
    show(found)
    print(json.dumps(found))


if __name__ == "__main__":
    run(main)
