"""`drafterzoo show` of a drafter: what it is, its options, where its checkpoint lies; and the results on a card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest

from drafterzoo import catalogue
from drafterzoo.cli import main
from drafterzoo.drafters.base import Drafter
from drafterzoo.drafters.options import Option, options_of
from drafterzoo.registry import BUILT_IN, DRAFTERS


def shown(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    assert main(["show", *words]) == status
    said = capsys.readouterr()
    return said.out if status == 0 else said.err


def facts(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    return json.loads(shown(capsys, *words, "--json"))


# -- drafters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_drafter_says_what_it_is_and_what_each_option_means(name: str) -> None:
    drafter = DRAFTERS.get(name)
    assert drafter.source and drafter.__doc__
    options = {option.name: option for option in options_of(drafter)}
    assert list(options) == [field.name for field in attrs.fields(drafter.Config)]
    assert all(option.meaning for option in options.values()), "an option without a meaning"
    assert set(drafter.meanings) == set(options), "a meaning without an option"


def test_a_drafter_without_weights_is_shown_with_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "lookup")
    assert text.startswith("lookup\n") and "prompt lookup decoding" in text
    assert "weights       none" in text and "capabilities  none" in text
    assert "max_ngram" in text and "longest" in text and "min_ngram" in text
    assert "lookup(max_ngram=3, min_ngram=1)" in text, "how options are typed"
    found = facts(capsys, "lookup")
    assert found["name"] == "lookup" and found["has_weights"] is False and found["checkpoints"] == []
    assert found["options"][0] == {
        "name": "max_ngram",
        "default": 3,
        "given_by": "drafter",
        "meaning": found["options"][0]["meaning"],
    }


def test_a_drafter_without_a_checkpoint_says_how_to_come_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "eagle3")
    assert "arXiv 2503.01840" in text and "recurrent" in text
    assert "no checkpoint of it comes with drafterzoo" in text and "drafterzoo train" in text
    found = facts(capsys, "eagle3")
    options = {option["name"]: option for option in found["options"]}
    assert options["taps"]["default"] is None and options["taps"]["given_by"] == "target"
    assert options["num_layers"]["default"] == 1 and options["fc_norm"]["default"] is False
    assert options["head"]["default"] == "own"


def test_the_flags_of_a_variant_are_its_defaults() -> None:
    defaults = {option.name: option.default for option in options_of(DRAFTERS.get("eagle3.1"))}
    assert defaults["fc_norm"] is True and defaults["norm_output"] is True and defaults["norm_before_fc"] is False


def test_a_spec_with_options_shows_its_drafter(capsys: pytest.CaptureFixture[str]) -> None:
    assert facts(capsys, "lookup(max_ngram=5)")["name"] == "lookup"


@pytest.mark.parametrize("typed", ["lookup(max_ngram=4)", "eagle3(taps=[1])"])
def test_typed_options_are_shown_as_values(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, value = ("max_ngram", 4) if typed.startswith("lookup") else ("taps", [1])
    options = {option["name"]: option for option in facts(capsys, typed)["options"]}
    assert options.pop(name)["value"] == value and all("value" not in option for option in options.values())
    otherwise = 3 if name == "max_ngram" else "from the target"
    assert f"{name}  [{value}, as typed; otherwise {otherwise}]" in shown(capsys, typed)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("lookup(max_gram=4)", "lookup: no option 'max_gram' (did you mean 'max_ngram'?)"),
        ("lookup(max_ngram='many')", "options of lookup: key 'max_ngram' is 'many', expected a whole number"),
        ("lookup(max_ngram=nan)", "max_ngram=nan: nan and infinity are no numbers that an option can take"),
        ("lookup(min_ngram=4)", "options of lookup: min_ngram=4 and max_ngram=3, expected"),
        ("eagle3(taps='all')", "options of eagle3: key 'taps' is 'all'"),
        ("eagle3.1(tap=1)", "eagle3.1: no option 'tap'"),
        ("dir:", "'dir:' names no folder"),
    ],
)
def test_what_cannot_be_shown_is_refused(typed: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = shown(capsys, typed, status=2)
    assert words in said and said.count("\n") == 1


def test_options_of_a_checkpoint_are_shown_in_place_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    folder = catalogue.checkpoint_folder("eagle3.1-smollm2-135m")
    for name in ("eagle3.1", "eagle3.1-smollm2-135m", f"dir:{folder}"):
        found = facts(capsys, f"{name}(packed_dtype='float32')")
        assert found["config"]["drafter"]["packed_dtype"] == "float32"
        assert found["options"] == {"packed_dtype": "float32"} and facts(capsys, name)["options"] == {}
    assert "packed_dtype='float32', as typed" in shown(capsys, "eagle3.1(packed_dtype='float32')")


def test_the_config_is_printed_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    brief, whole = shown(capsys, "eagle3.1"), shown(capsys, "eagle3.1", "--config")
    assert '"library_name"' not in brief and "--config shows its config.json, too" in brief
    assert '"library_name": "drafterzoo"' in whole and "--config" not in whole


def test_a_path_is_never_broken(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert facts(capsys, "lookup")["origin"] in shown(capsys, "lookup")


def test_a_folder_that_is_not_there_is_said_to_be_missing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for typed in ("dir:nowhere", "dir:nowhere(packed_dtype='float32')", f"dir:{tmp_path / 'nowhere'}"):
        said = shown(capsys, typed, status=1)
        assert "nowhere: no such folder" in said and "download" not in said
    (tmp_path / "config.json").write_text('{"architectures": []}')
    assert "no options can be set on it" in shown(capsys, f"dir:{tmp_path}(x=1)", status=2)


def test_every_line_fits_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("lookup", "eagle3"):
        lines = [line for line in shown(capsys, name).splitlines() if not line.startswith("  from ")]  # a path: copied
        assert max(map(len, lines)) <= 80, name


def test_a_plug_in_that_explains_nothing_is_shown_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @attrs.frozen
    class Settings:
        width: int
        names: list[str] = attrs.Factory(list)

    class Silent(Drafter):
        name: ClassVar[str] = "silent"

    class Bare(Silent):
        Config: ClassVar[type] = Settings

    assert options_of(Silent) == ()
    assert options_of(Bare) == (Option("width", None, "target", ""), Option("names", [], "drafter", ""))
    monkeypatch.setattr(DRAFTERS, "_entries", dict(DRAFTERS._entries))
    DRAFTERS.register("silent", Silent)
    text = shown(capsys, "silent")
    assert "options" not in text and "Silent" in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lokup", "'lokup' (did you mean 'lookup'?)"),
        ("gsm8", "(did you mean 'gsm8k'?)"),
        ("eagle3.1-smolm2", "(did you mean 'eagle3.1-smollm2-135m'?)"),
        ("zzz", "`drafterzoo list`"),
        ("lookup+nothing", "unknown wrapper 'nothing'"),
    ],
)
def test_an_unknown_name_is_compared_with_all_that_can_be_shown(
    name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = shown(capsys, name, status=2)
    assert words in said and said.count("\n") == 1


def test_a_broken_plug_in_is_shown_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(DRAFTERS, "_broken", {"mine": "mine 0.1: ImportError: no"})
    assert "mine 0.1: ImportError: no" in shown(capsys, "mine", status=2)


# -- the results on a card -------------------------------------------------------------------------------------------


@pytest.fixture
def card(tmp_path: Path) -> Path:
    """A checkpoint's folder without weights; the test writes its card."""
    (tmp_path / "config.json").write_text('{"training": {"held_out_tau": {"chain:4": 2.5}}}')
    return tmp_path


