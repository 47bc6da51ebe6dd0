"""Parallel Reconsideration: the nodes that hesitated most are thought over once more, in the batch of the next step.

Source: methods.md 1. A reconsidered node's own output is fed back through the same block, at the same position, beside
the rows that grow the tree; what it then offers joins the tree as further children of the node. Knows a recurrent
drafter's rows (drafters/recurrent.py) and the contract; nothing of how offers are chosen, merged, cut or verified.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs
import torch
from torch import Tensor, nn

from drafterzoo.checkpoint import LATER
from drafterzoo.drafters.base import UnrollBatch, Unrolling
from drafterzoo.drafters.recurrent import Pass, RecurrentBody, RecurrentState
from drafterzoo.engine.contract import Committed, Counters, Frontier, Merge, Offers
from drafterzoo.errors import UsageError
from drafterzoo.wrappers.base import Wrapper
from drafterzoo.wrappers.pr_options import MEANINGS

if TYPE_CHECKING:
    from drafterzoo.engine.sampling import Selector
    from drafterzoo.target.target import Target

MOST = 256  # rows, tokens or steps: beyond, a slip of the keyboard that no memory would hold
SHARE = 0.25  # of a second pass's output in what stands in the first's place, before training
GUESSES = ("soft_guess", "hard_guess")  # queries made of the likeliest children
SAMPLED = 4096  # embeddings whose size stands for all
ROWS_AT_ONCE = 1024  # whose logits exist at once in training, to choose a guess


@attrs.frozen
class PrConfig:
    """Options of Parallel Reconsideration (methods.md 1.3 to 1.5); the published values are reconsider=3, gate none.

    What the paper leaves open is an option, and its default is ours: self_query, guess, kv, update, merge, alpha, beta,
    balance, stop_gradient. The last four matter in training alone.

    A guess makes a poor query: a node's own output beside the embedding of what it expects next is, but for the
    position, what the first pass over that very child reads, which must answer otherwise. One set of weights cannot do
    both: replacing, the first pass forgets how to recur; blended, it loses a little. The feature in the token's place
    is unlike any first pass.

    A second pass whose output replaces the first's must first learn to think as well as what it thinks over, before it
    can do better; blended, it begins there.
    """

    reconsider: int = 3
    recon_steps_max: int | None = None
    gate: float = 1.0
    self_query: Literal["soft_guess", "hard_guess", "feature", "learned", "token"] = "feature"
    guess: int = 6
    kv: Literal["level0", "level1"] = "level0"
    update: Literal["replace", "blend"] = "blend"
    merge: Merge = attrs.field(default="best", metadata=LATER)
    alpha: float = 1.0
    beta: float = 1.0
    balance: Literal["hesitant", "hinge", "keep"] = "hesitant"
    stop_gradient: bool = False

    def __attrs_post_init__(self) -> None:
        for name, least in (("reconsider", 0), ("guess", 1), ("recon_steps_max", 0)):
            value = getattr(self, name)
            if value is not None and not least <= value <= MOST:
                raise UsageError(f"{name}={value}, expected a whole number from {least} to {MOST}.")
        if not 0 < self.gate <= 1:
            raise UsageError(f"gate={self.gate}, expected a chance above 0, at most 1.")
        for name in ("alpha", "beta"):
            if not 0 <= getattr(self, name) <= 1e6:
                raise UsageError(f"{name}={getattr(self, name)}, expected a weight from 0 to a million.")


@attrs.frozen(eq=False)
class Batch:
    """The rows that a step grew: what the next step may reconsider.

    rows [W]: their numbers; tokens, nodes, positions [n, W] and visible [n, W, first+W] as in their Frontier; valid
    [n, W]; confidence [n, W]: the drafter's chance of its likeliest child; guessed [n, W, g], chances [n, W, g]: its
    likeliest children, as target ids, and their chances, which sum to 1.
    """

    rows: Tensor
    tokens: Tensor
    nodes: Tensor
    positions: Tensor
    visible: Tensor
    valid: Tensor
    confidence: Tensor
    guessed: Tensor
    chances: Tensor


@attrs.frozen(eq=False)
class Levels:
    """One pass of training: the head inputs [n, Q, h] of the first pass over its rows and of the second."""

    first: Tensor
    second: Tensor


@attrs.define(eq=False)
class PrState:
    """The base's state, the batch of the step before, and what a row's children attend.

    sight [n, 1+rows, 1+rows] bool, for kv="level1" alone: the rows that the children of each row attend.
    """

    base: RecurrentState
    previous: Batch | None = None
    sight: Tensor | None = None

    @property
    def counters(self) -> Counters:
        return self.base.counters

    def keep(self, requests: Tensor) -> None:
        self.base.keep(requests)
        self.previous = None  # a round's own, and requests leave between rounds
        self.sight = None if self.sight is None else self.sight[requests]


class Reconsideration(Wrapper):
    """A second pass over the nodes that hesitate, co-forwarded with the next step of any recurrent drafter."""

    name: ClassVar[str] = "pr"
    Config: ClassVar[type] = PrConfig
    needs: ClassVar[frozenset[str]] = frozenset({"recurrent"})
    source: ClassVar[str] = "Parallel Reconsideration"
    meanings: ClassVar[Mapping[str, str]] = MEANINGS

    base: RecurrentBody
    config: PrConfig

    def __init__(self, base: RecurrentBody, config: PrConfig) -> None:
        super().__init__(base, config)
        if config.self_query == "learned":
            self.query = nn.Parameter(torch.zeros(base.config.hidden_size))
        if config.self_query == "feature":
            self.query_proj = nn.Linear(base.config.hidden_size, base.config.hidden_size, bias=False)
            with torch.no_grad():  # at first the feature itself, as large as the embedding in whose place it stands
                self.query_proj.weight.copy_(torch.eye(base.config.hidden_size) * _embedding_size(base))
        if config.update == "blend":
            self.share = nn.Parameter(torch.full((base.config.hidden_size,), SHARE))

    def rows_per_round(self, depth: int, grow: int) -> int:
        steps = sum(self._reconsiders(step) for step in range(1, depth))
        return self.base.rows_per_round(depth, grow) + steps * self.config.reconsider

    def _reconsiders(self, step: int) -> bool:
        """Whether a step does: the first has no batch before it, and the last one's batch is never thought over."""
        most = self.config.recon_steps_max
        return step > 0 and (most is None or step <= most)

    # -- drafting ----------------------------------------------------------------------------------------------

    def open(self, target: Target, n: int, capacity: int, depth: int, rows: int) -> Any:
        state = PrState(self.base.open(target, n, capacity, depth, rows))
        if self.config.kv == "level1":
            state.sight = torch.zeros(n, 1 + rows, 1 + rows, dtype=torch.bool, device=target.device)
            state.sight[:, 0, 0] = True
        return state

    def observe(self, state: PrState, committed: Committed) -> None:
        state.previous = None
        self.base.observe(state.base, committed)

    def expand(self, state: PrState, frontier: Frontier, select: Selector) -> Offers:
        if not self.config.reconsider:
            return self.base.expand(state.base, frontier, select)
        if frontier.step == 0:
            logits = self.base.logits(state.base.normed)[:, None]
            offers = select(logits, frontier, self.base.ids)
            state.previous = self._batch(frontier, logits, offers)
            return offers
        if state.previous is None or not self._reconsiders(frontier.step):
            return self.base.expand(state.base, self._sighted(state, frontier), select)
        return self._both_levels(state, state.previous, self._sighted(state, frontier), select)

    def _sighted(self, state: PrState, frontier: Frontier) -> Frontier:
        """The frontier, whose rows attend what offered them: a second pass's keys in the place of its first's."""
        if state.sight is None:
            return frontier
        first, width = frontier.first_row, frontier.width
        seen = state.sight.gather(1, frontier.sources[..., None].expand(-1, -1, state.sight.shape[2]))
        seen[:, :, first : first + width] |= torch.eye(width, dtype=torch.bool, device=seen.device)
        state.sight[:, first : first + width] = seen
        return attrs.evolve(frontier, visible=seen[..., : first + width])

    def _both_levels(self, state: PrState, before: Batch, frontier: Frontier, select: Selector) -> Offers:
        """One forward over the frontier's rows and, after them, the rows that are reconsidered."""
        base, width = self.base, frontier.width
        chosen, wanted = self._hesitant(before, frontier.extra)
        rows = before.rows[chosen]
        again = self._second_rows(before, chosen, wanted, rows, frontier)
        if state.sight is not None:
            self._replace(state.sight, rows, again, width)
        hidden = base.outputs_of(state.base, rows)
        embedded = torch.cat((base.embed(frontier.tokens), self._queries(before, chosen, hidden)), dim=1)
        hidden = torch.cat((base.outputs_of(state.base, frontier.sources), hidden), dim=1)
        logits = self.logits_of_rows(state, again, width, embedded, hidden)
        offers = select(logits, again, base.ids)
        state.previous = self._batch(frontier, logits, offers)
        return attrs.evolve(
            offers,
            merge=self.config.merge,
            scores=offers.scores.masked_fill(~again.valid[..., None], -math.inf),
            keep=None if offers.keep is None else offers.keep.masked_fill(~again.valid[..., None], -math.inf),
        )

    def logits_of_rows(self, state: PrState, rows: Frontier, width: int, embedded: Tensor, hidden: Tensor) -> Tensor:
        """Logits [n, R, D] of all rows of a step, of which the first `width` grow the tree, in one forward.

        embedded, hidden [n, R, h]: what each row reads.
        """
        normed = self.base.draft_rows(state.base, rows.first_row, embedded, hidden, rows.positions, rows.visible)
        normed[:, width:] = self.settled(state, rows.first_row + width, hidden[:, width:], normed[:, width:])
        return self.base.logits(normed)

    def settled(self, state: PrState, first: int, hidden: Tensor, normed: Tensor) -> Tensor:
        """The head inputs [n, m, h] of the second passes in the rows from `first` on, which read `hidden` [n, m, h].

        normed [n, m, h]: the block's own. Where both passes are blended, so is what recurs.
        """
        if self.config.update == "replace":
            return normed
        rows = state.base.outputs[:, first : first + hidden.shape[1]]
        rows.copy_(self.blended(hidden, rows))
        return self.base.head_input(rows)

    def _hesitant(self, before: Batch, most: int | None = None) -> tuple[Tensor, Tensor]:
        """(columns [n, m] of the batch with the least confidence, which of them are to be reconsidered [n, m]).

        m is at most what the budget allows.
        """
        count = self.config.reconsider if most is None else min(most, self.config.reconsider)
        doubt = before.confidence.masked_fill(~before.valid | (before.confidence >= self.config.gate), math.inf)
        least, chosen = doubt.topk(min(count, doubt.shape[1]), dim=1, largest=False)
        missing = count - chosen.shape[1]  # rows of padding: the batch is as wide in every step
        chosen = nn.functional.pad(chosen, (0, missing))
        return chosen, nn.functional.pad(least < math.inf, (0, missing))

    def _second_rows(self, before: Batch, chosen: Tensor, wanted: Tensor, rows: Tensor, frontier: Frontier) -> Frontier:
        """The frontier, then the reconsidered rows, which see what their first pass saw, that pass, and themselves."""
        first, width, extra = frontier.first_row, frontier.width, chosen.shape[1]
        total = first + width + extra
        grown = nn.functional.pad(frontier.visible, (0, extra))
        seen = before.visible.gather(1, chosen[..., None].expand(-1, -1, before.visible.shape[2]))
        seen = nn.functional.pad(seen, (0, total - seen.shape[2]))
        own = torch.eye(extra, dtype=torch.bool, device=seen.device)
        seen[:, :, first + width :] |= own
        return attrs.evolve(
            frontier,
            tokens=torch.cat((frontier.tokens, before.tokens.gather(1, chosen)), dim=1),
            nodes=torch.cat((frontier.nodes, before.nodes.gather(1, chosen)), dim=1),
            positions=torch.cat((frontier.positions, before.positions.gather(1, chosen)), dim=1),
            sources=torch.cat((frontier.sources, rows), dim=1),
            visible=torch.cat((grown, seen), dim=1),
            valid=torch.cat((frontier.valid, wanted), dim=1),
        )

    def _replace(self, sight: Tensor, rows: Tensor, again: Frontier, width: int) -> None:
        """Note that the children of the second passes attend these in the place of the first passes' rows [n, m].

        The root's own row is committed context, which stays in everybody's sight.
        """
        first, extra = again.first_row + width, rows.shape[1]
        seen = nn.functional.pad(again.visible[:, width:], (0, sight.shape[2] - again.visible.shape[2]))
        committed = (rows == 0)[..., None] & (torch.arange(sight.shape[2], device=rows.device) == 0)  # the root's row
        sight[:, first : first + extra] = seen.scatter(2, rows[..., None], False) | committed

    def _queries(self, before: Batch, chosen: Tensor, hidden: Tensor) -> Tensor:
        """What the reconsidered rows read in their tokens' place [n, m, h]."""
        kind = self.config.self_query
        if kind == "token":
            return self.base.embed(before.tokens.gather(1, chosen))
        if kind in GUESSES:
            at = chosen[..., None].expand(-1, -1, before.guessed.shape[2])
            return self.guess_embedding(before.guessed.gather(1, at), before.chances.gather(1, at))
        return self.own_query(hidden)

    def _batch(self, frontier: Frontier, logits: Tensor, offers: Offers) -> Batch:
        """What a step grew. logits, offers: of the frontier's rows, and maybe others after them.

        Where the offers are the likeliest tokens, the guess is read off them: to look over the vocabulary once more
        costs as much as a narrow layer.
        """
        first, width, count = frontier.first_row, frontier.width, min(self._guessed, logits.shape[-1])
        if offers.likeliest and offers.tokens.shape[-1] >= count:
            logs = offers.scores[:, :width, :count]
            guessed, chances, confidence = offers.tokens[:, :width, :count], logs.softmax(-1), logs[..., 0].exp()
        else:
            guessed, chances, confidence = self.guess(logits[:, :width])
        return Batch(
            rows=torch.arange(first, first + frontier.width, device=logits.device),
            tokens=frontier.tokens,
            nodes=frontier.nodes,
            positions=frontier.positions,
            visible=frontier.visible,
            valid=frontier.valid,
            confidence=confidence,
            guessed=guessed,
            chances=chances,
        )

    # -- the training forward ----------------------------------------------------------------------------------

    def unroll_levels(self, batch: UnrollBatch, passes: int, how: Unrolling) -> list[Levels]:
        """Both passes over every row of every pass of `unroll` (methods.md 1.5)."""
        levels = []
        for one in self.base.passes(batch, passes, how):
            hidden = one.recurs.detach() if self.config.stop_gradient else one.recurs
            second = self.base.again(one, self._training_query(one, hidden), hidden)
            if self.config.update == "blend":
                normed = self.base.head_input(self.blended(hidden, second.recurs))
            else:
                normed = second.normed
            levels.append(Levels(one.normed, normed))
        return levels

    def _training_query(self, one: Pass, hidden: Tensor) -> Tensor:
        """What the second pass reads in tokens' place [n, Q, h], as in drafting."""
        if self.config.self_query == "token":
            return self.base.embed(one.tokens)
        if self.config.self_query not in GUESSES:
            return self.own_query(hidden)
        with torch.no_grad():  # a guess is a choice of tokens; what is learnt goes through what recurs
            parts = [self.guess(self.base.logits(rows))[:2] for rows in one.normed.flatten(0, 1).split(ROWS_AT_ONCE)]
            joined = (torch.cat(part) for part in zip(*parts, strict=True))
            return self.guess_embedding(*(part.unflatten(0, hidden.shape[:2]) for part in joined))

    @property
    def _guessed(self) -> int:
        """Tokens that a guess is made of: one where nobody reads more than how likely it is."""
        return self.config.guess if self.config.self_query in GUESSES else 1

    # -- shared by both ----------------------------------------------------------------------------------------

    def guess_embedding(self, guessed: Tensor, chances: Tensor) -> Tensor:
        """The embedding [..., h] of a guess: of its likeliest token, or the mean by chance of all of it [..., g]."""
        if self.config.self_query == "hard_guess":
            return self.base.embed(guessed[..., 0])
        return (self.base.embed(guessed) * chances[..., None]).sum(-2)

    def blended(self, first: Tensor, second: Tensor) -> Tensor:
        """What recurs [..., h] of a row thought over: the first pass's, moved by a share of its own per channel."""
        return first.lerp(second, self.share.to(first.dtype))

    def own_query(self, hidden: Tensor) -> Tensor:
        """A query made of the direction of the node's own output [..., h], or a learned one."""
        if self.config.self_query == "learned":
            return self.query.expand_as(hidden)
        return self.query_proj(nn.functional.rms_norm(hidden, hidden.shape[-1:]))

    def guess(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(target ids [..., g], their chances, which sum to 1, and the chance of the likeliest [...]) of a row."""
        likeliest = logits.topk(min(self._guessed, logits.shape[-1]), dim=-1)
        confidence = (likeliest.values[..., 0] - logits.logsumexp(-1)).exp()
        ids = likeliest.indices if self.base.ids is None else self.base.ids[likeliest.indices]
        return ids, likeliest.values.softmax(-1), confidence


def _embedding_size(base: RecurrentBody) -> float:
    """Root mean square of the drafter's embeddings, of some thousand tokens over the whole vocabulary.

    1 where there are none to look at: a drafter without weights, made to be counted.
    """
    ids = torch.arange(0, base.config.vocab_size, max(1, base.config.vocab_size // SAMPLED), device=base.like.device)
    embedded = base.embed(ids)
    return 1.0 if embedded.is_meta else float(embedded.float().square().mean().sqrt())
