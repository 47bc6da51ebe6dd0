"""Gathers diagnoses: drafters asked at the same tokens of the same answers become one section of their own.

Knows the folder of a diagnosis; nothing of decoded results, evaluations, figures, tables or HTML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from drafterzoo.evaluation.conditions import by_sources, unlike
from drafterzoo.evaluation.diagnosis import folder
from drafterzoo.evaluation.offline.lines import OF_NO_ACCOUNT, key_of
from drafterzoo.evaluation.report.called import row_names


@attrs.frozen(eq=False)
class DiagnosisRun:
    """One folder of `drafterzoo diagnose`. name: unlike that of any other folder of the report."""

    directory: Path
    name: str
    summary: dict[str, Any]

    @property
    def conditions(self) -> dict[str, Any]:
        conditions: dict[str, Any] = self.summary["conditions"]
        return conditions


@attrs.frozen(eq=False)
class DiagnosisSection:
    """Drafters asked the same questions. by_name: each run, as its drafter is called here."""

    number: int
    conditions: dict[str, Any]
    by_name: dict[str, DiagnosisRun]

    @property
    def runs(self) -> list[DiagnosisRun]:
        return list(self.by_name.values())

    @property
    def drafters(self) -> list[str]:
        return list(self.by_name)

    @property
    def summaries(self) -> dict[str, dict[str, Any]]:
        return {name: run.summary for name, run in self.by_name.items()}


def read_diagnosis(directory: Path, name: str) -> DiagnosisRun:
    """Raises DataError for a broken one."""
    return DiagnosisRun(directory, name, folder.read(directory))


def diagnosis_sections(runs: Sequence[DiagnosisRun], first: int) -> list[DiagnosisSection]:
    """The diagnoses by what was asked, numbered from `first`."""
    groups: dict[str, list[DiagnosisRun]] = {}
    for run in runs:
        groups.setdefault(key_of(_shared(run.conditions)), []).append(run)
    return [
        DiagnosisSection(number, _shared(group[0].conditions), _named(group))
        for number, group in enumerate(groups.values(), start=first)
    ]


def differences(sections: Sequence[DiagnosisSection]) -> dict[str, tuple[Any, ...]]:
    """The conditions in which sections differ, with the value of each."""
    return unlike(*(section.conditions for section in sections))


def _shared(conditions: Mapping[str, Any]) -> dict[str, Any]:
    """What must be equal in one table. Nothing here is timed, so the machine need not be."""
    return by_sources({key: value for key, value in conditions.items() if key not in ("drafter", *OF_NO_ACCOUNT)})


def _named(runs: Sequence[DiagnosisRun]) -> dict[str, DiagnosisRun]:
    """Each by its drafter; one that several have asked is named after its folder as well."""
    return dict(zip(row_names([(run.summary["drafter"], run.name) for run in runs]), runs, strict=True))
