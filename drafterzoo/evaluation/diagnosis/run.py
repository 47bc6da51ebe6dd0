"""`diagnose`: why a drafter's tokens are rejected, on greedy answers that the target has already given.

Knows rollout files, drafters by their public surface and the folder of a diagnosis; nothing of any particular drafter
or of how a figure is drawn. The folder: diagnosis.json, and every figure as PNG and SVG.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from drafterzoo.disk import writing
from drafterzoo.drafters.base import Drafter
from drafterzoo.engine.replay import Recording
from drafterzoo.errors import DataError, UsageError
from drafterzoo.evaluation.conditions import code, drafter_conditions, machine, target_conditions
from drafterzoo.evaluation.contenders import bind
from drafterzoo.evaluation.diagnosis.figures import pictures
from drafterzoo.evaluation.diagnosis.folder import MOST_BINS, MOST_DEPTH, check_place, conditions_line, write
from drafterzoo.evaluation.diagnosis.summary import grids, summarise
from drafterzoo.evaluation.diagnosis.tokens import check_drafter, drafted, joined
from drafterzoo.evaluation.offline.lines import key_of
from drafterzoo.evaluation.offline.teacher import check_length, teach
from drafterzoo.evaluation.report.canvas import check_matplotlib, for_files
from drafterzoo.evaluation.results import write_whole
from drafterzoo.evaluation.tables import drawn
from drafterzoo.progress import progress
from drafterzoo.target.target import Target
from drafterzoo.training.rollouts import Rollouts, read_rollouts
from drafterzoo.wording import quantity

if TYPE_CHECKING:
    from rich.console import Group

MOST_AT_ONCE = 4096  # answers: beyond, a slip of the keyboard


@attrs.frozen(eq=False)
class Diagnosis:
    """What a diagnosis found. summary is a plain dict, directory holds it and its pictures."""

    summary: dict[str, Any]
    directory: Path

    def table(self) -> Group:
        """The tables as a rich renderable."""
        return drawn(grids(self.summary, self.heading), [self.summary["drafter"]])

    def markdown(self) -> str:
        """The same tables in Markdown."""
        return "\n".join(grid.markdown() for grid in grids(self.summary, self.heading))

    @property
    def heading(self) -> str:
        """What was asked of which drafter."""
        return f"{self.summary['drafter']} on {conditions_line(self.summary['conditions'])}"


def diagnose(
    drafter: str | Drafter,
    rollouts: str | os.PathLike[str],
    *,
    depth: int = 4,
    split: str | None = None,
    limit: int | None = None,
    bins: int = 10,
    batch_size: int = 8,
    target: Target | str | None = None,
    out: str | os.PathLike[str] | None = None,
    figures: bool = True,
    show_progress: bool = False,
) -> Diagnosis:
    """Ask a drafter at every token of some greedy answers, `depth` drafts deep, and say when it is wrong and how sure.

    rollouts: a file of `drafterzoo rollout`; only its answers at temperature 0 are looked at. split, limit: which of
    them. bins: of the drafter's confidence. out: the folder, by default one under `runs`. figures: draw them, too.
    Raises UsageError, DataError, CheckpointError, DiskError.
    """
    asked = (("depth", depth, MOST_DEPTH), ("bins", bins, MOST_BINS), ("batch_size", batch_size, MOST_AT_ONCE))
    for name, value, most in asked:
        if not 1 <= value <= most:
            raise UsageError(f"diagnose: {name} is {value}, expected a whole number from 1 to {most}.")
    if limit is not None and limit < 1:
        raise UsageError(f"diagnose: limit is {limit}, expected at least 1.")
    if figures:
        check_matplotlib()
    found, bound = bind("diagnose", [drafter], target)
    ((named, one),) = found.items()
    check_drafter(one)
    kept = read_rollouts(os.fspath(rollouts), bound.vocab_size)
    recordings = _recordings(kept, bound, split, limit)
    conditions = {
        "target": target_conditions(bound),
        "drafter": drafter_conditions(one),
        "rollouts": {"name": kept.path.name, "sha256": kept.sha256, "split": split, "answers": len(recordings)},
        "depth": depth,
        "bins": bins,
        "machine": machine(bound.device),
        "code": code(),
    }
    folder = Path(out) if out else Path("runs") / f"diagnose-{kept.path.stem}-{key_of(conditions)[:8]}"
    check_place(folder, conditions)
    parts = []
    title = f"{kept.path.name}: {quantity(len(recordings), 'answer')}"
    with progress(title, len(recordings), "answers") if show_progress else nullcontext(None) as bar:
        for first in range(0, len(recordings), batch_size):
            some = recordings[first : first + batch_size]
            parts.append(drafted(one, teach(bound, some, one.taps), depth))
            if bar is not None:
                bar(len(some))
    summary = {"drafter": named, "conditions": conditions, **summarise(joined(parts), bins)}
    _write(folder, summary, figures)
    return Diagnosis(summary, folder)


def _recordings(kept: Rollouts, target: Target, split: str | None, limit: int | None) -> list[Recording]:
    """The answers that are looked at. Raises DataError when there are none, or one is too long for the target."""
    chosen = [
        (number, row)
        for number, row in enumerate(kept.rows)
        if row.temperature == 0 and split in (None, row.split) and len(row.response_ids) > 1
    ][:limit]
    splits = sorted({row.split for row in kept.rows})
    if split is not None and split not in splits:
        raise DataError(f"{kept.path}: no row has split {split!r}; there is {', '.join(map(repr, splits))}.")
    if not chosen:
        of_split = "" if split is None else f" of split {split!r}"
        raise DataError(
            f"{kept.path}: no answer drawn at temperature 0{of_split} has two tokens; "
            f"make some with `drafterzoo rollout --temperature 0`."
        )
    for number, row in chosen:
        check_length(row.ids, target, f"{kept.path}: rollout {number}")
    return [Recording(row.prompt_ids, row.response_ids) for _, row in chosen]


def _write(folder: Path, summary: dict[str, Any], figures: bool) -> None:
    with writing(f"{folder}:"):
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, summary)
        if not figures:
            return
        for picture in pictures(summary, Diagnosis(summary, folder).heading):
            for kind, content in for_files(picture, [summary["drafter"]]).items():
                write_whole(folder / f"{picture.name}.{kind}", content)
