"""What a user can get wrong, from the command line and from Python: one sentence each, and nothing half-done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import drafterzoo
from drafterzoo.budget import MOST, Budget
from drafterzoo.catalogue import load
from drafterzoo.drafters.eagle31 import Eagle31
from drafterzoo.engine.sampling import Sampling
from drafterzoo.errors import CheckpointError, DataError, DrafterzooError, UsageError
from drafterzoo.target import embedded, load_target
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


def test_a_checkpoint_names_the_embedded_target_as_it_was_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded revision is that of the package's file, which the Hub has never heard of."""
    asked: list[str] = []

    def stop() -> Path:
        asked.append("embedded")
        raise UsageError("stop here")

    monkeypatch.setattr(embedded, "ensure_converted", stop)
    recorded = {"name": embedded.FULL_NAME, "revision": embedded.SOURCE_SHA256[:8]}
    with pytest.raises(UsageError, match="stop here"):
        load_target(recorded["name"], revision=recorded["revision"])
    assert asked == ["embedded"]
    assert not embedded.is_meant(embedded.FULL_NAME, "main"), "another revision is the Hub's"


def test_without_a_home_folder_the_cache_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DRAFTERZOO_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(DrafterzooError, match="set DRAFTERZOO_CACHE"):
        embedded.cache_folder()


def test_a_prompt_that_is_no_text_is_refused(tmp_path: Path) -> None:
    target = drafterzoo.load_target(tiny_model(layers=1), tokenizer=tiny_tokenizer())
    with pytest.raises(DataError, match="character 3 is '.udcff'.*UTF-8"):
        drafterzoo.generate("none", "hi\udcff", target=target, max_new_tokens=2)


# -- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
        (None, "target", None, "key 'target' is None, expected dict"),
        (None, "drafter", [], "key 'drafter' is \\[\\], expected dict"),
        (None, "budget", None, "key 'budget' is None"),
        (None, "training", [1], "key 'training' is"),
        (None, "wrappers", [{"name": "pr"}], "sections are those of"),
        (None, "spec", "eagle3", "spec is 'eagle3'"),
        ("target", "name", None, "'target' has no name"),
        ("drafter", "name", 5, "'drafter' has no name"),
        ("drafter", "head_dim", 7, "config.json: eagle3: head_dim=7"),
        ("drafter", "num_kv_heads", 0, "config.json: eagle3: num_kv_heads=0"),
        ("drafter", "rope_theta", float("nan"), "config.json: eagle3: rope_theta=nan"),
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
    with pytest.raises(UsageError, match="expected 0 .* or at least 1e-06"):
        Sampling(temperature=1e-40)
    target = tiny_target()
    coldest = drafterzoo.generate("none", [[3, 4]], target=target, max_new_tokens=12, temperature=1e-6)
    assert coldest.tokens == drafterzoo.generate("none", [[3, 4]], target=target, max_new_tokens=12).tokens


def test_lookup_takes_ngrams_longer_than_the_text() -> None:
    target = tiny_target()
    drafter = load("lookup(max_ngram=500)", target)
    plain = drafterzoo.generate("none", [[5], [6, 7, 6]], target=target, max_new_tokens=9)
    assert drafterzoo.generate(drafter, [[5], [6, 7, 6]], max_new_tokens=9).tokens == plain.tokens
