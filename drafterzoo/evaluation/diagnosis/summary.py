"""What drafted tokens add up to: acceptance by the drafter's confidence, and rejections by whose confidence.

Knows the columns of `Tokens`; nothing of models, files or figures. A bucket without a token has None for its shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from drafterzoo.evaluation.cautions import FEW_PROMPTS
from drafterzoo.evaluation.diagnosis.tokens import Tokens
from drafterzoo.evaluation.metrics import ratio
from drafterzoo.evaluation.tables import NOTHING, Grid
from drafterzoo.wording import quantity

EDGES = (0.0, 0.5, 0.9, 1.0)  # of the paper's table: unsure, between, sure
NAMES = ("below 0.5", "0.5 to 0.9", "from 0.9")


def summarise(tokens: Tokens, bins: int = 10) -> dict[str, Any]:
    """Plain values: acceptance by depth and in `bins` of confidence, and the paper's buckets of what is rejected."""
    rejected = ~tokens.right
    unsure = rejected & (tokens.sure < 0.5)
    decisive = unsure & (tokens.target >= EDGES[2])
    total = int(rejected.sum())
    return {
        "tokens": len(tokens.right),
        "rejected": total,
        "acceptance": ratio(int(tokens.right.sum()), len(tokens.right)),
        "by_depth": [_accepted(tokens, tokens.depth == d) for d in range(1, int(tokens.depth.max()) + 1)],
        "by_confidence": [
            {"low": i / bins, "high": (i + 1) / bins, **_accepted(tokens, _bin(tokens.sure, bins) == i)}
            for i in range(bins)
        ],
        "unsure_share": ratio(int(unsure.sum()), total),
        "unsure_while_target_decisive_share": ratio(int(decisive.sum()), total),
        "buckets": [
            {"drafter": NAMES[d], "target": NAMES[t], **_bucket(tokens, rejected & _within(tokens, d, t), total)}
            for d in range(3)
            for t in range(3)
        ],
        "all_rejected": _bucket(tokens, rejected, total),
    }


def _bin(sure: Tensor, bins: int) -> Tensor:
    return (sure * bins).long().clamp(max=bins - 1)


def _within(tokens: Tokens, drafter: int, target: int) -> Tensor:
    """Whose confidences lie between these edges; the last bucket holds certainty, too."""
    inside = torch.ones_like(tokens.right)
    for values, index in ((tokens.sure, drafter), (tokens.target, target)):
        inside &= values >= EDGES[index]
        if index < 2:
            inside &= values < EDGES[index + 1]
    return inside


def _accepted(tokens: Tokens, some: Tensor) -> dict[str, Any]:
    count = int(some.sum())
    return {"tokens": count, "acceptance": ratio(int((tokens.right & some).sum()), count)}


def _bucket(tokens: Tokens, some: Tensor, total: int) -> dict[str, Any]:
    """Of some rejected tokens: their share of all, and what second thoughts make of them."""
    count = int(some.sum())
    found: dict[str, Any] = {"rejected": count, "share": ratio(count, total)}
    if tokens.again is None or tokens.right_again is None:
        return found
    saved, lost = some & tokens.right_again, some & ~tokens.right_again
    rise = tokens.again - tokens.sure
    return {
        **found,
        "recovered": ratio(int(saved.sum()), count),
        "rise_recovered": float(rise[saved].mean()) if bool(saved.any()) else None,
        "rise_not_recovered": float(rise[lost].mean()) if bool(lost.any()) else None,
    }


def cautions(summary: Mapping[str, Any]) -> list[str]:
    """What the numbers cannot bear, in sentences."""
    answers = summary["conditions"]["rollouts"]["answers"]
    if answers >= FEW_PROMPTS:
        return []
    return [f"shares: of {quantity(answers, 'answer')} they say little; diagnose at least {FEW_PROMPTS} answers"]


def grids(summary: dict[str, Any], heading: str) -> list[Grid]:
    """The tables for a terminal and for Markdown. heading: what was asked of which drafter."""
    confidence = Grid(
        "Acceptance by the drafter's own confidence",
        f"{heading}. Every token but an answer's last is a root once; a draft counts where all before it were right.",
        ("chance of its choice", "tokens", "accepted"),
        tuple((bin_name(row), f"{row['tokens']:,}", _percent(row["acceptance"])) for row in summary["by_confidence"]),
        labels=1,
    )
    whole = {"drafter": "all", "target": "all", **summary["all_rejected"]}
    again = "recovered" in whole
    more = ("recovered", "rise if recovered", "rise if not") if again else ()
    caption = "Confidence: the chance of the own choice, the drafter's and the target's. Share: of all rejected tokens."
    if again:
        caption += " Recovered: second thoughts choose what the target does. Rise: of the drafter's confidence."
    rows = tuple(
        (row["drafter"], row["target"], f"{row['rejected']:,}", _percent(row["share"]), *_recovery(row, again))
        for row in [*summary["buckets"], whole]
    )
    columns = ("drafter", "target", "rejected", "share", *more)
    return [confidence, Grid("Rejected tokens by both confidences", caption, columns, rows)]


def bin_name(row: Mapping[str, Any]) -> str:
    """Which confidences a bin holds: `0.9 to 1`."""
    return f"{round(row['low'], 3):g} to {round(row['high'], 3):g}"


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1%}"


def _recovery(row: dict[str, Any], again: bool) -> tuple[str, ...]:
    if not again:
        return ()
    rises = (row["rise_recovered"], row["rise_not_recovered"])
    return (_percent(row["recovered"]), *(NOTHING if rise is None else f"{rise:+.3f}" for rise in rises))
