"""What verbs share: where results and remarks are written, how a finished comparison is shown, and the `--json` switch.

Knows streams, not verbs. Results go to stdout, everything said on the way to stderr.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol

from cyclopts import Parameter
from rich.console import Console

from drafterzoo.errors import UsageError
from drafterzoo.threads import MOST_THREADS
from drafterzoo.wording import verb

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


class Found(Protocol):
    """What a comparison returns, whichever verb made it."""

    @property
    def summary(self) -> dict[str, Any]: ...
    @property
    def directory(self) -> Path: ...
    def table(self) -> Any: ...


def show_found(found: Found, remarks: Sequence[str], json: bool) -> None:
    """The summary as JSON, or the tables with a line per remark below them; then where the results lie, on stderr."""
    if json:
        print_json(found.summary)
    else:
        out().print(found.table())
        for line in remarks:
            out().print(line, markup=False, soft_wrap=True)
    err().print(f"results: {found.directory}", style="dim", soft_wrap=True)
    if not json:
        err().print(
            f"a page of them: drafterzoo report {shlex.quote(str(found.directory))}", style="dim", soft_wrap=True
        )


def compared(texts: int, different: int, ties: int, unit: str = "token") -> str:
    """Whether the texts that were compared are plain decoding's, in a line. unit: by tokens, or by characters."""
    if different:
        differ = f"{different} of {texts} {verb(different, 'differs', 'differ')}"
        return f"texts: {differ} from plain decoding's, {ties} by a tie"
    equal = verb(texts, "the one there is equals", f"all {texts} equal")
    return f"texts: {equal} plain decoding's, {unit} for {unit}"


def use_threads(threads: int) -> None:
    """Compute with this many CPU threads. Raises UsageError for fewer than one, and for more than any machine has."""
    if not 1 <= threads <= MOST_THREADS:
        raise UsageError(f"--threads {threads}: expected a whole number from 1 to {MOST_THREADS}.")
    import torch

    torch.set_num_threads(threads)
