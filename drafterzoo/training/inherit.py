"""A block drafter that begins as layers of its target: their weights copied, and their own input as its context.

Source: block.md 1.1, whose layers are a target's with keys and values of the context made from the fusion of the taps.
Knows a block drafter's layers and the target's; nothing of recipes or of how anything is trained.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from drafterzoo.drafters.block_body import BlockBody
from drafterzoo.errors import UsageError


@torch.no_grad()
def begin_as_layers(drafter: BlockBody, layers: Sequence[int]) -> None:
    """Copy the target's decoder layers of these numbers into the drafter's, in order.

    Where the taps are fused by a plain `fc`, it begins by passing on the tap nearest to what the first of these layers
    reads. Raises UsageError where there are not as many layers, or the target's have other tensors or shapes.
    """
    target = drafter.target
    if len(layers) != len(drafter.layers) or not all(0 <= index < target.num_layers for index in layers):
        raise UsageError(
            f"recipe [init]: target_layers is {list(layers)}, expected {len(drafter.layers)} numbers from 0 to "
            f"{target.num_layers - 1}, one for each layer of the drafter."
        )
    for own, index in zip(drafter.layers, layers, strict=True):
        weights, needed = target.layer_weights(index), own.state_dict()
        for key, value in needed.items():
            if key not in weights or weights[key].shape != value.shape:
                found = list(weights[key].shape) if key in weights else "none"
                raise UsageError(
                    f"recipe [init]: layer {index} of {target.name} has {found} as {key}, and the drafter's is "
                    f"{list(value.shape)}; give the drafter the target's widths, norms and biases, or leave out "
                    f"target_layers."
                )
        own.load_state_dict({key: weights[key].to(value.dtype) for key, value in needed.items()})
    fusion, norm = getattr(drafter, "fc", None), getattr(drafter, "hidden_norm", None)
    if isinstance(fusion, nn.Linear) and isinstance(norm, nn.RMSNorm):
        width = drafter.config.hidden_size
        nearest = min(range(len(drafter.taps)), key=lambda i: abs(drafter.taps[i] - layers[0]))
        fusion.weight.zero_()
        fusion.weight[:, nearest * width : (nearest + 1) * width] = torch.eye(width)
        norm.weight.copy_(target.layer_weights(layers[0])["input_layernorm.weight"])
