"""The foreign layouts of block drafters, both ways: hand-made folders, our drafter of the same weights, and back."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from drafterzoo import generate, load
from drafterzoo.budget import Budget
from drafterzoo.drafters.base import Drafter, UnrollBatch
from drafterzoo.drafters.block_body import BlockBody
from drafterzoo.errors import CheckpointError, UsageError
from drafterzoo.formats.base import Files
from drafterzoo.formats.binding import recognise, sections
from drafterzoo.formats.block_layout import BlockLayout
from drafterzoo.formats.files import read_files
from drafterzoo.registry import BUILT_IN_FORMATS, DRAFTERS, FORMATS
from drafterzoo.target import Target
from tests import foreign_blocks as made
from tests.foreign_blocks import Foreign
from tests.test_invariants import build
from tests.test_self_test import PROMPTS, taught
from tests.tiny import tiny_target

FOLDERS = made.everything()
BLOCKS = sorted({one.format for one in FOLDERS.values()})
TARGET = made.target()
USUAL = {  # one folder of each layout, to be spoilt
    "zlab-dflash": "usual",
    "specforge-dspark": "vanilla",
    "deepspec-dspark": "vanilla, markov",
    "deepspec-dflash": "none, off",
    "speculators-dflash": "reduced",
    "speculators-dspark": "dspark vanilla",
    "angelspec-dfly": "usual",
}


@pytest.fixture
def target() -> Target:
    return TARGET


@pytest.fixture(params=FOLDERS.values(), ids=list(FOLDERS))
def foreign(request: pytest.FixtureRequest) -> Foreign:
    return request.param


def usual(format: str) -> Foreign:
    return FOLDERS[f"{format}: {USUAL[format]}"]


@cache
def usual_drafter(format: str) -> Drafter:
    return usual(format).ours(TARGET)


def tensors_of(folder: Path) -> dict[str, Tensor]:
    if (folder / "pytorch_model.bin").exists():
        return torch.load(folder / "pytorch_model.bin", weights_only=True)
    return safetensors.torch.load_file(folder / "model.safetensors")


def block_logits(drafter: Drafter) -> list[Tensor]:
    """What it proposes below a few roots of a text, at every depth of its block."""
    assert isinstance(drafter, BlockBody)
    tokens = torch.randint(3, made.V, (1, 24), generator=torch.Generator().manual_seed(1))
    rows = torch.arange(24)[None]
    features = drafter.target.read(tokens, drafter.taps).features
    batch = UnrollBatch(tokens, features, rows, torch.zeros_like(tokens), queries=torch.tensor([[2, 9, 15]]))
    with torch.no_grad():
        return [drafter.logits(one) for one in drafter.unroll(batch, drafter.config.proposals)]


def same_bytes(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key].dtype == value.dtype and torch.equal(found[key], value), key


# -- reading and writing back ----------------------------------------------------------------------------------------


def test_every_layout_has_a_folder_here() -> None:
    """Else nothing below would concern it."""
    ours = {name for name in BUILT_IN_FORMATS if isinstance(FORMATS.get(name), BlockLayout)}
    assert ours == set(BLOCKS) == set(USUAL)


def test_a_folder_is_recognised_by_its_layout_alone(foreign: Foreign, tmp_path: Path) -> None:
    files = read_files(foreign.write(tmp_path))
    assert [name for name in FORMATS if FORMATS.get(name).detect(files)] == [foreign.format]
    assert recognise(files).name == foreign.format


def test_a_folder_drafts_what_our_drafter_of_these_weights_does(
    foreign: Foreign, tmp_path: Path, target: Target
) -> None:
    found, ours = load(f"dir:{foreign.write(tmp_path)}", target), foreign.ours(target)
    assert found.config == ours.config and found.spec == foreign.drafter
    assert found.origin is not None and found.origin.format == foreign.format
    logits = block_logits(found)
    assert len(logits) == made.BLOCK - (found.config.layout == "same_position")
    for depth, (theirs, own) in enumerate(zip(logits, block_logits(ours), strict=True)):
        torch.testing.assert_close(theirs, own, rtol=0, atol=0, msg=f"depth {depth}")
    assert len({int(one) for depth in logits for one in depth.argmax(-1).flatten()}) > 4, "too alike to tell"


def test_what_came_from_a_layout_goes_back_as_it_was(foreign: Foreign, tmp_path: Path, target: Target) -> None:
    drafter = load(f"dir:{foreign.write(tmp_path / 'there')}", target)
    drafter.export(tmp_path / "back", foreign.format)
    same_bytes(tensors_of(tmp_path / "back"), foreign.tensors)
    assert json.loads((tmp_path / "back" / "config.json").read_text()) == foreign.config


def test_ours_written_in_a_layout_is_read_from_it_as_it_was(foreign: Foreign, tmp_path: Path, target: Target) -> None:
    ours = foreign.ours(target)
    ours.export(tmp_path, foreign.format)
    found = load(f"dir:{tmp_path}", target)
    assert found.origin is not None and found.origin.format == foreign.format
    assert found.config == ours.config and type(found) is type(ours)
    for theirs, own in zip(block_logits(found), block_logits(ours), strict=True):
        torch.testing.assert_close(theirs, own, rtol=0, atol=0)


def test_mixed_dtypes_go_back_without_loss(tmp_path: Path, target: Target) -> None:
    one = usual("deepspec-dspark")
    exact = one.tensors["fc.weight"].float() + 1e-5
    drafter = load(f"dir:{one.write(tmp_path / 'there', **{'fc.weight': exact})}", target)
    assert drafter.storage_dtype == torch.float32, "the widest of the file"
    drafter.export(tmp_path / "back", one.format)
    same_bytes(tensors_of(tmp_path / "back"), {**one.tensors, "fc.weight": exact})


@pytest.mark.parametrize("format", ["speculators-dflash", "deepspec-dspark", "angelspec-dfly"])
def test_what_is_read_drafts_and_the_text_is_the_targets(format: str, tmp_path: Path, target: Target) -> None:
    drafter = load(f"dir:{usual(format).write(tmp_path)}", target)
    plain = generate("none", [[5, 6, 7]], target=target, max_new_tokens=12)
    assert generate(drafter, [[5, 6, 7]], budget=Budget.chain(4), max_new_tokens=12).tokens == plain.tokens


@pytest.mark.parametrize("format", ["speculators-dflash", "deepspec-dspark", "angelspec-dfly"])
def test_a_tied_targets_head_and_embedding_are_two_copies(format: str, tmp_path: Path) -> None:
    tied = tiny_target(vocab=made.V, layers=made.N, hidden=made.H, tie_word_embeddings=True)
    one = usual(format)
    own = {key: value for key, value in one.native.items() if key not in ("d2t", "t2d")}
    whole = attrs.evolve(one, native=own, options={**one.options, "draft_vocab_size": made.V})
    whole.ours(tied).export(tmp_path, format)
    assert load(f"dir:{tmp_path}", tied).config == whole.ours(tied).config


def test_ids_read_against_the_layout_are_not_written_in_it(tmp_path: Path, target: Target) -> None:
    drafter = load(f"dir:{usual('zlab-dflash').write(tmp_path)}", target, aux_convention="boundary")
    assert drafter.taps == made.IDS
    with pytest.raises(UsageError, match="aux_convention='boundary', and layout 'zlab-dflash' always means 'layer_out"):
        drafter.export(tmp_path / "back", "zlab-dflash")


def test_both_places_of_a_key_are_written_alike(tmp_path: Path, target: Target) -> None:
    assistant = FOLDERS["zlab-dflash: assistant"].write(tmp_path / "there")
    drafter = load(f"dir:{assistant}", target, taps=(2, 4, 7))
    drafter.export(tmp_path / "back", "zlab-dflash")
    assert load(f"dir:{tmp_path / 'back'}", target).taps == (2, 4, 7)


@st.composite
def sections_of(draw: st.DrawFn) -> tuple[BlockLayout, dict[str, Any]]:
    """A layout, and a section that it can hold."""
    format = draw(st.sampled_from(BLOCKS))
    layout = FORMATS.get(format)
    slides, theirs = format in ("zlab-dflash", "specforge-dspark"), format.startswith("speculators-")
    section = json.loads(json.dumps(sections(usual_drafter(format)))) | {
        "taps": draw(st.lists(st.integers(1, made.N - 1), min_size=1, unique=True)),
        "block_size": draw(st.integers(2, 16)),
        "mask_token_id": draw(st.integers(0, made.V - 1)),
        "num_layers": draw(st.integers(1, 3)),
        "rope_theta": draw(st.sampled_from([1e4, 1e6, 11158840.0])),
        "rope_scaling": draw(st.sampled_from([None, {"rope_type": "linear", "factor": 2.0}])),
        "attention_bias": draw(st.booleans()),
    }
    if slides or theirs:
        sliding = draw(st.lists(st.integers(0, section["num_layers"] - 1), unique=True).map(sorted))
        section |= {"sliding_layers": sliding, "sliding_window": draw(st.integers(1, 9)) if sliding else None}
        section["causal"] = draw(
            st.sampled_from([None, True, False] if slides else [None, False] if sliding else [None])
        )
    if theirs:
        section["layout"] = draw(st.sampled_from(["same_position", "anchor_first"]))
    if format.startswith("deepspec-"):
        section["taps"] = sorted({*section["taps"], *draw(st.sampled_from([[], [0]]))})
    if section.get("markov", "none") != "none":
        kinds = ["vanilla", "gated", "rnn"] if section["layout"] == "anchor_first" else ["vanilla", "gated"]
        section |= {"markov": draw(st.sampled_from(kinds)), "confidence_with_markov": draw(st.booleans())}
    if format == "angelspec-dfly":
        section |= {"correction": draw(st.booleans()), "correction_size": draw(st.sampled_from([0, 16]))}
    assert isinstance(layout, BlockLayout)
    return layout, section


@settings(max_examples=40, deadline=None)
@given(sections_of())
def test_what_a_config_is_written_from_is_read_of_it(drawn: tuple[BlockLayout, dict[str, Any]]) -> None:
    layout, section = drawn
    config = json.loads(json.dumps(layout.anew(usual_drafter(layout.name), section)))
    files = Files(Path("folder"), "config.json", "weights", config, {})
    found = layout.section(files, TARGET)
    assert found == {key: section[key] for key in found} and {"taps", "layout", "causal", "block_size"} <= found.keys()
    assert [name for name in FORMATS if FORMATS.get(name).detect(files)] == [layout.name]


# -- how each framework would write ours -----------------------------------------------------------------------------


def test_z_lab_leaves_out_what_is_the_targets(tmp_path: Path, target: Target) -> None:
    usual("zlab-dflash").ours(target).export(tmp_path, "zlab-dflash")
    config = json.loads((tmp_path / "config.json").read_text())
    assert tensors_of(tmp_path).keys() == made.body().keys()
    assert config["dflash_config"] == {"mask_token_id": 7, "target_layer_ids": [1, 3, 5], "block_size": 5}
    assert (config["block_size"], config["num_target_layers"]) == (5, made.N)


def test_deepspec_holds_copies(tmp_path: Path, target: Target) -> None:
    usual("deepspec-dspark").ours(target).export(tmp_path, "deepspec-dspark")
    tensors, config = tensors_of(tmp_path), json.loads((tmp_path / "config.json").read_text())
    assert torch.equal(tensors["embed_tokens.weight"], target.embedding_weight())
    assert torch.equal(tensors["lm_head.weight"], target.head_weight())
    assert {"target_layer_ids", "mask_token_id", "num_anchors", "enable_confidence_head", "markov_rank"} <= set(config)


def test_deepspecs_dflash_may_be_ours(tmp_path: Path, target: Target) -> None:
    one = usual("deepspec-dflash")
    ours = attrs.evolve(one, drafter="dflash", options={"num_layers": 2, "layout": "anchor_first"}).ours(target)
    ours.export(tmp_path, "deepspec-dflash")
    found = load(f"dir:{tmp_path}", target)
    assert (found.spec, found.config.markov, found.config.layout) == ("dspark", "none", "anchor_first")
    for theirs, own in zip(block_logits(found), block_logits(ours), strict=True):
        torch.testing.assert_close(theirs, own, rtol=0, atol=0)


@pytest.mark.parametrize(("layout", "tokens"), [("same_position", made.BLOCK - 1), ("anchor_first", made.BLOCK)])
def test_speculators_counts_ids_and_tokens_its_own_way(
    layout: str, tokens: int, tmp_path: Path, target: Target
) -> None:
    one = usual("speculators-dflash")
    attrs.evolve(one, options={**one.options, "layout": layout}).ours(target).export(tmp_path, one.format)
    config, tensors = json.loads((tmp_path / "config.json").read_text()), tensors_of(tmp_path)
    assert config["aux_hidden_state_layer_ids"] == [2, 4, 6]
    assert config["sample_from_anchor"] == (layout == "anchor_first")
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == tokens
    ids = made.vocabulary()["t2d"].nonzero()[:, 0]
    assert torch.equal(tensors["lm_head.weight"], target.head_weight(ids))
    assert torch.equal(tensors["embed_tokens.weight"], target.embedding_weight())


def test_dfly_counts_taps_where_others_count_layers(tmp_path: Path, target: Target) -> None:
    usual("angelspec-dfly").ours(target).export(tmp_path, "angelspec-dfly")
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["num_target_layers"], config["target_num_hidden_layers"]) == (len(made.IDS), made.N)
    assert tensors_of(tmp_path).keys() == usual("angelspec-dfly").tensors.keys()


@pytest.mark.parametrize(
    ("drafter", "options", "format", "words"),
    [
        ("dflash", {"layout": "anchor_first"}, "zlab-dflash", "no drafter whose slots propose for the next position"),
        ("dspark", {"draft_vocab_size": 40}, "deepspec-dspark", "no reduced vocabulary"),
        ("dflash", {"mask_token_id": None}, "zlab-dflash", "no mask vector of a drafter's own (mask_token_id=None)"),
        ("dflash", {"mask_token_id": None}, "speculators-dflash", "no mask vector of a drafter's own"),
        ("dspark", {"mask_token_id": None}, "deepspec-dspark", "no mask vector of a drafter's own"),
        ("dspark", {"mask_token_id": None}, "specforge-dspark", "no mask vector of a drafter's own"),
        ("dfly", {"mask_token_id": None}, "angelspec-dfly", "no mask vector of a drafter's own"),
        ("dflash", {"head": "own"}, "zlab-dflash", "no head or embedding but the target's"),
        ("dflash", {"qk_norm": False}, "zlab-dflash", "no drafter without norms of queries and keys"),
        ("dspark", {}, "zlab-dflash", "no drafter but dflash"),
        ("lookup", {}, "angelspec-dfly", "no drafter but dfly"),
        ("eagle3", {}, "zlab-dflash", "no drafter but dflash"),
        ("eagle3", {}, "deepspec-dspark", "no drafter but dspark and dflash"),
        ("dspark", {"layout": "same_position"}, "specforge-dspark", "no drafter whose slots propose for their own"),
        ("dspark", {}, "deepspec-dflash", "no heads, which 'deepspec-dspark' does"),
        ("dflash", {"layout": "anchor_first"}, "deepspec-dspark", "no drafter without any head, which 'deepspec-dfl"),
        ("dspark", {"sliding_window": 4, "sliding_layers": (0,)}, "deepspec-dspark", "no windows"),
        ("dspark", {"taps": (4, 2)}, "deepspec-dspark", "no taps in another order than the layers'"),
        ("dflash", {"causal": True}, "speculators-dflash", "no slots that are blind to later ones, but in windows"),
        ("dflash", {}, "speculators-dspark", "no drafter but dspark"),
        ("dspark", {"markov": "rnn", "layout": "same_position"}, "speculators-dspark", "no such recurrent head: where"),
        ("dfly", {"layout": "anchor_first"}, "angelspec-dfly", "no drafter whose slots propose for the next"),
        ("dfly", {"head": "own"}, "angelspec-dfly", "no head but the target's"),
        ("dflash", {"taps": (2, 8)}, "zlab-dflash", "has no layer id for tap 8"),
        ("dflash", {"taps": (0, 2)}, "zlab-dflash", "has no layer id for tap 0"),
        ("dflash", {"taps": (2, 9)}, "speculators-dflash", "has no layer id for tap 9"),
    ],
)
def test_what_a_layout_cannot_hold_is_a_sentence_and_nothing_is_written(
    drafter: str, options: dict[str, Any], format: str, words: str, tmp_path: Path, target: Target
) -> None:
    usually: dict[str, Any] = {"taps": (2, 4), "num_layers": 1, "mask_token_id": 7}
    if drafter in ("eagle3", "lookup"):
        usually = {}
    ours = DRAFTERS.get(drafter).create(target, **{**usually, **options})
    with pytest.raises(UsageError) as caught:
        ours.export(tmp_path, format)
    assert words in str(caught.value) and "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_no_layout_holds_a_wrapper(tmp_path: Path, target: Target) -> None:
    with pytest.raises(UsageError, match=r"no layout but drafterzoo's own holds a wrapper"):
        build("dflash+carryover", target).export(tmp_path, "zlab-dflash")


def test_options_typed_at_loading_are_written(tmp_path: Path, target: Target) -> None:
    """A config that says what is no longer so would be worse than one written anew."""
    one = usual("speculators-dflash")
    drafter = load(f"dir:{one.write(tmp_path / 'there')}", target, layout="anchor_first", coupling=(0.5, 2.0))
    drafter.export(tmp_path / "back", one.format)
    same_bytes(tensors_of(tmp_path / "back"), one.tensors)
    again = load(f"dir:{tmp_path / 'back'}", target)
    assert again.config == attrs.evolve(drafter.config, coupling=(1.0, 1.0))
    zlab = load(f"dir:{usual('zlab-dflash').write(tmp_path / 'zlab')}", target, layout="anchor_first")
    with pytest.raises(UsageError, match="slots propose for the next position"):
        zlab.export(tmp_path / "other", "zlab-dflash")


def test_the_layout_is_looked_at_when_asked(tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"same_position": 0.02, "anchor_first": 0.6}
    monkeypatch.setattr("drafterzoo.self_test.layout_agreement", lambda *_: found)
    address = f"dir:{usual('zlab-dflash').write(tmp_path)}"
    assert load(address, target).config.layout == "same_position", "not unasked: it takes seconds"
    with pytest.raises(CheckpointError, match=r"config\.json: layout is 'same_position', .* layout='anchor_first'"):
        load(address, target, self_test=True)
    assert load(f"{address}(layout='anchor_first')", target, self_test=True).config.layout == "anchor_first"


@pytest.mark.slow
def test_a_wrong_layout_is_found(tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block drafter trained anchor-first, in a folder of the layout whose slots propose for their own position."""
    options = {"mask_token_id": 7, "block_size": 5, "num_layers": 1, "taps": (2, 4, 7)}
    torch.manual_seed(0)
    drafter = taught(DRAFTERS.get("dflash").create(target, **options), "anchor_first", target)
    drafter.config = attrs.evolve(drafter.config, layout="same_position")
    drafter.export(tmp_path, "zlab-dflash")
    monkeypatch.setattr("drafterzoo.self_test.check_layout.__defaults__", (PROMPTS, ""))
    assert load(f"dir:{tmp_path}", target).config.layout == "same_position"
    with pytest.raises(CheckpointError, match=r"config\.json: layout is 'same_position', .* layout='anchor_first'"):
        load(f"dir:{tmp_path}", target, self_test=True)
    assert load(f"dir:{tmp_path}", target, self_test=True, layout="anchor_first").config.layout == "anchor_first"


