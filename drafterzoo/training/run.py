"""From a recipe to a trained checkpoint: loads the target, builds the drafter, finds the data, runs the trainer.

Knows the order of these things, and says what it is about to do (sizes, coverage, steps); nothing of how a step is
taken.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from drafterzoo import checkpoint
from drafterzoo.budget import Budget
from drafterzoo.catalogue import check_fingerprint
from drafterzoo.disk import check_file, check_folder
from drafterzoo.drafters.base import Drafter
from drafterzoo.drafters.eagle3_body import Eagle3Body
from drafterzoo.engine.coupling import collect, fit
from drafterzoo.engine.sampling import Sampling
from drafterzoo.errors import DataError, UsageError, suggest
from drafterzoo.progress import console
from drafterzoo.registry import DRAFTERS, parse_spec
from drafterzoo.target import load_target
from drafterzoo.target.target import Target
from drafterzoo.training.features import FeatureCache, OnlineFeatures, open_cache
from drafterzoo.training.generating import ANOTHER_ENTRY, ensure_rollouts
from drafterzoo.training.objectives.ttt import TTT
from drafterzoo.training.recipe import Recipe, build_recipe, read_recipe
from drafterzoo.training.ridge import ridge_start
from drafterzoo.training.rollouts import Rollouts, expand_path, read_rollouts
from drafterzoo.training.trainer import STATE, Say, Trainer
from drafterzoo.training.vocabulary import coverage, frequent_ids

ANOTHER_CACHE = 'free some space, or set features = "online" or another `cache` folder in the recipe\'s [data]'
FINISHED = "summary.json"  # written last of all
COUPLING_TOKENS = 32  # of each answer the coupled score is fitted on: many prompts say more than long answers
OBJECTIVES: dict[str, type[TTT]] = {"ttt": TTT}


@attrs.frozen
class TrainResult:
    """What a run has come to: `summary` (plain values) and the run's folder, whose `best` is a loadable checkpoint.

    already: it had been finished by an earlier call, and this one did nothing.
    """

    summary: dict[str, Any]
    directory: Path
    already: bool = False


def train(
    recipe: str | Path | dict[str, Any] | Recipe, *, out: str | Path | None = None, quiet: bool = False
) -> TrainResult:
    """Train what the recipe says, or go on where an interrupted run of the same recipe stopped; a finished one is left.

    recipe: a TOML file, a plain dict of the same shape, or a Recipe. out: the run's folder, runs/<name> by default.
    Raises UsageError (recipe), DataError (rollouts), CheckpointError, DiskError.
    """
    recipe = _read(recipe)
    say = (lambda text: None) if quiet else (lambda text: console.print(text, soft_wrap=True))
    objective = build_objective(recipe)
    folder = Path(out) if out else Path("runs") / (recipe.name or recipe.spec)
    check_places(recipe, folder)
    summary = finished_summary(recipe, folder)
    if summary is not None:
        return TrainResult(summary, folder, already=True)
    if recipe.run.threads:
        torch.set_num_threads(recipe.run.threads)
    torch.manual_seed(recipe.run.seed)
    target = load_target(recipe.target.name, revision=recipe.target.revision, dtype=getattr(torch, recipe.target.dtype))
    if recipe.generate is not None:
        ensure_rollouts(recipe.generate, target, expand_path(recipe.data.rollouts))
    rollouts = read_rollouts(recipe.data.rollouts, target.vocab_size)
    begun = _begun(recipe, folder)
    drafter = build_drafter(recipe, target, rollouts, begun)
    if begun is not None and begun.parent != folder:
        drafter.training_record = {"began_with": drafter.training_record}
    trained = sum(p.numel() for p in drafter.parameters() if p.requires_grad)
    say(f"{drafter.spec} for {target.name}: {trained / 1e6:.2f} M trained parameters, objective {objective.name}")
    source = open_features(recipe, target, rollouts, drafter.taps)
    trainer = Trainer(recipe, drafter, objective, rollouts, source, folder, say)
    with alone(folder):
        return _run(recipe, trainer, say)


def check_places(recipe: Recipe, folder: Path) -> None:
    """Raise DiskError, before hours are spent, for a place where the run will write and cannot."""
    check_folder(folder, f"{folder}:", "free some space, or choose another --out")
    rollouts = expand_path(recipe.data.rollouts)
    if recipe.generate is not None and not rollouts.exists():
        check_file(rollouts, f"{rollouts}:", ANOTHER_ENTRY)
    if recipe.data.features != "online":
        cache = expand_path(recipe.data.cache)
        check_folder(cache, f"{cache}: the feature cache", ANOTHER_CACHE)


def _begun(recipe: Recipe, folder: Path) -> Path | None:
    """The checkpoint a run continues from: its own once it has saved one, so that [init]'s may move or change."""
    if recipe.init.from_checkpoint is None:
        return None
    own = folder / "last"
    return own if (own / STATE).is_file() else expand_path(recipe.init.from_checkpoint)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a run's folder. Raises UsageError when another process trains in it, DataError when it cannot be made."""
    lock = FileLock(folder / "run.lock", timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise UsageError(
            f"{folder}: another process is training in it; wait for it, or choose another --out."
        ) from error
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be written ({error.strerror}); free some space, or choose another --out."
        ) from error
    try:
        yield
    finally:
        lock.release()


