"""Which target ids the draft vocabulary holds: the most frequent ones in the answers (eagle.md 3.2).

Knows counts; nothing of drafters. Must be fixed before training, since the rows of the head depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def frequent_ids(answers: Iterable[Sequence[int]], size: int, vocab_size: int, always: Sequence[int] = ()) -> Tensor:
    """The `size` most frequent ids of `answers`, ascending; `always` (stop tokens) are in it whatever their count.

    Ties go to the smaller id, and ids that never occur fill up from the smallest when there are too few.
    """
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for answer in answers:
        counts += torch.bincount(torch.tensor(answer, dtype=torch.int64), minlength=vocab_size)
    for id_ in always:
        counts[id_] = torch.iinfo(torch.int64).max
    return counts.sort(descending=True, stable=True).indices[:size].sort().values


def coverage(answers: Iterable[Sequence[int]], ids: Tensor, vocab_size: int) -> float:
    """Share of the answers' tokens that the draft vocabulary can propose: no drafter with it can do better."""
    inside = torch.zeros(vocab_size, dtype=torch.bool).index_fill_(0, ids.cpu(), True)
    hits = total = 0
    for answer in answers:
        hits += int(inside[torch.tensor(answer, dtype=torch.int64)].sum())
        total += len(answer)
    return hits / max(total, 1)
