"""A disk that is full, or a place that cannot be written: found before long work, said in one sentence, status 1."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drafterzoo import disk
from drafterzoo.cli import main
from drafterzoo.disk import check_file, check_folder
from drafterzoo.errors import DiskError
from drafterzoo.evaluation import grid_folder, results
from drafterzoo.evaluation.offline.lines import LINES, LinesFile
from drafterzoo.evaluation.results import ROUNDS, ResultsWriter
from drafterzoo.training import generating
from tests import handmade

FULL = os.strerror(errno.ENOSPC)


def full(*args: Any, **options: Any) -> Any:
    raise OSError(errno.ENOSPC, FULL)


# -- trying a place ---------------------------------------------------------------------------------------------------


def test_trying_a_place_leaves_nothing_behind(tmp_path: Path) -> None:
    check_folder(tmp_path / "new" / "deeper", "x")
    check_file(tmp_path / "new" / "file", "x", "choose another")
    kept = tmp_path / "kept"
    kept.write_bytes(b"half a li")
    check_file(kept, "x", "choose another")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"] and kept.read_bytes() == b"half a li"


@pytest.mark.parametrize("place", ["file", "file/run", "file/run/deeper", "a" * 5000])
def test_a_place_that_is_none_is_refused(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DiskError, match=r"^here cannot be written \(.+\); free some space or name another folder"):
        check_folder(tmp_path / place, "here")
    if place != "file":
        with pytest.raises(DiskError, match=r"^here cannot be written \(.+\); choose another\.$"):
            check_file(tmp_path / place, "here", "choose another")
    with pytest.raises(DiskError, match="Is a directory"):
        check_file(tmp_path, "here", "choose another")


@pytest.mark.parametrize("there", [True, False])
def test_a_full_disk_is_refused(there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk.tempfile, "TemporaryFile", full)
    path = tmp_path / "file"
    if there:
        path.write_text("line\n")
    for check in (lambda: check_folder(tmp_path / "run", "here"), lambda: check_file(path, "here", "free some")):
        with pytest.raises(DiskError, match=FULL) as caught:
            check()
        assert caught.value.exit_status == 1


# -- every verb that writes tries its place before long work ----------------------------------------------------------


def words_of(verb: str, folder: Path, out: Path) -> list[str]:
    """A command line that would be fine but for its output `out`."""
    rollouts = folder / "rollouts.jsonl"
    rollouts.write_text('{"prompt": "p", "prompt_ids": [1], "response_ids": [2, 3]}\n')
    recipe = folder / "recipe.toml"
    recipe.write_text(
        {
            "grid": 'drafters = ["lookup"]\nbudgets = ["chain:4"]\n',
            "train": f'spec = "eagle3.1"\n[data]\nrollouts = "{rollouts}"\n',
        }.get(verb, "")
    )
    return {
        "bench": ["bench", "-d", "lookup", "--out", str(out)],
        "evaluate": ["evaluate", "-d", "lookup", "-r", str(rollouts), "--out", str(out)],
        "grid": ["grid", str(recipe), "--out", str(out)],
        "rollout": ["rollout", "builtin:4", str(out)],
        "train": ["train", str(recipe), "--out", str(out)],
        "report": ["report", str(folder / "results"), "--out", str(out)],
    }[verb]


@pytest.fixture
def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*args: Any, **options: Any) -> Any:
        raise AssertionError("the target is loaded, although what comes of it cannot be written")

    for module in ("target", "target.loading", "evaluation.grid", "training.run"):
        monkeypatch.setattr(f"drafterzoo.{module}.load_target", load)
    monkeypatch.setattr("drafterzoo.evaluation.report.page.section_pictures", load)


@pytest.mark.parametrize("trouble", ["in the way", "full"])
@pytest.mark.parametrize("verb", ["bench", "evaluate", "grid", "rollout", "train", "report"])
def test_an_output_that_cannot_be_written_is_found_before_long_work(
    verb: str, trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, nothing_is_loaded: None
) -> None:
    handmade.write(tmp_path / "results")
    (tmp_path / "file").write_text("in the way")
    out = tmp_path / "new" / "out"
    if trouble == "full":
        monkeypatch.setattr(disk.tempfile, "TemporaryFile", full)
    else:
        out = tmp_path / "file" / "out"
    words = words_of(verb, tmp_path, out)
    assert main(words) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("drafterzoo: ") and str(out) in said and "cannot be written" in said
    assert (FULL if trouble == "full" else "Not a directory") in said and said.endswith(".")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ('rollouts = "FILE/r.jsonl"\n[generate]\nprompts = "builtin:4"\n', "name another file in [data] rollouts"),
        ('rollouts = "R"\ncache = "FILE/cache"\n', "another `cache` folder"),
    ],
)
def test_train_tries_every_place_it_will_write_to(
    section: str, words: str, tmp_path: Path, capsys: Any, nothing_is_loaded: None
) -> None:
    (tmp_path / "file").write_text("in the way")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('spec = "eagle3.1"\n[data]\n' + section.replace("FILE", str(tmp_path / "file")))
    assert main(["train", str(recipe), "--out", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and words in said and not (tmp_path / "run").exists()


def test_a_rollout_to_somebody_elses_file_is_refused_before_the_target_is_loaded(
    tmp_path: Path, capsys: Any, nothing_is_loaded: None
) -> None:
    (tmp_path / "notes.txt").write_text("my notes")
    assert main(["rollout", "builtin:4", str(tmp_path / "notes.txt")]) == 1
    assert "notes.txt:1: not a rollout" in capsys.readouterr().err
    assert (tmp_path / "notes.txt").read_text() == "my notes"


# -- a disk that fills up on the way ----------------------------------------------------------------------------------


def bench_results(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ResultsWriter(folder, {}) as writer:
        monkeypatch.setattr(os, "fsync", full)
        writer.extend(handmade.records())


def bench_summary(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ResultsWriter(folder, {}) as writer:
        monkeypatch.setattr(os, "fsync", full)
        writer.finish({})


def evaluate_summary(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LinesFile(folder, {}) as lines:
        monkeypatch.setattr(os, "fsync", full)
        lines.finish({})


def grid_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    monkeypatch.setattr(os, "fsync", full)
    grid_folder.save(folder, results.SUMMARY, {})


def rollout_lines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", full)
    generating._append(folder / "r.jsonl", [{}])


@pytest.mark.parametrize("fill", [bench_results, bench_summary, evaluate_summary, grid_file, rollout_lines])
def test_a_disk_that_fills_up_is_a_failure_and_no_misuse(
    fill: Callable[[Path, pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DiskError, match=FULL) as caught:
        fill(tmp_path / "run", monkeypatch)
    said = str(caught.value)
    assert caught.value.exit_status == 1 and str(tmp_path / "run") in said and "\n" not in said
    assert not [path for path in tmp_path.rglob("*") if path.name == results.SUMMARY or path.name.startswith(".summ")]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_an_evaluation_says_once_that_the_disk_is_full_and_lets_go_of_its_folder(tmp_path: Path) -> None:
    """Closing a file tries again to write what was refused: that must not bury the sentence, nor leave a lock."""
    with (
        pytest.raises(DiskError, match=f"run: results cannot be written .{FULL}"),
        LinesFile(tmp_path / "run", {}) as f,
    ):
        f._file.close()
        f._file = open("/dev/full", "a")  # noqa: SIM115
        f.append([])
        f._file.write("x" * 9)
        f.append([])
    assert not (tmp_path / "run").exists()
    with LinesFile(tmp_path / "run", {}):
        assert (tmp_path / "run" / LINES).exists()


def test_results_that_a_full_disk_cut_short_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DiskError), ResultsWriter(tmp_path / "run", handmade.conditions()) as writer:
        writer.extend(handmade.records()[:2])
        monkeypatch.setattr(os, "fsync", full)
        writer.extend(handmade.records()[2:])
    assert len((tmp_path / "run" / ROUNDS).read_text().splitlines()) >= 2
    assert json.loads((tmp_path / "run" / "conditions.json").read_text())["format_version"] == results.FORMAT_VERSION
