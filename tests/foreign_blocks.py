"""Folders of block drafters as other frameworks write them, made by hand and never by our own writers.

Source: block.md 1.3, 1.4, 3.3 and 5.2. What a writer of ours gets wrong cannot cancel out against its reader here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import safetensors.torch
import torch
from torch import Tensor

from drafterzoo.drafters.base import Drafter
from drafterzoo.registry import DRAFTERS
from drafterzoo.target import Target
from tests.tiny import tiny_target

V, H, F, HEADS, KV, D, N = 64, 32, 48, 4, 2, 8, 8  # the target's depth is N
IDS = (1, 3, 5)  # of layers, whose outputs are boundaries 2, 4 and 6
MASK, BLOCK, RANK, DRAFTED = 7, 5, 6, 40
QWEN3: dict[str, Any] = {
    "model_type": "qwen3", "hidden_size": H, "intermediate_size": F, "num_hidden_layers": 2,
    "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": D, "vocab_size": V, "rms_norm_eps": 1e-6,
    "rope_theta": 1e6, "rope_scaling": None, "attention_bias": False, "hidden_act": "silu", "layer_types":
    ["full_attention"] * 2, "sliding_window": None, "use_sliding_window": False, "max_position_embeddings": 512,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "initializer_range": 0.02,
}  # fmt: skip
SPECULATORS: dict[str, Any] = {
    "algorithm": "dflash",
    "proposal_methods": [
        {"proposal_type": "greedy", "speculative_tokens": BLOCK - 1, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    ],
    "default_proposal_method": "greedy",
    "verifier": {"name_or_path": "tiny", "architectures": ["LlamaForCausalLM"]},
}


@attrs.frozen(eq=False)
class Foreign:
    """A folder of a layout: what is in it, and the drafter of ours that it must become."""

    format: str
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    drafter: str
    options: dict[str, Any]
    native: dict[str, Tensor]  # the same weights by our names
    weights: str = "model.safetensors"

    def write(self, folder: Path, config: Mapping[str, Any] | None = None, **tensors: Tensor | None) -> Path:
        """The folder, with another config, and with tensors changed, or taken out (None)."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config if config is None else config))
        whole = {key: value for key, value in {**self.tensors, **tensors}.items() if value is not None}
        if self.weights.endswith(".bin"):
            torch.save(whole, folder / self.weights)
        else:
            safetensors.torch.save_file(whole, folder / self.weights)
        return folder

    def ours(self, target: Target) -> Drafter:
        """The drafter, made by us and filled with the same weights."""
        own = {"head": "own" if "lm_head.weight" in self.native else "borrowed"}
        own["embedding"] = "own" if "embed_tokens.weight" in self.native else "borrowed"
        drafter = DRAFTERS.get(self.drafter).create(target, **COMMON, **own, **self.options)
        drafter.load_state_dict({key: value.to(drafter.state_dict()[key].dtype) for key, value in self.native.items()})
        drafter.borrow()
        return drafter.eval()


COMMON: dict[str, Any] = {
    "taps": [one + 1 for one in IDS], "hidden_size": H, "intermediate_size": F, "num_heads": HEADS,
    "num_kv_heads": KV, "head_dim": D, "mask_token_id": MASK, "block_size": BLOCK, "rope_theta": 1e6,
}  # fmt: skip


def target() -> Target:
    return tiny_target(vocab=V, layers=N, hidden=H)


def made(seed: int = 0) -> Any:
    """Random bfloat16 tensors of a shape, norms around one, always the same."""
    generator = torch.Generator().manual_seed(seed)

    def tensor(*shape: int, norm: bool = False) -> Tensor:
        value = torch.randn(shape, generator=generator) / shape[-1] ** 0.5
        return (1 + value if norm else value).bfloat16()

    return tensor


def body(layers: int = 2, bias: bool = False) -> dict[str, Tensor]:
    """What all of them share (block.md 1.3)."""
    tensor = made()
    tensors = {
        "fc.weight": tensor(H, len(IDS) * H),
        "hidden_norm.weight": tensor(H, norm=True),
        "norm.weight": tensor(H, norm=True),
    }
    for layer in range(layers):
        at = f"layers.{layer}"
        rows = {"q": HEADS * D, "k": KV * D, "v": KV * D}
        tensors |= {f"{at}.self_attn.{part}_proj.weight": tensor(count, H) for part, count in rows.items()}
        tensors |= {f"{at}.self_attn.{part}_norm.weight": tensor(D, norm=True) for part in "qk"}
        tensors |= {f"{at}.self_attn.o_proj.weight": tensor(H, HEADS * D)}
        tensors |= {f"{at}.mlp.{part}_proj.weight": tensor(F, H) for part in ("gate", "up")}
        tensors |= {f"{at}.mlp.down_proj.weight": tensor(H, F)}
        tensors |= {f"{at}.{part}_layernorm.weight": tensor(H, norm=True) for part in ("input", "post_attention")}
        if bias:
            tensors |= {f"{at}.self_attn.{part}_proj.bias": tensor(count) for part, count in rows.items()}
            tensors |= {f"{at}.self_attn.o_proj.bias": tensor(H)}
    return tensors


