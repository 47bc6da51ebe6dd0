"""Gathers what results directories hold: runs that may share a table become one section, all others stand apart.

Knows results, conditions, summaries and statistics; nothing of figures, tables or HTML. Evaluations are gathered by
offline.py and diagnoses by diagnoses.py, apart from what was decoded. Every number is computed from the raw counters
anew; of a stored summary only the logit gaps of differing texts are used, for no counter holds them.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import attrs

from drafterzoo.budget import Budget
from drafterzoo.engine.sampling import Sampling
from drafterzoo.errors import DataError, UsageError
from drafterzoo.evaluation import metrics, statistics
from drafterzoo.evaluation.cautions import cautions
from drafterzoo.evaluation.conditions import check_comparable, conditions_key, differing
from drafterzoo.evaluation.diagnosis.summary import cautions as diagnosis_cautions
from drafterzoo.evaluation.report.called import by_budget, folder_names
from drafterzoo.evaluation.report.definitions import Definition
from drafterzoo.evaluation.report.diagnoses import DiagnosisRun, DiagnosisSection, diagnosis_sections, read_diagnosis
from drafterzoo.evaluation.report.folders import Failure, failures, find
from drafterzoo.evaluation.report.offline import Evaluation, OfflineSection, offline_sections, read_evaluation
from drafterzoo.evaluation.report.verdicts import Verdict, judged, tested
from drafterzoo.evaluation.results import AGAIN, CONDITIONS, ROUNDS, SUMMARY, Record, Results, read
from drafterzoo.evaluation.shapes import check_conditions
from drafterzoo.evaluation.statistics import PairedRatio
from drafterzoo.evaluation.summary import PLAIN, Difference, differences, summarise
from drafterzoo.wording import listed, quantity, shown, verb


@attrs.frozen(eq=False)
class Run:
    """One results directory. summary: computed anew. remarks: what a reader of its numbers must know.

    name: unlike that of any other folder of the report.
    """

    directory: Path
    name: str
    conditions: dict[str, Any]
    records: list[Record]
    summary: dict[str, Any]
    remarks: list[str]

    @property
    def held(self) -> int:
        """How many prompts all of its rows answered."""
        return len({r.prompt for r in self.records})


@attrs.frozen(eq=False)
class Row:
    """A drafter at a budget in one run. figures: its row of the summary. tau: pooled τ with its interval over prompts.

    other: τ by the definition that was asked for, None where there is none. records: the first repeat's.
    """

    name: str
    run: Run
    figures: Mapping[str, Any]
    records: list[Record]
    tau: PairedRatio
    other: float | None

    @property
    def plain(self) -> bool:
        return bool(self.figures["cell"] == PLAIN)

    @property
    def timed(self) -> list[Record]:
        """The records of all repeats."""
        return [r for r in self.run.records if r.cell == self.figures["cell"]]

    @property
    def budget(self) -> Budget:
        return Budget.parse(self.figures["budget"])


@attrs.frozen(eq=False)
class Comparison:
    """Two rows at one budget. speed is None where the two were timed in different runs."""

    row: Row
    against: Row
    tau: Verdict
    speed: Verdict | None


@attrs.frozen(eq=False)
class Section:
    """Rows under equal conditions: plain decoding first, then by budget, and by pooled τ within a budget.

    speeds: per row name and budget, the speed-up over plain decoding of the same run.
    """

    number: int
    conditions: dict[str, Any]
    runs: list[Run]
    rows: list[Row]
    comparisons: list[Comparison]
    speeds: dict[tuple[str, str], Verdict]

    @property
    def drafted(self) -> list[Row]:
        return [row for row in self.rows if not row.plain]

    @property
    def budgets(self) -> list[str]:
        """From small to large."""
        return list(dict.fromkeys(row.figures["budget"] for row in self.drafted))

    @property
    def drafters(self) -> list[str]:
        """In the order the conditions give."""
        order = list(dict.fromkeys(name for run in self.runs for name in run.conditions["drafters"]))
        return sorted({row.name for row in self.drafted}, key=lambda name: (_base(name, order), name))

    @property
    def held(self) -> list[int]:
        """How many prompts each run holds."""
        return [run.held for run in self.runs]

    @property
    def partial(self) -> str:
        """What is said beside its numbers where that is not all of them: `12 of 40 prompts are shown`."""
        return shown(self.held, self.conditions["suite"]["prompts"], "prompt")

    def speed(self, row: Row) -> Verdict:
        return self.speeds[row.name, row.figures["budget"]]


def resampled(section: Section) -> str:
    """What intervals are over: prompts, or the batches in which they were decoded, which share their time."""
    return "prompts" if section.conditions["run"]["batch_size"] == 1 else "batches of prompts"


@attrs.frozen(eq=False)
class Collection:
    """All that a report shows. differing: the fields in which sections differ, with each section's value.

    offline: the sections of what was counted on rollouts. diagnoses: those of when drafters are wrong. failures: cells
    of grids that have no whole row.
    """

    sections: list[Section]
    offline: list[OfflineSection]
    diagnoses: list[DiagnosisSection]
    differing: dict[str, tuple[Any, ...]]
    definition: Definition | None
    failures: list[Failure]
    remarks: list[str]

    @property
    def runs(self) -> list[Run]:
        return [run for section in self.sections for run in section.runs]

    @property
    def every_run(self) -> list[Run | Evaluation | DiagnosisRun]:
        apart: list[OfflineSection | DiagnosisSection] = [*self.offline, *self.diagnoses]
        return [*self.runs, *(run for section in apart for run in section.runs)]

    @property
    def drafters(self) -> list[str]:
        """All drafters, in an order that gives each its colour."""
        every: list[Section | OfflineSection | DiagnosisSection] = [*self.sections, *self.offline, *self.diagnoses]
        return list(dict.fromkeys(name for section in every for name in section.drafters))


def collect(directories: Sequence[Path], definition: Definition | None = None) -> Collection:
    """Read the directories, and whatever results lie in folders below them.

    Raises UsageError when a directory holds no results, DataError when results are broken or of another version.
    """
    folders = find(directories)
    every = [*folders.benches, *folders.evaluations, *folders.diagnoses]
    names = dict(zip(every, folder_names(every), strict=True))
    groups: dict[str, list[_Part]] = {}
    evaluations = []
    remarks = list(folders.remarks)
    for folder in folders.benches:
        found, said = _read(folder)
        if found.records:
            groups.setdefault(conditions_key(found.conditions), []).append(_part(found, names[folder], said))
        else:
            remarks += [*said, f"{folder} holds no answer yet and is left out."]
    for folder in folders.evaluations:
        evaluation, said = read_evaluation(folder, names[folder])
        remarks += said
        if evaluation.lines:
            evaluations.append(evaluation)
        else:
            remarks.append(f"{folder} holds no rollout yet and is left out.")
    asked = [read_diagnosis(folder, names[folder]) for folder in folders.diagnoses]
    if not groups and not evaluations and not asked:
        empty = listed([*folders.benches, *folders.evaluations])
        raise UsageError(f"report: there is no answer in {empty}; run the command until at least one prompt is done.")
    sections = [
        _section(number, _on_shared_prompts(parts), definition)
        for number, parts in enumerate(_in_order(groups.values()), start=1)
    ]
    fields = differing(*(section.conditions for section in sections))
    offline, said = offline_sections(evaluations, len(sections) + 1)
    diagnoses = diagnosis_sections(asked, len(sections) + len(offline) + 1)
    remarks += [remark for section in sections for run in section.runs for remark in run.remarks] + said
    remarks += _cautions([run for section in sections for run in section.runs])
    for run in asked:
        remarks += [f"{run.name}: {caution}." for caution in diagnosis_cautions(run.summary)]
    if definition is not None and offline:
        remarks.append(
            f"τ by {definition.project} needs decoded results: what was counted on rollouts shows ours alone."
        )
    if definition is not None and not sections and not offline:
        remarks.append(f"τ by {definition.project} needs decoded results, and here are none.")
    return Collection(sections, offline, diagnoses, fields, definition, failures(folders), remarks)


def _in_order(groups: Iterable[list[_Part]]) -> list[list[_Part]]:
    """By suite, as the folders name them, then from the low temperature and the small batch to the high and large."""
    groups = list(groups)
    suites = list(dict.fromkeys(parts[0].found.conditions["suite"]["name"] for parts in groups))

    def place(parts: list[_Part]) -> tuple[int, float, int]:
        conditions = parts[0].found.conditions
        name, temperature = conditions["suite"]["name"], conditions["sampling"]["temperature"]
        return suites.index(name), temperature, conditions["run"]["batch_size"]

    return sorted(groups, key=place)


def _cautions(runs: Sequence[Run]) -> list[str]:
    """What the runs' numbers cannot bear, each caution once, with the runs that call for it."""
    named: dict[str, list[str]] = {}
    for run in runs:
        for caution in cautions(run.summary):
            named.setdefault(caution, []).append(run.name)
    return [f"{listed(names)}: {caution}." for caution, names in named.items()]


