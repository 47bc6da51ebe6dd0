"""The shapes of panels that several figures share: ranked rows, curves over budgets, curves over depth.

Knows how to draw names and values; nothing of where they come from. Each function returns what a Picture draws with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from drafterzoo.budget import Budget
from drafterzoo.evaluation.report.canvas import (
    Canvas,
    End,
    Picture,
    beside,
    dodged,
    edge,
    line,
    name_ends,
    reference,
    whisker,
)
from drafterzoo.evaluation.tables import interval, short_budget
from drafterzoo.wording import quantity

LINE = 0.25  # inches for one row of a panel that lists rows
Draw = Callable[[Canvas], None]
Ratio = Mapping[str, Any]  # value, low, high


@attrs.frozen
class Ranked:
    """One row of a ranked panel."""

    name: str
    budget: str
    ratio: Ratio


def ranked_height(entries: Sequence[Ranked]) -> float:
    return 0.75 + LINE * _slots(entries)


def _slots(entries: Sequence[Ranked]) -> int:
    return len(entries) + len({entry.budget for entry in entries})


def ranked(entries: Sequence[Ranked], unit: str, xlabel: str) -> Draw:
    """Every row with its 95 % interval, under the heading of its budget. entries: budget by budget."""

    def draw(canvas: Canvas) -> None:
        axes = canvas.axes
        place, budget = 0.0, None
        for entry in entries:
            if entry.budget != budget:
                budget = entry.budget
                beside(canvas, place, brief_budget(budget), weight="bold")
                place += 1
            if entry.ratio["value"] is not None:
                whisker(canvas, entry.name, entry.ratio, place)
            beside(canvas, place, canvas.brief(entry.name), color=canvas.colour(entry.name))
            text = interval(entry.ratio).replace("x", unit, 1)
            axes.text(1.02, place, text, transform=edge(axes), va="center", ha="left", fontsize=8.5)
            place += 1
        reference(axes, canvas.theme, 1.0)
        axes.set_ylim(_slots(entries) - 0.4, -0.6)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")
        axes.set_xlabel(xlabel)

    return draw


Lines = Mapping[tuple[str, str], Sequence[tuple[int, Ratio]]]  # (drafter, shape) -> (nodes, ratio), ascending


def lines_of(entries: Sequence[Ranked]) -> Lines:
    """The rows with a value as curves: one per drafter and shape of budget. entries: from small budgets to large."""
    lines: dict[tuple[str, str], list[tuple[int, Ratio]]] = {}
    for entry in entries:
        if entry.ratio["value"] is not None and entry.budget:
            key = entry.name, shape(entry.budget)
            lines.setdefault(key, []).append((Budget.parse(entry.budget).nodes, entry.ratio))
    return lines


def measured_sizes(lines: Lines) -> list[int]:
    """The sizes of budget that have a value, ascending: there is a curve from two on."""
    return sorted({size for points in lines.values() for size, _ in points})


def several_shapes(lines: Lines) -> bool:
    return len({form for _, form in lines}) > 1


def against_budget(lines: Lines, ylabel: str) -> Draw:
    """One line per drafter and shape of budget, over the nodes verified per target call."""

    def draw(canvas: Canvas) -> None:
        axes = canvas.axes
        ends: list[End] = []
        shapes: dict[tuple[float, str], list[float]] = {}
        places = dodged(lines)
        for (name, form), points in lines.items():
            ends.append(line(canvas, name, points, places[name, form], _stroke(form)))
            shapes.setdefault((ends[-1].x, form), []).append(points[-1][1]["high"] or ends[-1].y)
        nodes = measured_sizes(lines)
        axes.set_xscale("log", base=2)
        axes.set_xticks(nodes, [str(n) for n in nodes], minor=False)
        axes.minorticks_off()
        axes.set_xlim(nodes[0] * 0.85, nodes[-1] * 1.12)
        reference(axes, canvas.theme, 1.0, horizontal=True)
        axes.grid(axis="y")
        axes.set_xlabel("nodes verified per target call (budget)")
        axes.set_ylabel(ylabel)
        name_ends(canvas, ends)
        if several_shapes(lines):
            _name_shapes(canvas, shapes, nodes[-1])

    return draw


def _stroke(form: str) -> str:
    """The stroke of a shape's lines: broken for chains, full for trees, with dots where drafts may end early."""
    early = "p ≥" in form
    return (":" if early else "--") if form.startswith("chain") else ("-." if early else "-")


