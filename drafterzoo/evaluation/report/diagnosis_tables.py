"""The tables of diagnoses: how often drafters are right, at which confidence, and what is rejected and recovered.

Knows sections of diagnoses and how a number is written; nothing of HTML, figures or how a number was found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from drafterzoo.evaluation.diagnosis.summary import bin_name
from drafterzoo.evaluation.report import diagnoses
from drafterzoo.evaluation.report.diagnoses import DiagnosisSection
from drafterzoo.evaluation.report.tabulate import (
    Cell,
    Column,
    Table,
    apart,
    conditions_table,
    count_cell,
    number_cell,
    telling,
    weights_of,
)

DRAFTER = Column("drafter", words=True)


def leaderboard(section: DiagnosisSection) -> Table:
    """How often each drafter is right, by depth, and how sure it is where it is wrong."""
    again = _again(section)
    columns = (
        DRAFTER,
        Column("tokens"),
        Column("accepted", ("acceptance",)),
        *(Column(f"at depth {depth}", (f"acceptance_{depth}",)) for depth in range(1, section.conditions["depth"] + 1)),
        Column("of rejected: unsure", ("unsure_share",)),
        Column("of rejected: unsure, target decisive", ("unsure_while_target_decisive_share",)),
        *([Column("of rejected: recovered", ("recovered",))] if again else []),
    )
    rows = []
    for name, summary in section.summaries.items():
        depths = [row["acceptance"] for row in summary["by_depth"]]
        depths += [None] * (section.conditions["depth"] - len(depths))
        shares = [summary["unsure_share"], summary["unsure_while_target_decisive_share"]]
        saved = [summary["all_rejected"].get("recovered")] if again else []
        values = [summary["acceptance"], *depths, *shares, *saved]
        rows.append((_drafter_cell(name), count_cell(summary["tokens"]), *(number_cell(v, 3) for v in values)))
    notes = [
        "Every token but an answer's last is a root once; a draft counts where all before it were right. Unsure: the "
        "drafter gave its own choice a chance below 0.5. Decisive: the target gave its own at least 0.9."
    ]
    if again:
        notes.append("Recovered: of the rejected tokens, the share where second thoughts choose what the target does.")
    return Table(f"leaderboard-{section.number}", "When drafters are wrong", columns, tuple(rows), tuple(notes))


def _drafter_cell(name: str) -> Cell:
    return Cell(name, name, series=name)


def _again(section: DiagnosisSection) -> bool:
    return any("recovered" in summary["all_rejected"] for summary in section.summaries.values())


def by_confidence(section: DiagnosisSection) -> Table:
    """Acceptance in every bin of the drafter's confidence, and how many tokens lie in it."""
    first = next(iter(section.summaries.values()))
    columns = (
        DRAFTER, Column("of a bin", words=True), *(Column(bin_name(row)) for row in first["by_confidence"]),
    )  # fmt: skip
    rows = []
    for name, summary in section.summaries.items():
        bins = summary["by_confidence"]
        rows.append((_drafter_cell(name), Cell("accepted"), *(number_cell(row["acceptance"], 3) for row in bins)))
        rows.append((_drafter_cell(name), Cell("tokens"), *(count_cell(row["tokens"]) for row in bins)))
    note = "The bins are of the chance that a drafter gives its own choice."
    return Table(f"confidence-{section.number}", "Acceptance by confidence", columns, tuple(rows), (note,))


def rejected(section: DiagnosisSection) -> Table:
    """Rejected tokens by both confidences, and what second thoughts make of them."""
    again = _again(section)
    more = (Column("recovered"), Column("rise if recovered"), Column("rise if not")) if again else ()
    columns = (
        DRAFTER, Column("drafter's confidence", words=True), Column("target's confidence", words=True),
        Column("rejected"), Column("share"), *more,
    )  # fmt: skip
    rows = [
        (
            _drafter_cell(name), Cell(bucket["drafter"]), Cell(bucket["target"]),
            count_cell(bucket["rejected"]), number_cell(bucket["share"], 3), *(_recovery(bucket) if again else ()),
        )
        for name, summary in section.summaries.items()
        for bucket in [*summary["buckets"], {"drafter": "all", "target": "all", **summary["all_rejected"]}]
    ]  # fmt: skip
    notes = ["Confidence: the chance of the own choice, the drafter's and the target's. Share: of all rejected tokens."]
    if again:
        notes.append("Recovered: second thoughts choose what the target does. Rise: of the drafter's confidence.")
    name = f"rejected-{section.number}"
    return Table(name, "Rejected tokens by both confidences", columns, tuple(rows), tuple(notes))


def _recovery(bucket: Mapping[str, Any]) -> tuple[Cell, ...]:
    rises = [bucket.get(key) for key in ("rise_recovered", "rise_not_recovered")]
    signed = [
        number_cell(None) if rise is None else attrs.evolve(number_cell(rise, 3), text=f"{rise:+.3f}") for rise in rises
    ]
    return number_cell(bucket.get("recovered"), 3), *signed


def conditions(section: DiagnosisSection) -> Table:
    """Everything that can change a number, and which weights each drafter has."""
    told = [
        (f"diagnosis {run.name}", f"{run.conditions['machine']['device_name']}, {run.directory}")
        for run in section.runs
    ]
    told += [(f"drafter {name}", weights_of(run.conditions["drafter"])) for name, run in section.by_name.items()]
    return conditions_table(section.number, section.conditions, told)


def overview(sections: Sequence[DiagnosisSection]) -> Table | None:
    """The sections, and the values of every condition in which they differ. None where there is one section."""
    if len(sections) < 2:
        return None
    fields = telling(diagnoses.differences(sections))
    most = []
    for section in sections:
        name, summary = max(section.summaries.items(), key=lambda item: item[1]["acceptance"] or 0)
        most.append((Cell(f"{summary['acceptance'] or 0:.3f} {name}", summary["acceptance"], series=name),))
    numbers = [section.number for section in sections]
    title = "Why there are several sections of diagnoses"
    return apart("diagnosis-sections", title, numbers, fields, ("most accepted",), most)
