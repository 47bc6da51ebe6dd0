"""What `load_target` accepts, what it refuses, and in which words."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BloomConfig,
    LlamaModel,
    MambaConfig,
    PreTrainedTokenizerFast,
    Qwen3NextConfig,
    T5Config,
)
from transformers.utils import logging

from drafterzoo.errors import CheckpointError, DataError, UsageError
from drafterzoo.target import Target, load_target
from tests.tiny import tiny_config, tiny_model, tiny_target

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}assistant{% endif %}{% if enable_thinking %} think{% endif %}"
)


def tiny_tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    words = ["<pad>", "<s>", "</s>", "user", "assistant", "think", "hello", "world"]
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = template
    return tokenizer


def test_a_saved_folder_loads_with_its_tokenizer(tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    target = load_target(tmp_path)
    assert target.tokenizer is not None and target.vocab_size == 64 and len(target.tokenizer) == 8
    tokens = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        torch.testing.assert_close(target.model(tokens).logits, model(tokens).logits, atol=1e-4, rtol=0)
    assert target.dtype == torch.float32 and target.device.type == "cpu"
    assert load_target(str(tmp_path), dtype="bfloat16").dtype == torch.bfloat16


def test_a_folder_without_tokenizer_still_reads_token_ids(tmp_path):
    tiny_model(layers=1).save_pretrained(tmp_path)
    target = load_target(tmp_path)
    assert target.tokenizer is None
    with pytest.raises(UsageError, match="without a tokenizer"):
        target.encode_chat([{"role": "user", "content": "hello"}])


def test_a_loaded_module_is_used_as_it_is_and_frozen():
    model = tiny_model()
    target = load_target(model, tokenizer=tiny_tokenizer())
    assert target.model is model and not target.packed
    assert not any(p.requires_grad for p in model.parameters())


def test_chat_template_and_thinking():
    target = load_target(tiny_model(layers=1), tokenizer=tiny_tokenizer())
    messages = [{"role": "user", "content": "hello world"}]
    assert target.encode_chat(messages) == [3, 6, 7, 4]
    assert target.encode_chat(messages, thinking=True) == [3, 6, 7, 4, 5]
    assert target.encode_chat(messages, thinking=False) == [3, 6, 7, 4]
    assert target.decode([6, 7, 2]) == "hello world"


def test_template_troubles_are_sentences():
    bare = load_target(tiny_model(layers=1), tokenizer=tiny_tokenizer(template=None))
    with pytest.raises(UsageError, match="no chat template"):
        bare.encode_chat([{"role": "user", "content": "hello"}])
    strict = tiny_tokenizer("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(DataError, match="roles must alternate"):
        load_target(tiny_model(layers=1), tokenizer=strict).encode_chat([{"role": "user", "content": "hello"}])


def test_fingerprint_tells_tokenizers_apart():
    one, same = (load_target(tiny_model(layers=1), tokenizer=tiny_tokenizer()).fingerprint() for _ in range(2))
    other_tokenizer = tiny_tokenizer()
    other_tokenizer.add_tokens(["more"])
    other = load_target(tiny_model(layers=1), tokenizer=other_tokenizer).fingerprint()
    assert one == same and one["tokenizer"] != other["tokenizer"]
    json.dumps(one)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("./nowhere", "is not a folder"),
        ("smolm2-135m", "did you mean 'smollm2-135m'"),
        ("nobody/nothing-at-all", "cannot be loaded"),
    ],
)
def test_unknown_names(name, words, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match=words) as caught:
        load_target(name)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 420


def test_folders_that_are_no_causal_lm(tmp_path):
    with pytest.raises(UsageError, match=r"no config\.json"):
        load_target(tmp_path)
    T5Config(d_model=8, num_layers=1).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="not a causal LM"):
        load_target(tmp_path)


def test_damaged_and_incomplete_weights(tmp_path):
    model = tiny_model(layers=1)
    model.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="damaged"):
        load_target(tmp_path)
    LlamaModel(tiny_config("llama", layers=1)).save_pretrained(tmp_path)  # has no head
    with pytest.raises(CheckpointError, match="lm_head"):
        load_target(tmp_path)


def reconfigured(folder, **changes):
    """The folder with some values of its config.json replaced."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


