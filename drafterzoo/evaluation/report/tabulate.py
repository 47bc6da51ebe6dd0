"""The tables of a report as text, with what to sort by and what to copy, before anybody decides how to draw them.

Knows sections of a collection and how a number is written; nothing of HTML, figures or how a number was computed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from drafterzoo.evaluation.conditions import flatten, shared, when
from drafterzoo.evaluation.report.collect import Collection, Comparison, Row, Section, resampled
from drafterzoo.evaluation.report.offline import OfflineRow
from drafterzoo.evaluation.report.verdicts import LEVEL, TESTABLE, Verdict
from drafterzoo.evaluation.statistics import PairedRatio
from drafterzoo.evaluation.tables import NOTHING, interval, number, short_budget
from drafterzoo.wording import quantity

WITHDRAWN = "†"
HASH = re.compile(r"[0-9a-f]{16,}(-dirty)?")


@attrs.frozen
class Column:
    """title; csv: what its cells are called when copied, one name for each value of a cell; words: not numbers.

    long: its cells hold whole sentences, which may take several lines.
    """

    title: str
    csv: tuple[str, ...] = attrs.field(default=attrs.Factory(lambda self: (self.title,), takes_self=True))
    words: bool = False
    long: bool = False


@attrs.frozen
class Cell:
    """text as shown; sort: what orders the column (None last); csv: values as copied, as many as its column names.

    series: the drafter it names, to be coloured as in the figures. best: the best of its group.
    """

    text: str
    sort: float | str | None = None
    csv: tuple[str, ...] = attrs.field(default=attrs.Factory(lambda self: (self.text,), takes_self=True))
    series: str | None = None
    best: bool = False


@attrs.frozen
class Table:
    """name: unique in the report. notes: what stands under it."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


LABELS = (Column("drafter", words=True), Column("budget", words=True))


def leaderboard(section: Section, collection: Collection) -> Table:
    """Every row, budget by budget, ranked by pooled τ, with what it costs beside it."""
    definition = collection.definition
    columns = [
        *LABELS,
        ratio_column("τ with bonus [95 %]", "tau"),
        Column("τ macro"),
        *([Column(f"τ by {definition.project} ‡", (f"tau_{definition.name}",))] if definition else []),
        Column("accepted", ("accepted_per_round",)),
        ratio_column("speed-up [95 %]", "speedup"),
        Column("tok/s", ("tokens_per_second",)),
        Column("forwards", ("forwards_per_round",)),
        Column("rows", ("rows_per_round",)),
        Column("nodes", ("nodes_per_round",)),
        Column("ms/round", ("milliseconds_per_round",)),
        Column("equal texts", ("equal_texts", "texts")),
    ]
    best = _best(section)
    rows = []
    for row in section.rows:
        figures = row.figures
        speed = _plain_speed() if row.plain else verdict_cell(section.speed(row), best=row in best["speed"])
        rows.append((
            drafter_cell(row), budget_cell(row),
            ratio_cell(row.tau, unit="", best=row in best["tau"]), number_cell(figures["tau_macro"]),
            *([number_cell(row.other)] if definition else []),
            number_cell(figures["accepted_per_round"]), speed, number_cell(figures["tokens_per_second"], 1),
            number_cell(figures["forwards_per_round"], 1), number_cell(figures["rows_per_round"], 1),
            number_cell(figures["nodes_per_round"], 1), number_cell(_milliseconds(row), 1), _equal(row),
        ))  # fmt: skip
    notes = [
        "τ: committed tokens per target call, accepted + 1 (the bonus token counts), cut at EOS, pooled over rounds; "
        "macro: the mean of each answer's own τ. Ranked by pooled τ within a budget. Bold: the highest of its budget.",
        "Speed-up: plain decoding's time over the drafter's on the same prompts in the same run, prefill excluded, "
        "of an answer's repeats the median. "
        "Forwards, rows, nodes and milliseconds are per round (one target call): what equal budgets cost.",
    ]
    if any(section.speed(row).withdrawn for row in section.drafted):
        notes.append(withdrawn_note(len(section.drafted)))
    if definition:
        short = definition.falls_short(r for row in section.drafted for r in row.records)
        notes.append(
            f"‡ By the definition of {definition.project}: {definition.footnote} (Source: {definition.source}.) Never "
            f"compare it with another column."
            + (
                " These results hold no count beyond EOS, so the value shown stops there: a lower bound."
                if short
                else ""
            )
        )
    return Table(
        f"leaderboard-{section.number}", "Leaderboard at matched budgets", tuple(columns), tuple(rows), tuple(notes)
    )


