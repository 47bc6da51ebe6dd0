"""What a recipe would train, counted before anything is: parameters, memory, tokens, steps. No weights are made.

Knows recipes, and drafters on the meta device; of the target its sizes alone, which the recipe may state where the
target itself is not on this machine. Nothing of features, losses or optimisers beyond how many numbers they keep.
"""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import attrs
import torch
from torch import Tensor

from drafterzoo import checkpoint
from drafterzoo.composition import create
from drafterzoo.drafters.blocks import widths_of
from drafterzoo.errors import DataError, DrafterzooError, UsageError
from drafterzoo.registry import parse_spec
from drafterzoo.target import load_target
from drafterzoo.target.target import Target
from drafterzoo.training.batches import packs
from drafterzoo.training.beginning import check_continues
from drafterzoo.training.features import cache_bytes
from drafterzoo.training.prompts import read_prompts
from drafterzoo.training.recipe import Recipe, SizesSection
from drafterzoo.training.rollouts import OR_GENERATE, Rollouts, expand_path, read_rollouts, thinned
from drafterzoo.training.run import build_objective, check_fits, drafter_class, extended, start_of
from drafterzoo.wording import quantity, size

KEPT = 5  # numbers of float32 for every trained one: itself, its gradient, AdamW's two, its average
WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}


class Sketch:
    """A target of which only the sizes are known: what a drafter asks for when it is built, on the meta device."""

    packed = False

    def __init__(self, name: str, sizes: SizesSection) -> None:
        self.name, self.device, self.dtype = name, torch.device("meta"), torch.float32
        self.num_layers, self.hidden_size, self.vocab_size = sizes.num_layers, sizes.hidden_size, sizes.vocab_size
        text = SimpleNamespace(
            num_attention_heads=sizes.num_heads,
            num_key_value_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            intermediate_size=sizes.intermediate_size,
        )
        self.model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text))

    def embedding_weight(self) -> Tensor:
        return torch.empty(self.vocab_size, self.hidden_size, device=self.device)

    def head_weight(self, ids: Tensor | None) -> Tensor:
        return torch.empty(self.vocab_size if ids is None else len(ids), self.hidden_size, device=self.device)


def sizes_of(target: Target) -> SizesSection:
    """The sizes of a target that is here."""
    return SizesSection(num_layers=target.num_layers, **widths_of(target))


def plan(recipe: Recipe) -> dict[str, Any]:
    """Everything that can be said of a recipe beforehand, as plain values; None is what nobody knows yet.

    Raises UsageError and DataError as training would, for what can be seen without a target.
    """
    plain = build_objective(recipe)
    _, options = drafter_class(recipe)
    here = None
    if recipe.target.sizes is None:  # not packed: packed layers are no parameters to count
        here = load_target(recipe.target.name, revision=recipe.target.revision, packed=False)
    sizes = recipe.target.sizes or sizes_of(cast(Target, here))
    parameters = _parameters(sizes) if here is None else sum(p.numel() for p in here.model.parameters())
    with torch.device("meta"):
        target = cast(Target, Sketch(recipe.target.name, sizes))
        drafter = create(parse_spec(recipe.spec), target, recipe.drafter)
    objective = extended(plain, drafter)
    objective.check(drafter)
    check_fits(recipe, drafter)
    trained = sum(p.numel() for p in drafter.parameters() if p.requires_grad)
    data = _data(recipe, sizes.vocab_size)
    widths = {"features.f16": len(drafter.taps) * sizes.hidden_size, "hidden.f16": sizes.hidden_size}
    cached = recipe.data.features == "cache" and data["tokens"] is not None
    return {
        "recipe": recipe.name,
        "spec": recipe.spec,
        "objective": objective.called,
        "target": {"name": recipe.target.name, **attrs.asdict(sizes), "parameters": parameters},
        "options": options,
        "begins_with": _begins_with(recipe),
        "trained_parameters": trained,
        "checkpoint_bytes": trained * WIDTH[recipe.run.storage],
        "memory_bytes": {
            "target": parameters * WIDTH[recipe.target.dtype],
            "drafter and optimiser": trained * 4 * KEPT,
        },
        "data": data,
        "cache_bytes": cache_bytes(data["tokens"], {**widths, "argmax.i32": 0, "lse.f32": 0}) if cached else None,
    }


