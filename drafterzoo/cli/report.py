"""`drafterzoo report`: one HTML page and its figures from results directories.

Knows how options are typed; nothing of what stands on the page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from drafterzoo.cli.console import Json, err, out, print_json

FAILURES_SHOWN = 10


def report(
    directories: Annotated[list[Path], Parameter(negative="")],
    /,
    *,
    definition: Literal["vllm", "sglang", "eagle", "hass", "specforge", "deepspec"] | None = None,
    output: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
    json: Json = False,
) -> None:
    """Write one HTML page about results of bench, grid, evaluate or diagnose.

    Example: `drafterzoo report runs/bench-2026-11-29-starter-1a2b3c --out report`

    The page is one file that loads nothing from anywhere; every figure lies beside it as PNG and SVG. Rows whose
    conditions differ in more than drafter and budget get sections of their own, and the page says what differs. What
    `drafterzoo evaluate` counted on rollouts, and what `drafterzoo diagnose` found, stand apart from what was decoded.

    Parameters
    ----------
    directories
        Results directories, or folders that hold several of them.
    definition
        Add τ as this project defines it, recomputed from the raw counters.
    output
        The report's folder. Default: `report` inside the first directory.
    """
    from drafterzoo.evaluation.report.write import report as write

    result = write(directories, output, definition=definition, show_progress=True)
    for remark in result.remarks:
        err().print(remark, markup=False, soft_wrap=True)
    for failure in result.failures[:FAILURES_SHOWN]:
        err().print(str(failure), markup=False, soft_wrap=True)
    if (more := len(result.failures) - FAILURES_SHOWN) > 0:
        err().print(f"and {more} more failed, see the page", markup=False)
    if json:
        print_json({"page": result.page, "figures": result.figures, **result.summary})
    else:
        out().print(str(result.page), markup=False, soft_wrap=True)
        err().print(
            f"{len(result.figures)} figure files in {result.directory / 'figures'}",
            style="dim",
            markup=False,
            soft_wrap=True,
        )