def head_to_head(section: Section) -> Table | None:
    """Every two drafters at one budget. None where there are no two."""
    if not section.comparisons:
        return None
    columns = (
        *LABELS,
        Column("against", words=True),
        ratio_column("τ ratio [95 %]", "tau_ratio"),
        Column("p (τ)", ("tau_p_holm",)),
        ratio_column("speed ratio [95 %]", "speed_ratio"),
        Column("p (speed)", ("speed_p_holm",)),
    )
    rows = tuple(
        (
            drafter_cell(c.row), budget_cell(c.row), drafter_cell(c.against),
            verdict_cell(c.tau), p_cell(c.tau), verdict_cell(c.speed), p_cell(c.speed),
        )
        for c in section.comparisons
    )  # fmt: skip
    notes = [paired_note(len(rows), resampled(section))]
    if any(c.tau.withdrawn or (c.speed is not None and c.speed.withdrawn) for c in section.comparisons):
        notes.append(withdrawn_note(len(rows)))
    if any(c.speed is None for c in section.comparisons):
        notes.append(
            "No speed ratio where the two drafters were timed in different runs: the machine may have drifted."
        )
    return Table(f"pairs-{section.number}", "Head to head at equal budgets", columns, rows, tuple(notes))


def best_budgets(section: Section) -> Table | None:
    """Each drafter at the budget where it is fastest. None where there is but one budget."""
    if len(section.budgets) < 2:
        return None
    columns = (
        Column("drafter", words=True), Column("its best budget", words=True),
        ratio_column("speed-up [95 %]", "speedup"), ratio_column("τ with bonus [95 %]", "tau"),
        Column("forwards", ("forwards_per_round",)), Column("ms/round", ("milliseconds_per_round",)),
    )  # fmt: skip
    rows = []
    for name in section.drafters:
        own = [row for row in section.drafted if row.name == name]
        row = max(own, key=lambda row: row.figures["speedup"]["value"] or 0.0)
        speed = PairedRatio(**row.figures["speedup"])
        cells = (ratio_cell(speed), ratio_cell(row.tau, unit=""), number_cell(row.figures["forwards_per_round"], 1))
        rows.append((drafter_cell(row), budget_cell(row), *cells, number_cell(_milliseconds(row), 1)))
    note = (
        "Each budget was chosen on these very prompts, which flatters it: not comparable with rows at a fixed budget."
    )
    return Table(f"best-{section.number}", "Each drafter at its own best budget", columns, tuple(rows), (note,))


def depths(section: Section) -> Table | None:
    """Survival and conditional acceptance by depth."""
    deepest = max((len(row.figures["survival"]) for row in section.drafted), default=0)
    if not deepest:
        return None
    columns = (
        *LABELS, Column("share", words=True),
        *(Column(str(d)) for d in range(1, deepest + 1)),
    )  # fmt: skip
    rows = []
    for row in section.drafted:
        for kind in ("survival", "conditional"):
            values = [number_cell(value, 3) for value in row.figures[kind]]
            cells = values + [Cell(NOTHING)] * (deepest - len(values))
            rows.append((drafter_cell(row), budget_cell(row), Cell(kind, kind), *cells))
    note = (
        "Survival: of all rounds, those that committed at least that many drafts; the shares add up to the accepted "
        "drafts. Conditional: of the rounds that accepted all above and whose answer went on, those that accepted this "
        "depth too."
    )
    return Table(f"depths-{section.number}", "Acceptance by depth", columns, tuple(rows), (note,))


