"""What flat layouts of EAGLE-3 heads share: a config of one Llama layer, and tensors that begin with `midlayer.`.

Source: eagle.md 2. Knows the words that SafeAILab, SpecForge, AngelSlim and TorchSpec have in common; what tells
one from another is theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from drafterzoo.drafters.base import Drafter
from drafterzoo.drafters.eagle3_body import Eagle3Body
from drafterzoo.errors import CheckpointError, UsageError
from drafterzoo.formats.base import Convention, Files, Translated
from drafterzoo.formats.binding import CONVENTIONS, EMBEDDING, convention, may_have, origin_in
from drafterzoo.formats.eagle3_heads import (
    FLAGS,
    IDS,
    Said,
    checked,
    read_flags,
    read_ids,
    translated,
    usual_taps,
)
from drafterzoo.formats.files import PICKLED
from drafterzoo.formats.llama_config import read_llama, write_llama
from drafterzoo.formats.names import Names
from drafterzoo.target.target import Target

MIDLAYER = ("midlayer.", "layers.0.")
FIRST = "layers.0.hidden_norm.weight"  # of EAGLE-3 alone, by its native name
SERVED, ANGELSLIM = "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"  # architectures
DFLASH = "DFlashDraftModel"  # whose only layer may be a `midlayer`, too (block.md 1.3)
TORCHSPEC = "_torchspec_version"
CONVENTION = "aux_convention"  # of ours, beside the ids: servers pass over it, and nobody has to guess
_ALIASES = {"norm_output": "return_hidden_post_norm"}  # TensorRT-LLM's word, in eagle_config (eagle.md 1.3)
_OF_MODELOPT = ("use_last_layernorm", "use_mtp_layernorm")  # NVIDIA's exporter, whose ids are not SpecForge's


def producer(files: Files) -> Literal["angelslim", "safeailab", "specforge", "torchspec"] | None:
    """Whose flat head it is, told in one place, so that no two layouts claim one; None for anything else.

    Published SafeAILab files may call themselves as SpecForge's do (eagle.md 2.2): they are PyTorch's own, which
    SpecForge never writes, and say nothing of norms or aux layers. TorchSpec alone always keeps the embedding.
    """
    config, names = files.config, Names.of(files).seen
    found = config.get("architectures")
    made_of = found if isinstance(found, list) else []
    exported = FIRST in names and (SERVED in made_of or TORCHSPEC in config)  # for vLLM, in its names
    of_others = "speculators_model_type" in config or DFLASH in made_of
    if of_others or not (exported or any(name.startswith(MIDLAYER[0]) for name in names)):
        return None
    if ANGELSLIM in made_of or "target_model_type" in config:
        return "angelslim"
    if TORCHSPEC in config:
        return "torchspec"
    if not _says_norms_or_ids(files) and (SERVED not in made_of or Path(files.weights_file).name.startswith(PICKLED)):
        return "safeailab"
    return "torchspec" if EMBEDDING in names else "specforge"


def nested(files: Files) -> dict[str, Any]:
    """The config's `eagle_config`, where it has one."""
    return may_have(files, "eagle_config", dict) or {}


def _says_norms_or_ids(files: Files) -> bool:
    """Whether the config says any of what came after the first EAGLE-3 heads."""
    tables = (files.config, nested(files))
    return any(table.get(key) is not None for table in tables for key in (*FLAGS, IDS))


def read_plain(files: Files, target: Target, format: str) -> Translated:
    """A head of a layout that has no norm flags, and whose aux layers are the usual ones."""
    said = _said(files, ids=None, read_as="boundary")
    wrong = [key for key, value in {**said.flags, "attention_bias": said.sizes["attention_bias"]}.items() if value]
    if wrong:
        raise CheckpointError(
            f"{files.config_file}: key {wrong[0]!r} is true, which heads of {format} do not have; name another layout, "
            f"for example format='specforge-eagle3'."
        )
    return translated(files, target, Names.of(files, MIDLAYER), said)


def read_with_ids(files: Files, target: Target, producer: Convention | None = None) -> Translated:
    """A head of a layout that may have norm flags and aux layers. producer: what is known of ids from elsewhere."""
    ids = read_ids(files, nested(files), files.config)
    read_as: Convention | None = "boundary" if ids is None else _meant(files, ids, target, producer)
    return translated(files, target, Names.of(files, MIDLAYER), _said(files, ids, read_as))


def _said(files: Files, ids: list[int] | None, read_as: Convention | None) -> Said:
    sizes, below = read_llama(files.config, files.config_file), nested(files)
    if sizes["num_layers"] != 1:
        raise CheckpointError(
            f"{files.config_file}: key 'num_hidden_layers' is {sizes['num_layers']}, expected 1, the one layer that "
            f"flat EAGLE-3 heads have; several are read from speculators' layout alone."
        )
    if may_have(files, "use_aux_hidden_state", bool, below) is False:
        raise CheckpointError(
            f"{files.config_file}: eagle_config has use_aux_hidden_state: false, so the head fuses no features of "
            f"several layers; no drafter here is such a network."
        )
    above = {flag: below[alias] for flag, alias in _ALIASES.items() if alias in below}
    features = may_have(files, "num_aux_hidden_states", int)
    return Said(sizes, read_flags(files, below, above, files.config), ids, read_as, features)


