"""A training recipe: what is trained, on what, how, for how long. Read from TOML, strictly.

Knows the keys and their meaning; nothing of how a step is taken. An unknown or misspelt key is an error that names the
nearest valid one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import attrs

from drafterzoo import checkpoint
from drafterzoo.budget import Budget
from drafterzoo.errors import UsageError, suggest
from drafterzoo.kinds import check_kinds, check_required
from drafterzoo.parsing import parse_toml
from drafterzoo.registry import parse_spec
from drafterzoo.threads import MOST_THREADS
from drafterzoo.training.prompts import evaluation_suite
from drafterzoo.validators import positive

MOST_EPOCHS = 10_000  # beyond, a slip of the keyboard: nobody waits for the end


def _between(low: float, high: float) -> Callable[[object, attrs.Attribute, Any], None]:
    def check(instance: object, attribute: attrs.Attribute, value: Any) -> None:
        for number in value if isinstance(value, tuple) else (value,):
            if not low <= number <= high:
                raise UsageError(f"{attribute.name} is {value}, expected from {_plain(low)} to {_plain(high)}.")

    return check


def _plain(number: float) -> str:
    """A bound as it would be typed, in full: rounded it would look as if it were allowed, or were another."""
    return str(int(number)) if number == int(number) else str(number)


def _epochs(instance: object, attribute: attrs.Attribute, value: float) -> None:
    if not 0 < value <= MOST_EPOCHS:
        raise UsageError(f"{attribute.name} is {value}, expected a number above zero, at most {MOST_EPOCHS}.")


def _budget(instance: object, attribute: attrs.Attribute, value: str) -> None:
    Budget.parse(value)


def _canonical(spec: str) -> str:
    """The one text of a composition: a run is the same however its spec was spaced."""
    return str(parse_spec(spec))


def _prompts(instance: object, attribute: attrs.Attribute, value: str) -> None:
    if evaluation_suite(value):
        raise UsageError(
            f"{attribute.name} is {value!r}, an evaluation suite, which must never enter training; "
            f"give builtin:<how many> or a JSONL file of other prompts."
        )


def _share(instance: object, attribute: attrs.Attribute, value: float) -> None:
    if not 0 <= value < 1:
        raise UsageError(f"recipe: {attribute.name} is {value}, expected a share of at least 0 and below 1.")


def _temperatures(instance: object, attribute: attrs.Attribute, value: tuple[float, ...]) -> None:
    if not value or not all(0 <= t < float("inf") for t in value):
        raise UsageError(
            f"recipe: {attribute.name} is {list(value)}, expected a list of numbers of at least 0, such as [0.0, 1.0]."
        )


@attrs.frozen
class SizesSection:
    """The sizes of a target, for `--dry-run` where it is not on this machine; training checks them."""

    hidden_size: int = attrs.field(validator=positive)
    num_layers: int = attrs.field(validator=positive)
    vocab_size: int = attrs.field(validator=positive)
    intermediate_size: int = attrs.field(validator=positive)
    num_heads: int = attrs.field(validator=positive)
    num_kv_heads: int = attrs.field(validator=positive)
    head_dim: int = attrs.field(validator=positive)


@attrs.frozen
class TargetSection:
    """Which target the drafter is for: the arguments of load_target. sizes: those it is expected to have."""

    name: str = "smollm2-135m"
    revision: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    sizes: SizesSection | None = None


@attrs.frozen
class DataSection:
    """Rollouts to train on: one JSONL file with prompt_ids, response_ids and an optional split.

    Rows of split "val" are never trained on.

    rollouts: a path, relative to the recipe's working folder; `$NAME` is replaced from the environment.
    features: "cache" reads the target's features once and keeps them under `cache`; "online" reads them every step.
    precision: of the products of matrices when the target is read for its features; "bfloat16" (autocast) is faster.
    documents: train on so many of the rollouts, evenly over the file; default: on all.
    max_length: longer documents are cut. pack: rows a step may hold (documents are packed, never split).
    anchors: of each document, so many places are trained on in an epoch, drawn anew in every one; 0: all of them.
    """

    rollouts: str
    features: Literal["cache", "online"] = "cache"
    cache: str = "runs/features"
    precision: Literal["float32", "bfloat16"] = "float32"
    documents: int | None = attrs.field(default=None, validator=attrs.validators.optional(positive))
    max_length: int = attrs.field(default=2048, validator=positive)
    pack: int = attrs.field(default=320, validator=positive)
    anchors: int = attrs.field(default=0, validator=_between(0, 10**6))


@attrs.frozen
class GenerateSection:
    """How the rollouts are made when the file that [data] names does not exist: the target answers prompts.

    prompts: "builtin:<how many>" (training/prompts.py) or a JSONL file; never a suite, which is what is measured with.
    max_new_tokens: answers are cut there. temperatures: taken in turn, prompt by prompt, so that [0.0, 0.0, 1.0] draws
    a third of the answers. batch_size: prompts answered at once. held_out: the share of prompts marked "val". seed: of
    the built-in prompts' order, of the draws and of the held-out share.
    """

    prompts: str = attrs.field(default="builtin:4000", validator=_prompts)
    max_new_tokens: int = attrs.field(default=192, validator=positive)
    temperatures: tuple[float, ...] = attrs.field(default=(0.0, 0.0, 1.0), validator=_temperatures)
    batch_size: int = attrs.field(default=32, validator=positive)
    held_out: float = attrs.field(default=0.05, validator=_share)
    seed: int = 0


@attrs.frozen
class InitSection:
    """How the drafter starts.

    from_checkpoint: a native checkpoint's weights and draft vocabulary, by its folder or the name it has in
        `drafterzoo list checkpoints`; the optimiser starts anew, unlike in a resume.
    vocabulary: "anew" takes its weights alone, and chooses the draft vocabulary, of the size that [drafter] says, from
    these rollouts; only with a borrowed head, whose rows are the target's whatever ids are chosen.
    layers: "more" lets [drafter] num_layers be more than the checkpoint's; the new ones change nothing at first.
    fc: "ridge" solves fc in closed form so that the untrained drafter predicts the next final hidden state; in a
        block drafter all it reads by is set so, on blocks of up to `ridge_rows` anchors (training/block_ridge.py).
    target_layers: a block drafter's layers begin as copies of these of the target's, one each.
    """

    from_checkpoint: str | None = None
    vocabulary: Literal["kept", "anew"] = "kept"
    layers: Literal["kept", "more"] = "kept"
    fc: Literal["random", "ridge"] = "random"
    ridge_rows: int = attrs.field(default=100000, validator=positive)
    target_layers: tuple[int, ...] = ()

    def __attrs_post_init__(self) -> None:
        if self.target_layers and self.from_checkpoint:
            raise UsageError("target_layers are given, but from_checkpoint brings its own layers; give one of the two.")
        if self.from_checkpoint and self.fc != "random":
            raise UsageError(f"fc is {self.fc!r}, but from_checkpoint brings its own fc; give one of the two.")
        if self.layers == "more" and not self.from_checkpoint:
            raise UsageError("layers is 'more', but there is no from_checkpoint; without one [drafter] says how many.")
        if self.vocabulary == "anew" and not self.from_checkpoint:
            raise UsageError("vocabulary is 'anew', but there is no from_checkpoint; without one it always is.")


@attrs.frozen
class OptimizerSection:
    """AdamW; linear warm-up, then cosine to `final` times the peak; gradient clipping; an average of the weights.

    clip_by: "norm" bounds the norm of the whole gradient, "value" each of its entries (EAGLE, EAGLE-2, HASS).
    """

    lr: float = attrs.field(default=1e-4, validator=positive)
    betas: tuple[float, float] = attrs.field(default=(0.9, 0.95), validator=_between(0, 0.9999999))
    weight_decay: float = attrs.field(default=0.0, validator=_between(0, 1e6))
    warmup: float = attrs.field(default=0.02, validator=_between(0, 1))
    final: float = attrs.field(default=0.0, validator=_between(0, 1))
    clip: float = attrs.field(default=0.5, validator=positive)
    clip_by: Literal["norm", "value"] = "norm"
    ema: float = attrs.field(default=0.0, validator=_between(0, 1))


@attrs.frozen
class RunSection:
    """How long, how often to save, and the seed of everything random. threads: 0 leaves torch's own choice.

    fit_coupling: after training, the weights of the coupled score (engine/coupling.py) are fitted on so many roots of
    training prompts decoded at temperature 1; 0 leaves them at 1. fit_confidence: likewise the temperatures of a
    confidence head (engine/confidence.py), on so many rounds of held-out prompts; 0 leaves them at 1. storage: in what
    the checkpoints hold their weights; what a run goes on from is float32. precision: of the products of matrices in a
    step; "bfloat16" (autocast) leaves weights, sums and optimiser in float32, and is several times as fast where the
    machine multiplies it (AMX, GPUs).
    """

    epochs: float = attrs.field(default=1.0, validator=_epochs)
    seed: int = attrs.field(default=0, validator=_between(0, 2**32 - 1))
    save_every: int = attrs.field(default=500, validator=positive)
    log_every: int = attrs.field(default=20, validator=positive)
    threads: int = attrs.field(default=0, validator=_between(0, MOST_THREADS))
    fit_coupling: int = attrs.field(default=0, validator=_between(0, 10**9))
    fit_confidence: int = attrs.field(default=0, validator=_between(0, 10**9))
    storage: Literal["float32", "bfloat16", "float16"] = "float32"
    precision: Literal["float32", "bfloat16"] = "float32"


@attrs.frozen
class EvaluateSection:
    """The periodic real decode on held-out prompts; the checkpoint with the best tau is kept as `best`."""

    every: int = attrs.field(default=2000, validator=positive)
    prompts: int = attrs.field(default=24, validator=positive)
    max_new_tokens: int = attrs.field(default=64, validator=positive)
    budget: str = attrs.field(default="chain:4", validator=_budget)


@attrs.frozen
class Recipe:
    """One training run. `drafter` holds the options of the base drafter, `objective` its name and options."""

    spec: str = attrs.field(converter=_canonical)
    data: DataSection
    generate: GenerateSection | None = None
    target: TargetSection = TargetSection()
    drafter: dict[str, Any] = attrs.Factory(dict)
    init: InitSection = InitSection()
    objective: dict[str, Any] = attrs.Factory(lambda: {"name": "ttt"})
    optimizer: OptimizerSection = OptimizerSection()
    run: RunSection = RunSection()
    evaluate: EvaluateSection = EvaluateSection()
    budget: str = attrs.field(default="8", validator=_budget)
    name: str = ""


def read_recipe(path: str | Path) -> Recipe:
    """Read a TOML recipe. Raises UsageError naming the file, the section, the key, and the nearest valid key."""
    path = Path(path)
    try:
        values = parse_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such recipe; those that come with drafterzoo lie in recipes/train/.") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read as TOML ({error}).") from error
    return attrs.evolve(build_recipe(values, str(path)), name=values.get("name") or path.stem)


def kept_recipe(values: Any) -> Recipe | None:
    """The recipe that a run was begun with, from the plain values it wrote then; None where these are none.

    A key that this release has added is at its default, which is what the run was made with.
    """
    try:
        return build_recipe(values, "kept recipe") if isinstance(values, dict) else None
    except UsageError:
        return None


def build_recipe(values: dict[str, Any], where: str) -> Recipe:
    """Build a Recipe from plain values; `where` is named in errors. Raises UsageError."""
    sections = {f.name: f.type for f in attrs.fields(attrs.resolve_types(Recipe))}
    for key, value in values.items():
        if key not in sections:
            raise UsageError(
                f"{where}: unknown key {key!r}{suggest(key, sections)}; the keys are {', '.join(sections)}."
            )
        for kind in get_args(sections[key]) or (sections[key],):  # an optional table is a union with None
            if not (isinstance(kind, type) and attrs.has(kind)):
                continue
            if not isinstance(value, dict):
                raise UsageError(f"{where}: {key!r} is {value!r}, expected a table [{key}].")
            section = f"{where} [{key}]"
            check_kinds(kind, value, section)
            check_required(kind, value, section)
            for inner in attrs.fields(attrs.resolve_types(kind)):  # a table in it is said by its own name, too
                for within in get_args(inner.type):
                    if isinstance(within, type) and attrs.has(within) and isinstance(value.get(inner.name), dict):
                        check_kinds(within, value[inner.name], f"{where} [{key}.{inner.name}]")
                        check_required(within, value[inner.name], f"{where} [{key}.{inner.name}]")
            checkpoint.structure(kind, value, section, UsageError)  # so that the error names the section
    check_kinds(Recipe, values, where)
    check_required(Recipe, values, where)
    return checkpoint.structure(Recipe, values, where, UsageError)
