"""The frequencies of rotary positions, plain or scaled to reach further than a model was first trained.

Source: eagle.md 1.2 (RoFormer, arXiv 2104.09864). Scaled ones are those of transformers, which the checkpoints that ask
for them were trained with. Knows a config's three fields; nothing of attention or of any drafter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor

from drafterzoo.errors import UsageError

SCALED = ("linear", "llama3", "yarn")  # whose frequencies do not depend on how long the text is


class Rotary(Protocol):
    """What of a drafter's config says how positions rotate."""

    @property
    def head_dim(self) -> int: ...
    @property
    def rope_theta(self) -> float: ...
    @property
    def rope_scaling(self) -> Mapping[str, Any] | None: ...


def rotary(positions: Tensor, config: Rotary, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines [n, 1, R, head_dim] of rotate-half RoPE at `positions` [n, R].

    Computed from the positions at hand, so that no maximum length is built in (eagle.md 5, row 9).
    """
    frequencies, length = frequencies_of(config, positions.device)
    angles = positions[..., None].float() * frequencies
    angles = torch.cat((angles, angles), dim=-1)[:, None]
    cos, sin = angles.cos(), angles.sin()
    return (cos.to(dtype), sin.to(dtype)) if length == 1 else ((cos * length).to(dtype), (sin * length).to(dtype))


def frequencies_of(config: Rotary, device: torch.device) -> tuple[Tensor, float]:
    """(angle per position [head_dim / 2], what cosines and sines are multiplied by)."""
    if config.rope_scaling is None:
        pairs = torch.arange(0, config.head_dim, 2, device=device, dtype=torch.float32)
        return config.rope_theta ** (-pairs / config.head_dim), 1.0
    return _scaled(config.head_dim, config.rope_theta, json.dumps(dict(config.rope_scaling), sort_keys=True), device)


@lru_cache(maxsize=64)
def _scaled(head_dim: int, theta: float, scaling: str, device: torch.device) -> tuple[Tensor, float]:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters = {**json.loads(scaling), "rope_theta": theta}
    longest = parameters.get("original_max_position_embeddings", 2048)
    config = LlamaConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        head_dim=head_dim,
        rope_parameters=parameters,
        max_position_embeddings=longest,
    )
    embedding = LlamaRotaryEmbedding(config)
    return embedding.inv_freq.to(device, torch.float32), float(embedding.attention_scaling)


def check_rope(config: Rotary) -> None:
    """Raise UsageError for a scaling that is unknown, or incomplete."""
    if config.rope_scaling is None:
        return
    kind = config.rope_scaling.get("rope_type")
    if kind not in SCALED:
        raise UsageError(
            f"rope_scaling has rope_type={kind!r}, expected one of {', '.join(map(repr, SCALED))}, or no rope_scaling."
        )
    try:
        found, length = frequencies_of(config, torch.device("cpu"))
    except Exception as error:  # transformers complains in many ways of what lacks or contradicts
        raise UsageError(
            f"rope_scaling={dict(config.rope_scaling)} cannot be used ({type(error).__name__}: {error}); give what "
            f"transformers reads for {kind!r}."
        ) from error
    if not (torch.isfinite(found).all() and found.shape[0] == config.head_dim // 2 and 0 < length < 1e6):
        raise UsageError(f"rope_scaling={dict(config.rope_scaling)} gives angles that are no numbers; correct it.")
