"""Finding a causal LM's decoder, and reading its residual stream at chosen boundaries.

Knows nothing of caches, tokens or drafters. A boundary b (eagle.md 0.3) is the residual entering decoder layer b for
b < L, the input of the final norm for b = L, and its output for b = L+1. Boundaries are captured by hooks that exist
only while a forward asks for them, so a forward without taps pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from drafterzoo.errors import UsageError
from drafterzoo.wording import quantity

_LAYER_NAMES = ("layers", "h", "blocks")
_NORM_NAMES = ("norm", "ln_f", "final_layer_norm", "final_layernorm", "norm_f")


@attrs.frozen(eq=False)
class Decoder:
    """The parts of a causal LM that taps need: `trunk` returns `last_hidden_state`, normed by `norm` after `layers`."""

    trunk: nn.Module
    layers: Sequence[nn.Module]
    norm: nn.Module

    @contextmanager
    def capture(self, taps: Sequence[int]) -> Iterator[dict[int, Tensor]]:
        """Collect the residual [n, Q, H] at each boundary of `taps` from the forwards run inside the block."""
        seen: dict[int, Tensor] = {}
        with ExitStack() as hooks:
            for boundary in set(taps):
                hooks.callback(self._listen(boundary, seen).remove)
            yield seen

    def _listen(self, boundary: int, seen: dict[int, Tensor]) -> Any:
        if boundary > len(self.layers):

            def after(module: nn.Module, args: tuple, output: Tensor) -> None:
                seen[boundary] = output

            return self.norm.register_forward_hook(after)

        def before(module: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> None:
            seen[boundary] = args[0] if args else kwargs["hidden_states"]

        module = self.norm if boundary == len(self.layers) else self.layers[boundary]
        return module.register_forward_pre_hook(before, with_kwargs=True)

    def check(self, taps: Sequence[int], name: str) -> None:
        """Raise UsageError when a tap is not a boundary of this decoder."""
        for tap in taps:
            if not 0 <= tap <= len(self.layers) + 1:
                raise UsageError(
                    f"taps: boundary {tap} does not exist in {name}, which has {quantity(len(self.layers), 'layer')}; "
                    f"boundaries run from 0 to {len(self.layers) + 1}."
                )


def join(seen: Mapping[int, Tensor], taps: Sequence[int]) -> Tensor:
    """Concatenate captured boundaries in tap order: T of [n, Q, H] become [n, Q, T*H]."""
    parts = [seen[tap] for tap in taps]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def find_decoder(model: nn.Module, name: str) -> Decoder:
    """Find the decoder, its layer list and its final norm in any Hugging Face causal LM.

    Raises UsageError when the module is built otherwise.
    """
    for trunk in _candidates(model):
        layers = _first(trunk, _LAYER_NAMES, nn.ModuleList)
        norm = _first(trunk, _NORM_NAMES, nn.Module)
        if layers is not None and norm is not None:
            return Decoder(trunk=trunk, layers=layers, norm=norm)
    raise UsageError(
        f"target: the architecture of {name} ({type(model).__name__}) is not understood, since no decoder with a "
        f"layer list ({', '.join(_LAYER_NAMES)}) and a final norm ({', '.join(_NORM_NAMES)}) was found; "
        f"use a decoder-only causal LM such as Llama, Qwen3, Gemma-3 or Mixtral."
    )


def _candidates(model: nn.Module) -> Iterator[nn.Module]:
    get_decoder = getattr(model, "get_decoder", None)
    if callable(get_decoder):
        found = get_decoder()
        if isinstance(found, nn.Module):
            yield found
    base = getattr(model, "base_model", None)
    if isinstance(base, nn.Module):
        yield base
        for child in ("decoder", "language_model", "model"):
            inner = getattr(base, child, None)
            if isinstance(inner, nn.Module):
                yield inner


def _first(module: nn.Module, names: Sequence[str], kind: type) -> Any:
    return next((part for n in names if isinstance(part := getattr(module, n, None), kind)), None)
