"""Foreign checkpoints of the EAGLE family: read as their authors' code computes, written back bit for bit."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import drafterzoo
from drafterzoo.composition import wrap
from drafterzoo.drafters.base import Drafter, UnrollBatch
from drafterzoo.drafters.eagle2 import Eagle2
from drafterzoo.drafters.eagle3 import Eagle3
from drafterzoo.drafters.eagle31 import Eagle31
from drafterzoo.errors import CheckpointError, DrafterzooError, UsageError
from drafterzoo.formats.agreement import agreement, answers_of, better_convention
from drafterzoo.formats.files import read_files, write_files
from drafterzoo.registry import FORMATS, parse_spec
from drafterzoo.target import Target
from drafterzoo.target.packed import packing_works
from tests.foreign_eagle import (
    EAGLE3,
    LAYOUTS,
    D,
    H,
    V,
    expected_logits,
    foreign_files,
    read,
    read_features,
    vocabulary_maps,
    write,
)
from tests.tiny import tiny_target

TOKENS = [5, 9, 33, 2, 61, 17, 40, 8, 23, 50]
IDS = "eagle_aux_hidden_state_layer_ids"


@cache
def target_of(tied: bool = False, dtype: torch.dtype = torch.float32) -> Target:
    return tiny_target("llama", tie_word_embeddings=tied, dtype=dtype)


def load(folder: Path, target: Target | None = None, **options: Any) -> Drafter:
    return drafterzoo.load(f"dir:{folder}", target or target_of(), **options)


def logits_of(drafter: Drafter) -> tuple[Tensor, Tensor]:
    """As `expected_logits`, of a drafter."""
    tokens = torch.tensor([TOKENS])
    at = torch.arange(len(TOKENS))[None]
    features = read_features(drafter.target, drafter.taps, tuple(TOKENS))
    with torch.inference_mode():
        passes = drafter.unroll(UnrollBatch(tokens, features, at, torch.zeros_like(at)), 2)
        first, second = (drafter.logits(hidden)[0] for hidden in passes)
    return first[:-2], second[len(TOKENS) - 3]


def check_same(drafter: Drafter, config: dict[str, Any], tensors: dict[str, Tensor], layout: str) -> None:
    with torch.inference_mode():
        expected = expected_logits(layout, config, tensors, drafter.target, TOKENS)
    for found, wanted in zip(logits_of(drafter), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


def check_bytes(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key].dtype == value.dtype, key
        assert torch.equal(found[key].contiguous().view(torch.uint8), value.contiguous().view(torch.uint8)), key


# Every two of the four circumstances in every combination.
CASES = [
    (layout, (number + number // 4) % 2 == 0, reduced, pickled, reduced ^ pickled)
    for number, (layout, reduced, pickled) in enumerate(itertools.product(LAYOUTS, *[(False, True)] * 2))
]


@pytest.mark.parametrize(("layout", "tied", "reduced", "pickled", "prefixed"), CASES)
def test_a_checkpoint_is_read_as_its_authors_compute_and_goes_back_bit_for_bit(
    layout: str, tied: bool, reduced: bool, pickled: bool, prefixed: bool, tmp_path: Path
) -> None:
    target = target_of(tied)
    config, tensors = foreign_files(layout, target, reduced=reduced, prefixed=prefixed)
    folder = write(tmp_path / "theirs", config, tensors, pickled=pickled)
    files = read_files(folder)
    assert [name for name in FORMATS if FORMATS.get(name).detect(files)] == [layout]
    drafter = load(folder, target)
    assert drafter.origin is not None and drafter.origin.format == layout
    check_same(drafter, config, tensors, layout)
    check_same_file(drafter, layout, config, tensors, tmp_path / "back", pickled)
    drafter.save_pretrained(tmp_path / "ours")
    native = load(tmp_path / "ours", target)
    assert native.config == drafter.config
    check_bytes(native.tensors(), drafter.tensors())
    for found, wanted in zip(logits_of(native), logits_of(drafter), strict=True):
        assert torch.equal(found, wanted)


def check_same_file(
    drafter: Drafter, layout: str, config: dict[str, Any], tensors: dict[str, Tensor], folder: Path, pickled: bool
) -> None:
    drafter.export(folder, layout)
    assert sorted(os.listdir(folder)) == ["config.json", "pytorch_model.bin" if pickled else "model.safetensors"]
    found_config, found = read(folder)
    assert found_config == config
    check_bytes(found, tensors)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_half_precision_is_kept_beside_a_target_of_another(layout: str, tmp_path: Path) -> None:
    target = target_of(dtype=torch.bfloat16 if layout.startswith("safeailab") else torch.float16)
    config, tensors = foreign_files(layout, target)
    drafter = load(write(tmp_path / "theirs", config, tensors), target)
    assert {p.dtype for p in drafter.parameters()} == {target.dtype}
    check_same_file(drafter, layout, config, tensors, tmp_path / "back", pickled=False)


@pytest.mark.parametrize("packed_dtype", [d for d in ("float32", "bfloat16") if packing_works(getattr(torch, d))])
@pytest.mark.parametrize("layout", ["safeailab-eagle2", "speculators-eagle3"])
def test_packed_layers_go_back_as_they_were_read(layout: str, packed_dtype: str, tmp_path: Path) -> None:
    target = tiny_target("llama", packed=True)
    config, tensors = foreign_files(layout, target)
    drafter = load(write(tmp_path / "theirs", config, tensors), target, packed_dtype=packed_dtype)
    assert drafter.packed == getattr(torch, packed_dtype)
    check_same_file(drafter, layout, config, tensors, tmp_path / "back", pickled=False)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_has_been_trained_further_is_written_in_the_files_dtype(layout: str, tmp_path: Path) -> None:
    config, tensors = foreign_files(layout, target_of())
    drafter = load(write(tmp_path / "theirs", config, tensors))
    with torch.no_grad():
        drafter.get_parameter("fc.weight").add_(0.5)
    drafter.export(tmp_path / "back", layout)
    found = read(tmp_path / "back")[1]
    changed = {"fc.weight": found.pop("fc.weight")}
    check_bytes(changed, {"fc.weight": (tensors.pop("fc.weight").float() + 0.5).to(changed["fc.weight"].dtype)})
    check_bytes(found, tensors)


@pytest.mark.parametrize("pickled", [False, True])
def test_a_file_written_over_since_is_not_copied_from(pickled: bool, tmp_path: Path) -> None:
    config, tensors = foreign_files("torchspec-eagle3", target_of())
    name = "pytorch_model.bin" if pickled else "model.safetensors"
    drafter = load(write(tmp_path / "theirs", config, tensors, pickled=pickled))
    (tmp_path / "theirs" / name).open("r+b").close()  # opened, and nothing written
    drafter.export(tmp_path / "back", "torchspec-eagle3")
    (tmp_path / "theirs" / name).write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="has been written over since the drafter was read from it"):
        drafter.export(tmp_path / "late", "torchspec-eagle3")
    assert not (tmp_path / "late").exists()


def test_a_file_taken_away_since_is_still_copied_from(tmp_path: Path) -> None:
    config, tensors = foreign_files("torchspec-eagle3", target_of())
    drafter = load(write(tmp_path / "theirs", config, tensors))
    shutil.rmtree(tmp_path / "theirs")
    for place in ("theirs", "again"):
        check_same_file(drafter, "torchspec-eagle3", config, tensors, tmp_path / place, pickled=False)


def test_weights_that_would_be_read_in_the_place_of_others_are_not_left_beside_them(tmp_path: Path) -> None:
    drafter = native({}, target_of())
    drafter.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"holds model\.safetensors, which is read rather than the pytorch_model\.bin"):
        write_files(FORMATS.get("safeailab-eagle3").contents(drafter), tmp_path)
    with pytest.raises(UsageError, match="is there already and not an empty folder"):
        drafter.export(tmp_path, "safeailab-eagle3")
    assert load(tmp_path).spec == "eagle3"


# -- names, flags, and what files leave open ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "name"),
    [("safeailab-eagle3", "eagle3"), ("specforge-eagle3", "eagle3.1"), ("safeailab-eagle2", "eagle2")],
)
def test_the_drafter_is_called_by_its_network(layout: str, name: str, tmp_path: Path) -> None:
    drafter = load(write(tmp_path, *foreign_files(layout, target_of())))
    assert (drafter.spec, drafter.name) == (name, name)
    result = drafterzoo.generate(drafter, [[5, 6, 7]], max_new_tokens=6)
    assert result.tokens == drafterzoo.generate("none", [[5, 6, 7]], target=target_of(), max_new_tokens=6).tokens


def test_a_head_of_hass_is_one_of_eagle2_under_another_name(tmp_path: Path) -> None:
    config, tensors = foreign_files("safeailab-eagle2", target_of())
    folder = write(tmp_path / "theirs", config, tensors)
    drafter = drafterzoo.load(f"dir:{folder}(drafter='hass')", target_of())
    assert drafter.spec == "hass"
    check_same(drafter, config, tensors, "safeailab-eagle2")
    check_same_file(drafter, "safeailab-eagle2", config, tensors, tmp_path / "back", pickled=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"drafter": "eagle3"},
            "the checkpoint holds the network of 'eagle2'; leave it out, or name one of eagle2, hass",
        ),
        ({"drafter": "has"}, "unknown drafter 'has' (did you mean 'hass'?)"),
        ({"drafter": 3}, "drafter=3, expected a name in quotes"),
        ({"format": "safeailab"}, "unknown format 'safeailab' (did you mean 'safeailab-eagle"),
        ({"aux_convention": "layers"}, "expected one of 'auto', 'boundary', 'layer_output'"),
        ({"aux_convention": "boundary"}, "says no layer ids, so aux_convention='boundary' has nothing to explain"),
        ({"taps": (1, 2)}, "unknown key 'taps'"),
        ({"intermediate_size": 64}, "its weights do not fit what was typed (intermediate_size)"),
        ({"head_dim": 7}, "head_dim=7 cannot be rotated in pairs"),
    ],
)
def test_options_that_cannot_be_meant_are_a_usage_error(options: dict, words: str, tmp_path: Path) -> None:
    folder = write(tmp_path, *foreign_files("safeailab-eagle2", target_of()))
    with pytest.raises(UsageError) as caught:
        load(folder, **options)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_foreign_checkpoint_needs_a_target(tmp_path: Path) -> None:
    folder = write(tmp_path, *foreign_files("speculators-eagle3", target_of()))
    with pytest.raises(UsageError, match="other layouts do not say what target they are for; name it"):
        drafterzoo.load(f"dir:{folder}")


def test_a_verifiers_path_is_never_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, tensors = foreign_files("speculators-eagle3", target_of())
    config["speculators_config"]["verifier"]["name_or_path"] = str(tmp_path / "trap")
    monkeypatch.setattr("drafterzoo.target.load_target", lambda *a, **k: pytest.fail("a target was loaded"))
    assert load(write(tmp_path / "theirs", config, tensors)).target is target_of()


def edited_config(layout: str, change: Callable[[dict[str, Any]], object], folder: Path) -> Path:
    config, tensors = foreign_files(layout, target_of())
    change(config)
    return write(folder, config, tensors)


@pytest.mark.parametrize(
    ("layout", "change", "field", "value"),
    [
        ("speculators-eagle3", lambda c: c.pop("norm_before_residual"), "norm_before_residual", True),
        ("speculators-eagle3", lambda c: c.update(norm_before_residual=None), "norm_before_residual", True),
        ("speculators-eagle3", lambda c: c.update(norm_before_residual=False), "norm_before_residual", False),
        ("specforge-eagle3", lambda c: c, "norm_before_residual", False),
        ("specforge-eagle3", lambda c: c.update(norm_output=None), "norm_output", False),
        ("specforge-eagle3", lambda c: c["eagle_config"].update(norm_output=False), "norm_output", False),
        (
            "specforge-eagle3",
            lambda c: (c.pop("norm_output"), c["eagle_config"].update(return_hidden_post_norm=True)),
            "norm_output",
            True,
        ),
        ("safeailab-eagle3", lambda c: c, "rope_theta", 10000.0),
        ("safeailab-eagle3", lambda c: c.update(rope_theta=5e5), "rope_theta", 5e5),
        ("angelslim-eagle3", lambda c: c.update(num_key_value_heads=2, head_dim=None), "head_dim", 8),
        ("speculators-eagle3", lambda c: c.update({IDS: [2, 4, 5]}), "taps", (2, 4, 5)),
        ("speculators-eagle3", lambda c: c.update({IDS: [0, 4, 8]}), "taps", (0, 4, 8)),
        (
            "speculators-eagle3",
            lambda c: c["transformer_layer_config"].update(layer_types=["sliding_attention"], sliding_window=4),
            "sliding_window",
            4,
        ),
    ],
)
def test_a_configs_words_are_read(layout: str, change: Any, field: str, value: Any, tmp_path: Path) -> None:
    drafter = load(edited_config(layout, change, tmp_path / "theirs"))
    assert getattr(drafter.config, field) == value
    drafter.export(tmp_path / "back", layout)
    assert read(tmp_path / "back")[0] == read(tmp_path / "theirs")[0]


def test_a_flag_decides_what_is_computed(tmp_path: Path) -> None:
    """The hand-made arithmetic takes the flags from the config, and so must the drafter."""
    seen = []
    for flags in ({}, {"norm_output": True}, {"norm_before_residual": True}, {"norm_before_fc": True}):
        config, tensors = foreign_files("torchspec-eagle3", target_of())
        if "norm_before_fc" in flags:
            tensors["input_norm.weight"] = torch.rand(3 * H) + 0.5
        drafter = load(write(tmp_path / "-".join(flags), {**config, **flags}, tensors))
        check_same(drafter, {**config, **flags}, tensors, "torchspec-eagle3")
        seen.append(logits_of(drafter)[1])
    assert not any(torch.allclose(one, other) for one, other in itertools.combinations(seen, 2))


def test_an_option_over_the_files_is_written_where_the_files_have_it(tmp_path: Path) -> None:
    config, tensors = foreign_files("specforge-eagle3", target_of())
    drafter = load(write(tmp_path / "theirs", config, tensors), norm_output=False, taps=(2, 4, 6))
    assert (drafter.config.norm_output, drafter.taps) == (False, (2, 4, 6))
    check_same_file(
        drafter,
        "specforge-eagle3",
        {**config, "norm_output": False, "eagle_config": {**config["eagle_config"], IDS: [1, 3, 5]}},
        tensors,
        tmp_path / "back",
        pickled=False,
    )


def test_a_head_narrower_than_its_target_brings_its_own_embedding(tmp_path: Path) -> None:
    wide = tiny_target("llama", hidden=48, num_attention_heads=4)
    config, tensors = foreign_files("safeailab-eagle3", target_of())
    generator = torch.Generator().manual_seed(5)
    tensors["fc.weight"] = (torch.randn(H, 3 * 48, generator=generator) / 12).half()
    tensors["embed_tokens.weight"] = torch.randn(V, H, generator=generator).half()
    folder = write(tmp_path / "theirs", {**config, "target_hidden_size": 48}, tensors)
    drafter = load(folder, wide)
    assert (drafter.config.embedding, drafter.config.head) == ("own", "own")
    assert torch.equal(drafter.get_parameter("embed_tokens.weight"), tensors["embed_tokens.weight"].float())
    assert drafterzoo.generate(drafter, [[5, 6, 7]], max_new_tokens=4).tau >= 1
    check_same_file(drafter, "safeailab-eagle3", read(folder)[0], tensors, tmp_path / "back", pickled=False)


@pytest.mark.parametrize("layout", EAGLE3)
def test_a_head_that_is_the_targets_is_borrowed_and_goes_back(layout: str, tmp_path: Path) -> None:
    config, tensors = foreign_files(layout, target_of())
    ids = torch.arange(D) + tensors["d2t"]
    tensors["lm_head.weight"] = target_of().head_weight(ids).detach().to(tensors["lm_head.weight"].dtype)
    drafter = load(write(tmp_path / "theirs", config, tensors))
    assert (drafter.config.head, drafter.config.embedding) == ("borrowed", "borrowed")
    assert not {"lm_head.weight", "embed_tokens.weight"} & drafter.tensors().keys()
    check_same_file(drafter, layout, config, tensors, tmp_path / "back", pickled=False)


@pytest.mark.parametrize("layout", EAGLE3)
def test_a_missing_head_over_all_tokens_is_the_targets(layout: str, tmp_path: Path) -> None:
    config, tensors = foreign_files(layout, target_of(), reduced=False)
    del tensors["lm_head.weight"]
    drafter = load(write(tmp_path / "theirs", config, tensors))
    assert drafter.config.head == "borrowed"
    check_same_file(drafter, layout, config, tensors, tmp_path / "back", pickled=False)


@pytest.mark.parametrize("layout", EAGLE3)
def test_maps_that_say_nothing_are_no_maps(layout: str, tmp_path: Path) -> None:
    config, tensors = foreign_files(layout, target_of(), reduced=False)
    tensors |= {"d2t": torch.zeros(V, dtype=torch.int64), "t2d": torch.ones(V, dtype=torch.bool)}
    drafter = load(write(tmp_path / "theirs", config, tensors))
    assert drafter.vocabulary is None
    check_same_file(drafter, layout, config, tensors, tmp_path / "back", pickled=False)


def test_vllms_names_of_a_torchspec_head_are_read(tmp_path: Path) -> None:
    config, tensors = foreign_files("torchspec-eagle3", target_of())
    renamed = {key.replace("midlayer.", "layers.0."): value for key, value in tensors.items()}
    drafter = load(write(tmp_path / "theirs", config, renamed))
    assert drafter.origin is not None and drafter.origin.format == "torchspec-eagle3"
    check_same(drafter, config, renamed, "torchspec-eagle3")
    check_same_file(drafter, "torchspec-eagle3", config, renamed, tmp_path / "back", pickled=False)


def test_published_safeailab_files_may_call_themselves_as_specforges(tmp_path: Path) -> None:
    config, tensors = foreign_files("safeailab-eagle3", target_of())
    config["architectures"] = ["LlamaForCausalLMEagle3"]
    drafter = load(write(tmp_path, config, tensors, pickled=True))
    assert drafter.origin is not None and drafter.origin.format == "safeailab-eagle3"


def test_weights_in_several_files_are_one_checkpoint(tmp_path: Path) -> None:
    config, tensors = foreign_files("torchspec-eagle3", target_of())
    folder = sharded(write(tmp_path / "theirs", config, tensors), tensors)
    check_same(load(folder), config, tensors, "torchspec-eagle3")


def sharded(folder: Path, tensors: dict[str, Tensor]) -> Path:
    """The weights of a folder in two files and an index."""
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, keys in parts.items():
        write(folder / file, {}, {key: tensors[key] for key in keys})
        (folder / file / "model.safetensors").rename(folder / f"{file}.new")
        (folder / file / "config.json").unlink()
        (folder / file).rmdir()
        (folder / f"{file}.new").rename(folder / file)
    places = {key: file for file, keys in parts.items() for key in keys}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


# -- what layer ids say ------------------------------------------------------------------------------------------------


@pytest.fixture
def short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drafterzoo.formats.agreement.TOKENS", 8)


@pytest.mark.parametrize(
    ("layout", "ids", "more", "taps"),
    [
        ("specforge-eagle3", None, {}, (2, 4, 5)),
        ("specforge-eagle3", [], {}, (2, 4, 5)),
        ("specforge-eagle3", [1, 3, 4], {}, (2, 4, 5)),
        ("specforge-eagle3", [1, 2, 7], {}, (2, 3, 8)),
        ("specforge-eagle3", [2, 4, 5], {}, (2, 4, 5)),
        ("specforge-eagle3", [0, 3, 6], {"aux_convention": "boundary"}, (0, 3, 6)),
        ("specforge-eagle3", [0, 3, 6], {"aux_convention": "layer_output"}, (1, 4, 7)),
        ("torchspec-eagle3", [0, 3, 6], {}, (1, 4, 7)),
        ("speculators-eagle3", [1, 3, 4], {}, (1, 3, 4)),
    ],
)
def test_layer_ids_become_boundaries(
    layout: str, ids: list[int] | None, more: dict[str, Any], taps: tuple[int, ...], tmp_path: Path
) -> None:
    config, tensors = foreign_files(layout, target_of())
    place = config if layout == "speculators-eagle3" else config.setdefault("eagle_config", {})
    place |= {IDS: ids, **more}
    drafter = load(write(tmp_path / "theirs", config, tensors))
    assert drafter.taps == taps
    check_same_file(drafter, layout, config, tensors, tmp_path / "back", pickled=False)


@pytest.mark.parametrize(
    ("layout", "convention", "taps"),
    [
        ("specforge-eagle3", "boundary", (1, 3, 4)),
        ("specforge-eagle3", "layer_output", (2, 4, 5)),
        ("speculators-eagle3", "layer_output", (2, 4, 5)),
        ("speculators-eagle3", "boundary", (1, 3, 4)),
    ],
)
def test_what_is_said_of_layer_ids_goes_before_what_the_layout_says(
    layout: str, convention: str, taps: tuple[int, ...], tmp_path: Path
) -> None:
    config, tensors = foreign_files(layout, target_of())
    config |= {IDS: [1, 3, 4]} if layout == "speculators-eagle3" else {}
    drafter = load(write(tmp_path / "theirs", config, tensors), aux_convention=convention)
    assert drafter.taps == taps
    check_same_file(drafter, layout, config, tensors, tmp_path / "back", pickled=False)


@pytest.mark.usefixtures("short_answers")
@pytest.mark.parametrize("more", [{IDS: [0, 3, 6]}, {IDS: [1, 3, 7], "use_last_layernorm": True}])
def test_ids_that_nobody_explains_are_measured_and_asked_for(
    more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = edited_config("specforge-eagle3", lambda c: c["eagle_config"].update(more), tmp_path)
    with pytest.raises(CheckpointError, match=r"which does not tell; say aux_convention='boundary' or 'layer_output'"):
        load(folder)  # random weights: they agree by neither
    shares = {tuple(more[IDS]): 0.4}
    monkeypatch.setattr("drafterzoo.formats.agreement.agreement", lambda drafter, _: shares.get(drafter.taps, 0.1))
    with pytest.warns(
        UserWarning, match=r"layer ids are read as 'boundary': the drafter agrees .* on 40% as 'boundary'"
    ):
        assert load(folder).taps == tuple(more[IDS])


@pytest.mark.usefixtures("short_answers")
def test_ids_beyond_the_target_by_one_convention_are_read_by_the_other(tmp_path: Path) -> None:
    change = {IDS: [3, 5, 8]}
    folder = edited_config("specforge-eagle3", lambda c: c["eagle_config"].update(change), tmp_path)
    with pytest.warns(UserWarning, match="read as 'boundary'"):
        assert load(folder).taps == (3, 5, 8)
    with pytest.raises(CheckpointError, match=r"read as 'layer_output', are the boundaries \[4, 6, 9\], but .* 0 to 8"):
        load(folder, aux_convention="layer_output")


@pytest.mark.usefixtures("short_answers")
def test_agreement_counts_the_targets_own_choices(tmp_path: Path) -> None:
    """A head of one token agrees as often as the target's answers hold it."""
    drafter = load(write(tmp_path, *foreign_files("specforge-eagle3", target_of())))
    with torch.no_grad():
        drafter.get_parameter("lm_head.weight").zero_()  # every logit is zero, and the first column wins
    answers = answers_of(target_of())
    assert drafter.ids is not None
    after = [token for answer in answers.tokens for token in answer[1:]]
    assert agreement(drafter, answers) == pytest.approx(after.count(int(drafter.ids[0])) / len(after))


