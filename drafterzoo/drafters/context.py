"""A drafter's own K/V memory: committed rows that stay, drafted rows that live for one round.

Knows slots and tensors; nothing of layers' arithmetic, of trees' shape or of any drafter. The drafted rows stand
*before* the committed ones in the buffer, so that the mask of a drafted row is two blocks side by side whatever the
lengths are:

    slot 0 .. scratch-1      rows drafted in this round (overwritten every round: eagle.md 4.1)
    slot scratch             where padding rows are written, never read
    slot scratch+1+t         committed row t
"""

from __future__ import annotations

import torch
from torch import Tensor


class ContextCache:
    """Keys and values of one drafter for n requests.

    keys, values: per layer [n, kv_heads, scratch+1+capacity, head_dim]; lengths [n]: committed rows held.
    """

    def __init__(
        self,
        n: int,
        capacity: int,
        scratch: int,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.scratch = scratch
        self.first = scratch + 1
        shape = (n, kv_heads, self.first + capacity, head_dim)
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
        self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
        self.lengths = torch.zeros(n, dtype=torch.int64, device=device)
        self.longest = 0
        self._requests = torch.arange(n, device=device)[:, None]

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (*self.keys, *self.values))

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store k and v [n, kv_heads, R, head_dim] at slots [n, R]."""
        self.keys[layer][self._requests, :, slots] = k.transpose(1, 2)
        self.values[layer][self._requests, :, slots] = v.transpose(1, 2)

    def committed_slots(self, positions: Tensor, valid: Tensor) -> Tensor:
        """Slots [n, R] of committed rows at `positions`; padding goes to the slot that nobody reads."""
        return torch.where(valid, positions + self.first, self.scratch)

    def committed(self, layer: int) -> tuple[Tensor, Tensor]:
        """Views [n, kv_heads, longest, head_dim] of the committed rows."""
        end = self.first + self.longest
        return self.keys[layer][:, :, self.first : end], self.values[layer][:, :, self.first : end]

    def everything(self, layer: int) -> tuple[Tensor, Tensor]:
        """Views of drafted and committed rows, in the order `drafted_mask` describes."""
        end = self.first + self.longest
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]

    def committed_mask(self, positions: Tensor, valid: Tensor) -> Tensor:
        """Causal mask [n, R, longest] of committed rows; padding rows see row 0 so that their softmax is defined."""
        slots = torch.arange(self.longest, device=positions.device)
        return slots <= torch.where(valid, positions, 0)[..., None]

    def drafted_mask(self, visible: Tensor) -> Tensor:
        """Mask [n, W, scratch+1+longest] of drafted rows.

        visible [n, W, seen]: which of the drafted rows in slots 0..seen-1 each row attends. All committed rows are
        visible.
        """
        n, width, seen = visible.shape
        drafted = torch.zeros(n, width, self.first, dtype=torch.bool, device=visible.device)
        drafted[:, :, :seen] = visible
        committed = torch.arange(self.longest, device=visible.device) < self.lengths[:, None]
        return torch.cat((drafted, committed[:, None].expand(n, width, self.longest)), dim=-1)

    def keep(self, requests: Tensor) -> None:
        """Keep only these requests, in this order."""
        self.keys = [k[requests] for k in self.keys]
        self.values = [v[requests] for v in self.values]
        self.lengths = self.lengths[requests]
        self._requests = self._requests[: len(requests)]
