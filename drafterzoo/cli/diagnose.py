"""`drafterzoo diagnose`: when a drafter is wrong and how sure it was, as tables, pictures and JSON.

Knows how options are typed; nothing of how anything is found out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from drafterzoo.cli.console import Json, show_found, use_threads


def diagnose(
    *,
    drafter: Annotated[str, Parameter(alias="-d")],
    rollouts: Annotated[Path, Parameter(alias="-r")],
    depth: int = 4,
    split: str | None = None,
    limit: int | None = None,
    bins: int = 10,
    batch_size: int = 8,
    target: Annotated[str | None, Parameter(alias="-t")] = None,
    threads: int | None = None,
    no_figures: Annotated[bool, Parameter(negative="")] = False,
    output: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
    json: Json = False,
) -> None:
    """Say when a drafter is wrong, and how sure it was.

    Example: `drafterzoo diagnose -d eagle3.1 --rollouts rollouts.jsonl --split val`

    At every token but the last of the target's greedy answers the drafter is asked for a chain. The tables tell how
    often it is right at which confidence, and where its errors lie: unsure or sure, against a target that is unsure or
    sure. Of a drafter with `+pr` they tell what second thoughts recover.

    Parameters
    ----------
    drafter
        A name, `dir:path` or `hub:org/name@revision`, with options if need be.
    rollouts
        A JSONL file of `drafterzoo rollout`; answers at temperature 0 count.
    depth
        How many tokens deep the drafter is asked.
    split
        Only rows of this split; `val` is what training never saw.
    limit
        Only the first so many answers.
    bins
        Parts that the drafter's confidence is cut into.
    batch_size
        Answers read at once.
    target
        The target's name or directory; without it, the one the drafter was trained for.
    threads
        CPU threads; changes speed alone.
    no_figures
        Draw no pictures.
    output
        The folder of diagnosis.json and the pictures. Default: one under `runs`.
    """
    from drafterzoo.evaluation.diagnosis.run import diagnose as find
    from drafterzoo.evaluation.diagnosis.summary import cautions

    if threads is not None:
        use_threads(threads)
    result = find(
        drafter,
        rollouts,
        depth=depth,
        split=split,
        limit=limit,
        bins=bins,
        batch_size=batch_size,
        target=target,
        out=output,
        figures=not no_figures,
        show_progress=True,
    )
    show_found(result, cautions(result.summary), json)
