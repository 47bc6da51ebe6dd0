"""The errors a user can cause, each one sentence: what was wrong, where, what was expected, what to type next.

Knows nothing of the rest of the package. The command line turns these into one line on stderr and an exit
status (`UsageError` 2, everything else 1); a traceback is reserved for our own mistakes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DrafterzooError(Exception):
    """Anything a user can mend: the message says how."""

    exit_status = 1


class UsageError(DrafterzooError, ValueError):
    """What was asked for cannot be meant: an unknown name, an impossible budget, a misspelt recipe key."""

    exit_status = 2


class NotInstalledError(DrafterzooError):
    """A package that is not installed here: nothing was asked wrongly, and the message says what to install."""


class CheckpointError(DrafterzooError):
    """A checkpoint that is damaged, incomplete, or made for another target."""


class DrafterError(DrafterzooError):
    """A drafter from another package that failed, or whose offers cannot be meant."""


class ServerError(DrafterzooError):
    """A server that cannot be reached, does not take what it is asked, or breaks off in the middle."""


class DiskError(DrafterzooError):
    """A file or folder that cannot be written: a full disk, no permission, something else in its place."""


class DataError(DrafterzooError, ValueError):
    """A prompt file, a suite or a results directory that cannot be read as what it claims to be."""


class Note(UserWarning):
    """Something that was decided or left out, and is better known: no mistake, and filtered as any warning."""


def suggest(wrong: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the closest known name, or an empty string when nothing is close."""
    close = difflib.get_close_matches(wrong, list(known), n=1, cutoff=0.55)
    return f" (did you mean {close[0]!r}?)" if close else ""
