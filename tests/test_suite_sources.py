"""Named suites: declarations are read strictly, rows come from JSONL, Parquet and the Hub, counts and hashes hold."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafterzoo.cli import main
from drafterzoo.errors import DataError, DrafterzooError, UsageError
from drafterzoo.evaluation import suite_declarations, suite_hub, suites
from drafterzoo.evaluation.suite_checks import digest
from drafterzoo.evaluation.suite_declarations import HubFiles, SuiteFile, read_declaration, shipped_names
from drafterzoo.evaluation.suite_rendering import Prompt, published
from drafterzoo.evaluation.suite_rows import Row, read_rows
from drafterzoo.evaluation.suites import load_suite
from drafterzoo.registry import SUITES

COUNTS = {
    "gsm8k": 1319, "math500": 500, "aime25": 30, "humaneval": 164, "mbpp": 500, "mbpp-sanitized": 257,
    "livecodebench": 1055, "mt-bench": 80, "alpaca": 52002, "spec-bench": 480, "translation": 80, "summarization": 80,
    "qa": 80, "rag": 80,
}  # fmt: skip
SUMS = [{"question": "1 + 1?", "answer": "2"}, {"question": "2 + 2?", "answer": "4"}]
TOY = SuiteFile(
    "toy.jsonl",
    "sums",
    hub=HubFiles("org/toy", ("main/test.jsonl",), revision="abc"),
    template="$question\nIn $digits?",
    count=2,
    source="https://example.org/toy",
)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DRAFTERZOO_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(suite_hub, "_resolves", lambda: False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Registers a suite for the length of a test."""

    def register(name: str, suite: SuiteFile) -> None:
        monkeypatch.setattr(SUITES, "_entries", dict(SUITES._entries))
        SUITES.register(name, suite)

    return register


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A Hub of local files: hub(path, text) puts one there; hub.asked lists what was downloaded."""
    asked: list[tuple[str, str, str | None, str | None]] = []

    def download(repo: str, name: str, *, repo_type: str, revision: str | None, local_files_only: bool) -> str:
        from huggingface_hub.errors import LocalEntryNotFoundError

        asked.append((repo, name, repo_type, revision))
        if not (tmp_path / "hub" / name).is_file():
            raise LocalEntryNotFoundError("not here")
        return str(tmp_path / "hub" / name)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)

    def put(name: str, *rows: Any) -> Path:
        return write(tmp_path / "hub" / name, *rows)

    put.asked = asked  # type: ignore[attr-defined]
    return put


def write(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def complaint(call: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(DrafterzooError) as caught:
        call(*args, **options)
    text = str(caught.value)
    assert text.endswith(".") and "\n" not in text
    return text


# -- declarations ----------------------------------------------------------------------------------------------------


def test_every_suite_of_the_field_is_declared_with_its_count_licence_and_source() -> None:
    assert set(shipped_names()) == set(COUNTS) and set(COUNTS) < set(SUITES.names())
    for name, count in COUNTS.items():
        suite = SUITES.get(name)
        assert suite.count == count and suite.licence and suite.source.startswith("https://"), name
        assert suite.hub is not None or suite.file_sha256, f"{name}: neither on the Hub nor recognisable"


def test_a_declaration_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    good = 'path = "a.jsonl"\ndescription = "a"\n'
    wrong = {
        good + 'licens = "MIT"': "unknown key 'licens' (did you mean 'licence'?)",
        good + 'count = "9"': "count is '9', expected a whole number",
        good + "count = true": "count is True, expected a whole number",
        good + 'turns = "second"': "turns is 'second', expected 'first' or 'all'",
        good + 'other_names = "b"': "other_names is 'b', expected a list of texts",
        'path = "a.jsonl"': "key 'description' is missing",
        good + "hub = 3": "'hub' is 3, expected a table [hub]",
        good + '[hub]\nid = "a/b"\nfiles = ["x"]': "need either 'field' or 'template'",
        good + 'field = "x"\n[hub]\nid = "a/b"': "[hub]: key 'files' is missing",
        good + 'field = "x"\n[hub]\nid = "a/b"\nfiles = ["x"]\nrevison = "m"': "did you mean 'revision'",
        "path = ": "cannot be read as TOML",
    }
    for text, said in wrong.items():
        (tmp_path / "s.toml").write_text(text)
        found = complaint(read_declaration, tmp_path / "s.toml")
        assert said in found and str(tmp_path / "s.toml") in found
    assert "cannot be read" in complaint(read_declaration, tmp_path / "none.toml")
    with pytest.raises(AttributeError):
        suite_declarations.nothing  # noqa: B018


@given(st.text(min_size=1).filter(str.strip), st.text())
def test_a_template_puts_any_text_in_as_it_is(question: str, starter: str) -> None:
    suite = attrs.evolve(TOY, template="Q: $question", when_present={"starter": "\nS: $starter"})
    row = Row(Path("x.jsonl"), 1, {"question": question, "starter": starter})
    (turn,) = published(row, suite, "x-1").turns
    assert turn == f"Q: {question}" + (f"\nS: {starter}" if starter.strip() else "")


def test_the_templates_of_the_shipped_suites() -> None:
    def turn(name: str, **values: str) -> str:
        return published(Row(Path("x.jsonl"), 1, values), SUITES.get(name), "x").turns[0]

    boxed = "\nPlease reason step by step, and put your final answer within \\boxed{}."
    assert turn("gsm8k", question="1 + 1?") == "1 + 1?" + boxed
    assert turn("math500", problem="$x$?") == "$x$?" + boxed
    code = "Write a solution to the following problem and make sure that it passes the tests:\n```python\ndef f():\n```"
    assert turn("humaneval", prompt="def f():") == code
    assert turn("alpaca", instruction="Sort.", input="") == "Sort."
    assert turn("alpaca", instruction="Sort.", input="b a") == "Sort.\n\nInput:\nb a"
    assert "starter code" not in turn("livecodebench", question_content="Q", starter_code="")
    assert turn("livecodebench", question_content="Q", starter_code="class S:").startswith(
        "Q\n\nUse this starter code:"
    )


# -- rows ------------------------------------------------------------------------------------------------------------


def test_parquet_and_jsonl_give_the_same_rows(tmp_path: Path) -> None:
    rows = [{"question": "a", "turns": ["b", "c"], "n": 1}, {"question": "d", "turns": ["e"], "n": 2}]
    lines = list(read_rows(write(tmp_path / "x.jsonl", *rows), ("question", "turns")))
    table = list(read_rows(write(tmp_path / "x.parquet", *rows), ("question", "turns")))
    assert (
        [row.values for row in lines]
        == [row.values for row in table]
        == [{k: r[k] for k in r if k != "n"} for r in rows]
    )
    assert lines[1].where == f"{tmp_path}/x.jsonl:2" and table[1].where == f"{tmp_path}/x.parquet, row 2"


def test_a_parquet_file_is_a_suite_by_its_path(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.parquet", {"prompt": "One?"}, {"prompt": "Two?"})
    assert load_suite(path).prompts == (Prompt("mine-1", "all", ("One?",)), Prompt("mine-2", "all", ("Two?",)))
    (tmp_path / "broken.parquet").write_bytes(b"not parquet")
    assert "is no Parquet file" in complaint(load_suite, tmp_path / "broken.parquet")
    said = complaint(load_suite, write(tmp_path / "wrong.parquet", {"text": "One?"}))
    assert "wrong.parquet, row 1" in said and "the keys are text" in said


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    assert "pip install 'drafterzoo[suites]'" in complaint(load_suite, tmp_path / "x.parquet")


# -- the Hub and folders ---------------------------------------------------------------------------------------------


def test_rows_come_from_the_hub_and_are_rendered(hub: Any, declare: Any) -> None:
    declare("toy", attrs.evolve(TOY, template="$question\nAnswer:"))
    hub("main/test.jsonl", *SUMS)
    suite = load_suite("toy")
    assert [prompt.turns for prompt in suite] == [("1 + 1?\nAnswer:",), ("2 + 2?\nAnswer:",)]
    assert [prompt.id for prompt in suite] == ["toy-1", "toy-2"]
    assert suite.source == "hub:org/toy@abc" and suite.checked == "hash not recorded"
    assert hub.asked == [("org/toy", "main/test.jsonl", "dataset", "abc")]


def test_a_hub_suite_of_two_turns_with_categories(hub: Any, declare: Any) -> None:
    declare("talk", attrs.evolve(SUITES.get("mt-bench"), count=2, sha256=None))
    hub("raw/question.jsonl", *[{"prompt": ["Hi?", "Why?"], "category": c, "prompt_id": i} for i, c in enumerate("ab")])
    suite = load_suite("talk")
    assert suite.turns == "all" and suite.categories == {"a": 1, "b": 1}
    assert all(prompt.turns == ("Hi?", "Why?") for prompt in suite)


def test_several_parquet_files_are_one_suite(hub: Any, declare: Any) -> None:
    files = ("full/a.parquet", "full/b.parquet")
    declare("parts", SuiteFile("parts.jsonl", "two files", hub=HubFiles("org/parts", files), field="text", count=3))
    hub(files[0], {"text": "One?", "code": "1"}, {"text": "Two?", "code": "2"})
    hub(files[1], {"text": "Three?", "code": "3"})
    assert [p.turns[0] for p in load_suite("parts")] == ["One?", "Two?", "Three?"]


def test_a_local_file_goes_before_the_hub_and_an_explicit_folder_excludes_it(
    hub: Any, declare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare("toy", attrs.evolve(TOY, template="$question"))
    hub("main/test.jsonl", *SUMS)
    (tmp_path / "empty").mkdir()
    said = complaint(load_suite, "toy", data_dir=tmp_path / "empty")
    assert "needs the file toy.jsonl or toy/main/test.jsonl as on the Hub, which is not in" in said and not hub.asked
    write(tmp_path / "mine" / "toy.jsonl", {"prompt": "A?"}, {"prompt": "B?"})
    monkeypatch.setenv("DRAFTERZOO_DATA", str(tmp_path / "mine"))
    assert [p.turns[0] for p in load_suite("toy")] == ["A?", "B?"] and not hub.asked
    (tmp_path / "mine" / "toy.jsonl").unlink()
    assert load_suite("toy").prompts[0].turns == ("1 + 1?",) and hub.asked
    write(tmp_path / "mine" / "toy" / "main" / "test.jsonl", {"question": "C?"}, {"question": "D?"})
    assert [p.turns[0] for p in load_suite("toy")] == ["C?", "D?"]
    assert suites.at_hand("toy") == str(tmp_path / "mine" / "toy")


def test_what_cannot_be_fetched_is_one_sentence_that_names_the_file() -> None:
    said = complaint(load_suite, "gsm8k")
    assert "gsm8k.jsonl" in said and "the Hub (openai/gsm8k) cannot be reached" in said and "--data-dir" in said
    said = complaint(load_suite, "spec-bench")
    assert "spec-bench.jsonl" in said and "github.com/hemingkx/Spec-Bench" in said and "not on the Hub" in said


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("RepositoryNotFoundError", "has no such data set"),
        ("RevisionNotFoundError", "has no revision abc of it"),
        ("GatedRepoError", "wants you to accept its terms"),
        ("EntryNotFoundError", "has no file main/test.jsonl in it"),
    ],
)
def test_what_the_hub_refuses_is_told(declare: Any, monkeypatch: pytest.MonkeyPatch, error: str, said: str) -> None:
    from huggingface_hub import errors

    kind = getattr(errors, error)

    def refuse(*args: Any, **options: Any) -> str:
        raise kind.__new__(kind)  # without the response of a server that its constructor asks for

    monkeypatch.setattr("huggingface_hub.hf_hub_download", refuse)
    declare("toy", TOY)
    assert f"the Hub (org/toy) {said}" in complaint(load_suite, "toy")


# -- counts and hashes -----------------------------------------------------------------------------------------------


def test_another_count_or_hash_is_an_error_with_both_numbers_and_a_way_on(hub: Any, declare: Any) -> None:
    base = attrs.evolve(TOY, template="$question")
    right = digest([Prompt("", "", (row["question"],)) for row in SUMS])
    hub("main/test.jsonl", *SUMS)
    declare("exact", attrs.evolve(base, sha256=right))
    assert load_suite("exact").checked == "sha256 as recorded"
    assert load_suite("exact", limit=1).checked == "sha256 as recorded"
    declare("more", attrs.evolve(base, count=3))
    said = complaint(load_suite, "more")
    assert "gives 2 prompts, expected 3" in said and "check=False" in said and "--unchecked-suite" in said
    declare("other", attrs.evolve(base, sha256="0" * 64))
    said = complaint(load_suite, "other")
    assert right in said and "0" * 64 in said
    with pytest.raises(DataError):
        load_suite("other")
    taken = load_suite("other", check=False)
    assert len(taken) == 2 and taken.checked == "not checked"


def test_hashes_of_files_are_checked_where_those_of_prompts_are_not_recorded(
    hub: Any, declare: Any, tmp_path: Path
) -> None:
    path = hub("main/test.jsonl", *SUMS)
    right = hashlib.sha256(path.read_bytes()).hexdigest()
    base = attrs.evolve(TOY, template="$question")
    declare("same", attrs.evolve(base, hub=attrs.evolve(base.hub, sha256={"main/test.jsonl": right})))
    assert load_suite("same").checked == "sha256 of the file as recorded"
    declare("changed", attrs.evolve(base, hub=attrs.evolve(base.hub, sha256={"main/test.jsonl": "00"})))
    assert right in complaint(load_suite, "changed") and load_suite("changed", check=False)
    own = write(tmp_path / "data" / "own.jsonl", {"prompt": "A?"})
    declare("own", SuiteFile("own.jsonl", "own", file_sha256=hashlib.sha256(own.read_bytes()).hexdigest()[:16]))
    assert load_suite("own").checked == "sha256 of the file as recorded"
    write(own, {"prompt": "B?"})
    assert "expected one that begins" in complaint(load_suite, "own")


def test_prompts_of_another_suite_are_recognised(declare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "data" / "toy.jsonl", {"prompt": "A?"})
    mine = digest([Prompt("", "", ("A?",))])
    monkeypatch.setattr(suite_declarations, "known", SuiteFile("k", "k", sha256=mine), raising=False)
    monkeypatch.setattr(suite_declarations, "shipped_names", lambda: ["known"])
    declare("toy", TOY)
    assert "1 prompt, expected 2 (they are those of 'known')" in complaint(load_suite, "toy")


def test_a_part_of_a_file_is_a_suite(tmp_path: Path) -> None:
    kinds = ["writing"] * 3 + ["translation"] * 2 + ["math_reasoning"]
    rows = [{"question_id": 81 + i, "category": kind, "turns": [f"Q{i}?"]} for i, kind in enumerate(kinds)]
    write(tmp_path / "data" / "spec-bench.jsonl", *rows)
    whole = load_suite("spec-bench", check=False)
    assert whole.categories == {"mt_bench": 3, "translation": 2, "math_reasoning": 1} and whole.turns == "all"
    assert whole.prompts[0].id == "81"
    part = load_suite("translation", check=False)
    assert [p.id for p in part] == ["84", "85"] and part.turns == "first"
    assert "gives 2 prompts, expected 80" in complaint(load_suite, "translation")
    assert "none of the 6 rows" in complaint(load_suite, "qa", check=False)


def test_both_names_of_a_file_are_found(tmp_path: Path) -> None:
    write(tmp_path / "data" / "mbpp.jsonl", {"prompt": "A?"})
    assert load_suite("mbpp-sanitized", check=False).source.endswith("mbpp.jsonl")
    said = complaint(load_suite, "mbpp")
    assert "needs the file mbpp-full.jsonl" in said and "that of mbpp-sanitized" in said


# -- the command line and a whole run --------------------------------------------------------------------------------


def test_list_and_show_tell_what_a_suite_is_and_whether_it_is_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", "suites", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["suites"]
    assert listed["gsm8k"].startswith("on the Hub; 1,319 prompts; ") and "(MIT)" in listed["gsm8k"]
    assert listed["qa"].startswith("not here (`drafterzoo show qa` tells more); 80 prompts")
    assert listed["starter"].startswith("at hand; 40 prompts")
    write(tmp_path / "data" / "gsm8k.jsonl", {"prompt": "A?"})
    assert main(["show", "gsm8k", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["prompts"] == 1319 and shown["licence"] == "MIT" and shown["hub"]["id"] == "openai/gsm8k"
    assert shown["at_hand"] == "data/gsm8k.jsonl"
    assert main(["show", "mbpp"]) == 0
    text = capsys.readouterr().out
    assert "at hand       no" in text and "CC-BY-4.0" in text and "google-research-datasets/mbpp" in text
    assert main(["show", "gsm8k", "--data-dir", "nowhere"]) == 2
    assert "nowhere does not exist" in capsys.readouterr().err


def test_a_training_recipe_refuses_every_file_of_a_suite() -> None:
    from drafterzoo.training.prompts import evaluation_suite

    assert (
        evaluation_suite("data/mbpp-full.jsonl") and evaluation_suite("spec-bench") and evaluation_suite("x/mbpp.jsonl")
    )
    assert not evaluation_suite("builtin:10") and not evaluation_suite("mine.jsonl")


def test_a_named_suite_runs_from_the_hub_to_the_results(
    hub: Any, declare: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from drafterzoo.evaluation.results import read
    from drafterzoo.evaluation.runner import bench
    from tests.tiny import tiny_target

    declare("talk", attrs.evolve(SUITES.get("mt-bench"), count=2, sha256=None))
    hub(
        "raw/question.jsonl",
        {"prompt": ["one two", "and?"], "category": "a"},
        {"prompt": ["two", "or?"], "category": "b"},
    )
    target, talks = tiny_target(), []

    def encode_chat(messages: list[dict[str, str]], *, thinking: bool | None = None) -> list[int]:
        talks.append(messages)
        return [3 + sum(map(ord, word)) % 29 for message in messages for word in message["content"].split()]

    target.encode_chat = encode_chat  # type: ignore[method-assign]
    target.decode = lambda ids: " ".join(f"w{i}" for i in ids)  # type: ignore[method-assign]
    options: dict[str, Any] = {"target": target, "max_new_tokens": 4, "budget": "chain:2", "system": "Be brief."}
    result = bench([], "talk", out=tmp_path / "run", show_progress=True, **options)
    assert "suite talk: 2 prompts from hub:HuggingFaceH4/mt_bench_prompts; hash not recorded" in capsys.readouterr().err
    conditions = read(result.directory).conditions
    assert conditions["prompting"]["system"] == "Be brief." and conditions["prompting"]["turns"] == "all"
    assert all(talk[0] == {"role": "system", "content": "Be brief."} for talk in talks)
    second = [talk for talk in talks if len(talk) == 4 and talk[2]["content"]]
    assert second and all(talk[2]["content"].startswith("w") and talk[2]["role"] == "assistant" for talk in second)
    assert "with a system prompt" in result.markdown() and "all turns" in result.markdown()
    with pytest.raises(UsageError, match="system prompt is empty"):
        bench([], "talk", **{**options, "system": " "})
    short = bench([], "talk", turns="first", out=tmp_path / "first", **options)
    assert short.summary["conditions"]["prompting"]["turns"] == "first"