# -- damaged and unfitting folders -----------------------------------------------------------------------------------


def changed(config: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A config with the value at `table.key` replaced, or taken out (...)."""
    first, _, rest = path.partition(".")
    if rest:
        return {**config, first: changed(config[first], rest, value)}
    left = {key: old for key, old in config.items() if key != first}
    return left if value is ... else {**left, first: value}


IDS_AT = {
    "zlab-dflash": "dflash_config.target_layer_ids",
    "specforge-dspark": "dflash_config.target_layer_ids",
    "deepspec-dspark": "target_layer_ids",
    "deepspec-dflash": "target_layer_ids",
    "speculators-dflash": "aux_hidden_state_layer_ids",
    "speculators-dspark": "aux_hidden_state_layer_ids",
    "angelspec-dfly": "target_layer_ids",
}
MASK_AT = {format: path.rpartition(".")[0] for format, path in IDS_AT.items()}


def refused(one: Foreign, folder: Path, target: Target, config: dict[str, Any] | None = None, **tensors: Any) -> str:
    """What is said of a folder, in one sentence that names it."""
    one.write(folder, config, **tensors)
    with pytest.raises(CheckpointError) as caught:
        load(f"dir:{folder}", target, format=one.format)
    said = str(caught.value)
    assert "\n" not in said and said.endswith(".") and (str(folder) in said), said
    return said


@pytest.mark.parametrize("format", BLOCKS)
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (..., "is missing, expected the layers that were tapped, which nothing else tells"),
        ([], "is [], expected the layers that were tapped"),
        ([1, 3, "5"], "expected the layers that were tapped"),
        ([1, 3, 99], "and 99 is none"),
        ([-2, 3, 5], "and -2 is none"),
        ([1, 3, 3], "expected each layer once"),
        ([1, 3, 5, 6], "columns for 4 layer ids of width 32"),
    ],
)
def test_layer_ids_that_cannot_be_meant(format: str, value: Any, words: str, tmp_path: Path, target: Target) -> None:
    one = usual(format)
    config = changed(one.config, IDS_AT[format], value)
    if format == "angelspec-dfly" and isinstance(value, list):
        config["num_target_layers"] = len(value)
    assert words in refused(one, tmp_path, target, config)


@pytest.mark.parametrize(
    ("format", "last"),
    [("zlab-dflash", 7), ("deepspec-dspark", 7), ("speculators-dflash", 8), ("angelspec-dfly", 7)],
)
def test_the_last_layers_output_is_ambiguous(format: str, last: int, tmp_path: Path, target: Target) -> None:
    one = usual(format)
    said = refused(one, tmp_path, target, changed(one.config, IDS_AT[format], [1, 3, last]))
    assert f"and {last} is none (the last layer's output is not one" in said


@pytest.mark.parametrize("format", BLOCKS)
@pytest.mark.parametrize("value", [..., None, made.V, "7"])
def test_a_mask_that_no_embedding_stands_for(format: str, value: Any, tmp_path: Path, target: Target) -> None:
    one = usual(format)
    path = f"{MASK_AT[format]}.mask_token_id".removeprefix(".")
    said = refused(one, tmp_path, target, changed(one.config, path, value))
    assert "key 'mask_token_id' is" in said and f"expected an id below {made.V}" in said


@pytest.mark.parametrize("format", BLOCKS)
@pytest.mark.parametrize("value", [..., 1])
def test_a_block_that_is_none(format: str, value: Any, tmp_path: Path, target: Target) -> None:
    one = usual(format)
    assert "how many tokens make a block" in refused(one, tmp_path, target, changed(one.config, "block_size", value))


@pytest.mark.parametrize("format", ["zlab-dflash", "speculators-dspark", "angelspec-dfly"])
@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("layers.1.self_attn.q_norm.weight", None, "'{key}' is missing"),
        ("layers.1.mlp.up_proj.weight", None, "'{key}' is missing"),
        ("layers.2.mlp.up_proj.weight", torch.zeros(made.F, made.H), "'{key}' is not used by this drafter"),
        ("layers.0.self_attn.g_proj.weight", torch.zeros(4, 4), "'{key}' is not used by this drafter"),
        ("layers.0.self_attn.k_proj.weight", torch.zeros(8, made.H), "'{key}' has shape [8, 32], expected [16, 32]"),
        ("layers.0.input_layernorm.weight", torch.full((made.H,), torch.nan), "'{key}' holds values that are not fini"),
    ],
)
def test_tensors_that_do_not_belong(
    format: str, key: str, value: Any, words: str, tmp_path: Path, target: Target
) -> None:
    assert words.format(key=key) in refused(usual(format), tmp_path, target, **{key: value})


@pytest.mark.parametrize("format", BLOCKS)
def test_half_a_file(format: str, tmp_path: Path, target: Target) -> None:
    one = usual(format)
    file = one.write(tmp_path) / one.weights
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(CheckpointError, match=r"truncated or damaged .*; download it again\."):
        load(f"dir:{tmp_path}", target)


@pytest.mark.parametrize("format", BLOCKS)
@pytest.mark.parametrize(("layers", "hidden", "words"), [(6, 32, "6"), (8, 64, "hidden_size 32"), (8, 32, "vocab")])
def test_another_target(format: str, layers: int, hidden: int, words: str, tmp_path: Path) -> None:
    other = tiny_target(layers=layers, hidden=hidden, vocab=96 if words == "vocab" else made.V)
    with pytest.raises(CheckpointError, match=words):
        load(f"dir:{usual(format).write(tmp_path)}", other)


def test_the_target_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="do not say what target they are for; name it"):
        load(f"dir:{usual('zlab-dflash').write(tmp_path)}")


SHARED, RNN = "dflash_config.", made.heads("rnn", "off")[0]
SPOILT: list[tuple[str, str, Any, dict[str, Any], str]] = [  # layout, path in the config, value, tensors, words
    *(
        (format, f"{place}markov_rank", 0, {}, "expected false with markov_rank 0")
        for format, place in (("deepspec-dspark", ""), ("speculators-dspark", ""), ("specforge-dspark", SHARED))
    ),
    ("deepspec-dflash", "", None, RNN, "'markov_head.joint_proj.bias' is here, but 'markov_rank' in"),
    ("deepspec-dspark", "markov_rank", 12, {}, "'confidence_head.proj.weight' has shape [1, 38], expected [1, 44]"),
    ("deepspec-dspark", "markov_rank", -1, {}, "key 'markov_rank' is -1, expected a number, 0 for no markov head"),
    ("deepspec-dspark", "markov_head_type", "rnn", {}, "'markov_head.joint_proj.bias' is missing"),
    ("deepspec-dspark", "markov_head_type", "gru", {}, "'markov_head_type' is 'gru', expected 'vanilla', 'gated' or"),
    ("deepspec-dspark", "enable_confidence_head", False, {}, "'confidence_head.proj.bias' is here, but 'enable_confid"),
    ("deepspec-dspark", "confidence_head_with_markov", False, {}, "'confidence_head.proj.weight' has shape [1, 38]"),
    ("deepspec-dspark", "num_anchors", ..., {}, "key 'num_anchors' is missing, expected a number, wi"),
    ("deepspec-dspark", "enable_confidence_head", ..., {}, "key 'enable_confidence_head' is missing"),
    ("deepspec-dspark", "target_layer_ids", [3, 1, 5], {}, "expected ascending ids"),
    ("deepspec-dspark", "num_target_layers", 36, {}, "is 36, expected 8, the layers of tiny-llama"),
    ("deepspec-dspark", "architectures", ["Gemma4DSparkModel"], {}, "and no drafter here is built so"),
    (
        "speculators-dspark",
        "",
        None,
        {"markov_head.markov_w1.weight": None, "markov_head.markov_w2.weight": None},
        "no tensor begins with 'markov_head.', expected such because 'markov_rank'",
    ),
    (
        "specforge-dspark",
        "",
        None,
        {"confidence_head.proj.weight": None, "confidence_head.proj.bias": None},
        "no tensor begins with 'confidence_head.', expected such because 'enable_confidence_head'",
    ),
    ("specforge-dspark", "dflash_config.attention_mode", "mla", {}, "'attention_mode' is 'mla', expected 'gqa' or"),
    ("specforge-dspark", "dflash_config.block_size", 7, {}, "expected the 5 of the same key at the top"),
    ("zlab-dflash", "dflash_config.projector_type", "domino", {}, "'projector_type' is 'domino', expected 'dflash'"),
    ("zlab-dflash", "dflash_config.conv_kernel_size", 2, {}, "it asks for the convolutions of DFlash2"),
    ("zlab-dflash", "architectures", ["DFlash2DraftModel"], {"selector.x": torch.zeros(2)}, "'selector.x' is not used"),
    ("zlab-dflash", "dflash_config.use_swa", True, {}, "it asks for windows in the manner of MiMo"),
    ("zlab-dflash", "final_logit_softcapping", 30.0, {}, "it asks for capped logits"),
    ("zlab-dflash", "input_embedding_scale", 5.6, {}, "it asks for scaled embeddings"),
    ("zlab-dflash", "layer_types", ["sliding_attention"] * 2, {}, "since layers [0, 1] slide"),
    ("zlab-dflash", "layer_types", ["full_attention"], {}, "one for each layer"),
    ("zlab-dflash", "num_target_layers", 36, {}, "is 36, expected 8, the layers of tiny-llama"),
    ("zlab-dflash", "dflash_config", [], {}, "'dflash_config' is [], expected dict"),
    ("zlab-dflash", "hidden_size", None, {}, "key 'hidden_size'"),
    ("zlab-dflash", "", None, {"lm_head.weight": torch.ones(made.V, made.H)}, "'lm_head.weight' is not that of tiny"),
    ("zlab-dflash", "", None, {"encoder.fc.weight": torch.ones(made.H, 96)}, "which are one tensor"),
    ("speculators-dflash", "draft_vocab_size", made.V + 1, {}, "expected a number up to the target's 64"),
    ("speculators-dflash", "draft_vocab_size", 32, {}, "has shape [40], expected [32]"),
    ("speculators-dflash", "transformer_layer_config", ..., {}, "is missing, expected dict"),
    ("speculators-dflash", "sample_from_anchor", "no", {}, "'sample_from_anchor' is 'no', expected bool"),
    ("speculators-dflash", "", None, {"d2t": None}, "'d2t' is missing"),
    ("speculators-dflash", "", None, {"t2d": None}, "'t2d' is missing"),
    ("speculators-dflash", "", None, {"d2t": torch.zeros(40, dtype=torch.int64)}, "d2t is all zeros although"),
    (
        "speculators-dflash",
        "",
        None,
        {"d2t": made.vocabulary()["t2d"].nonzero()[:, 0]},
        "d2t holds absolute ids, those that t2d marks; d2t must hold offsets",
    ),
    ("speculators-dflash", "", None, {"d2t": torch.zeros(40)}, "'d2t' is torch.float32, expected torch.int64"),
    ("speculators-dflash", "", None, {"t2d": torch.ones(64, dtype=torch.bool)}, "t2d marks 64 ids, expected 40"),
    ("angelspec-dfly", "num_target_layers", 36, {}, "is 36, expected 3, as many as there are ids"),
    ("angelspec-dfly", "target_num_hidden_layers", 80, {}, "is 80, expected 8, the layers of tiny-llama"),
    ("angelspec-dfly", "enable_hidden_correction", False, {}, "is here, but 'enable_hidden_correction' in"),
    ("angelspec-dfly", "hidden_correction_intermediate_size", 16, {}, "has shape [32, 64], expected [16, 64]"),
    ("angelspec-dfly", "hidden_correction_intermediate_size", 10**12, {}, "correction_size=1000000000000, expected a"),
    ("angelspec-dfly", "", None, {"layer_fusion_weights": None}, "'layer_fusion_weights' is missing"),
    ("angelspec-dfly", "", None, {"layer_fusion_weights": torch.zeros(2, 4)}, "has shape [2, 4], expected [2, 3]"),
    ("angelspec-dfly", "", None, {"final_norm.weight": None}, "'final_norm.weight' is missing"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("format", "path", "value", "tensors", "words"),
    SPOILT,
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_flags_and_files_that_do_not_belong_together(
    format: str, path: str, value: Any, tensors: dict[str, Any], words: str, tmp_path: Path, target: Target
) -> None:
    one = usual(format)
    config = changed(one.config, path, value) if path else one.config
    assert words in refused(one, tmp_path, target, config, **tensors)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layers.0.self_attn.qkv_proj.weight": torch.zeros(63, made.H)}, "has 63 rows, expected 64 for queries, keys"),
        ({"layers.0.self_attn.qkv_proj.weight": torch.zeros(())}, "has no rows, expected 64 for queries, keys"),
        ({"layers.1.self_attn.k_proj.weight": torch.zeros(16, made.H)}, "is there, and its parts are, too"),
        ({"layers.0.self_attn.qkv_proj.weight": None}, "'layers.0.self_attn.k_proj.weight' is missing"),
    ],
)
def test_projections_that_are_not_fused_as_they_should_be(
    change: dict[str, Any], words: str, tmp_path: Path, target: Target
) -> None:
    assert words in refused(FOLDERS["zlab-dflash: fused"], tmp_path, target, **change)


def test_a_recurrent_head_that_begins_a_slot_earlier_is_another(tmp_path: Path, target: Target) -> None:
    one = FOLDERS["speculators-dspark: dspark rnn"]
    said = refused(one, tmp_path, target, {**one.config, "sample_from_anchor": False})
    assert "'markov_head_type' is 'rnn', expected another with sample_from_anchor false" in said


def test_a_mask_in_a_file_of_its_own_is_not_overlooked(tmp_path: Path, target: Target) -> None:
    (tmp_path / "mask_embedding.pt").write_bytes(b"")
    assert "mask_embedding.pt: a mask of its own beside the weights" in refused(usual("zlab-dflash"), tmp_path, target)


def keys_of(config: dict[str, Any], before: str = "") -> list[str]:
    below = [keys_of(value, f"{before}{key}.") for key, value in config.items() if isinstance(value, dict)]
    return [before + key for key in config] + [key for keys in below for key in keys]


@pytest.mark.parametrize("format", BLOCKS)
def test_any_value_of_any_key_is_read_or_refused(format: str) -> None:
    """A file may say anything, and none of it is a traceback."""
    one, layout, refusals = usual(format), FORMATS.get(format), 0
    for key in [*keys_of(one.config), "is_causal", "max_window_layers", "use_swa"]:
        for value in (None, "x", -1, 1.5, True, [], [None], {}, {"a": [1]}, ["sliding_attention"] * 2):
            try:
                changes = changed(one.config, key, value)
                files = Files(Path("x"), "config.json", "weights", changes, one.tensors)
                assert sum(FORMATS.get(name).detect(files) for name in FORMATS) <= 1
                layout.translate(files, TARGET)
            except CheckpointError as error:
                refusals += 1
                assert "\n" not in str(error) and str(error).startswith(("config.json: ", "weights: "))
    assert refusals > 100


def test_a_layout_that_nothing_tells_must_be_said(tmp_path: Path, target: Target) -> None:
    one = FOLDERS["speculators-dflash: layout unsaid"]
    methods = [{"proposal_type": "greedy", "speculative_tokens": 2}]
    config = changed(one.config, "speculators_config.proposal_methods", methods)
    assert "'sample_from_anchor' is missing, expected true or false, which 2 speculative_tok" in refused(
        one, tmp_path, target, config
    )


def test_what_no_layout_recognises_says_which_there_are(tmp_path: Path, target: Target) -> None:
    one = usual("zlab-dflash")
    one.write(tmp_path, changed(one.config, "architectures", ["LlamaForCausalLM"]))
    with pytest.raises(CheckpointError, match=r"no known layout fits .* format=\.\.\. of .*zlab-dflash"):
        load(f"dir:{tmp_path}", target)
    assert load(f"dir:{tmp_path}", target, format="zlab-dflash").spec == "dflash"
