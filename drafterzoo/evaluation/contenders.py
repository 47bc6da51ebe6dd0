"""Who is compared: drafters by the names of their rows, the one target they are bound to, and the budgets they run at.

Knows specs, loaded drafters, targets and budgets as people hand them over; nothing of prompts, rollouts or of how
anything is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drafterzoo.budget import Budget
from drafterzoo.drafters.base import Drafter
from drafterzoo.errors import UsageError
from drafterzoo.target.target import Target


def listed(given: str | Drafter | Sequence[str | Drafter]) -> list[str | Drafter]:
    """One drafter or several as a list."""
    return [given] if isinstance(given, str | Drafter) else list(given)


def row_name(drafter: str | Drafter) -> str:
    """What a drafter's rows are called: as it was typed, or by the spec it was loaded with."""
    return drafter if isinstance(drafter, str) else drafter.spec


def bind(verb: str, given: Sequence[str | Drafter], target: Target | str | None) -> tuple[dict[str, Drafter], Target]:
    """Drafters by the names of their rows, and the one target of all: the first one's, if none is given.

    verb: who asks, the first word of every complaint. Without a drafter the target is what load_target makes of it.
    Raises UsageError for two drafters of one name or with different targets, and whatever `load` raises.
    """
    from drafterzoo.catalogue import load
    from drafterzoo.target import load_target

    if not given:
        return {}, target if isinstance(target, Target) else load_target(*([target] if target else []))
    if target is None:
        target = next((drafter.target for drafter in given if not isinstance(drafter, str)), None)
    loaded: dict[str, Drafter] = {}
    for one in given:
        name = row_name(one)
        if name in loaded:
            raise UsageError(
                f"{verb}: two drafters are called {name!r}; give each once, or load them from different addresses."
            )
        drafter = load(one, target) if isinstance(one, str) else one
        target = target if isinstance(target, Target) else drafter.target
        if drafter.target is not target:
            raise UsageError(
                f"{verb}: {name!r} is bound to {drafter.target.name}, the others to {target.name}; load all drafters "
                f"with one target=."
            )
        loaded[name] = drafter
    assert isinstance(target, Target), "every drafter has one"
    return loaded, target


def budgets_of(verb: str, given: Any, own: Sequence[Budget]) -> list[Budget]:
    """The budgets every drafter runs at, without doubles; `own` where none are given. Raises UsageError for none."""
    if given is None:
        return list(dict.fromkeys(own))
    several = [given] if isinstance(given, str | int | Budget) else list(given)
    if not several:
        raise UsageError(f"{verb}: no budget was given; for example budget=['chain:4', 24], or leave it out.")
    return list(dict.fromkeys(b if isinstance(b, Budget) else Budget.parse(str(b)) for b in several))
