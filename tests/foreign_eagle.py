"""Checkpoints of the EAGLE family as their frameworks write them, and what their networks compute, both by hand.

Nothing of drafterzoo is used here but the tiny target: names, shapes and arithmetic are those of eagle.md 1 and 2.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from drafterzoo.target import Target

H, FF, HEADS, KV, DIM, V, D = 32, 48, 4, 2, 8, 64, 40
FLAT: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": V,
    "hidden_size": H,
    "intermediate_size": FF,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
EAGLE3 = ("safeailab-eagle3", "specforge-eagle3", "angelslim-eagle3", "torchspec-eagle3", "speculators-eagle3")
LAYOUTS = ("safeailab-eagle2", *EAGLE3)
HALF = {"safeailab-eagle2": torch.float16, "safeailab-eagle3": torch.float16}  # the others write bfloat16


def weights(names: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, Tensor]:
    """Random tensors of these shapes: matrices that keep a vector's length about, norms around one."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape in names.items():
        if len(shape) > 1:
            made[name] = torch.randn(shape, generator=generator) * 1.3 / shape[-1] ** 0.5
        elif name.endswith("bias"):
            made[name] = torch.randn(shape, generator=generator) * 0.3
        else:
            made[name] = torch.rand(shape, generator=generator) + 0.5
    return made


def layer(prefix: str, inputs: int) -> dict[str, tuple[int, ...]]:
    """The projections of a decoder layer whose queries, keys and values are `inputs` wide."""
    return {
        f"{prefix}self_attn.q_proj.weight": (HEADS * DIM, inputs),
        f"{prefix}self_attn.k_proj.weight": (KV * DIM, inputs),
        f"{prefix}self_attn.v_proj.weight": (KV * DIM, inputs),
        f"{prefix}self_attn.o_proj.weight": (H, HEADS * DIM),
        f"{prefix}mlp.gate_proj.weight": (FF, H),
        f"{prefix}mlp.up_proj.weight": (FF, H),
        f"{prefix}mlp.down_proj.weight": (H, FF),
        f"{prefix}post_attention_layernorm.weight": (H,),
    }


def eagle3_tensors(prefix: str, rows: int, flags: dict[str, bool]) -> dict[str, Tensor]:
    names = {
        "fc.weight": (H, 3 * H),
        **layer(prefix, 2 * H),
        f"{prefix}hidden_norm.weight": (H,),
        f"{prefix}input_layernorm.weight": (H,),
        "norm.weight": (H,),
        "lm_head.weight": (rows, H),
    }
    if flags.get("fc_norm"):
        names |= {f"fc_norm.{i}.weight": (H,) for i in range(3)}
    if flags.get("norm_before_fc"):
        names["input_norm.weight"] = (3 * H,)
    return weights(names)


def vocabulary_maps(rows: int = D) -> dict[str, Tensor]:
    """d2t and t2d of `rows` tokens spread over the vocabulary."""
    used = torch.randperm(V, generator=torch.Generator().manual_seed(7))[:rows].sort().values
    t2d = torch.zeros(V, dtype=torch.bool)
    t2d[used] = True
    return {"d2t": used - torch.arange(rows), "t2d": t2d}


def eagle2_files(target: Target, reduced: bool) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """reduced: with the biases that some heads have, since the vocabulary is always whole."""
    names = {"fc.weight": (H, 2 * H), **layer("layers.0.", H)}
    config = {**FLAT, "architectures": ["LlamaForCausalLM"], "bias": reduced}
    if reduced:
        names |= {"fc.bias": (H,)}
        names |= {
            f"layers.0.self_attn.{p}_proj.bias": (width * DIM,) for p, width in [("q", HEADS), ("k", KV), ("v", KV)]
        }
        config["qkv_bias"] = True
    return config, {**weights(names), "embed_tokens.weight": target.embedding_weight().detach().clone()}


