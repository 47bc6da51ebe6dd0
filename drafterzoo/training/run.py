"""From a recipe to a trained checkpoint: loads the target, builds the drafter, finds the data, runs the trainer.

Knows the order of these things, and says what it is about to do (sizes, coverage, steps); nothing of how a step is
taken.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeGuard

import attrs
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from drafterzoo import checkpoint
from drafterzoo.budget import Budget
from drafterzoo.catalogue import check_fingerprint, check_names, checkpoint_folder, list_checkpoints
from drafterzoo.composition import innermost, restore, wrap, wrap_as
from drafterzoo.disk import check_file, check_folder
from drafterzoo.drafters.base import WEIGHTLESS, Drafter
from drafterzoo.drafters.block_body import BlockBody
from drafterzoo.drafters.headed import HeadedDrafter
from drafterzoo.drafters.recurrent import RecurrentBody
from drafterzoo.engine import confidence
from drafterzoo.engine.coupling import collect, fit
from drafterzoo.engine.sampling import Sampling
from drafterzoo.errors import CheckpointError, DataError, UsageError, suggest
from drafterzoo.kinds import check_kinds, check_required
from drafterzoo.progress import console, progress
from drafterzoo.registry import DRAFTERS, WRAPPERS, Spec, parse_spec
from drafterzoo.target import load_target
from drafterzoo.target.target import Target
from drafterzoo.threads import with_threads
from drafterzoo.training.beginning import check_wrappers, made_with
from drafterzoo.training.block_ridge import block_ridge_start
from drafterzoo.training.features import ANOTHER, FeatureCache, OnlineFeatures, open_cache
from drafterzoo.training.generating import ANOTHER_ENTRY, ensure_rollouts
from drafterzoo.training.inherit import begin_as_layers
from drafterzoo.training.kept import read_kept
from drafterzoo.training.objectives.base import Objective
from drafterzoo.training.objectives.carryover import Carrying
from drafterzoo.training.objectives.ce import CrossEntropy
from drafterzoo.training.objectives.dspark import ThreeParts
from drafterzoo.training.objectives.e2e_tv import EndToEnd
from drafterzoo.training.objectives.hass import Hass
from drafterzoo.training.objectives.kl import Divergence
from drafterzoo.training.objectives.lk import Hybrid
from drafterzoo.training.objectives.pr import Reconsidering
from drafterzoo.training.objectives.ttt import TTT
from drafterzoo.training.objectives.tv import TotalVariation
from drafterzoo.training.recipe import DataSection, Recipe, build_recipe, kept_recipe, read_recipe
from drafterzoo.training.ridge import ridge_start
from drafterzoo.training.rollouts import OR_GENERATE, Rollout, Rollouts, expand_path, may_be_of, read_rollouts, thinned
from drafterzoo.training.state import STATE
from drafterzoo.training.trainer import Say, Trainer, check_same_recipe
from drafterzoo.training.vocabulary import coverage, frequent_ids
from drafterzoo.wording import quantity, verb
from drafterzoo.wrappers.carryover import Carryover
from drafterzoo.wrappers.pr import Reconsideration

ANOTHER_CACHE = f"free some space, or {ANOTHER}"
FINISHED = "summary.json"  # written last of all
COUPLING_TOKENS = 32  # of each answer the coupled score is fitted on: many prompts say more than long answers
OBJECTIVES: dict[str, type[Objective]] = {
    kind.called: kind for kind in (TTT, Hass, CrossEntropy, Divergence, TotalVariation, Hybrid, EndToEnd, ThreeParts)
}


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
    quiet: no remarks on stderr; the progress of long work is shown all the same.
    Raises UsageError (recipe), DataError (rollouts), CheckpointError, DiskError.
    """
    recipe = _read(recipe)
    say = (lambda text: None) if quiet else (lambda text: console.print(text, soft_wrap=True))
    objective = build_objective(recipe)
    drafter_class(recipe)
    folder = Path(out) if out else Path("runs") / (recipe.name or recipe.spec)
    check_beginning(recipe, folder)
    check_places(recipe, folder)
    summary = finished_summary(recipe, folder)
    if summary is not None:
        return TrainResult(summary, folder, already=True)
    check_same_recipe(recipe, folder)  # before hours are spent; asked again once the folder is held
    with with_threads(recipe.run.threads):
        return _train(recipe, objective, folder, say)


