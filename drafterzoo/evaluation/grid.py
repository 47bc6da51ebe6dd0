"""Runs a grid: all tables of a plan together, a group of prompts at a time, saved as they come, and gone on with.

Knows the plan, the runner and the folder; nothing of any particular drafter, of recipes' spelling or of how a table is
drawn. Within a group the cells are interleaved (runner.py), and the tables advance together (grid_plan.schedule), so
that a machine that slows down slows all alike. Every group is on disk before the next begins: Ctrl-C and kill -9 lose
at most one group, and the same call goes on. A cell that raises is noted and left out until the next call, which tries
it again; what it then adds is timed apart from the other rows of its group.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from drafterzoo.catalogue import load
from drafterzoo.drafters.base import Drafter
from drafterzoo.errors import DataError, DrafterzooError
from drafterzoo.evaluation import grid_folder as places
from drafterzoo.evaluation import results
from drafterzoo.evaluation.conditions import asked, code, surroundings
from drafterzoo.evaluation.grid_plan import Plan, Table, make_plan, open_suite, schedule
from drafterzoo.evaluation.grid_recipe import GridRecipe, build_grid_recipe, read_grid_recipe
from drafterzoo.evaluation.grid_summary import markdown, rich_tables, summarise_grid
from drafterzoo.evaluation.results import ResultsWriter
from drafterzoo.evaluation.runner import Cell, Run, decode
from drafterzoo.evaluation.summary import PLAIN
from drafterzoo.progress import Bar, console, progress
from drafterzoo.target import load_target
from drafterzoo.target.target import Target
from drafterzoo.threads import with_threads
from drafterzoo.wording import quantity

if TYPE_CHECKING:
    from rich.console import Group


@attrs.frozen(eq=False)
class GridResult:
    """What a grid has found so far. summary is a plain dict; directory holds one results directory per table."""

    summary: dict[str, Any]
    directory: Path

    def table(self) -> Group:
        """The summary as a rich renderable: `rich.print(result.table())`."""
        return rich_tables(self.summary)

    def markdown(self) -> str:
        """The same tables in Markdown."""
        return markdown(self.summary)


def grid(
    recipe: str | os.PathLike[str] | Mapping[str, Any] | GridRecipe,
    *,
    out: str | os.PathLike[str] | None = None,
    where: str | None = None,
    ray: str | None = None,
    show_progress: bool = False,
) -> GridResult:
    """Measure every cell of a grid, or go on with one that was stopped.

    recipe: a TOML file, or its keys and values (see `GridRecipe`). out: the grid's folder; without it the recipe's,
    else `runs/grid-<name>`. where: only these cells (`"drafter=eagle3.1,budget=8"`, see `selection`), and plain
    decoding with them; the others may follow later. ray: spread the tables over a cluster ("local", "auto" or an
    address, see `fan_out`), with the same files as result.

    Stopped by Ctrl-C it writes the summaries of what there is and raises KeyboardInterrupt. Raises UsageError,
    DataError or CheckpointError before anything is decoded; among others when the folder holds another grid, or when
    weights, suite, target or machine are no longer those that it was begun with.
    """
    whole = make_plan(_read(recipe))
    plan = make_plan(whole.recipe, where)
    directory = place_of(whole.recipe, out)
    with places.claimed(directory, whole):
        if ray is None:
            measure(plan, whole, directory, show_progress)
        else:
            _spread(plan, whole, directory, ray, show_progress)
    return GridResult(results.read_object(directory / results.SUMMARY), directory)


def place_of(recipe: GridRecipe, out: str | os.PathLike[str] | None = None) -> Path:
    """The folder of a recipe's grid: the same for the same recipe, so that the same call goes on."""
    return Path(out or recipe.out or f"runs/grid-{recipe.name}")


def _read(recipe: str | os.PathLike[str] | Mapping[str, Any] | GridRecipe) -> GridRecipe:
    if isinstance(recipe, GridRecipe):
        return recipe
    return build_grid_recipe(recipe) if isinstance(recipe, Mapping) else read_grid_recipe(Path(recipe))


def measure(plan: Plan, whole: Plan, directory: Path, show_progress: bool) -> None:
    """Work on a plan in this process, and sum the whole one up."""
    with with_threads(plan.recipe.threads):
        session = _Session.open(plan, whole, directory, show_progress)
        places.begin(directory, whole, session.commit)
        try:
            failures = session.run()
        except KeyboardInterrupt:
            if places.has_records(directory):
                _sum_up(whole, directory, session.failures())
                if show_progress:
                    console.print(f"stopped; the same command goes on from {directory}", markup=False, soft_wrap=True)
            raise
    _sum_up(whole, directory, failures)