def test_a_tau_that_is_no_number_is_shown_as_it_stands(card: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (card / "config.json").write_text('{"training": {"held_out_tau": {"chain:4": "high", "chain:2": null}}}')
    text = shown(capsys, f"dir:{card}")
    assert "tau high at chain:4" in text and "tau None at chain:2" in text


def test_the_results_of_a_card_are_shown(card: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (card / "README.md").write_text(
        "# x\n\nSold as 9.99.\n\n## Results\n\nGreedy:\n\n| budget | all |\n|---|---:|\n| a \\| b [c] | 2.42 |\n\n"
        "### By kind\n\nmore\n\n## Limits\n\nnone\n"
    )
    text = shown(capsys, f"dir:{card}")
    results = text[text.index("results, as the card") :]
    assert "Greedy:" in results and "2.42" in results and "more" in results
    assert "a | b [c]" in results and results.count("|") == 1 and "---" not in results, "a table is drawn"
    assert "9.99" not in text and "Limits" not in text
    assert "tau 2.50 at chain:4 on held-out prompts, when it was trained" in text
    found = facts(capsys, f"dir:{card}")
    assert found["results"].startswith("Greedy:") and found["results"].endswith("more")


@pytest.mark.parametrize("written", [None, "# x\n\nnothing measured\n", "## Results\n", b"\xff\xfe"])
def test_a_card_without_results_says_nothing_of_them(
    written: str | bytes | None, card: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if written is not None:
        (card / "README.md").write_bytes(written if isinstance(written, bytes) else written.encode())
    assert "results, as" not in shown(capsys, f"dir:{card}")
    assert facts(capsys, f"dir:{card}")["results"] is None


def test_the_shipped_drafter_is_shown_with_what_its_card_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text, found = shown(capsys, "eagle3.1"), facts(capsys, "eagle3.1")
    written = (catalogue.checkpoint_folder("eagle3.1-smollm2-135m") / "README.md").read_text()
    assert found["results"] in written and "| tree of 8 |" in found["results"]
    assert "tree of 24" in text and "…" not in text, "nothing is cut, however narrow the terminal"
    assert "arXiv 2605.09992" in text
    assert found["drafter"]["name"] == "eagle3.1" and "recurrent" in found["drafter"]["capabilities"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hass+pr(nope=1)", "pr: no option 'nope'"),
        ("hass+pr(gate=7)", "gate=7"),
        ("hass+pr(gate='x')", "gate"),
        ("hass(nope=1)+pr", "hass: no option 'nope'"),
    ],
)
def test_options_that_a_wrapper_has_not_are_refused_as_a_drafter_s_are(
    capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    assert words in shown(capsys, name, status=2)


def test_a_wrapper_s_options_are_shown_in_place_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    wrapper = facts(capsys, "hass+pr(reconsider=1)")["config"]["wrappers"][0]
    assert (wrapper["reconsider"], wrapper["self_query"]) == (1, "feature")


def test_a_wrapper_names_the_checkpoints_that_have_it(capsys: pytest.CaptureFixture[str]) -> None:
    kept = facts(capsys, "pr")["checkpoints"]
    assert {"hass-pr-smollm2-135m", "eagle3.1-pr-smollm2-135m"} <= set(kept)
    assert "no checkpoint with it" not in shown(capsys, "pr")


def test_a_checkpoint_says_which_wrappers_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "hass+pr")
    assert "\n  wrapper  pr(recon_steps_max=3) (Parallel Reconsideration); options: `show pr`\n" in text
    assert "wrapper  pr(recon_steps_max=3, reconsider=1) (" in shown(capsys, "hass+pr(reconsider=1)")
    assert "\n  wrapper" not in shown(capsys, "hass")