def _train(recipe: Recipe, objective: Objective, folder: Path, say: Say) -> TrainResult:
    """Load the target, read rollouts and features, and take the steps that are left."""
    torch.manual_seed(recipe.run.seed)
    target = load_target(recipe.target.name, revision=recipe.target.revision, dtype=getattr(torch, recipe.target.dtype))
    check_sizes(recipe, target)
    if recipe.generate is not None:
        ensure_rollouts(recipe.generate, target, expand_path(recipe.data.rollouts))
    rollouts = thinned(read_rollouts(recipe.data.rollouts, target.vocab_size, OR_GENERATE), recipe.data.documents)
    begun = _begun(recipe, folder)
    drafter = build_drafter(recipe, target, rollouts, begun)
    whole = extended(objective, drafter)
    whole.check(drafter)
    check_fits(recipe, drafter)
    if begun is not None and begun.parent != folder:
        drafter.training_record = {"began_with": drafter.training_record}
    trained = sum(p.numel() for p in drafter.parameters() if p.requires_grad)
    if drafter.vocabulary is not None:
        say(covered(drafter.vocabulary, rollouts, target.vocab_size))
    say(f"{drafter.spec} for {target.name}: {trained / 1e6:.2f} M trained parameters, objective {whole.called}")
    source = open_features(recipe, target, rollouts, drafter.taps)
    trainer = Trainer(recipe, drafter, whole, rollouts, source, folder, say)
    with alone(folder):
        return _run(recipe, trainer, say)


def check_fits(recipe: Recipe, drafter: Drafter) -> None:
    """Raise UsageError where temperatures are to be fitted of a confidence head that there is not."""
    if recipe.run.fit_confidence and "confidence" not in drafter.capabilities:
        raise UsageError(
            f"recipe [run]: fit_confidence is {recipe.run.fit_confidence}, but {drafter.spec} has no confidence head; "
            f"leave the key out, or train a drafter that has one, such as dspark."
        )


def check_sizes(recipe: Recipe, target: Target) -> None:
    """Raise UsageError where a recipe states another size than the target has."""
    stated = recipe.target.sizes
    for name in ("hidden_size", "num_layers", "vocab_size"):
        if stated is not None and getattr(stated, name) != getattr(target, name):
            raise UsageError(
                f"recipe [target.sizes]: {name} is {getattr(stated, name)}, but {target.name} has "
                f"{getattr(target, name)}; correct it, or name the target it belongs to."
            )


def check_places(recipe: Recipe, folder: Path) -> None:
    """Raise DiskError, before hours are spent, for a place where the run will write and cannot."""
    check_folder(folder, f"{folder}:", "free some space, or choose another --out")
    rollouts = expand_path(recipe.data.rollouts)
    if recipe.generate is not None and not rollouts.exists():
        check_file(rollouts, f"{rollouts}:", ANOTHER_ENTRY)
    if recipe.data.features != "online":
        cache = expand_path(recipe.data.cache)
        check_folder(cache, f"{cache}: the feature cache", ANOTHER_CACHE)


def check_beginning(recipe: Recipe, folder: Path) -> None:
    """Raise UsageError for a run that is to begin with what it writes itself."""
    if recipe.init.from_checkpoint is None:
        return
    begun = start_of(recipe.init.from_checkpoint)
    if begun.resolve().is_relative_to(folder.resolve()):
        raise UsageError(
            f"recipe [init]: from_checkpoint is {begun}, which lies in {folder}, the run's own folder; give another "
            f"folder with --out."
        )


