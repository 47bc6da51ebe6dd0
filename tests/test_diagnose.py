"""`diagnose`: every drafted token against the engine's own drafts, the buckets by hand, the folder and the pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from drafterzoo import generate
from drafterzoo.budget import Budget
from drafterzoo.cli import main
from drafterzoo.engine.replay import Recording
from drafterzoo.errors import DataError, UsageError
from drafterzoo.evaluation.diagnosis.run import diagnose
from drafterzoo.evaluation.diagnosis.summary import grids, summarise
from drafterzoo.evaluation.diagnosis.tokens import Tokens, drafted
from drafterzoo.evaluation.offline.teacher import teach
from drafterzoo.target import Target
from tests.test_pr import drafter_of
from tests.tiny import tiny_target

PROMPTS = [[5, 6, 7, 5, 6, 9, 5], [3], [11, 4] * 6]


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("llama")


@pytest.fixture
def rollouts(target: Target, tmp_path: Path) -> Path:
    answers = generate("none", PROMPTS, target=target, max_new_tokens=20).tokens
    lines = [json.dumps({"prompt_ids": p, "response_ids": a}) for p, a in zip(PROMPTS, answers, strict=True)]
    warm = json.dumps({"prompt_ids": [4], "response_ids": [5, 6, 7], "temperature": 1.0, "split": "val"})
    (tmp_path / "r.jsonl").write_text("\n".join([*lines, warm]) + "\n")
    return tmp_path / "r.jsonl"


@pytest.mark.parametrize("name", ["eagle3.1", "hass", "eagle3.1+pr", "eagle3.1+pr(reconsider=0)"])
def test_it_asks_what_decoding_would_draft(target: Target, name: str) -> None:
    """From every root of an answer, the engine's chain is as deep as the diagnosis says it is right."""
    drafter = drafter_of(target, name)
    (answer,) = generate("none", PROMPTS[:1], target=target, max_new_tokens=16).tokens
    tokens = drafted(drafter, teach(target, [Recording(PROMPTS[0], answer)], drafter.taps), 3)
    assert int((tokens.depth == 1).sum()) == len(answer) - 1
    bare = getattr(drafter, "base", drafter)
    reached = [0, 0, 0]
    for root in range(len(answer) - 1):
        left = len(answer) - 1 - root
        text = [[*PROMPTS[0], *answer[:root]]]
        ((made, *_),) = generate(bare, text, budget=Budget.chain(3), max_new_tokens=6).rounds
        for depth in range(min(made.walked, left)):
            reached[depth] += 1
    assert [int((tokens.right & (tokens.depth == d)).sum()) for d in (1, 2, 3)] == reached
    assert (tokens.again is None) == (name != "eagle3.1+pr")
    assert ((tokens.sure > 0) & (tokens.sure <= 1)).all() and ((tokens.target > 0) & (tokens.target <= 1)).all()


def test_the_buckets_add_up() -> None:
    columns = dict(
        depth=torch.tensor([1, 1, 1, 2, 2, 2]),
        sure=torch.tensor([0.95, 0.3, 0.4, 0.6, 0.2, 1.0]),
        target=torch.tensor([0.99, 0.95, 0.4, 0.7, 0.92, 0.3]),
        right=torch.tensor([True, False, False, False, True, False]),
    )
    plain = summarise(Tokens(**columns))
    assert (plain["tokens"], plain["rejected"], plain["acceptance"]) == (6, 4, 2 / 6)
    assert plain["unsure_share"] == 0.5 and plain["unsure_while_target_decisive_share"] == 0.25
    assert [row["acceptance"] for row in plain["by_depth"]] == [1 / 3, 1 / 3]
    assert plain["by_confidence"][9] == {"low": 0.9, "high": 1.0, "tokens": 2, "acceptance": 0.5}
    found = {(row["drafter"], row["target"]): row["rejected"] for row in plain["buckets"]}
    assert {key: count for key, count in found.items() if count} == {
        ("below 0.5", "from 0.9"): 1, ("below 0.5", "below 0.5"): 1, ("0.5 to 0.9", "0.5 to 0.9"): 1,
        ("from 0.9", "below 0.5"): 1,
    }  # fmt: skip
    again = torch.tensor([0.9, 0.8, 0.4, 0.5, 0.9, 0.9])
    right = torch.tensor([True, True, False, False, True, True])
    whole = summarise(Tokens(**columns, again=again, right_again=right))["all_rejected"]
    assert (whole["rejected"], whole["recovered"]) == (4, 0.5)
    assert whole["rise_recovered"] == pytest.approx((0.5 - 0.1) / 2)
    assert whole["rise_not_recovered"] == pytest.approx((0.0 - 0.1) / 2)
    thought = summarise(Tokens(**columns, again=again, right_again=right))
    assert [len(grids(found, "all of them")[1].columns) for found in (plain, thought)] == [4, 7]


