"""Grid recipes: what is crossed with what, read from TOML or a dict, every key and value checked.

Knows the keys and their meaning; nothing of plans, of running, or of what is on this machine: the names of targets,
suites and drafters at addresses are taken as they are, so that a recipe for a big machine can be checked on a small
one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import attrs

from drafterzoo import checkpoint
from drafterzoo.budget import Budget
from drafterzoo.catalogue import EMBEDDED, check_spelling
from drafterzoo.errors import UsageError, suggest
from drafterzoo.evaluation.conditions import Settings
from drafterzoo.evaluation.selection import TABLE_KEYS, Where
from drafterzoo.parsing import parse_toml, reason
from drafterzoo.threads import MOST_THREADS
from drafterzoo.validators import positive

CROSSED = ("drafters", "budgets", "suites", "temperatures", "batch_sizes", "seeds")
LONGEST_NAME = 120  # of a grid, in bytes: a folder is called after it, with more words around
# Keys that change no number, so that a grid may go on after they changed; threads as they are stand in the conditions.
UNTOUCHED = ("name", "out", "estimate", "threads")


@attrs.frozen
class Estimate:
    """What a dry run assumes where it cannot look.

    tokens_per_second: of plain decoding, one prompt at a time; every row is taken to be as fast. prompts, turns: of
    suites whose file is not on this machine, by name (prompts: what the suite declares; turns: 1 unless said).
    """

    tokens_per_second: float = attrs.field(default=22.0, validator=positive)
    prompts: dict[str, int] = attrs.Factory(dict)
    turns: dict[str, int] = attrs.Factory(dict)


@attrs.frozen
class Override:
    """Other settings for some tables. where: which, by suite, temperature, batch_size and seed; the rest: as below."""

    where: str
    max_new_tokens: int | None = None
    limit: int | None = None
    top_p: float | None = None
    top_k: int | None = None
    turns: Literal["first", "all"] | None = None
    thinking: bool | None = None
    warmup: int | None = None
    repeats: int | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """The settings it sets, `where` apart."""
        return {key: value for key, value in attrs.asdict(self).items() if key != "where" and value is not None}


@attrs.frozen
class GridRecipe:
    """A grid: every drafter at every budget, on every suite, temperature, batch size and seed.

    drafters: specs with options, or addresses. budgets: as typed elsewhere. suites: names or JSONL files;
    `starter:code` is one category of a suite. Plain decoding is always a row, and so is `lookup`, unless exclude says
    otherwise. skip: selections (see `selection`) to leave out. override: other settings for some tables. threads: 0
    leaves torch's own choice. The other keys are the arguments of `drafterzoo.bench`.
    """

    drafters: tuple[str, ...]
    budgets: tuple[str, ...]
    suites: tuple[str, ...] = ("starter",)
    temperatures: tuple[float, ...] = (0.0,)
    batch_sizes: tuple[int, ...] = (1,)
    seeds: tuple[int, ...] = (0,)
    target: str = EMBEDDED
    max_new_tokens: int = 128
    limit: int | None = None
    top_p: float = 1.0
    top_k: int = 0
    verification: Literal["match", "rejection"] = "match"
    coupled: bool = True
    turns: Literal["first", "all"] | None = None
    thinking: bool | None = None
    system: str | None = None
    warmup: int = 1
    repeats: int = 1
    exclude: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    override: tuple[Override, ...] = ()
    threads: int = 0
    data_dir: str | None = None
    out: str | None = None
    estimate: Estimate = Estimate()
    name: str = "grid"

    def __attrs_post_init__(self) -> None:
        for key in CROSSED:
            _check_axis(key, getattr(self, key))
        for drafter in self.drafters:
            check_spelling(drafter)
        for name in self.exclude:
            if name != "lookup":
                raise UsageError(f"exclude names {name!r}, but only 'lookup' can be left out.")
        if self.name != Path(self.name).name or "\0" in self.name or not 1 <= len(self.name.encode()) <= LONGEST_NAME:
            raise UsageError(
                f"name is {self.name!r}, but a folder is called after it; give 1 to {LONGEST_NAME} letters without '/'."
            )
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"limit is {self.limit}, expected at least 1.")
        if not 0 <= self.threads <= MOST_THREADS:
            raise UsageError(f"threads is {self.threads}, expected from 0 to {MOST_THREADS}.")
        for text in self.skip:
            Where.parse(text, "skip")
        for part in self.override:
            Where.parse(part.where, "override, where", TABLE_KEYS)
            if not part.changes:
                raise UsageError(f"override where {part.where!r} sets nothing; add a key such as max_new_tokens.")
        for batch_size in self.batch_sizes:
            for temperature in self.temperatures:
                self.settings(temperature=temperature, batch_size=batch_size, seed=0, changes={})

    @property
    def rows(self) -> tuple[str, ...]:
        """The drafters of the rows: `lookup` first unless it is left out or named, then those of the recipe."""
        return self.drafters if "lookup" in (*self.drafters, *self.exclude) else ("lookup", *self.drafters)

    def settings(
        self, *, temperature: float, batch_size: int, seed: int, changes: Mapping[str, Any], turns: str = "first"
    ) -> Settings:
        """How a table's cells are decoded. turns: the suite's own. Raises UsageError for what cannot be meant."""
        shared = {name: getattr(self, name) for name in _SHARED} | {k: v for k, v in changes.items() if k != "limit"}
        shared["turns"] = shared["turns"] or turns
        try:
            return Settings(temperature=temperature, batch_size=batch_size, seed=seed, **shared)
        except UsageError as error:
            raise UsageError(str(error).removeprefix("bench: ")) from error

    def what_matters(self) -> dict[str, Any]:
        """Everything that can change a number, as plain JSON values: what a grid in progress must not change."""
        return {key: _plain(value) for key, value in attrs.asdict(self).items() if key not in UNTOUCHED}


_SHARED = (
    "max_new_tokens", "top_p", "top_k", "verification", "coupled", "turns", "thinking", "system", "warmup", "repeats"
)  # fmt: skip


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _check_axis(key: str, values: tuple[Any, ...]) -> None:
    """Raise UsageError for an axis without values, or with one of them twice."""
    if not values:
        raise UsageError(f"{key} is empty, so there is nothing to run; give at least one, or leave the key out.")
    seen: dict[Any, Any] = {}
    for value in values:
        meant = Budget.parse(value) if key == "budgets" else value
        if meant in seen:
            raise UsageError(f"{key} gives {value!r} twice; give it once.")
        if meant == "none" and key == "drafters":
            raise UsageError("drafters names 'none', but plain decoding is a row anyway; leave it out.")
        seen[meant] = value


def read_grid_recipe(path: str | Path) -> GridRecipe:
    """Read a TOML recipe; its name is the file's. Raises UsageError naming the file, the key and the nearest one."""
    file = Path(path)
    try:
        values = parse_toml(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f'{file}: not TOML ({error}); write lines such as drafters = ["eagle3.1"].') from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"grid recipe {file} cannot be read ({reason(error)}); give a TOML file, or the name of one of "
            "recipes/grids/."
        ) from error
    return build_grid_recipe({"name": file.stem, **values}, str(file))


