"""Suites: the built-in one is what it says, every way a file can be wrong is one sentence, and limits draw fairly."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from drafterzoo.errors import DataError, DrafterzooError, UsageError
from drafterzoo.evaluation import suite_hub
from drafterzoo.evaluation.suite_declarations import HubFiles
from drafterzoo.evaluation.suites import Prompt, load_suite
from drafterzoo.registry import SUITES

DATA = Path(os.environ.get("DRAFTERZOO_DATA") or Path(__file__).parents[2] / "shared" / "data")
KINDS = {"chat", "maths", "code", "translation", "summarising", "extraction", "rewriting"}


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DRAFTERZOO_DATA", raising=False)
    monkeypatch.chdir(tmp_path)

    def unreachable(hub: HubFiles) -> list[Path]:
        raise suite_hub.NotFetched("cannot be reached")

    monkeypatch.setattr(suite_hub, "fetch", unreachable)


def write(path: Path, *lines: object) -> Path:
    path.write_text(
        "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), encoding="utf-8"
    )
    return path


def complaint(call: object, *args: object, **options: object) -> str:
    """The message of the error a call ends in, which must be one sentence."""
    with pytest.raises(DrafterzooError) as caught:
        call(*args, **options)  # type: ignore[operator]
    text = str(caught.value)
    assert text.endswith(".") and "\n" not in text
    return text


def test_the_starter_suite_has_forty_varied_prompts() -> None:
    suite = load_suite("starter")
    assert len(suite) == 40
    assert set(suite.categories) == KINDS
    assert all(5 <= count <= 6 for count in suite.categories.values())
    lengths = [len(prompt.turns[0].split()) for prompt in suite]
    assert sum(length >= 250 for length in lengths) >= 6, "several prompts must be long"
    assert max(lengths) <= 520, "a small model must be able to read them"
    assert sum(length < 60 for length in lengths) >= 12
    assert any(len(prompt.turns) == 2 for prompt in suite)
    assert suite.source == "built-in starter" and suite.name == "starter" and suite.checked == "sha256 as recorded"


def runs(text: str, width: int = 8) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + width]) for i in range(len(words) - width + 1)}


def texts_of(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            yield from row.get("turns", [row.get("prompt", "")])


def test_the_starter_suite_shares_no_run_of_eight_words_with_the_data_folder() -> None:
    if not any(DATA.glob("*.jsonl")):
        pytest.skip("no data folder here")
    ours = {run: prompt.id for prompt in load_suite("starter") for turn in prompt.turns for run in runs(turn)}
    shared = {(ours[run], " ".join(run)) for text in texts_of(DATA) for run in runs(text) if run in ours}
    assert not shared


@pytest.mark.parametrize("name", ["gsm8k", "humaneval", "mbpp-sanitized", "mt-bench"])
def test_the_files_of_the_data_folder_are_the_suites_declared(name: str) -> None:
    if not any((DATA / path).is_file() for path in SUITES.get(name).names):
        pytest.skip("no data folder here")
    suite = load_suite(name, data_dir=DATA)
    assert len(suite) == SUITES.get(name).count and suite.checked == "sha256 as recorded"


def test_both_spellings_and_optional_keys_are_read(tmp_path: Path) -> None:
    path = write(
        tmp_path / "mine.jsonl",
        {"turns": ["Hello?", "And again?"]},
        "",
        {"prompt": "Count to three.", "category": "maths", "id": "three", "more": [1]},
        {"prompt": "Say no.", "source": "forum", "id": 7},
    )
    suite = load_suite(path)
    assert suite.prompts == (
        Prompt("mine-1", "all", ("Hello?", "And again?")),
        Prompt("three", "maths", ("Count to three.",)),
        Prompt("7", "forum", ("Say no.",)),
    )
    assert suite.name == "mine" and suite.source == str(path)
    assert load_suite(str(path)) == suite


def test_equal_questions_hash_alike_and_others_do_not(tmp_path: Path) -> None:
    one = load_suite(write(tmp_path / "one.jsonl", {"turns": ["a"]}, {"turns": ["b"]}))
    two = load_suite(write(tmp_path / "two.jsonl", {"prompt": "a", "id": "x"}, {"prompt": "b"}))
    swapped = load_suite(write(tmp_path / "three.jsonl", {"prompt": "b"}, {"prompt": "a"}))
    assert one.sha256 == two.sha256 != swapped.sha256
    assert one.sha256 != load_suite(tmp_path / "one.jsonl", limit=1).sha256


def test_a_limit_draws_evenly_reproducibly_and_nested() -> None:
    seven = load_suite("starter", limit=7, seed=3)
    assert set(seven.categories.values()) == {1} and set(seven.categories) == KINDS
    assert seven == load_suite("starter", limit=7, seed=3)
    assert seven != load_suite("starter", limit=7, seed=4)
    fourteen = load_suite("starter", limit=14, seed=3)
    assert set(seven) < set(fourteen)
    order = [prompt.id for prompt in load_suite("starter")]
    assert [p.id for p in fourteen] == sorted((p.id for p in fourteen), key=order.index)
    assert len(load_suite("starter", limit=1000)) == 40
    assert "limit is 0" in complaint(load_suite, "starter", limit=0)


def test_categories_can_be_chosen() -> None:
    assert set(load_suite("starter", category="code").categories) == {"code"}
    assert set(load_suite("starter", category=["code", "maths"], limit=2).categories) == {"code", "maths"}
    assert "did you mean 'maths'" in complaint(load_suite, "starter", category="math")


def test_training_rows_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    path = write(
        tmp_path / "r.jsonl", {"prompt": "a", "split": "train"}, {"prompt": "b", "split": "val"}, {"prompt": "c"}
    )
    assert [p.turns[0] for p in load_suite(path)] == ["b", "c"]
    assert [p.turns[0] for p in load_suite(path, split="val")] == ["b"]
    assert [p.turns[0] for p in load_suite(path, split="train")] == ["a"]
    assert "split 'test'" in complaint(load_suite, path, split="test")
    assert "split='train'" in complaint(load_suite, write(tmp_path / "t.jsonl", {"prompt": "a", "split": "train"}))


def test_named_suites_are_found_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    write(folder / "gsm8k.jsonl", {"turns": ["1 + 1?"]})
    write(folder / "own.jsonl", {"turns": ["2 + 2?"]})
    said = complaint(load_suite, "gsm8k")
    assert "gsm8k.jsonl" in said and "--data-dir" in said and "DRAFTERZOO_DATA" in said
    assert "the Hub (openai/gsm8k) cannot be reached" in said
    assert "1 prompt, expected 1319" in complaint(load_suite, "gsm8k", data_dir=folder)
    assert load_suite("gsm8k", data_dir=folder, check=False).prompts[0].turns == ("1 + 1?",)
    assert load_suite("own", data_dir=folder).name == "own"
    monkeypatch.setenv("DRAFTERZOO_DATA", str(folder))
    assert load_suite("gsm8k", check=False).source == str(folder / "gsm8k.jsonl")
    monkeypatch.delenv("DRAFTERZOO_DATA")
    folder.rename(tmp_path / "data")
    assert load_suite("gsm8k", check=False).prompts[0].id == "gsm8k-1"
    assert "does not exist" in complaint(load_suite, "gsm8k", data_dir=tmp_path / "nowhere")


def test_unknown_names_and_missing_files_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"did you mean 'starter'.*there is aime25, .*gsm8k, humaneval"):
        load_suite("startr")
    with pytest.raises(UsageError, match=r"nothing\.jsonl does not exist"):
        load_suite("nothing.jsonl")
    with pytest.raises(UsageError, match="is no file"):
        load_suite(tmp_path)


BROKEN = {
    "broken JSON": ('{"turns": ["a"}', "not JSON at column"),
    "not an object": ('["a"]', "found a list"),
    "a bare number": ("3", "found a number"),
    "neither key": ('{"question": "a"}', "the keys are question"),
    "both keys": ('{"turns": ["a"], "prompt": "a"}', "found both"),
    "turns of the wrong type": ('{"turns": "a"}', '"turns" must be a list of texts, found a text'),
    "no turns": ('{"turns": []}', '"turns" is empty'),
    "a turn of the wrong type": ('{"turns": ["a", null]}', '"turns"[1] must be a text, found null'),
    "an empty turn": ('{"turns": ["a", "  "]}', '"turns"[1] is empty'),
    "an empty prompt": ('{"prompt": ""}', '"prompt" is empty'),
    "a prompt of the wrong type": ('{"prompt": {"a": 1}}', '"prompt" must be a text, found an object'),
    "a category of the wrong type": ('{"prompt": "a", "category": 3}', '"category" must be a text'),
    "an id twice": ('{"prompt": "a", "id": "first"}', "already that of line 1"),
    "too deep": ("[" * 100_000, "nested too deeply"),
}


@pytest.mark.parametrize(("line", "why"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_line_is_named_with_its_reason(tmp_path: Path, line: str, why: str) -> None:
    path = write(tmp_path / "bad.jsonl", {"prompt": "fine", "id": "first"}, line)
    with pytest.raises(DataError):
        load_suite(path)
    said = complaint(load_suite, path)
    assert said.startswith(f"{path}:2: ") and why in said


def test_a_file_that_is_no_text_or_empty_is_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.jsonl"
    path.write_bytes('{"prompt": "café"}\n'.encode("latin-1"))
    assert f"{path}:1: byte 16 is not UTF-8" in complaint(load_suite, path)
    assert "is empty" in complaint(load_suite, write(tmp_path / "empty.jsonl"))
    assert "is empty" in complaint(load_suite, write(tmp_path / "blank.jsonl", "", "  "))


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "windows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "one"}\r\n{"prompt": "two"}\r\n')
    assert [prompt.turns[0] for prompt in load_suite(path)] == ["one", "two"]