def start_of(from_checkpoint: str) -> Path:
    """Where it lies, even with a variable that is not set: a run that has saved goes on without what it began with.

    The name of a checkpoint that comes with drafterzoo stands for its folder.
    """
    if from_checkpoint in list_checkpoints():
        return checkpoint_folder(from_checkpoint)
    return Path(os.path.expanduser(os.path.expandvars(from_checkpoint)))


def _begun(recipe: Recipe, folder: Path) -> Path | None:
    """The checkpoint a run continues from: its own once it has saved one, so that [init]'s may move or change."""
    if recipe.init.from_checkpoint is None:
        return None
    own = folder / "last"
    if (own / STATE).is_file():
        return own
    if recipe.init.from_checkpoint in list_checkpoints():
        return start_of(recipe.init.from_checkpoint)
    return expand_path(recipe.init.from_checkpoint)


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
        for place in (folder, folder / "last", folder / "best"):
            checkpoint.clear_partials(place)
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
    documents, steps = quantity(len(trainer.indices), "document"), quantity(trainer.total, "step")
    say(f"{documents}, {len(trainer.held_out)} held out, {steps}, into {folder}")
    if left_out := trainer.left_out:
        show, are = verb(left_out, "shows", "show"), verb(left_out, "is", "are")
        say(f"{left_out} more {show} no two tokens of an answer within {recipe.data.max_length}, and {are} left out")
    if not trainer.held_out:
        say('no row has split "val": tau will not be measured, and `best` will be the last step')
    summary = trainer.train()
    if summary["finished"] and recipe.run.fit_coupling:
        summary["coupling"] = couple(recipe, drafter.target, trainer.rollouts, folder / "best", say)
    if summary["finished"] and recipe.run.fit_confidence:
        summary["confidence"] = calibrate(recipe, drafter.target, trainer.rollouts, folder / "best", say)
    if summary["finished"]:
        kept = {"recipe": _whole(recipe), "summary": summary}
        checkpoint.write_whole(folder / FINISHED, json.dumps(kept, indent=2).encode())
    return TrainResult(summary, folder)


def finished_summary(recipe: Recipe, folder: Path) -> dict[str, Any] | None:
    """The summary of a run of exactly this recipe that has done all there is to do; None where something is left.

    That is so, too, where its summary or its best checkpoint is damaged, or was made from other rollouts.
    """
    kept = read_kept(folder / FINISHED) or {}
    began, summary = kept_recipe(kept.get("recipe")), kept.get("summary")
    if began is None or _whole(began) != _whole(recipe) or not _is_summary(summary, recipe):
        return None
    try:
        best = checkpoint.read(folder / "best")
    except CheckpointError:
        return None
    if not _same_rollouts(recipe.data, best.config.get("training", {}).get("rollouts_sha256")):
        return None
    return {**summary, "directory": str(folder)}


def _is_summary(summary: Any, recipe: Recipe) -> TypeGuard[dict[str, Any]]:
    """Whether this is what a finished run wrote of itself, with all that is said and shown of it."""
    if not isinstance(summary, dict) or not isinstance(best := summary.get("best"), dict):
        return False
    whole = (summary.get("step"), summary.get("of"), summary.get("rows_visited"), best.get("step"))
    numbers = (summary.get("training_seconds"), best.get("tau"))
    return (
        summary.get("finished") is True
        and all(type(number) is int for number in whole)
        and all(type(number) in (int, float) for number in numbers)
        and (isinstance(summary.get("coupling"), list) or not recipe.run.fit_coupling)
        and (isinstance(summary.get("confidence"), dict) or not recipe.run.fit_confidence)
    )


