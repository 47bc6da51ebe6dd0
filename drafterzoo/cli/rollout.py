"""`drafterzoo rollout`: let the target answer prompts, for training on its own words.

Knows how options are typed; nothing of how anything is decoded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from drafterzoo.cli.console import Json, print_json, use_threads
from drafterzoo.errors import UsageError
from drafterzoo.wording import quantity


def rollout(
    prompts: str,
    output: Path,
    /,
    *,
    max_new_tokens: Annotated[int, Parameter(alias="-n")] = 192,
    temperature: Annotated[list[float] | None, Parameter(negative="")] = None,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    batch_size: int = 32,
    held_out: float | None = None,
    look_ahead: int = 0,
    limit: int | None = None,
    target: Annotated[str | None, Parameter(alias="-t")] = None,
    threads: int | None = None,
    json: Json = False,
) -> None:
    """Let the target answer prompts, for training on its own words.

    Example: `drafterzoo rollout builtin:2000 rollouts.jsonl --temperature 0 --temperature 1`

    Answers are appended as they come; the same command after an interruption answers what is left.

    Parameters
    ----------
    prompts
        `builtin:2000` for so many of the prompts that come with drafterzoo (`builtin:500:translate,code` for those of
        two families), a JSONL file whose lines hold `prompt` or `turns`, or a suite's name.
    output
        The JSONL file to append to.
    max_new_tokens
        Stop each answer after this many tokens at the latest.
    temperature
        0 takes the likeliest token; above 0 draws. Given several times, the values are taken in turn, prompt by prompt.
        Default: 0.
    top_p
        Draw from the likeliest tokens that together hold this probability.
    top_k
        Draw from this many likeliest tokens; 0 for all.
    seed
        Seed of sampling, of the held-out split and of the order of built-in prompts.
    batch_size
        How many prompts are answered at once.
    held_out
        Share of the prompts marked `val`, which training never sees; answers that are there already keep their mark.
        Default: 0.05, and all of a suite's: what is measured with must not be trained on.
    look_ahead
        Keep so many tokens more of answers that the length limit cuts, apart from the answer: `drafterzoo evaluate`
        then knows how far a drafter's last round went. The greatest depth of a budget is enough, such as 8.
    limit
        Answer only the first so many prompts.
    target
        What answers: a name, a directory or a Hub address. Default: the embedded target.
    threads
        CPU threads; changes speed alone.
    """

    from drafterzoo.engine.sampling import Sampling
    from drafterzoo.target import load_target
    from drafterzoo.training.generating import check_output, make_rollouts
    from drafterzoo.training.prompts import evaluation_suite, read_prompts

    if threads is not None:
        use_threads(threads)
    for each in temperature or [0.0]:
        Sampling(each, top_p, top_k, seed)  # refuses what cannot be meant, before anything is loaded
    if evaluation_suite(prompts):
        if held_out not in (None, 1.0):
            raise UsageError(
                f"rollout: {prompts!r} is an evaluation suite, whose prompts must never be trained on; "
                f"leave --held-out out, so that all its answers are marked 'val'."
            )
        held_out = 1.0
    asked = read_prompts(prompts, seed=seed, limit=limit)
    check_output(output)
    made = make_rollouts(
        load_target(target) if target else load_target(),
        asked,
        output,
        max_new_tokens=max_new_tokens,
        temperatures=temperature or [0.0],
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        batch_size=batch_size,
        held_out=0.05 if held_out is None else held_out,
        look_ahead=look_ahead,
    )
    if json:
        print_json(made)
    else:
        rows, tokens = quantity(made["rows"], "answer"), quantity(made["new_tokens"], "token")
        print(f"{output}: {rows}, {made['new_rows']} of them new, {tokens}")
