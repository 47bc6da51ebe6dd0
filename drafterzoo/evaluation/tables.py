"""Summaries as tables: for the terminal (rich) and for cards (Markdown), with definition and conditions beside every number.

Knows summaries only: no records, models or files. Summaries whose conditions differ in anything but the drafter are
refused (`conditions.check_comparable`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from drafterzoo.evaluation.conditions import check_comparable
from drafterzoo.evaluation.summary import PLAIN

Row = Mapping[str, Any]
Summary = Mapping[str, Any]
NOTHING = "-"
MAIN_COLUMNS = (
    "drafter", "budget", "τ (bonus counted)", "accepted", "speed-up [95 %]", "tok/s", "forwards/round", "nodes/round",
    "draft ms", "verify ms", "rest ms", "equal texts",
)  # fmt: skip


@attrs.frozen
class Grid:
    """A table as text, before anybody decides how to draw it. The first `labels` columns are words, the rest numbers."""

    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: int = 2

    def rich(self) -> Table:
        table = Table(
            title=escape(self.title), caption=escape(self.caption), title_justify="left", caption_justify="left"
        )
        for index, column in enumerate(self.columns):
            table.add_column(escape(column), justify="left" if index < self.labels else "right")
        for row in self.rows:
            table.add_row(*map(escape, row))
        return table

    def markdown(self) -> str:
        rule = ["---" if index < self.labels else "---:" for index in range(len(self.columns))]
        lines = [
            "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
            for row in (self.columns, rule, *self.rows)
        ]
        return f"**{self.title}**\n\n" + "\n".join(lines) + f"\n\n{self.caption}\n"


def grids(*summaries: Summary) -> list[Grid]:
    """The main table, acceptance by depth, and the categories (when there is more than one) of one or more runs.

    Raises UsageError, naming the fields, when the runs' conditions differ in anything but the drafter.
    """
    check_comparable(
        {f"run {i} ({s['conditions']['date']})": s["conditions"] for i, s in enumerate(summaries, start=1)}
    )
    rows = [row for index, s in enumerate(summaries) for row in s["rows"] if index == 0 or row["cell"] != PLAIN]
    title = conditions_line(summaries[0]["conditions"])
    drawn = [_main(rows, title, summaries[0])]
    if any(row["conditional"] for row in rows):
        drawn.append(_depths(rows, title))
    if len(rows[0]["categories"]) > 1:
        drawn.append(_categories(rows, title))
    return drawn


def rich_tables(*summaries: Summary) -> Group:
    """The tables for a terminal."""
    return Group(*(grid.rich() for grid in grids(*summaries)))


def markdown(*summaries: Summary) -> str:
    """The tables for a model card."""
    return "\n".join(grid.markdown() for grid in grids(*summaries))


def conditions_line(conditions: Mapping[str, Any]) -> str:
    """The conditions on one line: suite, target, precision, sampling, batch, machine."""
    target, suite, run = conditions["target"], conditions["suite"], conditions["run"]
    sampling, machine = conditions["sampling"], conditions["machine"]
    turns = ", all turns" if conditions["prompting"]["turns"] == "all" else ""
    choice = f"T={sampling['temperature']:g}"
    if sampling["temperature"]:
        choice += f", top-p {sampling['top_p']:g}, top-k {sampling['top_k']}, seed {sampling['seed']}"
        choice += "" if sampling["coupled"] or sampling["verification"] != "match" else ", not coupled"
    place = f"{machine['threads']} CPU threads" if machine["device"] == "cpu" else machine["device_name"]
    return (
        f"{suite['name']}: {suite['prompts']} prompts{turns}, {run['max_new_tokens']} new tokens; {target['name']} "
        f"{target['dtype']}{' packed' if target['packed'] else ''}; {choice}, {sampling['verification']}; "
        f"n={run['batch_size']}, {run['repeats']} timed run{'s' if run['repeats'] > 1 else ''}; {place}"
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
    return ("plain decoding", NOTHING) if row["cell"] == PLAIN else (row["drafter"], row["budget"])


def _equal(row: Row) -> str:
    if row["equal_texts"] is None:
        return "not checked"
    ties = f" ({row['ties']} tie{'s' if row['ties'] > 1 else ''})" if row["ties"] else ""
    return f"{row['equal_texts']}/{row['texts']}{ties}"


def _main(rows: Sequence[Row], title: str, summary: Summary) -> Grid:
    lines = []
    for row in rows:
        times = row["milliseconds_per_round"]
        speed = "1" if row["cell"] == PLAIN else interval(row["speedup"])
        figures = (row["tau"], row["accepted_per_round"])
        lines.append((
            *label(row), *map(number, figures), speed, number(row["tokens_per_second"], 1),
            number(row["forwards_per_round"]), number(row["nodes_per_round"], 1),
            number(times["draft"]), number(times["verify"]), number(times["rest"]), _equal(row),
        ))  # fmt: skip
    return Grid(title, f"{summary['definition']}.", MAIN_COLUMNS, tuple(lines))


def _depths(rows: Sequence[Row], title: str) -> Grid:
    deepest = max(len(row["conditional"]) for row in rows)
    lines = []
    for row in rows:
        if row["conditional"]:
            cells = [f"{number(c)} / {number(s)}" for c, s in zip(row["conditional"], row["survival"], strict=True)]
            lines.append((*label(row), *cells, *[NOTHING] * (deepest - len(cells))))
    caption = (
        "Acceptance by depth, conditional / survival. Conditional: among rounds that accepted everything above and whose "
        "answer went on. Survival: among all rounds; the survivals add up to `accepted`."
    )
    return Grid(
        f"Acceptance by depth. {title}",
        caption,
        ("drafter", "budget", *(f"depth {d + 1}" for d in range(deepest))),
        tuple(lines),
    )


def _categories(rows: Sequence[Row], title: str) -> Grid:
    names = list(rows[0]["categories"])
    lines = []
    for row in rows:
        cells = [row["categories"].get(name) for name in names]
        lines.append((*label(row), *(_category(cell, row["cell"] == PLAIN) for cell in cells)))
    columns = [f"{name} ({rows[0]['categories'][name]['answers']})" for name in names]
    caption = "By category (answers): τ with the bonus token, speed-up over plain decoding; plain decoding: tokens per second."
    return Grid(f"Categories. {title}", caption, ("drafter", "budget", *columns), tuple(lines))


def _category(cell: Mapping[str, Any] | None, plain: bool) -> str:
    if cell is None:
        return NOTHING
    if plain:
        return f"{number(cell['tokens_per_second'], 1)} tok/s"
    speed = cell["speedup"]["value"]
    return f"{number(cell['tau'])}, {NOTHING if speed is None else f'{speed:.2f}x'}"