def _same_rollouts(data: DataSection, sha256: str | None) -> bool:
    """Whether the rollouts are those of this sha256; a file that is gone since is no reason to doubt it."""
    try:
        whole = hashlib.sha256(expand_path(data.rollouts).read_bytes()).hexdigest()
        return may_be_of(sha256, whole, data.documents)
    except FileNotFoundError:
        return True
    except OSError:
        return False


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
    drafter = restore(saved, target)
    bare = innermost(drafter)
    rows = [rollouts.rows[i] for i in rollouts.split("train")]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(recipe.run.seed)).tolist()
    with progress("fitting the coupled score", recipe.run.fit_coupling, "roots") as noted:
        samples = collect(
            drafter,
            target,
            _prompts([rows[i] for i in order], target),
            Sampling(temperature=1.0, seed=recipe.run.seed),
            max_new_tokens=COUPLING_TOKENS,
            limit=recipe.run.fit_coupling,
            noted=noted,
        )
    fitted, roots = fit(samples).coupling, len(samples.choices)  # fewer than asked for where the prompts ran out
    if min(fitted.prior, fitted.noise) < 1e-4:  # they are kept to four places
        kept = list(bare.config.coupling)
        said = f"a fit on {quantity(roots, 'root')} gives none above zero"
        say(f"coupling weights stay {kept}: {said}; train longer, or on more")
        return kept
    bare.config = attrs.evolve(bare.config, coupling=(round(fitted.prior, 4), round(fitted.noise, 4)))
    drafter.save_pretrained(folder)
    say(f"coupling weights {list(bare.config.coupling)} fitted on {quantity(roots, 'root')}")
    return list(bare.config.coupling)


def _prompts(rows: Sequence[Rollout], target: Target) -> list[list[int]]:
    """The prompts of these rows that leave room for an answer."""
    most = target.max_positions - COUPLING_TOKENS
    return [list(row.prompt_ids) for row in rows if len(row.prompt_ids) <= most]


def calibrate(recipe: Recipe, target: Target, rollouts: Rollouts, folder: Path, say: Say) -> dict[str, Any]:
    """Fit the confidence temperatures of the checkpoint in `folder` on held-out prompts, and save them there.

    At temperature 1 under `rejection`, whose acceptance the head is trained to foretell. Returns what engine/confidence
    found. Training prompts serve where none is held out.
    """
    saved = checkpoint.read(folder)
    drafter = restore(saved, target)
    bare = innermost(drafter)
    bare.config = attrs.evolve(bare.config, confidence_temperatures=())
    rows = [rollouts.rows[i] for i in rollouts.split("val") or rollouts.split("train")]
    with progress("fitting the confidence temperatures", recipe.run.fit_confidence, "rounds") as noted:
        trials = confidence.collect(
            drafter,
            target,
            _prompts(rows, target),
            Sampling(temperature=1.0, seed=recipe.run.seed, verification="rejection"),
            depth=bare.config.proposals,
            max_new_tokens=COUPLING_TOKENS,
            limit=recipe.run.fit_confidence,
            noted=noted,
        )
    if not len(trials.accepted):  # what was trained is kept, and the run is done
        say(
            "confidence temperatures stay 1: no answer has a round to fit them on; give longer answers, or more of them"
        )
        return {"rounds": 0}
    fitted = confidence.fit(trials)
    bare.config = attrs.evolve(bare.config, confidence_temperatures=fitted.temperatures)
    drafter.save_pretrained(folder)
    error = f"{fitted.error_before[-1]:.3f} to {fitted.error_after[-1]:.3f}"
    rounds = quantity(len(trials.accepted), "round")
    say(f"confidence temperatures {list(fitted.temperatures)} fitted on {rounds}; error at the last depth {error}")
    return {"rounds": len(trials.accepted), **json.loads(json.dumps(attrs.asdict(fitted)))}


def _read(recipe: str | Path | dict[str, Any] | Recipe) -> Recipe:
    if isinstance(recipe, Recipe):
        return recipe
    return build_recipe(recipe, "recipe") if isinstance(recipe, dict) else read_recipe(recipe)


