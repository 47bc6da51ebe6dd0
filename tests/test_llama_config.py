"""A decoder's config in transformers' words: read and written, in the styles of version 4 and 5."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig

from drafterzoo.errors import CheckpointError
from drafterzoo.formats.llama_config import read_llama, write_llama

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 4096,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALINGS = [
    None,
    {"rope_type": "linear", "factor": 4.0},
    {**LLAMA3, "original_max_position_embeddings": 1024},
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 2048},
]


@settings(max_examples=40, deadline=None)
@given(
    heads=st.integers(1, 8),
    group=st.integers(1, 4),
    dim=st.integers(1, 64),
    scaling=st.sampled_from(SCALINGS),
    theta=st.floats(1.0, 1e7),
    new=st.booleans(),
    bias=st.booleans(),
)
def test_what_is_written_is_read(
    heads: int, group: int, dim: int, scaling: dict[str, Any] | None, theta: float, new: bool, bias: bool
) -> None:
    section = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_layers": 2,
        "num_heads": heads * group,
        "num_kv_heads": heads,
        "head_dim": dim,
        "rms_norm_eps": 1e-5,
        "attention_bias": bias,
        "rope_theta": theta,
        "rope_scaling": scaling,
    }
    written = write_llama(section, {"rope_parameters": {}} if new else None)
    assert ("rope_parameters" in written) is new and ("rope_theta" in written) is not new
    assert read_llama(written, "config.json") == section


def test_transformers_reads_what_is_written_and_writes_what_is_read() -> None:
    section = read_llama({**SIZES, "rope_theta": 5e5, "rope_scaling": LLAMA3}, "config.json")
    config = LlamaConfig(**write_llama(section), max_position_embeddings=4096)
    assert read_llama(config.to_dict(), "config.json") == section


@pytest.mark.parametrize(
    ("said", "theta", "scaling"),
    [
        ({}, 10000.0, None),
        ({"rope_theta": 1000000, "rope_scaling": None}, 1e6, None),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 10000.0, {"rope_type": "linear", "factor": 2.0}),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 5e5, None),
        ({"rope_theta": 5e5, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 5e5, None),
        ({"rope_theta": 5e5, "rope_scaling": LLAMA3}, 5e5, {**LLAMA3, "original_max_position_embeddings": 4096}),
    ],
)
def test_both_styles_of_rotary_positions_are_read(
    said: dict[str, Any], theta: float, scaling: dict[str, Any] | None
) -> None:
    found = read_llama({**SIZES, **said}, "config.json")
    assert (found["rope_theta"], found["rope_scaling"]) == (theta, scaling)


def test_what_transformers_works_out_may_be_left_out() -> None:
    found = read_llama({**SIZES, "head_dim": None}, "config.json")
    assert (found["num_kv_heads"], found["head_dim"], found["rms_norm_eps"]) == (4, 8, 1e-6)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"hidden_act": "gelu_pytorch_tanh"}, "'hidden_act' is 'gelu_pytorch_tanh', expected 'silu'"),
        ({"pretraining_tp": 2}, "'pretraining_tp' is 2, expected 1"),
        ({"mlp_bias": True}, "'mlp_bias' is True, expected False"),
        ({"partial_rotary_factor": 0.5}, "'partial_rotary_factor' is 0.5, expected 1"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "'partial_rotary_factor' is 0.5, expected 1"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "'rope_type' is 'dynamic', expected 'default' or one of",
        ),
        ({"rope_scaling": {"rope_type": "longrope"}}, "'rope_type' is 'longrope', expected 'default' or one of"),
        ({"rope_scaling": "linear"}, "'rope_scaling' is 'linear', expected a table"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "expected one table for all layers"),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}}, "'rope_theta' is 10000.0, expected 500000.0"),
        ({"rope_theta": "big"}, "'rope_theta' is 'big', expected a number above zero"),
        ({"rope_theta": True}, "'rope_theta' is True, expected a number above zero"),
        ({"rms_norm_eps": -1}, "'rms_norm_eps' is -1, expected a number above zero"),
        ({"hidden_size": 32.0}, "'hidden_size' is 32.0, expected a whole number above zero"),
        ({"vocab_size": 0}, "'vocab_size' is 0, expected a whole number above zero"),
        ({"num_key_value_heads": "2"}, "'num_key_value_heads' is '2', expected a whole number above zero"),
        ({"attention_bias": "no"}, "'attention_bias' is 'no', expected true or false"),
        ({"max_position_embeddings": None, "rope_scaling": LLAMA3}, "'max_position_embeddings' is None, expected a wh"),
    ],
)
def test_what_no_layer_of_ours_computes_is_refused(said: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_llama({**SIZES, **said}, "folder/config.json")
    assert words in str(caught.value) and str(caught.value).startswith("folder/config.json: key ")


def test_a_missing_size_is_named() -> None:
    with pytest.raises(CheckpointError, match="key 'hidden_size' is missing, expected a whole number above zero"):
        read_llama({key: value for key, value in SIZES.items() if key != "hidden_size"}, "config.json")
