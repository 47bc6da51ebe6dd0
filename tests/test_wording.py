"""Counts in sentences: one row, two rows; what verbs print of a single thing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import drafterzoo
from drafterzoo.progress import Bar
from drafterzoo.wording import portion, quantity, shown, verb


def test_one_is_singular_and_everything_else_plural() -> None:
    assert [quantity(n, "row") for n in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]
    assert [quantity(n, "entry", "entries") for n in (1, 2)] == ["1 entry", "2 entries"]
    assert [verb(n, "differs", "differ") for n in (1, 2)] == ["differs", "differ"]


def test_a_part_says_of_how_many_and_a_whole_says_nothing_of_parts() -> None:
    assert portion([40], 40, "prompt") == "40 prompts" and shown([40, 40], 40, "prompt") == ""
    assert portion([12, 12], 40, "prompt") == "12 of 40 prompts"
    assert portion([12, 40], 40, "prompt") == "12 to 40 of 40 prompts"
    assert shown([1], 2, "prompt") == "1 of 2 prompts is shown"


@pytest.mark.parametrize(("total", "said"), [(1, "1 of 1 answer"), (2, "1 of 2 answers")])
def test_progress_counts_in_words(total: int, said: str) -> None:
    bar = Bar(total, "answers", 1)
    assert bar.count == said


COUNTED = re.compile(
    r"\{(?:len\([^{}]*\)|total|count|texts|asked|prompts|rows|answers|tokens|different|doubtful|opened|met|n)\} "
    r"(?:tables|answers|rows|prompts|rollouts|figures|texts|tokens|nodes|turns|lines|entries|layers|weights|steps)\b"
)


def test_no_count_is_written_beside_a_plural_that_one_would_not_fit() -> None:
    """`1 tables`: what counts is `quantity(...)`. What can never be one, and `3 of 4 prompts`, are fine."""
    package = Path(drafterzoo.__file__).parent
    files = list(package.rglob("*.py"))
    fine = (
        "all {texts} texts equal",
        "none of the {met} rows",
        "{len(prompt)} tokens, but",
    )  # beside its singular; never one
    found = [
        f"{path.relative_to(package)}: {line.strip()}"
        for path in files
        for line in path.read_text(encoding="utf-8").splitlines()
        if COUNTED.search(line) and not any(words in line for words in fine)
    ]
    assert len(files) > 50 and found == []
