"""The tables of evaluations: MAL at equal budgets, drafters paired on shared rollouts, acceptance, rounds by tokens.

Knows sections of evaluations and how a number is written; nothing of HTML, figures or how a number was computed.
"""

from __future__ import annotations

from collections.abc import Sequence

from drafterzoo.evaluation.conditions import by_sources, when
from drafterzoo.evaluation.offline.lines import OF_NO_ACCOUNT
from drafterzoo.evaluation.report import offline
from drafterzoo.evaluation.report.offline import OfflineRow, OfflineSection
from drafterzoo.evaluation.report.tabulate import (
    LABELS,
    Cell,
    Column,
    Table,
    apart,
    budget_cell,
    conditions_table,
    count_cell,
    drafter_cell,
    number_cell,
    p_cell,
    paired_note,
    ratio_cell,
    ratio_column,
    telling,
    verdict_cell,
    weights_of,
    withdrawn_note,
)
from drafterzoo.evaluation.tables import NOTHING


def leaderboard(section: OfflineSection) -> Table:
    """Every row, budget by budget, ranked by MAL, with what a round spends beside it."""
    expected = section.expected
    columns = (
        *LABELS,
        ratio_column("MAL [95 %]", "mal"),
        Column("MAL (c)", ("mal_smoothed",)) if expected else Column("τ with bonus", ("tau",)),
        Column("expected rounds per answer" if expected else "rounds per answer", ("rounds_per_answer",)),
        *(() if expected else (
            Column("forwards", ("forwards_per_round",)), Column("rows", ("rows_per_round",)),
            Column("nodes", ("nodes_per_round",)),
        )),
        Column("rounds"), Column("tokens"), Column("answers", ("rollouts",)),
    )  # fmt: skip
    best = [max(of, key=lambda row: row.mal.value or 0) for of in _by_budget(section) if len(of) > 1]
    rows = []
    for row in section.rows:
        figures = row.figures
        spent = [number_cell(figures[f"{name}_per_round"], 1) for name in ("forwards", "rows", "nodes")]
        rows.append((
            drafter_cell(row), budget_cell(row), ratio_cell(row.mal, unit="", best=row in best),
            number_cell(figures["mal_smoothed"] if expected else figures["tau"]),
            number_cell(figures["rounds"] / figures["rollouts"], 1), *([] if expected else spent),
            number_cell(figures["rounds"], 1) if expected else count_cell(figures["rounds"]),
            count_cell(figures["tokens"]), count_cell(figures["rollouts"]),
        ))  # fmt: skip
    notes = [f"{section.summary['definition']}. Bold: the highest of its budget.", *_doubts(section)]
    if not expected:
        notes.insert(1, "Forwards, rows and nodes are per round (one target call): what equal budgets cost.")
    else:
        notes.insert(1, "Rounds are expectations given the answers' texts (EDR), over all that the drafter may draw.")
    title = "Expected rounds at matched budgets" if expected else "Rounds at matched budgets"
    return Table(f"leaderboard-{section.number}", title, columns, tuple(rows), tuple(notes))


def _doubts(section: OfflineSection) -> list[str]:
    return [f"{doubt}{'' if doubt.endswith('?') else '.'}" for doubt in section.doubts]


def _by_budget(section: OfflineSection) -> list[list[OfflineRow]]:
    return [[row for row in section.rows if row.figures["budget"] == budget] for budget in section.budgets]


def head_to_head(section: OfflineSection) -> Table | None:
    """Every two drafters at one budget, on the same rollouts. None where there are no two."""
    if not section.comparisons:
        return None
    columns = (
        *LABELS,
        Column("against", words=True),
        ratio_column("ratio of MAL [95 %]", "mal_ratio"),
        Column("p", ("p_holm",)),
    )
    rows = tuple(
        (drafter_cell(c.row), budget_cell(c.row), drafter_cell(c.against), verdict_cell(c.mal), p_cell(c.mal))
        for c in section.comparisons
    )
    notes = [paired_note(len(rows))]
    if any(c.mal.withdrawn for c in section.comparisons):
        notes.append(withdrawn_note(len(rows)))
    return Table(f"pairs-{section.number}", "Head to head on the same rollouts", columns, rows, tuple(notes))


