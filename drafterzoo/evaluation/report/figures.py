"""Which figures a report has, and what each shows: one panel each, with a text that says its numbers.

Knows sections of a collection; nothing of colours, files, HTML or how a number was computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drafterzoo.evaluation.conditions import conditions_key
from drafterzoo.evaluation.report.canvas import Canvas, Picture, beside, dodged, key, line, name_ends, reference
from drafterzoo.evaluation.report.collect import Collection, Row, Section, resampled
from drafterzoo.evaluation.report.panels import (
    LINE,
    Lines,
    Ranked,
    against_budget,
    brief_budget,
    by_depth,
    curves_told,
    largest_budgets,
    lines_of,
    measured_sizes,
    plain_word,
    ranked,
    ranked_height,
    ranked_told,
    saying,
    strokes_told,
    told,
)
from drafterzoo.evaluation.tables import conditions_line, interval, number, short_budget
from drafterzoo.wording import shown

PARTS = ("draft", "verify", "rest")
PART_NAMES = {"draft": "drafter", "verify": "target's forward", "rest": "all else"}


def section_pictures(section: Section) -> list[Picture]:
    """Leaderboards, curves over the budget, acceptance by depth, time of a round, categories: what there is."""
    pictures = [_leaderboard(section, "tau"), _leaderboard(section, "speedup")] if section.drafted else []
    pictures += [_curve(section, what) for what in ("tau", "speedup") if len(measured_sizes(_lines(section, what))) > 1]
    for budget in largest_budgets(section.drafted):
        pictures += [_depths(section, budget, "survival"), _depths(section, budget, "conditional")]
    if any(value is not None for row in section.rows for value in row.figures["milliseconds_per_round"].values()):
        pictures.append(_breakdown(section))
    if len(section.rows[0].figures["categories"]) > 1 and _batch_size(section) == 1:
        pictures += [_categories(section, budget) for budget in largest_budgets(section.drafted)]
    return saying(pictures, section.partial)


def families(collection: Collection) -> list[list[Section]]:
    """Sections that differ in nothing but the batch size, wherever there are several batch sizes."""
    groups: dict[str, list[Section]] = {}
    for section in collection.sections:
        run = {**section.conditions["run"], "batch_size": None}
        groups.setdefault(conditions_key({**section.conditions, "run": run}), []).append(section)
    return [sorted(group, key=_batch_size) for group in groups.values() if len(group) > 1]


def batch_pictures(collection: Collection) -> list[Picture]:
    """Speed-up against batch size: for every family of sections, at every budget that several of them have."""
    pictures = []
    for sections in families(collection):
        budgets = dict.fromkeys(budget for section in sections for budget in section.budgets)
        shared = [b for b in budgets if sum(_timed(section, b) for section in sections) > 1]
        pictures += [_batches(sections, budget) for budget in shared]
    return pictures


# ----------------------------------------------------------------------------------------------------- one picture each


def _timed(section: Section, budget: str) -> bool:
    rows = [row for row in section.drafted if row.figures["budget"] == budget]
    return any(row.figures["speedup"]["value"] is not None for row in rows)


def _entries(section: Section, what: str) -> list[Ranked]:
    tau = what == "tau"
    ratios = [row.tau.as_dict() if tau else row.figures["speedup"] for row in section.drafted]
    return [Ranked(row.name, row.figures["budget"], ratio) for row, ratio in zip(section.drafted, ratios, strict=True)]


def _lines(section: Section, what: str) -> Lines:
    return lines_of(_entries(section, what))


def _leaderboard(section: Section, what: str) -> Picture:
    """Every row with its 95 % interval, under the heading of its budget."""
    tau, entries = what == "tau", _entries(section, what)
    title = "τ at matched budgets" if tau else "Speed-up at matched budgets"
    xlabel = "τ: tokens per target call, bonus counted" if tau else "speed-up over plain decoding"
    said = ranked_told(entries)
    alt = f"{title}, with 95 % intervals: {said}.".replace("x [", " [") if tau else f"{title}: {said}."
    return Picture(
        f"{section.number}-leaderboard-{what}",
        title,
        f"With 95 % intervals over {resampled(section)}. Plain decoding is 1.",
        alt,
        ranked_height(entries),
        ranked(entries, "" if tau else "×", xlabel),
        _line(section),
    )


def _curve(section: Section, what: str) -> Picture:
    """τ or speed-up against nodes, one line per drafter and shape of budget."""
    tau, lines = what == "tau", _lines(section, what)
    title = "τ against budget" if tau else "Speed-up against budget"
    said = curves_told(lines)
    return Picture(
        f"{section.number}-budget-{what}",
        title,
        f"Bars: 95 % intervals over {resampled(section)}, side by side.{strokes_told(lines)}",
        f"{title}. {said.replace('x [', ' [') if tau else said}.",
        3.5,
        against_budget(lines, "τ, bonus counted" if tau else "speed-up over plain"),
        _line(section),
    )


def _depths(section: Section, budget: str, what: str) -> Picture:
    """Share of rounds that got to each depth (survival), or past it once there (conditional)."""
    lines = {row.name: row.figures[what] for row in section.drafted if row.figures["budget"] == budget}
    survival = what == "survival"
    title = f"{'Survival' if survival else 'Conditional acceptance'} by depth, {brief_budget(budget)}"
    caption = (
        "Share of all rounds that committed at least that many drafts; the shares add up to the accepted drafts."
        if survival
        else "Of the rounds that accepted all above and whose answer went on, the share that accepted this depth."
    )
    return Picture(
        f"{section.number}-{what}-{plain_word(short_budget(budget))}",
        title,
        caption,
        f"{title}, depth 1 onwards. {told(lines)}.",
        2.9,
        by_depth(lines, "depth of the draft", "of all rounds" if survival else "of rounds that got there"),
        _line(section),
    )


def _breakdown(section: Section) -> Picture:
    """Milliseconds of a round, stacked: drafter, target's forward, all else."""
    rows = section.rows
    names = [_long_name(row) for row in rows]
    times = [[row.figures["milliseconds_per_round"][part] or 0.0 for part in PARTS] for row in rows]

    slots = len(rows) + len(section.budgets)

    def draw(canvas: Canvas) -> None:
        axes, theme = canvas.axes, canvas.theme
        longest = max(sum(each) for each in times) or 1.0
        place, budget = 0, ""
        for row, each in zip(rows, times, strict=True):
            if row.figures["budget"] != budget:
                budget = row.figures["budget"]
                beside(canvas, place, brief_budget(budget), weight="bold")
                place += 1
            _stack(canvas, place, each, longest)
            if row.plain:
                beside(canvas, place, "plain")
            else:
                beside(canvas, place, canvas.brief(row.name), color=canvas.colour(row.name))
            place += 1
        key(canvas, [(PART_NAMES[part], colour, "s") for part, colour in zip(PARTS, theme.parts, strict=True)])
        axes.set_xlim(0, longest * 1.22)
        axes.set_ylim(slots - 0.4, -0.6)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")
        axes.set_xlabel("milliseconds per round")

    said = "; ".join(
        f"{name}: " + ", ".join(f"{PART_NAMES[p]} {v:.2f} ms" for p, v in zip(PARTS, each, strict=True))
        for name, each in zip(names, times, strict=True)
    )
    title = "Where the time of a round goes"
    caption = "Mean over all rounds; prefill excluded."
    return Picture(
        f"{section.number}-time",
        title,
        caption,
        f"{title}. {said}.",
        1.15 + LINE * slots,
        draw,
        _line(section),
    )


