"""EAGLE-1, EAGLE-2 and HASS heads as SafeAILab and HASS publish them: one Llama layer without a norm before it.

Source: eagle.md 1.1, 1.4 and 2.1; repositories SafeAILab/EAGLE and HArmonizedSS/HASS. All three are one network, and no
file says by which of them it was trained: they are read as `eagle2`, and with drafter='hass' as `hass`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drafterzoo.drafters.base import Drafter
from drafterzoo.drafters.eagle2_body import Eagle2Body
from drafterzoo.errors import CheckpointError, UsageError
from drafterzoo.formats.base import Contents, Files, Translated
from drafterzoo.formats.binding import (
    EMBEDDING,
    as_contents,
    check_bare,
    check_made_for,
    lent_tensors,
    may_have,
    origin_in,
    whole_head,
)
from drafterzoo.formats.files import PICKLED
from drafterzoo.formats.llama_config import read_llama, write_llama
from drafterzoo.formats.names import Names
from drafterzoo.target.target import Target

NAME = "safeailab-eagle2"
HAS = ("fc.weight", "layers.0.self_attn.q_proj.weight")
HAS_NOT = ("layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight", "hidden_norm.weight")  # of other families
BIASES = {"bias": "fc.bias", "qkv_bias": "layers.0.self_attn.q_proj.bias"}
ROTATED_BY = (None, "linear")  # by SafeAILab's own code


class SafeAILabEagle2:
    """Heads of SafeAILab/EAGLE before version 3, and of HASS."""

    name: str = NAME
    about: str = "EAGLE-1, EAGLE-2 and HASS heads of SafeAILab/EAGLE and HArmonizedSS/HASS"

    def detect(self, files: Files) -> bool:
        if "speculators_model_type" in files.config:
            return False
        names = Names.of(files).seen
        return all(name in names for name in HAS) and not any(name in names for name in HAS_NOT)

    def translate(self, files: Files, target: Target) -> Translated:
        names = Names.of(files)
        section = read_llama(files.config, files.config_file)
        check_made_for(files, target, vocab_size=section["vocab_size"], hidden_size=section["hidden_size"])
        if section.pop("attention_bias"):
            raise CheckpointError(
                f"{files.config_file}: key 'attention_bias' is true, which heads of {NAME} do not have; their biases "
                f"are called qkv_bias."
            )
        section["fc_bias"] = _has_bias(files, names, "bias")
        section["qkv_bias"] = _has_bias(files, names, "qkv_bias")
        section["draft_vocab_size"] = section["vocab_size"]
        section["tap"] = target.num_layers + 1  # after the final norm
        return Translated("eagle2", section, names.native(files), names, names_taps=False)

    def contents(self, drafter: Drafter) -> Contents:
        body = _checked(drafter)
        contents = as_contents(
            drafter,
            NAME,
            written=lambda section: _config(section, body),
            lent=lambda: lent_tensors(drafter, EMBEDDING),
            weights=PICKLED,
        )
        return Contents(contents.config, whole_head(contents.tensors, body, NAME), contents.weights)


def _has_bias(files: Files, names: Names, key: str) -> bool:
    """Whether there is a bias: the tensors say it. Raises CheckpointError where the config says otherwise."""
    said, there = may_have(files, key, bool), BIASES[key] in names.seen
    if said not in (None, there):
        raise CheckpointError(
            f"{files.config_file}: key {key!r} is {said}, but {files.weights_file} "
            f"{'holds' if there else 'holds no'} {names(BIASES[key])!r}; the two files do not belong together."
        )
    return there


def _checked(drafter: Drafter) -> Eagle2Body:
    """The drafter. Raises UsageError for what the layout does not hold."""
    check_bare(drafter)
    if not isinstance(drafter, Eagle2Body):
        raise UsageError(
            f"{drafter.spec}: {NAME} holds heads of EAGLE-1, EAGLE-2 and HASS; expected one of 'eagle2', 'hass'."
        )
    config, after = drafter.config, drafter.target.num_layers + 1
    if config.tap != after:
        raise UsageError(
            f"{drafter.spec}: {NAME} reads the feature after the final norm, boundary {after}, not tap={config.tap}; "
            f"save it with save_pretrained."
        )
    if config.head_dim * config.num_heads != config.hidden_size:
        raise UsageError(
            f"{drafter.spec}: {NAME} makes heads as wide as hidden_size over num_heads, not head_dim="
            f"{config.head_dim}; save it with save_pretrained."
        )
    rotation = (config.rope_scaling or {}).get("rope_type")
    if rotation not in ROTATED_BY and origin_in(drafter, NAME) is None:
        raise UsageError(
            f"{drafter.spec}: {NAME} rotates positions plainly or scaled linearly, not by {rotation!r}; save it with "
            f"save_pretrained."
        )
    return drafter


def _config(section: Mapping[str, Any], body: Eagle2Body) -> dict[str, Any]:
    origin = origin_in(body, NAME)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **write_llama(section, None if origin is None else origin.files.config),
        "bias": section["fc_bias"],
        **({"qkv_bias": True} if section["qkv_bias"] else {}),
        "max_position_embeddings": body.target.max_positions,
        "tie_word_embeddings": False,
        "torch_dtype": str(body.storage_dtype).removeprefix("torch."),
    }


LAYOUT = SafeAILabEagle2()