def costs(section: Section) -> Table:
    """Milliseconds of a round, and their shares."""
    columns = (
        *LABELS, Column("drafter, ms", ("draft_ms",)), Column("target, ms", ("verify_ms",)),
        Column("rest, ms", ("rest_ms",)), Column("drafter, %", ("draft_percent",)),
        Column("target, %", ("verify_percent",)), Column("rest, %", ("rest_percent",)),
        Column("rounds"), Column("tokens"),
    )  # fmt: skip
    rows = []
    for row in section.rows:
        times, shares = row.figures["milliseconds_per_round"], row.figures["time_shares"]
        cells = [number_cell(times[part], 2) for part in ("draft", "verify", "rest")]
        cells += [number_cell(None if shares[p] is None else 100 * shares[p], 1) for p in ("draft", "verify", "rest")]
        counts = [count_cell(row.figures[name]) for name in ("rounds", "tokens")]
        rows.append((drafter_cell(row), budget_cell(row), *cells, *counts))
    note = (
        "Mean time of a round in the drafter, in the target's forward, and in all else (acceptance, caches, the loop)."
    )
    return Table(f"costs-{section.number}", "Where the time of a round goes", columns, tuple(rows), (note,))


def categories(section: Section) -> Table | None:
    """τ and speed-up by kind of prompt. None where there is but one kind."""
    kinds = section.rows[0].figures["categories"]
    if len(kinds) < 2:
        return None
    columns = [*LABELS]
    for kind, figures in kinds.items():
        columns += [Column(f"{kind} ({figures['answers']}): τ", (f"{kind}_tau",)), Column("×", (f"{kind}_speedup",))]
    rows = []
    for row in section.drafted:
        cells: list[Cell] = []
        for kind in kinds:
            figures = row.figures["categories"].get(kind, {})
            cells += [number_cell(figures.get("tau")), number_cell(figures.get("speedup", {}).get("value"))]
        rows.append((drafter_cell(row), budget_cell(row), *cells))
    note = "In brackets: answers of that kind. τ with the bonus token, pooled; ×: speed-up over plain decoding on them."
    return Table(f"categories-{section.number}", "By kind of prompt", tuple(columns), tuple(rows), (note,))


def conditions(section: Section) -> Table:
    """Everything that can change a number, and the rows' own: which weights each drafter has."""
    told = []
    for run in section.runs:
        told.append((f"run {run.name}", f"{when(run.conditions)}, {run.directory}"))
        told += [(f"drafter {name}", weights_of(drafter)) for name, drafter in run.conditions["drafters"].items()]
    return conditions_table(section.number, shared(section.conditions), told)


def weights_of(drafter: Mapping[str, Any]) -> str:
    """Which weights a drafter has, by its conditions."""
    if drafter.get("served"):
        return f"served, {drafter['model'] or drafter['method'] or 'the server does not tell which'}"
    weights = drafter.get("weights_sha256")
    return f"weights sha256 {weights[:16]}" if weights else "no weights"


def conditions_table(number: int, conditions: Mapping[str, Any], told: Sequence[tuple[str, str]]) -> Table:
    """What the rows of a section share, field by field, then what is told of its runs and drafters."""
    pairs = dict([*((field, said(value)) for field, value in flatten(conditions)), *told])
    rows = tuple((Cell(field, field), Cell(value, value)) for field, value in pairs.items())
    columns = (Column("condition", words=True), Column("value", words=True, long=True))
    return Table(f"conditions-{number}", "Conditions", columns, rows)


def failures(collection: Collection) -> Table | None:
    """The cells of grids that failed, each with its reason. None where none did."""
    columns = (
        Column("drafter", words=True), Column("budgets", words=True), Column("why", words=True, long=True),
        Column("tables", words=True, long=True), Column("grid", words=True),
    )  # fmt: skip
    rows = tuple(
        (
            Cell(one.drafter, one.drafter), Cell(one.spent or NOTHING), Cell(one.reason, one.reason),
            Cell(", ".join(one.tables)), Cell(one.grid, one.grid),
        )
        for one in collection.failures
    )  # fmt: skip
    note = (
        "In the last run of each grid. These rows are missing below, or stand on fewer prompts; the same command that "
        "ran the grid tries them again."
    )
    return Table("failures", "Cells that failed", columns, rows, (note,)) if rows else None