def build_objective(recipe: Recipe) -> Objective:
    """The objective a recipe names. Raises UsageError naming the key."""
    name = recipe.objective.get("name", "ttt")
    if "name" not in recipe.objective:
        _check_unnamed(recipe.objective)
    if name not in list(OBJECTIVES):  # whatever it is: a list, too, may be asked for
        raise UsageError(
            f"recipe [objective]: unknown name {name!r}{suggest(str(name), OBJECTIVES)}; "
            f"there is {', '.join(OBJECTIVES)}."
        )
    check_kinds(OBJECTIVES[name], recipe.objective, "recipe [objective]")
    check_required(OBJECTIVES[name], recipe.objective, "recipe [objective]")
    return checkpoint.structure(OBJECTIVES[name], recipe.objective, "recipe [objective]", UsageError)


def _check_unnamed(given: dict[str, Any]) -> None:
    """Raise UsageError for a key that the objective meant where none is named has not, and another has."""
    for key in given:
        having = [name for name, kind in OBJECTIVES.items() if key in {field.name for field in attrs.fields(kind)}]
        if having and "ttt" not in having:
            raise UsageError(
                f"recipe [objective]: {key!r} is a key of {' and '.join(map(repr, having))}, and without a name "
                f"the objective is 'ttt'; add name = {having[0]!r}."
            )


def extended(objective: Objective, drafter: Drafter) -> Objective | Reconsidering | Carrying:
    """The objective with what the drafter's wrappers add to it."""
    if isinstance(drafter, Carryover):
        return Carrying(objective)
    return Reconsidering(objective) if isinstance(drafter, Reconsideration) else objective


def drafter_class(recipe: Recipe) -> tuple[type[Drafter], dict[str, Any]]:
    """The drafter that a recipe trains, without its wrappers, and the options it is given.

    Raises UsageError; nothing is loaded for it.
    """
    spec = parse_spec(recipe.spec)
    check_names(spec)
    cls = DRAFTERS.get(spec.base)
    if not issubclass(cls, Drafter) or not cls.has_weights:
        raise UsageError(
            f"recipe: spec {recipe.spec!r} cannot be trained; give a drafter that has weights, for example 'eagle3.1'."
        )
    options = {**spec.options, **recipe.drafter}
    check_kinds(cls.Config, options, "recipe [drafter]")
    for name, given in spec.wrappers:
        check_kinds(WRAPPERS.get(name).Config, given, f"recipe spec {recipe.spec!r}, {name}")
    return cls, options


def build_drafter(recipe: Recipe, target: Target, rollouts: Rollouts, begun: Path | None = None) -> Drafter:
    """The drafter of a recipe: with random weights and its draft vocabulary chosen, or as the checkpoint `begun` is.

    Raises UsageError, and CheckpointError for a checkpoint that is damaged or another target's.
    """
    cls, options = drafter_class(recipe)
    starts = begun is not None and begun == start_of(str(recipe.init.from_checkpoint))  # else a run that goes on
    anew = begun is None or (recipe.init.vocabulary == "anew" and starts)
    if begun is None:
        drafter = cls.create(target, **options)
    else:
        drafter = _continued(recipe, cls, options, target, begun, starts=starts)
    if anew and isinstance(drafter, HeadedDrafter) and drafter.vocabulary is not None:
        answers = [rollouts.rows[i].response_ids for i in rollouts.split("train")]
        drafter.set_vocabulary(
            frequent_ids(answers, drafter.config.draft_vocab_size, target.vocab_size, target.eos_token_ids)
        )
    whole = _wrapped(drafter, parse_spec(recipe.spec), begun)
    whole.budget = Budget.parse(recipe.budget)
    for part in (drafter, whole):
        part.storage_dtype = getattr(torch, recipe.run.storage)
    return whole


def _wrapped(drafter: Drafter, spec: Spec, begun: Path | None) -> Drafter:
    """The recipe's wrappers around its drafter: those of the checkpoint it begins with, or new where that has none.

    Raises UsageError when the checkpoint has others.
    """
    saved = None if begun is None else checkpoint.read(begun)
    if saved is None or begun is None or not saved.config.get("wrappers"):
        return wrap(drafter, spec)
    check_wrappers(spec, saved.config, begun)
    return wrap_as(drafter, saved)