@pytest.mark.usefixtures("short_answers")
def test_a_convention_that_clearly_agrees_more_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = read_files(write(tmp_path, *foreign_files("specforge-eagle3", target_of())))
    monkeypatch.setattr("drafterzoo.formats.agreement.agreement", lambda share, _: share)
    with pytest.warns(UserWarning, match="aux_convention='layer_output' says so without a test"):
        assert better_convention({"boundary": 0.2, "layer_output": 0.3}.get, files, target_of()) == "layer_output"
    with pytest.raises(CheckpointError, match="20% as 'boundary' and 21% as 'layer_output', which does not tell"):
        better_convention({"boundary": 0.2, "layer_output": 0.21}.__getitem__, files, target_of())


# -- what is damaged, or belongs to something else ---------------------------------------------------------------------


Edit = Callable[[dict[str, Any], dict[str, Tensor]], object]
MAPS = vocabulary_maps()
SHIFTED = MAPS["t2d"].nonzero()[:, 0]


def tensor(name: str, value: Any) -> Edit:
    """Replace a tensor: by a value, by what a function makes of it, or by nothing."""

    def change(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        made = value(tensors[name]) if callable(value) else value
        if made is None:
            del tensors[name]
        else:
            tensors[name] = made

    return change


def said(**values: Any) -> Edit:
    return lambda config, tensors: config.update(values)


def nested(table: str, **values: Any) -> Edit:
    return lambda config, tensors: config[table].update(values)


def both(*edits: Edit) -> Edit:
    return lambda config, tensors: [edit(config, tensors) for edit in edits]


FORGE, SAFE, OLD, SPEC = "specforge-eagle3", "safeailab-eagle3", "safeailab-eagle2", "speculators-eagle3"
FC, LAYER = "fc.weight", "transformer_layer_config"

BAD: list[tuple[str, Edit, str]] = [
    # vocabulary maps: eagle.md 5, row 6; field.md 2d, rows 29 to 31
    (FORGE, tensor("d2t", torch.zeros(D, dtype=torch.int64)), "d2t is all zeros although t2d names other ids"),
    (FORGE, tensor("d2t", SHIFTED), "d2t holds absolute ids, those that t2d marks"),
    (FORGE, tensor("d2t", lambda d: d + V), "id + d2t[id] leaves the target's 64 ids"),
    (FORGE, tensor("d2t", lambda d: d.flip(0)), "id + d2t[id] is not strictly ascending"),
    (FORGE, tensor("d2t", torch.full((D,), 2)), "d2t and t2d name different ids"),
    (FORGE, tensor("t2d", torch.zeros(V, dtype=torch.bool)), "t2d marks 0 ids, expected 40"),
    (FORGE, tensor("d2t", None), "'d2t' is missing, so nobody knows which of 64 tokens the head proposes in its 40 r"),
    (FORGE, tensor("t2d", None), "'t2d' is missing, so nobody knows"),
    (FORGE, tensor("d2t", lambda d: d.float()), "'d2t' is torch.float32, expected torch.int64"),
    (FORGE, tensor("t2d", lambda t: t.half()), "'t2d' is torch.float16, expected torch.bool"),
    (FORGE, tensor("d2t", lambda d: d[:-1]), "'d2t' has shape [39], expected [40]"),
    (FORGE, tensor("t2d", lambda t: t[:-4]), "'t2d' has shape [60], expected [64]"),
    (FORGE, tensor("d2t", torch.tensor(3)), "'d2t' has shape [], expected [40]"),
    # head and embedding: eagle.md 5, rows 7, 8, 18
    (FORGE, tensor("lm_head.weight", None), "'lm_head.weight' is missing, and a head over 40 of 64 tokens cannot be"),
    (SPEC, tensor("lm_head.weight", None), "'lm_head.weight' is missing, and a head over 40 of 64 tokens cannot be"),
    (FORGE, tensor("lm_head.weight", lambda w: w[:-1]), "'lm_head.weight' has shape [39, 32], expected [40, 32]"),
    (FORGE, tensor("lm_head.weight", lambda w: w[:, :-1]), "'lm_head.weight' has shape [40, 31], expected [40, 32]"),
    (FORGE, said(draft_vocab_size="40"), "'draft_vocab_size' is '40', expected int"),
    (
        "torchspec-eagle3",
        both(tensor("lm_head.weight", None), said(draft_vocab_size=V, tie_word_embeddings=True)),
        "'lm_head.weight' is missing, and tie_word_embeddings says that it is 'embed_tokens.weight', which is not",
    ),
    (
        SAFE,
        both(said(target_hidden_size=48), tensor(FC, torch.zeros(H, 3 * 48))),
        "'embed_tokens.weight' is missing, and tiny-llama's own is 48 wide where the drafter is 32",
    ),
    # aux layers: eagle.md 5, rows 1, 2
    (FORGE, nested("eagle_config", **{IDS: [1, 3]}), "'fc.weight' has shape [32, 96], expected [32, 64], 2 features"),
    (FORGE, nested("eagle_config", **{IDS: [1, 4, 3]}), "each layer once and in ascending order"),
    (FORGE, nested("eagle_config", **{IDS: [1, 3, 3]}), "each layer once and in ascending order"),
    (FORGE, nested("eagle_config", **{IDS: "1,3,4"}), "is '1,3,4', expected a list of layers' numbers from 0"),
    (FORGE, nested("eagle_config", **{IDS: [1, 3, -1]}), "expected a list of layers' numbers from 0"),
    (FORGE, nested("eagle_config", **{IDS: [1, 17, 33]}), "says [1, 17, 33], but tiny-llama has 8 layers"),
    (FORGE, nested("eagle_config", aux_convention="layer"), "has aux_convention: 'layer', expected 'boundary' or"),
    (FORGE, nested("eagle_config", use_aux_hidden_state=False), "use_aux_hidden_state: false, so the head fuses no"),
    (FORGE, said(num_aux_hidden_states=4), "num_aux_hidden_states is 4, but"),
    (SPEC, said(**{IDS: [2, 4, 9]}), "says [2, 4, 9], but tiny-llama has 8 layers"),
    (SAFE, tensor(FC, lambda w: w[:, :64]), "'fc.weight' has shape [32, 64], expected [32, 96], 3 features"),
    # norms and flags: eagle.md 5, rows 3, 4, 14
    (SAFE, tensor("norm.weight", None), "'norm.weight' is missing (1 in all), expected shape [32]"),
    (SAFE, tensor("midlayer.hidden_norm.weight", None), "'midlayer.hidden_norm.weight' is missing"),
    (OLD, tensor("layers.0.post_attention_layernorm.weight", None), "'layers.0.post_attention_layernorm.weight' is"),
    (OLD, tensor("norm.weight", torch.ones(H)), "'norm.weight' is not used by this drafter"),
    (FORGE, said(fc_norm=False), "holds 'fc_norm.0.weight', but"),
    (FORGE, tensor("fc_norm.0.weight", None), "'fc_norm' is true, but"),
    (FORGE, tensor("fc_norm.2.weight", None), "'fc_norm.2.weight' is missing"),
    (FORGE, said(fc_norm=False, norm_before_fc=True), "holds 'fc_norm.0.weight', but"),
    (FORGE, both(said(norm_before_fc=True), tensor("input_norm.weight", torch.ones(96))), "fc_norm and norm_before_fc"),
    (SPEC, said(fc_norm="yes"), "'fc_norm' is 'yes', expected bool"),
    (SPEC, said(norm_before_fc=True), "'norm_before_fc' is true, but"),
    (SPEC, tensor("input_norm.weight", torch.ones(96)), "holds 'input_norm.weight', but"),
    (OLD, said(bias=True, qkv_bias=False), "'qkv_bias' is False, but"),
    (OLD, tensor("fc.bias", None), "'bias' is True, but"),
    (OLD, said(attention_bias=True), "'attention_bias' is true, which heads of safeailab-eagle2 do not have"),
    ("angelslim-eagle3", said(norm_output=True), "'norm_output' is true, which heads of angelslim-eagle3 do not have"),
    ("angelslim-eagle3", tensor("fc_norm.0.weight", torch.ones(H)), "holds 'fc_norm.0.weight', but"),
    # sizes, names and kinds of tensors
    (FORGE, tensor("midlayer.self_attn.q_proj.weight", lambda w: w[:, :H]), "q_proj.weight' has shape [32, 32], exp"),
    (FORGE, tensor("surplus.weight", torch.ones(2)), "'surplus.weight' is not used by this drafter (1 in all)"),
    (FORGE, tensor("model.fc.weight", torch.ones(H, 96)), "fc.weight', which are one tensor; take out the one"),
    (FORGE, tensor(FC, torch.tensor(0.5)), "'fc.weight' has shape [], expected [32, 96]"),
    (OLD, tensor(FC, torch.tensor(0.5)), "'fc.weight' has shape [], expected [32, 64]"),
    (FORGE, tensor(FC, lambda w: w.to(torch.int8)), "'fc.weight' is torch.int8, expected torch.float32"),
    (FORGE, tensor(FC, lambda w: w.to(torch.float8_e4m3fn)), "'fc.weight' is torch.float8_e4m3fn, expected float16"),
    (FORGE, tensor(FC, lambda w: w.fill_(float("nan"))), "'fc.weight' holds values that are not finite"),
    (FORGE, tensor(FC, lambda w: w.fill_(float("inf"))), "'fc.weight' holds values that are not finite"),
    (FORGE, said(vocab_size=60), "made for a target with vocab_size 60, but tiny-llama has 64"),
    (OLD, said(vocab_size=80), "made for a target with vocab_size 80, but tiny-llama has 64"),
    (SAFE, said(target_hidden_size=48), "made for a target with hidden_size 48, but tiny-llama has 32"),
    (OLD, said(hidden_size="32"), "'hidden_size' is '32', expected a whole number above zero"),
    (OLD, said(num_attention_heads=3, head_dim=8), "num_heads=3 is not a multiple of num_kv_heads=2"),
    # networks that no drafter here is
    (FORGE, said(hidden_act="gelu"), "'hidden_act' is 'gelu', expected 'silu'"),
    (FORGE, said(num_hidden_layers=2), "'num_hidden_layers' is 2, expected 1"),
    (FORGE, said(rope_scaling={"type": "dynamic", "factor": 2.0}), "'rope_type' is 'dynamic', expected 'default' or"),
    (FORGE, said(eagle_config=[1, 2, 3]), "'eagle_config' is [1, 2, 3], expected dict"),
    (SPEC, lambda config, tensors: config.pop(LAYER), f"'{LAYER}' is missing, expected dict"),
    (SPEC, nested(LAYER, model_type="qwen3"), "has model_type 'qwen3', and"),
    (SPEC, nested(LAYER, model_type="gemma3"), "has model_type 'gemma3', and"),
    (SPEC, nested(LAYER, layer_types=["chunked_attention"]), "has layer_types ['chunked_attention'], expected 1 times"),
    (SPEC, nested(LAYER, layer_types=["sliding_attention"]), "'sliding_window' is missing, expected int"),
    (
        SPEC,
        nested(LAYER, layer_types=["sliding_attention"], sliding_window=4, use_sliding_window=False),
        "has use_sliding_window: false beside layer_types ['sliding_attention'], expected true",
    ),
    (SPEC, nested(LAYER, rope_theta=1e6), "'rope_theta' is 1000000.0, expected 500000.0"),
    (SPEC, lambda config, tensors: config.update(speculators_model_type="eagle"), "no known layout fits"),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "edit", "words"), BAD, ids=[f"{row[0]}-{row[2][:40]}" for row in BAD])
