"""Carryover: what the target thought of the drafts it rejected, kept as context for exactly one more round.

Source: methods.md 3 (Carryover Drafting, arXiv 2609.14717). Verifying a tree costs the target's states of every node;
those of rejected nodes are about the text that now follows, though not of it. They enter the next block through the
drafter's own fusion and context projections, and are replaced by the next round's. Knows the contract and a block
drafter's context rows; nothing of how a tree was grown or verified.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

import attrs
import torch
from torch import Tensor, nn

from drafterzoo.drafters.block_body import BlockBody, BlockState, Carried
from drafterzoo.engine.contract import REJECTED_ROWS, Committed
from drafterzoo.engine.tree import ancestors
from drafterzoo.errors import UsageError
from drafterzoo.wrappers.base import Wrapper
from drafterzoo.wrappers.carryover_options import MEANINGS

if TYPE_CHECKING:
    from drafterzoo.target.target import Target

MOST = 256  # rows: beyond, a slip of the keyboard


@attrs.frozen
class CarryoverConfig:
    """Options of Carryover (methods.md 3.2); what the paper leaves open is an option, and its default is ours.

    carry: rejected rows kept at most; 0: none, which is the bare drafter; None: as many as a block proposes. keep:
    which of a tree's, if there are more: those of the deepest rejected branch first, or the likeliest by path score; a
    chain has one branch. positions: where a row's keys stand: at the position that was verified, or at the next, of
    which a target's state tells. embedding: where the one learned vector that marks these rows is added: to the
    "taps", before they are fused, or to the fused "context". fresh: in training, the share of anchors without any.
    """

    carry: int | None = None
    keep: Literal["deepest", "likeliest"] = "deepest"
    positions: Literal["verified", "next"] = "verified"
    embedding: Literal["taps", "context"] = "taps"
    fresh: float = 0.25

    def __attrs_post_init__(self) -> None:
        if self.carry is not None and not 0 <= self.carry <= MOST:
            raise UsageError(f"carry={self.carry}, expected a whole number from 0 to {MOST}.")
        if not 0 <= self.fresh <= 1:
            raise UsageError(f"fresh={self.fresh}, expected a share from 0 to 1.")


class Carryover(Wrapper):
    """The target's states of the drafts it rejected, as context of the next round alone.

    One vector is learned beside what the drafter has. A tree is verified as before, and the text is the same.
    """

    name: ClassVar[str] = "carryover"
    Config: ClassVar[type] = CarryoverConfig
    needs: ClassVar[frozenset[str]] = frozenset({"context_rows", REJECTED_ROWS})
    source: ClassVar[str] = "Carryover Drafting, arXiv 2609.14717"
    example: ClassVar[str] = "dflash"
    meanings: ClassVar[Mapping[str, str]] = MEANINGS

    base: BlockBody
    config: CarryoverConfig

    def __init__(self, base: BlockBody, config: CarryoverConfig) -> None:
        super().__init__(base, config)
        sizes = base.config
        taps = len(sizes.taps) * sizes.target_hidden_size
        self.mark = nn.Parameter(torch.zeros(taps if config.embedding == "taps" else sizes.hidden_size))

    @property
    def carry(self) -> int:
        """Rejected rows kept at most."""
        return self.base.config.proposals if self.config.carry is None else self.config.carry

    # -- drafting ----------------------------------------------------------------------------------------------

    def open(self, target: Target, n: int, capacity: int, depth: int, rows: int) -> BlockState:
        return self.base.open(target, n, capacity, depth, rows, carried=self.carry)

    def observe(self, state: BlockState, committed: Committed) -> None:
        self.base.observe(state, committed, self._rejected(committed) if self.carry else None)

    def _rejected(self, committed: Committed) -> Carried | None:
        """The rows of the round before whose tokens the text does not hold; None after the prompt's own."""
        tree, verdict, features = committed.tree, committed.verdict, committed.tree_features
        if tree is None or verdict is None or features is None or not tree.width:
            return None
        accepted = torch.zeros_like(tree.valid[:, :1]).repeat(1, 1 + tree.width).scatter(1, verdict.path, True)
        rejected = tree.valid & ~accepted[:, 1:]
        rank = tree.scores.masked_fill(~rejected, -torch.inf)
        if self.config.keep == "deepest":
            line = self._deepest(tree.depths, rank, ancestors(tree, verdict.path.shape[1] - 1))
            rank = torch.where(line, 1.0 / tree.depths, rank)  # above every path score, from the root down
        best = rank.topk(min(self.carry, tree.width), dim=1)
        chosen, valid = best.indices, best.values > -torch.inf
        newest = committed.positions.gather(1, committed.last[:, None])
        positions = newest - verdict.accepted[:, None] + tree.depths.gather(1, chosen)
        rows = features.gather(1, 1 + chosen[..., None].expand(-1, -1, features.shape[-1]))
        return self.marked(rows, positions, valid)

    @staticmethod
    def _deepest(depths: Tensor, rank: Tensor, above: Tensor) -> Tensor:
        """Which nodes [n, B] are the deepest rejected one, the likeliest where several are, or rejected above it."""
        real = rank > -torch.inf
        deep = torch.where(real, depths, -1)
        leaf = rank.masked_fill(deep < deep.amax(dim=1, keepdim=True), -torch.inf).argmax(dim=1)
        line = above[torch.arange(len(leaf), device=leaf.device), 1 + leaf][:, 1:]
        return line & real

    def marked(self, features: Tensor, positions: Tensor, valid: Tensor) -> Carried:
        """Rejected rows [n, C] of the target's taps, verified at `positions`, as the drafter reads them."""
        later = self.config.positions == "next"
        mark = self.mark.to(features.dtype)
        if self.config.embedding == "taps":
            return Carried(features + mark, positions + later, valid)
        return Carried(features, positions + later, valid, mark)
