"""`drafterzoo bench`: drafters against plain decoding on one suite, as tables or as JSON.

Knows how options are typed; nothing of how anything is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from drafterzoo.cli.console import Json, compared, show_found, use_threads


def bench(
    recipe: Path | None = None,
    /,
    *,
    drafter: Annotated[list[str] | None, Parameter(alias="-d", negative="")] = None,
    suite: Annotated[str | None, Parameter(alias="-s")] = None,
    budget: Annotated[list[str] | None, Parameter(alias=["-b", "--nodes"], negative="")] = None,
    max_new_tokens: Annotated[int | None, Parameter(alias="-n")] = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    seed: int | None = None,
    limit: int | None = None,
    verification: Literal["match", "rejection"] | None = None,
    uncoupled: Annotated[bool, Parameter(negative="")] = False,
    turns: Literal["first", "all"] | None = None,
    thinking: bool | None = None,
    system: str | None = None,
    batch_size: int | None = None,
    warmup: int | None = None,
    repeats: int | None = None,
    exclude: Annotated[list[str] | None, Parameter(negative="")] = None,
    target: Annotated[str | None, Parameter(alias="-t")] = None,
    threads: int | None = None,
    data_dir: Path | None = None,
    unchecked_suite: Annotated[bool, Parameter(negative="")] = False,
    output: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
    json: Json = False,
) -> None:
    """Compare drafters with plain decoding on a suite of prompts.

    Example: `drafterzoo bench -d eagle3.1 --suite starter --budget chain:6,p_min=0.1 --budget tree:8`

    All rows answer the same prompts in one process, interleaved; plain decoding and `lookup` are always among them.
    Every text is compared with plain decoding's. Raw counters go to a results directory.

    Parameters
    ----------
    recipe
        A TOML file with the arguments of `drafterzoo.bench`, such as recipes/bench/starter.toml; typed options
        override it.
    drafter
        A name, `dir:path` or `hub:org/name@revision`, with options if need be (`lookup(max_ngram=4)`); may be given
        several times.
    suite
        A suite's name (`drafterzoo list suites`) or a JSONL file. Default: starter.
    budget
        What a round may spend, typed as tables print it: `tree:8` (a tree of 8 nodes; `8` for short), `chain:4`, or all
        of it, `nodes=24,depth=6,grow=6,offer=6`. Behind each may stand `,p_min=0.1`: end a draft early where the
        drafter gives it less than this chance. May be given several times. Default: the drafters' own.
    max_new_tokens
        Stop each answer after this many tokens at the latest. Default: 128.
    temperature
        0 (default) takes the likeliest token; above 0 draws.
    top_p
        Draw from the likeliest tokens that together hold this probability. Default: 1.
    top_k
        Draw from this many likeliest tokens; 0 (default) for all.
    seed
        Seed of sampling and of the order of the cells; it does not change which prompts are asked. Default: 0.
    limit
        Ask only this many prompts, drawn evenly over the categories.
    verification
        `match` (default) follows the target's own choice; `rejection` accepts in distribution.
    uncoupled
        When sampling, let drafters rank their children without the target's noise.
    turns
        `first`, or `all`: later turns follow the target's own answers. Default: what the suite says, `all` for
        mt-bench and spec-bench, `first` elsewhere.
    thinking
        Whether the target thinks before it answers, for chat templates that know it. Default: the template's own.
    system
        A system message before the first turn.
    batch_size
        Prompts decoded together. Default: 1.
    warmup
        Batches decoded before anything is timed. Default: 1.
    repeats
        How often each answer is timed; the median counts. Default: 1.
    exclude
        Leave this row out; only `lookup` can be.
    target
        The target's name or directory; without it, the one the first drafter was trained for.
    threads
        CPU threads; without it, torch's own choice.
    data_dir
        Folder of the suites that do not come with drafterzoo (gsm8k.jsonl and the like). Default: $DRAFTERZOO_DATA, and
        then the Hub.
    unchecked_suite
        Take a named suite even where it has other prompts than its declaration records.
    output
        The results directory. Default: a new one under `runs`.
    """

    from drafterzoo.evaluation.recipes import read_bench_recipe
    from drafterzoo.evaluation.runner import bench as measure

    typed = {
        "drafters": drafter, "suite": suite, "budget": budget, "max_new_tokens": max_new_tokens,
        "temperature": temperature, "top_p": top_p, "top_k": top_k, "seed": seed, "limit": limit,
        "verification": verification, "turns": turns, "thinking": thinking, "system": system,
        "check_suite": False if unchecked_suite else None,
        "coupled": False if uncoupled else None, "batch_size": batch_size, "warmup": warmup, "repeats": repeats,
        "exclude": exclude, "target": target, "data_dir": data_dir, "out": output,
    }  # fmt: skip
    options = {
        **(read_bench_recipe(recipe) if recipe else {}),
        **{key: value for key, value in typed.items() if value is not None},
    }
    if threads is not None:
        use_threads(threads)
    result = measure(**options, show_progress=True)
    show_found(result, remarks(result.summary), json)


def remarks(summary: Mapping[str, Any]) -> list[str]:
    """What a table cannot say: whether texts were equal, what differed, how much memory it took."""
    from drafterzoo.evaluation.cautions import cautions
    from drafterzoo.evaluation.tables import short_cell

    lossless, peak = summary["lossless"], summary["memory"]["peak_resident_bytes"] / 1e6
    lines = []
    if not lossless["checked"]:
        lines.append("texts: not compared, since rejection sampling keeps the distribution, not the text")
    else:
        lines.append(compared(lossless["texts"], lossless["different"], lossless["ties"]))
    for place in lossless["differences"][:10]:
        gap = "gap unknown" if place["gap"] is None else f"gap {place['gap']:.2g}{', a tie' if place['tie'] else ''}"
        lines.append(
            f"  {short_cell(place['cell'])}, prompt {place['prompt']}, turn {place['turn'] + 1}, "
            f"token {place['position']}: {place['token']} instead of {place['plain_token']} ({gap})"
        )
    if lossless["different"] > 10:
        lines.append(f"  and {lossless['different'] - 10} more, in summary.json")
    lines += cautions(summary)
    lines.append(f"memory: {peak:,.0f} MB resident at most; {summary['wall_seconds']:,.0f} s in all")
    return lines
