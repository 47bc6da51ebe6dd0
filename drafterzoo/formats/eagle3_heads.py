"""What layouts of EAGLE-3 heads share: flags, aux layers and vocabulary of a config against the tensors beside it.

Source: eagle.md 1.2, 1.3, 2 and 5. Knows our names of an EAGLE-3 head, and the words that all these configs have in
common; where a layout writes them, how it begins its tensors' names and what it leaves out is the layout's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from drafterzoo.drafters.base import Drafter
from drafterzoo.drafters.eagle3_body import Eagle3Body
from drafterzoo.errors import CheckpointError, UsageError
from drafterzoo.formats.base import Convention, Files, Translated
from drafterzoo.formats.binding import EMBEDDING, HEAD, check_bare, check_made_for, may_have
from drafterzoo.formats.names import Names
from drafterzoo.target.target import Target
from drafterzoo.wording import quantity

IDS = "eagle_aux_hidden_state_layer_ids"
FLAGS = ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual")
_BEHIND = {"fc_norm": "fc_norm.0.weight", "norm_before_fc": "input_norm.weight"}  # flags that come with tensors
_MAPS = {"d2t": (torch.int64, torch.int32), "t2d": (torch.bool,)}


@attrs.frozen
class Said:
    """What a layout's config says of a head.

    sizes: of one decoder, as llama_config.read_llama gives them, and which norms its queries have. flags: all of FLAGS.
    ids: the aux layers, None where the file is silent; read_as: what they mean, None where the file does not tell.
    features: how many features are fused, None where only ids or convention say so.
    """

    sizes: dict[str, Any]
    flags: dict[str, bool]
    ids: list[int] | None = None
    read_as: Convention | None = "boundary"
    features: int | None = None


def usual_taps(target: Target) -> list[int]:
    """The boundaries 2, L//2 and L-3: what a config without aux layers means, as everybody's code counts them."""
    layers = target.num_layers
    return sorted({tap for tap in (2, layers // 2, layers - 3) if 0 <= tap < layers})


def read_ids(files: Files, *tables: Mapping[str, Any]) -> list[int] | None:
    """The aux layers of the first table that has them. Raises CheckpointError for what is no ascending list of them."""
    for table in tables:
        ids = table.get(IDS)
        if ids is None or ids == []:
            continue
        if not isinstance(ids, list) or any(type(one) is not int or one < 0 for one in ids):
            wanted = "a list of layers' numbers from 0"
        elif ids != sorted(set(ids)):
            wanted = "each layer once and in ascending order, in which features are fused"
        else:
            return ids
        raise CheckpointError(f"{files.config_file}: key {IDS!r} is {ids!r}, expected {wanted}; correct it.")
    return None


def read_flags(
    files: Files, *tables: Mapping[str, Any], otherwise: Mapping[str, bool] | None = None
) -> dict[str, bool]:
    """FLAGS, each of the first table that has it; `otherwise` says those that no table has, false if it does not."""
    found = {}
    for flag in FLAGS:
        said = [may_have(files, flag, bool, table) for table in tables]
        silent = (otherwise or {}).get(flag, False)
        found[flag] = next((value for value in said if value is not None), silent)
    return found


def translated(files: Files, target: Target, names: Names, said: Said, ignored: tuple[str, ...] = ()) -> Translated:
    """A head in our words. ignored: names in the file of what a drafter does not hold.

    Raises CheckpointError for a config and tensors that do not belong together.
    """
    tensors = {key: value for key, value in names.native(files).items() if names(key) not in ignored}
    width = may_have(files, "target_hidden_size", int) or said.sizes["hidden_size"]
    check_made_for(files, target, vocab_size=said.sizes["vocab_size"], hidden_size=width)
    section = {**said.sizes, **said.flags, "target_hidden_size": width}
    further = said.read_as == "layer_output"
    section["taps"] = usual_taps(target) if said.ids is None else [one + further for one in said.ids]
    section["draft_vocab_size"] = _rows(files, names, tensors, section)
    _check_flags(files, names, tensors, said.flags)
    _check_features(files, names, tensors, section, said, target)
    _check_lent(files, names, tensors, section, target)
    identity = _identity_maps(files, names, tensors, section)
    return Translated(
        "eagle3.1" if said.flags["fc_norm"] and said.flags["norm_output"] else "eagle3",
        section,
        {key: value for key, value in tensors.items() if key not in identity},
        names,
        (*ignored, *map(names, identity)),
        said.read_as,
        said.ids is not None,
    )


def _rows(files: Files, names: Names, tensors: Mapping[str, Tensor], section: Mapping[str, Any]) -> int:
    """The size of the draft vocabulary: the head's rows, which a config may say, too (eagle.md 6.3)."""
    config, vocabulary = may_have(files, "draft_vocab_size", int), section["vocab_size"]
    if HEAD not in tensors:
        return config or vocabulary
    shape = list(tensors[HEAD].shape)
    if len(shape) != 2 or shape[1] != section["hidden_size"] or config not in (None, shape[0]) or shape[0] > vocabulary:
        wanted = config or f"at most {vocabulary}"
        raise CheckpointError(
            f"{files.weights_file}: tensor {names(HEAD)!r} has shape {shape}, expected [{wanted}, "
            f"{section['hidden_size']}] by draft_vocab_size, vocab_size and hidden_size of config.json; the two files "
            f"do not belong together."
        )
    return shape[0]


def _check_flags(files: Files, names: Names, tensors: Mapping[str, Tensor], flags: Mapping[str, bool]) -> None:
    """Raise CheckpointError for a flag without its norm, or a norm without its flag (eagle.md 5, row 4)."""
    for flag, key in _BEHIND.items():
        if flags[flag] and key not in tensors:
            raise CheckpointError(
                f"{files.config_file}: key {flag!r} is true, but {files.weights_file} holds no {names(key)!r}; "
                f"the norm was dropped when it was saved, take the checkpoint from where it was trained."
            )
        if not flags[flag] and key in tensors:
            raise CheckpointError(
                f"{files.weights_file}: holds {names(key)!r}, but {files.config_file} does not say {flag!r}: true; "
                f"correct the config, or download both again."
            )


def _check_features(
    files: Files,
    names: Names,
    tensors: Mapping[str, Tensor],
    section: Mapping[str, Any],
    said: Said,
    target: Target,
) -> None:
    """Raise CheckpointError unless `fc` reads as many features as there are aux layers, all of them the target's."""
    taps, width = section["taps"], section["target_hidden_size"]
    stated = f"{IDS} says {said.ids}" if said.ids is not None else f"{target.name} has the usual boundaries {taps}"
    if said.features not in (None, len(taps)):
        raise CheckpointError(
            f"{files.config_file}: num_aux_hidden_states is {said.features}, but {stated}; correct one of them."
        )
    if max(taps) > target.num_layers:
        raise CheckpointError(
            f"{files.config_file}: {IDS} says {said.ids}, but {target.name} has {target.num_layers} layers; load "
            f"it with the target it was trained for."
        )
    wanted = [section["hidden_size"], len(taps) * width]
    shape = list(tensors["fc.weight"].shape) if "fc.weight" in tensors else wanted
    if shape != wanted:
        raise CheckpointError(
            f"{files.weights_file}: tensor {names('fc.weight')!r} has shape {shape}, expected {wanted}, {len(taps)} "
            f"features of width {width}, since {stated}; the head is for another target, or the config is wrong."
        )


def _check_lent(
    files: Files, names: Names, tensors: Mapping[str, Tensor], section: Mapping[str, Any], target: Target
) -> None:
    """Raise CheckpointError where head or embedding is missing and cannot be the target's (eagle.md 2.1)."""
    rows, vocabulary = section["draft_vocab_size"], section["vocab_size"]
    if HEAD not in tensors and rows < vocabulary:
        raise CheckpointError(
            f"{files.weights_file}: tensor {names(HEAD)!r} is missing, and a head over {rows} of {vocabulary} tokens "
            f"cannot be the target's; the checkpoint is incomplete, download or save it again."
        )
    if section["hidden_size"] == section["target_hidden_size"]:
        _check_tied(files, names, tensors, target)
        return
    for key in (HEAD, EMBEDDING):
        if key not in tensors:
            raise CheckpointError(
                f"{files.weights_file}: tensor {names(key)!r} is missing, and {target.name}'s own is "
                f"{section['target_hidden_size']} wide where the drafter is {section['hidden_size']}; "
                f"the checkpoint is incomplete, download or save it again."
            )


def _check_tied(files: Files, names: Names, tensors: Mapping[str, Tensor], target: Target) -> None:
    """Raise CheckpointError where saving dropped a head that is the drafter's own embedding, and not the target's head.

    Beside a head of its own the flag means nothing: it is often a tied target's (eagle.md 5, row 7).
    """
    if HEAD in tensors or EMBEDDING not in tensors or files.config.get("tie_word_embeddings") is not True:
        return
    own, theirs = tensors[EMBEDDING], target.head_weight()
    if own.shape != theirs.shape or not torch.equal(own, theirs.detach().to("cpu", own.dtype)):
        raise CheckpointError(
            f"{files.weights_file}: tensor {names(HEAD)!r} is missing, and tie_word_embeddings says that it is "
            f"{names(EMBEDDING)!r}, which is not {target.name}'s head; save it again with a head of its own."
        )


def _identity_maps(
    files: Files, names: Names, tensors: Mapping[str, Tensor], section: Mapping[str, Any]
) -> tuple[str, ...]:
    """The maps that say nothing: those of a whole vocabulary. Raises CheckpointError for missing and impossible ones.

    Whether a reduced vocabulary's maps agree is checked with the drafter (headed.check_maps).
    """
    rows, vocabulary = section["draft_vocab_size"], section["vocab_size"]
    for key, dtypes in _MAPS.items():
        wanted = [rows if key == "d2t" else vocabulary]
        if key in tensors and list(tensors[key].shape) != wanted:
            raise CheckpointError(
                f"{files.weights_file}: tensor {names(key)!r} has shape {list(tensors[key].shape)}, expected {wanted} "
                f"by the head's rows and vocab_size; it is of another vocabulary, perhaps one without padding."
            )
        if key in tensors and tensors[key].dtype not in dtypes:
            raise CheckpointError(
                f"{files.weights_file}: tensor {names(key)!r} is {tensors[key].dtype}, expected {dtypes[0]}; it was "
                f"cast with the floats, save it again without."
            )
        if rows < vocabulary and key not in tensors:
            raise CheckpointError(
                f"{files.weights_file}: tensor {names(key)!r} is missing, so nobody knows which of {vocabulary} tokens "
                f"the head proposes in its {quantity(rows, 'row')}; download or save the checkpoint again."
            )
    if rows < vocabulary:
        return ()
    none, every = torch.zeros(1), torch.ones(1)
    if tensors.get("d2t", none).any() or not tensors.get("t2d", every).all():
        raise CheckpointError(
            f"{files.weights_file}: the head has a row for each of {vocabulary} tokens, but d2t or t2d says otherwise; "
            f"expected no maps, or d2t of zeros and t2d all true."
        )
    return tuple(key for key in _MAPS if key in tensors)


# -- writing -----------------------------------------------------------------------------------------------------------


def checked(drafter: Drafter, format: str) -> Eagle3Body:
    """The drafter, which is of EAGLE-3's network. Raises UsageError for another, and for taps that have no layer id."""
    check_bare(drafter)
    if not isinstance(drafter, Eagle3Body):
        raise UsageError(f"{drafter.spec}: {format} holds heads of EAGLE-3; expected one of 'eagle3', 'eagle3.1'.")
    if max(drafter.taps) > drafter.target.num_layers:
        raise UsageError(
            f"{drafter.spec}: taps {list(drafter.taps)} name the boundary after the final norm, which {format} has no "
            f"layer id for; save it with save_pretrained."
        )
    return drafter


def identity_maps(drafter: Eagle3Body) -> dict[str, Tensor]:
    """The maps of a whole vocabulary, for layouts that always have them; none where the drafter has its own."""
    size = drafter.config.vocab_size
    if drafter.vocabulary is not None:
        return {}
    return {"d2t": torch.zeros(size, dtype=torch.int64), "t2d": torch.ones(size, dtype=torch.bool)}
