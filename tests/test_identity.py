"""What was made with one target is never taken for another's: dtype and weights count, how they lie in memory not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from drafterzoo.target import Target, embedded
from drafterzoo.target.packed import packing_works
from drafterzoo.training import generating
from drafterzoo.training.features import OnlineFeatures, open_cache
from drafterzoo.training.generating import ensure_rollouts
from drafterzoo.training.identity import sampled_weights, target_identity
from drafterzoo.training.recipe import GenerateSection
from drafterzoo.training.rollouts import Rollouts, read_rollouts
from tests.tiny import tiny_model, tiny_target

TAPS = (2, 4, 5)


@pytest.fixture
def rollouts(tmp_path: Path) -> Rollouts:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(json.dumps({"prompt_ids": [3, 4, 5], "response_ids": [6, 7, 8, 9]}) + "\n")
    return read_rollouts(path, 64)


@pytest.mark.parametrize("other", [{"seed": 1}, {"dtype": torch.bfloat16}, {"dtype": torch.float16}], ids=str)
def test_features_of_other_weights_or_another_dtype_are_kept_apart(
    other: dict, rollouts: Rollouts, tmp_path: Path
) -> None:
    """The fingerprint is the same: a folder that was trained on, or a recipe whose dtype was changed."""
    one, two = tiny_target(), tiny_target(**other)
    assert one.fingerprint() == two.fingerprint()
    for target in (one, two, one):
        cached = open_cache(target, rollouts, TAPS, 512, tmp_path / "cache").document(0)
        online = OnlineFeatures(target, rollouts, TAPS, 512).document(0)
        torch.testing.assert_close(cached.features, online.features, rtol=2e-3, atol=2e-3)
    assert len([path for path in (tmp_path / "cache").iterdir() if path.is_dir()]) == 2


@pytest.mark.skipif(not packing_works(), reason="torch has no packed operators here")
@pytest.mark.parametrize("tied", [False, True])
def test_packing_is_no_other_target(tied: bool) -> None:
    plain, packed = (tiny_target(packed=packed, tie_word_embeddings=tied) for packed in (False, True))
    assert packed.packed and sampled_weights(plain) == sampled_weights(packed)


def test_every_tensor_counts() -> None:
    seen = {sampled_weights(tiny_target(layers=2))}
    names = [name for name, _ in tiny_model(layers=2).named_parameters()]
    for name in names:
        model = tiny_model(layers=2)
        model.get_parameter(name).data.mul_(1.001)
        seen.add(sampled_weights(Target(model, name="tiny-llama")))
    assert len(seen) == len(names) + 1


def test_the_embedded_target_is_known_by_its_revision() -> None:
    """What has been made with it stays valid."""
    target = Target(tiny_model(), name=embedded.NAME, revision=embedded.SOURCE_SHA256[:8])
    assert target_identity(target) == target.fingerprint()
    half = Target(tiny_model(dtype=torch.bfloat16), name=embedded.NAME, revision=embedded.SOURCE_SHA256[:8])
    assert target_identity(half) == {**half.fingerprint(), "dtype": "bfloat16"}
    assert "weights" in target_identity(Target(tiny_model(), name="some/model", revision="main"))


def test_answers_of_other_weights_are_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Target, "encode_chat", lambda self, messages: [3, 4, 5])
    section = GenerateSection(prompts="builtin:6", max_new_tokens=4, batch_size=2, held_out=0.0)
    append, calls = generating._append, []

    def interrupted(*args) -> None:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        append(*args)

    with monkeypatch.context() as patch:
        patch.setattr(generating, "_append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ensure_rollouts(section, tiny_target(), tmp_path / "r.jsonl")
    ensure_rollouts(section, tiny_target(seed=1), tmp_path / "r.jsonl")
    ensure_rollouts(section, tiny_target(seed=1), tmp_path / "straight.jsonl")
    assert (tmp_path / "r.jsonl").read_text() == (tmp_path / "straight.jsonl").read_text()