def _meant(files: Files, ids: list[int], target: Target, producer: Convention | None) -> Convention | None:
    """What explicit ids are (eagle.md 2.3): as a file of ours says, or its producer; else the usual triple tells.

    SGLang takes ids that begin with 1 for layers' outputs. None for others: the same words, two meanings.
    """
    said = may_have(files, CONVENTION, str, nested(files))
    if said not in (None, *CONVENTIONS[1:]):
        raise CheckpointError(
            f"{files.config_file}: eagle_config has {CONVENTION}: {said!r}, expected 'boundary' or 'layer_output'."
        )
    if said is not None or producer is not None:
        return producer if said is None else convention(said)
    if ids == usual_taps(target):
        return "boundary"
    if any(key in nested(files) for key in _OF_MODELOPT):
        return None
    return "layer_output" if ids[0] == 1 else None


# -- writing -----------------------------------------------------------------------------------------------------------


def called(native: str) -> str:
    """A native name as flat layouts write it."""
    return Names((MIDLAYER,))(native)


def checked_flat(drafter: Drafter, format: str) -> Eagle3Body:
    """The drafter. Raises UsageError for what no flat layout holds."""
    body = checked(drafter, format)
    config = body.config
    for what, wrong in (
        (f"num_layers={config.num_layers}", config.num_layers != 1),
        ("qk_norm=True", config.qk_norm),
        (f"sliding_window={config.sliding_window}", config.sliding_window is not None),
    ):
        if wrong:
            raise UsageError(
                f"{drafter.spec}: {format} holds one layer that sees all of the text without norms, not {what}; "
                f"write it as 'speculators-eagle3'."
            )
    return body


def checked_plain(drafter: Drafter, format: str) -> Eagle3Body:
    """The drafter. Raises UsageError for what a layout without norm flags and aux layers does not hold."""
    body = checked_flat(drafter, format)
    flags = [flag for flag in (*FLAGS, "attention_bias") if getattr(body.config, flag)]
    if flags:
        raise UsageError(
            f"{drafter.spec}: {format} has no word for {flags[0]}; write it as 'specforge-eagle3' or "
            f"'speculators-eagle3'."
        )
    if list(body.taps) != usual_taps(drafter.target):
        raise UsageError(
            f"{drafter.spec}: {format} has no word for taps, and means {usual_taps(drafter.target)}, not "
            f"{list(body.taps)}; write it as 'specforge-eagle3' or 'speculators-eagle3'."
        )
    return body


def check_embedding(body: Eagle3Body, format: str) -> None:
    """Raise UsageError for a drafter with an embedding of its own, which the layout leaves out."""
    if body.config.embedding == "own":
        raise UsageError(
            f"{body.spec}: {format} leaves out the embedding, and this drafter's is its own; write it as "
            f"'torchspec-eagle3' or 'speculators-eagle3'."
        )


def flat_config(section: Mapping[str, Any], body: Eagle3Body, format: str, architecture: str) -> dict[str, Any]:
    """A section in the words that all flat layouts share; rotary positions as the config that was read has them."""
    width, origin = section["target_hidden_size"], origin_in(body, format)
    return {
        "architectures": [architecture],
        "model_type": "llama",
        **write_llama(section, None if origin is None else origin.files.config),
        "draft_vocab_size": section["draft_vocab_size"],
        "max_position_embeddings": body.target.max_positions,
        "tie_word_embeddings": False,
        "torch_dtype": str(body.storage_dtype).removeprefix("torch."),
        **({} if width == section["hidden_size"] else {"target_hidden_size": width}),
    }


def aux_config(section: Mapping[str, Any], body: Eagle3Body, format: str) -> dict[str, Any]:
    """Norm flags and aux layers as SpecForge writes them, each where the config that was read has it."""
    origin = origin_in(body, format)
    read_as = "layer_output" if origin is None else origin.taps_as
    if read_as == "layer_output" and min(section["taps"]) < 1:
        raise UsageError(
            f"{body.spec}: {format} counts layers by their outputs, and boundary 0 is none; write it as "
            f"'speculators-eagle3'."
        )
    ids = [tap - (read_as == "layer_output") for tap in section["taps"]]
    always = {"fc_norm": section["fc_norm"], "norm_output": section["norm_output"]}
    flags = {**always, **{flag: True for flag in FLAGS if section[flag]}}
    config = {} if origin is None else origin.files.config
    below = config.get("eagle_config") or {}
    inside = {"use_aux_hidden_state": True, CONVENTION: read_as, **{k: v for k, v in flags.items() if k in below}}
    outside = {key: value for key, value in flags.items() if key not in below}
    if config.get(IDS) and not below.get(IDS):
        return {**outside, IDS: ids, "eagle_config": inside}
    return {**outside, "eagle_config": {IDS: ids, **inside}}
