"""What a wrapper is: a drafter around a drafter, named in the spec string from left to right.

Knows the drafter contract; nothing of any particular drafter, wrapper, of growth or of verification. A wrapper may add
rows to `expand` and context rows to `observe`, own parameters and extend the training objective; it says which
capability of its base it needs, and every wrapper has a setting without effect, in which it equals the bare drafter bit
for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from drafterzoo.drafters.base import Drafter, UnrollBatch
from drafterzoo.engine.contract import REJECTED_ROWS, Committed, DraftState, Frontier, Offers
from drafterzoo.errors import UsageError

if TYPE_CHECKING:
    from drafterzoo.engine.sampling import Selector
    from drafterzoo.target.target import Target


class Wrapper(Drafter):
    """A drafter that holds another and passes everything on; a subclass overrides what it changes.

    needs: capabilities the base must have ("recurrent", "context_rows"), and REJECTED_ROWS where features of rejected
    draft nodes are kept. Raises UsageError when the base lacks one.
    """

    needs: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, base: Drafter, config: object) -> None:
        missing = self.needs - base.capabilities - {REJECTED_ROWS}
        if missing:
            raise UsageError(
                f"{self.name!r} cannot wrap {base.spec!r}: it needs a drafter with {', '.join(sorted(missing))}, and "
                f"{base.spec!r} has {', '.join(sorted(base.capabilities)) or 'neither'}."
            )
        super().__init__(config, base.target)
        self.base = base
        self.spec = f"{base.spec}+{self.name}"
        self.budget = base.budget
        self.capabilities = base.capabilities

    @property
    def taps(self) -> tuple[int, ...]:
        return self.base.taps

    @property
    def vocabulary(self) -> Tensor | None:
        return self.base.vocabulary

    def open(self, target: Target, n: int, capacity: int, depth: int, rows: int) -> DraftState:
        return self.base.open(target, n, capacity, depth, rows)

    def observe(self, state: Any, committed: Committed) -> None:
        self.base.observe(state, committed)

    def expand(self, state: Any, frontier: Frontier, select: Selector) -> Offers:
        return self.base.expand(state, frontier, select)

    def rows_per_round(self, depth: int, grow: int) -> int:
        return self.base.rows_per_round(depth, grow)

    def unroll(self, batch: UnrollBatch, passes: int) -> list[Tensor]:
        return self.base.unroll(batch, passes)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.base.logits(hidden)

    def head_matrix(self) -> Tensor:
        return self.base.head_matrix()
