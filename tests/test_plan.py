"""`train --dry-run`: what a recipe takes, counted beforehand and equal to what training then has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drafterzoo.cli import main
from drafterzoo.composition import create
from drafterzoo.drafters.eagle31 import Eagle31
from drafterzoo.errors import UsageError
from drafterzoo.registry import parse_spec
from drafterzoo.target import Target
from drafterzoo.training.plan import plan, sizes_of, told
from drafterzoo.training.recipe import build_recipe, read_recipe
from drafterzoo.training.run import check_sizes
from tests.tiny import tiny_rollouts, tiny_target

RECIPES = sorted((Path(__file__).parents[1] / "recipes" / "train").glob("*.toml"))
LARGE = [path for path in RECIPES if "[target.sizes]" in path.read_text()]


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("llama")


def values(folder: Path, **sections: Any) -> dict[str, Any]:
    rollouts = tiny_rollouts(folder)
    base: dict[str, Any] = {
        "spec": "eagle3.1+pr(self_query='learned')",
        "target": {"name": "tiny", "sizes": {
            "hidden_size": 32, "num_layers": 8, "vocab_size": 64, "intermediate_size": 64, "num_heads": 4,
            "num_kv_heads": 2, "head_dim": 8,
        }},
        "data": {"rollouts": str(rollouts.path), "pack": 40},
        "drafter": {"draft_vocab_size": 48},
        "run": {"epochs": 2.0, "storage": "float16"},
    }  # fmt: skip
    return {**base, **sections}


def test_it_counts_what_there_is_to_train(target: Target, tmp_path: Path) -> None:
    facts = plan(build_recipe(values(tmp_path), "recipe"))
    real = Eagle31.create(target, draft_vocab_size=48)
    own = sum(p.numel() for p in real.parameters() if p.requires_grad)
    own += 2 * 32  # a learned query, and the share of each channel
    assert facts["trained_parameters"] == own and facts["checkpoint_bytes"] == 2 * own
    assert facts["memory_bytes"]["drafter and optimiser"] == 20 * own
    assert facts["data"]["documents"] == 10 and facts["data"]["held_out"] == 2 and facts["data"]["known"]
    assert facts["data"]["tokens"] == sum(len(row.ids) for row in tiny_rollouts(tmp_path).rows)
    linears = 8 * (32 * 8 * (8 + 4) + 3 * 32 * 64)
    assert facts["target"]["parameters"] == linears + 2 * 64 * 32
    assert sizes_of(target) == build_recipe(values(tmp_path), "recipe").target.sizes
    assert facts["cache_bytes"] > 0 and facts["objective"] == "ttt+pr"
    assert any("10 documents" in line for line in told(facts))


@pytest.mark.parametrize("path", LARGE, ids=lambda path: path.stem)
def test_the_large_recipes_can_be_counted_anywhere(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAFTERZOO_DATA", raising=False)
    facts = plan(read_recipe(path))
    assert 3.5e9 < facts["target"]["parameters"] < 9e9
    assert 1e8 < facts["trained_parameters"] < 1.2e9
    assert facts["data"]["steps"] > 0 and not facts["data"]["known"]


def test_a_recipe_on_the_shared_answers_says_how_to_make_them() -> None:
    """Four parts made the shipped eagle3.1; the third and fourth tell of answers of their own in words."""
    shared = [path for path in RECIPES if "/smollm2-rollouts.jsonl" in path.read_text() and "-wide" not in path.name]
    assert len(shared) >= 20
    assert [path.name for path in shared if read_recipe(path).generate is None] == []


def test_a_misspelt_recipe_is_named_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "eagle3.1-pr-smollm", "--dry-run"]) == 2
    assert "no such recipe (did you mean 'eagle3.1-pr-smollm2'?)" in " ".join(capsys.readouterr().err.split())
    assert main(["grid", "pr_gain_smal", "--dry-run"]) == 2
    assert "no such recipe (did you mean 'pr_gain_small'?)" in " ".join(capsys.readouterr().err.split())


def test_every_large_system_has_its_recipe() -> None:
    systems = {(str(parse_spec(r.spec)).partition("(")[0], r.target.name) for r in map(read_recipe, LARGE)}
    recurrent, blocks = ("hass", "hass+pr", "eagle3.1", "eagle3.1+pr"), ("dflash", "dspark", "dfly")
    carrying = ("dflash+carryover", "dspark+carryover")
    assert systems == {
        *((spec, target) for spec in recurrent for target in ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-8B")),
        *((spec, target) for spec in (*blocks, *carrying) for target in ("Qwen/Qwen3-4B", "Qwen/Qwen3-8B")),
    }


@pytest.mark.parametrize(("name", "millions"), [("dflash-qwen3-4b", 537), ("dflash-qwen3-8b", 1049)])
def test_a_block_drafter_is_as_large_as_the_published_one(name: str, millions: int) -> None:
    """0.54 and 1.05 billion, from the shapes of the released checkpoints (block.md 1.1)."""
    facts = plan(read_recipe(next(path for path in LARGE if path.stem == name)))
    assert round(facts["trained_parameters"] / 1e6) == millions


def test_it_is_typed_and_trains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = next(path for path in LARGE if path.stem == "hass-pr-qwen3-8b")
    assert main(["train", str(path), "--dry-run", "--out", str(tmp_path / "run")]) == 0
    assert "every key is valid" in capsys.readouterr().out and not (tmp_path / "run").exists()
    assert main(["train", str(path), "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["target"]["name"] == "Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"spec": "eagle3.1+pr(m=3)"}, "unknown key 'm'"),
        ({"spec": "hass", "objective": {"name": "hass", "body": "eagle3"}}, "set body = 'eagle2'"),
        ({"drafter": {"draft_vocab_size": 65}}, "must lie between 1 and the target's 64"),
        ({"target": {"name": "t", "sizes": {"hidden_size": 32}}}, "sizes"),
    ],
)
def test_what_cannot_be_trained_is_refused_beforehand(tmp_path: Path, sections: dict, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        plan(build_recipe(values(tmp_path, **{"drafter": {}, **sections}), "recipe"))
    assert words in str(refused.value)


def test_training_checks_the_sizes_that_a_recipe_states(target: Target, tmp_path: Path) -> None:
    made = values(tmp_path)
    check_sizes(build_recipe(made, "recipe"), target)
    made["target"]["sizes"]["num_layers"] = 9
    with pytest.raises(UsageError, match=r"\[target.sizes\]: num_layers is 9, but tiny-llama has 8"):
        check_sizes(build_recipe(made, "recipe"), target)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"objective": {"name": "ttt", "passes": [1, 2], "chances": [-1.0, 2.0]}}, r"chances are \[-1.0, 2.0\]"),
        ({"objective": {"name": "hass", "passes": [1, 2], "chances": [0.0, 0.0]}}, "not all of them 0"),
        ({"objective": {"name": "ttt", "single": 7.5}}, "single is 7.5, expected the share"),
        ({"objective": {"name": "ttt", "single": -3.0}}, "from 0 to 1"),
        ({"objective": {"top_k": 5}}, "'top_k' is a key of 'hass'.*add name = 'hass'"),
        ({"target": {"name": "tiny", "sizes": {"hidden_size": 5}}}, r"\[target.sizes\]: key 'num_layers' is missing"),
        ({"target": {"name": "tiny", "sizes": {"width": 5}}}, r"\[target.sizes\]: unknown key 'width'"),
    ],
    ids=str,
)
def test_what_no_run_could_draw_or_count_is_refused_before_it(
    tmp_path: Path, sections: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        plan(build_recipe(values(tmp_path, **sections), "recipe"))


@pytest.mark.parametrize(
    ("spec", "drafter", "words"),
    [
        ("eagle3.1+pr", {"draft_vocab_size": 32}, "draft_vocab_size is 32, but .* was made with 48; leave the key out"),
        ("hass+pr", {}, "spec is 'hass\\+pr', but .* holds a 'eagle3.1'; begin with a checkpoint of 'hass'"),
        ("eagle3.1", {}, "wrappers of spec 'eagle3.1' are not those of .*, 'eagle3.1\\+pr'"),
        ("eagle3.1+pr(self_query='token')", {}, "the wrappers of spec .* are not those of"),
        ("eagle3.1+pr", {"draft_vocab_size": 48}, ""),
        ("eagle3.1+pr(reconsider=3)", {}, ""),
    ],
    ids=str,
)
def test_a_checkpoint_that_training_would_refuse_is_refused_by_a_dry_run(
    target: Target, tmp_path: Path, spec: str, drafter: dict[str, Any], words: str
) -> None:
    made = create(parse_spec("eagle3.1+pr"), target, {"draft_vocab_size": 48}).save_pretrained(tmp_path / "made")
    recipe = build_recipe(values(tmp_path, spec=spec, drafter=drafter, init={"from_checkpoint": str(made)}), "recipe")
    if not words:
        assert plan(recipe)["begins_with"] == str(made)
        return
    with pytest.raises(UsageError, match=words):
        plan(recipe)


TYPED = """
spec = "eagle3.1"
[data]
rollouts = "{rollouts}"
[target]
name = "tiny"
[target.sizes]
hidden_size = 32
num_layers = 8
vocab_size = 64
intermediate_size = 64
num_heads = 4
num_kv_heads = 2
head_dim = 8
[run]
epochs = 4.0
"""


@pytest.fixture
def typed(tmp_path: Path) -> str:
    path = tmp_path / "typed.toml"
    path.write_text(TYPED.format(rollouts=tiny_rollouts(tmp_path).path))
    return str(path)


def test_what_is_typed_stands_in_place_of_what_the_recipe_says(
    typed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", typed, "--dry-run", "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)["data"]
    assert main(["train", typed, "--dry-run", "--json", "--documents", "3", "--epochs", "1"]) == 0
    short = json.loads(capsys.readouterr().out)["data"]
    assert (whole["documents"], short["documents"], short["held_out"]) == (10, 3, 2)
    assert 0 < short["steps"] < whole["steps"]
    seen = []
    monkeypatch.setattr("drafterzoo.training.plan.plan", lambda recipe: seen.append(recipe) or {})
    monkeypatch.setattr("drafterzoo.training.plan.told", lambda facts: [])
    assert main(["train", typed, "--dry-run", "--precision", "bfloat16", "--seed", "7"]) == 0
    assert (seen[0].data.precision, seen[0].run.precision, seen[0].run.seed) == ("bfloat16", "bfloat16", 7)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--epochs", "0", "--epochs is 0.0, expected a number above zero"),
        ("--documents", "-2", "--documents is -2, expected a number above zero"),
        ("--seed", "-1", "--seed is -1, expected from 0 to"),
        ("--threads", "100000", "--threads is 100000, expected from 0 to"),
        ("--precision", "half", "half"),
        ("--documents", "1.5", "--documents: expected a whole number, found 1.5;"),
        ("--seed", "1e1", "--seed: expected a whole number, found 1e1;"),
    ],
)
def test_a_typed_option_out_of_bounds_is_named(
    typed: str, option: str, value: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", typed, "--dry-run", option, value]) == 2
    said = capsys.readouterr().err
    assert words in " ".join(said.split()) and "Traceback" not in said
