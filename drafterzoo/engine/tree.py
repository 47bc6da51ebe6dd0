"""Growth of a draft tree within a budget, and the masks that let one target forward read it.

Knows the contract and the budget; nothing of any drafter, of the target, of how offers are chosen or verified. EAGLE-2
growth (eagle.md 4.2): level by level, a beam on path scores, all offers stay candidates, one final cut.
"""

from __future__ import annotations

import math
from functools import lru_cache

import attrs
import torch
from torch import Tensor, nn

from drafterzoo.budget import Budget
from drafterzoo.engine.contract import DraftState, DraftTree, Frontier, Merge, Offers, Proposer
from drafterzoo.engine.faults import check_offers
from drafterzoo.engine.sampling import Selector

NOMINAL_ACCEPTANCE = 0.6  # shapes `allocation` only: any value keeps `rejection` exact


def grow(
    drafter: Proposer, state: DraftState, budget: Budget, tokens: Tensor, positions: Tensor, select: Selector
) -> DraftTree:
    """The drafts of one round below the roots: tokens and positions [n]. The tree holds at most `budget.nodes` nodes.

    One `expand` per draft step. Nothing here synchronises; every width is fixed by the budget. Only on a CPU, where
    looking costs nothing, rows below which nothing may grow are left out, and the draft ends where none is left.
    """
    width = budget.grow + budget.advance
    rows = drafter.rows_per_round(budget.depth, width)
    growth = Growth(tokens, positions, 1 + rows, budget)
    levels = allocation(budget)
    own = rows <= (budget.depth - 1) * width  # else a wrapper forwards more
    for step in range(budget.depth):
        looks = tokens.device.type == "cpu" and growth.may_leave_out(own)
        frontier = growth.frontier(step, looks)
        if not frontier.width:
            break
        offers = drafter.expand(state, frontier, select)
        check_offers(type(drafter), offers, frontier, select)
        growth.add(offers, levels[step])
    return growth.cut(budget.nodes)


@lru_cache(maxsize=256)
def allocation(budget: Budget) -> tuple[int, ...]:
    """Nodes per level, fixed before anything is drawn; they add up to `budget.nodes`.

    For `rejection`: were the final cut to weigh levels against each other by what was drawn, a child's place in the
    tree would depend on its own token, and the output would be biased. Greedy on the chance, at a nominal acceptance
    a, that the j-th slot of level l is what one more node buys: a^(l-1) * a (1-a)^(j-1).
    """
    a = NOMINAL_ACCEPTANCE
    levels = [0] * budget.depth
    for _ in range(budget.nodes):
        forwarded = [1, *(min(budget.grow + budget.advance, above) for above in levels[:-1])]
        gain = {
            level: a ** (level + 1) * (1 - a) ** taken
            for level, (taken, rows) in enumerate(zip(levels, forwarded, strict=True))
            if taken < rows * budget.offer
        }
        if gain:  # else only a wrapper's extra offers could fill the rest
            levels[max(gain, key=lambda level: (gain[level], -level))] += 1
    return tuple(levels)


