"""Every layout, put to the test on the embedded target: written, recognised, read, written again, and drafting.

    python benchmarks/layouts.py --limit 4 -n 48

For each layout the first of the shipped drafters that it can hold is written in it; where it can hold none, one of the
right kind with random weights, which proves all but the last column. detected: by how many layouts the folder is
recognised (one is right). read back: weights and drafts are those of the drafter written. byte-equal: read and written
again, every tensor is the same file's bytes, and the config the same. τ: tokens per target call at a chain of 4 on
`starter`, of the folder as it was read (none where weights are random). What the originals compute with the same folder
is compared in `tox -e parity`. One line of JSON comes last.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import torch
from asking import at_least, run
from rich.console import Console
from rich.progress import track
from rich.table import Table

import drafterzoo
from drafterzoo.budget import Budget
from drafterzoo.composition import create
from drafterzoo.drafters.base import Drafter
from drafterzoo.errors import UsageError
from drafterzoo.evaluation.suites import load_suite
from drafterzoo.formats.binding import read
from drafterzoo.formats.files import read_files
from drafterzoo.formats.writing import write_layout
from drafterzoo.registry import DRAFTERS, FORMATS, parse_spec
from drafterzoo.target.target import Target

SHIPPED = ("eagle3.1", "hass")
BUDGET = Budget.chain(4)
FEW = 8  # tokens of one prompt, where the weights are random


def drafters(target: Target) -> Iterator[tuple[Drafter, bool]]:
    """(a drafter, whether it is trained): the shipped ones, then one of each kind with random weights."""
    for name in SHIPPED:
        yield drafterzoo.load(name, target), True
    for name in DRAFTERS:
        cls = DRAFTERS.get(name)
        if cls.has_weights:
            torch.manual_seed(0)
            small = {"num_layers": 1, **({"mask_token_id": 16} if "mask_token_id" in _fields(cls) else {})}
            yield create(parse_spec(name), target, {**small, "draft_vocab_size": target.vocab_size}).eval(), False
    torch.manual_seed(0)  # DeepSpec's DFlash is DSpark without its heads
    bare = {"markov": "none", "confidence": False, "confidence_with_markov": False, "mask_token_id": 16}
    yield create(parse_spec("dspark"), target, {**bare, "num_layers": 1}).eval(), False


def _fields(cls: type[Drafter]) -> set[str]:
    return {field.name for field in attrs.fields(cls.Config)}


def row(
    layout: str, contenders: list[tuple[Drafter, bool]], suite: list[str], most: int, place: Path
) -> dict[str, Any]:
    """What is known of a layout after it has held a drafter."""
    drafter, trained = _held(layout, contenders, place / "once")
    target, files = drafter.target, read_files(place / "once")
    detected = [name for name in FORMATS if FORMATS.get(name).detect(files)]
    write_layout(read(place / "once", target, format=layout), place / "twice", layout)
    twice = read_files(place / "twice")
    prompts, tokens = (suite, most) if trained else (suite[:1], FEW)
    one, other, plain = (
        drafterzoo.generate(each, prompts, target=target, budget=budget, max_new_tokens=tokens)
        for each, budget in (
            (drafter, BUDGET),
            (drafterzoo.load(f"dir:{place / 'once'}", target), BUDGET),
            ("none", None),
        )
    )
    return {
        "layout": layout,
        "drafter": drafter.spec if trained else f"{drafter.spec}, random",
        "detected": detected,
        "read_back": one.tokens == other.tokens and one.accepted_per_depth == other.accepted_per_depth,
        "byte_equal": _same(files.tensors, twice.tensors) and files.config == twice.config,
        "lossless": other.tokens == plain.tokens,
        "tau": round(other.tau, 3) if trained else None,
    }


def _held(layout: str, contenders: list[tuple[Drafter, bool]], folder: Path) -> tuple[Drafter, bool]:
    """The first drafter that the layout can hold, once it is written."""
    reasons = []
    for drafter, trained in contenders:
        try:
            write_layout(drafter, folder, layout)
        except UsageError as error:
            reasons.append(str(error))
        else:
            return drafter, trained
    raise UsageError(f"layouts: {layout!r} holds none of the drafters here: {reasons[-1]}")


def _same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    def bits(value: torch.Tensor) -> torch.Tensor:
        return value.contiguous().reshape(-1).view(torch.uint8)

    return one.keys() == other.keys() and all(
        one[key].dtype == other[key].dtype and torch.equal(bits(one[key]), bits(other[key])) for key in one
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=at_least(1), default=4, help="prompts, drawn evenly over the kinds")
    parser.add_argument("-n", "--max-new-tokens", type=at_least(2), default=48)
    asked = parser.parse_args()
    target = drafterzoo.load_target()
    contenders = list(drafters(target))
    prompts = [prompt.turns[0] for prompt in load_suite("starter", limit=asked.limit).prompts]
    rows = []
    with tempfile.TemporaryDirectory() as made:
        for layout in track(FORMATS.names(), "layouts", console=Console(stderr=True)):
            rows.append(row(layout, contenders, prompts, asked.max_new_tokens, Path(made) / layout))
    table = Table(title=f"layouts on {target.name}", title_justify="left")
    for head in ("layout", "drafter", "detected", "read back", "byte-equal", "texts equal", "τ"):
        table.add_column(head)
    for one in rows:
        marks = ["yes" if one[key] else "NO" for key in ("read_back", "byte_equal", "lossless")]
        alone = "yes" if one["detected"] == [one["layout"]] else ", ".join(one["detected"]) or "by none"
        table.add_row(one["layout"], one["drafter"], alone, *marks, "-" if one["tau"] is None else f"{one['tau']:.2f}")
    Console().print(table)
    print(json.dumps(rows, ensure_ascii=False))


if __name__ == "__main__":
    run(main)