@pytest.mark.parametrize("name", ["eagle3.1", "hass+pr"])
def test_a_folder_holds_numbers_and_pictures(target: Target, rollouts: Path, tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    drafter = drafter_of(target, name)
    found = diagnose(drafter, rollouts, depth=2, out=tmp_path / "out", batch_size=2)
    kept = json.loads((tmp_path / "out" / "diagnosis.json").read_text())
    assert (
        kept == {"format_version": 1, **json.loads(json.dumps(found.summary))}
        and kept["conditions"]["rollouts"]["answers"] == 3
    )
    names = ["acceptance", "share"] + (["recovered"] if "pr" in name else [])
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"diagnosis.json", *(f"{n}.{kind}" for n in names for kind in ("png", "svg"))}
    assert found.markdown().count("|") > 20
    again = diagnose(drafter, rollouts, depth=2, out=tmp_path / "other", batch_size=3, figures=False)
    assert [row["tokens"] for row in again.summary["by_confidence"]] == [row["tokens"] for row in kept["by_confidence"]]
    assert [row["rejected"] for row in again.summary["buckets"]] == [row["rejected"] for row in kept["buckets"]]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"drafter": "lookup"}, "gives no chances to look at"),
        ({"depth": 0}, "depth is 0, expected a whole number from 1 to 4096."),
        ({"limit": 0}, "limit is 0, expected at least 1."),
        ({"split": "val"}, "no answer drawn at temperature 0 of split 'val' has two tokens"),
    ],
)
def test_what_cannot_be_diagnosed_is_refused(target: Target, rollouts: Path, how: dict[str, Any], words: str) -> None:
    drafter = how.pop("drafter", None) or drafter_of(target, "eagle3.1")
    with pytest.raises((UsageError, DataError)) as refused:
        diagnose(drafter, rollouts, target=target, figures=False, **how)
    assert words in str(refused.value)


def test_an_answer_beyond_the_target_s_positions_is_refused(target: Target, rollouts: Path, tmp_path: Path) -> None:
    row = json.loads(rollouts.read_text().splitlines()[0])
    ids = [5 + i % 40 for i in range(target.max_positions)]
    file = tmp_path / "long.jsonl"
    file.write_text(json.dumps({**row, "response_ids": ids, "temperature": 0.0}) + "\n")
    with pytest.raises(
        DataError, match=rf"long.jsonl: rollout 0 has \d+ tokens, but .* has {target.max_positions} pos"
    ):
        diagnose(drafter_of(target, "eagle3.1"), file, target=target, figures=False, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_is_written_again_by_the_same_diagnosis_alone(target: Target, rollouts: Path, tmp_path: Path) -> None:
    drafter, out = drafter_of(target, "eagle3.1"), tmp_path / "out"
    first = diagnose(drafter, rollouts, depth=2, out=out, figures=False)
    before = (out / "diagnosis.json").read_bytes()
    assert diagnose(drafter, rollouts, depth=2, out=out, figures=False).summary == first.summary
    for changed in ({"depth": 3}, {"bins": 5}, {"limit": 1}):
        with pytest.raises(UsageError, match="holds something else; name another folder with --out"):
            diagnose(drafter, rollouts, **{"depth": 2, **changed}, out=out, figures=False)
    assert (out / "diagnosis.json").read_bytes() == before
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds something else"):
        diagnose(drafter, rollouts, depth=2, out=tmp_path / "theirs", figures=False)


def test_each_diagnosis_has_a_folder_of_its_own(
    target: Target, rollouts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = {
        diagnose(drafter_of(target, name), rollouts, depth=depth, figures=False).directory
        for name in ("eagle3.1", "hass")
        for depth in (1, 2)
    }
    assert len(found) == 4 and all(
        folder.parent.name == "runs" and folder.name[:11] == "diagnose-r-" for folder in found
    )


def test_it_is_a_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--help"]) == 0
    assert "drafterzoo diagnose -d eagle3.1" in capsys.readouterr().out
    assert main(["diagnose", "-d", "eagle3.1", "-r", "nowhere.jsonl", "--depth", "0"]) == 2


def test_a_split_that_no_row_has_is_said_and_which_there_are(target: Target, rollouts: Path) -> None:
    with pytest.raises(DataError, match=r"no row has split 'nope'; there is 'train', 'val'\."):
        diagnose(drafter_of(target, "eagle3.1"), rollouts, split="nope")


def test_a_damaged_diagnosis_is_named(target: Target, rollouts: Path, tmp_path: Path) -> None:
    out = tmp_path / "d"
    drafter = drafter_of(target, "eagle3.1")
    diagnose(drafter, rollouts, out=out, figures=False)
    (out / "diagnosis.json").write_text("{")
    with pytest.raises(UsageError, match=r"diagnosis\.json.*name another folder with --out, or move that one away"):
        diagnose(drafter, rollouts, out=out, figures=False)
