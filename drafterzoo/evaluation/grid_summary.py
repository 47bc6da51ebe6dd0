"""All tables of a grid at a glance: one dict from the tables' summaries, and how it is drawn.

Knows summaries; nothing of models, of decoding or of who ran what. A ratio is always within one table: its base is
plain decoding at the same suite, temperature, batch size and seed. The column of each drafter's best budget is chosen
on the very prompts it is reported on, and so is an upper bound; the rows at equal budgets are what compares drafters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Group

from drafterzoo.errors import DataError
from drafterzoo.evaluation import results
from drafterzoo.evaluation.grid_plan import Plan, Table
from drafterzoo.evaluation.shapes import Summary
from drafterzoo.evaluation.summary import DEFINITION, PLAIN, summarise
from drafterzoo.evaluation.tables import NOTHING, Grid, drawn, interval, number, short_budget
from drafterzoo.kinds import check_shape
from drafterzoo.wording import quantity

AXES = ("suite", "temperature", "batch_size", "seed")
SHORT = {"suite": "suite", "temperature": "T", "batch_size": "batch", "seed": "seed"}
_KEPT = (
    "drafter", "budget", "answers", "tau", "tau_macro", "accepted_per_round", "speedup", "tokens_per_second",
    "forwards_per_round", "rows_per_round", "nodes_per_round", "milliseconds_per_round", "texts", "equal_texts", "ties",
)  # fmt: skip


def summarise_grid(plan: Plan, directory: Path, failures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The summary of a whole plan, from what its tables hold so far. failures: the cells that raised, with reasons."""
    found = {table.name: _of_folder(directory / table.name) for table in plan.tables}
    tables = [_table(table, summary) for table in plan.tables if (summary := found[table.name]) is not None]
    return {
        "name": plan.recipe.name,
        "definition": DEFINITION,
        "target": plan.recipe.target,
        "complete": len(tables) == len(plan.tables) and all(table["complete"] for table in tables),
        "planned": len(plan.tables),
        "tables": tables,
        "means": _means(tables),
        "failures": [dict(failure) for failure in failures],
    }


def _of_folder(directory: Path) -> dict[str, Any] | None:
    """A table's summary; computed anew, without the gaps of differences, where a killed run left none."""
    if not (directory / results.CONDITIONS).is_file():
        return None
    found = results.read(directory)
    if not found.records:
        return None
    if found.summary is not None:
        _check_stored(found.summary, directory / results.SUMMARY)
    return found.summary or {**summarise(found.records, found.conditions), "complete": False}


def _check_stored(summary: Mapping[str, Any], path: Path) -> None:
    remedy = "delete it, and the same command computes it anew"
    check_shape(Summary, summary, str(path), remedy)
    for row in summary["rows"]:
        if lacking := [key for key in _KEPT if key not in row]:
            raise DataError(f"{path}: a row has no {lacking[0]}; {remedy}.")


def _table(table: Table, summary: Mapping[str, Any]) -> dict[str, Any]:
    rows = []
    for row in summary["rows"]:
        parts = row["milliseconds_per_round"].values()
        total = None if None in parts else sum(parts)
        rows.append({**{key: row[key] for key in _KEPT}, "milliseconds": total})
    return {
        "table": table.name,
        **table.facts,
        "complete": summary["complete"],
        "answers": summary["answers"],
        "conditions_key": summary["conditions_key"],
        "conditions": summary["conditions"],
        "lossless": {key: summary["lossless"][key] for key in ("checked", "texts", "different", "ties")},
        "rows": rows,
        "best": _best(rows),
    }


