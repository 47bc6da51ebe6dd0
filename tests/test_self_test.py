"""A wrong block layout, which no weight shows, is found by what the drafter proposes."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest
import torch
from torch.nn import functional

from drafterzoo import checkpoint, generate, load
from drafterzoo.cli import main
from drafterzoo.drafters.base import UnrollBatch, Unrolling
from drafterzoo.drafters.block_body import BlockBody
from drafterzoo.errors import CheckpointError, UsageError
from drafterzoo.self_test import LAYOUTS, check_layout, layout_agreement
from drafterzoo.target import Target
from tests.test_invariants import build
from tests.tiny import tiny_target

PROMPTS = [list(range(5, 15)), [30, 31, 32], [40, 3, 41]]


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target()


def trained(name: str, layout: str, target: Target) -> BlockBody:
    """A tiny drafter that has learnt the target's answers to PROMPTS by heart."""
    return taught(build(name, target), layout, target)


def taught(drafter: BlockBody, layout: str, target: Target) -> BlockBody:
    """This drafter, which then has learnt them by that layout."""
    drafter.config = attrs.evolve(drafter.config, layout=layout)
    if drafter.vocabulary is not None:
        drafter.set_vocabulary(torch.arange(drafter.config.draft_vocab_size))
    answers = generate("none", PROMPTS, target=target, max_new_tokens=40)
    batches = []
    for prompt, answer in zip(answers.prompts, answers.tokens, strict=True):
        tokens = torch.tensor([[*prompt, *answer]])
        rows = torch.arange(tokens.shape[1])
        features = target.read(tokens, drafter.taps).features
        queries = rows[len(prompt) - 1 : -5][None]
        batches.append(UnrollBatch(tokens, features, rows[None], torch.zeros_like(tokens), queries=queries))
    optimizer = torch.optim.Adam([p for p in drafter.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(60):
        loss = torch.zeros(())
        for batch in batches:
            joined = drafter.settled(batch, drafter.block_rows(batch, min(3, drafter.config.proposals), Unrolling()))
            for depth, read in enumerate(joined):
                wanted = batch.tokens[0, batch.queries[0] + 2 + depth].clamp(max=drafter.config.draft_vocab_size - 1)
                loss = loss + functional.cross_entropy(drafter.logits(read)[0], wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return drafter.eval()


@pytest.mark.parametrize("name", ["dflash", "dspark", "dfly"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_wrong_layout_is_found_and_the_right_one_passes(name: str, layout: str, target: Target) -> None:
    drafter = trained(name, layout, target)
    found = check_layout(drafter, PROMPTS)
    other = next(one for one in LAYOUTS if one != layout)
    assert found[layout] > found[other] + 0.1
    assert drafter.config.layout == layout, "looked at, and left as it was"
    drafter.config = attrs.evolve(drafter.config, layout=other)
    with pytest.raises(CheckpointError, match=rf"layout is '{other}', by which .* load it with layout='{layout}'"):
        check_layout(drafter, PROMPTS)


def test_fitted_temperatures_are_of_no_matter(target: Target) -> None:
    """There are as many as a block proposes, which the layout decides."""
    drafter = build("dspark", target)
    fitted = attrs.evolve(drafter.config, confidence_temperatures=(1.5,) * drafter.config.proposals)
    drafter.config = fitted
    assert set(layout_agreement(drafter, PROMPTS)) == set(LAYOUTS) and drafter.config == fitted


def test_a_drafter_that_has_learnt_nothing_is_not_accused(target: Target) -> None:
    assert set(check_layout(build("dflash", target), PROMPTS)) == set(LAYOUTS)


def test_what_drafts_no_blocks_has_no_layout(target: Target) -> None:
    with pytest.raises(UsageError, match=r"eagle3\.1 drafts no blocks"):
        layout_agreement(build("eagle3.1", target), PROMPTS)


def test_loading_tests_it_when_asked(tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    trained("dflash", "same_position", target).save_pretrained(tmp_path / "right")
    monkeypatch.setattr("drafterzoo.self_test.PROMPTS", PROMPTS)
    monkeypatch.setattr("drafterzoo.self_test.check_layout.__defaults__", (PROMPTS, ""))
    assert load(f"dir:{tmp_path / 'right'}", target=target, self_test=True).config.layout == "same_position"
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    for file in (tmp_path / "right").iterdir():
        (wrong / file.name).write_bytes(file.read_bytes())
    config = json.loads((wrong / checkpoint.CONFIG).read_text())
    config["drafter"]["layout"] = "anchor_first"
    (wrong / checkpoint.CONFIG).write_text(json.dumps(config))
    assert load(f"dir:{wrong}", target=target).config.layout == "anchor_first", "not unasked: it takes seconds"
    with pytest.raises(CheckpointError, match=r"wrong.config\.json: layout is 'anchor_first'"):
        load(f"dir:{wrong}", target=target, self_test=True)
    assert load(f"dir:{wrong}(layout='same_position')", target=target, self_test=True)
    monkeypatch.setattr("drafterzoo.catalogue._target", lambda *_: target)
    assert main(["doctor", "--drafter", f"dir:{tmp_path / 'right'}"]) == 0
    assert "layout same_position; of its proposals the target chooses" in " ".join(capsys.readouterr().out.split())
    assert main(["doctor", "--drafter", f"dir:{wrong}"]) == 1
    assert "load it with layout='same_position'" in " ".join(capsys.readouterr().err.split())
    assert main(["doctor", "--drafter", f"dir:{wrong}", "--profile"]) == 2
