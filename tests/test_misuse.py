"""What a user can get wrong, from the command line and from Python: one sentence each, and nothing half-done."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch

import drafterzoo
from drafterzoo.budget import MOST, Budget
from drafterzoo.catalogue import load
from drafterzoo.cli import main
from drafterzoo.drafters.eagle31 import Eagle31
from drafterzoo.engine.sampling import Sampling
from drafterzoo.errors import CheckpointError, DataError, DrafterzooError, UsageError
from drafterzoo.registry import DRAFTERS
from drafterzoo.target import embedded, load_target
from drafterzoo.training.generating import make_rollouts
from drafterzoo.training.recipe import build_recipe
from drafterzoo.training.rollouts import read_rollouts
from tests.test_target_loading import tiny_tokenizer
from tests.tiny import tiny_model, tiny_target


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint for the tiny target."""
    target = tiny_target()
    return Eagle31(Eagle31.debug_config(target), target).save_pretrained(tmp_path / "checkpoint")


def rewrite(folder: Path, section: str | None, key: str, value: Any) -> Path:
    """The checkpoint with one value of its config replaced."""
    config = json.loads((folder / "config.json").read_text())
    (config[section] if section else config)[key] = value
    (folder / "config.json").write_text(json.dumps(config))
    return folder


# -- targets ---------------------------------------------------------------------------------------------------------


def test_the_embedded_target_loads_by_the_name_that_checkpoints_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded revision is that of the package's file, which the Hub has never heard of."""

    def stop() -> Path:
        raise UsageError("stop here")

    monkeypatch.setattr(embedded, "ensure_converted", stop)
    with pytest.raises(UsageError, match="stop here"):
        load_target(embedded.NAME, revision=embedded.SOURCE_SHA256[:8])


def test_without_a_home_folder_the_cache_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DRAFTERZOO_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(DrafterzooError, match="set DRAFTERZOO_CACHE"):
        embedded.cache_folder()


def test_a_prompt_that_is_no_text_is_refused(tmp_path: Path) -> None:
    target = drafterzoo.load_target(tiny_model(layers=1), tokenizer=tiny_tokenizer())
    with pytest.raises(UsageError, match=r"character 3 is '.udcff'.*UTF-8"):
        drafterzoo.generate("none", "hi\udcff", target=target, max_new_tokens=2)


