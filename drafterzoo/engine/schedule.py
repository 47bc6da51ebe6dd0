"""How many drafts of each request are worth verifying, by what verifying costs here: DSpark's prefix scheduler.

Source: block.md 3.2 (DSpark, arXiv 2607.05147, algorithm 1). Knows the chances that a drafter's confidence head gives,
and measured times of the target's forward; nothing of drafters, of trees' growth or of verification. A draft is taken
or left by what is known before it, never by its own token or a later one, so verification stays exact: drafts are
visited from the likeliest to be reached on, and the search ends at the first that does not pay.
"""

from __future__ import annotations

from itertools import pairwise

import attrs
import torch
from torch import Tensor

from drafterzoo.errors import UsageError


@attrs.frozen
class Throughput:
    """Measured seconds of one target forward over so many rows, all requests together, in ascending rows.

    Between two measurements times are interpolated, beyond the last they go on as between the last two.
    Raises UsageError for fewer than two measurements, or rows that do not ascend.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    def __attrs_post_init__(self) -> None:
        ascending = all(a < b for a, b in pairwise(self.rows))
        if len(self.rows) < 2 or len(self.rows) != len(self.seconds) or not ascending or self.rows[0] < 1:
            raise UsageError(
                f"throughput: rows={list(self.rows)} and {len(self.seconds)} times, expected two or more ascending "
                f"numbers of rows, each with its seconds; measure them with `drafterzoo doctor --profile`."
            )
        if not all(0 < s < float("inf") for s in self.seconds):
            raise UsageError(f"throughput: seconds={list(self.seconds)}, expected times above zero; measure them anew.")

    def rates(self, most: int, device: torch.device) -> Tensor:
        """Forwards per second [1+most] over 0, 1, ... `most` rows; no rows cost as much as one."""
        rows, seconds = torch.tensor(self.rows).double(), torch.tensor(self.seconds).double()
        asked = torch.arange(1 + most).double().clamp(min=1)
        right = torch.searchsorted(rows, asked).clamp(1, len(rows) - 1)
        low, high = rows[right - 1], rows[right]
        along = ((asked - low) / (high - low)).clamp(min=0)
        times = seconds[right - 1] + along * (seconds[right] - seconds[right - 1])
        return (1.0 / times.clamp(min=float(seconds.min()) * 0.5)).float().to(device)


def prefix_lengths(hopes: Tensor, valid: Tensor, rates: Tensor) -> Tensor:
    """How many drafts [n] of each request's chain to verify, as many rows as are chosen being what is paid for.

    hopes [n, G]: log of the chance that a draft and all before it are accepted; valid [n, G]; rates [1+n*(1+G)].
    """
    n, depth = hopes.shape
    reached = hopes.exp().masked_fill(~valid, 0.0)
    order = reached.flatten().sort(descending=True, stable=True)
    worth = rates.new_tensor(float(n)) + order.values.cumsum(0)
    gained = worth * rates[n + 1 : n + 1 + n * depth]
    before = torch.cat((n * rates[n : n + 1], gained[:-1]))
    taken = ((gained > before) & (order.values > 0)).to(torch.int64).cumprod(0)
    return torch.zeros_like(taken).scatter(0, order.indices, taken).view(n, depth).cumprod(1).sum(1)


def uniform_length(hopes: Tensor, valid: Tensor, rates: Tensor) -> Tensor:
    """How many drafts [n] to verify, the same for all requests: what is paid for in a batch without ragged rows."""
    n, depth = hopes.shape
    reached = hopes.exp().masked_fill(~valid, 0.0)
    worth = n + reached.sum(0).cumsum(0)
    at = n * torch.arange(1, depth + 2, device=hopes.device)
    gained = torch.cat((n * rates[at[:1]], worth * rates[at[1:]]))
    taken = (gained[1:] > gained[:-1]).to(torch.int64).cumprod(0).sum()
    return torch.minimum(taken.expand(n), valid.sum(1))


SCHEDULES = {"prefix": prefix_lengths, "uniform": uniform_length}