def _read(folder: Path) -> tuple[Results, list[str]]:
    """The results, and what reading them warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        found = read(folder)
    check_conditions(found.conditions, folder / CONDITIONS)
    return found, [f"{warning.message}." for warning in caught if issubclass(warning.category, UserWarning)]


@attrs.frozen(eq=False)
class _Part:
    """A results directory with the answers that all of its rows have, before other runs of its section are seen."""

    found: Results
    name: str
    records: list[Record]
    remarks: list[str]

    @property
    def answers(self) -> set[tuple[str, int]]:
        return {(r.prompt, r.turn) for r in self.records}


def _part(found: Results, name: str, remarks: list[str]) -> _Part:
    conditions = found.conditions
    for record in found.records:
        known = record.cell == PLAIN or (
            record.drafter in conditions["drafters"] and record.budget in conditions["budgets"]
        )
        if not known:
            raise DataError(
                f"{found.directory / ROUNDS} has rows of {record.cell!r}, which {CONDITIONS} beside it does not name; "
                f"restore the folder or run the benchmark again."
            )
    records, said = _matched(found.records, name)
    if part := shown([len({r.prompt for r in records})], conditions["suite"]["prompts"], "prompt"):
        said.append(f"{name} is unfinished: {part}.")
    return _Part(found, name, records, remarks + said)


def _on_shared_prompts(parts: Sequence[_Part]) -> list[Run]:
    """The runs of a section, on the answers that all of them have: rows of one table are measured on one text.

    Raises DataError when there are none.
    """
    shared = set.intersection(*(part.answers for part in parts))
    if not shared:
        names = listed([part.found.directory for part in parts])
        raise DataError(f"report: {names} have no prompt in common; report on them one by one.")
    runs = []
    for part in parts:
        remarks = list(part.remarks)
        if lost := len(part.answers - shared):
            are = f"{quantity(lost, 'answer')} {verb(lost, 'is', 'are')}"
            remarks.append(f"{part.name}: {are} left out, since not every run beside it has them.")
        runs.append(_run(part, [r for r in part.records if (r.prompt, r.turn) in shared], remarks))
    return runs


def _run(part: _Part, records: list[Record], remarks: list[str]) -> Run:
    """A run of these of its records, summed up anew."""
    found = part.found
    gaps = _gaps(found)
    unlike = [attrs.evolve(d, gap=gaps.get((d.cell, d.prompt, d.turn, d.repeat))) for d in differences(records)]
    summary = _summary(records, found.conditions, unlike)
    return Run(found.directory, part.name, found.conditions, records, summary, remarks)


def _gaps(found: Results) -> dict[tuple[Any, ...], float | None]:
    """The logit gaps of differing texts, as the stored summary has them. Raises DataError for a damaged one."""
    try:
        stored = (found.summary or {}).get("lossless", {}).get("differences", [])
        places = [(d["cell"], d["prompt"], d["turn"], d["repeat"]) for d in stored]
        gaps = [None if d["gap"] is None else float(d["gap"]) for d in stored]
        return dict(zip(places, gaps, strict=True))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{found.directory / SUMMARY}: lossless is not what bench writes; {AGAIN}.") from error


def _summary(records: list[Record], conditions: dict[str, Any], unlike: list[Difference]) -> dict[str, Any]:
    must_be_equal = not Sampling(**conditions["sampling"]).rejects
    return summarise(records, conditions, unlike, must_be_equal=must_be_equal)


def _matched(records: list[Record], name: str) -> tuple[list[Record], list[str]]:
    """The answers that every row has, so that all rows are measured on the same prompts; and what was left out.

    A row with less than half of the answers of the fullest one has failed on its way and is left out whole.
    """
    answers: dict[str, Counter[tuple[str, int]]] = {}
    for r in records:
        answers.setdefault(r.cell, Counter())[r.prompt, r.turn] += 1
    fullest = max(len(counts) for counts in answers.values())
    failed = [cell for cell, counts in answers.items() if 2 * len(counts) < fullest]
    kept = [counts for cell, counts in answers.items() if cell not in failed]
    repeats = max(max(counts.values()) for counts in kept)
    whole = set.intersection(*({key for key, n in counts.items() if n == repeats} for counts in kept))
    remarks = [
        f"{name}: {cell} answered {len(answers[cell])} of {fullest} questions and is left out." for cell in failed
    ]
    if partial := len({key for counts in kept for key in counts} - whole):
        are = f"{quantity(partial, 'answer')} {verb(partial, 'is', 'are')}"
        remarks.append(f"{name}: {are} left out, since not every row has them.")
    if not whole:
        raise DataError(f"{name}/{ROUNDS}: the rows have no prompt in common; run the benchmark again.")
    return [r for r in records if r.cell not in failed and (r.prompt, r.turn) in whole], remarks


def _section(number: int, runs: list[Run], definition: Definition | None) -> Section:
    check_comparable({f"run {i} ({run.name})": run.conditions for i, run in enumerate(runs, start=1)})
    cells = [(r["drafter"], r["budget"], i) for i, run in enumerate(runs) for r in run.summary["rows"]]
    called = by_budget([cell for cell in cells if cell[0] != PLAIN], [run.name for run in runs])
    rows = [row for i, run in enumerate(runs) for row in _rows(run, i, called, definition) if i == 0 or not row.plain]
    rows.sort(key=_rank)
    drafted = [row for row in rows if not row.plain]
    speeds = judged([_speedup(row) for row in drafted])
    named = {(row.name, row.figures["budget"]): verdict for row, verdict in zip(drafted, speeds, strict=True)}
    return Section(number, runs[0].conditions, runs, rows, _comparisons(drafted), named)


def _rows(
    run: Run, number: int, called: Mapping[tuple[str, str, int], str], definition: Definition | None
) -> Iterator[Row]:
    cells: dict[str, list[Record]] = {}
    for r in metrics.first(run.records):
        cells.setdefault(r.cell, []).append(r)
    for figures in run.summary["rows"]:
        cell, records = figures["cell"], cells[figures["cell"]]
        name = called.get((figures["drafter"], figures["budget"], number), figures["drafter"])
        other = definition.compute(records) if definition is not None and cell != PLAIN else None
        yield Row(name, run, figures, records, statistics.tau_interval(records), other)


def _rank(row: Row) -> tuple[Any, ...]:
    if row.plain:
        return (0,)
    if not row.figures["budget"]:  # a server that does not tell it
        return 2, row.name
    budget = row.budget
    size = budget.nodes, not budget.is_chain, -budget.p_min  # a draft that may end early spends less
    return 1, *size, row.figures["budget"], -(row.tau.value or 0), row.name


def _base(name: str, order: Sequence[str]) -> int:
    return next((i for i, base in enumerate(order) if name == base or name.startswith(f"{base} (")), len(order))


def _comparisons(rows: Sequence[Row]) -> list[Comparison]:
    """Every two rows at the same budget, the one with the larger τ over the other."""
    pairs = [(a, b) for a, b in combinations(rows, 2) if a.figures["budget"] == b.figures["budget"]]
    taus = judged([tested(statistics.tau_columns(a.records, b.records)) for a, b in pairs])
    timed = [i for i, (a, b) in enumerate(pairs) if a.run is b.run]
    ratios = [tested(statistics.speedup_columns(pairs[i][1].timed, pairs[i][0].timed)) for i in timed]
    speeds = dict(zip(timed, judged(ratios), strict=True))
    return [Comparison(a, b, taus[i], speeds.get(i)) for i, (a, b) in enumerate(pairs)]


def _speedup(row: Row) -> tuple[PairedRatio, float | None]:
    """A row's speed-up over plain decoding of its own run, as the summary has it, and its p-value."""
    plain = [r for r in row.run.records if r.cell == PLAIN]
    return PairedRatio(**row.figures["speedup"]), statistics.swap_test(statistics.speedup_columns(plain, row.timed))
