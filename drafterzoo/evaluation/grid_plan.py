"""The plan of a grid: the tables and cells that a recipe crosses to, what they cost, and the order they are decoded in.

A table holds all that is compared with each other: one suite, temperature, batch size and seed, and as rows plain
decoding and the drafters at their budgets. Knows recipes and suites; nothing of models, of decoding or of results. No
weights are loaded here, and a suite whose file is missing is counted as the recipe's [estimate] says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import attrs

from drafterzoo.budget import Budget
from drafterzoo.errors import DrafterzooError, NotInstalledError, UsageError, suggest
from drafterzoo.evaluation.conditions import Settings
from drafterzoo.evaluation.grid_recipe import GridRecipe
from drafterzoo.evaluation.selection import Where
from drafterzoo.evaluation.suites import Suite, at_hand, is_file, load_suite, wanted
from drafterzoo.parsing import toml_key
from drafterzoo.registry import SUITES

# What a results line takes on disk at most: names and keys of an answer, and per token of plain decoding its id (up to
# six digits), six small counters and three times of up to ten characters. A drafted row has fewer rounds.
BYTES_PER_ANSWER, BYTES_PER_TOKEN = 420, 60


@attrs.frozen
class PlannedCell:
    """A drafter at a budget."""

    drafter: str
    budget: Budget

    @property
    def name(self) -> str:
        return f"{self.drafter}@{self.budget}"


@attrs.frozen
class Table:
    """What shares one suite, temperature, batch size and seed. Plain decoding is a row beside the cells."""

    suite: str
    temperature: float
    batch_size: int
    seed: int
    settings: Settings
    limit: int | None
    cells: tuple[PlannedCell, ...]

    @property
    def name(self) -> str:
        """The name of its folder, unlike that of any other table of the grid."""
        source, category = _category(self.suite)
        suite = Path(source).stem if is_file(source) else source
        suite = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{suite}-{category}" if category else suite)
        return f"{suite.strip('-.')}_T{self.temperature:g}_n{self.batch_size}_seed{self.seed}"

    @property
    def facts(self) -> dict[str, Any]:
        """What a selection can ask of the table."""
        return {name: getattr(self, name) for name in ("suite", "temperature", "batch_size", "seed")}

    def cell_facts(self) -> list[dict[str, Any]]:
        """What a selection can ask of its cells, in their order."""
        return [{**self.facts, "drafter": cell.drafter, "budget": cell.budget} for cell in self.cells]

    def only(self, where: Where, wanted: bool = True) -> Table:
        """The table with the cells that a selection takes, or with those that it does not."""
        pairs = zip(self.cells, self.cell_facts(), strict=True)
        return attrs.evolve(self, cells=tuple(cell for cell, facts in pairs if where.takes(facts) == wanted))

    @property
    def drafters(self) -> list[str]:
        return list(dict.fromkeys(cell.drafter for cell in self.cells))

    @property
    def budgets(self) -> list[str]:
        return list(dict.fromkeys(str(cell.budget) for cell in self.cells))


@attrs.frozen
class Plan:
    """The tables of a grid, without those that have no cell."""

    recipe: GridRecipe
    tables: tuple[Table, ...]

    @property
    def drafters(self) -> list[str]:
        """All drafters that some cell needs, in the recipe's order."""
        needed = {name for table in self.tables for name in table.drafters}
        return [name for name in self.recipe.rows if name in needed]

    def only(self, where: Where) -> Plan:
        """The part of the plan that a selection takes. Raises UsageError when that is nothing."""
        where.check(facts for table in self.tables for facts in table.cell_facts())
        tables = [table.only(where) for table in self.tables]
        return attrs.evolve(self, tables=tuple(table for table in tables if table.cells))


def make_plan(recipe: GridRecipe, where: str | None = None) -> Plan:
    """Cross the recipe's axes, leave out what it skips, and keep what `where` selects.

    Raises UsageError when nothing is left, or when a selection names what there is not.
    """
    cells = tuple(PlannedCell(name, Budget.parse(text)) for name, text in product(recipe.rows, recipe.budgets))
    axes = product(recipe.suites, recipe.temperatures, recipe.batch_sizes, recipe.seeds)
    tables = _overridden(recipe, [_table(recipe, place, cells, {}) for place in axes])
    for text in recipe.skip:
        leave_out = Where.parse(text, "skip")
        leave_out.check((facts for table in tables for facts in table.cell_facts()), f"grid recipe {recipe.name}: skip")
        tables = [table.only(leave_out, wanted=False) for table in tables]
    tables = [table for table in tables if table.cells]
    if not tables:
        raise UsageError(f"grid {recipe.name}: skip leaves no cell to run; take one of its entries away.")
    _check_names(tables)
    plan = Plan(recipe, tuple(tables))
    return plan.only(Where.parse(where)) if where is not None else plan


def _table(
    recipe: GridRecipe,
    place: tuple[str, float, int, int],
    cells: tuple[PlannedCell, ...],
    changes: Mapping[str, Any],
) -> Table:
    suite, temperature, batch_size, seed = place
    turns = SUITES.get(name).turns if (name := _category(suite)[0]) in SUITES else "first"
    settings = recipe.settings(temperature=temperature, batch_size=batch_size, seed=seed, changes=changes, turns=turns)
    return Table(suite, temperature, batch_size, seed, settings, changes.get("limit", recipe.limit), cells)