def test_half_a_character_typed_as_a_prompt_is_misuse(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = drafterzoo.load_target(tiny_model(layers=1), tokenizer=tiny_tokenizer())
    monkeypatch.setitem(vars(drafterzoo), "load_target", lambda *names: target)
    for choice in (["--plain"], ["-d", "none"]):
        assert main(["generate", "hi\udcff", "-n", "2", *choice]) == 2
        said = capsys.readouterr().err
        assert said.startswith("drafterzoo: prompt: character 3 is '\\udcff'") and said.count("\n") == 1


@pytest.mark.parametrize("count", ["0", "-1", "4097", "99999999999"])
@pytest.mark.parametrize(
    "words",
    [
        ["generate", "Hello"],
        ["bench", "-d", "lookup"],
        ["rollout", "builtin:4", "rollouts.jsonl"],
        ["evaluate", "-d", "lookup", "-r", "rollouts.jsonl"],
    ],
    ids=lambda words: words[0],
)
def test_threads_that_no_machine_has_are_refused(
    words: list[str], count: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    assert main([*words, f"--threads={count}"]) == 2
    said = capsys.readouterr().err
    assert "threads" in said and "4096" in said and said.count("\n") == 1
    assert torch.get_num_threads() == before and not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--temperature=nan", "--temperature=-1", "--top-p=0", "--top-k=-1"])
def test_rollouts_drawn_in_no_way_there_is_are_refused(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rollout", "builtin:4", str(tmp_path / "r.jsonl"), option]) == 2
    said = capsys.readouterr().err
    assert said.startswith("drafterzoo: sampling: ") and said.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [name for name in DRAFTERS.names() if name.startswith("eagle3")])
def test_a_complaint_names_the_drafter_once_and_rightly(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        DRAFTERS.get(name).create(tiny_target(), head_dim=7)
    assert str(caught.value).startswith(f"options of {name}: head_dim=7 cannot be rotated")
    config = DRAFTERS.get(name).default_config(tiny_target())
    with pytest.raises(UsageError) as caught:  # wherever else a config is built, whoever builds it says for which
        attrs.evolve(config, head_dim=7)
    assert str(caught.value).startswith("head_dim=7 cannot be rotated")


# -- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
        (None, "target", None, "key 'target' is None, expected keys with their values"),
        (None, "drafter", [], "key 'drafter' is \\[\\], expected keys with their values"),
        (None, "budget", None, "key 'budget' is None"),
        (None, "training", [1], "key 'training' is"),
        (None, "wrappers", [{"name": "pr"}], "sections are those of"),
        (None, "spec", "eagle3", "spec is 'eagle3'"),
        ("target", "name", None, "'target' has no name"),
        ("drafter", "name", 5, "'drafter' has no name"),
        ("drafter", "head_dim", 7, "config.json: head_dim=7"),
        ("drafter", "num_kv_heads", 0, "config.json: num_kv_heads=0"),
        ("drafter", "rope_theta", float("nan"), "config.json: .*NaN is no number"),
        ("drafter", "coupling", [0.0, 1.0], "two weights above zero"),
        ("budget", "nodes", 0, "config.json: budget: nodes is 0"),
    ],
)
def test_a_wrong_config_is_named(saved: Path, section: str | None, key: str, value: Any, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        load(f"dir:{rewrite(saved, section, key, value)}", tiny_target())


@pytest.mark.parametrize("address", ["./runs/best", "~/runs/best", "/nowhere/best", "../best"])
def test_a_folder_given_without_dir_is_not_asked_of_the_hub(address: str) -> None:
    with pytest.raises(UsageError, match="write 'dir:"):
        load(address)


def test_an_unknown_home_is_no_folder() -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        load("dir:~nobody-of-that-name/best")


# -- decoding --------------------------------------------------------------------------------------------------------


def test_enormous_budgets_are_refused_at_once() -> None:
    for text in (f"chain:{MOST + 1}", "chain:999999999999", str(MOST + 1), "nodes=1,depth=1,grow=1,offer=99999"):
        with pytest.raises(UsageError, match=f"of at most {MOST}"):
            Budget.parse(text)
    with pytest.raises(UsageError, match="cannot read"):
        Budget.parse("9" * 5000)


def test_a_temperature_that_float32_cannot_divide_by_is_refused() -> None:
    with pytest.raises(UsageError, match=r"expected 0 .* or at least 1e-06"):
        Sampling(temperature=1e-40)
    target = tiny_target()
    coldest = drafterzoo.generate("none", [[3, 4]], target=target, max_new_tokens=12, temperature=1e-6)
    assert coldest.tokens == drafterzoo.generate("none", [[3, 4]], target=target, max_new_tokens=12).tokens


def test_lookup_takes_ngrams_longer_than_the_text() -> None:
    target = tiny_target()
    drafter = load("lookup(max_ngram=500)", target)
    plain = drafterzoo.generate("none", [[5], [6, 7, 6]], target=target, max_new_tokens=9)
    assert drafterzoo.generate(drafter, [[5], [6, 7, 6]], max_new_tokens=9).tokens == plain.tokens


def test_python_arguments_of_the_wrong_kind_are_named() -> None:
    target = tiny_target()
    drafter = load("lookup", target)
    for ids in (5, "ab"):
        with pytest.raises(UsageError, match="stop_token_ids is"):
            drafterzoo.generate(drafter, [[3]], stop_token_ids=ids, max_new_tokens=2)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"budget: cannot read '1.5'"):
        drafterzoo.generate(drafter, [[3]], budget=1.5, max_new_tokens=2)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="load: the drafter is a int"):
        load(5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="wrap a loaded model in load_target"):
        load("lookup", target.model)  # type: ignore[arg-type]


def test_a_whole_number_is_a_budget_and_tensors_are_prompts() -> None:
    target = tiny_target()
    drafter = load("lookup", target)
    listed = drafterzoo.generate(drafter, [[3, 4]], budget="4", max_new_tokens=5).tokens
    for prompts in (torch.tensor([[3, 4]]), torch.tensor([3, 4]), np.array([3, 4]), [torch.tensor([3, 4])]):
        assert drafterzoo.generate(drafter, prompts, budget=4, max_new_tokens=5).tokens == listed  # type: ignore[arg-type]


