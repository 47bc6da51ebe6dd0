"""`drafterzoo bench`: drafters against plain decoding on one suite, as tables or as JSON.

Knows how options are typed; nothing of how anything is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from drafterzoo.cli.console import Json, compared, show_found, use_threads
from drafterzoo.errors import UsageError
from drafterzoo.wording import quantity, verb

if TYPE_CHECKING:
    from drafterzoo.evaluation.bench_result import BenchResult

# what a server decides by itself, by the runner's arguments
NOT_SERVED = {
    "drafters": "-d",
    "budget": "--budget",
    "verification": "--verification",
    "coupled": "--uncoupled",
    "exclude": "--exclude",
    "threads": "--threads",
}


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
    server: str | None = None,
    baseline: str | None = None,
    name: str | None = None,
    json: Json = False,
) -> None:
    """Compare drafters with plain decoding on a suite of prompts.

    Example: `drafterzoo bench -d eagle3.1 --suite starter --budget chain:6,p_min=0.1 --budget tree:8`

    All rows answer the same prompts in one process, interleaved; plain decoding and `lookup` are always among them.
    Every text is compared with plain decoding's. Raw counters go to a results directory.

    With `--server` a running vLLM or SGLang is measured instead, by its streams and its own counts:
    `drafterzoo bench --server http://localhost:8000 --baseline http://localhost:8001 --suite starter`

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
    server
        The address of a server to measure, such as http://localhost:8000; a key is taken from $OPENAI_API_KEY. What it
        drafts with is its own affair: no -d, no --budget. --batch-size prompts are asked at once, --target names one of
        its models.
    baseline
        The address of a server of the same target without a drafter, asked the same prompts in turn. Without it there
        is no speed-up.
    name
        What the server's row is called. Default: the drafter or the method that the server names.
    """

    from drafterzoo.evaluation.recipes import read_bench_recipe

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
    result = _measured(options, {"server": server, "baseline": baseline, "name": name}, threads)
    show_found(result, remarks(result.summary), json)


def _measured(options: dict[str, Any], served: Mapping[str, str | None], threads: int | None) -> BenchResult:
    """What was found, in this process or, with --server, over there."""
    given: dict[str, Any] = {key: value for key, value in served.items() if value is not None}
    if "server" not in given:
        if given:
            raise UsageError(f"bench: --{next(iter(given))} goes with --server, which is missing.")
        from drafterzoo.evaluation.runner import bench as measure

        if threads is not None:
            use_threads(threads)
        return measure(**options, show_progress=True)
    from drafterzoo.evaluation.served.run import bench as measure_server

    typed = {**options, **({} if threads is None else {"threads": threads})}
    if wrong := [flag for key, flag in NOT_SERVED.items() if key in typed]:
        raise UsageError(
            f"bench: {', '.join(wrong)} {verb(len(wrong), 'is', 'are')} not for --server, which has its own drafter, "
            f"budget and rule; leave {verb(len(wrong), 'it', 'them')} out."
        )
    return measure_server(**options, **given, show_progress=True)


def remarks(summary: Mapping[str, Any]) -> list[str]:
    """What a table cannot say: whether texts were equal, what differed, how much memory it took."""
    from drafterzoo.evaluation.cautions import cautions
    from drafterzoo.evaluation.summary import where
    from drafterzoo.evaluation.tables import short_cell

    lossless = summary["lossless"]
    lines = []
    if not lossless["checked"]:
        lines.append("texts: not compared, since rejection sampling keeps the distribution, not the text")
    elif "server" in summary and not lossless["texts"]:
        lines.append("texts: not compared, and no speed-up, since there is no --baseline beside the drafter")
    else:
        lines.append(compared(*(lossless[key] for key in ("texts", "different", "ties", "unit"))))
    for place in lossless["differences"][:10]:
        gap = "gap unknown" if place["gap"] is None else f"gap {place['gap']:.2g}{', a tie' if place['tie'] else ''}"
        spot = f"prompt {place['prompt']}, turn {place['turn'] + 1}, {where(place)}"
        lines.append(f"  {short_cell(place['cell'])}, {spot} ({gap})")
    if lossless["different"] > 10:
        lines.append(f"  and {lossless['different'] - 10} more, in summary.json")
    lines += cautions(summary)
    if "server" in summary:
        return [*lines, *served_remarks(summary)]
    peak = summary["memory"]["peak_resident_bytes"] / 1e6
    lines.append(f"memory: {peak:,.0f} MB resident at most; {summary['wall_seconds']:,.0f} s in all")
    return lines


def served_remarks(summary: Mapping[str, Any]) -> list[str]:
    """What is to be said of a server: where its rounds are known from, and its own mean, which is not ours."""
    told, found = summary["conditions"]["server"]["rounds"], summary["server"]
    lines = [f"rounds: {told or 'acceptance not reported by this server'}"]
    if found["mean_acceptance_length"] is not None:
        mean = found["mean_acceptance_length"]
        lines.append(f"the server's own mean acceptance length: {mean:.2f}, over steps with a draft and not cut at EOS")
    if found["asked_again"]:
        lines.append(f"asked again, since stream and count disagreed: {quantity(found['asked_again'], 'time')}")
    return [*lines, f"{summary['wall_seconds']:,.0f} s in all"]