def overview(collection: Collection) -> Table | None:
    """The sections, and the values of every condition in which they differ. None where there is one section."""
    if len(collection.sections) < 2:
        return None
    numbers = [section.number for section in collection.sections]
    leaders = [_leaders(section) for section in collection.sections]
    fields, titles = telling(collection.differing), ("highest τ", "largest speed-up")
    return apart("sections", "Why there are several sections", numbers, fields, titles, leaders)


def apart(
    name: str,
    title: str,
    numbers: Sequence[int],
    fields: Mapping[str, tuple[Any, ...]],
    titles: Sequence[str],
    leaders: Sequence[Sequence[Cell]],
) -> Table:
    """Why sections stand apart: in each field in which they differ, the value of each, and what leads in each.

    fields: with the value of each section, in the order of their `numbers`. titles, leaders: the columns of the last.
    """
    columns = [Column(text, words=True) for text in ("section", *fields, *titles)]
    rows = [
        (Cell(str(number), number), *(condition_cell(each[index]) for each in fields.values()), *leaders[index])
        for index, number in enumerate(numbers)
    ]
    note = "Numbers of different sections may not be compared: something other than the drafter differs."
    return Table(name, title, tuple(columns), tuple(rows), (note,))


def telling(fields: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """The fields without those that follow from a name: another target has another tokenizer, which tells nothing more.

    fields: with the value of each section.
    """

    def follows(field: str) -> bool:
        names = fields.get(f"{field.split('.')[0]}.name")
        if names is None or field.endswith(".name"):
            return False
        return len(set(zip(names, map(str, fields[field]), strict=True))) == len(set(names))

    return {field: values for field, values in fields.items() if not follows(field)}


def is_hash(value: Any) -> bool:
    return isinstance(value, str) and HASH.fullmatch(value) is not None


def condition_cell(value: Any) -> Cell:
    """A condition's value; of a hash, the beginning tells it from others."""
    text = said(value)
    shown = f"{text[:8]}…" if is_hash(value) else text
    return Cell(shown, value if isinstance(value, int | float) else text, (text,))


def _leaders(section: Section) -> tuple[Cell, Cell]:
    """The row with the highest τ, and the one with the largest speed-up, at whatever budget."""
    taus = [(row.tau.value, row) for row in section.drafted if row.tau.value is not None]
    speeds = [(v, row) for row in section.drafted if (v := row.figures["speedup"]["value"]) is not None]
    cells = []
    for values, unit in ((taus, ""), (speeds, "×")):
        if values:
            value, row = max(values, key=lambda pair: pair[0])
            text = f"{value:.2f}{unit} {row.name} {short_budget(row.figures['budget'])}"
            cells.append(Cell(text, value, series=row.name))
        else:
            cells.append(Cell(NOTHING))
    return cells[0], cells[1]


def verdicts(section: Section) -> list[tuple[str, str]]:
    """For every budget with several drafters, one sentence: who leads, by how much, and whether it is significant."""
    sentences = []
    for budget in section.budgets:
        pairs = [c for c in section.comparisons if c.row.figures["budget"] == budget]
        rows = [row for row in section.drafted if row.figures["budget"] == budget and row.figures["speedup"]["value"]]
        if len(rows) > 1 and (pair := _fastest(rows, pairs, resampled(section))) is not None:
            sentences.append((short_budget(budget), pair))
    return sentences


def _fastest(rows: Sequence[Row], pairs: Iterable[Comparison], over: str = "prompts") -> str | None:
    first, second = sorted(rows, key=lambda row: -row.figures["speedup"]["value"])[:2]
    for c in pairs:
        if {c.row.name, c.against.name} == {first.name, second.name} and c.speed is not None:
            ratio = c.speed.ratio if c.row is first else _inverse(c.speed.ratio)
            how = interval(ratio.as_dict()).replace("x", "×", 1)
            real = "a significant difference" if c.speed.clear else "not a significant difference"
            if ratio.clusters < TESTABLE:
                real = f"too few {over} to test it"
            gain = first.figures["speedup"]["value"]
            leads = (
                f"{first.name} is the fastest," if gain >= 1 else f"plain decoding is faster than all; {first.name} has"
            )
            return f"{leads} {gain:.2f}× plain decoding; over the next, {second.name}, {how}: {real}."
    return None


def _inverse(ratio: PairedRatio) -> PairedRatio:
    value, low, high = (1 / x if x else None for x in (ratio.value, ratio.high, ratio.low))
    return PairedRatio(value, low, high, None, None, ratio.clusters)


# --------------------------------------------------------------------------------------------------------------- cells


def budget_cell(row: Row | OfflineRow) -> Cell:
    if row.plain:
        return Cell(NOTHING, -1.0)
    if not row.figures["budget"]:
        return Cell(NOTHING)
    return Cell(short_budget(row.figures["budget"]), row.budget.nodes + (0 if row.budget.is_chain else 0.5))


def drafter_cell(row: Row | OfflineRow) -> Cell:
    return Cell("plain", "") if row.plain else Cell(row.name, row.name, series=row.name)


def ratio_column(title: str, name: str) -> Column:
    return Column(title, (name, f"{name}_low", f"{name}_high"))


def ratio_cell(ratio: PairedRatio, *, unit: str = "×", mark: str = "", best: bool = False) -> Cell:
    text = interval(ratio.as_dict()).replace("x", unit, 1) + mark
    return Cell(text, ratio.value, tuple(_exact(v) for v in (ratio.value, ratio.low, ratio.high)), best=best)


def verdict_cell(verdict: Verdict | None, best: bool = False) -> Cell:
    if verdict is None:
        return Cell(NOTHING, csv=("", "", ""))
    return ratio_cell(verdict.ratio, mark=f" {WITHDRAWN}" if verdict.withdrawn else "", best=best)


def _plain_speed() -> Cell:
    return Cell("1", 1.0, ("1", "", ""))


def p_cell(verdict: Verdict | None) -> Cell:
    if verdict is None or verdict.adjusted is None:
        return Cell(NOTHING, csv=("",))
    p = verdict.adjusted
    return Cell("< 0.001" if p < 0.001 else f"{p:.3f}", p, (_exact(p),), best=verdict.clear)


def number_cell(value: float | None, digits: int = 2) -> Cell:
    return Cell(number(value, digits), value, (_exact(value),))


def count_cell(value: float) -> Cell:
    whole = round(value)
    return Cell(f"{whole:,}", whole, (str(whole),))


def _exact(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _milliseconds(row: Row) -> float | None:
    times = [value for value in row.figures["milliseconds_per_round"].values() if value is not None]
    return sum(times) if times else None


def _equal(row: Row) -> Cell:
    figures = row.figures
    if figures["equal_texts"] is None:
        return Cell("not checked", csv=("", str(figures["texts"])))
    ties = f" ({quantity(figures['ties'], 'tie')})" if figures["ties"] else ""
    share = figures["equal_texts"] / figures["texts"]
    return Cell(
        f"{figures['equal_texts']}/{figures['texts']}{ties}",
        share,
        (str(figures["equal_texts"]), str(figures["texts"])),
    )


def _best(section: Section) -> Mapping[str, list[Row]]:
    """Of every budget with several drafters, the row with the highest τ and the one with the largest speed-up."""
    best: dict[str, list[Row]] = {"tau": [], "speed": []}
    for budget in section.budgets:
        rows = [row for row in section.drafted if row.figures["budget"] == budget]
        if len(rows) > 1:
            best["tau"].append(max(rows, key=lambda row: row.tau.value or 0.0))
            best["speed"].append(max(rows, key=lambda row: row.figures["speedup"]["value"] or 0.0))
    return best


def paired_note(comparisons: int, over: str = "prompts") -> str:
    corrected = f", after Holm's correction over the column's {comparisons} comparisons" if comparisons > 1 else ""
    return (
        f"Paired by prompt, intervals over {over}; an interval that holds 1 leaves open which is better. p: of a swap "
        f"test{corrected}; bold where it is below {LEVEL}."
    )


def withdrawn_note(comparisons: int) -> str:
    counted = f" once Holm's correction counts the column's {comparisons} comparisons" if comparisons > 1 else ""
    return (
        f"{WITHDRAWN} The interval leaves out 1, but a swap test finds the difference not significant at "
        f"{100 * LEVEL:.0f} %{counted}."
    )


def said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