def _stack(canvas: Canvas, place: float, times: Sequence[float], longest: float) -> None:
    """One row's parts one after the other, each with its number where it is long enough for one, and their sum."""
    axes, theme, left = canvas.axes, canvas.theme, 0.0
    for part, value, colour in zip(PARTS, times, theme.parts, strict=True):
        axes.barh(place, value, left=left, height=0.68, color=colour, edgecolor=theme.surface, linewidth=0.8)
        if value > 0.14 * longest:
            axes.text(
                left + value / 2, place, f"{value:.1f}", ha="center", va="center", fontsize=8.5,
                color=theme.surface if part != "rest" else theme.ink,
            )  # fmt: skip
        left += value
    axes.text(left + 0.01 * longest, place, f" {left:.1f} ms", va="center", fontsize=8.5)


def _categories(section: Section, budget: str) -> Picture:
    """Speed-up by kind of prompt at one budget."""
    rows = [row for row in section.drafted if row.figures["budget"] == budget]
    kinds = list(section.rows[0].figures["categories"])
    values = {
        row.name: [row.figures["categories"].get(kind, {}).get("speedup", {}).get("value") for kind in kinds]
        for row in rows
    }

    def draw(canvas: Canvas) -> None:
        axes = canvas.axes
        for place in range(len(kinds)):
            seen = [each[place] for each in values.values() if each[place] is not None]
            if seen:
                axes.plot([min(seen), max(seen)], [place, place], color=canvas.theme.line, linewidth=3, zorder=1)
        for name, each in values.items():
            known = [(value, place) for place, value in enumerate(each) if value is not None]
            if known:
                x, y = zip(*known, strict=True)
                axes.scatter(
                    x, y, s=52, color=canvas.colour(name), marker=canvas.marker(name), zorder=3,
                    edgecolors=canvas.theme.surface, linewidths=0.8,
                )  # fmt: skip
        axes.set_yticks(range(len(kinds)), kinds, color=canvas.theme.ink)
        axes.set_ylim(len(kinds) - 0.5, -0.5)
        axes.spines["left"].set_visible(False)
        reference(axes, canvas.theme, 1.0)
        axes.grid(axis="x")
        axes.set_xlabel("speed-up over plain decoding")
        key(canvas, [(canvas.brief(name), canvas.colour(name), canvas.marker(name)) for name in values])

    said = "; ".join(
        f"{name}: " + ", ".join(f"{kind} {number(value)}" for kind, value in zip(kinds, each, strict=True))
        for name, each in values.items()
    )
    title = f"Speed-up by kind of prompt, {brief_budget(budget)}"
    file = f"{section.number}-categories-{plain_word(short_budget(budget))}"
    caption = "Each over plain decoding on the same prompts. Plain decoding is 1."
    return Picture(file, title, caption, f"{title}. {said}.", 1.1 + 0.33 * len(kinds), draw, _line(section))


