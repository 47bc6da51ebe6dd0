"""EAGLE-3 heads in the layout of speculators, which vLLM serves: a Llama or Qwen3 config inside their own.

Source: eagle.md 1.2, 1.3, 2.1 to 2.3; repository vllm-project/speculators. Aux layers are boundaries, and often null.
Where `norm_before_residual` is missing it is true, as vLLM takes it. What `speculators_config` says of the verifier may
be a path on somebody's machine, and is never followed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drafterzoo.drafters.base import Drafter
from drafterzoo.drafters.eagle3_body import Eagle3Body
from drafterzoo.errors import CheckpointError
from drafterzoo.formats.base import Contents, Files, Translated
from drafterzoo.formats.binding import EMBEDDING, HEAD, as_contents, lent_tensors, may_have, needs, origin_in
from drafterzoo.formats.eagle3_heads import FLAGS, IDS, Said, checked, read_flags, read_ids, translated
from drafterzoo.formats.llama_config import read_llama, write_llama
from drafterzoo.formats.names import Names
from drafterzoo.formats.speculators_config import algorithm_of, speculators_config
from drafterzoo.target.target import Target

NAME = "speculators-eagle3"
LAYERS = "transformer_layer_config"
QUERY_NORM = "layers.0.self_attn.q_norm.weight"  # of Qwen3's layers alone
LEFT_OUT = ("verifier_norm.", "verifier_lm_head.")  # copies of the target's that training needs


class SpeculatorsEagle3:
    """Heads that speculators trains or converts, and vLLM serves."""

    name: str = NAME
    about: str = "EAGLE-3 and 3.1 heads of vLLM's speculators"

    def detect(self, files: Files) -> bool:
        return algorithm_of(files.config) == "eagle3"

    def translate(self, files: Files, target: Target) -> Translated:
        inner, where = needs(files, LAYERS, dict), f"{files.config_file}: {LAYERS}"
        names = Names.of(files)
        sizes = {**read_llama(inner, where), "qk_norm": _has_query_norm(files, names, inner)}
        sizes["sliding_window"] = _window(files, inner, sizes["num_layers"])
        flags = read_flags(files, files.config, otherwise={"norm_before_residual": True})
        ignored = tuple(theirs for ours, theirs in names.seen.items() if ours.startswith(LEFT_OUT))
        return translated(files, target, names, Said(sizes, flags, read_ids(files, files.config)), ignored)

    def contents(self, drafter: Drafter) -> Contents:
        body = checked(drafter, NAME)
        return as_contents(
            drafter,
            NAME,
            written=lambda section: _config(section, body),
            lent=lambda: lent_tensors(drafter, HEAD, EMBEDDING),
        )


def _has_query_norm(files: Files, names: Names, inner: Mapping[str, Any]) -> bool:
    """Whether queries and keys are normed, as Qwen3's are. Raises CheckpointError where config and tensors differ."""
    model_type, there = inner.get("model_type", "llama"), QUERY_NORM in names.seen
    if model_type not in ("llama", "qwen3") or there != (model_type == "qwen3"):
        raise CheckpointError(
            f"{files.config_file}: {LAYERS} has model_type {model_type!r}, and {files.weights_file} "
            f"{'holds' if there else 'holds no'} {names(QUERY_NORM)!r}; expected 'qwen3' with it or 'llama' without."
        )
    return there


def _window(files: Files, inner: Mapping[str, Any], layers: int) -> int | None:
    """How far layers look back: all of them, or none. Raises CheckpointError for some of them, and other kinds."""
    kinds = may_have(files, "layer_types", list, inner)
    if kinds is None or (len(kinds) == layers and all(kind == "full_attention" for kind in kinds)):
        return None
    if len(kinds) != layers or any(kind != "sliding_attention" for kind in kinds):
        raise CheckpointError(
            f"{files.config_file}: {LAYERS} has layer_types {kinds}, expected {layers} times 'full_attention' or as "
            f"often 'sliding_attention'; drafterzoo's EAGLE-3 layers are all of one kind."
        )
    if may_have(files, "use_sliding_window", bool, inner) is False:
        raise CheckpointError(
            f"{files.config_file}: {LAYERS} has use_sliding_window: false beside layer_types {kinds}, expected true or "
            f"layers of 'full_attention'; correct one of them."
        )
    window: int = needs(files, "sliding_window", int, inner)
    return window


def _config(section: Mapping[str, Any], body: Eagle3Body) -> dict[str, Any]:
    """A section in speculators' words; what the drafter does not say is what their trainer writes."""
    origin, target = origin_in(body, NAME), body.target
    inner = write_llama(section, None if origin is None else origin.files.config[LAYERS])
    width = section["target_hidden_size"]
    return {
        "architectures": ["Eagle3DraftModel"],
        **speculators_config("eagle3", body.budget.depth, target),
        "draft_vocab_size": section["draft_vocab_size"],
        **{flag: section[flag] for flag in FLAGS},
        "target_hidden_size": None if width == section["hidden_size"] else width,
        IDS: list(section["taps"]),
        "embed_requires_grad": section["embedding"] == "own",
        "tie_word_embeddings": False,
        "torch_dtype": str(body.storage_dtype).removeprefix("torch."),
        LAYERS: {
            "model_type": "qwen3" if section["qk_norm"] else "llama",
            **inner,
            "max_position_embeddings": target.max_positions,
            **_windows(section),
        },
    }


def _windows(section: Mapping[str, Any]) -> dict[str, Any]:
    """What says that all layers slide. Without `use_sliding_window`, transformers' Qwen3Config forgets the window."""
    window = section["sliding_window"]
    if window is None:
        return {}
    kinds = ["sliding_attention"] * section["num_layers"]
    return {"layer_types": kinds, "sliding_window": window, "use_sliding_window": True}


LAYOUT = SpeculatorsEagle3()
