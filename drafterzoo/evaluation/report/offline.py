"""Gathers evaluations: rounds counted on the same rollouts, under equal conditions, become one section of their own.

Knows the offline evaluator's lines and summary, and statistics; nothing of decoded results, figures, tables or HTML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import attrs

from drafterzoo.budget import Budget
from drafterzoo.errors import DataError
from drafterzoo.evaluation.conditions import OF_A_ROW, by_sources, unlike
from drafterzoo.evaluation.offline.lines import LINES, OF_NO_ACCOUNT, Line, key_of, read_lines
from drafterzoo.evaluation.offline.summary import doubts, mal_columns, mal_interval, summarise
from drafterzoo.evaluation.report.called import by_budget
from drafterzoo.evaluation.report.verdicts import Verdict, judged, tested
from drafterzoo.evaluation.results import CONDITIONS, SUMMARY, read_object
from drafterzoo.evaluation.shapes import Evaluated, check_conditions
from drafterzoo.evaluation.statistics import PairedRatio
from drafterzoo.wording import shown


@attrs.frozen(eq=False)
class Evaluation:
    """One results directory of `drafterzoo evaluate`. name: unlike that of any other folder of the report."""

    directory: Path
    name: str
    conditions: dict[str, Any]
    lines: list[Line]


@attrs.frozen(eq=False)
class OfflineRow:
    """A drafter at a budget on rollouts. figures: its row of the summary. mal: with its interval over prompts."""

    name: str
    figures: Mapping[str, Any]
    lines: list[Line]
    mal: PairedRatio

    @property
    def plain(self) -> bool:
        """Plain decoding is not counted: its MAL is 1."""
        return False

    @property
    def budget(self) -> Budget:
        return Budget.parse(self.figures["budget"])

    @property
    def shares(self) -> list[float | None]:
        """Of all rounds, the share that committed at least 1, 2, ... tokens."""
        rounds = self.figures["rounds"]
        return [some / rounds if rounds else None for some in self.figures["rounds_of_at_least"]]


@attrs.frozen(eq=False)
class OfflineComparison:
    """Two rows at one budget, the first over the other."""

    row: OfflineRow
    against: OfflineRow
    mal: Verdict


@attrs.frozen(eq=False)
class OfflineSection:
    """Rows counted on the same rollouts: by budget, and by MAL within a budget."""

    number: int
    conditions: dict[str, Any]
    runs: list[Evaluation]
    summary: dict[str, Any]
    rows: list[OfflineRow]
    comparisons: list[OfflineComparison]
    doubts: list[str]

    @property
    def budgets(self) -> list[str]:
        """From small to large."""
        return list(dict.fromkeys(row.figures["budget"] for row in self.rows))

    @property
    def drafters(self) -> list[str]:
        found = {row.name for row in self.rows}
        return [name for name in self.conditions["drafters"] if name in found]

    @property
    def held(self) -> list[int]:
        """How many rollouts its rows are counted on: all on the same ones."""
        return [self.summary["rows"][0]["rollouts"]]

    @property
    def partial(self) -> str:
        """What is said beside its numbers where that is not all of them: `12 of 40 rollouts are shown`."""
        return shown(self.held, self.conditions["rollouts"]["rows"], "rollout")

    @property
    def expected(self) -> bool:
        """Whether rounds are expectations over all that `rejection` may draw, instead of counts."""
        return bool(self.conditions["sampling"]["rule"] == "rejection")


def read_evaluation(folder: Path, name: str) -> tuple[Evaluation, list[str]]:
    """The lines of a results directory, and what reading them showed. Raises DataError for a broken one."""
    conditions, lines, torn = read_lines(folder)
    if (folder / SUMMARY).is_file():
        read_object(folder / SUMMARY)  # all of it is computed anew: a damaged one is said, since something damaged it
    check_conditions(conditions, folder / CONDITIONS, Evaluated)
    strangers = [x for x in lines if x.drafter not in conditions["drafters"] or x.budget not in conditions["budgets"]]
    if strangers:
        raise DataError(
            f"{folder / LINES} has rows of {strangers[0].cell!r}, which {CONDITIONS} beside it does not name; restore "
            f"the folder or evaluate again."
        )
    said = [f"{folder / LINES}: the last line is half-written and was left out."] if torn else []
    return Evaluation(folder, name, conditions, lines), said


def offline_sections(runs: Sequence[Evaluation], first: int) -> tuple[list[OfflineSection], list[str]]:
    """The evaluations by their conditions, numbered from `first`, and remarks on what is not whole."""
    groups: dict[str, list[Evaluation]] = {}
    for run in runs:
        groups.setdefault(key_of(_shared(run.conditions)), []).append(run)
    sections, remarks = [], []
    for number, group in enumerate(groups.values(), start=first):
        section, said = _section(number, group)
        sections.append(section)
        remarks += said
    return sections, remarks


def differences(sections: Sequence[OfflineSection]) -> dict[str, tuple[Any, ...]]:
    """The conditions in which sections differ, with the value of each."""
    return unlike(*(_shared(section.conditions) for section in sections))


def _shared(conditions: Mapping[str, Any]) -> dict[str, Any]:
    """What must be equal in one table. Nothing here is timed, so the machine need not be."""
    return by_sources({key: value for key, value in conditions.items() if key not in (*OF_A_ROW, *OF_NO_ACCOUNT)})


def _section(number: int, runs: list[Evaluation]) -> tuple[OfflineSection, list[str]]:
    conditions, lines = _merged(runs)
    rollouts = conditions["rollouts"]["rows"]
    kept = _matched(lines)
    if not kept:
        raise DataError(f"{runs[0].directory / LINES}: the rows have no rollout in common; run the evaluation again.")
    summary = summarise(kept, conditions, rollouts=rollouts)
    cells: dict[str, list[Line]] = {}
    for line in kept:
        cells.setdefault(line.cell, []).append(line)
    rows = [
        OfflineRow(figures["drafter"], figures, own, mal_interval(own))
        for figures in summary["rows"]
        if (own := cells[figures["cell"]])
    ]
    rows.sort(key=_rank)
    section = OfflineSection(number, conditions, runs, summary, rows, _comparisons(rows), doubts(summary))
    names = ", ".join(run.name for run in runs)
    return section, [f"{names}: {part}, since not every row has the others."] if (part := section.partial) else []


def _merged(runs: Sequence[Evaluation]) -> tuple[dict[str, Any], list[Line]]:
    """The conditions and lines of all; a row that several have is named after its run as well."""
    rows = [(line.drafter, line.budget, i) for i, run in enumerate(runs) for line in run.lines]
    called = by_budget(rows, [run.name for run in runs])
    drafters: dict[str, Any] = {}
    lines: list[Line] = []
    for i, run in enumerate(runs):
        for line in run.lines:
            name = called[line.drafter, line.budget, i]
            drafters[name] = run.conditions["drafters"][line.drafter]
            lines.append(attrs.evolve(line, drafter=name, cell=f"{name}@{line.budget}"))
    budgets = list(dict.fromkeys(budget for run in runs for budget in run.conditions["budgets"]))
    return {**runs[0].conditions, "drafters": drafters, "budgets": budgets}, lines


def _matched(lines: Sequence[Line]) -> list[Line]:
    """The rollouts that every row has, so that all rows are counted on the same ones."""
    rows: dict[str, set[int]] = {}
    for line in lines:
        rows.setdefault(line.cell, set()).add(line.rollout)
    whole = set.intersection(*rows.values())
    return [line for line in lines if line.rollout in whole]


def _rank(row: OfflineRow) -> tuple[Any, ...]:
    budget = row.budget
    size = budget.nodes, not budget.is_chain, -budget.p_min  # a draft that may end early spends less
    return *size, row.figures["budget"], -(row.mal.value or 0), row.name


def _comparisons(rows: Sequence[OfflineRow]) -> list[OfflineComparison]:
    """Every two rows at the same budget, the one with the larger MAL over the other."""
    pairs = [(a, b) for a, b in combinations(rows, 2) if a.figures["budget"] == b.figures["budget"]]
    verdicts = judged([tested(mal_columns(a.lines, b.lines)) for a, b in pairs])
    return [OfflineComparison(a, b, verdict) for (a, b), verdict in zip(pairs, verdicts, strict=True)]
