"""The results directory: written line by line, read back whole, and clear about what is broken."""

from __future__ import annotations

import json
import os
import re

import attrs
import pytest
from test_metrics import record

from drafterzoo.errors import DataError, DiskError, UsageError
from drafterzoo.evaluation import conditions as conditions_file
from drafterzoo.evaluation import results
from drafterzoo.evaluation.conditions import Settings, check_comparable, code, conditions_key, differing
from drafterzoo.evaluation.results import ResultsWriter, default_directory, read, read_object

CONDITIONS = {
    "target": {"name": "tiny", "packed": False, "dtype": "float32"},
    "sampling": {"temperature": 0.0, "seed": 0},
    "drafters": {"a": {"spec": "a"}},
    "budgets": ["chain:4"],
    "date": "2026-01-01",
}
RECORDS = [record([4, 1, 2], [3, 0, 2], prompt="a"), record([], [], prompt="é", draft_s=[])]


def write(folder, records=RECORDS, summary=None):
    with ResultsWriter(folder, CONDITIONS) as writer:
        for one in records:
            writer.append(one)
        if summary is not None:
            writer.finish(summary)
    return folder


def test_what_is_written_is_read(tmp_path):
    found = read(write(tmp_path / "run", summary={"tau": 2.5}))
    assert found.conditions == CONDITIONS
    assert found.records == RECORDS
    assert found.summary == {"tau": 2.5}


def test_every_line_is_on_disk_before_the_next(tmp_path):
    writer = ResultsWriter(tmp_path / "run", CONDITIONS)
    for count, one in enumerate(RECORDS, start=1):
        writer.append(one)
        assert len((tmp_path / "run" / "rounds.jsonl").read_bytes().splitlines()) == count
        found = read(tmp_path / "run")  # a run in progress, or one that died here
        assert found.records == RECORDS[:count] and found.summary is None
    writer.close()


def test_a_half_written_last_line_is_named_and_left_out(tmp_path):
    path = write(tmp_path / "run") / "rounds.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.warns(UserWarning, match=re.escape(f"{path}:2: the last line is half-written")):
        assert read(tmp_path / "run").records == RECORDS[:1]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{broken", "1: not JSON at column 2"),
        ("[1]", "1: expected an object with cell, prompt and rounds, found list"),
        ('{"cell": "x"}', "1: drafter, budget, prompt, .* missing"),
        (json.dumps({**attrs.asdict(RECORDS[0]), "nodes": [1]}), "1: nodes has 1 entry, committed has 3"),
        (
            json.dumps({**attrs.asdict(RECORDS[0]), "nodes": "many"}),
            "1: nodes is 'many', expected a list of whole numbers",
        ),
    ],
)
def test_a_broken_line_in_the_middle_is_an_error_with_file_and_line(tmp_path, line, said):
    path = write(tmp_path / "run") / "rounds.jsonl"
    path.write_text(line + "\n" + path.read_text())
    with pytest.raises(DataError, match=rf"rounds\.jsonl:{said}"):
        read(tmp_path / "run")


TEXTS = ("cell", "drafter", "budget", "prompt", "category")
COUNTS = ("turn", "repeat", "group", "prompt_tokens", "prefill_s", "decode_s")
SERVED = ("text", "counted")  # of a server alone, and null elsewhere
LISTS = [f.name for f in attrs.fields(results.Record) if f.name not in (*TEXTS, *COUNTS, *SERVED)]
WRONG = [
    *((field, value) for field in TEXTS for value in (None, 3, [], {}, True)),
    *((field, value) for field in COUNTS for value in (None, "x", [], {}, True)),
    *((field, value) for field in LISTS for value in ("x", 3, {}, True, [True], [None], ["1"], [-1])),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_value_of_another_kind_is_named_with_its_field_and_line(tmp_path, field, value):
    path = write(tmp_path / "run") / "rounds.jsonl"
    path.write_text(json.dumps({**attrs.asdict(RECORDS[1]), field: value}) + "\n")
    with pytest.raises(DataError, match=rf"rounds\.jsonl:1: {field} is .*, expected .*; delete the line"):
        read(tmp_path / "run")


@pytest.mark.parametrize("seconds", ["NaN", "Infinity", "-0.5", "[NaN]", "[-1.0]"])
def test_times_that_cannot_be_are_refused(tmp_path, seconds):
    path = write(tmp_path / "run") / "rounds.jsonl"
    field = "rest_s" if "[" in seconds else "decode_s"
    words = f"not JSON .*{seconds.strip('[]')} is no number" if "N" in seconds or "I" in seconds else f"{field} is "
    row = json.dumps({**attrs.asdict(RECORDS[1]), field: "here"}).replace('"here"', seconds)
    path.write_text(row + "\n")
    with pytest.raises(DataError, match=rf"rounds\.jsonl:1: {words}"):
        read(tmp_path / "run")


def test_an_answer_that_stands_there_twice_is_not_counted_twice(tmp_path):
    path = write(tmp_path / "run") / "rounds.jsonl"
    path.write_text(path.read_text() * 2)
    with pytest.raises(DataError, match=r"rounds\.jsonl:3: .* has answered turn 1 of prompt 'a', repeat 1, before"):
        read(tmp_path / "run")


def test_missing_or_foreign_folders(tmp_path):
    with pytest.raises(UsageError, match="holds no benchmark results"):
        read(tmp_path)
    folder = write(tmp_path / "run")
    with pytest.raises(UsageError, match="already holds results; name another folder"):
        ResultsWriter(folder, CONDITIONS)
    (folder / "conditions.json").write_text('{"format_version": 99}')
    with pytest.raises(DataError, match="format_version is 99, expected 1"):
        read(folder)
    (folder / "conditions.json").write_text("{\n]")
    with pytest.raises(DataError, match=r"conditions\.json:2: not JSON"):
        read(folder)
    (folder / "conditions.json").write_text("[]")
    with pytest.raises(DataError, match="expected an object with a format_version, found a list"):
        read(folder)


def test_a_file_that_is_missing_is_named_once(tmp_path):
    with pytest.raises(DataError) as caught:
        read_object(tmp_path / "conditions.json")
    path = str(tmp_path / "conditions.json")
    assert str(caught.value).startswith(f"{path} cannot be read (No such file or directory); restore the file")
    assert str(caught.value).count(path) == 1


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        DiskError, match=r"run: results cannot be written .*; free some space or name another folder with --out"
    ):
        ResultsWriter(tmp_path / "file" / "run", CONDITIONS)