def at_least(section: OfflineSection) -> Table:
    """How many rounds committed at least 1, 2, ... tokens, and which share of all."""
    digits = 1 if section.expected else 0
    deepest = max(len(row.shares) for row in section.rows)
    columns = (*LABELS, Column("of all rounds", words=True), *(Column(f"≥ {j}") for j in range(1, deepest + 1)))
    rows = []
    for row in section.rows:
        counts = [number_cell(value, digits) for value in row.figures["rounds_of_at_least"]]
        shares = [number_cell(value, 3) for value in row.shares]
        for kind, cells in (("rounds", counts), ("share", shares)):
            rows.append((drafter_cell(row), budget_cell(row), Cell(kind, kind), *_filled(cells, deepest)))
    note = "Rounds that committed at least so many of the answers' tokens, the target's own token included."
    name = f"atleast-{section.number}"
    return Table(name, "Rounds committing at least j tokens", columns, tuple(rows), (note,))


def acceptance(section: OfflineSection) -> Table:
    """Acceptance by position in the draft."""
    deepest = max(len(row.figures["acceptance"]) for row in section.rows)
    columns = (*LABELS, *(Column(str(place)) for place in range(1, deepest + 1)))
    rows = tuple(
        (
            drafter_cell(row), budget_cell(row),
            *_filled([number_cell(value, 3) for value in row.figures["acceptance"]], deepest),
        )
        for row in section.rows
    )  # fmt: skip
    note = (
        "Of the rounds that committed at least d tokens, the share that committed one more. The round that an answer "
        "ends in counts as refused at its end, so that short answers show slightly low figures."
    )
    return Table(f"acceptance-{section.number}", "Acceptance by position", columns, rows, (note,))


def _filled(cells: Sequence[Cell], width: int) -> list[Cell]:
    return [*cells, *[Cell(NOTHING)] * (width - len(cells))]


def categories(section: OfflineSection) -> Table | None:
    """MAL by source of the prompts. None where there is but one."""
    kinds = dict.fromkeys(kind for row in section.rows for kind in row.figures["categories"])
    if len(kinds) < 2:
        return None
    first = section.rows[0].figures["categories"]
    columns = (*LABELS, *(Column(f"{kind} ({first[kind]['rollouts']})", (f"{kind}_mal",)) for kind in kinds))
    rows = tuple(
        (
            drafter_cell(row), budget_cell(row),
            *(number_cell(row.figures["categories"][kind]["mal"]) for kind in kinds),
        )
        for row in section.rows
    )  # fmt: skip
    note = "MAL; in brackets: answers from that source."
    return Table(f"categories-{section.number}", "By source of the prompts", columns, rows, (note,))


def conditions(section: OfflineSection) -> Table:
    """Everything that can change a number, and which weights each drafter has."""
    shared = {
        key: value
        for key, value in section.conditions.items()
        if key not in ("drafters", "budgets", "kind", *OF_NO_ACCOUNT)
    }
    told = [(f"evaluation {run.name}", f"{when(run.conditions)}, {run.directory}") for run in section.runs]
    told += [(f"drafter {name}", weights_of(drafter)) for name, drafter in section.conditions["drafters"].items()]
    return conditions_table(section.number, by_sources(shared), told)


def overview(sections: Sequence[OfflineSection]) -> Table | None:
    """The evaluations, and the values of every condition in which they differ. None where there is one section."""
    if len(sections) < 2:
        return None
    fields = telling(offline.differences(sections))
    highest = []
    for section in sections:
        best = max(section.rows, key=lambda row: row.mal.value or 0)
        text = f"{best.mal.value or 0:.2f} {best.name} {budget_cell(best).text}"
        highest.append((Cell(text, best.mal.value, series=best.name),))
    numbers = [section.number for section in sections]
    return apart("offline-sections", "Why there are several evaluations", numbers, fields, ("highest MAL",), highest)
