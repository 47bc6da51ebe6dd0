"""Running a grid: equal counters however often it is killed, failures that stay their own, folders that refuse."""

from __future__ import annotations

import json
import multiprocessing
import random
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock

from drafterzoo.cli import main
from drafterzoo.cli.grid import remarks
from drafterzoo.drafters.lookup import Lookup
from drafterzoo.errors import CheckpointError, DataError, NotInstalledError, UsageError
from drafterzoo.evaluation import grid_folder, grid_summary
from drafterzoo.evaluation.grid import grid
from drafterzoo.evaluation.results import read
from drafterzoo.registry import DRAFTERS
from tests.test_target_loading import tiny_tokenizer
from tests.tiny import tiny_model


class Moody(Lookup):
    """Lookup that raises `mood` from its n-th draft step on."""

    name = "moody"
    mood: BaseException | None = None
    after = 0

    def expand(self, state, frontier, select):
        if Moody.mood is not None:
            Moody.after -= 1
            if Moody.after < 0:
                raise Moody.mood
        return super().expand(state, frontier, select)


@pytest.fixture
def moody():
    DRAFTERS.register("moody", Moody)
    Moody.mood = None
    yield Moody
    DRAFTERS._entries.pop("moody")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a tiny target and a suite of eight prompts, two of them with a second turn."""
    folder = tmp_path_factory.mktemp("grid")
    tiny_model(layers=1, hidden=16).save_pretrained(folder / "target")
    tiny_tokenizer().save_pretrained(folder / "target")
    turns = [(["hello " * (1 + i % 3) + "world " * (i % 2), "world"])[: 1 + (i % 4 == 1)] for i in range(8)]
    lines = [json.dumps({"turns": t, "category": "ab"[i % 2]}) for i, t in enumerate(turns)]
    (folder / "p.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def recipe(place):
    return {
        "drafters": ["lookup(max_ngram=2)"],
        "budgets": ["chain:2", 5],
        "suites": [str(place / "p.jsonl")],
        "target": str(place / "target"),
        "temperatures": [0.0, 1.0],
        "batch_sizes": [1, 4],
        "skip": ["temperature=0,batch_size=4"],
        "turns": "all",
        "max_new_tokens": 6,
        "warmup": 0,
        "name": "toy",
        "threads": 1,
    }


@pytest.fixture(scope="module")
def single(recipe):
    """One table of it."""
    return {**recipe, "temperatures": [0.0], "batch_sizes": [1], "skip": []}


@pytest.fixture(scope="module")
def whole(recipe, tmp_path_factory):
    """The grid, never stopped."""
    return grid(recipe, out=tmp_path_factory.mktemp("whole") / "out")


def counters(directory: Path) -> dict[str, bytes]:
    """Every table's rounds.jsonl, its seconds taken out."""

    def stripped(line: str) -> bytes:
        row = {key: value for key, value in json.loads(line).items() if not key.endswith("_s")}
        return json.dumps(row, separators=(",", ":")).encode()

    files = sorted(directory.glob("*/rounds.jsonl"))
    return {file.parent.name: b"\n".join(map(stripped, file.read_text().splitlines())) for file in files}


def lines(directory: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in directory.glob("*/rounds.jsonl"))


def test_every_table_is_a_results_directory_and_the_summary_spans_them(whole):
    summary = whole.summary
    assert summary["complete"] and summary["planned"] == 3 and not summary["failures"]
    for table in summary["tables"]:
        found = read(whole.directory / table["table"])
        assert found.summary["complete"] and len(found.records) == 10 * 5 and table["answers"] == 10
        assert table["lossless"] == {"checked": True, "texts": 10 * 4, "different": 0, "ties": 0}
        assert [row["drafter"] for row in table["rows"]] == ["none", *["lookup"] * 2, *["lookup(max_ngram=2)"] * 2]
        assert found.conditions["run"]["batch_size"] == table["batch_size"]
        assert found.conditions["sampling"]["temperature"] == table["temperature"]
        by_speed = {row["budget"]: row["speedup"]["value"] for row in table["rows"] if row["drafter"] == "lookup"}
        assert table["best"]["lookup"]["speedup"] == max(by_speed.values())
        assert by_speed[table["best"]["lookup"]["budget"]] == max(by_speed.values())
    plan = json.loads((whole.directory / "grid.json").read_text())
    assert len(plan["sessions"]) == 1 and len(plan["tables"]) == 3 and plan["recipe"]["turns"] == "all"
    assert not (whole.directory / "failures.json").exists()


