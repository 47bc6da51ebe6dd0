"""Whose fault an exception is: a drafter from elsewhere that fails is named in a sentence, with the line it failed in.

Knows where code comes from; nothing of what any drafter does. What fails in drafterzoo's own drafters stays as it is:
that is our mistake, and the traceback belongs to whoever mends it.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from drafterzoo.errors import DrafterError, DrafterzooError

_OURS = __name__.partition(".")[0]


@contextmanager
def blamed(cls: type, doing: str) -> Iterator[None]:
    """Around a call into a drafter of class `cls`. Raises DrafterError in place of whatever a foreign one raises."""
    try:
        yield
    except DrafterzooError:
        raise
    except Exception as error:
        if cls.__module__.partition(".")[0] == _OURS:
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        said = " ".join(str(error).split())[:200]
        raise DrafterError(
            f"drafter {getattr(cls, 'name', cls.__name__)!r} of {cls.__module__} failed while {doing} "
            f"({type(error).__name__}: {said}, at {place.filename}:{place.lineno}); "
            f"tell whoever wrote it, or use another drafter."
        ) from error
