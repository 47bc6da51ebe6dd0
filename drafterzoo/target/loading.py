"""`load_target`: from a name, a folder or a loaded module to a Target ready to decode on this machine.

Knows transformers' loaders and where the embedded model lies; nothing of what is done with a target. Everything that
can be wrong with what the user typed is said here in one sentence.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from rich.markup import escape
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from drafterzoo.errors import CheckpointError, UsageError, suggest
from drafterzoo.progress import console
from drafterzoo.target import attention, embedded
from drafterzoo.target.packed import can_pack, pack_linears, packing_works, quickest_dense_rows
from drafterzoo.target.quiet import quiet_transformers
from drafterzoo.target.target import Target
from drafterzoo.wording import quantity, verb

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
_OF_NO_ACCOUNT = (
    ".masked_bias",
    ".attn.bias",
    ".attention.bias",
    ".inv_freq",
)  # constants that old versions saved among the weights
_MASKABLE = ("sdpa", "eager", attention.NAME)  # the attention functions that take a prepared additive mask


def load_target(
    name_or_path: str | os.PathLike[str] | nn.Module = embedded.NAME,
    *,
    revision: str | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    packed: bool | None = None,
    tokenizer: Any = None,
) -> Target:
    """Load the frozen model that drafters speculate for.

    name_or_path: "smollm2-135m" (embedded, no download), a Hub id, a folder, or a loaded causal LM (used as it is, and
        frozen). revision: of a Hub id. device: default CUDA where there is one. dtype: default float32 on CPU, the
        model's own elsewhere. packed: pre-pack linear layers for the CPU (machine.md 3); default: when the model is
        loaded here, in float32, on CPU, and torch can; True packs a module handed in, too (in place).
    tokenizer: a tokenizer, or where to load it from; default: the model's own, None when it has none.

    Raises UsageError or CheckpointError saying what to type instead.
    """
    if isinstance(name_or_path, nn.Module):
        return _from_module(name_or_path, device, dtype, bool(packed), tokenizer, revision)
    name = os.fspath(name_or_path)
    place = _place(device)
    kind = _dtype(dtype, place)
    if name == embedded.NAME:
        source, shown, revision = str(embedded.ensure_converted()), embedded.NAME, embedded.SOURCE_SHA256[:8]
    else:
        source, shown = _source(name), name
    with quiet_transformers(), _waiting(f"Loading {shown}"):
        model = _load_model(source, name, None if name == embedded.NAME else revision, kind)
        text = _load_tokenizer(tokenizer, source, None if name == embedded.NAME else revision)
        if model.config._attn_implementation == "sdpa" and getattr(model, "_supports_attention_backend", False):
            model.set_attn_implementation(attention.register())
        model = model.to(place)
    _pack(model, packed, shown)
    return Target(model, text, name=shown, revision=revision or getattr(model.config, "_commit_hash", None))


def _from_module(
    model: nn.Module, device: Any, dtype: Any, packed: bool, tokenizer: Any, revision: str | None
) -> Target:
    if device is not None:
        model = model.to(_place(device))
    if dtype is not None:
        model = model.to(_dtype(dtype, torch.device("cpu")))
    if getattr(getattr(model, "config", None), "_attn_implementation", "sdpa") not in _MASKABLE:
        cast(PreTrainedModel, model).set_attn_implementation("sdpa")
    if isinstance(tokenizer, str | os.PathLike):
        with quiet_transformers():
            tokenizer = _load_tokenizer(tokenizer, "", None)
    target = Target(model, tokenizer, revision=revision)  # refuses what cannot be a target before anything is changed
    if not packed:
        return target
    _pack(model, True, target.name)
    return Target(model, tokenizer, revision=revision)


def _pack(model: nn.Module, packed: bool | None, name: str) -> None:
    if packed is False:
        return
    possible = packing_works() and any(can_pack(module) for module in model.modules())
    if possible:
        dense_rows = quickest_dense_rows()
        pack_linears(model, dense_rows=dense_rows)
        if not dense_rows:  # else the dense weights are still needed, and stay in the mapped file
            _release_file(model)
    elif packed:
        raise UsageError(
            f"target: {name} cannot be packed, since packing needs float32 linear layers on a CPU and torch's oneDNN "
            f"operators; leave packed=True out."
        )


def _release_file(model: nn.Module) -> None:
    """Copy the parameters left dense: as views of the mapped file they would keep all of it resident."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def _place(device: str | torch.device | None) -> torch.device:
    try:
        chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise UsageError(f"device: {device!r} is not a device; type cpu, cuda or cuda:0.") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device: {str(chosen)!r} was asked for, but torch sees no CUDA here; type cpu.")
    return chosen


def _dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype | str:
    if dtype is None:
        return torch.float32 if device.type == "cpu" else "auto"
    if isinstance(dtype, torch.dtype):
        return dtype
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype not in known:
        raise UsageError(f"dtype: {dtype!r} is unknown{suggest(dtype, known)}; the choices are {', '.join(known)}.")
    return known[dtype]


