"""What a config asks for in the block drafters' layouts: taps, windows, mask and heads, and ours in the same words.

Source: block.md 1.2, 3.3, 6 and 8. Knows the keys that these frameworks took over from each other, and the section of a
block drafter; where a framework puts them is in that layout's own file. Knows nothing of tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from drafterzoo.drafters.base import Drafter
from drafterzoo.drafters.block_body import Layout
from drafterzoo.errors import CheckpointError, UsageError
from drafterzoo.formats.base import Files
from drafterzoo.formats.binding import may_have, needs
from drafterzoo.formats.llama_config import read_llama, write_llama
from drafterzoo.target.target import Target

FULL, SLIDING = "full_attention", "sliding_attention"
SHARED = "dflash_config"  # the table in which z-lab and SpecForge put what a decoder's config has no key for

# What some drafters have and ours have not: by key of a config, the values that ask for nothing, and what others do.
_BEYOND: dict[str, tuple[tuple[Any, ...], str]] = {
    "use_swa": ((None, False), "windows in the manner of MiMo"),
    "attention_sink_bias": ((None, False), "an attention sink"),
    "add_swa_attention_sink_bias": ((None, False), "an attention sink"),
    "input_embedding_scale": ((None, 1), "scaled embeddings"),
    "output_multiplier": ((None, 1), "scaled logits"),
    "final_logit_softcapping": ((None, 0), "capped logits"),
    "shift_label": ((None, False), "labels one position on, as Domino has"),
    "is_neox_style": ((None, True), "rotary positions in neighbouring pairs"),
    "conv_kernel_size": ((None,), "the convolutions of DFlash2"),
    "selector_rank": ((None,), "the candidate selector of DFlash2"),
}


# -- reading a config ------------------------------------------------------------------------------------------------


def refuse(files: Files, key: str, value: Any, expected: str) -> NoReturn:
    """Raise CheckpointError for the value of a key; `value` "missing" is no value."""
    said = value if value == "missing" else repr(value)
    raise CheckpointError(f"{files.config_file}: key {key!r} is {said}, expected {expected}.")


def merged(files: Files) -> dict[str, Any]:
    """A config with the keys of its `dflash_config` at the top, too: releases differ in where they put them.

    Raises CheckpointError where both places say different things.
    """
    config, nested = files.config, may_have(files, SHARED, dict) or {}
    for key, value in nested.items():
        if config.get(key) not in (None, value):
            refuse(files, f"{SHARED}.{key}", value, f"the {config[key]!r} of the same key at the top; take out one")
    return {**config, **{key: value for key, value in nested.items() if value is not None}}


def aligned(config: Mapping[str, Any]) -> dict[str, Any]:
    """The opposite, for a config that has been changed: keys at the top that `dflash_config` has, too, say the same."""
    nested = config.get(SHARED) or {}
    return {key: nested.get(key, value) for key, value in config.items()}


def architectures(config: Mapping[str, Any]) -> list[str]:
    """The classes that a config says it is for; none where it does not say, or not so that it could be meant."""
    found = config.get("architectures")
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


def width(files: Files, values: Mapping[str, Any], key: str, default: int) -> int:
    """A number that may be left out, or null, for the default."""
    found = values.get(key)
    if found is not None and (type(found) is not int or found < 0):
        refuse(files, key, found, f"a number, or null for {default}")
    return default if found is None else found


def projector(config: Mapping[str, Any]) -> Any:
    """What a config says its `dflash_config` is for; None where there is none, or it does not say."""
    nested = config.get(SHARED)
    return nested.get("projector_type") if isinstance(nested, dict) else None


def decoder(files: Files, values: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Sizes, rotary positions and windows of the draft layers. where: the table, if it is not the whole file.

    Raises CheckpointError for what none of our block drafters is.
    """
    for key, (neutral, what) in _BEYOND.items():
        if values.get(key) not in neutral:
            refuse(files, key, values[key], f"none: it asks for {what}, which no drafter here has")
    return {**read_llama(values, where or files.config_file), "qk_norm": True, **_windows(files, values)}


