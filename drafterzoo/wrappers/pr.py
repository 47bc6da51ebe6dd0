"""Parallel Reconsideration: the nodes that hesitated most are thought over once more, in the batch of the next step.

Source: methods.md 1. A reconsidered node's own output is fed back through the same block, at the same position, beside
the rows that grow the tree; what it then offers joins the tree as further children of the node. Knows a recurrent
drafter's rows (drafters/recurrent.py) and the contract; nothing of how offers are chosen, merged, cut or verified.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
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

    frontier: their nodes; confidence [n, W]: the drafter's chance of its likeliest child; guess: its likeliest children
    [n, W, g], as target ids, and their chances, which sum to 1, where asked for.
    """

    frontier: Frontier
    confidence: Tensor
    guess: tuple[Tensor, Tensor] | None


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
        if frontier.step:
            frontier = self._sighted(state, frontier)
        before = state.previous if self._reconsiders(frontier.step) else None
        if before is not None:
            chosen, wanted = self._hesitant(before, frontier)
            if chosen.shape[1]:
                return self._both_levels(state, before, chosen, wanted, frontier, select)
        logits = self.base.frontier_logits(state.base, frontier)
        offers = select(logits, frontier, self.base.ids)
        state.previous = self._batch(frontier, logits, offers) if self._reconsiders(frontier.step + 1) else None
        return offers

    def _sighted(self, state: PrState, frontier: Frontier) -> Frontier:
        """The frontier, whose rows attend what offered them: a second pass's keys in the place of its first's."""
        if state.sight is None:
            return frontier
        first, width = frontier.first_row, frontier.width
        seen = state.sight.gather(1, frontier.sources[..., None].expand(-1, -1, state.sight.shape[2]))
        seen[:, :, first : first + width] |= torch.eye(width, dtype=torch.bool, device=seen.device)
        state.sight[:, first : first + width] = seen
        return attrs.evolve(frontier, visible=seen[..., : first + width])

    def _both_levels(
        self, state: PrState, before: Batch, chosen: Tensor, wanted: Tensor, frontier: Frontier, select: Selector
    ) -> Offers:
        """One forward over the frontier's rows and, after them, the rows that are reconsidered."""
        base, width = self.base, frontier.width
        rows = self._second_rows(before.frontier, chosen, wanted, frontier)
        if state.sight is not None:
            self._replace(state.sight, rows, width)
        hidden = base.outputs_of(state.base, rows.sources)
        queries = self._queries(before, chosen, rows.tokens[:, width:], hidden[:, width:])
        embedded = torch.cat((base.embed(frontier.tokens), queries), dim=1)
        logits = self.logits_of_rows(state, rows, width, embedded, hidden)
        offers = select(logits, rows, base.ids)
        state.previous = self._batch(frontier, logits, offers) if self._reconsiders(frontier.step + 1) else None
        if not _alone(frontier):
            for scores in (offers.scores, offers.keep):
                if scores is not None:
                    scores[:, width:].masked_fill_(~wanted[..., None], -math.inf)
        return attrs.evolve(offers, merge=self.config.merge)

    def logits_of_rows(self, state: PrState, rows: Frontier, width: int, embedded: Tensor, hidden: Tensor) -> Tensor:
        """Logits [n, R, D] of all rows of a step, of which the first `width` grow the tree, in one forward.

        embedded, hidden [n, R, h]: what each row reads.
        """
        seen = rows.positions, rows.visible
        normed = self.base.draft_rows(state.base, rows.first_row, embedded, hidden, *seen, self.settling(width, hidden))
        return self.base.logits(normed)

    def settling(self, width: int, hidden: Tensor) -> Callable[[Tensor], Tensor]:
        """What becomes of what recurs [n, R, h] of rows that read `hidden`: those from `width` on are second passes."""

        def settle(recurs: Tensor) -> Tensor:
            if self.config.update == "blend":
                recurs[:, width:] = self.blended(hidden[:, width:], recurs[:, width:])
            return recurs

        return settle

    def _hesitant(self, before: Batch, frontier: Frontier) -> tuple[Tensor, Tensor]:
        """(columns [n, m] of the batch with the least confidence, which of them are to be reconsidered [n, m]).

        Only nodes whose children may still be kept. m is at most what the budget allows, and where the host may look,
        what some request wants.
        """
        count = min(self.config.reconsider, frontier.extra or self.config.reconsider)
        wanted = before.confidence < self.config.gate
        if frontier.fertile is not None:
            wanted = wanted & (frontier.fertile.gather(1, before.frontier.nodes + 1) > -math.inf)
        if not _alone(frontier):
            wanted = wanted & before.frontier.valid
        doubt = torch.where(wanted, before.confidence, math.inf)
        least, chosen = doubt.topk(min(count, doubt.shape[1]), dim=1, largest=False)
        wanted = least < math.inf
        if frontier.narrow:
            count = int(wanted.sum(dim=1).amax())  # the least sure stand first
            return chosen[:, :count], wanted[:, :count]
        missing = count - chosen.shape[1]  # rows of padding: the batch is as wide in every step
        return nn.functional.pad(chosen, (0, missing)), nn.functional.pad(wanted, (0, missing))

    def _second_rows(self, before: Frontier, chosen: Tensor, wanted: Tensor, frontier: Frontier) -> Frontier:
        """The frontier, then the reconsidered rows, which see what their first pass saw, that pass, and themselves.

        Their sources are their first passes' rows.
        """
        first, width, (n, extra) = frontier.first_row, frontier.width, chosen.shape
        seen = before.visible.gather(1, chosen[..., None].expand(-1, -1, before.visible.shape[2]))
        visible = seen.new_zeros(n, width + extra, first + width + extra)
        visible[:, :width, : first + width] = frontier.visible
        visible[:, width:, : seen.shape[2]] = seen
        visible[:, width:, first + width :].diagonal(dim1=1, dim2=2).fill_(True)
        return Frontier(
            step=frontier.step,
            first_row=first,
            tokens=torch.cat((frontier.tokens, before.tokens.gather(1, chosen)), dim=1),
            nodes=torch.cat((frontier.nodes, before.nodes.gather(1, chosen)), dim=1),
            positions=torch.cat((frontier.positions, before.positions.gather(1, chosen)), dim=1),
            sources=torch.cat((frontier.sources, before.first_row + chosen), dim=1),
            visible=visible,
            valid=torch.cat((frontier.valid, wanted), dim=1),
        )

    def _replace(self, sight: Tensor, rows: Frontier, width: int) -> None:
        """Note that the children of the second passes attend these in the place of the first passes' rows.

        The root's own row is committed context, which stays in everybody's sight.
        """
        first, firsts = rows.first_row + width, rows.sources[:, width:]
        seen = nn.functional.pad(rows.visible[:, width:], (0, sight.shape[2] - rows.visible.shape[2]))
        committed = (firsts == 0)[..., None] & (torch.arange(sight.shape[2], device=sight.device) == 0)
        sight[:, first : first + firsts.shape[1]] = seen.scatter(2, firsts[..., None], False) | committed

    def _queries(self, before: Batch, chosen: Tensor, tokens: Tensor, hidden: Tensor) -> Tensor:
        """What the reconsidered rows read in their tokens' place [n, m, h]."""
        kind = self.config.self_query
        if kind == "token":
            return self.base.embed(tokens)
        if kind in GUESSES and before.guess is not None:
            at = chosen[..., None].expand(-1, -1, before.guess[0].shape[2])
            return self.guess_embedding(before.guess[0].gather(1, at), before.guess[1].gather(1, at))
        return self.own_query(hidden)

    def _batch(self, frontier: Frontier, logits: Tensor, offers: Offers) -> Batch:
        """What a step grew. logits, offers: of the frontier's rows, and maybe others after them.

        Where the offers are the likeliest tokens, the guess is read off them: to look over the vocabulary once more
        costs as much as a narrow layer.
        """
        width, count = frontier.width, min(self._guessed, logits.shape[-1])
        if not offers.likeliest or offers.tokens.shape[-1] < count:
            guessed, chances, confidence = self.guess(logits[:, :width])
        elif self.config.self_query not in GUESSES:
            return Batch(frontier, offers.scores[:, :width, 0].exp(), None)
        else:
            logs = offers.scores[:, :width, :count]
            guessed, chances, confidence = offers.tokens[:, :width, :count], logs.softmax(-1), logs[..., 0].exp()
        return Batch(frontier, confidence, (guessed, chances))

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


def _alone(frontier: Frontier) -> bool:
    """Whether no row stands for nothing: of one request alone, rows that it does not want are left out."""
    return frontier.narrow and len(frontier.tokens) == 1


def _embedding_size(base: RecurrentBody) -> float:
    """Root mean square of the drafter's embeddings, of some thousand tokens over the whole vocabulary.

    1 where there are none to look at: a drafter without weights, made to be counted.
    """
    ids = torch.arange(0, base.config.vocab_size, max(1, base.config.vocab_size // SAMPLED), device=base.like.device)
    embedded = base.embed(ids)
    return 1.0 if embedded.is_meta else float(embedded.float().square().mean().sqrt())
