"""The training loop: steps of an objective over rollouts, real decodes in between, checkpoints that resume exactly.

Knows recipes, batches, an objective and the optimiser; nothing of any drafter's network or of how a checkpoint is laid
out. A run is a folder:

    recipe.json     what is being trained, checked when the run is resumed
    log.jsonl       one line per `log_every` steps and per decode
    last/           everything needed to go on bit by bit: state.pt, and the native checkpoint of the averaged weights
    best/           the native checkpoint with the best tau so far
    summary.json    what the run has come to, and its recipe; written by run.py when nothing is left to do
"""

from __future__ import annotations

import copy
import json
import math
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import attrs
import torch
from torch import Tensor

from drafterzoo import checkpoint
from drafterzoo.budget import Budget
from drafterzoo.composition import restore
from drafterzoo.drafters.base import Drafter
from drafterzoo.errors import CheckpointError, DataError, UsageError
from drafterzoo.parsing import parse_json
from drafterzoo.progress import progress
from drafterzoo.training.batches import pack, packs
from drafterzoo.training.features import FeatureCache, OnlineFeatures
from drafterzoo.training.kept import read_kept
from drafterzoo.training.objectives.base import Objective, PassNotes, TeacherHead
from drafterzoo.training.objectives.carryover import Carrying
from drafterzoo.training.objectives.pr import Reconsidering
from drafterzoo.training.recipe import OptimizerSection, Recipe, kept_recipe
from drafterzoo.training.rollouts import Rollouts
from drafterzoo.training.state import STATE, damaged, read_state, write_state

Say = Callable[[str], None]
RECIPE, LOG = "recipe.json", "log.jsonl"
NO_BEST: dict[str, Any] = {"tau": 0.0, "step": -1}
LEARNT_NOTHING = 1.05  # a tau below this, at the end of a run, is no more than chance


def learning_rate(section: OptimizerSection, step: int, total: int) -> float:
    """Linear warm-up over the first `warmup` share of steps, then a cosine to `final` times the peak at the last."""
    warm = max(1, round(section.warmup * total))
    if step < warm:
        return section.lr * (step + 1) / warm
    along = (step - warm) / max(1, total - warm)
    return section.lr * (section.final + (1 - section.final) * 0.5 * (1 + math.cos(math.pi * min(along, 1.0))))


def clip_gradients(parameters: Sequence[Tensor], section: OptimizerSection) -> Tensor:
    """Clip the gradients as the recipe says, and return their norm before that."""
    if section.clip_by == "norm":
        return torch.nn.utils.clip_grad_norm_(parameters, section.clip)
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    torch.nn.utils.clip_grad_value_(parameters, section.clip)
    return norm


@attrs.define
class Meter:
    """Sums between two lines of the log."""

    rows: int = 0
    seconds: float = 0.0
    sums: dict[int, list[list[float]]] = attrs.Factory(dict)  # of every level, per pass: loss, right, rows

    def add(self, rows: int, seconds: float, notes: list[PassNotes]) -> None:
        self.rows, self.seconds = self.rows + rows, self.seconds + seconds
        depth = Counter[int]()
        for note in notes:
            level = self.sums.setdefault(note.level, [])
            if depth[note.level] == len(level):
                level.append([0.0, 0, 0])
            sums = level[depth[note.level]]
            depth[note.level] += 1
            for index, value in enumerate((float(note.loss) * note.rows, int(note.right), note.rows)):
                sums[index] += value

    def line(self) -> dict[str, Any]:
        """Per pass: mean loss and the share of rows where the drafter's first choice is the target's.

        Of a wrapper's second thoughts, `loss_again` and `agree_again`.
        """
        line: dict[str, Any] = {}
        for level, passes in sorted(self.sums.items() or [(0, [])]):
            ending = "_again" if level else ""
            line[f"loss{ending}"] = [round(loss / max(rows, 1), 4) for loss, _, rows in passes]
            line[f"agree{ending}"] = [round(right / max(rows, 1), 4) for _, right, rows in passes]
        return {**line, "rows_per_s": round(self.rows / max(self.seconds, 1e-9), 1)}


