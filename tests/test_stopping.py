"""Stopped and started again: half-made features are gone on with, a finished run is left as it is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from drafterzoo.cli import GOES_ON, main
from drafterzoo.engine.coupling import Coupling, Fit
from drafterzoo.errors import DataError, UsageError
from drafterzoo.target import Target
from drafterzoo.training import features, run
from drafterzoo.training.features import open_cache
from drafterzoo.training.rollouts import Rollouts
from tests.tiny import tiny_rollouts, tiny_target

VOCAB = 64
TAPS = (2, 4, 5)
HERE = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("llama")


@pytest.fixture
def rollouts(tmp_path: Path) -> Rollouts:
    return tiny_rollouts(tmp_path, VOCAB)


@pytest.fixture
def recipe(rollouts: Rollouts, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe for the tiny target, and batches of features so small that there are several."""
    monkeypatch.setattr(run, "load_target", lambda *args, **options: target)
    monkeypatch.setattr(features, "_TOKENS_AT_ONCE", 40)
    monkeypatch.setattr("drafterzoo.training.trainer.LEARNT_NOTHING", 0.0)  # of random answers there is little to learn
    path = tmp_path / "small.toml"
    path.write_text(
        f'spec = "eagle3.1"\n[drafter]\ndraft_vocab_size = 32\n'
        f'[data]\nrollouts = "{rollouts.path}"\ncache = "{tmp_path / "cache"}"\npack = 40\n'
        f"[run]\nepochs = 1.0\nfit_coupling = 8\n[evaluate]\nprompts = 1\nmax_new_tokens = 3\n"
    )
    return path


def counting(monkeypatch: pytest.MonkeyPatch, then: Callable[[int], None] = lambda number: None) -> list[list[int]]:
    """Note the lengths of every batch that the target reads; `then` is called before it does, with its number."""
    read, batches = features.read_batch, []

    def noted(target: Target, sequences: Any, *how: Any) -> Any:
        then(len(batches) + 1)
        batches.append([len(ids) for ids in sequences])
        return read(target, sequences, *how)

    monkeypatch.setattr(features, "read_batch", noted)
    return batches


def contents(cache: Path) -> dict[str, bytes]:
    """The files of the one cache under this folder; the lock is nobody's business."""
    (folder,) = (path for path in cache.iterdir() if path.is_dir())
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"}