def _overridden(recipe: GridRecipe, tables: Sequence[Table]) -> list[Table]:
    """The tables with the recipe's overrides applied, later ones over earlier ones."""
    selections = [Where.parse(part.where, "override, where") for part in recipe.override]
    for selection in selections:
        selection.check((table.facts for table in tables), "override, where")
    done = []
    for table in tables:
        changes: dict[str, Any] = {}
        for part, selection in zip(recipe.override, selections, strict=True):
            if selection.takes(table.facts):
                changes |= part.changes
        place = table.suite, table.temperature, table.batch_size, table.seed
        done.append(_table(recipe, place, table.cells, changes) if changes else table)
    return done


def _check_names(tables: Sequence[Table]) -> None:
    seen: dict[str, str] = {}
    for table in tables:
        other = seen.setdefault(table.name, table.suite)
        if other != table.suite:
            raise UsageError(
                f"suites {other!r} and {table.suite!r} would share the folder {table.name}; rename one of the files."
            )


# ------------------------------------------------------------------------------------------------------------- suites


def open_suite(table: Table, data_dir: str | None) -> Suite:
    """A table's suite, its category chosen: `starter:code` asks only the prompts of that category."""
    name, category = _category(table.suite)
    suite = load_suite(name, limit=table.limit, category=category, data_dir=data_dir)
    return attrs.evolve(suite, name=f"{suite.name}:{category}") if category else suite


def _category(text: str) -> tuple[str, str | None]:
    """`starter:code` as its two parts; a colon inside a path is none of ours."""
    split = re.fullmatch(r"(.+):([^:/\\.]+)", text)
    return (split[1], split[2]) if split else (text, None)


@attrs.frozen
class Load:
    """What a suite asks: prompts, the turns of all of them together, and whether that was counted or assumed.

    missing: the name of a suite whose data are not here, without which the grid cannot run.
    """

    prompts: int
    turns: int
    counted: bool
    missing: str | None = None


def load_of(table: Table, recipe: GridRecipe) -> Load:
    """Count a table's prompts; where its file is not here, take what the recipe's [estimate] or the suite declares.

    Nothing is downloaded. Raises UsageError when none of them knows.
    """
    every_turn = table.settings.turns == "all"
    name, category = _category(table.suite)
    named = SUITES.get(name) if name in SUITES else None
    missing = named is not None and at_hand(name, recipe.data_dir) is None
    if not missing:
        try:
            suite = open_suite(table, recipe.data_dir)
            return Load(len(suite), sum(len(p.turns) if every_turn else 1 for p in suite), True)
        except (UsageError, NotInstalledError) as error:
            if table.suite not in recipe.estimate.prompts:
                raise _uncounted(table.suite, error) from error
    assumed = recipe.estimate.prompts.get(table.suite, named.count if named and category is None else None)
    if assumed is None:
        lacks = f"suite {name!r} needs {wanted(name, recipe.data_dir)}"
        raise _uncounted(table.suite, UsageError(f"{lacks}; name its folder with --data-dir (data_dir=)."))
    prompts = min(assumed, table.limit or assumed)
    return Load(prompts, prompts * (recipe.estimate.turns.get(table.suite, 1) if every_turn else 1), False, name)


def _uncounted(suite: str, error: UsageError | NotInstalledError) -> DrafterzooError:
    """What to say of a suite whose prompts nobody can count."""
    ask = f"under [estimate] how many prompts it has: prompts = {{ {toml_key(suite)} = 80 }}."
    if suite in SUITES or is_file(suite) or _category(suite)[1]:
        return type(error)(f"{str(error).rstrip('.')}, or say {ask}")
    return UsageError(f"suite {suite!r} is not known here{suggest(suite, SUITES)}; say {ask}")


# ----------------------------------------------------------------------------------------------------------- the cost


@attrs.frozen
class Cost:
    """What a table asks for. Tokens and bytes are bounds, as if no stop token ended an answer before its limit.

    seconds: of decoding so many tokens as fast as plain decoding, no bound: prefill and warm-up come on top.
    """

    table: Table
    load: Load
    tokens_per_second: float

    @property
    def rows(self) -> int:
        return len(self.table.cells) + 1

    @property
    def answers(self) -> int:
        return self.load.turns * self.rows * self.table.settings.repeats

    @property
    def tokens(self) -> int:
        return self.answers * self.table.settings.max_new_tokens

    @property
    def seconds(self) -> float:
        return self.tokens / self.tokens_per_second

    @property
    def disk_bytes(self) -> int:
        return self.answers * BYTES_PER_ANSWER + self.tokens * BYTES_PER_TOKEN

    def as_dict(self) -> dict[str, Any]:
        return {
            "table": self.table.name,
            **self.table.facts,
            "prompts": self.load.prompts,
            "prompts_counted": self.load.counted,
            "suite_missing": self.load.missing is not None,
            "cells": [cell.name for cell in self.table.cells],
            "rows": self.rows,
            "answers": self.answers,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 1),
            "disk_bytes": self.disk_bytes,
        }


def costs(plan: Plan) -> list[Cost]:
    """What every table asks for, by the recipe's assumptions. Raises UsageError for a suite nobody can count."""
    rate = plan.recipe.estimate.tokens_per_second
    return [Cost(table, load_of(table, plan.recipe), rate) for table in plan.tables]


def schedule(groups: Sequence[int]) -> list[tuple[int, int]]:
    """(table, group) in the order of decoding, given each table's number of groups.

    The tables advance together, each as far through its own groups as the others: a machine that slows down in the
    second half slows the second half of every table.
    """
    places = [((group + 0.5) / count, table, group) for table, count in enumerate(groups) for group in range(count)]
    return [(table, group) for _, table, group in sorted(places)]