def _remark(line: dict[str, Any]) -> str:
    """A line of the log as a person reads it beside the bar."""
    keys = [key for key in ("loss", "agree", "agree_again") if key in line]
    said = " ".join(f"{key.replace('_', ' ')} {' '.join(f'{x:.2f}' for x in line[key])}" for key in keys)
    return f"step {line['step']}/{line['of']} {said} {line['rows_per_s']:,.0f} rows/s"


def _step_of(line: bytes) -> float:
    """The step that a line of the log tells of; infinity for one that was cut short."""
    try:
        return int(parse_json(line.decode("utf-8"))["step"]) if line.endswith(b"\n") else math.inf
    except (ValueError, TypeError, KeyError):
        return math.inf


class Trainer:
    """One run of a recipe. `train()` goes from wherever the run stands to the end, or to Ctrl-C."""

    def __init__(
        self,
        recipe: Recipe,
        drafter: Drafter,
        objective: Objective | Reconsidering | Carrying,
        rollouts: Rollouts,
        source: FeatureCache | OnlineFeatures,
        folder: Path,
        say: Say,
    ) -> None:
        self.recipe, self.drafter, self.objective, self.folder, self.say = recipe, drafter, objective, folder, say
        self.rollouts, self.source = rollouts, source
        # Of a row cut before its answer's second token there is nothing to learn.
        self.lengths = [min(len(row.ids), recipe.data.max_length) for row in rollouts.rows]
        trained_on = rollouts.split("train")
        self.indices = [i for i in trained_on if self.lengths[i] > len(rollouts.rows[i].prompt_ids) + 1]
        self.left_out = len(trained_on) - len(self.indices)
        self.held_out = rollouts.split("val")
        if not self.indices:
            raise DataError(
                f'{rollouts.path}: no row of split "train" shows two tokens of its answer within max_length = '
                f"{recipe.data.max_length} tokens ({self.left_out} do not); at least one is needed to train on."
            )
        seed = recipe.run.seed
        self.generator = torch.Generator().manual_seed(seed)
        self.parameters = [p for p in drafter.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=recipe.optimizer.lr,
            betas=recipe.optimizer.betas,
            weight_decay=recipe.optimizer.weight_decay,
            fused=True,
        )
        self.average: list[Tensor] = [p.detach().clone() for p in self.parameters]
        self.step = 0
        self.visited = 0
        self.trained_seconds = 0.0
        self.best = NO_BEST
        self.stopping = False
        self._epochs: dict[int, list[list[int]]] = {}

    # -- what is done in which step ----------------------------------------------------------------------------

    def _epoch(self, epoch: int) -> list[list[int]]:
        if epoch not in self._epochs:
            self._epochs = {
                epoch: packs(self.lengths, self.indices, self.recipe.data.pack, self.recipe.run.seed, epoch)
            }
        return self._epochs[epoch]

    @property
    def total(self) -> int:
        """Steps of the whole run. Epochs differ by a step or two in how they pack; the first sets the length of all."""
        first = len(packs(self.lengths, self.indices, self.recipe.data.pack, self.recipe.run.seed, 0))
        return max(1, round(first * self.recipe.run.epochs))

    def _schedule(self) -> Iterator[list[int]]:
        """Document indices of every step from the beginning of the run."""
        epoch = 0
        while True:
            yield from self._epoch(epoch)
            epoch += 1

    # -- the loop ----------------------------------------------------------------------------------------------

    def train(self) -> dict[str, Any]:
        """Train to the end and return the run's summary. Ctrl-C saves, and the same command goes on from there.

        Raises DataError when loss or gradient is no number, which spoils nothing that is saved, or nothing was learnt.
        """
        total, run = self.total, self.recipe.run
        teacher_head = TeacherHead.of(self.drafter)
        schedule = self._schedule()
        for _ in range(self.step):
            next(schedule)
        meter = Meter()
        with (
            self._interruptible(),
            progress(f"training {self.recipe.name or self.drafter.spec}", total, "steps", self.step) as bar,
        ):
            while self.step < total and not self.stopping:
                started = time.perf_counter()
                rows, notes = self._take_step(next(schedule), total, teacher_head)
                meter.add(rows, time.perf_counter() - started, notes)
                self.trained_seconds += time.perf_counter() - started
                self.step, self.visited = self.step + 1, self.visited + rows
                bar(1)
                if self.step % run.log_every == 0:
                    line = {"step": self.step, "of": total, **meter.line()}
                    self._log(line)
                    bar.remark(_remark(line))
                    meter = Meter()
                if self.step % self.recipe.evaluate.every == 0 and self.step < total:
                    self._evaluate()
                if self.step % run.save_every == 0:
                    self.save()
        self.save()  # the decode below takes a while, and may be interrupted
        if self.stopping:
            return self.summary()
        tau = self._evaluate()
        self.save()
        if tau is not None and tau < LEARNT_NOTHING:
            raise DataError(
                f"{self.folder}: tau is {tau:.2f} after the whole run, so the drafter has learnt nothing; "
                f"check that the rollouts were made by {self.drafter.target.name} (the checkpoint is kept)."
            )
        return self.summary()

    def _take_step(self, indices: list[int], total: int, teacher_head: TeacherHead) -> tuple[int, list[PassNotes]]:
        optimizer = self.recipe.optimizer
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(optimizer, self.step, total)
        passes = self.objective.draw_passes(self.step / total, self.generator)
        documents = [self.source.document(i) for i in indices]
        batch = pack(documents, self.recipe.data.anchors, self.generator).to(self.drafter.target.device)
        self.drafter.train()
        with torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=self.recipe.run.precision == "bfloat16"):
            loss, notes = self.objective.loss(self.drafter, batch, passes, teacher_head)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = clip_gradients(self.parameters, optimizer)
        self.optimizer.step()
        # Early on the average must forget the random start, hence the ramp.
        keep = min(optimizer.ema, (1 + self.step) / (10 + self.step)) if optimizer.ema else 0.0
        torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters], 1 - keep)
        if not math.isfinite(size := float(norm)):  # asked last, where the step's figures are waited for anyway
            raise DataError(
                f"{self.folder}: step {self.step + 1} has loss {float(loss.detach()):g} and a gradient of norm "
                f"{size:g}; check rollouts and features, or start anew with a lower lr (what was saved last is kept)."
            )
        return batch.tokens.numel(), notes

    def _log(self, line: dict[str, Any]) -> None:
        line = {**line, "visited": self.visited, "seconds": round(self.trained_seconds, 1)}
        path = self.folder / LOG
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise DataError(
                f"{path}: cannot be written ({error.strerror}); free some space, then the same command goes on from "
                f"the last save."
            ) from error

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Ctrl-C finishes the step at hand; a second one ends at once."""

        def stop(number: int, frame: FrameType | None) -> None:
            if self.stopping:
                raise KeyboardInterrupt
            self.stopping = True

        try:
            before = signal.signal(signal.SIGINT, stop)
        except ValueError:  # not the main thread: whoever runs us there stops us by other means
            yield
            return
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    # -- the real decode ---------------------------------------------------------------------------------------

    @contextmanager
    def averaged(self) -> Iterator[Drafter]:
        """The drafter with the averaged weights in place, for decoding and saving."""
        own = [p.detach().clone() for p in self.parameters]
        with torch.no_grad():
            for p, a in zip(self.parameters, self.average, strict=True):
                p.copy_(a)
        self.drafter.eval()
        try:
            yield self.drafter
        finally:
            with torch.no_grad():
                for p, o in zip(self.parameters, own, strict=True):
                    p.copy_(o)

    def _evaluate(self) -> float | None:
        """Decode held-out prompts for real, log tau, keep the best checkpoint.

        Returns tau; None where no prompts are held out, and `best` is the newest step.
        """
        section = self.recipe.evaluate
        chosen = self.held_out[:: max(1, len(self.held_out) // section.prompts)][: section.prompts]
        if not chosen:
            self.record()
            with self.averaged() as drafter:  # nothing tells which step is the best: the newest is kept
                drafter.save_pretrained(self.folder / "best")
            return None
        prompts = [list(self.rollouts.rows[i].prompt_ids) for i in chosen]
        self._look_at_best(prompts)
        with self.averaged() as drafter:
            tau = self._tau(drafter, prompts)
            better = tau > self.best["tau"]
            if better:
                self.best = {
                    "tau": tau,
                    "step": self.step,
                    "seconds": round(self.trained_seconds, 1),
                    "measured_with": self._measured_with(),
                }
                self.record()
                drafter.save_pretrained(self.folder / "best")
        self._log(
            {"step": self.step, "decode": section.budget, "tau": round(tau, 4), "prompts": len(prompts), "best": better}
        )
        self.say(
            f"step {self.step}: tau {tau:.3f} at {section.budget} on {len(prompts)} held-out prompts"
            + (" (best)" if better else "")
        )
        return tau

    def _look_at_best(self, prompts: list[list[int]]) -> None:
        """Forget a best checkpoint that is gone or damaged; measure one anew whose tau is of other settings."""
        if self.best["step"] < 0:
            return
        drafter, asked = self.drafter, self._measured_with()
        try:
            saved = checkpoint.read(self.folder / "best")
            if self.best.get("measured_with") == asked:
                return
            with torch.random.fork_rng(devices=[]):  # making a drafter draws weights, which are replaced
                best = restore(saved, drafter.target)
        except CheckpointError:
            self.best = NO_BEST
            return
        self.best = {**self.best, "tau": self._tau(best, prompts), "measured_with": asked}
        self.say(f"the best so far, of step {self.best['step']}, by the new [evaluate]: tau {self.best['tau']:.3f}")

    def _measured_with(self) -> dict[str, Any]:
        """What tau depends on besides the drafter: figures that differ in it say nothing about each other."""
        section = self.recipe.evaluate
        return {"budget": section.budget, "prompts": section.prompts, "max_new_tokens": section.max_new_tokens}

    def _tau(self, drafter: Drafter, prompts: list[list[int]]) -> float:
        from drafterzoo.generation import generate

        section = self.recipe.evaluate
        budget, longest = Budget.parse(section.budget), section.max_new_tokens
        return float(generate(drafter, prompts, budget=budget, max_new_tokens=longest, batch_size=1).tau)

    # -- saving and resuming -----------------------------------------------------------------------------------

    def record(self) -> None:
        """Note in the drafter what it was trained on, for the checkpoint's provenance."""
        earlier = {key: value for key, value in self.drafter.training_record.items() if key == "began_with"}
        measured = self.best.get("measured_with")  # by the recipe of then, whatever the one of now asks for
        self.drafter.training_record = {
            **earlier,
            "recipe": self.recipe.name,
            "objective": attrs.asdict(self.objective),
            "rollouts_sha256": self.rollouts.sha256,
            "documents": len(self.indices),
            "epochs": self.recipe.run.epochs,
            "seed": self.recipe.run.seed,
            "steps": self.step,
            "rows_visited": self.visited,
            "training_seconds": round(self.trained_seconds),
            "threads": torch.get_num_threads(),
            "held_out_tau": {measured["budget"]: round(self.best["tau"], 4)} if measured else {},
        }

    def save(self) -> None:
        """Write `last/`: the averaged weights as a checkpoint, and everything the run needs to go on exactly."""
        self.record()
        with self.averaged() as drafter:
            drafter.save_pretrained(self.folder / "last")
        write_state(self.folder / "last" / STATE, self._state())

    def _state(self) -> dict[str, Any]:
        """What the run needs besides its recipe and its data to go on exactly."""
        return {
            "step": self.step,
            "visited": self.visited,
            "seconds": self.trained_seconds,
            "best": self.best,
            "parameters": [p.detach() for p in self.parameters],
            "average": self.average,
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "torch_rng": torch.get_rng_state(),
        }

    def resume(self) -> bool:
        """Take up the run in `folder`, if there is one.

        Raises UsageError when it was started from another recipe or other rollouts, CheckpointError when it is damaged.
        """
        path = self.folder / "last" / STATE
        check_same_recipe(self.recipe, self.folder)
        checkpoint.write_whole(self.folder / RECIPE, json.dumps(describe(self.recipe), indent=2).encode())
        if not path.is_file():
            self._cut_log()
            return False
        self._check_rollouts()
        state = read_state(path, self._state())
        self.step, self.visited = state["step"], state["visited"]
        self.trained_seconds, self.best = state["seconds"], state["best"]
        with torch.no_grad():
            for p, saved in zip(self.parameters, state["parameters"], strict=True):
                p.copy_(saved)
        self.average = [a.to(p.device) for a, p in zip(state["average"], self.parameters, strict=True)]
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.generator.set_state(state["generator"])
        torch.set_rng_state(state["torch_rng"])
        self._cut_log()
        return True

    def _cut_log(self) -> None:
        """Take out of the log what a killed process wrote after the step at hand: those steps come again."""
        path = self.folder / LOG
        try:
            lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
        except OSError as error:
            raise DataError(
                f"{path}: cannot be read ({error.strerror}); mend its permissions, or delete it."
            ) from error
        kept = [line for line in lines if _step_of(line) <= self.step]
        if len(kept) < len(lines):
            checkpoint.write_whole(path, b"".join(kept))

    def _check_rollouts(self) -> None:
        """Refuse to go on with other rollouts than the run began with: its place in the data means nothing there."""
        began = checkpoint.read(self.folder / "last").config.get("training", {}).get("rollouts_sha256")
        if began != self.rollouts.sha256:
            raise UsageError(
                f"{self.rollouts.path}: not the rollouts that the run in {self.folder} began with (sha256 {began}); "
                f"put those back, or choose another folder with --out."
            )

    def summary(self) -> dict[str, Any]:
        """What the run has come to, as plain values."""
        return {
            "directory": str(self.folder),
            "step": self.step,
            "of": self.total,
            "finished": self.step >= self.total and not self.stopping,  # stopped in its last step, it lacks a decode
            "rows_visited": self.visited,
            "training_seconds": round(self.trained_seconds, 1),
            "best": self.best,
        }


