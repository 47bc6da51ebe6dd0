"""The objective `e2e_tv`: end-to-end total variation, the share of a block that is expected to be accepted (DFly).

Source: block.md 5.3. Knows nothing beside what objectives of block drafters share.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import attrs
import torch
from torch import Tensor

from drafterzoo.drafters.base import Drafter
from drafterzoo.training.mixed import Mix
from drafterzoo.training.objectives.base import TrainingBatch
from drafterzoo.training.objectives.block import BlockObjective, Judged


@attrs.frozen(kw_only=True)
class EndToEnd(BlockObjective):
    """Options of the objective. A block's loss is 1 - mean over its depths of the overlaps multiplied up to each.

    Depths are weighed by nothing else, so `weights` is "even"; what is not judged overlaps wholly, and counts nothing.
    """

    called: ClassVar[str] = "e2e_tv"

    name: Literal["e2e_tv"] = "e2e_tv"
    weights: Literal["even"] = "even"

    def mix(self) -> Mix:
        return Mix(tv=1.0)

    def total(self, drafter: Drafter, batch: TrainingBatch, unrolled: list[Tensor], judged: Judged) -> Tensor:
        counts = judged.by_block(judged.weight, 0.0)
        overlap = judged.by_block(1.0 - judged.losses.loss, 1.0)
        reached = torch.where(counts > 0, overlap, 1.0).cumprod(-1)
        held = counts.sum(-1)
        accepted = (reached * counts).sum(-1) / held.clamp(min=1e-6)
        full = held > 0
        return ((1.0 - accepted) * full).sum() / full.sum().clamp(min=1)
