"""A decoder's config in the words of transformers' LlamaConfig, from and to ours: every layout is built around one.

Source: eagle.md 2.2. Knows sizes, and rotary positions as transformers 4 (`rope_theta`, `rope_scaling`) and 5
(`rope_parameters`) write them; nothing of any layout, of tensors or of drafters. Qwen3 calls all of these the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from drafterzoo.drafters.rope import SCALED
from drafterzoo.errors import CheckpointError

SIZES = {  # ours, and theirs
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
}
THETA = 10000.0  # where a config is silent; never the target's (eagle.md 1.2)
EPS = 1e-6  # transformers' default
_NEUTRAL = {"hidden_act": "silu", "pretraining_tp": 1, "mlp_bias": False, "partial_rotary_factor": 1.0}
_PRETRAINED = ("llama3", "yarn")  # whose scaling is from the length that was trained first


def read_llama(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The keys of SIZES, rms_norm_eps, rope_theta, rope_scaling and attention_bias as our configs say them.

    where: the file, and the table in it where it is not the whole file, for complaints. Raises CheckpointError for a
    key that is missing or no number, and for what none of our layers computes.
    """
    for key, neutral in _NEUTRAL.items():
        if config.get(key) not in (None, neutral):
            _refuse(where, key, config[key], f"{neutral!r}, which is all that drafterzoo's layers compute")
    found: dict[str, Any] = {
        ours: _whole(config, theirs, where) for ours, theirs in SIZES.items() if _given(config, theirs, ours)
    }
    found.setdefault("num_kv_heads", found["num_heads"])
    found.setdefault("head_dim", found["hidden_size"] // found["num_heads"])
    found["rms_norm_eps"] = _number(config, "rms_norm_eps", where, EPS)
    bias = config.get("attention_bias")
    if bias not in (None, True, False):
        _refuse(where, "attention_bias", bias, "true or false")
    return {**found, "attention_bias": bool(bias), **_read_rope(config, where)}


def write_llama(section: Mapping[str, Any], like: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Ours in their words; a key that the section lacks is left out.

    like: a config whose way of writing rotary positions is kept; without one, that of transformers 4, which all read.
    """
    written = {theirs: section[ours] for ours, theirs in SIZES.items() if ours in section}
    written |= {key: section[key] for key in ("rms_norm_eps", "attention_bias") if key in section}
    theta, scaling = section["rope_theta"], section["rope_scaling"]
    rope: dict[str, Any]
    if "rope_parameters" in (like or {}):
        rope = {"rope_parameters": {"rope_type": "default", **(scaling or {}), "rope_theta": theta}}
    else:
        rope = {"rope_theta": theta, "rope_scaling": None if scaling is None else dict(scaling)}
    return {**written, "hidden_act": _NEUTRAL["hidden_act"], **rope}


def _given(config: Mapping[str, Any], theirs: str, ours: str) -> bool:
    """Whether a size is to be read: those that transformers works out of others may be null, or left out."""
    return ours not in ("num_kv_heads", "head_dim") or config.get(theirs) is not None


def _whole(config: Mapping[str, Any], key: str, where: str) -> int:
    value = config.get(key)
    if type(value) is not int or value < 1:
        _refuse(where, key, value if key in config else "missing", "a whole number above zero")
    return value


def _number(config: Mapping[str, Any], key: str, where: str, default: float) -> float:
    value = config.get(key)
    if value is None:
        return default
    if type(value) not in (int, float) or value <= 0:
        _refuse(where, key, value, "a number above zero")
    return float(value)


def _read_rope(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """rope_theta and rope_scaling of either style; both may be there if they agree."""
    new = _table(config, "rope_parameters", where)
    scaling = new or _table(config, "rope_scaling", where)
    theta = _number(new, "rope_theta", where, _number(config, "rope_theta", where, THETA))
    if new and config.get("rope_theta") not in (None, theta):
        _refuse(where, "rope_theta", config["rope_theta"], f"{theta}, which its 'rope_parameters' say")
    if any(isinstance(value, dict) for value in scaling.values()):
        _refuse(where, "rope_parameters", scaling, "one table for all layers, which is all that drafterzoo's rotate by")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if scaling.get("partial_rotary_factor") not in (None, 1, 1.0):
        _refuse(where, "partial_rotary_factor", scaling["partial_rotary_factor"], "1, since whole heads are rotated")
    if kind == "default":
        return {"rope_theta": theta, "rope_scaling": None}
    if kind not in SCALED:
        _refuse(where, "rope_type", kind, f"'default' or one of {', '.join(map(repr, SCALED))}")
    kept = {key: value for key, value in scaling.items() if key not in ("type", "rope_theta", "partial_rotary_factor")}
    if kind in _PRETRAINED and kept.get("original_max_position_embeddings") is None:
        kept["original_max_position_embeddings"] = _whole(config, "max_position_embeddings", where)
    return {"rope_theta": theta, "rope_scaling": {**kept, "rope_type": kind}}


def _table(config: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    value = config.get(key)
    if value is not None and not isinstance(value, dict):
        _refuse(where, key, value, "a table")
    return dict(value or {})


def _refuse(where: str, key: str, value: Any, expected: str) -> NoReturn:
    said = value if value == "missing" else repr(value)
    raise CheckpointError(f"{where}: key {key!r} is {said}, expected {expected}; download it again, or correct it.")
