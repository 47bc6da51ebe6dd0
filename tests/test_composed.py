"""Checkpoints of compositions: damaged, asked for what they are not, shown, and trained on from."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from drafterzoo import checkpoint, load
from drafterzoo.cli import main
from drafterzoo.errors import CheckpointError, UsageError
from drafterzoo.target import Target
from drafterzoo.training.plan import plan
from drafterzoo.training.recipe import build_recipe
from drafterzoo.training.run import train
from tests.test_plan import values
from tests.test_pr import drafter_of
from tests.tiny import tiny_rollouts, tiny_target


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("llama")


@pytest.fixture
def folder(target: Target, tmp_path: Path) -> Path:
    drafter_of(target, "eagle3.1+pr(self_query='feature')").save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def change(folder: Path, how: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    how(config)
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (lambda c: c.update(wrappers=["pr"]), "a section of 'wrappers' is 'pr', expected a table with a name"),
        (lambda c: c.update(wrappers=[{"reconsider": 3}]), "expected a table with a name"),
        (lambda c: c.update(spec="eagle3.1+pq"), "unknown wrapper 'pq'"),
        (lambda c: c.update(spec=""), "expected a drafter's name"),
        (lambda c: c.update(spec="eagle3.1"), "the sections are those of ['eagle3.1', 'pr']"),
        (lambda c: c.update(spec="eagle3.1+pr(reconsider=1)"), "spec says pr(reconsider=1), but the section says 3"),
        (lambda c: c["wrappers"][0].update(reconsider=-1), "reconsider=-1, expected a whole number from 0 to 256."),
        (lambda c: c["wrappers"][0].update(rows=1), "unknown key 'rows'"),
        (lambda c: c["wrappers"][0].update(self_query="token"), "'wrappers.pr.query_proj.weight' is not used"),
        (lambda c: c["wrappers"][0].update(self_query="learned"), "'wrappers.pr.query' is missing"),
    ],
)
def test_a_damaged_composition_is_refused_by_its_file(
    target: Target, folder: Path, how: Callable[[dict[str, Any]], Any], words: str
) -> None:
    change(folder, how)
    with pytest.raises(CheckpointError) as refused:
        load(f"dir:{folder}", target=target)
    assert words in str(refused.value) and str(folder) in str(refused.value) and "\n" not in str(refused.value)


def test_a_wrappers_tensor_of_the_wrong_shape_is_named_as_the_file_has_it(target: Target, folder: Path) -> None:
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors["wrappers.pr.query_proj.weight"] = torch.zeros(3, 3)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"'wrappers\.pr\.query_proj\.weight' has shape \[3, 3\], expected"):
        load(f"dir:{folder}", target=target)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("reconsider=-1", "options of pr: reconsider=-1, expected a whole number from 0 to 256."),
        ("gate=0", "options of pr: gate=0.0, expected a chance above 0"),
        ("reconsider='x'", "options of pr"),
        ("hidden_size=7", "options of eagle3.1"),
        ("num_layers=2", "its weights do not fit what was typed (num_layers)"),
        ("self_query='learned'", "its weights do not fit what was typed (self_query)"),
        ("reconsider=3,self_query='learned'", "its weights do not fit what was typed (self_query)"),
        ("reconsidr=1", "eagle3.1+pr: no option 'reconsidr' (did you mean 'reconsider'?); the options are vocab_size"),
    ],
)
def test_what_was_typed_is_blamed_on_who_typed_it(target: Target, folder: Path, typed: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        load(f"dir:{folder}({typed})", target=target)
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_a_composition_is_shown_with_its_options_or_not_at_all(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", f"dir:{folder}(reconsider=0)", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["wrappers"][0]["reconsider"] == 0
    assert main(["show", "eagle2+pr"]) == 2
    assert "no checkpoint of 'eagle2+pr' comes with drafterzoo" in capsys.readouterr().err


def test_training_on_from_a_composition_does_what_the_recipe_says(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drafterzoo.training.run.load_target", lambda *args, **options: target)
    monkeypatch.setattr("drafterzoo.training.trainer.LEARNT_NOTHING", 0.0)
    recipe: dict[str, Any] = {
        "spec": "eagle3.1+pr",
        "data": {"rollouts": str(tiny_rollouts(tmp_path).path), "features": "online", "pack": 40},
        "drafter": {"head": "borrowed", "draft_vocab_size": 32},
        "run": {"epochs": 1.0},
        "evaluate": {"every": 1000, "prompts": 1, "max_new_tokens": 3},
    }
    train(recipe, out=tmp_path / "a", quiet=True)
    begun = {"from_checkpoint": str(tmp_path / "a" / "best")}
    smaller = {"head": "borrowed", "draft_vocab_size": 16, "coupling": [2.0, 0.5]}
    train({**recipe, "drafter": smaller, "init": {**begun, "vocabulary": "anew"}}, out=tmp_path / "b", quiet=True)
    saved = checkpoint.read(tmp_path / "b" / "best")
    assert saved.config["drafter"]["draft_vocab_size"] == len(saved.tensors["d2t"]) == 16
    assert saved.config["drafter"]["coupling"] == [2.0, 0.5] and saved.config["wrappers"][0]["name"] == "pr"
    with pytest.raises(UsageError, match=r"wrappers of spec 'eagle3.1\+pr\(reconsider=1\)' are not those of"):
        train({**recipe, "spec": "eagle3.1+pr(reconsider=1)", "init": begun}, out=tmp_path / "c", quiet=True)


def test_a_dry_run_makes_no_weights_whatever_the_sizes(tmp_path: Path) -> None:
    made = values(tmp_path, drafter={})
    made["target"]["sizes"]["vocab_size"] = 16_000_000
    assert plan(build_recipe(made, "recipe"))["target"]["vocab_size"] == 16_000_000


@pytest.mark.parametrize(
    ("spec", "recipe"),
    [("hass", "hass-smollm2"), ("eagle3.1+pr", "eagle3.1-pr-smollm2"), ("hass+pr(reconsider=1)", "hass-pr-smollm2")],
)
def test_who_asks_for_weights_that_are_not_there_is_told_the_recipe(
    spec: str, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drafterzoo.catalogue._known_checkpoints", dict)
    with pytest.raises(UsageError, match=f"train one with `drafterzoo train {recipe}`, or load"):
        load(spec)


def test_where_no_recipe_is_none_is_named(target: Target) -> None:
    with pytest.raises(UsageError, match=r"no checkpoint of 'hass' for tiny-llama .* `drafterzoo train`, or load"):
        load("hass", target=target)


@pytest.mark.parametrize(
    ("written", "spec"),
    [("eagle3.1 + pr", "eagle3.1+pr"), (" hass+pr( beta = 0.0 , alpha=1.0 )", "hass+pr(beta=0.0, alpha=1.0)")],
)
def test_a_run_is_the_same_however_its_spec_was_spaced(written: str, spec: str) -> None:
    assert build_recipe({"spec": written, "data": {"rollouts": "unused"}}, "recipe").spec == spec


def test_a_recipe_with_a_broken_spec_is_named() -> None:
    with pytest.raises(UsageError, match=r"^mine.toml: spec 'hass\+', column 6: expected a wrapper's name after"):
        build_recipe({"spec": "hass+", "data": {"rollouts": "unused"}}, "mine.toml")


@pytest.mark.parametrize("key", ["architecture", "hidden_size", "num_layers", "vocab_size", "tokenizer", "revision"])
@pytest.mark.parametrize("value", [None, [1]])
def test_what_a_checkpoint_was_made_for_is_said_in_full(
    folder: Path, target: Target, key: str, value: list[int] | None
) -> None:
    """A lost key would not be compared with the target that is there."""
    change(folder, lambda c: c["target"].pop(key) if value is None else c["target"].update({key: value}))
    found = "missing" if value is None else r"\[1\]"
    with pytest.raises(CheckpointError, match=f"config.json: 'target' key '{key}' is {found}, expected a"):
        load(f"dir:{folder}", target)


@pytest.mark.parametrize("eps", [1e12, -1.0, float("nan")])
def test_an_eps_that_drowns_everything_is_refused(folder: Path, target: Target, eps: float) -> None:
    change(folder, lambda c: c["drafter"].update(rms_norm_eps=eps))
    words = "NaN is no number" if math.isnan(eps) else r"rms_norm_eps=.*, expected an eps from 0 to 1"
    with pytest.raises(CheckpointError, match=words):
        load(f"dir:{folder}", target)


def test_a_vocabulary_beyond_all_bounds_is_refused_before_anything_is_made_of_its_size(
    folder: Path, target: Target
) -> None:
    change(folder, lambda c: c["drafter"].update(vocab_size=10**12))
    with pytest.raises(CheckpointError, match="vocab_size=1000000000000, expected at most 16777216"):
        load(f"dir:{folder}", target)


def test_an_option_of_a_wrapper_that_is_gone_is_not_guessed(folder: Path, target: Target) -> None:
    change(folder, lambda c: c["wrappers"][0].pop("reconsider"))
    with pytest.raises(CheckpointError, match=r"config.json, pr: key 'reconsider' is missing, and every option"):
        load(f"dir:{folder}", target)


@pytest.mark.parametrize("spec", ["hass+pr(m=3)", "eagle3.1+pr(m=3)"])
def test_an_option_typed_wrongly_is_said_before_weights_are_missed(spec: str) -> None:
    with pytest.raises(UsageError, match="pr: no option 'm'"):
        load(spec)


def test_a_wrapper_behind_a_folder_is_told_from_a_folder_that_is_missing(folder: Path, target: Target) -> None:
    for wrapper in ("pr", "pr(reconsider=1)"):
        with pytest.raises(UsageError, match="is a checkpoint and takes no wrapper; one is trained around it by"):
            load(f"dir:{folder}+{wrapper}", target=target)
    with pytest.raises(CheckpointError, match="no such folder"):
        load(f"dir:{folder}+other", target=target)


def test_a_key_given_twice_in_a_config_is_refused(folder: Path, target: Target) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"reconsider": 3', '"reconsider": 3, "reconsider": 2'))
    with pytest.raises(CheckpointError, match=r'key "reconsider" is given twice: line \d+ column \d+'):
        load(f"dir:{folder}", target=target)
