"""Where the files that travel with the package lie: `recipes` and `model_cards`, in a checkout and in a wheel.

Knows the two layouts and nothing of what the files say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from drafterzoo.errors import DrafterzooError

PACKAGE = Path(__file__).resolve().parent


def folder(name: Literal["recipes", "model_cards"]) -> Path:
    """Return the folder of that name: beside the package in a checkout, inside it in an installed wheel.

    Raises DrafterzooError when the installation has lost it.
    """
    checkout = PACKAGE.parent / name
    # site-packages may hold anybody's `recipes`; only a checkout has our pyproject.toml beside it
    if (PACKAGE.parent / "pyproject.toml").is_file() and checkout.is_dir():
        return checkout
    if (PACKAGE / name).is_dir():
        return PACKAGE / name
    raise DrafterzooError(f"the folder {name!r} is missing from {PACKAGE}; install drafterzoo again from its wheel.")
