"""Training that goes on from a checkpoint: its weights and vocabulary are taken whole, or the difference is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from drafterzoo import checkpoint, generate, load
from drafterzoo.budget import Budget
from drafterzoo.errors import CheckpointError, UsageError
from drafterzoo.target import Target
from drafterzoo.training import run
from drafterzoo.training.recipe import build_recipe
from tests.tiny import tiny_target

VOCAB = 64


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("llama")


@pytest.fixture
def folder(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two files of rollouts over different halves of the vocabulary, and a finished run, `first`."""
    monkeypatch.setattr(run, "load_target", lambda *args, **options: target)
    monkeypatch.setattr(run.Trainer, "_evaluate", lambda self: None)
    for name, low, high in (("low", 3, 34), ("high", 30, VOCAB)):
        drawn = torch.randint(low, high, (8, 12), generator=torch.Generator().manual_seed(low)).tolist()
        rows = [json.dumps({"prompt_ids": ids[:4], "response_ids": ids[4:], "split": "train"}) for ids in drawn]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    train(tmp_path, "first", "low", run={"epochs": 2.0, "storage": "float16"})
    return tmp_path


def values(folder: Path, rollouts: str, **sections: Any) -> dict[str, Any]:
    return {
        "spec": "eagle3.1",
        "data": {"rollouts": str(folder / f"{rollouts}.jsonl"), "features": "online", "pack": 24},
        "drafter": {"draft_vocab_size": 32},
        "run": {"epochs": 1.0},
        **sections,
    }


def train(folder: Path, name: str, rollouts: str, **sections: Any) -> checkpoint.Native:
    run.train(values(folder, rollouts, **sections), out=folder / name, quiet=True)
    return checkpoint.read(folder / name / "last")


def from_first(folder: Path) -> dict[str, Any]:
    return {"from_checkpoint": str(folder / "first" / "last")}


def test_weights_and_vocabulary_are_the_checkpoints(folder: Path, target: Target) -> None:
    first = checkpoint.read(folder / "first" / "last")
    recipe = build_recipe(values(folder, "high", init=from_first(folder)), "recipe")
    rollouts = run.read_rollouts(recipe.data.rollouts, target.vocab_size)
    drafter = run.build_drafter(recipe, target, rollouts, folder / "first" / "last")
    assert drafter.vocabulary is not None and drafter.vocabulary.max() < 40, "of the first run's rollouts, not of these"
    for key, value in drafter.state_dict().items():
        assert torch.equal(value, first.tensors[key].to(value.dtype)), key
    head = target.head_weight(drafter.vocabulary)
    assert torch.equal(drafter.head_matrix(), head) or drafter.config.head == "own"
    assert any(p.requires_grad for p in drafter.parameters())


def test_the_vocabulary_is_chosen_anew_when_asked(folder: Path, target: Target) -> None:
    borrowed = {"draft_vocab_size": 32, "head": "borrowed"}
    first = train(folder, "lent", "low", drafter=borrowed)
    init = {"from_checkpoint": str(folder / "lent" / "last"), "vocabulary": "anew"}
    wider = {"draft_vocab_size": 40, "head": "borrowed"}
    recipe = build_recipe(values(folder, "high", init=init, drafter=wider), "recipe")
    rollouts = run.read_rollouts(recipe.data.rollouts, target.vocab_size)
    drafter = run.build_drafter(recipe, target, rollouts, folder / "lent" / "last")
    assert drafter.vocabulary is not None and len(drafter.vocabulary) == 40
    seen = {i for row in rollouts.rows for i in row.response_ids}
    assert seen <= set(drafter.vocabulary.tolist()), "all 34 ids of these rollouts fit"
    assert torch.equal(drafter.head_matrix(), target.head_weight(drafter.vocabulary))
    for key, value in drafter.named_parameters():
        assert torch.equal(value, first.tensors[key].to(value.dtype)), key
    # resumed, the run keeps what it chose, though the file of rollouts has changed meanwhile
    second = train(folder, "wider", "high", init=init, drafter=wider)
    rollouts = run.read_rollouts(str(folder / "low.jsonl"), target.vocab_size)
    again = run.build_drafter(recipe, target, rollouts, folder / "wider" / "last")
    assert torch.equal(again.state_dict()["d2t"], second.tensors["d2t"])
    assert second.config["training"]["began_with"] == first.config["training"]


def test_an_own_head_keeps_its_vocabulary(folder: Path) -> None:
    with pytest.raises(UsageError, match='vocabulary = "anew" needs a borrowed head'):
        train(folder, "second", "high", init={**from_first(folder), "vocabulary": "anew"})
    with pytest.raises(UsageError, match="there is no from_checkpoint"):
        train(folder, "second", "high", init={"vocabulary": "anew"})


