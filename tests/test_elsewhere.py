"""Other people's checkpoints: every card can be acted on, and loading one asks for the right files and target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import drafterzoo
from drafterzoo import catalogue, elsewhere
from drafterzoo.cli import main
from drafterzoo.errors import CheckpointError
from drafterzoo.registry import DRAFTERS, FORMATS
from tests.test_serving import made
from tests.tiny import tiny_target

CARDS = elsewhere.elsewhere()


def test_there_are_some_and_none_passes_as_shipped() -> None:
    assert len(CARDS) >= 10 and CARDS.keys().isdisjoint(catalogue.list_checkpoints())


@pytest.mark.parametrize("name", CARDS)
def test_a_card_names_what_there_is(name: str) -> None:
    card, text = CARDS[name], elsewhere.card_of(name).read_text()
    assert card.layout in FORMATS and card.drafter in DRAFTERS and "/" in card.source and "/" in card.target
    assert card.verified or "**Not verified here**" in text
    assert f'drafterzoo.load("{name}")' in text and f"https://huggingface.co/{card.source})" in text
    if card.revision:
        assert f"hub:{card.source}@{card.revision}" in text


def test_loading_one_pulls_it_and_reads_its_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, asked = tiny_target(), list[Any]()
    drafter = made("dspark", target)
    drafter.export(tmp_path / "there", "deepspec-dspark")

    def pull(source: str, *, revision: str | None = None) -> Path:
        asked.append((source, revision))
        return tmp_path / "there"

    def found(given: Any, *_: Any) -> Any:
        asked.append(given)
        return target

    monkeypatch.setattr("drafterzoo.hub.pull", pull)
    monkeypatch.setattr(catalogue, "_target", found)
    loaded = drafterzoo.load("dspark-qwen3-4b-deepseek(coupling=(1.5, 1.0))")
    assert asked == [("deepseek-ai/dspark_qwen3_4b_block7", None), "Qwen/Qwen3-4B"]
    assert loaded.origin.format == "deepspec-dspark" and loaded.config.coupling == (1.5, 1.0)
    drafterzoo.load("dspark-qwen3-4b-deepseek", target, revision="abc")
    assert asked[2:] == [("deepseek-ai/dspark_qwen3_4b_block7", "abc"), target]
    with pytest.raises(CheckpointError, match="there"):  # read as the layout that the card names, and no other
        drafterzoo.load("dfly-qwen3-8b-angelslim", target)
    assert asked[4:] == [("AngelSlim/Qwen3-8B-DFly-Block8", "5712926"), target]


def test_they_are_listed_with_where_they_lie(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "checkpoints", "--target", "Qwen/Qwen3-8B", "--drafter", "dflash"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    wanted = (
        "dflash-qwen3-8b-zlab hub:z-lab/Qwen3-8B-DFlash-b16, dflash for Qwen/Qwen3-8B, zlab-dflash; not verified here"
    )
    assert said == f"checkpoints {wanted}"
    assert main(["show", "dfly-qwen3-8b-angelslim"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("hub:AngelSlim/Qwen3-8B-DFly-Block8@5712926, dfly for") and "How to verify it" in said


@pytest.mark.parametrize(
    ("front", "said"),
    [
        ("base_model: a/b", "drafterzoo"),
        ("base_model: a/b\ndrafterzoo: {source: a/c, layout: x}", "drafter"),
        ("base_model: a/b\ndrafterzoo: {source: a/c, layout: x, drafter: y, sauce: 1}", "sauce"),
        ("drafterzoo: {source: a/c, layout: x, drafter: y}", "base_model"),
    ],
)
def test_a_card_that_lacks_something(front: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model_cards" / "one").mkdir(parents=True)
    (tmp_path / "model_cards" / "one" / "README.md").write_text(f"---\n{front}\n---\n")
    monkeypatch.setattr(elsewhere, "folder", lambda name: tmp_path / name)
    elsewhere.names.cache_clear()
    elsewhere.find.cache_clear()
    try:
        with pytest.raises(CheckpointError, match=rf"README\.md: its front matter lacks or misspells a key .*{said}"):
            elsewhere.elsewhere()
    finally:
        elsewhere.names.cache_clear()
        elsewhere.find.cache_clear()
