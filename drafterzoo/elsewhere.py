"""Other people's checkpoints that are known here by a card alone: where they lie, for which target, in which layout.

Knows the front matter of the cards in model_cards/ that have no weights beside them. Loads nothing: catalogue.py does,
from the Hub. Nobody has run them here unless a card says so.
"""

from __future__ import annotations

import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import attrs

from drafterzoo.errors import CheckpointError
from drafterzoo.resources import folder

CARD = "README.md"


@attrs.frozen
class Elsewhere:
    """source: the repository; revision: None for its newest. target: what it drafts for, as a repository. layout: its
    files' (registry.FORMATS); drafter: what it is here. verified: whether it was loaded and measured here."""

    name: str
    source: str
    target: str
    layout: str
    drafter: str
    revision: str | None = None
    verified: bool = False

    @property
    def said(self) -> str:
        """One line for a list."""
        at = f"@{self.revision}" if self.revision else ""
        seen = "" if self.verified else "; not verified here"
        return f"hub:{self.source}{at}, {self.drafter} for {self.target}, {self.layout}{seen}"


def elsewhere(
    glob: str | None = None, *, drafter: str | None = None, target: str | None = None
) -> dict[str, Elsewhere]:
    """Checkpoints by name; `glob`, `drafter` and `target` are shell patterns.

    Raises CheckpointError for a card that does not say what is needed.
    """
    asked = ((glob, "name"), (drafter, "drafter"), (target, "target"))
    return {
        name: one
        for name, one in ((name, find(name)) for name in names())
        if one is not None
        and all(pattern is None or fnmatch.fnmatch(getattr(one, field), pattern) for pattern, field in asked)
    }


def card_of(name: str) -> Path:
    """The card of a checkpoint that lies elsewhere."""
    return folder("model_cards") / name / CARD


@cache
def names() -> tuple[str, ...]:
    """What there is a card of and nothing else, by name. Opens none: who loads a drafter asks for every name."""
    cards = folder("model_cards")
    paths = sorted(cards.glob(f"*/{CARD}")) if cards.is_dir() else []
    return tuple(path.parent.name for path in paths if not (path.parent / "config.json").exists())


@cache
def find(name: str) -> Elsewhere | None:
    """The checkpoint of that name, as its card says; None where there is none. Raises CheckpointError."""
    return _read(card_of(name)) if name in names() else None


def _read(path: Path) -> Elsewhere:
    from huggingface_hub import metadata_load

    metadata: dict[str, Any] = metadata_load(path) or {}
    try:
        return Elsewhere(name=path.parent.name, target=metadata["base_model"], **metadata["drafterzoo"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path}: its front matter lacks or misspells a key ({error}); expected base_model, and below drafterzoo: "
            f"source, layout and drafter, maybe revision and verified."
        ) from error