def _continued(
    recipe: Recipe, cls: type[Drafter], options: dict[str, Any], target: Target, folder: Path, *, starts: bool
) -> Drafter:
    """The checkpoint's drafter, to be trained on.

    starts: a fresh run, with room for another draft vocabulary, which is not set yet, and with more layers, as its
    [init] says. Raises UsageError when the recipe asks for another drafter.
    """
    saved = checkpoint.read(folder)
    made = made_with(recipe, cls, options, saved.config, folder, starts=starts)
    check_fingerprint(saved.config["target"], target, folder)
    drafter = innermost(restore(saved, target))
    made |= {key: options[key] for key in WEIGHTLESS if key in options}
    drafter.config = checkpoint.structure(cls.Config, made, "recipe [drafter]", UsageError)
    if starts and recipe.init.layers == "more":
        drafter = _deepened(drafter, options.get("num_layers", made["num_layers"]))
    if not starts or recipe.init.vocabulary == "kept":
        return drafter
    return _resized(drafter, options.get("draft_vocab_size", made["draft_vocab_size"]))


def _resized(drafter: Drafter, size: int) -> Drafter:
    """The same weights under a draft vocabulary of another size."""
    other = type(drafter)(attrs.evolve(drafter.config, draft_vocab_size=size), drafter.target).to(drafter.target.device)
    weights = {key: value for key, value in drafter.named_parameters() if value.requires_grad}
    other.load_state_dict({**other.state_dict(), **weights})  # the maps stay its own, until ids are chosen
    other.spec, other.training_record = drafter.spec, drafter.training_record
    return other


def _deepened(drafter: Drafter, layers: int) -> Drafter:
    """The same function under more layers: each of those adds nothing to its residual until it is trained."""
    other = type(drafter)(attrs.evolve(drafter.config, num_layers=layers), drafter.target).to(drafter.target.device)
    kept = drafter.state_dict()
    silent = {
        key: torch.zeros_like(value)
        for key, value in other.state_dict().items()
        if key not in kept and key.rpartition(".")[0].endswith(("o_proj", "down_proj"))
    }
    other.load_state_dict({**other.state_dict(), **silent, **kept})
    if isinstance(other, HeadedDrafter):
        other.borrow()  # the rows of the target's head that the vocabulary now names
    other.spec, other.training_record = drafter.spec, drafter.training_record
    return other


def covered(vocabulary: Tensor, rollouts: Rollouts, vocab_size: int) -> str:
    """How much of the answers the draft vocabulary covers, in a sentence."""
    shares = [
        f"{coverage([rollouts.rows[i].response_ids for i in rows], vocabulary, vocab_size):.1%} of the {what}"
        for what, rows in (("answers", rollouts.split("train")), ("held-out ones", rollouts.split("val")))
        if rows
    ]
    return f"draft vocabulary of {len(vocabulary)} covers {', '.join(shares)}"


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
    if recipe.init.target_layers:
        bare = innermost(drafter)
        if not isinstance(bare, BlockBody):
            raise UsageError(
                f"recipe [init]: target_layers is for block drafters, whose layers are like a target's, and "
                f"{drafter.spec} is none; leave it out."
            )
        begin_as_layers(bare, recipe.init.target_layers)
    if recipe.init.fc == "ridge":
        bare = innermost(drafter)
        order = torch.randperm(len(trainer.indices), generator=torch.Generator().manual_seed(recipe.run.seed)).tolist()
        documents = (trainer.source.document(trainer.indices[i]) for i in order)
        if isinstance(bare, BlockBody):
            block_ridge_start(bare, documents, recipe.init.ridge_rows, seed=recipe.run.seed)
        elif isinstance(bare, RecurrentBody):
            ridge_start(bare, documents, recipe.init.ridge_rows)
        else:
            raise UsageError(
                f'recipe [init]: fc = "ridge" needs a drafter with an fc, and {drafter.spec} has none; leave it out.'
            )