def strokes_told(lines: Lines) -> str:
    """What the strokes of `against_budget` mean, as far as there are several: to be said after a sentence."""
    said = " Chains: dashed, or apart." if several_shapes(lines) else ""
    early = sorted({form.partition(", ")[2] for _, form in lines} - {""})
    return said + (f" With dots: drafts end early ({'; '.join(early)})." if early else "")


def _name_shapes(canvas: Canvas, shapes: Mapping[tuple[float, str], Sequence[float]], last: int) -> None:
    """Say above the end of a line which shape its budgets have, unless the drafters beside it all have that one."""
    at_edge = [form for x_end, form in shapes if x_end == last]
    for (x_end, form), heights in shapes.items():
        if at_edge != [form]:
            canvas.axes.annotate(
                form, (x_end, max(heights)), (0, 6), textcoords="offset points", ha="center",
                color=canvas.theme.muted, fontsize=8.5,
            )  # fmt: skip


def by_depth(lines: Mapping[str, Sequence[float | None]], xlabel: str, ylabel: str) -> Draw:
    """Shares at 1, 2, ...: one line per drafter."""

    def draw(canvas: Canvas) -> None:
        axes = canvas.axes
        ends: list[End] = []
        for name, values in lines.items():
            points = [(d, value) for d, value in enumerate(values, start=1) if value is not None]
            if not points:
                continue
            x, y = zip(*points, strict=True)
            colour = canvas.colour(name)
            axes.plot(x, y, color=colour, marker=canvas.marker(name), markersize=6, linewidth=1.8, clip_on=False)
            ends.append(End(x[-1], y[-1], name, colour))
        deepest = max(len(values) for values in lines.values())
        axes.set_xticks(range(1, deepest + 1))
        axes.set_xlim(0.7, deepest + 0.3)
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        axes.grid(axis="y")
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        name_ends(canvas, ends)

    return draw


# ------------------------------------------------------------------------------------------------------------- words


def shape(text: str) -> str:
    """chain, tree (of default shape), or the widths of a tree of another shape; and where drafts end early."""
    if not text:
        return "budget not told"
    budget = Budget.parse(text)
    early = f", p ≥ {budget.p_min:g}" if budget.p_min else ""
    if budget.is_chain:
        return "chain" + early
    if short_budget(text).startswith("tree:"):
        return "tree" + early
    more = {"reconsider": budget.reconsider, "advance": budget.advance}
    said = "".join(f", {name} {value}" for name, value in more.items() if value)
    return f"tree {budget.depth}·{budget.grow}·{budget.offer}" + said + early


def brief_budget(text: str) -> str:
    """A budget as figures name it: `tree:16 6·3·6` where the widths (depth, grow, offer) are not the default ones."""
    form = shape(text)
    return f"tree:{Budget.parse(text).nodes} {form.removeprefix('tree ')}" if "·" in form else short_budget(text)


def told(lines: Mapping[str, Sequence[float | None]]) -> str:
    """Shares over depth, for those who do not see them."""
    return "; ".join(f"{name}: " + ", ".join(_percent(v) for v in values) for name, values in lines.items())


def curves_told(lines: Lines) -> str:
    return "; ".join(
        f"{name} {form}: " + ", ".join(f"{quantity(nodes, 'node')} {interval(ratio)}" for nodes, ratio in points)
        for (name, form), points in lines.items()
    )


def ranked_told(entries: Sequence[Ranked]) -> str:
    return "; ".join(f"{entry.name} at {short_budget(entry.budget)} {interval(entry.ratio)}" for entry in entries)


def _percent(value: float | None) -> str:
    return "no such round" if value is None else f"{100 * value:.0f} %"


def saying(pictures: Sequence[Picture], part: str) -> list[Picture]:
    """The pictures; where they show a part of their run only, every caption says which (empty: all of it)."""
    return [attrs.evolve(p, caption=f"{p.caption} {part}.") for p in pictures] if part else list(pictures)


def plain_word(text: str) -> str:
    """Fit for a file name."""
    return "".join(letter if letter.isalnum() else "-" for letter in text)


def largest_budgets(rows: Sequence[Any]) -> list[str]:
    """The largest budget of each family, chains and trees: where pictures by depth and category are drawn.

    rows: with `budget` and `figures`, from small budgets to large.
    """
    largest: dict[bool, str] = {}
    for row in rows:
        if row.figures["budget"]:  # a server may not tell its own
            largest[row.budget.is_chain] = row.figures["budget"]
    return list(largest.values())