def _run(recipe: Recipe, trainer: Trainer, say: Say) -> TrainResult:
    """Start or resume, train, and fit what is fitted afterwards."""
    drafter, folder = trainer.drafter, trainer.folder
    if trainer.resume():
        say(f"{folder}: resumed at step {trainer.step} of {trainer.total}")
    else:
        start(recipe, drafter, trainer)
        trainer.average = [p.detach().clone() for p in trainer.parameters]
    say(f"{len(trainer.indices)} documents, {len(trainer.held_out)} held out, {trainer.total} steps, into {folder}")
    if trainer.left_out:
        say(
            f"{trainer.left_out} more show no two tokens of an answer within {recipe.data.max_length}, and are left out"
        )
    if not trainer.held_out:
        say('no row has split "val": tau will not be measured, and `best` will be the last step')
    summary = trainer.train()
    if summary["finished"] and recipe.run.fit_coupling:
        summary["coupling"] = couple(recipe, drafter.target, trainer.rollouts, folder / "best", say)
    if summary["finished"]:
        kept = {"recipe": _whole(recipe), "summary": summary}
        checkpoint.write_whole(folder / FINISHED, json.dumps(kept, indent=2).encode())
    return TrainResult(summary, folder)


def finished_summary(recipe: Recipe, folder: Path) -> dict[str, Any] | None:
    """The summary of a run of exactly this recipe that has done all there is to do; None where something is left."""
    try:
        kept = json.loads((folder / FINISHED).read_text(encoding="utf-8"))
        same = kept["recipe"] == _whole(recipe)
        summary = {**kept["summary"], "directory": str(folder)}
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return summary if same and (folder / "best" / checkpoint.CONFIG).is_file() else None


def _whole(recipe: Recipe) -> dict[str, Any]:
    """All of a recipe that may change what a run ends with, the decodes and fits after the last step among it."""
    values = attrs.asdict(recipe)
    for key in ("threads", "log_every", "save_every"):
        values["run"].pop(key)
    values.pop("generate")  # the file of rollouts that was trained on is there, however it was made
    return json.loads(json.dumps(values))


def couple(recipe: Recipe, target: Target, rollouts: Rollouts, folder: Path, say: Say) -> list[float]:
    """Fit the coupled score of the checkpoint in `folder` on training prompts at temperature 1, and save it there.

    Returns the weights: those it had where few roots or a drafter that knows little give one that is not above zero.
    """
    saved = checkpoint.read(folder)
    drafter = DRAFTERS.get(str(saved.config["drafter"]["name"])).from_checkpoint(saved, target)
    rows = [rollouts.rows[i] for i in rollouts.split("train")]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(recipe.run.seed)).tolist()
    samples = collect(
        drafter,
        target,
        [list(rows[i].prompt_ids) for i in order],
        Sampling(temperature=1.0, seed=recipe.run.seed),
        max_new_tokens=COUPLING_TOKENS,
        limit=recipe.run.fit_coupling,
    )
    fitted, roots = fit(samples).coupling, recipe.run.fit_coupling
    if min(fitted.prior, fitted.noise) < 1e-4:  # they are kept to four places
        kept = list(drafter.config.coupling)
        say(f"coupling weights stay {kept}: a fit on {roots} roots gives none above zero; train longer, or on more")
        return kept
    drafter.config = attrs.evolve(drafter.config, coupling=(round(fitted.prior, 4), round(fitted.noise, 4)))
    drafter.save_pretrained(folder)
    say(f"coupling weights {list(drafter.config.coupling)} fitted on {roots} roots")
    return list(drafter.config.coupling)


def _read(recipe: str | Path | dict[str, Any] | Recipe) -> Recipe:
    if isinstance(recipe, Recipe):
        return recipe
    return build_recipe(recipe, "recipe") if isinstance(recipe, dict) else read_recipe(recipe)


def build_objective(recipe: Recipe) -> TTT:
    """The objective a recipe names. Raises UsageError naming the key."""
    name = recipe.objective.get("name", "ttt")
    if name not in OBJECTIVES:
        raise UsageError(
            f"recipe [objective]: unknown name {name!r}{suggest(name, OBJECTIVES)}; there is {', '.join(OBJECTIVES)}."
        )
    return checkpoint.structure(OBJECTIVES[name], recipe.objective, "recipe [objective]", UsageError)


