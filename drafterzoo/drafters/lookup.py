"""Prompt lookup: drafts copied from what followed the same n-gram earlier in the text. No parameters, no forwards.

The baseline that a trained drafter must beat. Proposals are deterministic, so it fills in its offers itself. Knows the
text of each request; nothing of growth, verification or sampling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor

from drafterzoo.budget import Budget
from drafterzoo.drafters.base import Drafter, with_options
from drafterzoo.engine.contract import Committed, Counters, Frontier, Offers
from drafterzoo.engine.sampling import Selector
from drafterzoo.errors import UsageError
from drafterzoo.target.target import Target

MATCHES = 16  # earlier places followed at most, per request
FADE = math.log(0.8)  # per level, so that another branch can win against the far end of a long copy


@attrs.frozen
class LookupConfig:
    """max_ngram: the longest suffix looked for; min_ngram: the shortest that counts as found."""

    max_ngram: int = 3
    min_ngram: int = 1

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.min_ngram <= self.max_ngram:
            raise UsageError(
                f"lookup: min_ngram={self.min_ngram} and max_ngram={self.max_ngram}, expected 1 <= min_ngram <= "
                f"max_ngram; for example lookup(max_ngram=3, min_ngram=1)."
            )


@attrs.define(eq=False)
class LookupState:
    """Requests in flight.

    text [n, capacity+1]: the committed tokens, root included; roots [n]: the root's position; longest: host-known
    bound. ends [n, C]: where the matched n-grams end, best first; weights [n, C], 0 for no match. agreeing [n, 1+rows,
    C]: which matches have gone the way of each row of this round.
    """

    text: Tensor
    roots: Tensor
    longest: int
    ends: Tensor
    weights: Tensor
    agreeing: Tensor
    counters: Counters = attrs.Factory(Counters)

    def keep(self, requests: Tensor) -> None:
        for name in ("text", "roots", "ends", "weights", "agreeing"):
            setattr(self, name, getattr(self, name)[requests])


class Lookup(Drafter):
    """Proposes what followed the same last tokens earlier in the text; where matches part, so does the tree."""

    name: ClassVar[str] = "lookup"
    Config: ClassVar[type] = LookupConfig
    has_weights: ClassVar[bool] = False
    source: ClassVar[str] = "prompt lookup decoding, https://github.com/apoorvumang/prompt-lookup-decoding"
    meanings: ClassVar[Mapping[str, str]] = {
        "max_ngram": "the longest run of last tokens that is looked for earlier in the text",
        "min_ngram": "the shortest run that counts as found",
    }

    config: LookupConfig

    def __init__(self, config: LookupConfig, target: Target) -> None:
        super().__init__(config, target)
        self.budget = Budget.chain(4)

    @classmethod
    def default_config(cls, target: Target, **options: Any) -> LookupConfig:
        return with_options(cls.Config, cls.name, {}, options)

    def open(self, target: Target, n: int, capacity: int, depth: int, rows: int) -> LookupState:
        device = target.device
        zeros = torch.zeros(n, MATCHES, device=device)
        return LookupState(
            text=torch.zeros(n, capacity + 1, dtype=torch.int64, device=device),
            roots=torch.zeros(n, dtype=torch.int64, device=device),
            longest=0,
            ends=zeros.long(),
            weights=zeros,
            agreeing=torch.zeros(n, 1 + rows, MATCHES, dtype=torch.bool, device=device),
        )

    def observe(self, state: LookupState, committed: Committed) -> None:
        """Write down the new tokens and the root, and find the earlier places that match the suffix."""
        last = state.text.shape[1] - 1
        places = torch.where(committed.valid, committed.positions + 1, last)  # padding meets in the last, unused column
        state.text.scatter_(1, places, committed.next_tokens)
        first = torch.where(committed.valid & (committed.positions == 0), 0, last)
        state.text.scatter_(1, first, committed.tokens)
        newest = committed.last[:, None]
        state.roots = committed.positions.gather(1, newest)[:, 0] + 1
        state.longest = committed.longest
        self._search(state)

    def _search(self, state: LookupState) -> None:
        """Fill in `ends` and `weights`: longer matches first, later ones first among equals."""
        text, roots = state.text[:, : state.longest + 1], state.roots[:, None]
        places = torch.arange(text.shape[1], device=text.device)
        alive = places < roots
        length = torch.zeros_like(text)
        for back in range(min(self.config.max_ngram, text.shape[1])):
            wanted = text.gather(1, (roots - back).clamp(min=0))
            before = torch.cat((text.new_full((len(text), back), -1), text[:, : text.shape[1] - back]), dim=1)
            alive = alive & (before == wanted) & (places >= back) & (roots >= back)
            length = length + alive
        found = torch.where(length >= self.config.min_ngram, length, 0)
        order = (found * text.shape[1] + places).topk(min(MATCHES, text.shape[1]), dim=1).indices
        count = order.shape[1]
        state.ends[:, :count] = order
        state.weights.zero_()
        state.weights[:, :count] = torch.where(found.gather(1, order) > 0, 2.0 ** found.gather(1, order), 0.0)

    def expand(self, state: LookupState, frontier: Frontier, select: Selector) -> Offers:
        """What came next after each match that agrees with the path so far, weighted by the matches' lengths."""
        first, width = frontier.first_row, frontier.width
        if frontier.step == 0:
            agreeing = (state.weights > 0)[:, None]
        else:
            before = state.agreeing.gather(1, frontier.sources[..., None].expand(-1, -1, MATCHES))
            ahead = frontier.positions - state.roots[:, None]
            agreeing = before & (self._following(state, ahead) == frontier.tokens[..., None])
        state.agreeing[:, first : first + width] = agreeing
        tokens = self._following(state, frontier.positions - state.roots[:, None] + 1)
        weights = state.weights[:, None] * agreeing
        same = (tokens[..., None] == tokens[..., None, :]) & agreeing[..., None, :]
        share = (same * weights[..., None, :]).sum(-1) / weights.sum(-1, keepdim=True).clamp(min=1e-9)
        repeated = same.tril(-1).any(-1)  # an earlier match offers this token already
        scores = (share.log() + FADE).masked_fill(~agreeing | repeated, -math.inf)
        best = scores.sort(dim=-1, descending=True, stable=True)
        count = min(select.offer, MATCHES)
        order = best.indices[..., :count]
        return Offers(frontier.nodes, tokens.gather(-1, order), best.values[..., :count])

    @staticmethod
    def _following(state: LookupState, ahead: Tensor) -> Tensor:
        """The token `ahead` [n, R] places after each match: [n, R, C]. One that runs into the root goes round again."""
        period = (state.roots[:, None] - state.ends).clamp(min=1)[:, None]
        places = state.ends[:, None] + 1 + (ahead[..., None] - 1) % period
        places = places.clamp(min=0, max=state.text.shape[1] - 1)
        return state.text[:, None].expand(-1, ahead.shape[1], -1).gather(2, places)