# -- features --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop_at", [1, 3, 5])
def test_features_stopped_by_ctrl_c_go_on_where_they_were(
    stop_at: int, target: Target, rollouts: Rollouts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "_TOKENS_AT_ONCE", 40)
    with monkeypatch.context() as patch:
        whole = counting(patch)
        open_cache(target, rollouts, TAPS, 512, tmp_path / "straight")

    def interrupt(number: int) -> None:
        if number == stop_at:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        first = counting(patch, interrupt)
        with pytest.raises(KeyboardInterrupt):
            open_cache(target, rollouts, TAPS, 512, tmp_path / "broken")
    assert "index.json" not in contents(tmp_path / "broken")
    with monkeypatch.context() as patch:
        second = counting(patch)
        open_cache(target, rollouts, TAPS, 512, tmp_path / "broken")
    assert len(whole) > 5 and first + second == whole and len(first) == stop_at - 1
    assert contents(tmp_path / "broken") == contents(tmp_path / "straight")


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "progress.json").write_text("{"),
        lambda folder: (folder / "progress.json").write_text("[" * 100_000),
        lambda folder: (folder / "progress.json").write_text('{"identity": {}, "documents": 5}'),
        lambda folder: (folder / "hidden.f16").write_bytes(b"\0" * 10),
        lambda folder: (folder / "lse.f32").unlink(),
    ],
    ids=["no JSON", "too deep", "of something else", "a file cut short", "a file gone"],
)
def test_features_that_cannot_be_trusted_are_made_anew(
    damage: Callable[[Path], Any], target: Target, rollouts: Rollouts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "_TOKENS_AT_ONCE", 40)
    open_cache(target, rollouts, TAPS, 512, tmp_path / "straight")

    def interrupt(number: int) -> None:
        if number == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        counting(patch, interrupt)
        with pytest.raises(KeyboardInterrupt):
            open_cache(target, rollouts, TAPS, 512, tmp_path / "broken")
    damage(next((tmp_path / "broken").iterdir()))
    batches = counting(monkeypatch)
    open_cache(target, rollouts, TAPS, 512, tmp_path / "broken")
    assert sum(map(len, batches)) == len(rollouts.rows)
    assert contents(tmp_path / "broken") == contents(tmp_path / "straight")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "lse.f32").unlink(), "lse.f32 is missing"),
        (lambda folder: os.truncate(folder / "hidden.f16", 10), "hidden.f16 holds 10 bytes, expected"),
        (lambda folder: os.truncate(folder / "argmax.i32", 10_000), "argmax.i32 holds 10,000 bytes, expected"),
        (lambda folder: (folder / "features.f16").write_bytes(b""), "features.f16 holds 0 bytes"),
    ],
    ids=["gone", "cut", "longer", "empty"],
)
def test_finished_features_that_are_damaged_are_made_again(
    damage: Callable[[Path], Any],
    words: str,
    target: Target,
    rollouts: Rollouts,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    open_cache(target, rollouts, TAPS, 512, tmp_path / "cache")
    whole, folder = contents(tmp_path / "cache"), next((tmp_path / "cache").iterdir())
    capsys.readouterr()
    open_cache(target, rollouts, TAPS, 512, tmp_path / "cache")
    assert capsys.readouterr().err == ""
    damage(folder)
    open_cache(target, rollouts, TAPS, 512, tmp_path / "cache").document(0)
    lines = [line for line in capsys.readouterr().err.splitlines() if "damaged" in line]
    assert len(lines) == 1 and lines[0].startswith(f"{folder}: the feature cache is damaged ({words}")
    assert contents(tmp_path / "cache") == whole


def test_features_being_read_are_not_emptied_when_they_are_made_again(
    target: Target, rollouts: Rollouts, tmp_path: Path
) -> None:
    """Reading what has been cut off from a mapped file ends a process."""
    reading = open_cache(target, rollouts, TAPS, 512, tmp_path / "cache")
    before = reading.document(3)
    (next((tmp_path / "cache").iterdir()) / "lse.f32").unlink()
    open_cache(target, rollouts, TAPS, 512, tmp_path / "cache")
    assert torch.equal(reading.document(3).features, before.features)


@pytest.mark.parametrize("doing", ["made", "read"])
def test_features_that_cannot_be_had_are_one_sentence(
    doing: str, target: Target, rollouts: Rollouts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_cache(target, rollouts, TAPS, 512, tmp_path / "cache")
    if doing == "made":
        file = next((tmp_path / "cache").iterdir()) / "lse.f32"
        file.unlink()
        file.mkdir()
    else:

        def refuse(*args: Any, **options: Any) -> Any:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(features.np, "memmap", refuse)
    with pytest.raises(DataError, match=rf'the feature cache cannot be {doing} \(.*\); set features = "online"'):
        open_cache(target, rollouts, TAPS, 512, tmp_path / "cache")


CHILD = """
import signal, sys, time
from pathlib import Path
from drafterzoo.cli import main
from drafterzoo.training import features, run
from tests.tiny import tiny_rollouts, tiny_target

signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where the tests run in the background
target = tiny_target("llama")
run.load_target = lambda *args, **options: target
features._TOKENS_AT_ONCE, features._SECONDS_BETWEEN_SAVES = 40, 0.0
read, count = features.read_batch, 0

def slow(*args):
    global count
    count += 1
    if count == 4:
        Path(sys.argv[2]).touch()
        time.sleep(600)
    return read(*args)

features.read_batch = slow
sys.exit(main(["train", sys.argv[1], "--out", sys.argv[3]]))
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_training_stopped_in_its_features_goes_on(
    number: signal.Signals,
    recipe: Path,
    target: Target,
    rollouts: Rollouts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A process of its own, stopped in the fourth batch: three are whole."""
    marker, out = tmp_path / "reading", tmp_path / "a run"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(recipe), str(marker), str(out)],
        cwd=HERE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for _ in range(6000):
            if marker.exists() or child.poll() is not None:
                break
            time.sleep(0.05)
        child.send_signal(number)
        _, said = child.communicate(timeout=120)
    finally:
        child.kill()
    if number == signal.SIGINT:
        assert child.returncode == 130 and "Traceback" not in said
        last = said.splitlines()[-1]
        assert last.startswith("drafterzoo: interrupted") and last.endswith(f"drafterzoo train {recipe} --out '{out}'")
    else:
        assert child.returncode == -signal.SIGKILL
    kept = json.loads(contents(tmp_path / "cache")["progress.json"])
    assert 3 <= kept["documents"] < len(rollouts.rows)
    with monkeypatch.context() as patch:
        batches = counting(patch)
        assert main(["train", str(recipe), "--out", str(out)]) == 0
    capsys.readouterr()
    assert sum(map(len, batches)) == len(rollouts.rows) - kept["documents"]
    open_cache(target, rollouts, TAPS, 2048, tmp_path / "straight")
    assert contents(tmp_path / "cache") == contents(tmp_path / "straight")


def test_ctrl_c_names_the_command_of_every_verb_that_can_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(words: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("drafterzoo.cli._run", interrupted)
    for verb in GOES_ON:
        assert main([verb, "my file.jsonl", "--out", "x"]) == 130
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and said.endswith(f"go on with: drafterzoo {verb} 'my file.jsonl' --out x\n")
    assert main(["bench"]) == 130 and capsys.readouterr().err == "drafterzoo: interrupted.\n"


# -- a finished run --------------------------------------------------------------------------------------------------


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }


def test_a_finished_run_is_left_as_it_is(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    typed = ["train", str(recipe), "--out", str(out)]
    assert main(typed) == 0
    before, first = files(out), capsys.readouterr().out
    assert "finished at step" in first and "already" not in first

    def refuse(*args: Any, **options: Any) -> Any:
        raise AssertionError("nothing may be loaded")

    monkeypatch.setattr(run, "load_target", refuse)
    assert main([*typed, "--threads", "1"]) == 0
    said = capsys.readouterr()
    assert said.out.count("\n") == 1 and said.err == ""
    for words in ("already finished", f"'dir:{out / 'best'}'", "--out"):
        assert words in said.out
    assert files(out) == before
    assert main([*typed, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["finished"] is True
    moved = out.rename(tmp_path / "moved")
    assert run.train(recipe, out=moved, quiet=True).summary["directory"] == str(moved)


def test_training_gives_the_threads_back(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe.write_text(recipe.read_text().replace("[run]", "[run]\nthreads = 2"))
    seen: list[int] = []

    def look(*args: Any, **options: Any) -> Any:
        seen.append(torch.get_num_threads())
        raise UsageError("seen enough")

    monkeypatch.setattr(run, "load_target", look)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with pytest.raises(UsageError, match="seen enough"):
            run.train(recipe, out=tmp_path / "run", quiet=True)
        assert seen == [2] and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("lost", ["summary.json", "best/config.json"])
def test_what_was_left_undone_is_done_by_the_same_command(
    lost: str, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed after the last step and before the last file: the decode and the fit are made up for."""
    out = tmp_path / "run"
    whole = run.train(recipe, out=out, quiet=True)
    (out / lost).unlink()
    again = run.train(recipe, out=out, quiet=True)
    assert not again.already and again.summary["coupling"] == whole.summary["coupling"]
    assert run.train(recipe, out=out, quiet=True).already


def test_a_coupling_that_cannot_be_leaves_the_weights_as_they_are(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drafter that has learnt next to nothing, or a handful of roots, may be told to count for less than nothing."""
    monkeypatch.setattr(run, "fit", lambda samples: Fit(Coupling(-0.7, 0.74), 0.0))
    done = run.train(recipe, out=tmp_path / "run", quiet=True)
    assert done.summary["finished"] and done.summary["coupling"] == [1.0, 1.0]
    monkeypatch.setattr(run, "fit", lambda samples: Fit(Coupling(0.7, 0.74), 0.0))
    assert run.train(recipe, out=tmp_path / "other", quiet=True).summary["coupling"] == [0.7, 0.74]


def test_another_recipe_is_not_taken_for_the_finished_one(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run.train(recipe, out=out, quiet=True)
    recipe.write_text(recipe.read_text().replace("fit_coupling = 8", "fit_coupling = 4"))
    assert not run.train(recipe, out=out, quiet=True).already
    assert run.train(recipe, out=out, quiet=True).already