def heads(kind: str, confidence: str, drafted: int = V) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, Any]]:
    """(tensors, flags, our options) of DSpark's heads (block.md 3.3). confidence: "off", "alone" or "markov"."""
    tensor = made(1)
    tensors: dict[str, Tensor] = {}
    if kind != "none":
        tensors = {
            "markov_head.markov_w1.weight": tensor(V, RANK),
            "markov_head.markov_w2.weight": tensor(drafted, RANK),
        }
    if kind == "gated":
        tensors |= {"markov_head.gate_proj.weight": tensor(RANK, H + RANK), "markov_head.gate_proj.bias": tensor(RANK)}
    if kind == "rnn":
        wide = {"weight": tensor(3 * RANK, 2 * RANK + H), "bias": tensor(3 * RANK)}
        tensors |= {f"markov_head.joint_proj.{part}": value for part, value in wide.items()}
    if confidence != "off":
        width = H + (RANK if confidence == "markov" else 0)
        tensors |= {"confidence_head.proj.weight": tensor(1, width), "confidence_head.proj.bias": tensor(1)}
    flags = {
        "markov_rank": 0 if kind == "none" else RANK,
        "markov_head_type": "vanilla" if kind == "none" else kind,
        "enable_confidence_head": confidence != "off",
        "confidence_head_with_markov": confidence == "markov",
    }
    options = {
        "markov": kind,
        "markov_rank": RANK,
        "confidence": confidence != "off",
        "confidence_with_markov": confidence == "markov",
    }
    return tensors, flags, options


def copies(made_for: Target) -> dict[str, Tensor]:
    """The target's embedding and head as a bfloat16 file holds them."""
    return {
        "embed_tokens.weight": made_for.embedding_weight().detach().bfloat16().clone(),
        "lm_head.weight": made_for.head_weight().detach().bfloat16().clone(),
    }


def _zlab(config: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None, **options: Any) -> Foreign:
    native = body(options.get("num_layers", 2), options.get("attention_bias", False))
    own = native if tensors is None else dict(tensors)
    return Foreign(
        "zlab-dflash", dict(config), own, "dflash", {"num_layers": 2, "layout": "same_position", **options}, native
    )


def zlab() -> dict[str, Foreign]:
    top = {**QWEN3, "architectures": ["DFlashDraftModel"], "num_target_layers": N}
    auto = {"auto_map": {"AutoModel": "dflash.DFlashDraftModel"}}
    nested = {"mask_token_id": MASK, "target_layer_ids": list(IDS)}
    usual = {**top, **auto, "block_size": BLOCK, "dflash_config": nested}
    slides = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4, "use_sliding_window": True}
    window = {"sliding_window": 4, "sliding_layers": [0]}
    plain, short = body(), body(1)
    renaming = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    named = {"architectures": ["MuseGlimmerAssistantModel"], "model_type": "muse_glimmer_assistant"}
    assistant = {**{key: value for key, value in QWEN3.items() if key != "vocab_size"}, **named}
    fused = {key: value for key, value in plain.items() if not any(f".{part}_proj" in key for part in "qkv")}
    for at in ("layers.0.self_attn", "layers.1.self_attn"):
        fused[f"{at}.qkv_proj.weight"] = torch.cat([plain[f"{at}.{part}_proj.weight"] for part in "qkv"])
    return {
        "usual": _zlab(usual),
        "block size nested": _zlab({**top, "dflash_config": {**nested, "block_size": BLOCK}}),
        "assistant": _zlab(
            {**assistant, **nested, "block_size": BLOCK},
            {renaming.get(key, key): plain[key] for key in plain},
            causal=False,
        ),
        "one midlayer": _zlab(
            {**usual, "num_hidden_layers": 1, "layer_types": ["full_attention"]},
            {key.replace("layers.0.", "midlayer."): value for key, value in short.items()},
            num_layers=1,
        ),
        "fused": _zlab(usual, fused),
        "windows": _zlab({**usual, **slides}, **window),
        "windows that see ahead": _zlab({**usual, **slides, "is_causal": False}, **window, causal=False),
        "causal by vLLM's word": _zlab({**usual, "dflash_config": {**nested, "causal": True}}, causal=True),
        "bias and prefix": _zlab(
            {**usual, "attention_bias": True},
            {f"module.draft_model.{key}": value for key, value in body(bias=True).items()},
            attention_bias=True,
        ),
        "yarn": _zlab(
            {
                **{key: value for key, value in usual.items() if key not in ("rope_theta", "rope_scaling")},
                "rope_parameters": {
                    "rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 128,
                },
            },
            rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        ),
    }  # fmt: skip


