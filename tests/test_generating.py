"""Rollouts made anew: end to end on a tiny target, taken up after interruptions, and made by `train` when they lack."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import pytest
from filelock import FileLock

from drafterzoo.cli import main
from drafterzoo.errors import DataError, DiskError, UsageError
from drafterzoo.target import Target
from drafterzoo.training import generating, run
from drafterzoo.training.generating import ensure_rollouts, make_rollouts
from drafterzoo.training.prompts import training_prompts
from drafterzoo.training.recipe import GenerateSection, build_recipe
from drafterzoo.training.rollouts import read_rollouts
from drafterzoo.training.trainer import describe
from tests.tiny import tiny_target

VOCAB = 64
SECTION = GenerateSection(
    prompts="builtin:12", max_new_tokens=6, temperatures=(0.0, 0.0, 1.0), batch_size=4, held_out=0.3
)


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("llama")


@pytest.fixture(autouse=True)
def stub_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny target has no tokenizer: a few ids that depend on the text stand in for its chat template."""

    def encode(self: Target, messages: list[dict[str, str]], *, thinking: bool | None = None) -> list[int]:
        text = messages[0]["content"]
        return [1, *(3 + ord(c) % (VOCAB - 3) for c in text[: 3 + len(text) % 5])]

    monkeypatch.setattr(Target, "encode_chat", encode)


def make(target: Target, path: Path, **options: Any) -> dict[str, int]:
    defaults = {"max_new_tokens": 6, "temperatures": (0.0, 0.0, 1.0), "batch_size": 4, "held_out": 0.3}
    return make_rollouts(target, training_prompts(12), path, **{**defaults, **options})


