"""`drafterzoo grid`: run a grid of cells from a recipe, go on with one that was stopped, or only show its plan.

Knows how options are typed and how a plan is shown; nothing of how anything is planned or measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from drafterzoo.cli.console import Json, compared, out, print_json, show_found
from drafterzoo.errors import DrafterzooError
from drafterzoo.progress import duration
from drafterzoo.resources import folder
from drafterzoo.wording import listed, quantity, verb

if TYPE_CHECKING:
    from drafterzoo.evaluation.grid_plan import Cost, Plan

AT_ITS_TOP = "what makes them is said at the top of"
FAILURES_SHOWN = 10


def grid(
    recipe: Path,
    /,
    *,
    where: Annotated[str | None, Parameter(alias="-w")] = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    output: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
    ray: str | None = None,
    threads: int | None = None,
    json: Json = False,
) -> int:
    """Run a grid of cells from a recipe, or go on with one.

    Example: `drafterzoo grid pr_table1_small --dry-run`, then `drafterzoo grid pr_table1_small`

    A grid is drafters x budgets x suites x temperatures x batch sizes x seeds. All cells of a table answer the same
    prompts, interleaved, beside plain decoding. Every prompt is saved as it is done: stop it when you like (Ctrl-C, or
    worse), and the same command goes on. A cell that fails is recorded, the rest goes on, and the next run tries it
    again; the exit status is then 1.

    Keys of a recipe: drafters and budgets; of which tables there are: suites, temperatures, batch_sizes, seeds; of all
    answers: max_new_tokens, limit (prompts of each suite), turns, thinking, system, top_p, top_k, verification,
    coupled, warmup, repeats; exclude, skip and tables [[override]] for some cells; target, threads, data_dir, out,
    name; a table [estimate] for --dry-run.

    Parameters
    ----------
    recipe
        A TOML file; those that come with drafterzoo lie in recipes/grids/, and their bare names are understood.
    where
        Only these cells, and plain decoding with them: `drafter=eagle3.1,budget=tree:8,temperature=0`. All conditions
        must hold; `budget=tree:8|chain:4` means either. Keys: drafter, suite, temperature, batch_size, seed, budget,
        and a budget's nodes, depth, grow, offer, reconsider, p_min, advance.
    dry_run
        Show the plan, what it takes on disk at most, and about how long it decodes; nothing is loaded or decoded.
    output
        The grid's folder. Default: runs/grid-<the recipe's name>.
    ray
        Spread the tables over a Ray cluster: `local` (this machine), `auto` (the cluster it belongs to) or host:port.
        All nodes must see the same files. Needs the extra `ray`.
    threads
        CPU threads, instead of the recipe's.
    """
    from drafterzoo.evaluation.grid_recipe import read_grid_recipe, with_threads
    from drafterzoo.resources import find_recipe

    place = find_recipe(recipe, "grids")
    made = read_grid_recipe(place)
    if threads is not None:
        made = with_threads(made, threads)
    if dry_run:
        _show_plan(made, place, where, output, json)
        return 0
    from drafterzoo.evaluation.grid import grid as run

    result = run(made, out=output, where=where, ray=ray, show_progress=True)
    show_found(result, remarks(result.summary, where), json)
    return 1 if result.summary["failures"] else 0


def remarks(summary: dict[str, Any], where: str | None = None) -> list[str]:
    """What the tables cannot say: whether texts were equal, what numbers cannot bear, what failed, what is missing.

    where: the cells that were asked for.
    """
    from drafterzoo.evaluation.cautions import cautions
    from drafterzoo.evaluation.tables import short_cell

    checked = [table["lossless"] for table in summary["tables"] if table["lossless"]["checked"]]
    texts, different, ties = (sum(entry[key] for entry in checked) for key in ("texts", "different", "ties"))
    lines = []
    if checked:
        lines.append(compared(texts, different, ties))
    if len(checked) < len(summary["tables"]):
        lines.append("texts of sampling by rejection: not compared, since they agree in distribution only")
    said: dict[str, list[str]] = {}
    for table in summary["tables"]:
        for caution in cautions(table):
            said.setdefault(caution, []).append(table["table"])
    several = len(summary["tables"]) > 1
    lines += [f"{caution} ({listed(tables)})" if several else caution for caution, tables in said.items()]
    for failure in summary["failures"][:FAILURES_SHOWN]:
        lines.append(f"failed: {short_cell(failure['cell'])} in {failure['table']}: {failure['reason']}")
    if len(summary["failures"]) > FAILURES_SHOWN:
        lines.append(f"and {len(summary['failures']) - FAILURES_SHOWN} more failed, see failures.json")
    if not summary["complete"]:
        whole = sum(table["complete"] for table in summary["tables"])
        count = f"{whole} of {quantity(summary['planned'], 'table')} {verb(whole, 'is', 'are')} whole"
        done = where is not None and not summary["failures"]
        goes_on = "all that --where selects is done, and without it the same command goes on"
        lines.append(f"not complete: {count}; {goes_on if done else 'the same command goes on'}")
    return lines


def _show_plan(recipe: Any, place: Path, where: str | None, output: Path | None, json: bool) -> None:
    from drafterzoo.catalogue import lacking
    from drafterzoo.evaluation.grid import place_of
    from drafterzoo.evaluation.grid_folder import check_place
    from drafterzoo.evaluation.grid_plan import costs, make_plan

    whole = make_plan(recipe)
    plan = make_plan(recipe, where)
    directory = place_of(recipe, output)
    check_place(directory, whole)
    found = costs(plan)
    assumed = [cost.table.suite for cost in found if not cost.load.counted]
    missing = dict.fromkeys(cost.load.missing for cost in found if cost.load.missing is not None)
    words = [
        f"time: of decoding alone, with every answer at full length and every row as fast as plain decoding, which is "
        f"assumed to make {recipe.estimate.tokens_per_second:g} tokens/s; prefill and warm-up come on top."
    ]
    if assumed:
        names = ", ".join(dict.fromkeys(assumed))
        words.append(f"prompts: of {names} as the recipe assumes, since their files are not here; others are counted.")
    words += [_missing(name, recipe.data_dir) for name in missing]
    drafters = dict.fromkeys(cell.drafter for cost in found for cell in cost.table.cells)
    lacks = dict.fromkeys(f"missing: {lack}" for lack in map(lacking, drafters) if lack)
    words += lacks
    if lacks and place.is_relative_to(folder("recipes")):
        words.append(f"{AT_ITS_TOP} {place}")
    if json:
        print_json(_as_dict(plan, found, directory, words))
        return
    out().print(_plan_table(plan, found))
    for line in words:
        out().print(line, markup=False, soft_wrap=line.startswith(("missing", AT_ITS_TOP)))
    out().print(f"target: {recipe.target}; results would go to {directory}", markup=False, soft_wrap=True)


def _missing(name: str, data_dir: str | None) -> str:
    """What a suite lacks that is not here, and how to come by it."""
    from drafterzoo.evaluation.suites import wanted
    from drafterzoo.registry import SUITES

    try:
        lacks, hub = wanted(name, data_dir), SUITES.get(name).hub
    except DrafterzooError:  # somebody else's suite of the estimate, unknown here
        return f"missing: suite {name!r} is not known here; install the package that has it before running the grid."
    how = f"the grid will ask the Hub for it ({hub.id})" if hub and data_dir is None else "the grid stops without it"
    return f"missing: suite {name!r} needs {lacks}; {how}."


def _as_dict(plan: Plan, found: list[Cost], directory: Path, words: list[str]) -> dict[str, Any]:
    tables = [cost.as_dict() for cost in found]
    return {
        "name": plan.recipe.name,
        "target": plan.recipe.target,
        "directory": directory,
        "tables": tables,
        "total": {key: sum(t[key] for t in tables) for key in ("rows", "answers", "tokens", "seconds", "disk_bytes")},
        "assumptions": {"tokens_per_second": plan.recipe.estimate.tokens_per_second, "said": words},
    }


def _plan_table(plan: Plan, found: list[Cost]) -> Any:
    """The plan for a terminal: a line per table, then its cells once."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.filesize import decimal
    from rich.table import Table
    from rich.text import Text

    drawn = Table(
        box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title=plan.recipe.name, title_justify="left", title_style="bold"
    )
    for name in ("suite", "T", "batch", "seed", "prompts", "rows", "answers", "tokens", "time", "disk"):
        drawn.add_column(name, justify="left" if name == "suite" else "right", overflow="fold")
    for cost in found:
        table = cost.table
        prompts = f"{cost.load.prompts}{'' if cost.load.counted else ' (assumed)'}"
        drawn.add_row(
            Text(table.suite), f"{table.temperature:g}", str(table.batch_size), str(table.seed), prompts,
            str(cost.rows), f"{cost.answers:,}", f"{cost.tokens:,}", duration(cost.seconds), decimal(cost.disk_bytes),
        )  # fmt: skip
    drawn.add_section()
    drawn.add_row(
        "in all", "", "", "", "", "", f"{sum(c.answers for c in found):,}", f"{sum(c.tokens for c in found):,}",
        duration(sum(c.seconds for c in found)), decimal(sum(c.disk_bytes for c in found)),
    )  # fmt: skip
    cells = dict.fromkeys(f"{c.drafter}@{c.budget.brief}" for table in plan.tables for c in table.cells)
    return Group(drawn, Text(f"rows: plain decoding, {', '.join(cells)}"))
