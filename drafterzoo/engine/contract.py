"""What passes between engine, drafter and target in one round: containers of batched tensors, and the drafter's duties.

Knows nothing of any particular drafter, of tokenizers, files or budgets' meaning. Every tensor has a leading request
axis `n`; widths are fixed within a round, and a boolean `valid` marks padding. Nothing in here loops or synchronises.

Positions. A committed text of N tokens x_0..x_{N-1} has its *root* x_{N-1} at position N-1: committed, but not yet read
by the target. Features exist for positions 0..N-2. A draft node of depth d lies at position N-1+d.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import attrs
from torch import Tensor

if TYPE_CHECKING:
    from drafterzoo.engine.sampling import Selector
    from drafterzoo.target.target import Target


Merge = Literal["best", "newest", "mean"]

# In `needs`: a drafter that reads features of the tree's rejected rows, which decoding has and a replay has not.
REJECTED_ROWS = "rejected_rows"


@attrs.frozen(eq=False)
class DraftTree:
    """The proposals of one round, root excluded, parents before children.

    tokens  [n, B] int64  target-vocabulary ids; 0 where not valid
    parents [n, B] int64  index of the parent among 0..B, where 0 is the root and node i of this tree has index i+1
    depths  [n, B] int64  1 for a child of the root
    scores  [n, B] float  path score the final cut went by
    valid   [n, B] bool   False for padding (a drafter may offer fewer than B)
    q       [n, B, V] float32, or None. `rejection` only: row i is the processed distribution that node i was sampled
            from. None with `rejection` means the proposals are deterministic, and each is read as drawn from a one-hot
            q (eagle.md 4.4).
    draws   [n, B] int64, or None. `rejection` only: siblings of one number were drawn together, without replacement;
            those of another number from a distribution of their own. None: all siblings were drawn together.
    hopes   [n, B] float, or None: log of the chance, by a head of the drafter's own, that the path up to here, the node
            itself included, is accepted
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    scores: Tensor
    valid: Tensor
    q: Tensor | None = None
    draws: Tensor | None = None
    hopes: Tensor | None = None

    @property
    def width(self) -> int:
        return self.tokens.shape[1]


@attrs.frozen(eq=False)
class Verdict:
    """What exact verification decided.

    path     [n, 1+depth] int64  indices (0 = root, i+1 = node i) of the accepted path, root first; entries past
                                 `accepted` repeat the last accepted index, so that a gather is always legal
    accepted [n] int64           number of draft nodes on the path
    next_token [n] int64         the target's own token after the path: the next root
    """

    path: Tensor
    accepted: Tensor
    next_token: Tensor


@attrs.frozen(eq=False)
class Committed:
    """Rows of the committed text that the target has newly read, in order. The newest row is at index `last`.

    A request that has finished but is still in the batch has no valid row; its row `last` is the newest it committed.

    tokens      [n, R] int64   x_t
    next_tokens [n, R] int64   x_{t+1}; for the newest row this is the root
    positions   [n, R] int64   t
    features    [n, R, T*H]    the drafter's taps of row t, concatenated in tap order ([n, R, 0] when it has none)
    valid       [n, R] bool    padding may stand before (prefill) or after (rounds) the valid rows
    last        [n] int64      index of the newest valid row
    longest     int            host-known upper bound of positions + 1: how much of a context buffer need be looked at
                               (that of finished requests included)
    tree, verdict, tree_features [n, 1+B, T*H]: the round these rows come from, None after prefill. For wrappers that
                               keep more than the accepted path. In a replay (engine/replay.py) the target has not read
                               the tree, and tree_features is None: who reads it says so with REJECTED_ROWS in `needs`.
    """

    tokens: Tensor
    next_tokens: Tensor
    positions: Tensor
    features: Tensor
    valid: Tensor
    last: Tensor
    longest: int
    tree: DraftTree | None = None
    verdict: Verdict | None = None
    tree_features: Tensor | None = None