def specforge() -> dict[str, Foreign]:
    found = {}
    for kind, confidence in (("vanilla", "markov"), ("gated", "alone"), ("rnn", "off")):
        tensors, flags, options = heads(kind, confidence)
        nested = {
            "projector_type": "dspark", "attention_mode": "gqa", **flags, "confidence_head_alpha": 1.0,
            "mask_token_id": MASK, "target_layer_ids": list(IDS),
        }  # fmt: skip
        config = {**QWEN3, "architectures": ["DSparkDraftModel"], "num_target_layers": N, "block_size": BLOCK}
        options |= {"num_layers": 2, "layout": "anchor_first"}
        native = {**body(), **tensors}
        how = ("specforge-dspark", {**config, "dflash_config": nested}, native, "dspark", options, native)
        found[kind] = Foreign(*how)
        early = {**body(), **{f"logit_head.{key}": value for key, value in tensors.items()}}
        found[f"{kind}, early"] = attrs.evolve(found[kind], tensors=early)
        hoisted = {**config, "architectures": ["Qwen3DSparkModel"], **flags}
        left = {key: value for key, value in nested.items() if key not in flags}
        found[f"{kind}, normalised"] = attrs.evolve(found[kind], config={**hoisted, "dflash_config": left})
    return found


def deepspec(made_for: Target) -> dict[str, Foreign]:
    found = {}
    for kind, confidence in (
        ("vanilla", "markov"), ("gated", "markov"), ("rnn", "alone"), ("vanilla", "off"), ("none", "alone"),
        ("none", "off"),
    ):  # fmt: skip
        tensors, flags, options = heads(kind, confidence)
        if kind == "none":
            options["markov_rank"] = 256  # which asks for nothing
        config = {
            **QWEN3, "architectures": ["Qwen3DSparkModel"], "block_size": BLOCK, "mask_token_id": MASK,
            "target_layer_ids": list(IDS), "num_target_layers": N, "num_anchors": 512, **flags,
        }  # fmt: skip
        options |= {"num_layers": 2, "layout": "anchor_first"}
        native = {**body(), **tensors}
        name = "deepspec-dflash" if (kind, confidence) == ("none", "off") else "deepspec-dspark"
        found[f"{kind}, {confidence}"] = Foreign(
            name, config, {**native, **copies(made_for)}, "dspark", options, native
        )
    first = found["vanilla, markov"]
    tensor = made(2)
    own = {"embed_tokens.weight": tensor(V, H), "lm_head.weight": tensor(V, H)}
    found["head of its own"] = attrs.evolve(first, tensors={**first.tensors, **own}, native={**first.native, **own})
    return found


def vocabulary() -> dict[str, Tensor]:
    """Maps of a draft vocabulary of DRAFTED ids, here and there one left out."""
    ids = torch.randperm(V, generator=torch.Generator().manual_seed(3))[:DRAFTED].sort().values
    marks = torch.zeros(V, dtype=torch.bool)
    marks[ids] = True
    return {"d2t": ids - torch.arange(DRAFTED), "t2d": marks}