def eagle3_files(layout: str, target: Target, reduced: bool) -> tuple[dict[str, Any], dict[str, Tensor]]:
    rows = D if reduced else V
    flags = {"fc_norm": True, "norm_output": True} if layout in ("specforge-eagle3", "speculators-eagle3") else {}
    tensors = eagle3_tensors("layers.0." if layout == "speculators-eagle3" else "midlayer.", rows, flags)
    embedding = {"embed_tokens.weight": target.embedding_weight().detach().clone()}
    if reduced:
        tensors |= vocabulary_maps()
    elif layout == "specforge-eagle3":
        tensors |= {"d2t": torch.zeros(V, dtype=torch.int64), "t2d": torch.ones(V, dtype=torch.bool)}
    flat = {**FLAT, "draft_vocab_size": rows}
    ids = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True}
    if layout == "safeailab-eagle3":
        return {**flat, "architectures": ["LlamaForCausalLM"], "pad_token_id": 0}, tensors
    if layout == "angelslim-eagle3":
        model = {"architectures": ["Eagle3LlamaForCausalLM"], "target_model_type": "qwen3", "tie_word_embeddings": True}
        return {**flat, **model, "head_dim": DIM, "rope_theta": 1000000, "rope_scaling": None}, tensors
    if layout == "specforge-eagle3":
        model = {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": ids}
        return {**flat, **model, **flags, "head_dim": DIM, "rope_theta": 500000.0}, tensors
    if layout == "torchspec-eagle3":
        model = {"architectures": ["LlamaForCausalLMEagle3"], "num_aux_hidden_states": 3, "target_hidden_size": H}
        return {**flat, **model, "head_dim": DIM, "_torchspec_version": "0.3"}, {**tensors, **embedding}
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": rows,
        "norm_before_residual": True,
        **flags,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": None,
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "../nobody/model"}},
        "transformer_layer_config": {**FLAT, **rope, "head_dim": DIM},
    }, {**tensors, **embedding, "verifier_norm.weight": torch.ones(H)}