def _windows(files: Files, values: Mapping[str, Any]) -> dict[str, Any]:
    """Which layers slide, and whether slots are blind to those after them (block.md 1.2)."""
    count = values["num_hidden_layers"]
    types = values.get("layer_types")
    if types is None:  # transformers' rule for a Qwen3 that does not list them
        first = width(files, values, "max_window_layers", 28) if values.get("use_sliding_window") else count
        types = [SLIDING if layer >= first else FULL for layer in range(count)]
    if not isinstance(types, list) or len(types) != count or any(kind not in (FULL, SLIDING) for kind in types):
        refuse(files, "layer_types", types, f"{count} times {FULL!r} or {SLIDING!r}, one for each layer")
    causal = values["is_causal"] if values.get("is_causal") is not None else values.get("causal")
    if causal not in (None, True, False):
        refuse(files, "is_causal", causal, "true or false")
    sliding = [layer for layer, kind in enumerate(types) if kind == SLIDING]
    window = values.get("sliding_window") if sliding else None
    if sliding and (type(window) is not int or values.get("use_sliding_window") is False):
        refuse(files, "sliding_window", window, f"a number with use_sliding_window, since layers {sliding} slide")
    return {"sliding_window": window, "sliding_layers": sliding, "causal": causal}


def taps(files: Files, values: Mapping[str, Any], key: str, target: Target, first: int, shift: int) -> list[int]:
    """The boundaries that a config's layer ids name: id + shift.

    first: the lowest id there is. The last layer's output is none: transformers gives it after the final norm, engines
    before, and a file does not say which of both it was trained on. Raises CheckpointError, also where there are no
    ids: what is usual is a guess, and a wrong one (block.md 8, row 3).
    """
    ids = values.get(key)
    if not isinstance(ids, list) or not ids or any(type(one) is not int for one in ids):
        found = ids if key in values else "missing"
        refuse(files, key, found, "the layers that were tapped, which nothing else tells; take it from the original")
    last = target.num_layers - 1 - shift
    for one in ids:
        if not first <= one <= last:
            refuse(
                files,
                key,
                ids,
                f"ids from {first} to {last} of the {target.num_layers} layers of {target.name}, and {one} is none "
                f"(the last layer's output is not one, since it may mean that of the final norm)",
            )
    if len(set(ids)) < len(ids):
        refuse(files, key, ids, "each layer once")
    return [one + shift for one in ids]


def check_depth(files: Files, values: Mapping[str, Any], key: str, target: Target) -> None:
    """Raise CheckpointError where the config says of its target another depth than this one's."""
    said = values.get(key)
    if said not in (None, target.num_layers):
        refuse(files, key, said, f"{target.num_layers}, the layers of {target.name}; load it with its own target")


def mask_token(files: Files, values: Mapping[str, Any], vocabulary: int) -> int:
    """The id whose embedding stands in the empty slots."""
    found = values.get("mask_token_id")
    if type(found) is not int or not 0 <= found < vocabulary:
        said = found if "mask_token_id" in values else "missing"
        refuse(files, "mask_token_id", said, f"an id below {vocabulary}, whose embedding fills the empty slots")
    return found


def block_size(files: Files, values: Mapping[str, Any]) -> int:
    key = "block_size"
    found = values.get(key)
    if type(found) is not int or found < 2:
        refuse(files, key, found if key in values else "missing", "how many tokens make a block, at least 2")
    return found


def body(files: Files, values: Mapping[str, Any], target: Target, *, layout: Layout, first: int = 0) -> dict[str, Any]:
    """A section but for DSpark's heads and DFly's correction, of a config whose layer ids mean layers' outputs.

    first: the lowest layer id there is.
    """
    found = decoder(files, values)
    return {
        **found,
        "draft_vocab_size": found["vocab_size"],
        "target_hidden_size": width(files, values, "target_hidden_size", found["hidden_size"]),
        "taps": taps(files, values, "target_layer_ids", target, first=first, shift=1),
        "mask_token_id": mask_token(files, values, found["vocab_size"]),
        "block_size": block_size(files, values),
        "layout": layout,
    }