def _best(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Per drafter, the row with the greatest speed-up."""
    best: dict[str, dict[str, Any]] = {}
    for row in rows:
        value = row["speedup"]["value"]
        if row["drafter"] == PLAIN or value is None:
            continue
        if row["drafter"] not in best or value > best[row["drafter"]]["speedup"]:
            best[row["drafter"]] = {"budget": row["budget"], "speedup": value, "tau": row["tau"]}
    return best


def _means(tables: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Plain means over suites of τ and of speed-up, as papers' columns "Avg"; of cells that all suites have."""
    suites = {table["suite"] for table in tables}
    cells: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for table in tables:
        for row in table["rows"]:
            if row["drafter"] != PLAIN and row["tau"] is not None and row["speedup"]["value"] is not None:
                key = (*(table[axis] for axis in AXES[1:]), row["drafter"], row["budget"])
                cells.setdefault(key, []).append(row)
    names = (*AXES[1:], "drafter", "budget")
    return [
        {
            **dict(zip(names, key, strict=True)),
            "suites": len(rows),
            "tau": fmean(row["tau"] for row in rows),
            "speedup": fmean(row["speedup"]["value"] for row in rows),
        }
        for key, rows in cells.items()
        if len(rows) == len(suites) > 1
    ]


# ------------------------------------------------------------------------------------------------------------ drawing


def grids(summary: Mapping[str, Any]) -> list[Grid]:
    """Results at equal budgets beside each drafter's best, means over suites, and what a round costs."""
    axes = _axes(summary["tables"])
    first = [_results(summary, axes)]
    if summary["means"]:
        first.append(_mean_rows(summary["means"], [axis for axis in axes if axis != "suite"]))
    return [*first, _costs(summary["tables"], axes)]


def rich_tables(summary: Mapping[str, Any]) -> Group:
    """The tables for a terminal."""
    names = dict.fromkeys(
        row["drafter"] for table in summary["tables"] for row in table["rows"] if row["drafter"] != PLAIN
    )
    return drawn([grid.narrow() for grid in grids(summary)], names)


def markdown(summary: Mapping[str, Any]) -> str:
    """The tables for a card."""
    return "\n".join(table.markdown() for table in grids(summary))


def _axes(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the tables differ in: only that needs a column."""
    return [axis for axis in AXES if len({table[axis] for table in tables}) > 1]


def _place(table: Mapping[str, Any], axes: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{table[axis]:g}" if isinstance(table[axis], float) else str(table[axis]) for axis in axes)


def _names(axes: Sequence[str]) -> tuple[str, ...]:
    return (*(SHORT[axis] for axis in axes), "drafter", "budget")


def _results(summary: Mapping[str, Any], axes: Sequence[str]) -> Grid:
    budgets = {row["budget"] for table in summary["tables"] for row in table["rows"] if row["drafter"] != PLAIN}
    several, lines = len(budgets) > 1, []
    for table in summary["tables"]:
        for row in table["rows"]:
            whole = row["answers"] == table["answers"]
            if row["drafter"] == PLAIN:
                figures = ("plain", NOTHING, number(row["tau"]), "1", number(row["tokens_per_second"], 1), "")
            else:
                best = table["best"].get(row["drafter"], {}).get("budget") == row["budget"]
                speed = interval(row["speedup"]) + ("" if whole else f"\n{quantity(row['answers'], 'answer')} only")
                figures = (
                    row["drafter"], short_budget(row["budget"]), number(row["tau"]), speed,
                    number(row["tokens_per_second"], 1), "best" if best else "",
                )  # fmt: skip
            lines.append((*_place(table, axes), *figures[: None if several else -1]))
    columns = (*_names(axes), "τ with\nbonus", "speed-up\n[95 %]", "tok/s", *(["its best\nbudget"] if several else []))
    caption = f"{summary['definition']}; over plain decoding of the same table."
    if several:
        caption += " Compare rows of equal budget; each drafter's best budget is chosen on these very prompts."
    return Grid(_title(summary, axes), caption, columns, tuple(lines), labels=len(axes) + 2)


def _title(summary: Mapping[str, Any], axes: Sequence[str]) -> str:
    """Name, target and what all tables share."""
    first = summary["tables"][0]
    machine, target = first["conditions"]["machine"], first["conditions"]["target"]
    shared = [f"{SHORT[axis]}={_place(first, [axis])[0]}" for axis in AXES if axis not in axes and axis != "suite"]
    if "suite" not in axes:
        shared.insert(0, str(first["suite"]))
    threads = machine["threads"]
    place = quantity(threads, "CPU thread") if machine["device"] == "cpu" else machine["device_name"]
    state = "" if summary["complete"] else "; not complete"
    return f"{summary['name']}: {target['name']} {target['dtype']}; {', '.join(shared)}; {place}{state}"


def _mean_rows(means: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> Grid:
    lines = [
        (
            *_place(row, axes), row["drafter"], short_budget(row["budget"]), number(row["tau"]),
            f"{row['speedup']:.2f}x",
        )
        for row in means
    ]  # fmt: skip
    caption = f"Plain means over {means[0]['suites']} suites, of cells that all of them have."
    columns = (*_names(axes), "mean τ", "mean speed-up")
    return Grid("Over all suites", caption, columns, tuple(lines), labels=len(axes) + 2)


def _costs(tables: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> Grid:
    lines = []
    for table in tables:
        for row in table["rows"]:
            names = ("plain", NOTHING) if row["drafter"] == PLAIN else (row["drafter"], short_budget(row["budget"]))
            counts = (row["forwards_per_round"], row["rows_per_round"], row["nodes_per_round"])
            times = [row["milliseconds_per_round"][part] for part in ("draft", "verify", "rest")]
            figures = (number(value, 1) for value in (*counts, *times, row["milliseconds"]))
            lines.append((*_place(table, axes), *names, *figures))
    caption = (
        "Per round (one target call): forwards of the drafter's block (fwd), rows in them, draft nodes verified (root "
        "excluded), and milliseconds: in the drafter, in the target's forward, in all else, and of the whole round. "
        "With batches, a round serves all of them."
    )
    columns = (*_names(axes), "fwd", "rows", "nodes", "draft\nms", "verify\nms", "rest\nms", "ms per\nround")
    return Grid("What a round costs", caption, columns, tuple(lines), labels=len(axes) + 2)