@attrs.frozen(eq=False)
class Frontier:
    """The nodes to expand in draft step `step`; in step 0 this is the root alone.

    Drafters number the rows they forward: row 0 is the root's, and the rows of this step are
    first_row .. first_row+W-1 (`first_row` is 0 in step 0). A wrapper that forwards extra rows numbers them after
    these. W is the same in every round; only on a CPU some rows of a step, or the last steps, may be missing. Where
    `valid` is False anything may be offered: nothing grows there.

    tokens    [n, W] int64  the nodes' tokens (target ids)
    nodes     [n, W] int64  the nodes' ids in the growing pool; -1 is the root
    positions [n, W] int64  absolute positions of these tokens in the text
    sources   [n, W] int64  the row whose output offered this node: its recurrent input
    visible   [n, W, first_row+W] bool  which forwarded rows this row may attend: its ancestors' rows and itself. Column
              0 (the root's row) is committed context for recurrent drafters, so they skip it.
    valid     [n, W] bool
    extra     int or None   how many rows a wrapper may forward beside these; None: as many as it likes
    hopes     bool          whether the engine asks for `Offers.hope`
    fertile   [n, 1+N] float or None  of all nodes of the pool (the root at index 0, node i at i+1): the path's score of
              those that may still have children which the final cut keeps, -inf for the others
    narrow    bool          whether rows that no request wants may be left out: nobody minds the host's waiting for them
    """

    step: int
    first_row: int
    tokens: Tensor
    nodes: Tensor
    positions: Tensor
    sources: Tensor
    visible: Tensor
    valid: Tensor
    extra: int | None = None
    hopes: bool = False
    fertile: Tensor | None = None
    narrow: bool = False

    @property
    def width(self) -> int:
        return self.tokens.shape[1]


@attrs.frozen(eq=False)
class Offers:
    """Children offered for nodes, one row per forwarded row.

    nodes  [n, R] int64      pool id of the node each row's children hang under (-1 the root)
    tokens [n, R, k] int64   target ids, best first
    scores [n, R, k] float   never positive; added to the parent's path score. -inf: no offer
    keep   [n, R, k] float or None  what ranks the child in the final cut in place of `scores` (the path below it still
           uses `scores`); `rejection` needs this to be independent of the child's own token
    q      [n, R, V] or None the distribution the children were sampled from (`rejection` only)
    likeliest  whether a row's children are its likeliest tokens, scored by the logs of the chances it gives them
    hope [n, R] or None      log of the chance, by a head of the drafter's own, that the target's choice below the row's
                             node is among its children; made without knowing any of them
    merge      what a child counts that rows beyond the frontier's offer again: the "best" of both scores, the "newest",
               or the log of their chances' "mean". Under the last two, a child that is not offered again falls, too

    A drafter with a distribution returns `select(logits, frontier)`, and the engine's sampler fills all of this in.
    """

    nodes: Tensor
    tokens: Tensor
    scores: Tensor
    keep: Tensor | None = None
    q: Tensor | None = None
    likeliest: bool = False
    merge: Merge = "best"
    hope: Tensor | None = None


@attrs.define(eq=False)
class Counters:
    """Work done by a drafter since the engine last took the numbers: counted where the forward happens."""

    forwards: int = 0
    rows: int = 0

    def count(self, rows: int) -> None:
        """One forward of the drafter's block over `rows` rows per request."""
        self.forwards += 1
        self.rows += rows

    def take(self) -> tuple[int, int]:
        """Return (forwards, rows) and start again at zero."""
        taken = (self.forwards, self.rows)
        self.forwards = self.rows = 0
        return taken


class DraftState(Protocol):
    """A drafter's memory of the requests in flight: its own K/V, the root distribution, the row outputs."""

    counters: Counters

    def keep(self, requests: Tensor) -> None:
        """Keep only the given requests (indices [n'] into the present n), in that order."""
        ...


@runtime_checkable
class Proposer(Protocol):
    """What the engine asks of a drafter, bare or wrapped."""

    @property
    def taps(self) -> tuple[int, ...]:
        """Boundaries of the target it reads (eagle.md 0.3)."""
        ...

    @property
    def capabilities(self) -> frozenset[str]:
        """What wrappers and budgets may ask of it: "recurrent", "context_rows", "confidence"."""
        ...

    def open(self, target: Target, n: int, capacity: int, depth: int, rows: int) -> DraftState:
        """Memory for n requests of up to `capacity` committed tokens.

        A round takes `depth` draft steps and forwards up to `rows` rows.
        """
        ...

    def observe(self, state: Any, committed: Committed) -> None:
        """Take newly committed rows into the context; forget everything drafted. Forms the root distribution."""
        ...

    def expand(self, state: Any, frontier: Frontier, select: Selector) -> Offers:
        """Children for the frontier. In step 0 the frontier is the root, whose distribution `observe` has formed."""
        ...

    def rows_per_round(self, depth: int, grow: int) -> int:
        """Upper bound of the rows forwarded in one round, for the size of the scratch region."""
        ...
