"""What a checkpoint must be for a recipe to go on from it: the same drafter, and wrappers that are the recipe's.

Knows recipes and what a checkpoint's config.json says, so a dry run can tell, too; reads no weights and no target.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from drafterzoo import checkpoint
from drafterzoo.drafters.base import WEIGHTLESS, Drafter, with_options
from drafterzoo.errors import UsageError
from drafterzoo.registry import WRAPPERS, Spec
from drafterzoo.training.recipe import Recipe


def check_continues(
    recipe: Recipe, cls: type[Drafter], options: Mapping[str, Any], spec: Spec, config: dict[str, Any], folder: Path
) -> None:
    """Raise UsageError where a fresh run of the recipe cannot begin with the checkpoint of this config."""
    made_with(recipe, cls, options, config, folder, starts=True)
    check_wrappers(spec, config, folder)


def made_with(
    recipe: Recipe,
    cls: type[Drafter],
    options: Mapping[str, Any],
    config: dict[str, Any],
    folder: Path,
    *,
    starts: bool,
) -> dict[str, Any]:
    """The options of the checkpoint's drafter. Raises UsageError when the recipe asks for another drafter.

    starts: a fresh run, which may choose another draft vocabulary or more layers, as its [init] says.
    """
    section, where = dict(config["drafter"]), f"{folder / checkpoint.CONFIG}"
    name = section.pop("name")
    if name != cls.name:
        raise UsageError(
            f"recipe: spec is {recipe.spec!r}, but {folder} holds a {name!r}; begin with a checkpoint of {cls.name!r}, "
            f"or make the spec one of {name!r}."
        )
    # Built, because what an older checkpoint does not say is what it was made with: the default.
    built = checkpoint.structure(cls.Config, section, where)
    made = plain(attrs.asdict(built))
    anew, deeper = starts and recipe.init.vocabulary == "anew", starts and recipe.init.layers == "more"
    if anew and getattr(built, "head", "own") != "borrowed":
        raise UsageError(
            f'recipe [init]: vocabulary = "anew" needs a borrowed head, and that of {folder} is its own, trained '
            f"for its ids; leave the key out."
        )
    for key, value in plain(options).items():
        changes = (anew and key == "draft_vocab_size") or (deeper and key == "num_layers" and value > made[key])
        if value != made[key] and key not in WEIGHTLESS and not changes:
            raise UsageError(
                f"recipe [drafter]: {key} is {value!r}, but {folder} was made with {made[key]!r}; "
                f"leave the key out, or start without [init] from_checkpoint."
            )
    return made


def check_wrappers(spec: Spec, config: Mapping[str, Any], folder: Path) -> None:
    """Raise UsageError when the checkpoint has wrappers, and they are not those of the recipe's spec."""
    sections = config.get("wrappers") or []
    kept = [{"name": part["name"], **_filled(part)} for part in sections if part["name"] in WRAPPERS]
    asked = [{"name": name, **_filled({"name": name, **given})} for name, given in spec.wrappers]
    if sections and kept != asked:
        raise UsageError(
            f"recipe: the wrappers of spec {str(spec)!r} are not those of {folder}, {config['spec']!r}; "
            f"give the same, or start from a drafter without any."
        )


def _filled(part: Mapping[str, Any]) -> dict[str, Any]:
    """A wrapper's options, those that are not given at their defaults."""
    cls = WRAPPERS.get(part["name"])
    given = {key: value for key, value in part.items() if key != "name"}
    return plain(attrs.asdict(with_options(cls.Config, cls.name, {}, given)))


def plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """As recipes and checkpoints hold them: lists, no tuples."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}