def _spread(plan: Plan, whole: Plan, directory: Path, address: str, show_progress: bool) -> None:
    """Work on every table of a plan somewhere in a cluster, and sum the whole one up."""
    from drafterzoo.evaluation.fan_out import fan_out

    places.begin(directory, whole, code()["commit"])
    work = partial(_one_table, plan, whole, directory.resolve())
    names = [table.name for table in plan.tables]
    failures = fan_out(work, names, address, max(1, plan.recipe.threads), show_progress)
    if failures:
        places.note_failures(directory, failures)
    _sum_up(whole, directory, failures)


def _one_table(plan: Plan, whole: Plan, directory: Path, name: str) -> list[dict[str, Any]]:
    """A task of the cluster: one table, up to its own summary. Returns what failed."""
    alone = attrs.evolve(plan, tables=tuple(table for table in plan.tables if table.name == name))
    with with_threads(plan.recipe.threads):
        return _Session.open(alone, whole, directory, False).run()


def _sum_up(whole: Plan, directory: Path, failures: Sequence[Mapping[str, Any]]) -> None:
    """Write the summary of the whole plan. Raises DataError when there is not one answer to sum up."""
    if not places.has_records(directory):
        raise DataError(f"grid {whole.recipe.name}: plain decoding failed in every table ({failures[0]['reason']}).")
    summary = summarise_grid(whole, directory, failures)
    places.save(directory, results.SUMMARY, summary)


@attrs.define(eq=False)
class _Part:
    """A table at work: its run, where its lines go, and the groups that are not whole yet."""

    table: Table
    run: Run
    directory: Path
    conditions: dict[str, Any]
    standing: places.Standing
    writer: ResultsWriter | None = None
    stopped: str | None = None  # why plain decoding failed, which ends the table

    @property
    def failures(self) -> list[dict[str, Any]]:
        failed = {**(self.run.failed or {}), **({PLAIN: self.stopped} if self.stopped else {})}
        return [{"table": self.table.name, "cell": cell, "reason": reason} for cell, reason in failed.items()]