# -- files -----------------------------------------------------------------------------------------------------------


def test_a_disk_that_fills_up_between_weights_and_config_changes_neither(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {file.name: file.read_bytes() for file in saved.iterdir()}
    synced: list[int] = []

    def full(handle: int) -> None:
        synced.append(handle)
        if len(synced) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    target = tiny_target()
    with pytest.raises(CheckpointError, match=r"No space left on device.*nothing was changed"):
        Eagle31(Eagle31.debug_config(target), target).save_pretrained(saved)
    assert {file.name: file.read_bytes() for file in saved.iterdir()} == before


def test_rollouts_are_never_appended_to_somebody_elses_file(tmp_path: Path) -> None:
    """Least of all is its last line, which may lack a newline, taken for an answer cut short."""
    target = drafterzoo.load_target(tiny_model(layers=1), tokenizer=tiny_tokenizer())
    for content in (b"a note", b"one\ntwo", b'{"prompt": "x"}\n{"pro', b"\xff\xfe\n"):
        path = tmp_path / "notes.txt"
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"notes\.txt"):
            make_rollouts(target, [("all", "hello")], path, max_new_tokens=2)
        assert path.read_bytes() == content
    with pytest.raises(UsageError, match="batch_size=0"):
        make_rollouts(target, [("all", "hello")], tmp_path / "new", max_new_tokens=2, batch_size=0)


def test_rollouts_with_unusual_line_separators_are_read_back(tmp_path: Path) -> None:
    target = drafterzoo.load_target(tiny_model(layers=1), tokenizer=tiny_tokenizer())
    path = tmp_path / "rollouts.jsonl"
    prompts = [("all", "hello\u2028world"), ("all", "world\x85hello")]
    assert make_rollouts(target, prompts, path, max_new_tokens=2)["new_rows"] == 2
    assert make_rollouts(target, prompts, path, max_new_tokens=2)["new_rows"] == 0
    assert len(read_rollouts(path, target.vocab_size).rows) == 2
    path.write_bytes(path.read_bytes() + b"\xff\n")
    with pytest.raises(DataError, match=r"rollouts.jsonl:3: byte 1 is not UTF-8"):
        read_rollouts(path, target.vocab_size)


@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
        ("run", "epochs", float("inf"), "'epochs' is inf, expected a number"),
        ("run", "seed", -1, "seed is -1"),
        ("run", "threads", -1, "threads is -1"),
        ("optimizer", "lr", float("nan"), "'lr' is nan, expected a number"),
        ("optimizer", "betas", [0.9, 1.5], "betas is"),
        ("optimizer", "weight_decay", -1.0, "weight_decay is"),
        ("target", "dtype", "float99", "dtype"),
        ("evaluate", "budget", "chain:0", "budget: nodes is 0"),
    ],
)
def test_a_recipe_is_refused_before_anything_is_loaded(section: str, key: str, value: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        build_recipe({"spec": "eagle3.1", "data": {"rollouts": "x"}, section: {key: value}}, "here.toml")


# -- the streams of the command line ---------------------------------------------------------------------------------


def command(shell: str) -> subprocess.CompletedProcess[bytes]:
    """Run a shell line in which $dz is the command line."""
    environment = {**os.environ, "dz": f"{sys.executable} -m drafterzoo.cli"}
    root = Path(drafterzoo.__file__).parent.parent
    return subprocess.run(["sh", "-c", shell], env=environment, cwd=root, capture_output=True, check=False)


def test_an_ascii_terminal_gets_escapes_instead_of_a_traceback() -> None:
    done = command("PYTHONIOENCODING=ascii LANG=C $dz list '\u00e9'")
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1 and b"\\xe9" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_or_closed_stdout_is_one_line_at_most() -> None:
    full = command("$dz --version > /dev/full")
    assert full.returncode == 1 and full.stderr.count(b"\n") == 1 and b"No space left on device" in full.stderr
    assert command("$dz --version >&-").stderr == b""