def test_the_second_run_says_what_it_began_with_and_changes_the_weights(folder: Path) -> None:
    first = checkpoint.read(folder / "first" / "last")
    second = train(folder, "second", "high", init=from_first(folder))
    assert second.config["training"]["began_with"] == first.config["training"]
    assert torch.equal(second.tensors["d2t"], first.tensors["d2t"])
    assert not torch.equal(second.tensors["fc.weight"].float(), first.tensors["fc.weight"].float())


def test_a_resumed_run_needs_its_own_folder_alone(folder: Path) -> None:
    init = from_first(folder)
    second = train(folder, "second", "high", init=init)
    (folder / "first").rename(folder / "moved")
    again = train(folder, "second", "high", init=init)  # finished already: nothing but what it is made of is read
    assert again.config["training"] == second.config["training"]
    assert all(torch.equal(again.tensors[key], second.tensors[key]) for key in second.tensors)
    with pytest.raises(CheckpointError, match="no such folder"):
        train(folder, "third", "high", init=init)


def test_the_storage_dtype_is_the_recipes(folder: Path) -> None:
    first = checkpoint.read(folder / "first" / "last")
    assert first.config["dtype"] == "float16" and first.tensors["fc.weight"].dtype == torch.float16
    second = train(folder, "second", "high", init=from_first(folder))
    assert second.config["dtype"] == "float32" and second.tensors["fc.weight"].dtype == torch.float32


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"drafter": {"draft_vocab_size": 16}}, "draft_vocab_size is 16, but .* was made with 32"),
        ({"drafter": {"taps": [1, 2, 3]}}, r"taps is \[1, 2, 3\], but .* was made with \["),
        ({"spec": "eagle3"}, "spec is 'eagle3', but .* holds a 'eagle3.1'"),
        ({"init": {"from_checkpoint": "x", "fc": "ridge"}}, "fc is 'ridge', but from_checkpoint brings its own"),
    ],
)
def test_a_recipe_that_asks_for_another_drafter_is_refused(folder: Path, sections: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        train(folder, "second", "high", **{"init": from_first(folder), **sections})
    assert not (folder / "second" / "last").exists()


def test_a_checkpoint_of_another_target_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tiny_target("llama", vocab=VOCAB, layers=6)
    monkeypatch.setattr(run, "load_target", lambda *args, **options: other)
    with pytest.raises(CheckpointError, match=r"made for .* whose num_layers is 8"):
        train(folder, "second", "high", init=from_first(folder))


def test_a_run_killed_in_its_first_save_starts_anew(folder: Path) -> None:
    """Its weights are there, what goes with them is not: they are no place to go on from."""
    second = train(folder, "second", "high", init=from_first(folder))
    (folder / "second" / "last" / "state.pt").unlink()
    again = train(folder, "second", "high", init=from_first(folder))
    assert all(torch.equal(again.tensors[key], second.tensors[key]) for key in second.tensors)


@pytest.mark.parametrize("size", ["x", 40.5, True, 0, VOCAB + 1])
@pytest.mark.parametrize("vocabulary", [None, "kept", "anew"])
def test_a_size_that_is_none_is_one_sentence(folder: Path, vocabulary: str | None, size: Any) -> None:
    train(folder, "lent", "low", drafter={"draft_vocab_size": 32, "head": "borrowed"})
    init = {"from_checkpoint": str(folder / "lent" / "last"), "vocabulary": vocabulary}
    with pytest.raises(UsageError) as caught:
        wrong = {"draft_vocab_size": size, "head": "borrowed"}
        train(folder, "second", "high", drafter=wrong, init=init if vocabulary else {})
    said = str(caught.value)
    assert "draft_vocab_size" in said and repr(size) in said and "\n" not in said


@pytest.mark.parametrize("vocabulary", ["kept", "anew"])
@pytest.mark.parametrize("part", ["last", "best", "."])
def test_a_run_does_not_begin_with_itself(folder: Path, vocabulary: str, part: str) -> None:
    lent = {"draft_vocab_size": 32, "head": "borrowed"}
    train(folder, "lent", "low", drafter=lent)
    init = {"from_checkpoint": str(folder / "x" / ".." / "lent" / part), "vocabulary": vocabulary}
    with pytest.raises(UsageError, match=r"from_checkpoint is .*, which lies in .*lent, the run's own folder.*--out"):
        train(folder, "lent", "low", drafter=lent, init=init)


@pytest.mark.parametrize("vocabulary", ["kept", "anew"])
def test_a_variable_that_is_unset_since_is_no_matter(
    folder: Path, vocabulary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lent = {"draft_vocab_size": 32, "head": "borrowed"}
    train(folder, "lent", "low", drafter=lent)
    init = {"from_checkpoint": "$BEGAN_WITH/last", "vocabulary": vocabulary}
    monkeypatch.setenv("BEGAN_WITH", str(folder / "lent"))
    second = train(folder, "second", "high", drafter=lent, init=init)
    monkeypatch.delenv("BEGAN_WITH")
    again = train(folder, "second", "high", drafter=lent, init=init)
    assert torch.equal(again.tensors["d2t"], second.tensors["d2t"])


def edit(file: Path, **changes: Any) -> None:
    """Set keys of a checkpoint's drafter; None takes one out, as an older release had it."""
    config = json.loads(file.read_text())
    config["drafter"] = {k: v for k, v in {**config["drafter"], **changes}.items() if v is not None}
    file.write_text(json.dumps(config))


@pytest.mark.parametrize("key", ["num_layers", "rope_theta", "norm_output", "fc_norm", "head"])
def test_an_option_that_was_saved_and_is_gone_is_not_guessed(folder: Path, target: Target, key: str) -> None:
    path = folder / "first" / "last"
    edit(path / "config.json", **{key: None})
    with pytest.raises(CheckpointError, match=rf"config.json: key '{key}' is missing, and every option is saved"):
        load(f"dir:{path}", target)


@pytest.mark.parametrize("key", ["packed_dtype", "coupling"])
def test_what_an_older_checkpoint_does_not_say_is_at_its_default(folder: Path, target: Target, key: str) -> None:
    """Even where the recipe names it."""
    default = getattr(checkpoint.structure(run.DRAFTERS.get("eagle3.1").Config, plain_config(folder), "x"), key)
    edit(folder / "first" / "last" / "config.json", **{key: None})
    drafter = {"draft_vocab_size": 32, key: list(default) if isinstance(default, tuple) else default}
    second = train(folder, "second", "high", drafter=drafter, init=from_first(folder))
    assert second.config["drafter"][key] == drafter[key]
    with pytest.raises(UsageError, match=r"num_heads is 2, but .* was made with 4"):
        train(folder, "third", "high", drafter={**drafter, "num_heads": 2}, init=from_first(folder))


def test_more_layers_change_nothing_until_they_are_trained(folder: Path, target: Target) -> None:
    path = folder / "first" / "last"
    deeper = {"draft_vocab_size": 32, "num_layers": 3}
    init = {**from_first(folder), "layers": "more"}
    recipe = build_recipe(values(folder, "low", drafter=deeper, init=init), "recipe")
    rollouts = run.read_rollouts(recipe.data.rollouts, target.vocab_size)
    first, second = load(f"dir:{path}", target), run.build_drafter(recipe, target, rollouts, path).eval()
    for budget in ("chain:3", "nodes=6,depth=3,grow=2,offer=3"):
        one, two = (
            generate(drafter, [[5, 6, 7]], budget=Budget.parse(budget), max_new_tokens=12, keep_trees=True).rounds[0]
            for drafter in (first, second)
        )
        assert [r.tree.tokens for r in one] == [r.tree.tokens for r in two] and len(one) > 1
    trained = train(folder, "deeper", "low", drafter=deeper, init=init)
    assert trained.config["drafter"]["num_layers"] == 3
    for layer in (1, 2):
        assert trained.tensors[f"layers.{layer}.self_attn.o_proj.weight"].abs().max() > 0
        assert trained.tensors[f"layers.{layer}.mlp.down_proj.weight"].abs().max() > 0


@pytest.mark.parametrize(
    ("layers", "init", "words"),
    [
        (2, {}, "num_layers is 2, but .* was made with 1"),
        (1, {"layers": "more", "from_checkpoint": None}, "layers is 'more', but there is no from_checkpoint"),
    ],
)
def test_more_layers_are_asked_for_by_name(folder: Path, layers: int, init: dict[str, Any], words: str) -> None:
    begun = {key: value for key, value in {**from_first(folder), **init}.items() if value is not None}
    with pytest.raises(UsageError, match=words):
        train(folder, "second", "low", drafter={"draft_vocab_size": 32, "num_layers": layers}, init=begun)


def plain_config(folder: Path) -> dict[str, Any]:
    config = dict(checkpoint.read_config(folder / "first" / "last")["drafter"])
    del config["name"]
    return config


@pytest.mark.parametrize("vocabulary", ["kept", "anew"])
def test_options_that_no_weight_depends_on_may_differ(folder: Path, vocabulary: str) -> None:
    lent = {"draft_vocab_size": 32, "head": "borrowed", "packed_dtype": "float32"}
    first = train(folder, "lent", "low", drafter=lent)
    init = {"from_checkpoint": str(folder / "lent" / "last"), "vocabulary": vocabulary}
    other = {**lent, "packed_dtype": "bfloat16", "coupling": [1.25, 0.5]}
    second = train(folder, "second", "low", drafter=other, init=init)
    assert second.config["drafter"]["packed_dtype"] == "bfloat16"
    assert second.config["drafter"]["coupling"] == [1.25, 0.5]
    assert torch.equal(second.tensors["d2t"], first.tensors["d2t"])
