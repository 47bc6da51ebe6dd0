"""Which figures stand beside an evaluation: MAL ranked and against the budget, acceptance, rounds of at least j tokens.

Knows sections of evaluations; nothing of colours, files, HTML or how a number was computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drafterzoo.evaluation.offline.summary import conditions_line
from drafterzoo.evaluation.report.canvas import Picture
from drafterzoo.evaluation.report.offline import OfflineSection
from drafterzoo.evaluation.report.panels import (
    Draw,
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
from drafterzoo.evaluation.tables import short_budget


def offline_pictures(section: OfflineSection) -> list[Picture]:
    """MAL at each budget, against the budget where there are several sizes, and by depth."""
    entries = [Ranked(row.name, row.figures["budget"], row.mal.as_dict()) for row in section.rows]
    pictures = [_leaderboard(section, entries)]
    if len(measured_sizes(lines_of(entries))) > 1:
        pictures.append(_curve(section, entries))
    for budget in largest_budgets(section.rows):
        rows = [row for row in section.rows if row.figures["budget"] == budget]
        pictures.append(_at_least(section, budget, {row.name: row.shares for row in rows}))
        pictures.append(_acceptance(section, budget, {row.name: row.figures["acceptance"] for row in rows}))
    return saying(pictures, section.partial)


def _picture(
    section: OfflineSection, name: str, title: str, caption: str, said: str, height: float, draw: Draw
) -> Picture:
    line = f"counted, not decoded: {conditions_line(section.conditions, section.held)}"
    return Picture(f"{section.number}-{name}", title, caption, f"{title}. {said}.", height, draw, line)


def _leaderboard(section: OfflineSection, entries: Sequence[Ranked]) -> Picture:
    said = ranked_told(entries).replace("x [", " [")
    caption = "With 95 % intervals over prompts. Plain decoding is 1."
    draw = ranked(entries, "", "MAL: tokens of the answers per target call")
    return _picture(section, "leaderboard-mal", _titled(section), caption, said, ranked_height(entries), draw)


def _titled(section: OfflineSection) -> str:
    return f"{'Expected MAL' if section.expected else 'MAL'} at matched budgets"


def _curve(section: OfflineSection, entries: Sequence[Ranked]) -> Picture:
    lines = lines_of(entries)
    caption = f"Bars: 95 % intervals over prompts, side by side.{strokes_told(lines)}"
    said = curves_told(lines).replace("x [", " [")
    return _picture(
        section, "budget-mal", "MAL against budget", caption, said, 3.5, against_budget(lines, "MAL, bonus counted")
    )


def _at_least(section: OfflineSection, budget: str, lines: Mapping[str, Sequence[float | None]]) -> Picture:
    caption = "Of all rounds, the share that committed at least so many tokens, the target's own included."
    draw = by_depth(lines, "tokens committed, at least", "of all rounds")
    title, file = f"Rounds by tokens committed, {brief_budget(budget)}", f"atleast-{plain_word(short_budget(budget))}"
    return _picture(section, file, title, caption, f"At least 1, 2, ... {told(lines)}", 2.9, draw)


def _acceptance(section: OfflineSection, budget: str, lines: Mapping[str, Sequence[float | None]]) -> Picture:
    caption = "Of the rounds that got to a position, the share that committed one token more."
    draw = by_depth(lines, "position in the draft", "of rounds that got there")
    title, file = f"Acceptance by position, {brief_budget(budget)}", f"acceptance-{plain_word(short_budget(budget))}"
    return _picture(section, file, title, caption, f"Position 1 onwards. {told(lines)}", 2.9, draw)