def test_the_tables_can_be_drawn(whole):
    text = whole.markdown()
    assert "| T | batch | drafter | budget | τ with bonus | speed-up [95 %] | tok/s | its best budget |" in text
    assert "| 1 | 4 | lookup | chain:2 |" in text and "What a round costs" in text and "seed=0" in text
    assert "forwards of the drafter's block" in text and "Over all suites" not in text  # there is one suite
    marked = [line for line in text.splitlines() if line.endswith("| best |")]
    assert len(marked) == sum(len(table["best"]) for table in whole.summary["tables"]), "one budget of each drafter"
    whole.table()


def test_texts_do_not_depend_on_batch_size(whole):
    texts = [{(r.cell, *r.key): r.tokens for r in read(whole.directory / f"p_T1_n{n}_seed0").records} for n in (1, 4)]
    assert texts[0] == texts[1]


def test_a_grid_killed_three_times_counts_like_one_that_was_not(whole, recipe, tmp_path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["drafterzoo.evaluation.grid", "drafterzoo.drafters.lookup"])
    out, chance = tmp_path / "out", random.Random()
    total = lines(whole.directory)
    moments = sorted(chance.sample(range(total // 3), 3))
    for moment in moments:
        before = lines(out)
        process = context.Process(target=grid, args=(recipe,), kwargs={"out": out})
        process.start()
        while lines(out) <= max(moment, before) and process.is_alive():  # it has got somewhere
            time.sleep(0.001)
        time.sleep(chance.random() * 0.01)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, f"moments {moments}: it was done before it could be killed"
    assert 0 < lines(out) < total
    assert grid(recipe, out=out).summary["complete"]
    assert counters(out) == counters(whole.directory), f"moments {moments}"
    assert len(json.loads((out / "grid.json").read_text())["sessions"]) == 4


@pytest.mark.parametrize("chance", range(4))
def test_a_file_cut_anywhere_is_made_whole_again(whole, recipe, tmp_path, chance):
    out = tmp_path / "out"
    shutil.copytree(whole.directory, out)
    draw = random.Random(chance)
    for file in out.glob("*/rounds.jsonl"):
        data = file.read_bytes()
        file.write_bytes(data[: draw.randrange(len(data))])
    assert grid(recipe, out=out).summary["complete"]
    assert counters(out) == counters(whole.directory)


def test_a_finished_grid_decodes_nothing_again(whole, recipe):
    before = {file: file.stat().st_mtime_ns for file in whole.directory.glob("*/rounds.jsonl")}
    content = counters(whole.directory)
    again = grid(recipe, out=whole.directory)
    assert again.summary["complete"] and counters(whole.directory) == content
    assert before == {file: file.stat().st_mtime_ns for file in whole.directory.glob("*/rounds.jsonl")}


def test_ctrl_c_writes_summaries_and_the_same_call_goes_on(single, tmp_path, moody, capsys):
    mine = {**single, "drafters": ["moody"], "exclude": ["lookup"]}
    whole = grid(mine, out=tmp_path / "whole")
    moody.mood, moody.after = KeyboardInterrupt(), 60
    with pytest.raises(KeyboardInterrupt):
        grid(mine, out=tmp_path / "out", show_progress=True)
    assert "the same command goes on" in capsys.readouterr().err
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["complete"] is False and summary["tables"]
    moody.mood = None
    assert grid(mine, out=tmp_path / "out").summary["complete"]
    assert counters(tmp_path / "out") == counters(whole.directory)


def test_stopped_before_the_first_group_nothing_is_left(single, tmp_path, moody):
    moody.mood, moody.after = KeyboardInterrupt(), 0
    with pytest.raises(KeyboardInterrupt):
        grid({**single, "drafters": ["moody"], "exclude": ["lookup"]}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_failing_cell_is_recorded_the_rest_goes_on_and_a_rerun_tries_again(single, tmp_path, moody, capsys):
    text = tmp_path / "r.toml"
    values = {**single, "drafters": ["moody"]}
    text.write_text("\n".join(f"{key} = {json.dumps(value)}" for key, value in values.items()))
    moody.mood, moody.after = RuntimeError("no\nluck"), 60
    assert main(["grid", str(text), "--out", str(tmp_path / "out"), "--json"]) == 1
    said = capsys.readouterr()
    summary = json.loads(said.out)
    failures = json.loads((tmp_path / "out" / "failures.json").read_text())["failures"]
    assert summary["failures"] == failures and {f["cell"].partition("@")[0] for f in failures} == {"moody"}
    assert all("RuntimeError: no luck" in f["reason"] and "prompt 'p-" in f["reason"] for f in failures)
    assert "failed: prompt" in said.err and not summary["complete"]
    rows = {(row["drafter"], row["budget"]): row["answers"] for row in summary["tables"][0]["rows"]}
    assert rows["lookup", "chain:2"] == rows["none", ""] == 10
    assert min(answers for (drafter, _), answers in rows.items() if drafter == "moody") < 10
    moody.mood = None
    assert main(["grid", str(text), "--out", str(tmp_path / "out")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "all 40 equal plain decoding's, token for token" in said and "failed" not in said
    assert not (tmp_path / "out" / "failures.json").exists()
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["complete"]


def test_a_drafter_that_cannot_be_loaded_is_a_failure_of_its_cells(single, tmp_path):
    missing = f"dir:{tmp_path / 'nothing'}"
    mine = {**single, "drafters": [missing]}
    result = grid(mine, out=tmp_path / "out")
    assert [failure["cell"] for failure in result.summary["failures"]] == [
        f"{missing}@chain:2", f"{missing}@nodes=5,depth=5,grow=6,offer=6"
    ]  # fmt: skip
    assert [row["drafter"] for row in result.summary["tables"][0]["rows"]] == ["none", "lookup", "lookup"]
    assert not result.summary["complete"]
    with pytest.raises(CheckpointError, match="no such folder"):
        grid({**mine, "exclude": ["lookup"]}, out=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_progress_names_the_cell_and_the_table(recipe, tmp_path, monkeypatch, capsys):
    from drafterzoo import progress

    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)  # every line
    result = grid(recipe, out=tmp_path / "out", show_progress=True)
    said = capsys.readouterr().err
    assert "; lookup(max_ngram=2) tree:5 on p, T=0, batch size 1, prompt 8 of 8\n" in said
    assert "; plain decoding on p, T=1, batch size 4, prompts 5 to 8 of 8" in said and " left; " in said
    assert "ms per\nround" in grid_summary.grids(result.summary)[-1].columns


def test_where_decodes_a_part_and_the_rest_may_follow(whole, recipe, tmp_path):
    out = tmp_path / "out"
    part = grid(recipe, out=out, where="drafter=lookup,budget=5,batch_size=4")
    assert not part.summary["complete"] and len(part.summary["tables"]) == 1
    said = remarks(part.summary, "drafter=lookup,budget=5,batch_size=4")
    assert "intervals: of 2 batches they say little; ask at least 20 prompts, or in smaller batches" in said
    assert said[-1].endswith("all that --where selects is done, and without it the same command goes on")
    assert remarks(part.summary)[-1].endswith("; the same command goes on")
    assert [row["drafter"] for row in part.summary["tables"][0]["rows"]] == ["none", "lookup"]
    assert grid(recipe, out=out).summary["complete"]
    assert {name: sorted(text.split(b"\n")) for name, text in counters(out).items()} == {
        name: sorted(text.split(b"\n")) for name, text in counters(whole.directory).items()
    }


@pytest.fixture
def copy(whole, tmp_path):
    shutil.copytree(whole.directory, tmp_path / "out")
    return tmp_path / "out"


def edit(file: Path, change) -> None:
    value = json.loads(file.read_text())
    change(value)
    file.write_text(json.dumps(value))


def test_another_grid_in_the_folder_is_refused(recipe, copy):
    with pytest.raises(UsageError, match=r"holds the grid 'toy', made with budgets = \['chain:2', '5'\], now \['8'\]"):
        grid({**recipe, "budgets": [8]}, out=copy)
    with pytest.raises(UsageError, match=r"turns = 'all', now 'first' \(and 1 more\); go on with its own recipe"):
        grid({**recipe, "repeats": 2, "turns": "first"}, out=copy)
    assert grid({**recipe, "name": "renamed"}, out=copy).summary["complete"]  # changes no number
    assert grid({**recipe, "threads": 0}, out=copy).summary["complete"], "what counts is how many there are"


def test_changed_conditions_are_refused_by_name(recipe, copy):
    file = copy / "p_T0_n1_seed0" / "conditions.json"
    before = file.read_text()
    changes = {
        "suite.sha256": lambda c: c["suite"].update(sha256="other"),
        "drafters.lookup.weights_sha256": lambda c: c["drafters"]["lookup"].update(weights_sha256="other"),
        "target.tokenizer": lambda c: c["target"].update(tokenizer="other"),
        "machine.threads": lambda c: c["machine"].update(threads=64),
    }
    for key, change in changes.items():
        file.write_text(before)
        edit(file, change)
        advice = "give --threads 64" if key == "machine.threads" else "restore it"
        with pytest.raises(UsageError, match=rf"cannot go on, since {key} was .* and is .*; {advice}, or name"):
            grid(recipe, out=copy)
    file.write_text(before)
    edit(file, lambda c: c["code"].update(commit="of yesterday"))
    assert grid(recipe, out=copy).summary["complete"]


def test_a_changed_suite_is_refused(recipe, copy, tmp_path):
    suite = tmp_path / "p.jsonl"
    suite.write_text(Path(recipe["suites"][0]).read_text().replace("world", "hello"))
    edit(copy / "grid.json", lambda g: g["recipe"].update(suites=[str(suite)]))
    with pytest.raises(UsageError, match=r"cannot go on, since suite.sha256 was"):
        grid({**recipe, "suites": [str(suite)]}, out=copy)


def test_newer_formats_are_refused(recipe, copy):
    edit(copy / "p_T0_n1_seed0" / "conditions.json", lambda c: c.update(format_version=2))
    with pytest.raises(DataError, match="format_version is 2, expected 1; read it with the drafterzoo that wrote it"):
        grid(recipe, out=copy)
    for name in ("summary.json", "grid.json"):
        edit(copy / name, lambda c: c.update(format_version=2))
        before = (copy / name).read_bytes()
        with pytest.raises(DataError, match=rf"{name}: format_version is 2"):
            grid(recipe, out=copy)
        assert (copy / name).read_bytes() == before
        edit(copy / name, lambda c: c.update(format_version=1))


def test_lines_that_cannot_be_this_grids_are_refused(recipe, copy):
    file = copy / "p_T1_n4_seed0" / "rounds.jsonl"
    whole = file.read_text().splitlines(keepends=True)
    file.write_text("".join(whole[1:]))  # a line out of the middle of a batch
    with pytest.raises(DataError, match=r"has 3 lines for the group of prompt 1, turn 1, repeat 1, expected 4"):
        grid(recipe, out=copy)
    assert file.read_text() == "".join(whole[1:])
    file.write_text(whole[0].replace('"prompt":"p-1"', '"prompt":"q"'))
    with pytest.raises(DataError, match="prompt 'q' is not in p"):
        grid(recipe, out=copy)


def test_places_that_are_not_free(recipe, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"is not empty and holds no grid \(grid.json is missing\)"):
        grid(recipe, out=tmp_path / "full")
    with pytest.raises(UsageError, match="is no folder"):
        grid(recipe, out=tmp_path / "full" / "notes.txt")
    assert [file.name for file in (tmp_path / "full").iterdir()] == ["notes.txt"]
    (tmp_path / "busy").mkdir()
    with (
        FileLock(tmp_path / "busy" / grid_folder.LOCK),
        pytest.raises(UsageError, match="another process is working on this grid"),
    ):
        grid(recipe, out=tmp_path / "busy")


def test_a_target_that_is_not_there_leaves_nothing(recipe, tmp_path):
    with pytest.raises(UsageError, match="is not a folder"):
        grid({**recipe, "target": str(tmp_path / "none")}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_several_suites_have_means(single, tmp_path):
    suite = single["suites"][0]
    result = grid({**single, "suites": [f"{suite}:a", f"{suite}:b"], "limit": 2}, out=tmp_path / "out")
    a, b = result.summary["tables"]
    assert (a["table"], b["table"]) == ("p-a_T0_n1_seed0", "p-b_T0_n1_seed0")
    mean = result.summary["means"][0]
    assert mean["suites"] == 2 and mean["tau"] == pytest.approx((a["rows"][1]["tau"] + b["rows"][1]["tau"]) / 2)
    assert "Over all suites" in result.markdown()


@pytest.mark.slow
def test_two_raylets_give_the_same_files(whole, recipe, tmp_path):
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        spread = grid(recipe, out=tmp_path / "out", ray=cluster.address)
    finally:
        cluster.shutdown()
    assert spread.summary["complete"] and counters(tmp_path / "out") == counters(whole.directory)
    names = {file.name for file in whole.directory.iterdir()}
    assert {file.name for file in (tmp_path / "out").iterdir()} == names


def test_ray_that_is_not_there_is_said(recipe, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(NotInstalledError, match=r"pip install 'drafterzoo\[ray\]'"):
        grid(recipe, out=tmp_path / "out", ray="auto")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("file", "how", "words"),
    [
        ("grid.json", lambda v: v.pop("recipe"), "grid.json: recipe is missing; restore the file"),
        ("grid.json", lambda v: v.update(recipe="mine"), "grid.json: recipe is 'mine', expected"),
        ("grid.json", lambda v: v.pop("sessions"), "grid.json: sessions is missing"),
        ("*/conditions.json", lambda v: v.pop("drafters"), "conditions.json: drafters is missing"),
        ("*/conditions.json", lambda v: v.update(code=3), "conditions.json: code is 3, expected"),
        ("*/summary.json", lambda v: v.pop("rows"), "summary.json: rows is missing; delete it, and the same command"),
        ("*/summary.json", lambda v: v.update(rows="none"), "summary.json: rows is 'none', expected"),
        ("*/summary.json", lambda v: v["rows"][0].pop("tau"), "summary.json: a row has no tau; delete it"),
    ],
)
def test_a_damaged_file_of_a_grid_is_named(single, tmp_path, file, how, words):
    folder = grid(single, out=tmp_path / "out").directory
    (path,) = folder.glob(file)
    value = json.loads(path.read_text())
    how(value)
    path.write_text(json.dumps(value))
    before = counters(folder)
    with pytest.raises(DataError, match=re.escape(words)):
        grid(single, out=folder)
    assert counters(folder) == before
