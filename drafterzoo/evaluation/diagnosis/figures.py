"""The pictures of a diagnosis: acceptance by confidence, rejected tokens by both confidences, and what is recovered.

Knows a diagnosis's summary and how a report's figures are drawn; nothing of models or of where files go.
"""

from __future__ import annotations

from typing import Any

from drafterzoo.evaluation.diagnosis.summary import NAMES
from drafterzoo.evaluation.report.canvas import Canvas, Picture


def pictures(summary: dict[str, Any], name: str, conditions: str) -> list[Picture]:
    """Two for any drafter, a third where there are second thoughts. name: the drafter's, as the report calls it."""
    made = [_acceptance(summary, name, conditions), _table(summary, "share", "Rejected tokens", conditions)]
    if "recovered" in summary["all_rejected"]:
        made.append(_table(summary, "recovered", "Recovered by second thoughts", conditions))
    return made


def _acceptance(summary: dict[str, Any], name: str, conditions: str) -> Picture:
    bins = [row for row in summary["by_confidence"] if row["tokens"]]
    said = ", ".join(f"{row['from']:.1f} to {row['to']:.1f}: {row['acceptance']:.1%}" for row in bins)

    def draw(canvas: Canvas) -> None:
        axes = canvas.axes
        for row in bins:
            width = row["to"] - row["from"]
            axes.bar(row["from"] + width / 2, 100 * row["acceptance"], width * 0.86, color=canvas.colour(name))
        axes.plot([0, 1], [0, 100], color=canvas.theme.muted, linewidth=1, linestyle=":")
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 100)
        axes.grid(axis="y")
        axes.set_xlabel("the drafter's chance of its own choice")
        axes.set_ylabel("accepted, %")

    caption = f"Of {summary['tokens']:,} drafted tokens. On the dotted line a chance of 0.7 is right 7 times in 10."
    return Picture(
        "acceptance", "Acceptance by confidence", caption, f"Acceptance by confidence: {said}.", 3.2, draw, conditions
    )


def _table(summary: dict[str, Any], what: str, title: str, conditions: str) -> Picture:
    """Three by three: drafter's confidence from left to right, target's from the bottom up."""
    cells = {(row["drafter"], row["target"]): row[what] for row in summary["buckets"]}
    said = "; ".join(f"drafter {d}, target {t}: {_percent(value)}" for (d, t), value in cells.items())

    def draw(canvas: Canvas) -> None:
        axes, theme = canvas.axes, canvas.theme
        most = max([value for value in cells.values() if value] or [1.0])
        for x, drafter in enumerate(NAMES):
            for y, target in enumerate(NAMES):
                value = cells[drafter, target]
                strength = 0.0 if value is None else value / most
                box = {"width": 0.96, "height": 0.92, "color": theme.parts[1], "alpha": 0.08 + 0.5 * strength}
                axes.add_patch(_rectangle(x - 0.48, y - 0.46, **box))
                axes.text(x, y, _percent(value), ha="center", va="center", color=theme.ink)
        axes.set_xlim(-0.52, 2.52)
        axes.set_ylim(-0.52, 2.52)
        axes.set_xticks(range(3), NAMES)
        axes.set_yticks(range(3), NAMES)
        axes.set_xlabel("the drafter's confidence")
        axes.set_ylabel("the target's confidence")
        for spine in axes.spines.values():
            spine.set_visible(False)

    whole = summary["all_rejected"]
    caption = f"Shares of {summary['rejected']:,} rejected tokens."
    if what == "recovered":
        caption = f"Of the rejected tokens in each box; {_percent(whole['recovered'])} of all of them."
    return Picture(what, title, caption, f"{title}: {said}.", 3.2, draw, conditions)


def _percent(value: float | None) -> str:
    return "none" if value is None else f"{value:.1%}"


def _rectangle(x: float, y: float, **box: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), linewidth=0, **box)
