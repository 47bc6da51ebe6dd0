"""Is a suite what its declaration says: as many prompts, and the same ones?

Knows counts and hashes; nothing of how files are found or read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

from drafterzoo.errors import DataError
from drafterzoo.evaluation import suite_declarations
from drafterzoo.evaluation.suite_declarations import SuiteFile
from drafterzoo.evaluation.suite_rendering import Prompt
from drafterzoo.wording import quantity

UNCHECKED = "go on with it unchecked: check=False (--unchecked-suite)"


def digest(prompts: Iterable[Prompt]) -> str:
    """SHA-256 over the turns as canonical JSON."""
    text = json.dumps([prompt.turns for prompt in prompts], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def check_prompts(name: str, suite: SuiteFile, prompts: Sequence[Prompt], place: str) -> bool:
    """Whether the prompts' hash is recorded and was found equal. place: where they are from.

    Raises DataError, with both numbers, when there are more or fewer than declared, or others.
    """
    found = digest(prompts)
    if suite.count is not None and len(prompts) != suite.count:
        raise DataError(
            f"suite {name!r}: {place} gives {quantity(len(prompts), 'prompt')}, expected "
            f"{suite.count}{_known_as(found, name)}; "
            f"get it anew{_from(suite)}, or {UNCHECKED}."
        )
    if suite.sha256 is not None and found != suite.sha256:
        raise DataError(
            f"suite {name!r}: the prompts of {place} have sha256 {found}, expected {suite.sha256}"
            f"{_known_as(found, name)}; get it anew{_from(suite)}, or {UNCHECKED}."
        )
    return suite.sha256 is not None


def check_file(name: str, suite: SuiteFile, found: str, place: str) -> bool:
    """Whether a hash is recorded for the file of rendered prompts and is `found`. Raises DataError for another."""
    expected = suite.file_sha256
    if expected is not None and not found.startswith(expected):
        raise DataError(
            f"suite {name!r}: {place} has sha256 {found}, expected one that begins {expected}; "
            f"get it anew{_from(suite)}, or {UNCHECKED}."
        )
    return expected is not None


def _from(suite: SuiteFile) -> str:
    return f" from {suite.source}" if suite.source else ""


def _known_as(found: str, name: str) -> str:
    """The shipped suite whose prompts these are, if they are another's."""
    for other in suite_declarations.shipped_names():
        if other != name and getattr(suite_declarations, other).sha256 == found:
            return f" (they are those of {other!r})"
    return ""
