"""Whose fault something is: a drafter from elsewhere that fails is named in a sentence, with the line it failed in, and
so is one whose offers are not what the contract says.

Knows where code comes from and the shapes of the contract; nothing of what any drafter does. What fails in drafterzoo's
own drafters stays as it is: that is our mistake, and the traceback belongs to whoever mends it.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from drafterzoo.engine.contract import Frontier, Offers
from drafterzoo.errors import DrafterError, DrafterzooError
from drafterzoo.wording import quantity

if TYPE_CHECKING:
    from drafterzoo.engine.sampling import Selector

_OURS = __name__.partition(".")[0]


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == _OURS


def _called(cls: type) -> str:
    return f"drafter {getattr(cls, 'name', cls.__name__)!r} of {cls.__module__}"


@contextmanager
def blamed(cls: type, doing: str) -> Iterator[None]:
    """Around a call into a drafter of class `cls`. Raises DrafterError in place of whatever a foreign one raises."""
    try:
        yield
    except DrafterzooError:
        raise
    except Exception as error:
        if _is_ours(cls):
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        said = " ".join(str(error).split())[:200]
        raise DrafterError(
            f"{_called(cls)} failed while {doing} "
            f"({type(error).__name__}: {said}, at {place.filename}:{place.lineno}); "
            f"tell whoever wrote it, or use another drafter."
        ) from error


def check_offers(cls: type, offers: Any, frontier: Frontier, select: Selector) -> None:
    """Raise DrafterError unless what a foreign drafter's `expand` returned has the contract's shapes, kinds and device,
    and whoever's has no more rows than the budget allows.

    Asks nothing that a device would have to be waited for: what the numbers say is asked elsewhere.
    """
    if frontier.extra is not None and offers.tokens.shape[1] > frontier.width + frontier.extra:
        found = f"{quantity(offers.tokens.shape[1] - frontier.width, 'row')} beyond the frontier's"
        raise _broken(cls, found, f"at most the budget's reconsider={frontier.extra}")
    if _is_ours(cls):
        return
    if not isinstance(offers, Offers):
        raise _broken(cls, f"a {type(offers).__name__}", "Offers, as select(logits, frontier) makes them")
    n, width = frontier.tokens.shape
    shape = tuple(getattr(offers.tokens, "shape", ()))
    each = shape if len(shape) == 3 and shape[0] == n else (n, "R", "k")
    _check_tensor(cls, "tokens", offers.tokens, each, frontier, whole=True)
    _check_tensor(cls, "nodes", offers.nodes, each[:2], frontier, whole=True)
    _check_tensor(cls, "scores", offers.scores, each, frontier)
    if offers.keep is not None:
        _check_tensor(cls, "keep", offers.keep, each, frontier)
    if offers.q is not None:
        _check_tensor(cls, "q", offers.q, (*each[:2], select.sampler.vocab_size), frontier)
    if shape[1] < width:
        raise _broken(
            cls, quantity(shape[1], "row"), f"one for each of the frontier's nodes, which are {width}, at least"
        )


def _check_tensor(
    cls: type, name: str, value: Any, shape: tuple[Any, ...], frontier: Frontier, *, whole: bool = False
) -> None:
    device = frontier.tokens.device
    expected = f"{name} as {'int64' if whole else 'float'} [{', '.join(map(str, shape))}] on {device}"
    if not isinstance(value, Tensor):
        raise _broken(cls, f"{name} as a {type(value).__name__}", expected)
    fits = value.dtype == torch.int64 if whole else value.is_floating_point()
    if not fits or tuple(value.shape) != shape or value.device != device:
        kind = str(value.dtype).removeprefix("torch.")
        raise _broken(cls, f"{name} as {kind} {list(value.shape)} on {value.device}", expected)


def _broken(cls: type, found: str, expected: str) -> DrafterError:
    return DrafterError(
        f"{_called(cls)} breaks its contract: its expand returned {found}, expected {expected} (see Offers in "
        f"drafterzoo/engine/contract.py); tell whoever wrote it, or use another drafter."
    )