def with_threads(recipe: GridRecipe, threads: int) -> GridRecipe:
    """The recipe with so many CPU threads. Raises UsageError for what no machine has."""
    try:
        return attrs.evolve(recipe, threads=threads)
    except UsageError as error:
        raise UsageError(f"--{error}") from error


def build_grid_recipe(values: Mapping[str, Any], where: str = "grid") -> GridRecipe:
    """Build a recipe from plain values; a single value stands for a list of one. Raises UsageError."""
    known = [field.name for field in attrs.fields(GridRecipe)]
    ready = dict(values)
    for key, value in values.items():
        if key not in known:
            raise UsageError(f"{where}: unknown key {key!r}{suggest(key, known)}; the keys are {', '.join(known)}.")
        if key in (*CROSSED, "exclude", "skip") and not isinstance(value, list | tuple):
            ready[key] = [value]
    if isinstance(ready.get("budgets"), list | tuple):
        ready["budgets"] = [str(b) if type(b) is int else b for b in ready["budgets"]]
    parts = ready.get("override", [])
    if not isinstance(parts, list | tuple) or not all(isinstance(part, Mapping) for part in parts):
        raise UsageError(f"{where}: override is {parts!r}, expected tables, each under a line [[override]].")
    for number, part in enumerate(parts, start=1):
        checkpoint.structure(Override, part, f"{where} [[override]] {number}", UsageError)
    if isinstance(ready.get("estimate"), Mapping):
        checkpoint.structure(Estimate, ready["estimate"], f"{where} [estimate]", UsageError)
    made: GridRecipe = checkpoint.structure(GridRecipe, ready, where, UsageError)
    return made