def test_a_bad_checkpoint_is_refused_in_a_sentence(layout: str, edit: Edit, words: str, tmp_path: Path) -> None:
    target = tiny_target("llama", hidden=48) if "48 wide" in words else target_of()
    config, tensors = foreign_files(layout, target_of())
    edit(config, tensors)
    with pytest.raises(CheckpointError) as caught:
        load(write(tmp_path / "bad", config, tensors), target)
    message = str(caught.value)
    assert words in message and "\n" not in message and message.endswith("."), message
    assert message.startswith(str(tmp_path / "bad"))


def places(config: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Every key of a config with the table that has it."""
    for key, value in config.items():
        yield config, key
        if isinstance(value, dict):
            yield from places(value)


@cache
def good_folder(layout: str) -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory()
    write(Path(folder.name), *foreign_files(layout, target_of()))
    return folder


@settings(max_examples=60, deadline=None)
@given(
    layout=st.sampled_from(LAYOUTS),
    at=st.integers(0, 40),
    value=st.sampled_from([None, -1, 0, 3, 1.5, "x", [], {}, True, False, [1], 10**12, {"a": 1}, [1, "x"]]),
)
def test_a_config_with_any_wrong_value_is_read_or_refused_in_a_sentence(layout: str, at: int, value: Any) -> None:
    config, _ = foreign_files(layout, target_of())
    every = list(places(config))
    table, key = every[at % len(every)]
    table[key] = value
    folder = Path(good_folder(layout).name)
    (folder / "config.json").write_text(json.dumps(config))
    try:
        drafter = load(folder)
    except DrafterzooError as error:
        assert "\n" not in str(error)
    else:
        assert drafter.origin is not None and drafter.origin.files.config == config


def test_every_bad_vocabulary_map_has_a_message_of_its_own() -> None:
    words = [words for _, _, words in BAD]
    assert len({message for message in words if "d2t" in message or "t2d" in message}) == 13


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_truncated_file_is_refused(name: str, tmp_path: Path) -> None:
    folder = write(tmp_path, *foreign_files(FORGE, target_of()), pickled=name.endswith(".bin"))
    truncate(folder / name)
    with pytest.raises(CheckpointError, match=f"{name}: truncated or damaged"):
        load(folder)


class Bomb:
    """What runs a command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_would_run_code_is_refused_and_runs_none(tmp_path: Path) -> None:
    config, tensors = foreign_files(SAFE, target_of())
    folder = write(tmp_path / "theirs", config, {**tensors, "fc.bias": Bomb(tmp_path / "ran")}, pickled=True)
    with pytest.raises(CheckpointError, match=r"holds more than tensors .* which may be code and is not run"):
        load(folder)
    assert not (tmp_path / "ran").exists()
    torch.load(folder / "pytorch_model.bin", weights_only=False)
    assert (tmp_path / "ran").exists(), "the pickle is one that runs code"


@pytest.mark.parametrize("value", [[1, 2], {"epoch": 3}, {"fc.weight": [0.5]}, {3: torch.ones(2)}])
def test_a_pickle_of_other_things_is_refused(value: Any, tmp_path: Path) -> None:
    folder = write(tmp_path, foreign_files(SAFE, target_of())[0], value, pickled=True)
    with pytest.raises(CheckpointError, match="expected tensors by name; save the model's state_dict alone"):
        load(folder)


def remove(folder: Path, name: str) -> None:
    (folder / name).unlink()


def place(folder: Path, key: str, name: str) -> None:
    index = folder / "model.safetensors.index.json"
    places = json.loads(index.read_text())
    places["weight_map"][key] = name
    index.write_text(json.dumps(places))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            lambda f: remove(f, "model-00002-of-00002.safetensors"),
            "names 'model-00002-of-00002.safetensors', which is not",
        ),
        (
            lambda f: truncate(f / "model-00001-of-00002.safetensors"),
            "model-00001-of-00002.safetensors: truncated or dam",
        ),
        (lambda f: place(f, "fc.weight", "../secret"), "names '../secret', which is not a file beside it"),
        (
            lambda f: place(f, "lost.weight", "model-00001-of-00002.safetensors"),
            "holds 'lost.weight', which it does not",
        ),
        (lambda f: (f / "model.safetensors.index.json").write_text("{}"), "has no 'weight_map'"),
        (lambda f: remove(f, "model.safetensors.index.json"), "holds no weights; expected model.safetensors"),
        (lambda f: (f / "config.json").write_text("{"), "config.json: cannot be read as JSON"),
    ],
)
def test_a_damaged_folder_is_refused(damage: Callable[[Path], object], words: str, tmp_path: Path) -> None:
    config, tensors = foreign_files("torchspec-eagle3", target_of())
    folder = sharded(write(tmp_path, config, tensors), tensors)
    damage(folder)
    with pytest.raises(CheckpointError) as caught:
        load(folder, format="torchspec-eagle3")
    assert words in str(caught.value) and "\n" not in str(caught.value)