@attrs.define(eq=False)
class _Session:
    """One call of `grid`: the parts it works on, and what could not even be loaded."""

    plan: Plan
    whole: Plan
    directory: Path
    show_progress: bool
    target: Target
    unloaded: dict[str, str]  # drafter -> why
    parts: list[_Part]
    commit: str | None
    warmed: set[tuple[Any, ...]] = attrs.field(factory=set, init=False)

    @classmethod
    def open(cls, plan: Plan, whole: Plan, directory: Path, show_progress: bool) -> _Session:
        """Load everything and check everything, before anything is decoded or written."""
        suites = [open_suite(table, plan.recipe.data_dir) for table in plan.tables]
        target = load_target(plan.recipe.target)
        loaded, unloaded = _load(plan.drafters, target)
        fixed = surroundings(target, loaded)
        parts = []
        for table, suite in zip(plan.tables, suites, strict=True):
            cells = [Cell(c.name, c.drafter, loaded[c.drafter], c.budget) for c in table.cells if c.drafter in loaded]
            cells.insert(0, Cell(PLAIN, PLAIN, None, None))
            run = Run(
                target,
                suite,
                cells,
                table.settings,
                partial(decode, target),
                failed={},
                label=called(suite.name, table, plan.tables),
            )
            run.check()
            own = {name: fixed["drafters"][name] for name in table.drafters if name in loaded}
            budgets = next(t.budgets for t in whole.tables if t.name == table.name)
            conditions = {**asked(target, suite, table.limit, table.settings), **fixed, "drafters": own}
            folder = directory / table.name
            conditions = places.agreed(folder, {**conditions, "budgets": budgets}, plan.recipe.rows)
            parts.append(_Part(table, run, folder, conditions, places.standing(run, folder)))
        return cls(plan, whole, directory, show_progress, target, unloaded, parts, fixed["code"]["commit"])

    def run(self) -> list[dict[str, Any]]:
        """Decode what is missing and write the tables' summaries, also when stopped on the way; say what failed."""
        self._note()
        with ExitStack() as stack:
            for part in self.parts:
                part.writer = stack.enter_context(ResultsWriter(part.directory, part.conditions, go_on=True))
                if part.standing.missing:  # it will not be true for long
                    (part.directory / results.SUMMARY).unlink(missing_ok=True)
            try:
                self._decode()
            finally:
                self._finish()
        return self.failures()

    def _decode(self) -> None:
        total = sum(self._answers(part) for part in self.parts)
        there = sum(part.standing.answers for part in self.parts)
        title = f"{self.plan.recipe.name}: {quantity(len(self.parts), 'table')}, {quantity(total, 'answer')}"
        title += f", {there} of them there already" if there else ""
        with progress(title, total, "answers", there) if self.show_progress else nullcontext(None) as bar:
            for index, group in schedule([len(part.run.starts) for part in self.parts]):
                part = self.parts[index]
                start = part.run.starts[group]
                if start in part.standing.missing and part.stopped is None:
                    self._group(part, start, bar)

    def _answers(self, part: _Part) -> int:
        """How many answers a table has when it is whole, of the cells of this session."""
        turns = sum(map(part.run.turns, range(len(part.run.suite))))
        return turns * len(part.run.cells) * part.run.settings.repeats

    def _group(self, part: _Part, start: int, bar: Bar | None) -> None:
        """Decode what one group lacks, and save it."""
        known = len(part.failures)
        kept = part.standing.missing.pop(start)
        try:
            self._warm_up(part, bar)
            fresh = part.run.group(start, bar, kept)
        except Exception as error:  # plain decoding failed: there is nothing to compare with, but other tables go on
            part.stopped = f"{type(error).__name__}: {' '.join(str(error).split())}"
            fresh = []
        assert part.writer is not None, "tables are open while they are decoded"
        part.writer.extend(fresh)
        if len(part.failures) > known:
            self._note()
            for failure in part.failures[known:]:
                console.print(f"{failure['table']}: {failure['cell']} failed: {failure['reason']}", markup=False)

    def _warm_up(self, part: _Part, bar: Bar | None) -> None:
        """First calls are slow; tables whose rows do the same work need only one of them to make theirs."""
        work = (part.table.batch_size, part.table.temperature, *(cell.name for cell in part.run.cells))
        if work not in self.warmed:
            self.warmed.add(work)
            if bar is not None:
                bar.remark(f"warming up {quantity(len(part.run.cells), 'row')}")
            part.run.warm_up()

    def failures(self) -> list[dict[str, Any]]:
        """All that failed in this session: drafters that could not be loaded, then cells that raised."""
        unloaded = [
            {"table": table.name, "cell": cell.name, "reason": self.unloaded[cell.drafter]}
            for table in self.plan.tables
            for cell in table.cells
            if cell.drafter in self.unloaded
        ]
        return unloaded + [failure for part in self.parts for failure in part.failures]

    def _note(self) -> None:
        if failures := self.failures():
            places.note_failures(self.directory, failures)

    def _finish(self) -> None:
        """The summary of every table worked on."""
        for part in self.parts:
            found = results.read(part.directory)
            if found.records and found.summary is None:
                assert part.writer is not None, "tables are open until their summary is written"
                if part.run.settings.same_text:
                    part.run.found = part.run.explained(found.records)
                seconds = sum(r.prefill_s + r.decode_s for r in found.records)
                complete = self._complete(part, found.records)
                part.writer.finish(part.run.summary(found.records, found.conditions, seconds, complete=complete))

    def _complete(self, part: _Part, records: Sequence[results.Record]) -> bool:
        """Whether every cell of the whole plan has every answer."""
        table = next(table for table in self.whole.tables if table.name == part.table.name)
        each = self._answers(part) // len(part.run.cells)
        counts = Counter(r.cell for r in records)
        return all(counts[name] == each for name in (PLAIN, *(cell.name for cell in table.cells)))


def called(suite: str, table: Table, tables: Sequence[Table]) -> str:
    """A table's name while it is at work: its suite's, and what sets it apart from others of that suite."""
    words = {"temperature": "T=", "batch_size": "batch size ", "seed": "seed "}
    alike = [other for other in tables if other.suite == table.suite]
    apart = [axis for axis in words if len({other.facts[axis] for other in alike}) > 1]
    return ", ".join([suite, *(f"{words[axis]}{table.facts[axis]:g}" for axis in apart)])


def _load(names: Sequence[str], target: Target) -> tuple[dict[str, Drafter], dict[str, str]]:
    """The drafters, and the reasons of those that cannot be loaded. Raises the first error when none can."""
    loaded: dict[str, Drafter] = {}
    broken: dict[str, DrafterzooError] = {}
    for name in names:
        try:
            loaded[name] = load(name, target)
        except DrafterzooError as error:
            broken[name] = error
            console.print(f"{name} cannot be loaded, and its cells are left out: {error}", markup=False, soft_wrap=True)
    if not loaded:
        raise next(iter(broken.values()))
    return loaded, {name: str(error) for name, error in broken.items()}
