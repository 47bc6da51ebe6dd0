"""The pictures of a diagnosis: acceptance by confidence, rejected tokens by both confidences, and what is recovered.

Knows a diagnosis's summary and how a report's figures are drawn; nothing of models or of where files go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drafterzoo.evaluation.diagnosis.summary import NAMES, bin_name
from drafterzoo.evaluation.report.canvas import Canvas, End, Picture, name_ends


def pictures(summary: dict[str, Any], conditions: str) -> list[Picture]:
    """Of one diagnosis: two for any drafter, a third where there are second thoughts."""
    return [acceptance({summary["drafter"]: summary}, "acceptance", conditions), *tables(summary, "{}", conditions)]


def acceptance(summaries: Mapping[str, dict[str, Any]], name: str, conditions: str) -> Picture:
    """How often each drafter is right at which chance of its own choice: one line per drafter."""
    lines = {drafter: [row for row in one["by_confidence"] if row["tokens"]] for drafter, one in summaries.items()}
    said = "; ".join(
        f"{drafter}: " + ", ".join(f"{bin_name(row)} {_percent(row['acceptance'])}" for row in rows)
        for drafter, rows in lines.items()
    )

    def draw(canvas: Canvas) -> None:
        axes, ends = canvas.axes, []
        axes.plot([0, 1], [0, 100], color=canvas.theme.muted, linewidth=1, linestyle=":")
        for drafter, rows in lines.items():
            x = [(row["low"] + row["high"]) / 2 for row in rows]
            y = [100 * row["acceptance"] for row in rows]
            colour, marker = canvas.colour(drafter), canvas.marker(drafter)
            axes.plot(x, y, color=colour, marker=marker, markersize=6, linewidth=1.8, clip_on=False)
            ends += [End(x[-1], y[-1], drafter, colour)] if rows else []
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 100)
        axes.grid(axis="y")
        axes.set_xlabel("the drafter's chance of its own choice")
        axes.set_ylabel("accepted, %")
        if len(lines) > 1:
            name_ends(canvas, ends)

    counts = ", ".join(
        f"{one['tokens']:,} by {drafter}" if len(summaries) > 1 else f"{one['tokens']:,}"
        for drafter, one in summaries.items()
    )
    caption = f"Drafted tokens: {counts}. On the dotted line a chance of 0.7 is right 7 times in 10."
    title = "Acceptance by confidence"
    return Picture(name, title, caption, f"{title}. {said}.", 3.2, draw, conditions)


def tables(summary: dict[str, Any], name: str, conditions: str, of: str = "") -> list[Picture]:
    """Rejected tokens by both confidences, and of a drafter with second thoughts what they recover.

    name: of a picture, with braces for what it shows. of: the drafter, where others stand beside it.
    """
    after = f", {of}" if of else ""
    made = [_table(summary, "share", f"Rejected tokens{after}", name, conditions)]
    if "recovered" in summary["all_rejected"]:
        made.append(_table(summary, "recovered", f"Recovered by second thoughts{after}", name, conditions))
    return made


def _table(summary: dict[str, Any], what: str, title: str, name: str, conditions: str) -> Picture:
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
    return Picture(name.format(what), title, caption, f"{title}. {said}.", 3.2, draw, conditions)


def _percent(value: float | None) -> str:
    return "none" if value is None else f"{value:.1%}"


def _rectangle(x: float, y: float, **box: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), linewidth=0, **box)