# -- writing what comes from elsewhere ---------------------------------------------------------------------------------


HEADS: dict[str, dict[str, Any]] = {
    "own": {},
    "borrowed head": {"head": "borrowed"},
    "whole": {"draft_vocab_size": V},
    "whole, borrowed": {"draft_vocab_size": V, "head": "borrowed"},
}
FLAGGED = {"fc_norm": True, "norm_output": True}


def native(options: dict[str, Any], target: Target) -> Drafter:
    """A drafter of ours with random weights and a vocabulary that is not the first ids."""
    torch.manual_seed(1)
    cls = Eagle2 if "fc_bias" in options else Eagle31 if options.get("fc_norm") else Eagle3
    sizes = {"draft_vocab_size": D, "intermediate_size": 48, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8}
    drafter = cls(cls.default_config(target, **{**sizes, **options}), target).eval()
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.normal_(std=0.3) if parameter.dim() > 1 else parameter.uniform_(0.5, 1.5)
    if drafter.vocabulary is not None:
        drafter.set_vocabulary(SHIFTED)
    return drafter


@pytest.mark.parametrize("options", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("layout", EAGLE3)
def test_a_native_drafter_is_written_as_the_framework_would(
    layout: str, options: dict[str, Any], tmp_path: Path
) -> None:
    target = target_of("head" in options)
    flags = {} if layout in (SAFE, "angelslim-eagle3") else FLAGGED
    drafter = native({**options, **flags}, target)
    drafter.export(tmp_path / "theirs", layout)
    config, tensors = read(tmp_path / "theirs")
    reduced = drafter.config.draft_vocab_size < V
    model_config, model = foreign_files(layout, target, reduced=reduced)
    optional = {"verifier_norm.weight"} | ({"d2t", "t2d"} if layout == "torchspec-eagle3" and not reduced else set())
    norms = {f"fc_norm.{i}.weight" for i in range(3)} if flags else set()
    assert tensors.keys() - optional == (model.keys() | norms) - optional
    assert config["architectures"] == model_config["architectures"]
    check_same(drafter, config, tensors, layout)
    back = load(tmp_path / "theirs", target)
    assert back.origin is not None and back.origin.format == layout
    assert back.taps == drafter.taps and back.spec == drafter.spec
    for found, wanted in zip(logits_of(back), logits_of(drafter), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("bias", [False, True])
def test_a_native_eagle2_is_written_as_safeailab_would(bias: bool, tmp_path: Path) -> None:
    drafter = native({"fc_bias": bias, "draft_vocab_size": V}, target_of())
    drafter.export(tmp_path, OLD)
    config, tensors = read(tmp_path)
    assert config["bias"] is bias and ("fc.bias" in tensors) is bias
    assert torch.equal(tensors["embed_tokens.weight"], target_of().embedding_weight())
    check_same(drafter, config, tensors, OLD)
    assert load(tmp_path).config == drafter.config


def test_a_draft_vocabulary_that_eagle2_has_no_word_for_is_dropped_aloud(tmp_path: Path) -> None:
    drafter = native({"fc_bias": True}, target_of())
    with pytest.warns(UserWarning, match="has no draft vocabulary, so the head as it is written proposes any of 64"):
        drafter.export(tmp_path, OLD)
    tensors = read(tmp_path)[1]
    assert not {"d2t", "t2d"} & tensors.keys()
    whole = logits_of(load(tmp_path))[0]
    torch.testing.assert_close(whole[:, SHIFTED], logits_of(drafter)[0])


@pytest.mark.parametrize("layout", [FORGE, SPEC, "torchspec-eagle3"])
def test_taps_of_ones_own_come_back_without_a_question(layout: str, tmp_path: Path) -> None:
    drafter = native({"taps": (1, 3, 8)}, target_of())
    drafter.export(tmp_path, layout)
    assert load(tmp_path).taps == (1, 3, 8)


@pytest.mark.parametrize(
    "options",
    [
        {"num_layers": 2, "qk_norm": True, "attention_bias": True, "norm_before_residual": True},
        {"norm_before_fc": True, "sliding_window": 4},
        {"hidden_size": 48, "embedding": "own", "head_dim": 12},
        {"taps": (0, 3, 5, 8), "head": "borrowed"},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_theta": 5e5},
    ],
    ids=str,
)
def test_speculators_layout_holds_everything_that_eagle3_has(options: dict[str, Any], tmp_path: Path) -> None:
    drafter = native(options, target_of())
    drafter.export(tmp_path, SPEC)
    back = load(tmp_path)
    assert back.config == drafter.config
    for found, wanted in zip(logits_of(back), logits_of(drafter), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("layout", "options", "words"),
    [
        (SAFE, FLAGGED, "safeailab-eagle3 has no word for fc_norm; write it as 'specforge-eagle3' or"),
        ("angelslim-eagle3", {"norm_before_residual": True}, "has no word for norm_before_residual"),
        (SAFE, {"attention_bias": True}, "has no word for attention_bias"),
        (SAFE, {"taps": (1, 3, 5)}, "has no word for taps, and means [2, 4, 5], not [1, 3, 5]"),
        (SAFE, {"embedding": "own"}, "leaves out the embedding, and this drafter's is its own"),
        (SAFE, {"head_dim": 16}, "makes heads as wide as hidden_size over num_heads, not head_dim=16"),
        (FORGE, {"embedding": "own"}, "leaves out the embedding"),
        ("angelslim-eagle3", {"hidden_size": 48, "embedding": "own"}, "leaves out the embedding"),
        (FORGE, {"num_layers": 2}, "holds one layer that sees all of the text without norms, not num_layers=2"),
        (FORGE, {"qk_norm": True}, "not qk_norm=True"),
        ("torchspec-eagle3", {"sliding_window": 8}, "not sliding_window=8"),
        (FORGE, {"taps": (0, 3, 5)}, "counts layers by their outputs, and boundary 0 is none"),
        (SPEC, {"taps": (3, 5, 9)}, "name the boundary after the final norm"),
        (SPEC, {"fc_bias": True}, "speculators-eagle3 holds heads of EAGLE-3; expected one of 'eagle3', 'eagle3.1'"),
        (OLD, {}, "holds heads of EAGLE-1, EAGLE-2 and HASS; expected one of 'eagle2', 'hass'"),
        (OLD, {"fc_bias": True, "tap": 8}, "reads the feature after the final norm, boundary 9, not tap=8"),
        (OLD, {"fc_bias": True, "head_dim": 16}, "not head_dim=16"),
        (
            OLD,
            {
                "fc_bias": True,
                "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64},
            },
            "not by 'yarn'",
        ),
    ],
)
def test_what_a_layout_cannot_express_is_refused_and_nothing_is_written(
    layout: str, options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    drafter = native(options, target_of())
    with pytest.raises(UsageError) as caught:
        drafter.export(tmp_path / "theirs", layout)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "theirs").exists()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_wrapped_drafter_fits_no_foreign_layout(layout: str, tmp_path: Path) -> None:
    drafter = native({"fc_bias": True} if layout == OLD else {}, target_of())
    wrapped = wrap(drafter, parse_spec(f"{drafter.spec}+pr"))
    with pytest.raises(DrafterzooError, match="no layout but drafterzoo's own holds a wrapper"):
        wrapped.export(tmp_path / "theirs", layout)
    assert not (tmp_path / "theirs").exists()


@pytest.mark.parametrize(("source", "layout"), [(a, b) for a in EAGLE3 for b in EAGLE3 if a != b])
def test_a_checkpoint_is_written_in_another_layout_and_drafts_as_before(
    source: str, layout: str, tmp_path: Path
) -> None:
    drafter = load(write(tmp_path / "one", *foreign_files(source, target_of())))
    plain = layout in (SAFE, "angelslim-eagle3") and drafter.config.fc_norm
    if plain:
        with pytest.raises(UsageError, match="has no word for"):
            drafter.export(tmp_path / "two", layout)
        return
    drafter.export(tmp_path / "two", layout)
    back = load(tmp_path / "two")
    assert back.origin is not None and back.origin.format == layout
    for found, wanted in zip(logits_of(back), logits_of(drafter), strict=True):
        assert torch.equal(found, wanted)