def _begins_with(recipe: Recipe) -> str | None:
    """The checkpoint that training goes on from, and whether it is there yet. Raises UsageError where it cannot."""
    named = recipe.init.from_checkpoint
    if named is None:
        return None
    folder = start_of(named)
    if not (folder / checkpoint.CONFIG).is_file():
        return f"{named}, which is not there yet"
    cls, options = drafter_class(recipe)
    check_continues(recipe, cls, options, parse_spec(recipe.spec), checkpoint.read_config(folder), folder)
    return named


def _parameters(sizes: SizesSection) -> int:
    """Parameters of a dense target of these sizes, its head apart from its embedding, norms left out."""
    attention = sizes.hidden_size * sizes.head_dim * (2 * sizes.num_heads + 2 * sizes.num_kv_heads)
    layer = attention + 3 * sizes.hidden_size * sizes.intermediate_size
    return sizes.num_layers * layer + 2 * sizes.vocab_size * sizes.hidden_size


def _data(recipe: Recipe, vocab_size: int) -> dict[str, Any]:
    """Documents, tokens and steps: counted in the file of rollouts, or bounded by how it would be made."""
    try:
        path = expand_path(recipe.data.rollouts)
    except DataError:  # a variable that is not set: not known here, and training says so
        path = Path(recipe.data.rollouts)
    if path.exists():
        rows = thinned(read_rollouts(path, vocab_size, OR_GENERATE), recipe.data.documents)
        return {"rollouts": str(path), "known": True, **_counted(recipe, rows)}
    unknown = {"rollouts": str(path), "known": False, "documents": None, "tokens": None, "steps": None}
    if recipe.generate is None:
        return unknown
    try:
        prompts = len(read_prompts(recipe.generate.prompts, seed=recipe.generate.seed))
    except DrafterzooError:
        return unknown
    prompts = min(prompts, recipe.data.documents or prompts)
    tokens = prompts * recipe.generate.max_new_tokens
    steps = math.ceil(tokens / recipe.data.pack * recipe.run.epochs)
    return {**unknown, "documents": prompts, "tokens": tokens, "steps": steps}


def _counted(recipe: Recipe, rollouts: Rollouts) -> dict[str, Any]:
    lengths = [min(len(row.ids), recipe.data.max_length) for row in rollouts.rows]
    kept = [i for i in rollouts.split("train") if lengths[i] > len(rollouts.rows[i].prompt_ids) + 1]
    if not kept:
        raise UsageError(
            f'{rollouts.path}: no row of split "train" shows two tokens of its answer; nothing to train on.'
        )
    steps = max(1, round(len(packs(lengths, kept, recipe.data.pack, recipe.run.seed, 0)) * recipe.run.epochs))
    return {"documents": len(kept), "tokens": sum(lengths), "steps": steps, "held_out": len(rollouts.split("val"))}


def told(facts: dict[str, Any]) -> list[str]:
    """The plan in lines for people."""
    target, data, memory = facts["target"], facts["data"], facts["memory_bytes"]
    shape = f"{target['num_layers']} layers, width {target['hidden_size']}, {target['vocab_size']:,} tokens"
    begins = [] if facts["begins_with"] is None else [f"begins      with {facts['begins_with']}"]
    lines = [
        f"{facts['recipe'] or facts['spec']}: every key is valid",
        f"target      {target['name']}: {shape}, about {_short(target['parameters'])} parameters",
        f"drafter     {facts['spec']}, objective {facts['objective']}: {_short(facts['trained_parameters'])} trained "
        f"parameters, a checkpoint of {size(facts['checkpoint_bytes'])}",
        *begins,
        f"memory      {', '.join(f'{name} {size(count)}' for name, count in memory.items())}; activations come on top",
    ]
    if data["tokens"] is None:
        lines.append(f"data        {data['rollouts']} is not there, so its tokens are not known")
        return lines
    tokens, steps = quantity(data["tokens"], "token"), quantity(data["steps"], "step")
    if data["known"]:
        said = f"{quantity(data['documents'], 'document')}, {tokens}, {steps}"
    else:
        answers = quantity(data["documents"], "answer")
        said = f"still to be made: {answers}, {tokens} in all at most, prompts not counted; {steps}"
    lines.append(f"data        {data['rollouts']}: {said}")
    if facts["cache_bytes"] is not None:
        apart = "" if data["known"] else ", prompts not counted"
        lines.append(f"features    {size(facts['cache_bytes'])} on disk{apart}")
    return lines


def _short(count: int) -> str:
    return f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.2f} M"
