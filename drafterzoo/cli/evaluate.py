"""`drafterzoo evaluate`: drafters' rounds on rollouts, as tables or as JSON.

Knows how options are typed; nothing of how rounds are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from drafterzoo.cli.console import Json, show_found, use_threads
from drafterzoo.wording import quantity


def evaluate(
    *,
    drafter: Annotated[list[str], Parameter(alias="-d", negative="")],
    rollouts: Annotated[Path, Parameter(alias="-r")],
    budget: Annotated[list[str] | None, Parameter(alias=["-b", "--nodes"], negative="")] = None,
    rule: Literal["match", "rejection"] = "match",
    split: str | None = None,
    limit: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    uncoupled: Annotated[bool, Parameter(negative="")] = False,
    start: Literal["prefill", "prompt"] = "prefill",
    boundary: Literal["last", "ahead"] = "last",
    batch_size: int = 16,
    target: Annotated[str | None, Parameter(alias="-t")] = None,
    threads: int | None = None,
    output: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
    json: Json = False,
) -> None:
    """Count drafters' rounds on rollouts, without decoding.

    Example: `drafterzoo evaluate -d eagle3.1 -d lookup --rollouts rollouts.jsonl --budget chain:4 --budget tree:8`

    The target reads each rollout once; every drafter and budget is then counted on it. Results go to a directory as
    they come, and the same command goes on where it was stopped.

    Parameters
    ----------
    drafter
        A name, `dir:path` or `hub:org/name@revision`, with options if need be (`lookup(max_ngram=4)`); may be given
        several times. The others are compared with the first.
    rollouts
        A JSONL file of `drafterzoo rollout`.
    budget
        What a round may spend, typed as tables print it: `tree:8` (a tree of 8 nodes; `8` for short), `chain:4`, or all
        of it, `nodes=24,depth=6,grow=6,offer=6`. Behind each may stand `,p_min=0.1`: end a draft early where the
        drafter gives it less than this chance. May be given several times. Default: the drafters' own.
    rule
        `match` (default) replays the rounds that decoding makes, for any budget; `rejection` gives the exact expected
        rounds of chains whose drafts are drawn from the drafter's distribution.
    split
        Only rows of this split; `val` is what training never saw.
    limit
        Only the first so many rows.
    temperature
        Only rows drawn at this temperature.
    top_p
        Only rows drawn with this top-p; where the file does not say, what it was.
    top_k
        Only rows drawn with this top-k; where the file does not say, what it was.
    uncoupled
        Under `match` above temperature 0, let drafters rank their children without the target's noise.
    start
        `prefill` (default): the first token comes from the prompt's forward and is in no round, as in this engine;
        `prompt`: the first round begins at the prompt's last token.
    boundary
        What ends an answer that the length limit cut: its `last` token (default), or one token `ahead` of it.
    batch_size
        Rollouts computed together.
    target
        The target's name or directory; without it, the one the first drafter was trained for.
    threads
        CPU threads; changes speed alone.
    output
        The results directory. Default: one under `runs` that the same command finds again.
    """

    from drafterzoo.evaluation.offline.run import evaluate as count

    if threads is not None:
        use_threads(threads)
    result = count(
        drafter,
        rollouts,
        budget=budget,
        rule=rule,
        split=split,
        limit=limit,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        coupled=not uncoupled,
        start=start,
        boundary=boundary,
        batch_size=batch_size,
        target=target,
        out=output,
        show_progress=True,
    )
    show_found(result, remarks(result.summary), json)


def remarks(summary: Mapping[str, Any]) -> list[str]:
    """What a table cannot say: what was seen in training, what the rollouts do not show, what does not fit."""
    from drafterzoo.evaluation.cautions import FEW_PROMPTS
    from drafterzoo.evaluation.offline.summary import doubts

    lines = doubts(summary)
    prompts = summary["conditions"]["rollouts"]["prompts"]
    if len(summary["conditions"]["drafters"]) > 1 and prompts < FEW_PROMPTS:
        lines.append(f"intervals: of {quantity(prompts, 'prompt')} they say little; evaluate at least {FEW_PROMPTS}")
    return lines