class Growth:
    """The pool of candidates of one round. Index 0 is the root, index i+1 the pool's node i.

    tokens, parents, depths [n, 1+N] int64; paths [n, 1+N] sums of scores, -inf for no offer; ranks [n, 1+N] what the
    final cut goes by; fertile [n, 1+N] the paths of those that may have children, -inf for the others; sources, rows
    [n, 1+N]: the row that offered a node, and the row in which it was forwarded itself.
    """

    def __init__(self, tokens: Tensor, positions: Tensor, rows: int, budget: Budget) -> None:
        self.budget = budget
        self.floor = math.log(budget.p_min) if budget.p_min else -math.inf  # of the path of a node that may grow
        self.least_hope = math.log(budget.c_min) if budget.c_min else -math.inf
        self.asks = budget.c_min > 0 or budget.schedule != "none"
        self.hopes: Tensor | None = None  # [n, 1+N]: log of the chance that the path up to a node is accepted
        n, zeros = len(tokens), torch.zeros_like(tokens)[:, None]
        self.positions = positions
        self.tokens, self.parents, self.depths = tokens[:, None], zeros, zeros
        self.sources, self.rows = zeros, zeros
        self.paths = self.ranks = self.fertile = torch.zeros(n, 1, device=tokens.device)
        self._open = self.fertile  # of this step: the fertile ones that may still have children in the final tree
        self._drawn = False  # by `rejection`
        self._forwarded = 0  # rows so far
        self._valid = self.paths > -math.inf  # of the newest frontier; what is offered beyond it are second thoughts
        self._newest = 0  # how many candidates the last step offered
        self._full = 0  # how many it would have offered, had no frontier been narrow
        self._skipped = 0  # rows of this step that a narrow frontier leaves out; their numbers stay unused
        # _seen[:, r]: the rows that row r attends.
        self._seen = torch.zeros(n, rows, rows, dtype=torch.bool, device=tokens.device)
        self._q: list[Tensor] = []

    def may_leave_out(self, own: bool) -> bool:
        """Whether rows that nobody wants may be missing.

        Under `rejection` a row's number is its noise's, which must not depend on the batch: there only a frontier's
        last columns may be, which is where they stand if all rows are the frontier's own best.
        """
        return not self._drawn or (own and not self.budget.advance)

    def frontier(self, step: int, narrow: bool = False) -> Frontier:
        """The root in step 0; then the `grow` best of the newest offers, ties to the one offered first, and `advance`
        more, the best of those left below as many different parents.

        narrow: leave out the columns in which no request has a node to grow, which the host must wait for.
        """
        first, self._open = self._forwarded, self._still_fertile()
        if step == 0:
            chosen, self._newest = torch.zeros_like(self.tokens), 1
            valid = self.ranks > -math.inf
        else:
            chosen, valid = self._chosen(narrow)
            if not (narrow and len(valid) == 1):  # where nothing grows any more a draft ends, as it does alone
                self._open = self._open.masked_fill(~valid.any(dim=1, keepdim=True), -math.inf)
        width, self._valid = chosen.shape[1], valid
        return Frontier(
            step=step,
            first_row=first,
            tokens=self.tokens.gather(1, chosen).masked_fill_(~valid, 0),
            nodes=chosen - 1,
            positions=self.positions[:, None] + self.depths.gather(1, chosen),
            sources=self.sources.gather(1, chosen),
            visible=self._visible(chosen, first, width),
            valid=valid,
            extra=self.budget.reconsider or None,
            hopes=self.asks,
            fertile=self._open,
            narrow=narrow,
        )

    def _still_fertile(self) -> Tensor:
        """[n, 1+N]: the paths of those that may have children which the final cut keeps, -inf for the others.

        A child never ranks above its parent, and of equals the one offered first: once as many candidates as the tree
        holds stand at least as high as a node, nothing below it is kept, unless a second thought lowers one of them
        (merge "newest" or "mean") or raises the node itself: it counts as if none did. Under `rejection` what is kept
        is laid down beforehand (`allocation`).
        """
        nodes, ranks = self.budget.nodes, self.ranks[:, 1:]
        if self._drawn or ranks.shape[1] < nodes:
            return self.fertile
        last = ranks.topk(nodes, dim=1, sorted=False).values.amin(dim=1, keepdim=True)
        return self.fertile.masked_fill(self.fertile <= last, -math.inf)

    def _chosen(self, narrow: bool) -> tuple[Tensor, Tensor]:
        """(pool indices [n, W] of the nodes to grow, which of them are any [n, W])."""
        width, advance = self.budget.grow, self.budget.advance
        offset = self.paths.shape[1] - self._newest
        best = self._open[:, offset:].sort(dim=1, descending=True, stable=True)
        chosen, valid = best.indices[:, :width] + offset, best.values[:, :width] > -math.inf
        if advance:
            more, real = self._advanced(best.indices[:, width:] + offset, best.values[:, width:], advance)
            chosen, valid = torch.cat((chosen, more), dim=1), torch.cat((valid, real), dim=1)
        if not narrow:
            return chosen, valid
        wanted = valid.any(dim=0)
        most = int(wanted.sum())
        # under `rejection` a row keeps its number, which is its noise's; and there nothing is advanced
        self._skipped = 0 if advance else min(width, self._full) - most
        if most == len(wanted):
            return chosen, valid
        columns = slice(most) if not advance else wanted  # the best stand first
        return chosen[:, columns], valid[:, columns]

    def _advanced(self, left: Tensor, paths: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Of the candidates [n, C] that are left, best first: the first of each parent's, `count` of them at most."""
        parents = self.parents.gather(1, left)
        earlier = torch.ones(left.shape[1], left.shape[1], dtype=torch.bool, device=left.device).tril(-1)
        first = ~((parents[:, :, None] == parents[:, None, :]) & earlier).any(dim=2)
        order = (~first).to(torch.int8).sort(dim=1, stable=True).indices[:, :count]
        return left.gather(1, order), (first & (paths > -math.inf)).gather(1, order)

    def _visible(self, chosen: Tensor, first: int, width: int) -> Tensor:
        """[n, W, first+W]: the ancestors' rows and the row itself. Notes both for the rows' descendants.

        A node offered by an extra row of a wrapper hangs under that row's node, and sees the node's own row.
        """
        n = len(chosen)
        own = torch.arange(first, first + width, device=chosen.device).expand(n, width)
        self.rows = self.rows.scatter(1, chosen, own)
        above = self.rows.gather(1, self.parents.gather(1, chosen))
        seen = self._seen.gather(1, above[..., None].expand(-1, -1, self._seen.shape[2]))[..., :first]
        itself = torch.eye(width, dtype=torch.bool, device=chosen.device).expand(n, width, width)
        visible = torch.cat((seen, itself), dim=2)
        self._seen[:, first : first + width, : first + width] = visible
        return visible

    def add(self, offers: Offers, slots: int) -> None:
        """Take a step's offers in. slots: nodes of this level that `rejection` may verify (see `allocation`).

        Every offer becomes a candidate of its own, unless its parent may have none: a frontier of fixed width is filled
        up with such nodes, and who expands them cannot know. What the rows of a wrapper offer again is merged.
        """
        n, rows, k = offers.tokens.shape
        parents = (offers.nodes + 1)[..., None].expand(n, rows, k).flatten(1)
        sources = torch.arange(self._forwarded, self._forwarded + rows, device=parents.device)
        scores = _no_nan(offers.scores.flatten(1).clamp(max=0.0))  # never above the parent: ancestors rank first
        if self.budget.advance:  # a row that stands for nothing may be of a node that could grow, but was not chosen
            own = ~self._valid.repeat_interleave(k, dim=1)
            scores = scores.masked_fill(nn.functional.pad(own, (0, scores.shape[1] - own.shape[1])), -math.inf)
        if offers.hope is not None:
            scores = scores.masked_fill((offers.hope < self.least_hope).repeat_interleave(k, dim=1), -math.inf)
            self._add_hopes(offers.hope, parents, k)
        grown = self._valid.shape[1]
        if rows > grown and offers.keep is None:
            scores = self._merged(offers.tokens.flatten(1), parents, scores, grown * k, offers.merge)
        paths = ranks = self._open.gather(1, parents) + scores
        fertile = self._above_floor(paths)
        if offers.keep is not None:
            self._drawn = True
            keep = offers.keep.flatten(1).masked_fill(scores == -math.inf, -math.inf)
            ranks = _only_best(_no_nan(self._open.gather(1, parents) + keep), slots)
            fertile = fertile.masked_fill(ranks == -math.inf, -math.inf)  # none below what is not sure to be verified
        if offers.q is not None:
            # row by row, those left out too
            self._q += [offers.q, offers.q.new_zeros(n, self._skipped, offers.q.shape[2])]
        self.tokens = torch.cat((self.tokens, offers.tokens.flatten(1)), dim=1)
        self.parents = torch.cat((self.parents, parents), dim=1)
        self.depths = torch.cat((self.depths, self.depths.gather(1, parents) + 1), dim=1)
        self.sources = torch.cat((self.sources, sources[:, None].expand(n, rows, k).flatten(1)), dim=1)
        self.rows = torch.cat((self.rows, torch.zeros_like(parents)), dim=1)
        before = self.ranks, self.fertile
        self.paths = self.ranks = self.fertile = torch.cat((self.paths, paths), dim=1)
        if self._drawn:
            self.ranks = torch.cat((before[0], ranks), dim=1)
        if self._drawn or self.budget.p_min:
            self.fertile = torch.cat((before[1], fertile), dim=1)
        self._forwarded += rows + self._skipped  # so a row's number, and its noise, does not depend on the batch
        self._newest, self._full = rows * k, (rows + self._skipped) * k

    def _add_hopes(self, hope: Tensor, parents: Tensor, k: int) -> None:
        """Of a step's candidates: what their row hopes [n, R] for all its k children, on top of its own path's."""
        before = torch.zeros_like(self.paths) if self.hopes is None else self.hopes
        self.hopes = torch.cat((before, before.gather(1, parents) + hope.repeat_interleave(k, dim=1)), dim=1)

    def _merged(self, tokens: Tensor, parents: Tensor, scores: Tensor, first: int, merge: Merge) -> Tensor:
        """The scores [n, C] without those offers from column `first` on whose token is their parent's child already.

        Such a child is kept once (methods.md 1.4), at the score that `merge` says (contract.Offers). It was offered a
        step ago, so all that can hang below it are offers of this very step, which are added up after this.
        """
        again, above, anew = tokens[:, first:], parents[:, first:], scores[:, first:]
        offered = (self._open.gather(1, above) + anew)[..., None]
        here = (self.paths[:, 1:] > -math.inf)[:, None] & (offered > -math.inf)
        below = (self.parents[:, None, 1:] == above[..., None]) & here
        same = below & (self.tokens[:, None, 1:] == again[..., None])
        known = same.any(dim=2)
        better = torch.where(same, offered, -math.inf).amax(dim=1)  # [n, P]: of each child, by the second pass
        if merge == "best":
            better = torch.maximum(self.paths[:, 1:], better)
        elif merge == "mean":
            anew = anew - math.log(2)
            mean = torch.logaddexp(self.paths[:, 1:], better) - math.log(2)
            better = torch.where(below.any(dim=1), mean, self.paths[:, 1:])
        else:
            least = torch.where(below, offered, math.inf).amin(dim=1)  # of what its parent offers
            better = torch.where(same.any(dim=1), better, torch.minimum(self.paths[:, 1:], least))
        self.paths = self.ranks = torch.cat((self.paths[:, :1], better), dim=1)
        self.fertile = self._above_floor(self.paths)
        self._open = self.fertile.masked_fill(self._open == -math.inf, -math.inf)
        return torch.cat((scores[:, :first], anew.masked_fill(known, -math.inf)), dim=1)

    def _above_floor(self, paths: Tensor) -> Tensor:
        return paths.masked_fill(paths < self.floor, -math.inf) if self.budget.p_min else paths

    def cut(self, nodes: int) -> DraftTree:
        """The best `nodes` candidates, ancestors first, ties to the smaller index; padding stands last."""
        ranks = self.ranks[:, 1:]
        total = ranks.shape[1]
        best = ranks.sort(dim=1, descending=True, stable=True).indices[:, :nodes]
        kept = torch.where(ranks.gather(1, best) > -math.inf, best + 1, total + 1).sort(dim=1).values
        valid = kept <= total
        numbers = torch.arange(1, kept.shape[1] + 1, device=kept.device).expand_as(kept)
        renumbered = kept.new_zeros(len(kept), 2 + total).scatter_(1, kept, numbers)  # padding meets in the last column
        kept = kept.clamp(max=total)
        parents = renumbered.gather(1, self.parents.gather(1, kept))
        return DraftTree(
            tokens=torch.where(valid, self.tokens.gather(1, kept), 0),
            parents=torch.where(valid, parents, 0),
            depths=torch.where(valid, self.depths.gather(1, kept), 1),
            scores=self.paths.gather(1, kept).masked_fill(~valid, -math.inf),
            valid=valid,
            hopes=None if self.hopes is None else self.hopes.gather(1, kept),
            **(self._draws(kept) if self._q else {}),
        )

    def _draws(self, kept: Tensor) -> dict[str, Tensor]:
        """Of the kept candidates [n, B]: the rows that drew them, and the distributions [n, B, V] of these rows."""
        draws, q = self.sources.gather(1, kept), torch.cat(self._q, dim=1)
        return {"draws": draws, "q": q[torch.arange(len(kept), device=kept.device)[:, None], draws]}


def _no_nan(x: Tensor) -> Tensor:
    """NaN is no offer: a drafter gone wrong must not reach the sort."""
    return x.masked_fill(~(x > -math.inf), -math.inf)


def _only_best(ranks: Tensor, slots: int) -> Tensor:
    """ranks [n, C] with all but the best `slots` of each request at -inf, ties to the smaller index."""
    best = ranks.sort(dim=1, descending=True, stable=True).indices[:, :slots]
    return torch.full_like(ranks, -math.inf).scatter(1, best, ranks.gather(1, best))


def ancestors(tree: DraftTree, depth: int) -> Tensor:
    """[n, 1+B, 1+B] bool: which of (root, nodes) each of them attends: its ancestors and itself, `depth` up at most."""
    n, width = tree.tokens.shape
    itself = torch.eye(1 + width, dtype=torch.bool, device=tree.tokens.device).expand(n, -1, -1)
    if not width:
        return itself
    parents = torch.cat((torch.zeros_like(tree.parents[:, :1]), tree.parents), dim=1)
    reached = itself.scatter(2, parents[..., None], True)
    for _ in range(max(depth - 1, 0).bit_length()):  # each pass doubles the number of generations reached
        reached = reached.float().bmm(reached.float()) > 0
    return reached


def narrowed(tree: DraftTree, width: int) -> DraftTree:
    """The tree cut to its first `width` nodes; padding stands last, so no node is lost where `width` are valid."""
    if width >= tree.width:
        return tree
    return DraftTree(
        tokens=tree.tokens[:, :width],
        parents=tree.parents[:, :width],
        depths=tree.depths[:, :width],
        scores=tree.scores[:, :width],
        valid=tree.valid[:, :width],
        q=None if tree.q is None else tree.q[:, :width],
        draws=None if tree.draws is None else tree.draws[:, :width],
        hopes=None if tree.hopes is None else tree.hopes[:, :width],
    )


def shortened(tree: DraftTree, lengths: Tensor) -> DraftTree:
    """A chain cut to its first `lengths` [n] nodes."""
    valid = tree.valid & (torch.arange(tree.width, device=lengths.device) < lengths[:, None])
    return attrs.evolve(
        tree,
        tokens=torch.where(valid, tree.tokens, 0),
        parents=torch.where(valid, tree.parents, 0),
        depths=torch.where(valid, tree.depths, 1),
        scores=tree.scores.masked_fill(~valid, -math.inf),
        valid=valid,
    )


def bare_tree(n: int, device: torch.device) -> DraftTree:
    """A tree without nodes: plain decoding."""
    none = torch.zeros(n, 0, dtype=torch.int64, device=device)
    return DraftTree(none, none, none, none.float(), none.bool())