def check_full(files: Files, section: Mapping[str, Any]) -> None:
    """Raise CheckpointError for windows, where a framework's layers have none."""
    if section["sliding_layers"]:
        refuse(files, "layer_types", files.config.get("layer_types", "missing"), f"{FULL!r} alone, as its layers have")


def heads(files: Files, values: Mapping[str, Any]) -> dict[str, Any]:
    """What DSpark's two heads are by the flags that all its frameworks share (block.md 3.3). Rank 0 is no bias."""
    rank = values.get("markov_rank")
    if type(rank) is not int or rank < 0:
        refuse(files, "markov_rank", rank if "markov_rank" in values else "missing", "a number, 0 for no markov head")
    kind = values.get("markov_head_type") or "vanilla"
    if kind not in ("vanilla", "gated", "rnn"):
        refuse(files, "markov_head_type", kind, "'vanilla', 'gated' or 'rnn'")
    confidence = needs(files, "enable_confidence_head", bool, values)
    joined = may_have(files, "confidence_head_with_markov", bool, values)
    if confidence and joined and not rank:
        refuse(files, "confidence_head_with_markov", True, "false with markov_rank 0: there is no token to read")
    found = {"markov": kind, "markov_rank": rank} if rank else {"markov": "none"}
    return {**found, "confidence": confidence, "confidence_with_markov": joined is not False and rank > 0}


# -- writing one --------------------------------------------------------------------------------------------------


def layer_ids(drafter: Drafter, layout: str, boundaries: Sequence[int], first: int, shift: int) -> list[int]:
    """Layer ids as the layout counts them, boundary - shift. Raises UsageError for a boundary that it has no id for."""
    ids = [boundary - shift for boundary in boundaries]
    for boundary, one in zip(boundaries, ids, strict=True):
        if not first <= one < drafter.target.num_layers - shift:
            raise UsageError(
                f"{drafter.spec}: layout {layout!r} has no layer id for tap {boundary}, since its ids go from {first} "
                f"to {drafter.target.num_layers - 1 - shift} (the last layer's output is not one); save it with "
                f"save_pretrained."
            )
    return ids


def written_decoder(drafter: Drafter, section: Mapping[str, Any]) -> dict[str, Any]:
    """The draft layers in the words of a Qwen3 config."""
    sliding = section["sliding_layers"]
    return {
        "model_type": "qwen3",
        **write_llama(section),
        "max_position_embeddings": drafter.target.max_positions,
        "layer_types": [SLIDING if layer in sliding else FULL for layer in range(section["num_layers"])],
        "use_sliding_window": bool(sliding),
        "sliding_window": section["sliding_window"],
        "tie_word_embeddings": False,
        "torch_dtype": str(drafter.storage_dtype).removeprefix("torch."),
    }


def written_heads(section: Mapping[str, Any]) -> dict[str, Any]:
    """DSpark's flags; of a drafter without heads, too."""
    kind = section.get("markov", "none")
    return {
        "markov_rank": 0 if kind == "none" else section["markov_rank"],
        "markov_head_type": "vanilla" if kind == "none" else kind,
        "enable_confidence_head": section.get("confidence", False),
        "confidence_head_with_markov": kind != "none" and section["confidence_with_markov"],
    }


def written_dflash(
    drafter: Drafter, layout: str, section: Mapping[str, Any], architecture: str, more: Mapping[str, Any]
) -> dict[str, Any]:
    """A config with a table of its own for what a decoder's has no key for; `more` goes into that table, too."""
    return {
        "architectures": [architecture],
        **written_decoder(drafter, section),
        **({} if section["causal"] is None else {"is_causal": section["causal"]}),
        "block_size": section["block_size"],
        "num_target_layers": drafter.target.num_layers,
        SHARED: {
            **more,
            "mask_token_id": section["mask_token_id"],
            "target_layer_ids": layer_ids(drafter, layout, section["taps"], first=0, shift=1),
        },
    }
