"""A closed-form start for `fc`: the untrained drafter then already predicts the target's next final hidden state.

Knows an EAGLE-3 body's fusion and final norm, and ridge regression; nothing of training steps. [our design, eagle.md
and machine.md 4]: with o_proj and down_proj small, the drafter's output is about norm(fc(taps_t)), which should be the
target's final-normed hidden at t+1.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from drafterzoo.drafters.eagle3_body import Eagle3Body
from drafterzoo.training.features import Document


@torch.no_grad()
def ridge_start(drafter: Eagle3Body, documents: Iterable[Document], rows: int, *, strength: float = 1e-3) -> None:
    """Solve fc over the first `rows` rows of `documents`, set the final norm's scale, shrink the block to a tenth.

    The regression target is the final hidden state with each channel at unit scale. The final norm multiplies that
    scale back in, times the length of the prediction: what cannot be predicted must not make the head confident.
    """
    inputs, outputs, square, seen = _moments(drafter, documents, rows)
    gain = (square / max(seen, 1)).sqrt().clamp(min=1e-6)
    weight = torch.linalg.solve(
        inputs + strength * inputs.diagonal().mean() * torch.eye(len(inputs)).to(inputs), outputs / gain
    )
    explained = (weight * (inputs @ weight)).sum() / (max(seen, 1) * len(gain))
    drafter.norm.weight.copy_(gain * explained.sqrt())
    drafter.fc.weight.copy_(weight.T)
    for layer in drafter.layers:
        layer.self_attn.o_proj.weight.mul_(0.1)
        layer.mlp.down_proj.weight.mul_(0.1)


def _moments(drafter: Eagle3Body, documents: Iterable[Document], rows: int) -> tuple[Tensor, Tensor, Tensor, int]:
    """X'X, X'Y, the sum of Y*Y per channel in float64, and the rows seen.

    X feeds fc at row t, Y is the final hidden at t+1.
    """
    height, width = drafter.fc.weight.shape
    zeros = drafter.fc.weight.new_zeros
    xx, xy, yy = zeros(width, width).double(), zeros(width, height).double(), zeros(height).double()
    seen = 0
    for document in documents:
        x = drafter.fc_input(document.features[:-1].to(drafter.fc.weight)).double()
        y = document.hidden[1:].to(xy)
        xx += x.T @ x
        xy += x.T @ y
        yy += y.square().sum(0)
        seen += len(x)
        if seen >= rows:
            break
    return xx, xy, yy, seen
