"""What verbs share: where results and remarks are written, and the `--json` switch.

Knows streams, not verbs. Results go to stdout, everything said on the way to stderr.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from drafterzoo.errors import UsageError

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object instead of text.")]


def out() -> Console:
    """The console for results. Made anew each time, so that it follows a redirected stdout."""
    return Console(file=sys.stdout, highlight=False)


def err() -> Console:
    """The console for progress and remarks."""
    return Console(file=sys.stderr, highlight=False, markup=False)


def print_json(value: Any) -> None:
    """Write one JSON object to stdout. Whatever JSON has no word for, such as a path, is written as text."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def use_threads(threads: int) -> None:
    """Compute with this many CPU threads. Raises UsageError for fewer than one."""
    if threads < 1:
        raise UsageError(f"--threads {threads}: expected a whole number of at least 1.")
    import torch

    torch.set_num_threads(threads)
