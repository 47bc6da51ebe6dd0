"""Training prompts: varied, balanced, without repetition, the same every time, and none of what is measured with."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path

import pytest

from drafterzoo.errors import UsageError
from drafterzoo.evaluation.suites import STARTER
from drafterzoo.training.prompts import builtin_source, read_prompts, training_prompts

DATA = Path(os.environ.get("DRAFTERZOO_DATA") or Path(__file__).parents[2] / "shared" / "data")
MANY = 4000


@pytest.fixture(scope="module")
def prompts() -> list[tuple[str, str]]:
    return training_prompts(MANY)


def test_thousands_of_distinct_prompts_come_out_in_balanced_families(prompts: list[tuple[str, str]]) -> None:
    assert len({text for _, text in prompts}) == MANY
    counts = Counter(family for family, _ in prompts)
    assert len(counts) == 17 and max(counts.values()) - min(counts.values()) <= 1
    assert {"chat", "code", "maths", "translate", "summarise"} < set(counts)


def test_every_slot_is_filled_and_prompts_are_of_a_length_to_answer(prompts: list[tuple[str, str]]) -> None:
    for _, text in prompts:
        assert not re.search(r"\{\w+(:\d+-\d+(/\d+)?)?\}", text), text
        assert text == text.strip() and 3 <= len(text.split()) <= 160, text
    counting = [text for family, text in prompts if family == "maths" and re.search(r"\d", text)]
    assert len(counting) == sum(family == "maths" for family, _ in prompts)


def test_a_slot_named_twice_says_the_same_twice(prompts: list[tuple[str, str]]) -> None:
    asked = [re.search(r"How many (\w+) does (\w+) have now", text) for family, text in prompts if family == "maths"]
    texts = [found for found in asked if found]
    assert texts
    for found in texts:
        assert found.string.startswith(f"{found[2]} has ") and f" {found[1]} and gives" in found.string


def test_the_seed_decides_and_a_smaller_count_is_the_beginning(prompts: list[tuple[str, str]]) -> None:
    assert training_prompts(60) == prompts[:60]
    other = training_prompts(60, seed=1)
    assert other == training_prompts(60, seed=1) != prompts[:60]
    assert [family for family, _ in other] == [family for family, _ in prompts[:60]]


def runs(text: str, width: int = 8) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + width]) for i in range(len(words) - width + 1)}


def shared(prompts: list[tuple[str, str]], path: Path) -> set[str]:
    ours = {run for _, text in prompts for run in runs(text)}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    texts = [text for row in rows for text in row.get("turns", [row.get("prompt", "")])]
    return {" ".join(run) for text in texts for run in runs(text) & ours}


def test_no_run_of_eight_words_is_shared_with_the_built_in_suite(prompts: list[tuple[str, str]]) -> None:
    assert not shared([*prompts, *training_prompts(MANY, seed=1)], STARTER.path)


@pytest.mark.parametrize("suite", ["gsm8k", "humaneval", "mbpp", "mt-bench"])
def test_no_run_of_eight_words_is_shared_with_the_data_folder(prompts: list[tuple[str, str]], suite: str) -> None:
    path = DATA / f"{suite}.jsonl"
    if not path.is_file():
        pytest.skip("no data folder here")
    assert not shared(prompts, path)


def test_too_many_or_none_are_refused_with_what_exists() -> None:
    with pytest.raises(UsageError, match=r"1000000 are asked for and the templates give (\d+).*builtin:\1 at most"):
        training_prompts(1_000_000)
    with pytest.raises(UsageError, match="expected at least 1"):
        training_prompts(0)


def test_families_can_be_asked_for() -> None:
    some = read_prompts("builtin:30:translate,code", seed=3)
    assert Counter(family for family, _ in some) == {"translate": 15, "code": 15}
    everything = training_prompts(510, seed=3)
    assert [text for family, text in everything if family == "code"][:15] == [t for f, t in some if f == "code"]
    assert builtin_source("builtin:30:translate,code") == (30, ("translate", "code"))
    with pytest.raises(UsageError, match=r"no family 'translation' .did you mean 'translate'"):
        read_prompts("builtin:30:translation")
    with pytest.raises(UsageError, match="no family ''"):
        read_prompts("builtin:30:")
    with pytest.raises(UsageError, match=r"templates give \d+; ask for builtin:\d+:code at most"):
        read_prompts("builtin:100000:code")


@pytest.mark.parametrize("source", ["builtin", "builtin:", "builtin:0", "builtin:many", "builtin:-3", "builtin:1.5"])
def test_a_count_that_is_none_is_refused(source: str) -> None:
    with pytest.raises(UsageError, match="for example 'builtin:2000'"):
        builtin_source(source)


def test_prompts_are_read_from_templates_suites_and_files(tmp_path: Path) -> None:
    assert read_prompts("builtin:40", seed=2) == training_prompts(40, seed=2)
    assert read_prompts("builtin:40", limit=3) == training_prompts(3)
    with pytest.raises(UsageError, match="limit is 0"):
        read_prompts("builtin:40", limit=0)
    assert len(read_prompts("starter", limit=7)) == 7
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "One?", "source": "mine"}\n{"turns": ["Two?", "Three?"]}\n')
    assert read_prompts(str(path)) == [("mine", "One?"), ("all", "Two?")]