def build_drafter(recipe: Recipe, target: Target, rollouts: Rollouts, begun: Path | None = None) -> Drafter:
    """The drafter of a recipe: with random weights and its draft vocabulary chosen, or as the checkpoint `begun` is.

    Raises UsageError, and CheckpointError for a checkpoint that is damaged or another target's.
    """
    spec = parse_spec(recipe.spec)
    cls = DRAFTERS.get(spec.base)
    if not issubclass(cls, Drafter) or spec.wrappers:
        raise UsageError(
            f"recipe: spec {recipe.spec!r} cannot be trained; give a drafter without wrappers, for example 'eagle3.1'."
        )
    options = {**spec.options, **recipe.drafter}
    anew = begun is None or (
        recipe.init.vocabulary == "anew" and begun == expand_path(str(recipe.init.from_checkpoint))
    )
    drafter = cls.create(target, **options) if begun is None else _continued(cls, options, target, begun, anew)
    drafter.budget = Budget.parse(recipe.budget)
    drafter.storage_dtype = getattr(torch, recipe.run.storage)
    if anew and isinstance(drafter, Eagle3Body) and drafter.vocabulary is not None:
        answers = [rollouts.rows[i].response_ids for i in rollouts.split("train")]
        drafter.set_vocabulary(
            frequent_ids(answers, drafter.config.draft_vocab_size, target.vocab_size, target.eos_token_ids)
        )
    if drafter.vocabulary is not None:
        _say_coverage(drafter.vocabulary, rollouts, target.vocab_size)
    return drafter


def _continued(cls: type[Drafter], options: dict[str, Any], target: Target, folder: Path, anew: bool) -> Drafter:
    """The checkpoint's drafter, to be trained on; `anew`: with room for another draft vocabulary, which is not set yet.

    Raises UsageError when the recipe asks for another drafter.
    """
    saved = checkpoint.read(folder)
    section = dict(saved.config["drafter"])
    if anew:
        if section.get("head") != "borrowed":
            raise UsageError(
                f'recipe [init]: vocabulary = "anew" needs a borrowed head, and that of {folder} is its own, trained '
                f"for its ids; leave the key out."
            )
        section["draft_vocab_size"] = options.get("draft_vocab_size", section["draft_vocab_size"])
    for key, value in {"name": cls.name, **options}.items():
        if section.get(key) != (list(value) if isinstance(value, tuple) else value):
            raise UsageError(
                f"recipe [drafter]: {key} is {value!r}, but {folder} was made with {section.get(key)!r}; "
                f"leave the key out, or start without [init] from_checkpoint."
            )
    check_fingerprint(saved.config["target"], target, folder)
    drafter = cls.from_checkpoint(saved, target)
    return _resized(drafter, section["draft_vocab_size"]) if anew else drafter


def _resized(drafter: Drafter, size: int) -> Drafter:
    """The same weights under a draft vocabulary of another size."""
    other = type(drafter)(attrs.evolve(drafter.config, draft_vocab_size=size), drafter.target).to(drafter.target.device)
    weights = {key: value for key, value in drafter.named_parameters() if value.requires_grad}
    missing = other.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys and set(missing.missing_keys) <= {"d2t", "t2d"}
    other.spec, other.training_record = drafter.spec, drafter.training_record
    return other


def _say_coverage(vocabulary: Tensor, rollouts: Rollouts, vocab_size: int) -> None:
    """Print how much of the answers the draft vocabulary covers."""
    shares = [
        f"{coverage([rollouts.rows[i].response_ids for i in rows], vocabulary, vocab_size):.1%} of the {what}"
        for what, rows in (("answers", rollouts.split("train")), ("held-out ones", rollouts.split("val")))
        if rows
    ]
    console.print(f"draft vocabulary of {len(vocabulary)} covers {', '.join(shares)}")


def open_features(
    recipe: Recipe, target: Target, rollouts: Rollouts, taps: tuple[int, ...]
) -> FeatureCache | OnlineFeatures:
    """Cached or online features, as the recipe says."""
    if recipe.data.features == "online":
        return OnlineFeatures(target, rollouts, taps, recipe.data.max_length, recipe.data.precision)
    cache = expand_path(recipe.data.cache)
    return open_cache(target, rollouts, taps, recipe.data.max_length, cache, recipe.data.precision)


def start(recipe: Recipe, drafter: Drafter, trainer: Trainer) -> None:
    """Give a fresh run its first weights, where the drafter does not have them from a checkpoint."""
    if recipe.init.fc == "ridge":
        if not isinstance(drafter, Eagle3Body):
            raise UsageError(
                f'recipe [init]: fc = "ridge" needs an EAGLE-3 body, and {drafter.spec} has none; leave it out.'
            )
        order = torch.randperm(len(trainer.indices), generator=torch.Generator().manual_seed(recipe.run.seed)).tolist()
        ridge_start(drafter, (trainer.source.document(trainer.indices[i]) for i in order), recipe.init.ridge_rows)