def foreign_files(
    layout: str, target: Target, *, reduced: bool = True, prefixed: bool = False
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and tensors of a good checkpoint. reduced: its vocabulary; prefixed: its names begin with `model.`."""
    made = eagle2_files(target, reduced) if layout == "safeailab-eagle2" else eagle3_files(layout, target, reduced)
    config, tensors = made
    dtype = HALF.get(layout, torch.bfloat16)
    kept = {key: value.to(dtype) if value.is_floating_point() else value for key, value in tensors.items()}
    return config, {f"model.{key}" if prefixed else key: value for key, value in kept.items()}


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], *, pickled: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if pickled:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file({key: value.contiguous() for key, value in tensors.items()}, folder / "model.safetensors")
    return folder


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and tensors of a folder, by the libraries that others read it with."""
    config = json.loads((folder / "config.json").read_text())
    if (folder / "model.safetensors").exists():
        return config, load_file(folder / "model.safetensors")
    return config, torch.load(folder / "pytorch_model.bin", weights_only=True)


@cache
def read_features(target: Target, taps: tuple[int, ...], tokens: tuple[int, ...]) -> Tensor:
    """The target's features [1, rows, taps * width]; asked for once, since nothing else here takes time."""
    return target.read(torch.tensor([tokens]), taps).features


# -- what the networks compute -----------------------------------------------------------------------------------------


def rms(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def rotated(x: Tensor, theta: float) -> Tensor:
    """x [rows, heads, DIM], row t at position t."""
    angles = torch.arange(len(x))[:, None] * theta ** (-torch.arange(0, DIM, 2) / DIM)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    low, high = x[..., : DIM // 2], x[..., DIM // 2 :]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def attended(w: dict[str, Tensor], x: Tensor, theta: float) -> Tensor:
    """Causal self-attention of rows [rows, inputs], output projection and all."""
    q, k, v = (
        (x @ w[f"self_attn.{p}_proj.weight"].T + w.get(f"self_attn.{p}_proj.bias", torch.zeros(()))).unflatten(
            -1, (-1, DIM)
        )
        for p in "qkv"
    )
    q, k = rotated(q, theta), rotated(k, theta)
    out = torch.zeros_like(q)
    for head in range(HEADS):
        scores = q[:, head] @ k[:, head // (HEADS // KV)].T / DIM**0.5
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        out[:, head] = scores.softmax(-1) @ v[:, head // (HEADS // KV)]
    return out.flatten(1) @ w["self_attn.o_proj.weight"].T


def mlp(w: dict[str, Tensor], x: Tensor) -> Tensor:
    gate = torch.nn.functional.silu(x @ w["mlp.gate_proj.weight"].T)
    return (gate * (x @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T


def of_layer(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    found = {}
    for prefix in ("midlayer.", "layers.0."):
        found |= {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    return found


def theta_of(config: dict[str, Any]) -> float:
    inner = config.get("transformer_layer_config", config)
    return inner.get("rope_parameters", inner).get("rope_theta", 10000.0)


def eagle3_rows(config: dict[str, Any], w: dict[str, Tensor], embedded: Tensor, g: Tensor) -> Tensor:
    """The layer's output y for rows that read embeddings and features (or what recurs), both [rows, H]."""
    own = of_layer(w)
    normed = rms(g, own["hidden_norm.weight"])
    x = torch.cat((rms(embedded, own["input_layernorm.weight"]), normed), dim=-1)
    a = (normed if config.get("norm_before_residual") else g) + attended(own, x, theta_of(config))
    return a + mlp(own, rms(a, own["post_attention_layernorm.weight"]))


def eagle2_rows(config: dict[str, Any], w: dict[str, Tensor], embedded: Tensor, f: Tensor) -> Tensor:
    own = of_layer(w)
    z = torch.cat((embedded, f), dim=-1) @ w["fc.weight"].T + w.get("fc.bias", torch.zeros(H))
    a = z + attended(own, z, theta_of(config))
    return a + mlp(own, rms(a, own["post_attention_layernorm.weight"]))


def expected_logits(
    layout: str, config: dict[str, Any], tensors: dict[str, Tensor], target: Target, tokens: list[int]
) -> tuple[Tensor, Tensor]:
    """(logits of every row but the last two, those of the draft step after them, along the text).

    Row t reads the features of position t and token t+1; the step after reads what recurs and the next token.
    """
    w = {key.removeprefix("model."): value.float() for key, value in tensors.items()}
    rows, older = len(tokens) - 2, layout == "safeailab-eagle2"
    run = eagle2_rows if older else eagle3_rows
    g = features_of(config, w, target, tokens, older)
    embedded = target.embedding_weight().detach()[torch.tensor(tokens[1:])]
    y = run(config, w, embedded[:rows], g[:rows])
    recurs = rms(y, w["norm.weight"]) if config.get("norm_output") else y
    after = run(config, w, embedded[: rows + 1], torch.cat((g[:rows], recurs[-1:])))
    head = target.head_weight().detach() if older else w["lm_head.weight"]
    read = [x if older else rms(x, w["norm.weight"]) for x in (y, after[-1])]
    return read[0] @ head.T, read[1] @ head.T


def features_of(config: dict[str, Any], w: dict[str, Tensor], target: Target, tokens: list[int], older: bool) -> Tensor:
    """What the layer reads beside the embeddings [rows, H]: the last feature, or three features fused."""
    taps = [target.num_layers + 1] if older else [2, 4, 5]
    features = read_features(target, tuple(taps), tuple(tokens))[0]
    if older:
        return features
    if config.get("norm_before_fc"):
        features = rms(features, w["input_norm.weight"])
    if config.get("fc_norm"):
        parts = features.split(H, dim=-1)
        features = torch.cat([rms(part, w[f"fc_norm.{i}.weight"]) for i, part in enumerate(parts)], dim=-1)
    return features @ w["fc.weight"].T
