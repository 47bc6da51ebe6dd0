"""What a round asks of the target: prompts read, a tree read and judged, a path kept. `Live` asks the target itself.

Knows the target, its cache and verification; nothing of drafters, budgets, counters or of the order of a round. The
other source is a text that the target has already given (engine/replay.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from drafterzoo.engine.contract import DraftTree, Verdict
from drafterzoo.engine.sampling import Sampler
from drafterzoo.engine.tree import ancestors, bare_tree
from drafterzoo.engine.verify import verify
from drafterzoo.target.target import Reading, Target


class Source(Protocol):
    """Where the truth of n requests comes from. The sampler handed in has begun the round."""

    def prefill(self, sampler: Sampler) -> tuple[Reading, Tensor]:
        """The prompts, left-padded, with their features; and the first token [n] of every answer."""
        ...

    def read(self, tree: DraftTree, tokens: Tensor, sampler: Sampler, depth: int) -> Reading:
        """The root and all nodes, tokens [n, 1+B], as the target reads them."""
        ...

    def judge(self, reading: Reading, tree: DraftTree, sampler: Sampler, depth: int) -> Verdict:
        """The verdict on the tree that was read last."""
        ...

    def along(self, reading: Reading, path: Tensor, roots: Tensor) -> Tensor:
        """Features [n, A, T*H] of the path [n, A] below the roots [n], root first; past the accepted nodes anything."""
        ...

    def commit(self, path: Tensor, accepted: Tensor) -> None:
        """Make the first accepted [n] + 1 of the path's rows context; -1 commits nothing."""
        ...

    def keep(self, requests: Tensor) -> None:
        """Keep only these requests, in this order."""
        ...


class Live:
    """The target itself: one forward per tree, a K/V cache, the sampler's rule. Raises UsageError without memory."""

    def __init__(
        self, target: Target, prompts: Sequence[Sequence[int]], capacity: int, nodes: int, taps: tuple[int, ...]
    ) -> None:
        self.target, self.prompts, self.taps = target, prompts, taps
        self.cache = target.open_cache(len(prompts), capacity, 1 + nodes)

    def prefill(self, sampler: Sampler) -> tuple[Reading, Tensor]:
        reading = self.target.prefill(self.cache, self.prompts, self.taps)
        assert reading.logits is not None
        last = bare_tree(len(self.prompts), self.target.device)
        return reading, verify(reading.logits[:, -1:], last, sampler, 0).next_token

    def read(self, tree: DraftTree, tokens: Tensor, sampler: Sampler, depth: int) -> Reading:
        positions = sampler.roots[:, None] + torch.cat((torch.zeros_like(tokens[:, :1]), tree.depths), dim=1)
        # A node past the model's last position may be drafted; max_new_tokens sees to it that none is ever kept.
        positions = positions.clamp(max=self.target.max_positions - 1)
        return self.target.verify(self.cache, tokens, positions, ancestors(tree, depth), self.taps)

    def judge(self, reading: Reading, tree: DraftTree, sampler: Sampler, depth: int) -> Verdict:
        assert reading.logits is not None
        return verify(reading.logits, tree, sampler, depth)

    def along(self, reading: Reading, path: Tensor, roots: Tensor) -> Tensor:
        return reading.features.gather(1, path[..., None].expand(-1, -1, reading.features.shape[-1]))

    def commit(self, path: Tensor, accepted: Tensor) -> None:
        self.target.commit(self.cache, path, accepted)

    def keep(self, requests: Tensor) -> None:
        self.cache.keep(requests)
