"""Summaries as tables: for the terminal (rich) and for cards (Markdown), definition and conditions beside the numbers.

Knows summaries only: no records, models or files. Summaries whose conditions differ in anything but the drafter are
refused (`conditions.check_comparable`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from drafterzoo.budget import Budget
from drafterzoo.evaluation.conditions import check_comparable
from drafterzoo.evaluation.names import short_names
from drafterzoo.evaluation.summary import PLAIN
from drafterzoo.wording import portion, quantity

Row = Mapping[str, Any]
Summary = Mapping[str, Any]
NOTHING = "-"
LONGEST_NAME = 20  # characters of a drafter's name in a terminal of 80 columns
RESULT_COLUMNS = ("drafter", "budget", "τ with\nbonus", "accepted", "speed-up\n[95 %]", "tok/s", "equal\ntexts")
COST_COLUMNS = ("drafter", "budget", "forwards", "rows", "nodes", "draft\nms", "verify\nms", "rest\nms")


@attrs.frozen
class Grid:
    """A table as text, before anybody decides how to draw it. The first `labels` columns are words, not numbers."""

    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: int = 2

    def narrow(self) -> Grid:
        """The same in less width: what a column of words says in every row stands below the table, and what all of its
        words begin with (`starter:`) in its head.
        """
        short = [_beginning([row[index] for row in self.rows]) for index in range(self.labels)]
        if any(short):
            columns = [
                f"{name} {short[i]}" if i < self.labels and short[i] else name for i, name in enumerate(self.columns)
            ]
            rows = (
                tuple(cell.removeprefix(short[i]) if i < self.labels else cell for i, cell in enumerate(row))
                for row in self.rows
            )
            return attrs.evolve(self, columns=tuple(columns), rows=tuple(rows)).narrow()
        said = [{row[index] for row in self.rows} - {NOTHING} for index in range(self.labels)]
        alike = [index for index in range(1, self.labels) if len(said[index]) == 1]
        if not alike:
            return self
        kept = [index for index in range(len(self.columns)) if index not in alike]
        told = ", ".join(f"{self.columns[index].strip()} {said[index].copy().pop()}" for index in alike)
        return attrs.evolve(
            self,
            caption=f"{self.caption} In all rows: {told}.",
            columns=tuple(self.columns[index] for index in kept),
            rows=tuple(tuple(row[index] for index in kept) for row in self.rows),
            labels=self.labels - len(alike),
        )

    def rich(self, names: Mapping[str, str] | None = None) -> Table:
        """For a terminal. names: what stands for long names of drafters, so that none breaks in its middle."""
        table = Table(
            title=escape(self.title),
            caption=escape(self.caption),
            title_justify="left",
            caption_justify="left",
            title_style="bold",
            caption_style="dim",
            box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        for index, column in enumerate(self.columns):
            word = index < self.labels
            head = _fitted(column, names or {}).replace(",p_min=", ",\np_min=")
            table.add_column(
                escape(head), justify="left" if word else "right", no_wrap=word,
                overflow="ellipsis" if word else "fold",
            )  # fmt: skip
        for row in self.rows:
            table.add_row(*(escape(_fitted(cell, names or {})) for cell in row))
        return table

    def markdown(self) -> str:
        rule = ["---" if index < self.labels else "---:" for index in range(len(self.columns))]
        lines = [
            "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |"
            for row in (self.columns, rule, *self.rows)
        ]
        return f"**{self.title}**\n\n" + "\n".join(lines) + f"\n\n{self.caption}\n"


def grids(*summaries: Summary) -> list[Grid]:
    """Results, drafters head to head, what a round costs, acceptance by depth, and categories, where there are several.

    Raises UsageError, naming the fields, when the runs' conditions differ in anything but the drafter.
    """
    runs = {f"run {i} ({s['conditions']['date']})": s["conditions"] for i, s in enumerate(summaries, start=1)}
    check_comparable(runs)
    rows = [row for index, s in enumerate(summaries) for row in s["rows"] if index == 0 or row["cell"] != PLAIN]
    # what was computed anew from the lines of a killed run does not say
    held = [s["prompts_done"] for s in summaries if "prompts_done" in s]
    made = [_results(rows, summaries[0], held), _costs(rows)]
    if pairs := [pair for s in summaries for pair in s["comparisons"]]:
        made.insert(1, _pairs(pairs))
    if any(row["conditional"] for row in rows):
        made += [_depths(rows, "conditional"), _depths(rows, "survival")]
    if len(rows[0]["categories"]) > 1:
        made.append(_categories(rows))
    return made


def rich_tables(*summaries: Summary) -> Group:
    """The tables for a terminal."""
    return drawn(grids(*summaries), (name for summary in summaries for name in summary["conditions"]["drafters"]))


def drawn(some: Sequence[Grid], names: Iterable[str]) -> Group:
    """Tables for a terminal, long names of drafters cut, and below the tables what they stand for."""
    short = {name: brief for name, brief in short_names(names, LONGEST_NAME).items() if name != brief}
    legend = [Text(f"{brief}: {name}", overflow="fold") for name, brief in short.items()]
    parts = [part for grid in some for part in (grid.rich(short), "")]  # an empty line below each
    return Group(*parts, *legend)


def _beginning(cells: Sequence[str]) -> str:
    """`starter:`, where more than one thing is said and all of it begins so."""
    heads = {cell[: cell.find(":") + 1] for cell in cells}
    return heads.pop() if len(heads) == 1 and len(set(cells)) > 1 else ""


def _fitted(text: str, names: Mapping[str, str]) -> str:
    """A cell with long names cut, and budgets broken where a word ends."""
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, names[name])
    return text.replace(",grow=", ",\ngrow=")


def markdown(*summaries: Summary) -> str:
    """The tables for a model card."""
    return "\n".join(grid.markdown() for grid in grids(*summaries))


def conditions_line(conditions: Mapping[str, Any], held: Sequence[int] = ()) -> str:
    """The conditions on one line: suite, target, precision, sampling, batch, machine.

    held: how many of the prompts there are answers to, in each of the runs shown; left out, all of them.
    """
    target, suite, run = conditions["target"], conditions["suite"], conditions["run"]
    sampling, machine = conditions["sampling"], conditions["machine"]
    prompting = conditions["prompting"]
    turns = ", all turns" if prompting["turns"] == "all" else ""
    if prompting["thinking"] is not None:
        turns += ", thinking" if prompting["thinking"] else ", not thinking"
    turns += ", with a system prompt" if prompting.get("system") else ""
    choice = f"T={sampling['temperature']:g}"
    if sampling["temperature"]:
        choice += f", top-p {sampling['top_p']:g}, top-k {sampling['top_k']}, seed {sampling['seed']}"
        choice += "" if sampling["coupled"] or sampling["verification"] != "match" else ", not coupled"
    place = quantity(machine["threads"], "CPU thread") if machine["device"] == "cpu" else machine["device_name"]
    return (
        f"{suite['name']}: {portion(held or [suite['prompts']], suite['prompts'], 'prompt')}{turns}, "
        f"{quantity(run['max_new_tokens'], 'new token')}; {target['name']} "
        f"{target['dtype']}{' packed' if target['packed'] else ''}; {choice}, {sampling['verification']}; "
        f"batch of {run['batch_size']}, {quantity(run['repeats'], 'timed run')}; {place}"
    )


def number(value: float | None, digits: int = 2) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def interval(ratio: Mapping[str, Any]) -> str:
    """`1.52x [1.41, 1.63]`; without the interval where there is none."""
    if ratio["value"] is None:
        return NOTHING
    limits = "" if ratio["low"] is None else f" [{ratio['low']:.2f}, {ratio['high']:.2f}]"
    return f"{ratio['value']:.2f}x{limits}"


def label(row: Row) -> tuple[str, str]:
    """Drafter and budget, as a row is called."""
    return ("plain", NOTHING) if row["cell"] == PLAIN else (row["drafter"], short_budget(row["budget"]))


def short_budget(text: str) -> str:
    """A budget as results keep it, as briefly as it may be typed; a server may not tell its own."""
    return Budget.parse(text).brief if text else NOTHING


def short_cell(name: str) -> str:
    """A cell's name, `drafter@budget`, with the budget as tables print it; plain decoding's has none."""
    drafter, at, budget = name.rpartition("@")
    return f"{drafter}@{short_budget(budget)}" if at else name


def _equal(row: Row) -> str:
    if row["equal_texts"] is None:
        return "not checked"
    ties = f" ({quantity(row['ties'], 'tie')})" if row["ties"] else ""
    return f"{row['equal_texts']}/{row['texts']}{ties}"


def _results(rows: Sequence[Row], summary: Summary, held: Sequence[int]) -> Grid:
    lines = []
    for row in rows:
        speed = "1" if row["cell"] == PLAIN else interval(row["speedup"])
        figures = (number(row["tau"]), number(row["accepted_per_round"]), speed, number(row["tokens_per_second"], 1))
        lines.append((*label(row), *figures, _equal(row)))
    caption = f"{summary['definition']}."
    return Grid(conditions_line(summary["conditions"], held), caption, RESULT_COLUMNS, tuple(lines))


def _pairs(pairs: Sequence[Mapping[str, Any]]) -> Grid:
    lines = []
    for pair in pairs:
        names = (pair["drafter"], pair["against"], short_budget(pair["budget"]))
        lines.append((*names, interval(pair["tau_ratio"]), interval(pair["speedup"])))
    caption = "Paired by prompt, with 95 % intervals: an interval that holds 1 leaves open which is better."
    return Grid(
        "Head to head at equal budgets",
        caption,
        ("drafter", "over", "budget", "τ ratio", "speed ratio"),
        tuple(lines),
        labels=3,
    )


def _costs(rows: Sequence[Row]) -> Grid:
    lines = []
    for row in rows:
        counts = (
            number(row["forwards_per_round"]),
            number(row["rows_per_round"], 1),
            number(row["nodes_per_round"], 1),
        )
        times = (number(row["milliseconds_per_round"][part]) for part in ("draft", "verify", "rest"))
        lines.append((*label(row), *counts, *times))
    caption = (
        "Per target call: forwards of the drafter's block, rows in them, draft nodes verified (root excluded), and "
        "milliseconds in the drafter, in the target's forward, and in all else."
    )
    return Grid("What a round costs", caption, COST_COLUMNS, tuple(lines))


SHARES = {
    "conditional": "Of the rounds that accepted everything above and whose answer went on, the share that accepted it.",
    "survival": "Of all rounds, the share that accepted so many drafts at least; the shares add up to `accepted`.",
}


def _depths(rows: Sequence[Row], what: str) -> Grid:
    deepest = max(len(row[what]) for row in rows)
    lines = [
        (*label(row), *map(number, row[what]), *[NOTHING] * (deepest - len(row[what]))) for row in rows if row[what]
    ]
    columns = ("drafter", "budget", *(f"depth\n{d + 1}" for d in range(deepest)))
    return Grid(f"Acceptance by depth, {what}", SHARES[what], columns, tuple(lines))


def _categories(rows: Sequence[Row]) -> Grid:
    names = [(name, cell["answers"]) for name, cell in rows[0]["categories"].items()]
    cells = [[_category(row["categories"].get(name), row["cell"] == PLAIN) for name, _ in names] for row in rows]
    caption = "τ with the bonus token, then the speed-up over plain decoding (plain: tok/s). In brackets: answers."
    if len(names) < len(rows):  # whichever are fewer stand side by side
        columns = ("drafter", "budget", *(f"{name}\n({answers})" for name, answers in names))
        return Grid("By category", caption, columns, tuple((*label(r), *c) for r, c in zip(rows, cells, strict=True)))
    columns = ("category", *("\n".join(label(row)).removesuffix(f"\n{NOTHING}") for row in rows))
    lines = [(f"{name} ({n})", *(row[i] for row in cells)) for i, (name, n) in enumerate(names)]
    return Grid("By category", caption, columns, tuple(lines), labels=1)


def _category(cell: Mapping[str, Any] | None, plain: bool) -> str:
    if cell is None:
        return NOTHING
    if plain:
        return number(cell["tokens_per_second"], 1)
    speed = cell["speedup"]["value"]
    return f"{number(cell['tau'])}\n{NOTHING if speed is None else f'{speed:.2f}x'}"
