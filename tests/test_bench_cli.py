"""`drafterzoo bench` as typed: options, recipes, tables, JSON, and mistakes in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from test_runner import FakeDecoder, measure

from drafterzoo.cli import main
from drafterzoo.cli.bench import remarks
from drafterzoo.errors import UsageError
from drafterzoo.evaluation import runner
from drafterzoo.evaluation.conditions import Settings
from drafterzoo.evaluation.recipes import KINDS, read_bench_recipe
from drafterzoo.resources import folder


@pytest.fixture
def typed(tmp_path, monkeypatch):
    """Types a command line; `asked` is what the runner was called with. Nothing is decoded but by the fake."""
    asked = {}

    def bench(**options):
        asked.update(options)
        return runner.BenchResult(measure(tmp_path / "run", FakeDecoder(lossy="quick")), tmp_path / "run")

    monkeypatch.setattr(runner, "bench", bench)
    threads = torch.get_num_threads()

    def run(*words):
        return main(["bench", *words])

    run.asked = asked
    yield run
    torch.set_num_threads(threads)


def test_options_reach_the_runner_and_only_those_typed(typed):
    assert (
        typed(
            "-d",
            "eagle3.1",
            "-d",
            "hub:a/b",
            "--suite",
            "gsm8k",
            "--budget",
            "chain:4",
            "--nodes",
            "24",
            "--limit",
            "5",
        )
        == 0
    )
    assert typed.asked == {
        "drafters": ["eagle3.1", "hub:a/b"], "suite": "gsm8k", "budget": ["chain:4", "24"], "limit": 5,
        "show_progress": True,
    }  # fmt: skip


def test_every_option(typed):
    words = (
        "--max-new-tokens 7 --temperature 0.5 --top-p 0.9 --top-k 4 --seed 3 --verification rejection --uncoupled "
        "--turns all --batch-size 2 --warmup 0 --repeats 5 --exclude lookup --target t --threads 1 --data-dir d --out o"
    )
    assert typed(*words.split()) == 0
    assert typed.asked == {
        "max_new_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 4, "seed": 3, "verification": "rejection",
        "coupled": False, "turns": "all", "batch_size": 2, "warmup": 0, "repeats": 5, "exclude": ["lookup"],
        "target": "t", "data_dir": Path("d"), "out": Path("o"), "show_progress": True,
    }  # fmt: skip
    assert torch.get_num_threads() == 1


def test_the_table_goes_to_stdout_and_the_place_to_stderr(typed, capsys, tmp_path):
    typed()
    said = capsys.readouterr()
    assert "τ with" in said.out and "texts: 2 of 16 differ" in said.out and "MB resident at most" in said.out
    assert "prompt p2, turn 1, token 4" in said.out
    assert str(tmp_path / "run") in said.err and str(tmp_path / "run") not in said.out


def test_json_is_the_summary_and_nothing_else(typed, capsys, tmp_path):
    typed("--json")
    printed = json.loads(capsys.readouterr().out)
    on_disk = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert {"format_version": 1, **printed} == on_disk


def test_a_recipe_is_read_and_overridden(typed, tmp_path):
    recipe = tmp_path / "r.toml"
    recipe.write_text('drafters = ["a"]\nbudget = ["chain:4", 8]\ntemperature = 1\n')
    assert typed(str(recipe), "--temperature", "0.5") == 0
    assert typed.asked == {"drafters": ["a"], "budget": ["chain:4", 8], "temperature": 0.5, "show_progress": True}


def test_the_shipped_recipes_are_good():
    recipes = sorted((folder("recipes") / "bench").glob("*.toml"))
    assert recipes
    for recipe in recipes:
        assert set(read_bench_recipe(recipe)) <= set(KINDS)


def test_recipe_keys_are_the_runners_arguments():
    import inspect

    assert set(KINDS) == set(inspect.signature(runner.bench).parameters) - {"show_progress"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("temprature = 1.0", r"r.toml: unknown key 'temprature' \(did you mean 'temperature'\?\)"),
        ("limit = 'all'", "r.toml: limit is 'all', expected a whole number"),
        ("seed = true", "r.toml: seed is True, expected a whole number"),
        ("seed = ", "r.toml: not TOML"),
    ],
)
def test_bad_recipes(tmp_path, text, said):
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(UsageError, match=said):
        read_bench_recipe(tmp_path / "r.toml")
    with pytest.raises(UsageError, match="cannot be read"):
        read_bench_recipe(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--threads", "0"], "--threads 0: expected a whole number from 1 to 4096"),
        (["--verification", "mtach"], "verification"),
        (["--limit", "many"], "limit"),
        (["no-such.toml"], "recipe no-such.toml cannot be read"),
    ],
)
def test_mistakes_are_one_line_and_status_2(typed, capsys, words, said):
    assert typed(*words) == 2
    said_to_user = capsys.readouterr()
    assert said in said_to_user.err and said_to_user.err.count("\n") == 1 and not said_to_user.out


def test_help_has_an_example(capsys):
    assert main(["bench", "--help"]) == 0
    assert "drafterzoo bench -d eagle3.1 --suite starter" in " ".join(capsys.readouterr().out.split())


def test_remarks_on_equal_texts(tmp_path):
    summary = measure(tmp_path / "run", FakeDecoder())
    first, second, last = remarks(summary)
    assert first == "texts: all 16 equal plain decoding's, token for token" and last.startswith("memory: ")
    assert second == "intervals: of 4 prompts they say little; ask at least 5 prompts"
    assert len(remarks({**summary, "rows": [resampled(row, 5) for row in summary["rows"]]})) == 2


def resampled(row, clusters):
    return {**row, "speedup": {**row["speedup"], "clusters": clusters}}


def test_what_is_resampled_counts_and_not_how_many_answers_there_are(tmp_path):
    turns = measure(tmp_path / "a", FakeDecoder(), Settings(max_new_tokens=16, warmup=0, turns="all"))
    assert turns["answers"] == 5 and any("of 4 prompts they say little" in line for line in remarks(turns))
    batches = measure(tmp_path / "b", FakeDecoder(), Settings(max_new_tokens=16, warmup=0, batch_size=3))
    said = "intervals: of 2 batches they say little; ask at least 15 prompts, or in smaller batches"
    assert said in remarks(batches)


def test_a_speed_up_above_tau_is_doubted(tmp_path):
    summary = measure(tmp_path / "run", FakeDecoder())
    row = resampled(summary["rows"][1], 5)

    def with_speed(value):
        rows = [{**row, "speedup": {**row["speedup"], "value": value}}]
        return remarks({**summary, "rows": rows})

    assert len(with_speed(row["tau"])) == 2
    doubt = with_speed(1.5 * row["tau"])[1]
    assert doubt.startswith(f"doubtful: {row['drafter']}@") and "measure again with nothing beside it" in doubt
