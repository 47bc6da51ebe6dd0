"""Where the files that travel with the package lie: `recipes` and `model_cards`, in a checkout and in a wheel.

Knows the two layouts and nothing of what the files say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from drafterzoo.errors import DrafterzooError, UsageError, suggest

PACKAGE = Path(__file__).resolve().parent


def folder(name: Literal["recipes", "model_cards"]) -> Path:
    """Return the folder of that name: beside the package in a checkout (there or not), inside it in a wheel.

    Raises DrafterzooError when an installation has lost it.
    """
    # site-packages may hold anybody's `recipes`; only a checkout has our pyproject.toml beside it
    if (PACKAGE.parent / "pyproject.toml").is_file():
        return PACKAGE.parent / name
    if (PACKAGE / name).is_dir():
        return PACKAGE / name
    raise DrafterzooError(f"the folder {name!r} is missing from {PACKAGE}; install drafterzoo again from its wheel.")


def find_recipe(typed: Path, kind: Literal["grids", "train"]) -> Path:
    """A recipe's file: as typed, or by its bare name among those of its kind that come with the package.

    Raises UsageError for a bare name that is neither.
    """
    if typed.exists() or len(typed.parts) != 1:
        return typed
    shipped = {path.stem: path for path in (folder("recipes") / kind).glob("*.toml")}
    name = typed.name.removesuffix(".toml")
    if name not in shipped:
        raise UsageError(
            f"{typed}: no such recipe{suggest(name, shipped)}; those that come with drafterzoo lie in recipes/{kind}/."
        )
    return shipped[name]
