"""Tiny random targets for tests: every architecture the engine must get right, made in milliseconds, no download."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MixtralConfig,
    PretrainedConfig,
    Qwen3Config,
)

from drafterzoo.target import Target
from drafterzoo.target.attention import register
from drafterzoo.target.packed import pack_linears
from drafterzoo.training.rollouts import Rollouts, read_rollouts

KINDS = ("llama", "qwen3", "gemma3", "mixtral")
WINDOW = 8  # of gemma3's sliding layers


def tiny_config(kind: str, *, vocab: int = 64, layers: int = 8, hidden: int = 32, **options: Any) -> PretrainedConfig:
    """A config of `kind` with 4 query heads over 2 K/V heads, untied; `options` go to the config class."""
    common: dict[str, Any] = {
        "vocab_size": vocab,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": hidden // 4,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    if kind == "llama":
        return LlamaConfig(**(common | options))
    if kind == "qwen3":
        return Qwen3Config(**(common | options))
    if kind == "mixtral":
        return MixtralConfig(**(common | {"num_local_experts": 4, "num_experts_per_tok": 2} | options))
    assert kind == "gemma3", f"unknown tiny target {kind!r}"
    types = ["full_attention" if i % 3 == 2 else "sliding_attention" for i in range(layers)]
    sliding = {"sliding_window": WINDOW, "layer_types": types, "query_pre_attn_scalar": hidden // 4}
    return Gemma3TextConfig(**(common | sliding | options))


def tiny_model(
    kind: str = "llama", *, seed: int = 0, dtype: torch.dtype = torch.float32, **options: Any
) -> torch.nn.Module:
    """A random model of `kind` whose greedy continuations vary; `options` go to `tiny_config`."""
    config = tiny_config(kind, **options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=register())
        for parameter in model.parameters():
            if parameter.dim() > 1:  # norms stay as they are
                torch.nn.init.normal_(parameter, std=1.4 / parameter.shape[-1] ** 0.5)
        model.get_output_embeddings().weight.data.mul_(1.5)
    return model.to(dtype)


def tiny_target(
    kind: str = "llama",
    *,
    vocab: int = 64,
    layers: int = 8,
    hidden: int = 32,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    packed: bool = False,
    **options: Any,
) -> Target:
    """A tiny random target without tokenizer; the same arguments give the same weights."""
    model = tiny_model(kind, vocab=vocab, layers=layers, hidden=hidden, seed=seed, dtype=dtype, **options)
    if packed:
        pack_linears(model)
    return Target(model, name=f"tiny-{kind}")


def tiny_rollouts(folder: Path, vocab: int = 64) -> Rollouts:
    """Twelve made-up answers of 6 to 17 tokens in a file of `folder`, two of them held out."""
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randint(3, vocab, (10 + i,), generator=generator).tolist() for i in range(12)]
    lines = [
        json.dumps(
            {"prompt_ids": ids[:4], "response_ids": ids[4:], "split": "val" if i % 6 == 5 else "train", "source": "t"}
        )
        for i, ids in enumerate(rows)
    ]
    path = folder / "rollouts.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return read_rollouts(path, vocab)
