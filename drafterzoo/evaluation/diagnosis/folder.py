"""The folder of a diagnosis: diagnosis.json with its conditions and all its numbers, and every figure beside it.

Knows how it is written and what a reader may count on; nothing of models, of how numbers were found or are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drafterzoo.disk import check_folder
from drafterzoo.errors import DataError, UsageError
from drafterzoo.evaluation.diagnosis.summary import NAMES
from drafterzoo.evaluation.offline.lines import key_of
from drafterzoo.evaluation.results import AGAIN, FORMAT_VERSION, read_object, write_json
from drafterzoo.evaluation.shapes import Diagnosed
from drafterzoo.kinds import check_shape
from drafterzoo.wording import quantity

FILE = "diagnosis.json"


def check_place(folder: Path, conditions: Mapping[str, Any]) -> None:
    """Raise UsageError unless the folder is free or holds this very diagnosis, DiskError when it cannot be written."""
    check_folder(folder, f"{folder}:", "choose another --out")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    try:
        before = read_object(folder / FILE)["conditions"]
        same = key_of(before) == key_of(conditions)
    except (DataError, KeyError, AttributeError):
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
    whole, bins = summary["all_rejected"], summary["conditions"]["bins"]
    if len(summary["by_confidence"]) != bins:
        raise DataError(f"{path}: by_confidence has {len(summary['by_confidence'])} bins, expected {bins}; {AGAIN}.")
    found = [(bucket["drafter"], bucket["target"]) for bucket in summary["buckets"]]
    if found != [(drafter, target) for drafter in NAMES for target in NAMES]:
        raise DataError(f"{path}: buckets are not one for each of {', '.join(NAMES)} by the same; {AGAIN}.")
    _check_share(path, "acceptance", summary["tokens"], summary["acceptance"])
    for key in ("by_confidence", "by_depth"):
        for index, row in enumerate(summary[key]):
            _check_share(path, f"{key}[{index}].acceptance", row["tokens"], row["acceptance"])
    for index, row in enumerate([*summary["buckets"], whole]):
        named = f"buckets[{index}]" if index < len(summary["buckets"]) else "all_rejected"
        _check_share(path, f"{named}.share", whole["rejected"], row["share"])
        if "recovered" in row or "recovered" in whole:
            _check_share(path, f"{named}.recovered", row["rejected"], row.get("recovered"))
    return summary


def _check_share(path: Path, key: str, of: int, share: float | None) -> None:
    """Raise DataError unless the share of some tokens is one; of none there is no share."""
    if of < 0 or (share is None) != (of == 0) or not 0 <= (share or 0) <= 1:
        expected = "none" if of == 0 else "a share from 0 to 1"
        raise DataError(f"{path}: {key} is {share!r} of {of} tokens, expected {expected}; {AGAIN}.")


def conditions_line(conditions: Mapping[str, Any]) -> str:
    """What was asked, on one line: answers, their file, the target, how deep."""
    rollouts = conditions["rollouts"]
    chosen = "" if rollouts["split"] is None else f" of split {rollouts['split']}"
    return (
        f"{quantity(rollouts['answers'], 'greedy answer')}{chosen} of {rollouts['name']} by "
        f"{conditions['target']['name']}, {conditions['depth']} deep"
    )
