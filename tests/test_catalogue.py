"""Loading by spec, by name and by address, and what is said when a checkpoint does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import drafterzoo
from drafterzoo import catalogue
from drafterzoo.cli import main
from drafterzoo.drafters.eagle31 import Eagle31
from drafterzoo.errors import CheckpointError, UsageError
from drafterzoo.target import Target
from tests.tiny import tiny_target

NAME = "eagle3.1-tiny"


@pytest.fixture
def target() -> Target:
    return tiny_target("llama")


@pytest.fixture
def cards(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A catalogue with one checkpoint, of a tiny target."""
    torch.manual_seed(0)
    drafter = Eagle31(Eagle31.debug_config(target), target)
    drafter.budget = drafterzoo.Budget.chain(3)
    drafter.save_pretrained(tmp_path / NAME)
    monkeypatch.setattr(catalogue, "folder", lambda _: tmp_path)
    return tmp_path


def edit(folder: Path, **target_facts: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["target"].update(target_facts)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("asked", ["eagle3.1", NAME, "dir:"])
def test_spec_name_and_folder_lead_to_the_same_drafter(asked: str, cards: Path, target: Target) -> None:
    drafter = drafterzoo.load(f"dir:{cards / NAME}" if asked == "dir:" else asked, target)
    assert (drafter.spec, drafter.target, drafter.budget) == ("eagle3.1", target, drafterzoo.Budget.chain(3))
    result = drafterzoo.generate(drafter, [[5, 6, 7]], max_new_tokens=6)
    plain = drafterzoo.generate("none", [[5, 6, 7]], target=target, max_new_tokens=6)
    assert result.tokens == plain.tokens


def test_a_spec_finds_its_checkpoint_for_the_embedded_target(cards: Path) -> None:
    edit(cards / NAME, name=catalogue.EMBEDDED)
    assert catalogue.find("eagle3.1") == catalogue.find(NAME) == catalogue.find(f"dir:{cards / NAME}") == cards / NAME
    assert catalogue.find("lookup") is None and catalogue.find("eagle3") is None
    with pytest.raises(UsageError, match="unknown drafter 'lokup'"):
        catalogue.find("lokup")


def test_a_glob_lists_checkpoints(cards: Path) -> None:
    assert catalogue.list_checkpoints() == [NAME]
    assert catalogue.list_checkpoints("*tiny*") == [NAME] and catalogue.list_checkpoints("hass*") == []


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({"drafter": "eagle3.1"}, True),
        ({"drafter": "eagle*", "target": "tiny-*"}, True),
        ({"drafter": "*+pr"}, False),
        ({"target": "qwen*"}, False),
        ({"glob": "hass*", "drafter": "eagle*"}, False),
    ],
)
def test_checkpoints_are_chosen_by_drafter_and_target(
    filters: dict[str, str], found: bool, cards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert catalogue.list_checkpoints(**filters) == [NAME] * found
    words = [word for key, value in filters.items() for word in (f"--{key.replace('glob', 'match')}", value)]
    assert main(["list", "checkpoints", *words, "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["checkpoints"]) == [NAME] * found


def test_only_checkpoints_have_a_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--target", "tiny"]) == 2
    assert "type `drafterzoo list checkpoints` with them" in capsys.readouterr().err


def test_the_same_model_in_another_folder_is_accepted(cards: Path, target: Target) -> None:
    edit(cards / NAME, name="elsewhere/model", revision="other")
    assert drafterzoo.load("eagle3.1", target).target is target


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"hidden_size": 48}, "whose hidden_size is 48, but"),
        ({"num_layers": 30}, "whose num_layers is 30, but"),
        ({"vocab_size": 80}, "whose vocab_size is 80, but"),
    ],
)
def test_another_target_is_refused_by_its_sizes(facts: dict, words: str, cards: Path, target: Target) -> None:
    edit(cards / NAME, **facts)
    with pytest.raises(CheckpointError) as caught:
        drafterzoo.load(f"dir:{cards / NAME}", target)
    assert words in str(caught.value) and "load it with its own target" in str(caught.value)


def test_another_tokenizer_is_refused(cards: Path, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(cards / NAME, tokenizer="aaaa")
    monkeypatch.setattr(target, "_tokenizer_hash", "bbbb")
    monkeypatch.setattr(target, "tokenizer", object())
    with pytest.raises(CheckpointError, match=r'whose tokenizer is "aaaa", but .* has "bbbb"'):
        drafterzoo.load(f"dir:{cards / NAME}", target)


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        ("eagel3.1", UsageError, "did you mean 'eagle3.1'?"),
        ("eagle3.1+pq", UsageError, "pq"),
        ("eagle3", UsageError, "no checkpoint of 'eagle3' for"),
        ("dir:nowhere", CheckpointError, "nowhere: no such folder"),
        ("eagle3.1(tap=1)", UsageError, "eagle3.1: no option 'tap' (did you mean 'taps'?)"),
        ("lookup(max_gram=3)", UsageError, "no option 'max_gram' (did you mean 'max_ngram'?)"),
        ("hub:bad name", UsageError, "hub:bad name: not the name of a repository"),
    ],
)
def test_what_cannot_be_loaded_is_a_sentence(
    asked: str, error: type[Exception], words: str, cards: Path, target: Target
) -> None:
    with pytest.raises(error) as caught:
        drafterzoo.load(asked, target)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_loaded_target_has_settled_device_and_dtype(cards: Path, target: Target) -> None:
    with pytest.raises(UsageError, match="give them to load_target instead"):
        drafterzoo.load("eagle3.1", target, dtype=torch.float64)