def test_the_old_summary_survives_a_failure(tmp_path, monkeypatch):
    folder = write(tmp_path / "run", summary={"tau": 1.0})

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        results.write_json(folder / "summary.json", {"format_version": 1, "tau": 2.0})
    assert read(folder).summary == {"tau": 1.0}
    assert sorted(path.name for path in folder.iterdir()) == ["conditions.json", "rounds.jsonl", "summary.json"]


def test_default_folder_name():
    assert re.fullmatch(r"runs/bench-\d{4}-\d\d-\d\d-my-suite-[0-9a-f]{6}", default_directory("my suite").as_posix())
    assert default_directory("x") != default_directory("x")


def test_drafters_budgets_and_date_may_differ_within_a_table_and_nothing_else():
    other = {**CONDITIONS, "drafters": {"b": {}}, "budgets": ["chain:8"], "date": "2027-01-01"}
    assert conditions_key(other) == conditions_key(CONDITIONS)
    check_comparable({"one": CONDITIONS, "two": other})
    warm = {
        **CONDITIONS,
        "sampling": {"temperature": 1.0, "seed": 0},
        "target": {**CONDITIONS["target"], "packed": True},
    }
    assert conditions_key(warm) != conditions_key(CONDITIONS)
    with pytest.raises(UsageError) as caught:
        check_comparable({"one": CONDITIONS, "two": other, "three": warm})
    assert str(caught.value) == (
        "one and three cannot stand in one table, since they differ in target.packed (False against True), "
        "sampling.temperature (0.0 against 1.0); run them alike, or table them apart."
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0, expected at least"),
        ({"repeats": 0}, "repeats is 0, expected at least 1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"temperature": -1.0}, "temperature is -1.0, expected a number of at least 0"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"verification": "mtach"}, "verification is 'mtach', expected 'match' or 'rejection'"),
        ({"turns": "second"}, "turns is 'second', expected 'first' or 'all'"),
    ],
)
def test_settings_that_cannot_be_meant(wrong, said):
    with pytest.raises(UsageError, match=said):
        Settings(**wrong)


def test_when_texts_must_be_equal():
    assert Settings().same_text and Settings(temperature=1.0).same_text and Settings(verification="rejection").same_text
    assert not Settings(verification="rejection", temperature=1.0).same_text


def test_the_code_that_ran_is_known_by_its_sources_where_no_commit_is(tmp_path, monkeypatch):
    def hashed(**files):
        package = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, text in files.items():
            (package / name).mkdir(parents=True)
            (package / name / "a.py").write_text(text)
            (package / name / "notes.md").write_text(package.name)  # what is not code changes no number
        monkeypatch.setattr(conditions_file, "PACKAGE", package)
        conditions_file._sources.cache_clear()
        found = code()
        assert found["commit"] is None
        return found["sources_sha256"]

    first = hashed(x="1", y="2")
    assert hashed(y="2", x="1") == first
    others = [hashed(x="1", y="3"), hashed(x="2", y="1"), hashed(x="1", z="2"), hashed(x="1"), hashed(x="12", y="")]
    assert len({first, *others}) == 6
    monkeypatch.undo()
    conditions_file._sources.cache_clear()
    assert re.fullmatch("[0-9a-f]{16}", code()["sources_sha256"])


def test_a_wheel_and_a_checkout_of_the_same_sources_share_a_table():
    """A wheel knows no commit; the hash of the sources says what ran."""
    made = {"code": {"sources_sha256": "ab", "commit": "c0ffee", "torch": "2"}, "run": {"batch_size": 1}}
    wheel = {**made, "code": {**made["code"], "commit": None}}
    assert conditions_key(made) == conditions_key(wheel) and not differing(made, wheel)
    other = {**made, "code": {**made["code"], "sources_sha256": "cd"}}
    assert differing(made, other) == {"code.sources_sha256": ("ab", "cd")}
    old = {**made, "code": {"commit": "c0ffee", "torch": "2"}}
    assert differing(old, {**old, "code": {**old["code"], "commit": "decaf"}}) == {"code.commit": ("c0ffee", "decaf")}
