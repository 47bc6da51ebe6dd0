"""The card of a checkpoint: what the Hub reads of it, what people read, and whose results it may show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import ModelCard, parse_eval_result_entries

from drafterzoo import cards, checkpoint, hub
from drafterzoo.cli import main
from drafterzoo.cli.card_results import results_of
from drafterzoo.drafters.base import Drafter
from drafterzoo.drafters.eagle31 import Eagle31
from drafterzoo.errors import DataError, UsageError
from drafterzoo.evaluation.conditions import drafter_conditions
from drafterzoo.target import Target
from tests import handmade
from tests.tiny import tiny_target

REPOSITORY = "me/eagle-tiny"


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("llama")


@pytest.fixture(scope="module")
def drafter(target: Target) -> Drafter:
    torch.manual_seed(0)
    made = Eagle31(Eagle31.debug_config(target), target)
    made.training_record = {"recipe": "first|steps", "steps": 12, "held_out_tau": {"chain:4": 2.3456}}
    return made


@pytest.fixture
def folder(drafter: Drafter, tmp_path: Path) -> Path:
    return drafter.save_pretrained(tmp_path / "best")


def written(folder: Path, drafter: Drafter, **options: Any) -> ModelCard:
    cards.write_card(folder, drafter, REPOSITORY, **options)
    return ModelCard.load(folder / "README.md")


def results(drafter: Drafter, folder: Path, **changes: Any) -> Path:
    """Results of bench on paper: `good` is our drafter, `poor` somebody else's in a folder of theirs."""
    other = "dir:/somebody/else/poor"
    made = handmade.conditions(("good", other), **changes)
    made["drafters"]["good"] = drafter_conditions(drafter)
    records = [
        handmade.record(name, "chain:3", *key)
        for key in handmade.ANSWERS
        for name in ("none", "good", other)
    ]  # fmt: skip
    return handmade.write(folder, records, made)