@pytest.mark.parametrize(
    ("saved", "changes", "words"),
    [
        (
            {},
            {"num_hidden_layers": 2},
            r"9 weights have no place .*'model\.layers\.2\.\S+', .*, \.\.\.; .*too few",
        ),
        ({}, {"num_hidden_layers": 4}, r"9 weights are missing, 'model\.layers\.3\."),
        ({"attention_bias": True}, {"attention_bias": False}, r"12 weights have no place .*_proj\.bias'"),
        ({}, {"hidden_size": 16}, r"have other sizes .* is \[64, 32\] and by config\.json \[64, 16\]"),
        ({}, {"vocab_size": 63}, r"2 weights have other sizes .*'lm_head\.weight' .* \[64, 32\] .* \[63, 32\]"),
        ({}, {"intermediate_size": 32}, r"9 weights have other sizes .*mlp"),
        ({}, {"num_key_value_heads": 4}, r"6 weights have other sizes .*k_proj"),
        ({}, {"tie_word_embeddings": True}, "says tie_word_embeddings, but the weights hold an output head"),
        ({"tie_word_embeddings": True}, {"tie_word_embeddings": False}, r"1 weight is missing, 'lm_head\.weight'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_config_and_weights_that_disagree(tmp_path, saved, changes, words):
    tiny_model(layers=3, **saved).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=words) as caught:
        load_target(reconfigured(tmp_path, **changes))
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_what_old_versions_saved_among_the_weights_is_no_disagreement(tmp_path):
    tiny_model(layers=1, tie_word_embeddings=True).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    tensors["model.layers.0.self_attn.masked_bias"] = torch.ones(())
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()  # a tied head, saved all the same
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    assert load_target(tmp_path).vocab_size == 64


def test_wrong_devices_and_dtypes():
    with pytest.raises(UsageError, match="not a device"):
        load_target(tiny_model(layers=1), device="gpu")
    with pytest.raises(UsageError, match="did you mean 'float32'"):
        load_target(tiny_model(layers=1), dtype="flaot32")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: nn.Linear(2, 2), "not a Hugging Face causal LM"),
        (lambda: AutoModelForCausalLM.from_config(BloomConfig(hidden_size=16, n_layer=1, n_head=2)), "position_ids"),
        (
            lambda: AutoModelForCausalLM.from_config(MambaConfig(hidden_size=16, num_hidden_layers=1)),
            "rolled back|positions",
        ),
        (
            lambda: AutoModelForCausalLM.from_config(
                BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, is_decoder=True)
            ),
            "not understood",
        ),
    ],
)
def test_architectures_that_cannot_be_targets(model, words):
    with pytest.raises(UsageError, match=words) as caught:
        load_target(model()).open_cache(1, 8, 1)
    assert "\n" not in str(caught.value)


def test_hybrid_layers_are_refused():
    config = Qwen3NextConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        intermediate_size=32, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16,
        shared_expert_intermediate_size=16, linear_num_key_heads=2, linear_num_value_heads=2,
        linear_key_head_dim=8, linear_value_head_dim=8,
    )  # fmt: skip
    with pytest.raises(UsageError, match="'linear_attention', whose state cannot be rolled back"):
        Target(AutoModelForCausalLM.from_config(config))


def test_transformers_logging_is_left_as_it_was(tmp_path):
    tiny_model(layers=1).save_pretrained(tmp_path)
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    load_target(tmp_path)
    with pytest.raises(UsageError):
        load_target("./nowhere")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_learned_positions_end_where_the_model_ends():
    from transformers import GPT2Config

    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=4)
    target = Target(AutoModelForCausalLM.from_config(config))
    assert target.max_positions == 16
    cache = target.open_cache(1, 16, 4)
    target.prefill(cache, [[1] * 15])
    positions = cache.lengths[:, None] + torch.arange(4)  # beyond position 15
    logits = target.verify(cache, torch.tensor([[1, 2, 3, 4]]), positions, torch.ones(1, 4, 4, dtype=torch.bool).tril())
    with torch.no_grad():
        expected = target.model(torch.tensor([[1] * 16])).logits[0, -1]
    torch.testing.assert_close(logits.logits[0, 0], expected, atol=1e-5, rtol=1e-5)


def test_a_model_that_names_no_limit_has_one_large_enough():
    target = tiny_target(layers=1)
    target._config = SimpleNamespace(max_position_embeddings=None)
    assert target.max_positions >= 1 << 20
