"""Checks of a recipe's fields that more than one kind of recipe makes, for attrs to run.

Knows numbers; nothing of any recipe. The message names the key as it is typed.
"""

from __future__ import annotations

import math

import attrs

from drafterzoo.errors import UsageError


def positive(instance: object, attribute: attrs.Attribute, value: float) -> None:
    """Raise UsageError unless the value is a finite number above zero."""
    if not 0 < value < math.inf:
        raise UsageError(f"{attribute.name} is {value}, expected a number above zero.")