def edit_target(folder: Path, name: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["target"]["name"] = name
    (folder / "config.json").write_text(json.dumps(config))


# -- from the config -------------------------------------------------------------------------------------------------


def test_the_hub_reads_what_it_is(folder: Path, drafter: Drafter) -> None:
    edit_target(folder, "smollm2-135m")
    card = written(folder, drafter, licence="apache-2.0")
    assert card.data.to_dict() == {
        "base_model": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "library_name": "drafterzoo",
        "license": "apache-2.0",
        "metrics": ["acceptance_length"],
        "model_name": "eagle-tiny",
        "pipeline_tag": "text-generation",
        "tags": ["speculative-decoding", "drafter", "eagle3.1"],
    }
    assert not (folder / ".eval_results").exists()


def test_people_read_what_the_files_say_and_what_nobody_measured(folder: Path, drafter: Drafter) -> None:
    text = written(folder, drafter).text
    assert text.strip().startswith("# eagle-tiny") and f'drafterzoo.load("hub:{REPOSITORY}")' in text
    for row in (
        "| spec | `eagle3.1` |",
        "| recipe | first\\|steps |",
        "| τ at chain:4, held out | 2.35 |",
        "| proposes | 48 tokens of the target's |",
        f"| reads | boundaries {', '.join(map(str, drafter.taps))} of the target's residual stream |",
    ):
        assert row in text, row
    assert "For this card no texts were compared" in text and "Nothing was measured for this card" in text
    assert "## Results" not in text and "None" not in text
    sections = [line for line in text.splitlines() if line.startswith("## ")]
    assert sections == ["## Usage", "## What it is", "## How it was trained", "## Losslessness", "## Limits"]


@pytest.mark.parametrize(
    ("name", "base", "called"),
    [
        ("Qwen/Qwen3-4B", "Qwen/Qwen3-4B", "[Qwen/Qwen3-4B](https://huggingface.co/Qwen/Qwen3-4B)"),
        ("/somebody/models/llama", None, "speculative decoding with llama:"),
        ("HERE", None, "speculative decoding with best:"),
    ],
)
def test_a_target_in_somebodys_folder_is_no_base_model(
    folder: Path, drafter: Drafter, name: str, base: str | None, called: str
) -> None:
    edit_target(folder, str(folder) if name == "HERE" else name)
    card = written(folder, drafter)
    assert card.data.base_model == base and called in card.text
    assert str(folder.parent) not in str(card) and "/somebody" not in str(card)


def test_servers_that_load_a_layout_beside_it_are_named(folder: Path, drafter: Drafter) -> None:
    usage = cards.Usage("vLLM", "vllm serve X --speculative-config '{...}'", "Trees are not for it.")
    text = cards.card(checkpoint.read_config(folder), drafter, REPOSITORY, servers=[usage])
    assert "### vLLM\n\n    vllm serve X --speculative-config '{...}'\n\nTrees are not for it.\n\n## What" in text


# -- with results ----------------------------------------------------------------------------------------------------


def test_results_are_on_the_card_and_in_what_the_hub_reads(folder: Path, drafter: Drafter, tmp_path: Path) -> None:
    card = written(folder, drafter, results=results(drafter, tmp_path / "run"))
    shown = results_of(folder / "README.md")
    assert (
        shown is not None and "| eagle-tiny | chain:3 | 2.40 |" in shown and "| else/poor | chain:3 | 2.40 |" in shown
    )
    assert "| plain | - | 1.00 |" in shown and "/somebody" not in str(card)
    assert "Lossless: all 6 texts equal plain decoding's, token for token." in card.text
    assert "Nothing was measured" not in card.text and "no texts were compared" not in card.text
    for row in ("| sampling.temperature | 0.0 |", "| suite.sha256 | ab |", "| prompting.turns | all |"):
        assert row in card.text, row
    found = {(result.dataset_name, result.metric_type): result.metric_value for result in card.data.eval_results}
    assert found == {("toy", "acceptance_length"): 2.4, ("toy", "speedup"): pytest.approx(found["toy", "speedup"])}
    assert all("chain:3; target tiny-llama, T=0, match" in result.metric_name for result in card.data.eval_results)
    assert not (folder / ".eval_results").exists(), "the suite is nobody's data set on the Hub"


def test_figures_on_a_data_set_of_the_hub_are_filed_under_it(folder: Path, drafter: Drafter, tmp_path: Path) -> None:
    written(folder, drafter, results=results(drafter, tmp_path / "run", suite__name="gsm8k"))
    read = yaml.safe_load((folder / ".eval_results" / "gsm8k.yaml").read_text(encoding="utf-8"))
    entries = parse_eval_result_entries(read)
    assert [(entry.dataset_id, entry.task_id) for entry in entries] == [
        ("openai/gsm8k", "acceptance_length"), ("openai/gsm8k", "speedup"),
    ]  # fmt: skip
    assert entries[0].value == 2.4 and entries[0].notes.startswith("tokens per target call, chain:3; ")


def test_what_was_counted_on_rollouts_is_shown_too(folder: Path, drafter: Drafter, tmp_path: Path) -> None:
    made = handmade.evaluation_conditions(("good", "poor"))
    made["drafters"]["good"] = drafter_conditions(drafter)
    card = written(folder, drafter, results=handmade.write_evaluation(tmp_path / "run", None, made))
    (result,) = card.data.eval_results
    assert (result.metric_type, result.metric_value) == ("acceptance_length", 2.4)  # 12 tokens in 5 rounds
    assert "| eagle-tiny | chain:2 |" in card.text and "nothing was decoded" in card.text


@pytest.mark.parametrize("other", ["weights", "options"])
def test_results_of_another_are_refused(folder: Path, drafter: Drafter, tmp_path: Path, other: str) -> None:
    run = results(drafter, tmp_path / "run")
    conditions = json.loads((run / "conditions.json").read_text())
    good = conditions["drafters"]["good"]
    if other == "weights":
        good["weights_sha256"] = "0" * 64
    else:
        good["config"]["drafter"]["packed_dtype"] = "float32"
    (run / "conditions.json").write_text(json.dumps(conditions))
    with pytest.raises(UsageError, match=r"holds no results of these weights with these options \(there is: .*good"):
        written(folder, drafter, results=run)
    assert not (folder / "README.md").exists()


def test_damaged_results_are_named(folder: Path, drafter: Drafter, tmp_path: Path) -> None:
    run = results(drafter, tmp_path / "run")
    (run / "conditions.json").write_text("{")
    with pytest.raises(DataError, match=r"conditions\.json:1: not JSON"):
        written(folder, drafter, results=run)


# -- when it is pushed -----------------------------------------------------------------------------------------------


def test_a_card_written_by_hand_is_kept(folder: Path, target: Target, tmp_path: Path) -> None:
    (folder / "README.md").write_text("# by hand\n")
    ready = hub.push_folder(folder, REPOSITORY, hub.Push(dry_run=True), target)
    assert ready.files["README.md"] == len("# by hand\n") and ready.card.endswith("README.md, as it is")
    with pytest.raises(UsageError, match="is kept as it is, so there is no place for results"):
        hub.push_folder(folder, REPOSITORY, hub.Push(dry_run=True, results=tmp_path), target)


def test_a_card_with_results_goes_along(folder: Path, drafter: Drafter, target: Target, tmp_path: Path) -> None:
    run = results(drafter, tmp_path / "run", suite__name="gsm8k")
    ready = hub.push_folder(folder, REPOSITORY, hub.Push(dry_run=True, results=run), target)
    assert set(ready.files) == {"config.json", "model.safetensors", "README.md", ".eval_results/gsm8k.yaml"}
    assert not (folder / "README.md").exists(), "the folder is left as it is"


def test_show_draws_the_results_of_a_card(
    folder: Path, drafter: Drafter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(folder, drafter, results=results(drafter, tmp_path / "run"))
    assert main(["show", f"dir:{folder}"]) == 0
    assert "eagle-tiny" in capsys.readouterr().out.partition("results, as the card gives them")[2]