def _batches(sections: Sequence[Section], budget: str) -> Picture:
    """Speed-up over plain decoding at the same batch size, against the batch size."""
    lines: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
    for section in sections:
        for row in section.drafted:
            if row.figures["budget"] == budget and row.figures["speedup"]["value"] is not None:
                lines.setdefault(row.name, []).append((_batch_size(section), row.figures["speedup"]))

    def draw(canvas: Canvas) -> None:
        axes = canvas.axes
        places = dodged(lines)
        ends = [line(canvas, name, points, places[name]) for name, points in lines.items()]
        sizes = [_batch_size(section) for section in sections]
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        axes.set_xlim(sizes[0] * 0.85, sizes[-1] * 1.12)
        reference(axes, canvas.theme, 1.0, horizontal=True)
        axes.grid(axis="y")
        axes.set_xlabel("batch size: prompts decoded together")
        axes.set_ylabel("speed-up over plain")
        name_ends(canvas, ends)

    title = f"Speed-up against batch size, {brief_budget(budget)}"
    said = "; ".join(
        f"{name}: " + ", ".join(f"batch {size} {interval(ratio)}" for size, ratio in points)
        for name, points in lines.items()
    )
    caption = (
        "Each over plain decoding at the same batch size. Bars: 95 % intervals over batches of prompts, side by side."
    )
    sizes = ", ".join(str(_batch_size(section)) for section in sections)
    conditions = {**sections[0].conditions, "run": {**sections[0].conditions["run"], "batch_size": sizes}}
    file = f"{sections[0].number}-batch-{plain_word(short_budget(budget))}"
    held = [count for section in sections for count in section.held]
    picture = Picture(file, title, caption, f"{title}. {said}.", 3.0, draw, conditions_line(conditions, held))
    return saying([picture], shown(held, conditions["suite"]["prompts"], "prompt"))[0]


# ------------------------------------------------------------------------------------------------------------- words


def _long_name(row: Row) -> str:
    return "plain" if row.plain else f"{row.name} {short_budget(row.figures['budget'])}"


def _line(section: Section) -> str:
    return conditions_line(section.conditions, section.held)


def _batch_size(section: Section) -> int:
    return int(section.conditions["run"]["batch_size"])
