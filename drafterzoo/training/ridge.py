"""A closed-form start for `fc`: the untrained drafter then already predicts the target's next final hidden state.

Knows a recurrent body's `fc`, and ridge regression; nothing of training steps or of norms. [our design, eagle.md and
machine.md 4]: with o_proj and down_proj small, what the head reads is about what fc gives, after the final norm where
there is one, and should be the target's final-normed hidden at t+1.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from drafterzoo.drafters.recurrent import RecurrentBody
from drafterzoo.training.features import Document


@torch.no_grad()
def ridge_start(drafter: RecurrentBody, documents: Iterable[Document], rows: int, *, strength: float = 1e-3) -> None:
    """Solve fc over the first `rows` rows of `documents`, and shrink the block to a tenth.

    The regression target is the final hidden state with each channel at unit scale; `begin_with` multiplies that scale
    back in.
    """
    inputs, outputs, square, seen = _moments(drafter, documents, rows)
    gain = (square / max(seen, 1)).sqrt().clamp(min=1e-6)
    weight = torch.linalg.solve(
        inputs + strength * inputs.diagonal().mean() * torch.eye(len(inputs)).to(inputs), outputs / gain
    )
    explained = (weight * (inputs @ weight)).sum() / (max(seen, 1) * len(gain))
    drafter.begin_with(weight.T, gain, float(explained))
    for layer in drafter.layers:
        layer.self_attn.o_proj.weight.mul_(0.1)
        layer.mlp.down_proj.weight.mul_(0.1)


def _moments(drafter: RecurrentBody, documents: Iterable[Document], rows: int) -> tuple[Tensor, Tensor, Tensor, int]:
    """X'X, X'Y, the sum of Y*Y per channel in float64, and the rows seen.

    X feeds fc at row t, Y is the final hidden at t+1.
    """
    like = drafter.fc.weight
    (height, width), zeros = like.shape, like.new_zeros
    xx, xy, yy = zeros(width, width).double(), zeros(width, height).double(), zeros(height).double()
    seen = 0
    for document in documents:
        x = drafter.fc_rows(document.features[:-1].to(like), document.tokens[1:].to(like.device)).double()
        y = document.hidden[1:].to(xy)
        xx += x.T @ x
        xy += x.T @ y
        yy += y.square().sum(0)
        seen += len(x)
        if seen >= rows:
            break
    return xx, xy, yy, seen
