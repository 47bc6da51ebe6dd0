"""The command line: one verb, one file, each imported only when it is typed.

Knows the verbs' names and how an error becomes one line and an exit status; nothing of what a verb does. Nothing here
imports torch, so that `drafterzoo --help` answers at once.

Exit status: 0 done, 1 failed, 2 asked for wrongly, 130 interrupted. Results go to stdout, all else to stderr.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO, get_args

from drafterzoo import __version__
from drafterzoo.errors import DrafterzooError, Note, UsageError, suggest

if TYPE_CHECKING:
    from cyclopts import App, Token

# verb -> (where it lives, what `drafterzoo --help` says of it: the first line of that function's docstring)
VERBS: dict[str, tuple[str, str]] = {
    "list": ("drafterzoo.cli.listing:listing", "List drafters, wrappers, formats, suites, checkpoints and recipes."),
    "show": ("drafterzoo.cli.show:show", "Show a drafter, a wrapper, a checkpoint or a suite."),
    "generate": ("drafterzoo.cli.generate:generate", "Answer a prompt, and draw the trees it was drafted with."),
    "bench": ("drafterzoo.cli.bench:bench", "Compare drafters with plain decoding on a suite of prompts."),
    "evaluate": ("drafterzoo.cli.evaluate:evaluate", "Count drafters' rounds on rollouts, without decoding."),
    "diagnose": ("drafterzoo.cli.diagnose:diagnose", "Say when a drafter is wrong, and how sure it was."),
    "grid": ("drafterzoo.cli.grid:grid", "Run a grid of cells from a recipe, or go on with one."),
    "report": (
        "drafterzoo.cli.report:report",
        "Write one HTML page about results of bench, grid, evaluate or diagnose.",
    ),
    "rollout": ("drafterzoo.cli.rollout:rollout", "Let the target answer prompts, for training on its own words."),
    "train": ("drafterzoo.cli.train:train", "Train a drafter from a recipe."),
    "pull": ("drafterzoo.cli.pull:pull", "Fetch a checkpoint from the Hub."),
    "push": ("drafterzoo.cli.push:push", "Send a checkpoint to the Hub, with a card, as one commit."),
    "convert": (
        "drafterzoo.cli.convert:convert",
        "Write a checkpoint in another layout: somebody else's in ours, ours in somebody else's.",
    ),
    "export": ("drafterzoo.cli.export:export", "Write a drafter for vLLM or SGLang, and say how to start it there."),
    "doctor": ("drafterzoo.cli.doctor:doctor", "Say what is installed, what it runs on, and what is broken."),
}
# verbs that, typed again as they were, go on where they were stopped
GOES_ON = ("evaluate", "grid", "rollout", "train")
# what is wrong with a path or the disk under it, not with us
_OF_THE_DISK = {
    getattr(errno, name)
    for name in (
        "EACCES", "EPERM", "ENOSPC", "EROFS", "EDQUOT", "EFBIG", "ENAMETOOLONG", "ELOOP", "ENOTDIR", "EISDIR", "EIO",
    )
}  # fmt: skip
_FRACTION = re.compile(r"[+-]?(\d*\.\d*|\d+\.?\d*[eE][+-]?\d+)")
ABOUT = """Speculative decoding: load, run, train and compare drafters at equal budgets.

Example: `drafterzoo generate "Explain rainbows." --show-tree`
"""


def build_app(typed: str | None = None) -> App:
    """The application. `typed` is the verb about to run: a summary given at registration would hide its docstring."""
    from cyclopts import App, Parameter

    app = App(
        name="drafterzoo",
        help=ABOUT,
        help_format="markdown",
        version=__version__,
        suppress_keyboard_interrupt=False,
        default_parameter=Parameter(converter=_typed),
    )
    for order, (verb, (address, summary)) in enumerate(VERBS.items()):
        app.command(address, name=verb, help=None if verb == typed else summary, sort_key=order)
    return app


def _typed(wanted: Any, tokens: Sequence[Token]) -> Any:
    """What cyclopts makes of what was typed, which by itself would round 1.5 to 2 where a whole number is wanted."""
    from cyclopts import convert

    if wanted is int or int in get_args(wanted):
        for token in tokens:
            if _FRACTION.fullmatch(token.value):
                raise UsageError(f"expected a whole number, found {token.value}")
    return convert(wanted, tokens)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return spoken(lambda: _run(words), words)


def spoken(work: Callable[[], int | None], words: Sequence[str] = ()) -> int:
    """Do some work and return its exit status; what goes wrong is said in one sentence. words: what was typed."""
    try:
        _soften_streams()
        with _notes_on_stderr():
            status = work()
        if sys.stdout is not None:
            sys.stdout.flush()
        return status or 0
    except DrafterzooError as error:
        return _complain(str(error), error.exit_status)
    except KeyboardInterrupt:
        return _complain(_interrupted(words), 130)
    except BrokenPipeError:
        # whoever read our output has gone (`| head`): nothing is left to say, and the final flush must not say it
        _abandon_stdout()
        return 1
    except OSError as error:
        if error.errno not in _OF_THE_DISK:
            raise
        if not error.filename:
            _abandon_stdout()  # it may be what could not be written, and the final flush would fail again
        where = f": {error.filename}" if error.filename else ""
        return _complain(f"{error.strerror}{where}; free the disk or choose another path, then run it again.", 1)


def _run(words: list[str]) -> int:
    """Do what was typed. Cyclopts is imported in here, so that whoever interrupts that sees no traceback either."""
    verb = words[0] if words and not words[0].startswith("-") else None
    if verb is not None and verb not in VERBS:
        raise UsageError(f"unknown command {verb!r}{suggest(verb, VERBS)}; there is {', '.join(VERBS)}.")
    from cyclopts import CycloptsError

    try:
        status = build_app(verb)(words, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        said = " ".join(str(error).split()).rstrip(".")
        return _complain(f"{said}; see 'drafterzoo {verb + ' ' if verb else ''}--help'.", 2)
    return status if isinstance(status, int) else 0


@contextmanager
def _notes_on_stderr() -> Iterator[None]:
    """Say what the package notes in one line each; other packages' warnings are shown as ever."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, Note):
                print(f"drafterzoo: note: {message}", file=sys.stderr)
            else:
                usual(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield


def _interrupted(words: Sequence[str]) -> str:
    """What is said of a Ctrl-C: for a verb that can be resumed, the command that does it."""
    if not words or words[0] not in GOES_ON:
        return "interrupted."
    return f"interrupted; nothing that was finished is lost, go on with: {shlex.join(['drafterzoo', *words])}"


def _soften_streams() -> None:
    """Let what a terminal's encoding has no character for be written as an escape, not end the command."""
    if sys.stdout is None:  # closed by whoever started us: there is nobody to write results to
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  open until the process ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _abandon_stdout() -> None:
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str, status: int) -> int:
    print(f"drafterzoo: {message}", file=sys.stderr)
    return status
