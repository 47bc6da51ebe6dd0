"""Which target something was made with: what its fingerprint says, and whatever else its numbers depend on.

Knows targets and their weights; nothing of what is made with them.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from drafterzoo.target import embedded
from drafterzoo.target.packed import PackedLinear
from drafterzoo.target.target import Target

_SAMPLED = 4096  # values of each tensor: training and editing a model move nearly all of those that they touch


def target_identity(target: Target) -> dict[str, Any]:
    """The target's fingerprint, its dtype unless that is float32, and a sample of its weights.

    A folder's weights may change under its name, and so may those of a branch on the Hub; those of the embedded target
    are named by its revision.
    """
    made: dict[str, Any] = target.fingerprint()
    if target.dtype != torch.float32:
        made["dtype"] = str(target.dtype).removeprefix("torch.")
    if (target.name, target.revision) != (embedded.NAME, embedded.SOURCE_SHA256[:8]):
        made["weights"] = sampled_weights(target)
    return made


def sampled_weights(target: Target) -> str:
    """sha256 over every tensor's name and shape and up to so many values of it, the same for a packed target.

    One tensor at a time is unpacked, so that this costs a fraction of what loading does.
    """
    dense = dict(target.model.named_parameters(remove_duplicate=False))
    packed = {
        f"{name}.weight": module
        for name, module in target.model.named_modules(remove_duplicate=False)
        if isinstance(module, PackedLinear)
    }
    digest = hashlib.sha256()
    for name in sorted(dense.keys() | packed.keys()):
        weight: Tensor = packed[name].to_dense() if name in packed else dense[name].detach()
        flat = weight.reshape(-1)
        values = flat[:: -(-flat.numel() // _SAMPLED) or 1].to("cpu", torch.float32)
        digest.update(f"{name}{list(weight.shape)}".encode() + values.numpy().tobytes())
    return digest.hexdigest()