def read(path: Path) -> dict[str, dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    assert len({row["prompt"] for row in rows}) == len(rows)
    return {row["prompt"]: row for row in rows}


def test_every_prompt_is_answered_at_its_temperature_and_marked_by_its_place(target: Target, tmp_path: Path) -> None:
    made = make(target, tmp_path / "r.jsonl")
    rows = read(tmp_path / "r.jsonl")
    assert made["rows"] == made["new_rows"] == len(rows) == 12
    assert made["new_tokens"] == sum(len(row["response_ids"]) for row in rows.values()) <= 12 * 6
    in_place = [rows[text] for _, text in training_prompts(12)]
    assert [row["temperature"] for row in in_place] == [0.0, 0.0, 1.0] * 4
    assert [row["source"] for row in in_place] == [family for family, _ in training_prompts(12)]
    assert set(Counter(row["split"] for row in in_place)) == {"train", "val"}
    assert len(read_rollouts(tmp_path / "r.jsonl", VOCAB).rows) == 12
    make(target, tmp_path / "again.jsonl", batch_size=5)
    again = read(tmp_path / "again.jsonl")
    assert [again[text]["split"] for _, text in training_prompts(12)] == [row["split"] for row in in_place]


def test_an_interrupted_call_goes_on_where_it_stopped(target: Target, tmp_path: Path) -> None:
    make(target, tmp_path / "whole.jsonl")
    lines = (tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True)
    path = tmp_path / "broken.jsonl"
    for cut in (3, 15, 100):
        path.write_bytes(b"".join(lines[:6]) + lines[6][:cut])
        assert make(target, path)["new_rows"] == 6
        assert read(path) == read(tmp_path / "whole.jsonl")
    assert make(target, path) == {"rows": 12, "new_rows": 0, "new_tokens": 0}


def test_a_prompt_asked_twice_is_answered_twice_however_often_it_stops(target: Target, tmp_path: Path) -> None:
    path, asked = tmp_path / "r.jsonl", [("own", "alike"), ("own", "other"), ("own", "alike"), ("own", "alike")]
    made = make_rollouts(target, asked, path, max_new_tokens=4, temperatures=[1.0], batch_size=2)
    assert made["rows"] == made["new_rows"] == 4
    lines = path.read_bytes().splitlines(keepends=True)
    assert sorted(json.loads(line)["request"] for line in lines) == [0, 1, 2, 3]
    path.write_bytes(b"".join(lines[:2]))
    again = make_rollouts(target, asked, path, max_new_tokens=4, temperatures=[1.0], batch_size=2)
    assert (again["rows"], again["new_rows"]) == (4, 2)
    assert sorted(path.read_bytes().splitlines(keepends=True)) == sorted(lines)
    assert make_rollouts(target, asked, path, max_new_tokens=4, temperatures=[1.0])["rows"] == 4


def test_another_temperature_is_another_answer(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    make(target, path, temperatures=[0.0])
    assert make(target, path, temperatures=[1.0]) | {"new_tokens": 0} == {"rows": 24, "new_rows": 12, "new_tokens": 0}
    with pytest.raises(UsageError, match="no temperature is given"):
        make(target, path, temperatures=[])


@pytest.mark.parametrize(
    "text", ['{"prompt": "no answer"}\n', "my notes", '{"prompt": "a", "response_ids": [3]}\nnotes', "\udcff\n"]
)
def test_a_file_of_something_else_is_left_alone(target: Target, tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    before = path.read_bytes()
    with pytest.raises(DataError, match=r"notes\.txt:\d: "):
        make(target, path)
    assert path.read_bytes() == before


def test_prompts_with_unusual_line_ends_are_read_back(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    for expected in (1, 0):
        made = make_rollouts(target, [("own", "one\u2028two\x85three")], path, max_new_tokens=3)
        assert made["new_rows"] == expected
    assert len(read_rollouts(path, VOCAB).rows) == 1


# -- a recipe's [generate] -----------------------------------------------------------------------------------------


def test_the_file_appears_when_it_is_whole_and_an_interruption_is_taken_up(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "r.jsonl"
    append, calls = generating._append, []

    def interrupted(*args: Any) -> None:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        append(*args)

    monkeypatch.setattr(generating, "_append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ensure_rollouts(SECTION, target, path)
    assert not path.exists()
    (growing,) = path.parent.glob("*.part")
    assert len(read(growing)) == 8

    ensure_rollouts(SECTION, target, path)
    assert len(read(path)) == 12 and sum(len(rows) for _, rows in calls[3:]) == 4
    assert not list(path.parent.glob("*.part"))


def test_whoever_waits_for_rollouts_in_the_making_says_so(
    target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.jsonl"
    with FileLock(tmp_path / "r.jsonl.lock"):
        waiting = threading.Thread(target=ensure_rollouts, args=(SECTION, target, path))
        waiting.start()
        said = ""
        for _ in range(600):
            said += capsys.readouterr().err
            if "Another process is making" in said:
                break
            time.sleep(0.1)
        path.write_text("made by the other\n")
    waiting.join()
    said += capsys.readouterr().err
    assert said.count(f"Another process is making {path}; waiting until it is done") == 1
    assert path.read_text() == "made by the other\n"


def test_answers_made_otherwise_are_not_taken_up(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    ensure_rollouts(SECTION, target, path)
    for _ in range(2):
        before = path.read_bytes()
        ensure_rollouts(attrs.evolve(SECTION, max_new_tokens=3), target, path)
        assert path.read_bytes() == before, "a file that exists is used as it is"
    names = set()
    for section in (SECTION, attrs.evolve(SECTION, max_new_tokens=3)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(generating, "make_rollouts", lambda target, prompts, path, **options: names.add(path.name))
            with pytest.raises(DiskError, match=r"\[data\] rollouts"):  # nothing was made, so nothing is renamed
                ensure_rollouts(section, target, tmp_path / "other.jsonl")
    assert len(names) == 2


@pytest.mark.parametrize(("count", "share", "expected"), [(20, 0.05, 1), (20, 0.2, 4), (400, 0.05, 20), (50, 0.3, 15)])
def test_the_held_out_share_is_kept_and_lasts(count: int, share: float, expected: int) -> None:
    for seed in range(5):
        splits = generating._splits(count, share, seed)
        assert abs(splits.count("val") - expected) <= (share == 0.3) and len(splits) == count
        assert generating._splits(count + 37, share, seed)[:count] == splits, "more prompts change none before them"
    assert len({tuple(generating._splits(400, share, seed)) for seed in range(5)}) == 5
    places = [i % 20 for i, split in enumerate(generating._splits(4000, 0.05, 0)) if split == "val"]
    assert len(set(places)) == 20, "not the same family time and again"
    assert set(generating._splits(3, 0.0, 0)) == {"train"} and set(generating._splits(3, 1.0, 0)) == {"val"}


def values(path: Path, folder: Path, **sections: Any) -> dict[str, Any]:
    return {
        "spec": "eagle3.1",
        "data": {"rollouts": str(path), "features": "online", "pack": 40},
        "drafter": {"draft_vocab_size": 32},
        "run": {"epochs": 1.0},
        "evaluate": {"prompts": 1, "max_new_tokens": 2},
        **sections,
    }


def test_train_makes_missing_rollouts_first(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "load_target", lambda *args, **options: target)
    monkeypatch.setattr(run.Trainer, "_evaluate", lambda self: None)
    path, folder = tmp_path / "r.jsonl", tmp_path / "run"
    with pytest.raises(DataError, match=r"r\.jsonl: cannot be read .*\[generate\]"):
        run.train(values(path, folder), out=folder, quiet=True)
    section = {"prompts": "builtin:12", "max_new_tokens": 6, "temperatures": [0, 1.0], "held_out": 0.2}
    result = run.train(values(path, folder, generate=section), out=folder, quiet=True)
    assert result.summary["finished"] and len(read(path)) == 12

    made = path.read_bytes()
    again = run.train(values(path, folder, generate={**section, "prompts": "builtin:5"}), out=folder, quiet=True)
    assert again.summary["finished"] and path.read_bytes() == made
    path.write_bytes(made[: made.rstrip().rfind(b"\n") + 1])
    with pytest.raises(UsageError, match="not the rollouts that the run in"):
        run.train(values(path, folder, generate=section), out=folder, quiet=True)


def test_how_missing_rollouts_are_made_is_no_part_of_what_a_run_is(tmp_path: Path) -> None:
    plain = build_recipe(values(tmp_path / "r.jsonl", tmp_path), "recipe")
    assert describe(attrs.evolve(plain, generate=SECTION)) == describe(plain)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"promts": "builtin:5"}, "[generate]: unknown key 'promts' (did you mean 'prompts'?)"),
        ({"prompts": "builtin:lots"}, "prompts 'builtin:lots': expected builtin:<how many>"),
        ({"prompts": "gsm8k"}, "prompts is 'gsm8k', an evaluation suite, which must never enter training"),
        ({"prompts": "../data/mt-bench.jsonl"}, "an evaluation suite, which must never enter training"),
        ({"prompts": 5}, "[generate]: key 'prompts' is 5"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"temperatures": []}, "temperatures is []"),
        ({"temperatures": [0.0, -1.0]}, "temperatures is [0.0, -1.0]"),
        ({"temperatures": 1.0}, "[generate]: key 'temperatures' is 1.0"),
        ({"batch_size": -2}, "batch_size is -2"),
        ({"held_out": 1.0}, "held_out is 1.0"),
        (3, "'generate' is 3, expected a table [generate]"),
    ],
)
def test_a_wrong_table_names_the_key(section: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        build_recipe(values(tmp_path, tmp_path, generate=section), "recipe")
    assert words in str(caught.value) and "\n" not in str(caught.value)


# -- the verb ------------------------------------------------------------------------------------------------------


def test_the_verb_takes_built_in_prompts_and_several_temperatures(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("drafterzoo.target.load_target", lambda *args, **options: target)
    path = tmp_path / "r.jsonl"
    options = ["-n", "3", "--temperature", "0", "--temperature", "1", "--limit", "4", "--json"]
    assert main(["rollout", "builtin:2000", str(path), *options]) == 0
    assert json.loads(capsys.readouterr().out)["new_rows"] == 4
    rows = read(path)
    assert [rows[text]["temperature"] for _, text in training_prompts(4)] == [0.0, 1.0, 0.0, 1.0]
    assert main(["rollout", "starter", str(tmp_path / "s.jsonl"), "--limit", "2", "-n", "3"]) == 0
    assert {row["split"] for row in read(tmp_path / "s.jsonl").values()} == {"val"}, "what is measured with"
    capsys.readouterr()
    assert main(["rollout", "starter", str(path), "--held-out", "0.1"]) == 2
    assert "must never be trained on; leave --held-out out" in " ".join(capsys.readouterr().err.split())
    assert main(["rollout", "builtin:none", str(path)]) == 2
    assert "for example 'builtin:2000'" in capsys.readouterr().err
    assert main(["rollout", "--help"]) == 0
    assert "rollout builtin:2000 rollouts.jsonl" in " ".join(capsys.readouterr().out.split())
