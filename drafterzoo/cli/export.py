"""`drafterzoo export`: a drafter in the layout of a server, the command that starts it, and what the server lacks.

Knows how options are typed and what to say; which server reads what is in serving.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import attrs
from cyclopts import Parameter

from drafterzoo.cli.console import Json, err, out, print_json


def export(
    drafter: str,
    output: Path,
    /,
    *,
    server: Annotated[Literal["vllm", "sglang"], Parameter(name="--for")],
    budget: Annotated[str | None, Parameter(alias="-b")] = None,
    target: Annotated[str | None, Parameter(alias="-t")] = None,
    json: Json = False,
) -> None:
    """Write a drafter for vLLM or SGLang, and say how to start it there.

    Example: `drafterzoo export eagle3.1 served/eagle3.1 --for vllm --budget chain:3`

    What the server cannot do with it (wrappers, trees) is said on the way. The folder is read back before it stands.
    `drafterzoo convert` writes any other layout.

    Parameters
    ----------
    drafter
        A name, `dir:path` or `hub:org/name@revision`.
    output
        A new folder.
    server
        Who is to load it.
    budget
        What a round may draft: `chain:3`, or `tree:8` for SGLang. Default: the drafter's own.
    target
        The target's name or folder; without it, the one the drafter was trained for.
    """
    import drafterzoo
    from drafterzoo.budget import Budget
    from drafterzoo.serving import export as serve

    shape = None if budget is None else Budget.parse(budget)
    served = serve(drafterzoo.load(drafter, target), server, output, shape)
    if json:
        print_json(attrs.asdict(served))
        return
    for line in served.lost:
        err().print(f"not on {server}: {line}", style="yellow", soft_wrap=True)
    err().print(f"{served.folder}: {served.layout}", style="dim", soft_wrap=True)
    out().print(served.command, markup=False, soft_wrap=True)