def check_same_recipe(recipe: Recipe, folder: Path) -> None:
    """Raise UsageError where the folder holds a run of another recipe; nothing is loaded to find out.

    Raises CheckpointError where what the run says of its recipe is damaged.
    """
    kept = folder / RECIPE
    if not kept.is_file():
        return
    began = kept_recipe(read_kept(kept))
    if began is None:
        raise damaged(kept)
    if describe(began) != describe(recipe):
        raise UsageError(
            f"{folder}: holds a run of another recipe, which differs in "
            f"{', '.join(_differing(describe(began), describe(recipe)))}; choose another folder with --out, "
            f"or delete this one."
        )


def _differing(one: dict[str, Any], other: dict[str, Any], at: str = "") -> list[str]:
    """The keys, with their sections, in which two recipes differ."""
    found = []
    for key in sorted({*one, *other}):
        a, b = one.get(key), other.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found += _differing(a, b, f"{at}{key}.")
        elif a != b:
            found.append(f"{at}{key}")
    return found


def describe(recipe: Recipe) -> dict[str, Any]:
    """The recipe as plain values: what must not change between a run and its resumption."""
    values = attrs.asdict(recipe)
    # How often to look and to save may change in mid-run; nothing of it touches the weights.
    values.pop("evaluate")
    # [generate] says how a missing file of rollouts is made, not what is in the one that exists, which may have other
    # origins and is never made again. What must stay the same is that file, and `resume` compares its sha256.
    values.pop("generate")
    for key in ("save_every", "log_every", "threads", "fit_coupling", "fit_confidence", "storage"):
        values["run"].pop(key)
    return json.loads(json.dumps(values))