def test_a_drafter_without_weights_needs_no_checkpoint(cards: Path, target: Target) -> None:
    assert drafterzoo.load("lookup(max_ngram=5)", target).config.max_ngram == 5


def test_overrides_reach_the_config(cards: Path, target: Target) -> None:
    assert drafterzoo.load("eagle3.1", target, coupling=(0.5, 2.0)).config.coupling == (0.5, 2.0)


def test_the_drafter_takes_the_targets_dtype(cards: Path) -> None:
    double = tiny_target("llama", dtype=torch.float64)
    drafter = drafterzoo.load(f"dir:{cards / NAME}", double)
    assert {p.dtype for p in drafter.parameters()} == {torch.float64}
    assert drafterzoo.generate(drafter, [[5, 6, 7]], max_new_tokens=4).tau >= 1


def test_the_hub_without_a_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch, target: Target) -> None:
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(*args: object, **kwargs: object) -> str:
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr("drafterzoo.hub.snapshot_download", offline)
    with pytest.raises(CheckpointError, match="hub:org/name: the Hub cannot be reached"):
        drafterzoo.load("org/name", target)


# -- options behind an address ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["dir:{folder}", NAME, "hub:org/name@v1", "org/name@v1", "eagle3.1"])
def test_options_behind_whatever_names_a_checkpoint_are_set_on_it(
    asked: str, cards: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled: list[tuple[str, str | None]] = []

    def pull(name: str, *, revision: str | None) -> Path:
        pulled.append((name, revision))
        return cards / NAME

    monkeypatch.setattr("drafterzoo.hub.pull", pull)
    typed = asked.format(folder=cards / NAME) + "(packed_dtype='float32', coupling=(0.5, 2.0))"
    config = drafterzoo.load(typed, target).config
    assert (config.packed_dtype, config.coupling) == ("float32", (0.5, 2.0))
    assert drafterzoo.load(typed, target, coupling=(1.0, 3.0)).config.coupling == (1.0, 3.0)
    assert catalogue.options_typed(typed) == {"packed_dtype": "float32", "coupling": (0.5, 2.0)}
    assert catalogue.composition(typed) == [Eagle31]
    catalogue.check_spelling(typed)
    assert set(pulled) <= {("org/name", "v1")} and bool(pulled) == ("org/name" in asked)


@pytest.mark.parametrize("name", ["best (copy)", "best()", "lr(x=1)", "best(packed_dtype='float32')", "a(b"])
def test_a_folder_whose_name_holds_brackets_is_loaded(name: str, cards: Path, target: Target, tmp_path: Path) -> None:
    folder = (cards / NAME).rename(tmp_path / name)
    own = drafterzoo.load(f"dir:{folder}", target).config
    assert own.packed_dtype == "auto" and catalogue.find(f"dir:{folder}") == folder
    assert drafterzoo.load(f"dir:{folder}(packed_dtype='float32')", target).config.packed_dtype == "float32"


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        ("dir:{folder}(tap=1)", UsageError, "eagle3.1: no option 'tap' (did you mean 'taps'?)"),
        (
            "dir:{folder}(packed_dtype='f32')",
            UsageError,
            "'packed_dtype' is 'f32', expected one of 'auto', 'float32', 'bf",
        ),
        (f"{NAME}(rope_theta=nan)", UsageError, "nan and infinity are no numbers"),
        ("dir:{folder}(packed_dtype=float32)", UsageError, "put text in quotes, as in packed_dtype='float32'"),
        ("dir:nowhere(packed_dtype='float32')", CheckpointError, "nowhere: no such folder"),
        ("dir:nowhere (copy)", CheckpointError, "nowhere (copy): no such folder"),
        ("dir:", UsageError, "'dir:' names no folder; write 'dir:path'"),
        ("dir:(packed_dtype='float32')", UsageError, "'dir:' names no folder"),
        ("./best(packed_dtype='float32')", UsageError, "write 'dir:./best"),
    ],
)
def test_wrong_options_behind_an_address_are_a_sentence(
    asked: str, error: type[Exception], words: str, cards: Path, target: Target
) -> None:
    with pytest.raises(error) as caught:
        drafterzoo.load(asked.format(folder=cards / NAME), target)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (f"{NAME}+pr", "is a checkpoint's name and takes no wrapper"),
        ("none+pr", "'none' is plain decoding, which is no drafter"),
        ("nonesuch+pr", "unknown drafter 'nonesuch'"),
    ],
)
def test_what_is_no_drafter_but_a_name_says_what_it_is(cards: Path, target: Target, spec: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        drafterzoo.load(spec, target)