def speculators(made_for: Target) -> dict[str, Foreign]:
    layers = {key: value for key, value in QWEN3.items() if key not in ("rope_theta", "rope_scaling", "torch_dtype")}
    layers["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e6}
    config = {
        "architectures": ["DFlashSpeculator"], "speculators_model_type": "dflash", "speculators_version": "0.3.0",
        "speculators_config": SPECULATORS, "transformer_layer_config": layers, "draft_vocab_size": DRAFTED,
        "target_hidden_size": None, "block_size": BLOCK, "aux_hidden_state_layer_ids": [one + 1 for one in IDS],
        "mask_token_id": MASK, "sliding_window_non_causal": False, "sample_from_anchor": False, "dtype": "bfloat16",
    }  # fmt: skip
    maps, both = vocabulary(), copies(made_for)
    ids = maps["t2d"].nonzero()[:, 0]
    reduced = {
        **maps,
        "embed_tokens.weight": both["embed_tokens.weight"],
        "lm_head.weight": both["lm_head.weight"][ids],
    }
    native = {**body(), **maps}
    options = {"num_layers": 2, "layout": "same_position", "draft_vocab_size": DRAFTED}
    usual = Foreign("speculators-dflash", config, {**body(), **reduced}, "dflash", options, native)
    silent = {key: value for key, value in config.items() if key != "sample_from_anchor"}
    anchored = {**SPECULATORS, "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": BLOCK}]}
    whole, full = {**config, "draft_vocab_size": V}, {**options, "draft_vocab_size": V}
    slides = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 4, "use_sliding_window": True}
    looking = {**whole, "transformer_layer_config": {**layers, **slides}, "sliding_window_non_causal": True}
    found = {
        "reduced": usual,
        "layout unsaid": attrs.evolve(usual, config=silent),
        "layout unsaid, from the anchor": attrs.evolve(
            usual, config={**silent, "speculators_config": anchored}, options={**options, "layout": "anchor_first"}
        ),
        "whole": attrs.evolve(usual, config=whole, tensors={**body(), **both}, options=full, native=body()),
        "nothing of the target's": attrs.evolve(usual, config=whole, tensors=body(), options=full, native=body()),
        "windows that see ahead": attrs.evolve(
            usual, config=looking, tensors=body(), native=body(),
            options={**full, "sliding_window": 4, "sliding_layers": [0, 1], "causal": False},
        ),
    }  # fmt: skip
    for kind, confidence in (("vanilla", "markov"), ("gated", "alone"), ("rnn", "off"), ("none", "alone")):
        tensors, flags, more = heads(kind, confidence, DRAFTED)
        if kind == "none":
            more["markov_rank"] = 256
        said = {**config, "architectures": ["DSparkSpeculator"], "speculators_model_type": "dspark", **flags}
        found[f"dspark {kind}"] = Foreign(
            "speculators-dspark",
            {**said, "sample_from_anchor": kind != "gated"},
            {**body(), **reduced, **tensors, "verifier_norm.weight": made(4)(H, norm=True)},
            "dspark",
            {**options, **more, "layout": "same_position" if kind == "gated" else "anchor_first"},
            {**native, **tensors},
        )
    return found


def dfly(made_for: Target) -> dict[str, Foreign]:
    tensor = made(5)
    config = {
        **QWEN3, "architectures": ["Qwen3DFlyModel"], "num_target_layers": len(IDS), "target_num_hidden_layers": N,
        "target_hidden_size": H, "target_layer_ids": list(IDS), "mask_token_id": MASK, "block_size": BLOCK,
        "enable_hidden_correction": True, "hidden_correction_intermediate_size": None,
    }  # fmt: skip
    bare = {**body(), "layer_fusion_weights": tensor(2, len(IDS))}
    native = {
        **bare,
        **{f"hidden_correction.{part}_norm.weight": tensor(H, norm=True) for part in ("hidden", "embed")},
        **{f"hidden_correction.{part}_proj.weight": tensor(H, 2 * H) for part in ("gate", "up")},
        "hidden_correction.down_proj.weight": tensor(H, H),
    }
    renaming = {"fc.weight": "context_proj.weight", "hidden_norm.weight": "context_norm.weight"}
    renaming["norm.weight"] = "final_norm.weight"
    embedding = {"embed_tokens.weight": copies(made_for)["embed_tokens.weight"]}
    theirs = {renaming.get(key, key): value for key, value in {**native, **embedding}.items()}
    plainer = {key: value for key, value in theirs.items() if not key.startswith("hidden_correction.")}
    options = {"num_layers": 2, "layout": "same_position"}
    usual = Foreign("angelspec-dfly", config, theirs, "dfly", options, native, "pytorch_model.bin")
    silent = {key: value for key, value in config.items() if key != "block_size"}
    stray = {"markov_head.markov_w1.weight": tensor(V, RANK), "confidence_head.proj.bias": tensor(1)}
    return {
        "usual": usual,
        "its trainer's word": attrs.evolve(usual, config={**silent, "dflash_block_size": BLOCK}),
        "prefixed, with strays": attrs.evolve(
            usual, tensors={f"module.draft_model.{key}": value for key, value in {**theirs, **stray}.items()}
        ),
        "uncorrected": attrs.evolve(
            usual,
            config={**config, "enable_hidden_correction": False},
            tensors=plainer,
            options={**options, "correction": False},
            native=bare,
        ),
    }


def everything() -> dict[str, Foreign]:
    """Every folder by "layout: variant"."""
    made_for = target()
    groups = (zlab(), specforge(), deepspec(made_for), speculators(made_for), dfly(made_for))
    return {f"{one.format}: {variant}": one for group in groups for variant, one in group.items()}