def _source(name: str) -> str:
    """A Hub id as it is, a folder expanded; UsageError for a folder that is none."""
    path = Path(os.path.expanduser(name))
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UsageError(f"target: the folder {path} holds no config.json; give the folder of a saved causal LM.")
        return str(path)
    if name.startswith((".", "/", "~")) or path.exists():
        raise UsageError(f"target: {path} is not a folder; give the folder of a saved causal LM, or a Hub id org/name.")
    return name


def _load_model(source: str, name: str, revision: str | None, dtype: torch.dtype | str) -> Any:
    options: dict[str, Any] = {} if revision is None else {"revision": revision}
    # Sizes that differ are asked for, since what transformers raises for them says neither which nor where.
    options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, **options)
    except SafetensorError as error:
        raise CheckpointError(f"{source}: the weights are damaged ({error}); fetch the model again.") from error
    except Exception as error:  # a config can be wrong in as many ways as architectures read it
        raise _explain(error, name, revision) from error
    model, info = loaded
    _check_agreement(model, info, source)
    return model


def _check_agreement(model: Any, info: dict[str, Any], source: str) -> None:
    """Raise CheckpointError when weights and config.json tell of two models: transformers would make up a third."""
    kind = type(model).__name__
    missing = sorted(info["missing_keys"])
    unlike = sorted(info["mismatched_keys"])
    extra = sorted(key for key in info["unexpected_keys"] if not key.endswith(_OF_NO_ACCOUNT))
    if unlike:
        key, saved, made = unlike[0]
        raise CheckpointError(
            f"{source}: {quantity(len(unlike), 'weight')} {verb(len(unlike), 'has', 'have')} other sizes than "
            f"config.json says, {key!r} first, which is "
            f"{list(saved)} and by config.json {list(made)}; the two do not belong together, fetch the model again."
        )
    if missing:
        raise CheckpointError(
            f"{source}: {quantity(len(missing), 'weight')} {verb(len(missing), 'is', 'are')} missing, {missing[0]!r} "
            f"first, so this is not a whole {kind}; give "
            f"a causal LM saved with its output head, and the config.json it was saved with."
        )
    if extra:
        raise CheckpointError(
            f"{source}: {quantity(len(extra), 'weight')} {verb(len(extra), 'has', 'have')} no place in the {kind} of "
            f"config.json, {_some(extra)}; restore the "
            f"config.json that they were saved with (does it name too few layers?), or give load_target a loaded model."
        )
    if _tied_by_word_alone(model):
        raise CheckpointError(
            f"{source}: config.json says tie_word_embeddings, but the weights hold an output head of their own; set "
            f"it to false there to use that head, or take the head out of the weights."
        )


def _some(keys: list[str]) -> str:
    return ", ".join(map(repr, keys[:3])) + (", ..." if len(keys) > 3 else "")


def _tied_by_word_alone(model: Any) -> bool:
    """Whether the config ties the output head to the embedding, and what was loaded are two different matrices."""
    said = getattr(model.config.get_text_config(), "tie_word_embeddings", False)
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    if not said or head is None or not getattr(model, "_tied_weights_keys", None):
        return False
    return head.weight is not table.weight and not torch.equal(head.weight, table.weight)


def _explain(error: Exception, name: str, revision: str | None) -> UsageError:
    reason = " ".join(str(error).split())
    if not isinstance(error, OSError | ValueError | ImportError):
        reason = f"{type(error).__name__}: {reason}"  # whose text alone may be no more than a key
    if "AutoModelForCausalLM" in reason:
        return UsageError(
            f"target: {name} is not a causal LM (its config is of another kind of model); give a decoder-only "
            f"language model, or leave the name out for the embedded {embedded.NAME}."
        )
    at = f" at revision {revision}" if revision else ""
    return UsageError(
        f"target: {name!r}{at} cannot be loaded{suggest(name, [embedded.NAME])} ({reason[:160]}); "
        f"type {embedded.NAME}, a Hub id org/name (log in with `hf auth login` where it is private), or a folder."
    )


def _load_tokenizer(tokenizer: Any, source: str, revision: str | None) -> Any:
    if tokenizer is not None and not isinstance(tokenizer, str | os.PathLike):
        return tokenizer
    options = {} if tokenizer is not None or revision is None else {"revision": revision}
    try:
        return AutoTokenizer.from_pretrained(os.fspath(tokenizer or source), **options)
    except Exception as error:
        if tokenizer is None:
            _check_absent(source, error)
            return None  # a model without tokenizer still answers token ids
        raise UsageError(f"tokenizer: {tokenizer!s} holds none; give a folder or Hub id that does.") from error


def _check_absent(source: str, error: Exception) -> None:
    """Raise CheckpointError when a folder does hold a tokenizer, which then is damaged: nobody wants to go on without.

    One that this installation lacks a package for is as good as none.
    """
    found = [name for name in _TOKENIZER_FILES if (Path(source) / name).is_file()]
    if found and not isinstance(error, ImportError):
        reason = " ".join(str(error).split())[:160]
        raise CheckpointError(
            f"{source}: its tokenizer ({', '.join(found)}) cannot be read ({type(error).__name__}: {reason}); "
            f"fetch it again, or give another with tokenizer=..."
        ) from error


@contextmanager
def _waiting(what: str) -> Iterator[None]:
    if not console.is_terminal:
        yield
        return
    with console.status(escape(what)):
        yield
