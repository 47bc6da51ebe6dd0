"""What a results folder says of one checkpoint, for its card: tables, conditions, losslessness, and figures to index.

Knows results as a report gathers them, and tells the checkpoint's rows by a hash of its weights; nothing of cards or of
the Hub. Everything is computed anew from the raw counters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from drafterzoo.errors import UsageError
from drafterzoo.evaluation import tables
from drafterzoo.evaluation.conditions import flatten, shared, weights_sha256
from drafterzoo.evaluation.names import short_names
from drafterzoo.evaluation.offline.summary import grids as offline_grids
from drafterzoo.evaluation.report.collect import Collection, collect
from drafterzoo.evaluation.report.page import lossless

if TYPE_CHECKING:
    from drafterzoo.drafters.base import Drafter


@attrs.frozen
class Figure:
    """One number of this checkpoint. suite: what it was measured on. setting: the budget, as it may be typed."""

    suite: str
    metric: str
    value: float
    setting: str
    conditions: str
    date: str


@attrs.frozen
class Table:
    """Rows under equal conditions, this checkpoint's among them. said: whether texts were plain decoding's."""

    markdown: str
    conditions: list[tuple[str, str]]
    said: str


@attrs.frozen
class Measured:
    tables: list[Table]
    figures: list[Figure]
    remarks: list[str]


def measured(folder: Path, drafter: Drafter, title: str, target: str) -> Measured:
    """What a folder of `bench`, `grid` or `evaluate` says of this drafter, under its title; target: as it is called.

    Raises UsageError where none of its rows are of these weights with these options, DataError for damaged results.
    """
    found = collect([folder])
    made: list[Table] = []
    figures: list[Figure] = []
    for summary, said in _summaries(found):
        own = _own(summary["conditions"]["drafters"], drafter)
        if not own:
            continue
        called = short_names(summary["conditions"]["drafters"], tables.LONGEST_NAME) | dict.fromkeys(own, title)
        figures += _figures(summary, own, target)
        made.append(_table(_renamed(summary, called, target), said))
    if not made:
        names = {name for summary, _ in _summaries(found) for name in summary["conditions"]["drafters"]}
        raise UsageError(
            f"{folder}: holds no results of these weights with these options (there is: {', '.join(sorted(names))}); "
            f"measure this checkpoint, `drafterzoo bench -d dir:...`, and give that folder."
        )
    return Measured(made, figures, found.remarks)


def _summaries(found: Collection) -> list[tuple[dict[str, Any], str]]:
    """Every summary, and what is known of its texts."""
    decoded = [(run.summary, str(lossless(section)["text"])) for section in found.sections for run in section.runs]
    counted = "Counted on answers of the target itself: nothing was decoded, so there were no texts to compare."
    return [*decoded, *((section.summary, counted) for section in found.offline)]


def _own(drafters: Mapping[str, Any], drafter: Drafter) -> list[str]:
    """The names under which this very drafter was measured."""
    manifest = json.loads(json.dumps(drafter.manifest()))
    config = {"drafter": manifest["drafter"], "wrappers": manifest["wrappers"]}
    weights = weights_sha256(drafter)
    return [
        name
        for name, facts in drafters.items()
        if weights is not None and (facts.get("weights_sha256"), facts.get("config")) == (weights, config)
    ]


def _evaluated(summary: Mapping[str, Any]) -> bool:
    return bool(summary["conditions"].get("kind") == "evaluate")


def _renamed(summary: Mapping[str, Any], called: Mapping[str, str], target: str) -> dict[str, Any]:
    """The summary with drafters and target as the card calls them: a folder on somebody's disk means nothing there."""

    def rows(key: str) -> list[dict[str, Any]]:
        return [
            {
                field: called.get(value, value) if field in ("drafter", "against") else value
                for field, value in row.items()
            }
            for row in summary[key]
        ]

    conditions = summary["conditions"]
    drafters = {called[name]: facts for name, facts in conditions["drafters"].items()}
    told = {**conditions, "drafters": drafters, "target": {**conditions["target"], "name": target}}
    return {**summary, "rows": rows("rows"), "comparisons": rows("comparisons"), "conditions": told}


def _table(summary: dict[str, Any], said: str) -> Table:
    grid = offline_grids(summary)[0] if _evaluated(summary) else tables.grids(summary)[0]
    conditions = [
        (name, "none" if value is None else str(value)) for name, value in flatten(shared(summary["conditions"]))
    ]
    return Table(grid.markdown(), [*conditions, ("date", str(summary["conditions"]["date"]))], said)


def _figures(summary: Mapping[str, Any], own: list[str], target: str) -> list[Figure]:
    conditions = summary["conditions"]
    asked = conditions["rollouts"] if _evaluated(summary) else conditions["suite"]
    sampling = conditions["sampling"]
    told = f"target {target}, T={sampling['temperature']:g}, {sampling.get('verification') or sampling['rule']}"
    made = []
    for row in summary["rows"]:
        if row["drafter"] not in own:
            continue
        values = {"acceptance_length": row["mal"]} if _evaluated(summary) else {
            "acceptance_length": row["tau"], "speedup": row["speedup"]["value"],
        }  # fmt: skip
        budget = tables.short_budget(row["budget"])
        made += [
            Figure(asked["name"], metric, round(value, 4), budget, told, str(conditions["date"]))
            for metric, value in values.items()
            if value is not None
        ]
    return made
