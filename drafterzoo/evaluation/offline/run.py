"""`evaluate`: drafters at budgets on rollouts that the target has already given, cell by cell, without decoding.

Knows rollout files, drafters by their public surface, the two ways of counting rounds and the results directory;
nothing of any particular drafter. A batch of rollouts is read by the target once, then every cell is computed on it;
each (batch, cell) is written when it is done, so that the same call goes on where it was stopped.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch

from drafterzoo.budget import Budget
from drafterzoo.catalogue import composition
from drafterzoo.disk import check_folder
from drafterzoo.drafters.base import Drafter
from drafterzoo.engine.replay import check_replayable, parts_of
from drafterzoo.errors import DataError, UsageError
from drafterzoo.evaluation.conditions import code, drafter_conditions, machine, target_conditions
from drafterzoo.evaluation.contenders import bind, budgets_of, listed, row_name
from drafterzoo.evaluation.offline.expected import expected_rounds
from drafterzoo.evaluation.offline.lines import Line, LinesFile, key_of
from drafterzoo.evaluation.offline.replay import integer_rounds
from drafterzoo.evaluation.offline.selection import Convention, Rule, Selection, check_asked, select
from drafterzoo.evaluation.offline.summary import grids, summarise
from drafterzoo.evaluation.offline.teacher import Lesson, agreement, check_length, teach
from drafterzoo.evaluation.tables import drawn, short_budget
from drafterzoo.progress import progress
from drafterzoo.target.target import Target
from drafterzoo.training.rollouts import expand_path, read_rollouts
from drafterzoo.wording import quantity, verb

if TYPE_CHECKING:
    from rich.console import Group

ROOT = Path("runs")  # of directories that nobody has named
TOKENS_AT_ONCE = 4096  # padded tokens of a batch: bounds features, hidden states and masks
AGREEING = 0.9  # of the first tokens looked at; rounding costs far less than this


@attrs.frozen(eq=False)
class EvaluateResult:
    """What an evaluation found. summary is a plain dict, directory holds the lines it was computed from."""

    summary: dict[str, Any]
    directory: Path

    def table(self) -> Group:
        """The tables as a rich renderable: `rich.print(result.table())`."""
        return drawn(grids(self.summary), self.summary["conditions"]["drafters"])

    def markdown(self) -> str:
        """The same tables in Markdown."""
        return "\n".join(grid.markdown() for grid in grids(self.summary))


def evaluate(
    drafters: str | Drafter | Sequence[str | Drafter],
    rollouts: str | os.PathLike[str],
    *,
    budget: str | int | Budget | Sequence[str | int | Budget] | None = None,
    rule: Rule = "match",
    split: str | None = None,
    limit: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    coupled: bool = True,
    start: str = "prefill",
    boundary: str = "last",
    batch_size: int = 16,
    target: Target | str | None = None,
    out: str | os.PathLike[str] | None = None,
    show_progress: bool = False,
) -> EvaluateResult:
    """Count the rounds that drafters would need for answers that the target has already given; nothing is decoded.

    drafters: specs, addresses or loaded drafters, the first being what the others are compared with. rollouts: a file
    of `drafterzoo rollout`. budget: one or several ("chain:4", 24, Budget); without it the drafters' own.

    rule "match" replays the very rounds that decoding makes (greedy, or drawn with the recorded noise), for every
    drafter and budget; "rejection" gives the expected rounds of chains whose drafts are drawn from q, exactly, by the
    dynamic programme of EDR (arXiv 2610.10411), with both of its estimators.

    split, limit, temperature, top_p, top_k: which rows; None takes all, which must have been drawn alike. coupled: let
    drafters rank with the noise the rows were drawn with (`match` above temperature 0). start, boundary: see
    Convention; the defaults count as the engine does. batch_size: rollouts computed together. out: the results
    directory, by default one under `runs` that the same call finds again; it goes on where it stopped.

    Raises UsageError, DataError, CheckpointError or DiskError before anything is computed; DataError when the rollouts
    turn out not to be the target's, and DiskError when the disk fills up.
    """
    given = listed(drafters)
    convention = Convention(start, boundary)  # type: ignore[arg-type]  # what it is for: refusing other words
    if rule not in ("match", "rejection"):
        raise UsageError(f"evaluate: rule is {rule!r}, expected 'match' or 'rejection'.")
    if batch_size < 1:
        raise UsageError(f"evaluate: batch_size is {batch_size}, expected at least 1.")
    if limit is not None and limit < 1:
        raise UsageError(f"evaluate: limit is {limit}, expected at least 1; leave it out for all rows.")
    check_asked(temperature, top_p, top_k)
    file = expand_path(str(rollouts))
    if file.is_dir():
        raise DataError(
            f"{file} is a folder, expected a file of rollouts; name one, as `drafterzoo rollout` writes it."
        )
    if not file.is_file():  # said before anything is loaded
        raise DataError(f"{file}: no such file; make one with `drafterzoo rollout starter {file.name}`.")
    _check_drafters(given)
    place = Path(out) if out is not None else ROOT
    check_folder(place, f"{place}: results")
    loaded, bound = bind("evaluate", given, target)
    chosen = select(
        read_rollouts(file, bound.vocab_size),
        split=split,
        limit=limit,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        rule=rule,
        coupled=coupled,
    )
    budgets = _budgets(budget, list(loaded.values()), rule)
    run = Evaluation(bound, loaded, budgets, chosen, convention, batch_size)
    run.check()
    conditions = run.conditions(split, limit)
    directory = Path(out) if out is not None else default_directory(chosen.rollouts.path, conditions)
    with LinesFile(directory, conditions) as lines:
        summary = run.measure(lines, show_progress)
    return EvaluateResult(summary, directory)


def default_directory(rollouts: Path, conditions: dict[str, Any], root: Path = ROOT) -> Path:
    """`runs/evaluate-<rollouts>-<key>`: the same for the same conditions, so that the same call goes on."""
    return root / f"evaluate-{rollouts.stem}-{key_of(conditions)[:8]}"


def _check_drafters(given: Sequence[str | Drafter]) -> None:
    """Raise UsageError for what there is nothing to evaluate of, and for what a text does not decide."""
    if not given:
        raise UsageError("evaluate: no drafter is given; name at least one, for example eagle3.1 or lookup.")
    if "none" in given:
        raise UsageError("evaluate: plain decoding ('none') drafts nothing to evaluate; its MAL is 1.")
    for one in given:
        parts = composition(one) if isinstance(one, str) else parts_of(one)
        check_replayable("evaluate", row_name(one), parts)


def _budgets(given: Any, drafters: Sequence[Drafter], rule: Rule) -> list[Budget]:
    """The budgets every drafter is evaluated at, without doubles. Raises UsageError for trees under `rejection`."""
    own = [Budget.chain(4)] if rule == "rejection" else [drafter.budget for drafter in drafters]
    found = budgets_of("evaluate", given, own)
    for budget in found:
        if rule == "rejection" and budget != Budget.chain(budget.nodes):
            early = "ends its drafts early" if budget.ends_early else "drafts deeper"
            what = early if budget.is_chain else "is a tree"
            raise UsageError(
                f"evaluate: rule 'rejection' counts the rounds of chains of one length, and {budget.brief} {what}; "
                f"give chain:4, or the rule 'match'."
            )
    return found


@attrs.define(eq=False)
class Evaluation:
    """What is asked, resolved: the cells, the rows, and how they are counted."""

    target: Target
    drafters: dict[str, Drafter]
    budgets: list[Budget]
    chosen: Selection
    convention: Convention
    batch_size: int

    def check(self) -> None:
        """Raise DataError for a rollout that the target cannot have given, or that cannot be counted."""
        for number in self.chosen.rows:
            row, where = self.chosen.row(number), f"{self.chosen.rollouts.path}: rollout {number}"
            check_length(row.ids, self.target, where)
            if self.convention.start == "prompt" and len(row.prompt_ids) < 2:
                raise DataError(
                    f"{where} has a prompt of one token, before which there is nothing to draft from; "
                    f"count with start='prefill', or leave that row out."
                )

    def conditions(self, split: str | None, limit: int | None) -> dict[str, Any]:
        """The contents of conditions.json."""
        chosen, sampling = self.chosen, self.chosen.sampling
        return {
            "kind": "evaluate",
            "target": target_conditions(self.target),
            "rollouts": {
                "name": chosen.rollouts.path.name,
                "sha256": chosen.rollouts.sha256,
                "split": split,
                "limit": limit,
                "rows": len(chosen.rows),
                "prompts": len({chosen.prompt(number) for number in chosen.rows}),
                "seen_in_training": sum(chosen.row(number).split == "train" for number in chosen.rows),
                "noise_known": chosen.known,
            },
            "sampling": {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "coupled": sampling.coupled,
                "rule": sampling.verification,
            },
            "convention": attrs.asdict(self.convention),
            "run": {"batch_size": self.batch_size},
            "machine": machine(self.target.device),
            "code": code(),
            "drafters": {name: drafter_conditions(drafter) for name, drafter in self.drafters.items()},
            "budgets": [str(budget) for budget in self.budgets],
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def measure(self, file: LinesFile, show_progress: bool = False) -> dict[str, Any]:
        """Compute what the file lacks, batch by batch, and write the summary."""
        done = {(line.drafter, line.budget, line.rollout) for line in file.done}
        cells = [(name, budget) for budget in self.budgets for name in self.drafters]
        total = len(self.chosen.rows) * len(cells)
        title = (
            f"{self.chosen.rollouts.path.name}: {quantity(len(self.chosen.rows), 'rollout')}, "
            f"{quantity(len(cells), 'row')}"
        )
        are = verb(len(done), "is", "are")
        title += f"; {len(done)} of {quantity(total, 'figure')} {are} there already" if done else ""
        checked, batches = bool(done), self.chosen.batches(self.batch_size, TOKENS_AT_ONCE)
        with progress(title, total, "figures", len(done)) if show_progress else nullcontext(None) as bar:
            for place, batch in enumerate(batches, start=1):
                missing = {
                    cell: {number for number in batch if (cell[0], str(cell[1]), number) not in done} for cell in cells
                }
                if not any(missing.values()):
                    continue
                lesson = self._teach(batch)
                if not checked:
                    self._check_origin(lesson, batch)
                    checked = True
                said = f"{quantity(len(batch), 'rollout')}, batch {place} of {len(batches)}"
                for (name, budget), lacking in missing.items():
                    if lacking:
                        if bar is not None:
                            bar.remark(f"{name} {short_budget(str(budget))} on {said}")
                        found = self.lines(name, budget, batch, lesson)
                        file.append([line for line in found if line.rollout in lacking])
                        if bar is not None:
                            bar(len(lacking))
        summary = summarise(file.done, file.conditions, rollouts=len(self.chosen.rows))
        file.finish(summary)
        return summary

    @torch.inference_mode()
    def _teach(self, batch: Sequence[int]) -> Lesson:
        stops = self.target.eos_token_ids
        recordings = [self.convention.recording(self.chosen.row(number), stops) for number in batch]
        taps = sorted({tap for drafter in self.drafters.values() for tap in drafter.taps})
        return teach(self.target, recordings, taps)

    def _check_origin(self, lesson: Lesson, batch: Sequence[int]) -> None:
        """Raise DataError when the first batch is plainly not what the target says."""
        sampling, keys = self.chosen.drawn(batch)
        if not self.chosen.known:
            return
        share = agreement(self.target, lesson, attrs.evolve(sampling, verification="match"), keys)
        if share < AGREEING:
            raise DataError(
                f"{self.chosen.rollouts.path}: {self.target.name} itself says only {share:.0%} of the tokens looked "
                f"at; were these rollouts made by another target, or drawn otherwise than they say?"
            )

    def lines(self, name: str, budget: Budget, batch: Sequence[int], lesson: Lesson) -> list[Line]:
        """One cell's lines on a batch of rollouts."""
        drafter, stops = self.drafters[name], self.target.eos_token_ids
        sampling, keys = self.chosen.drawn(batch)
        if sampling.verification == "rejection":
            figures = expected_rounds(drafter, budget.nodes, lesson, sampling, stops)
        else:
            figures = integer_rounds(drafter, budget, lesson, sampling, keys, stops)
        return [
            Line(
                cell=f"{name}@{budget}",
                drafter=name,
                budget=str(budget),
                rollout=number,
                prompt=self.chosen.prompt(number),
                category=self.chosen.row(number).source,
                **found,
            )
            for number, found in zip(batch, figures, strict=True)
        ]
