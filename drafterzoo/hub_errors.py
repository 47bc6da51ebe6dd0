"""What the Hub, or the way to it, refused: huggingface_hub's errors as one sentence that says what to do next.

Knows huggingface_hub's errors; nothing of files. Of an error's own text only what the Hub itself said is passed on:
what a library says of a request may quote its headers, and in them a token.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten

from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from drafterzoo.errors import CheckpointError, DrafterzooError, UsageError

# The root of its HTTP library's errors: httpx or httpx2, whichever this huggingface_hub is made with.
TRANSPORT: type[Exception] = HfHubHTTPError.__bases__[0]
LONGEST = 200  # characters of what somebody else says
LOGIN = "log in with `hf auth login`"
_BY_STATUS = {
    401: f"it does not take your token; {LOGIN}",
    403: f"your token may not do this; {LOGIN} as somebody who may, or with a token that may write",
    412: "somebody else has pushed there meanwhile, and nothing of yours was added; look at what is there, push again",
    429: "it wants fewer requests; wait a little, then try again",
}


@contextmanager
def hub_errors(repo_id: str, revision: str | None = None) -> Iterator[None]:
    """Around calls of huggingface_hub. Raises UsageError or CheckpointError in place of its errors."""
    try:
        yield
    except (TRANSPORT, OSError, RuntimeError, ValueError) as error:
        if isinstance(error, DrafterzooError):
            raise
        raise _told(error, f"hub:{repo_id}", revision) from (None if _may_quote(error) else error)


def _may_quote(error: BaseException) -> bool:
    """Whether an error is the HTTP library's own, which may quote a header, and would in a traceback."""
    return isinstance(error, TRANSPORT) and not isinstance(error, HfHubHTTPError)


def _told(error: BaseException, where: str, revision: str | None) -> DrafterzooError:
    if isinstance(error, HFValidationError):  # refused before anybody was asked
        return UsageError(
            f"{where}: not the name of a repository ({_one_line(error)}); expected 'hub:org/name' or "
            f"'hub:org/name@revision'."
        )
    return CheckpointError(f"{where}: {_reason(error, where, revision)}.")


def _reason(error: BaseException, where: str, revision: str | None) -> str:
    if isinstance(error, GatedRepoError):
        page = where.removeprefix("hub:")
        return f"its owner wants you to accept terms first; do so on the page of {page} on the Hub, and {LOGIN}"
    if isinstance(error, RevisionNotFoundError):
        return f"has no revision {revision or 'main'!r}; leave it out or name a branch, tag or commit"
    if isinstance(error, RepositoryNotFoundError):
        return f"no such repository, or it is private and you are not logged in; check the name or {LOGIN}"
    if isinstance(error, OfflineModeIsEnabled) or isinstance(error.__cause__, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set and not all of it is in the cache; unset it, or load 'dir:path'"
    if isinstance(error, LocalEntryNotFoundError):
        return "the Hub cannot be reached and not all of it is in the cache; connect, or load 'dir:path'"
    if isinstance(error, HfHubHTTPError):
        return _answered(error)
    if isinstance(error, RuntimeError) and error.__cause__ is not None:  # what one of its threads met
        return _reason(error.__cause__, where, revision)
    if isinstance(error, ValueError) and "README.md" in str(error):
        return f"README.md was refused ({_one_line(error)}); correct what stands between its lines of ---"
    if isinstance(error, UnicodeError):
        return f"your token holds a character that no token has; {LOGIN}"
    if isinstance(error, OSError) and error.strerror:
        place = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{place}; mend that, then try again"
    return f"the connection broke off ({type(error).__name__}), and nothing was changed; try again"


def _answered(error: HfHubHTTPError) -> str:
    """What the Hub said, by its status."""
    status = error.response.status_code
    said = f" ({_one_line(error.server_message)})" if error.server_message else ""
    return f"the Hub answered {status}{said}: {_BY_STATUS.get(status, 'try again later')}"


def _one_line(said: object) -> str:
    return shorten(str(said), LONGEST, placeholder=" ...").rstrip(".")
