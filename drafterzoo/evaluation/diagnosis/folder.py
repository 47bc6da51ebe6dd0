"""The folder of a diagnosis: diagnosis.json with its conditions and all its numbers, and every figure beside it.

Knows how it is written and what a reader may count on; nothing of models, of how numbers were found or are drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from drafterzoo.disk import check_folder
from drafterzoo.errors import DataError, UsageError
from drafterzoo.evaluation.diagnosis.summary import NAMES
from drafterzoo.evaluation.offline.lines import key_of
from drafterzoo.evaluation.results import AGAIN, FORMAT_VERSION, read_object, unfinished, write_json
from drafterzoo.evaluation.shapes import Diagnosed
from drafterzoo.kinds import check_shape
from drafterzoo.wording import quantity

FILE = "diagnosis.json"
MOST_DEPTH = 4096  # beyond, a slip of the keyboard
MOST_BINS = 1000  # beyond, edges of three digits no longer tell bins apart


def check_place(folder: Path, conditions: Mapping[str, Any]) -> None:
    """Raise UsageError unless the folder is free or holds this very diagnosis, DiskError when it cannot be written."""
    check_folder(folder, f"{folder}:", "choose another --out")
    if not folder.is_dir() or all(unfinished(path.name) == FILE for path in folder.iterdir()):
        return
    try:
        before = read_object(folder / FILE)["conditions"]
        same = key_of(before) == key_of(conditions)
    except DataError as error:
        if (folder / FILE).is_file():
            raise UsageError(
                f"{str(error).rstrip('.')}; name another folder with --out, or move that one away."
            ) from error
        same = False
    except (KeyError, AttributeError):
        same = False
    if not same:
        raise UsageError(f"{folder} holds something else; name another folder with --out, or move that one away.")


def write(folder: Path, summary: Mapping[str, Any]) -> None:
    write_json(folder / FILE, {"format_version": FORMAT_VERSION, **summary})


def read(folder: Path) -> dict[str, Any]:
    """The summary, whose every number is there and of its kind. Raises DataError, naming file and key."""
    path = folder / FILE
    summary = read_object(path)
    check_shape(Diagnosed, summary, str(path), AGAIN)
    found = next(_wrong(summary), None)
    if found is not None:
        raise DataError(f"{path}: {found}; {AGAIN}.")
    return summary


def _wrong(summary: Mapping[str, Any]) -> Iterator[str]:
    """What does not add up in a summary of the right shape: each said as file, key, found and expected are."""
    conditions, whole, buckets = summary["conditions"], summary["all_rejected"], summary["buckets"]
    bins, depth, total = conditions["bins"], conditions["depth"], summary["tokens"]
    for key, value, most in (("bins", bins, MOST_BINS), ("depth", depth, MOST_DEPTH)):
        if not 1 <= value <= most:
            yield f"conditions.{key} is {value}, expected from 1 to {most}"
    if conditions["rollouts"]["answers"] < 1:
        yield f"conditions.rollouts.answers is {conditions['rollouts']['answers']}, expected at least 1"
    edges = [(i / bins, (i + 1) / bins) for i in range(bins)]
    if [(row["low"], row["high"]) for row in summary["by_confidence"]] != edges:
        yield f"by_confidence does not hold {bins} equal bins"
    if not 1 <= len(summary["by_depth"]) <= depth:
        yield f"by_depth has {len(summary['by_depth'])} depths, expected from 1 to {depth}"
    names = [(drafter, target) for drafter in NAMES for target in NAMES]
    if [(bucket["drafter"], bucket["target"]) for bucket in buckets] != names:
        yield f"buckets are not one for each of {', '.join(NAMES)} by the same"
    again = "recovered" in whole
    if any(("recovered" in bucket) != again for bucket in buckets):
        yield "recovered does not stand in all of buckets and all_rejected, or in none"
    for key, some in (("by_confidence", summary["by_confidence"]), ("by_depth", summary["by_depth"])):
        if sum(row["tokens"] for row in some) != total:
            yield f"{key} does not add up to {quantity(total, 'token')}"
    if not whole["rejected"] == summary["rejected"] == sum(bucket["rejected"] for bucket in buckets):
        yield f"buckets do not add up to {quantity(summary['rejected'], 'rejected token')}"
    for key, of, share in _shares(summary):
        if of < 0 or (share is None) != (of == 0) or not 0 <= (share or 0) <= 1:
            expected = "none" if of == 0 else "a share from 0 to 1"
            yield f"{key} is {share!r} of {quantity(of, 'token')}, expected {expected}"
    for key, row in _rows(summary):
        for name in ("rise_recovered", "rise_not_recovered"):
            if not -1 <= (row.get(name) or 0) <= 1:
                yield f"{key}.{name} is {row[name]!r}, expected from -1 to 1"


def _rows(summary: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The buckets of what is rejected, and all of it, with their keys."""
    buckets = [(f"buckets[{i}]", bucket) for i, bucket in enumerate(summary["buckets"])]
    return [*buckets, ("all_rejected", summary["all_rejected"])]


def _shares(summary: Mapping[str, Any]) -> Iterator[tuple[str, int, float | None]]:
    """Every share with its key, and of how many tokens it is one."""
    rejected = summary["rejected"]
    yield "acceptance", summary["tokens"], summary["acceptance"]
    for key in ("unsure_share", "unsure_while_target_decisive_share"):
        yield key, rejected, summary[key]
    for key in ("by_confidence", "by_depth"):
        for i, row in enumerate(summary[key]):
            yield f"{key}[{i}].acceptance", row["tokens"], row["acceptance"]
    for key, row in _rows(summary):
        yield f"{key}.share", rejected, row["share"]
        if "recovered" in row:
            yield f"{key}.recovered", row["rejected"], row["recovered"]


def conditions_line(conditions: Mapping[str, Any]) -> str:
    """What was asked, on one line: answers, their file, the target, how deep."""
    rollouts = conditions["rollouts"]
    chosen = "" if rollouts["split"] is None else f" of split {rollouts['split']}"
    return (
        f"{quantity(rollouts['answers'], 'greedy answer')}{chosen} of {rollouts['name']} by "
        f"{conditions['target']['name']}, {conditions['depth']} deep"
    )
