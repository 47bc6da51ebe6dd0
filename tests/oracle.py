"""A drafter for tests that knows what the target will say, and is wrong as often as asked: rounds accept deep paths."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import attrs
import torch
from torch import Tensor

from drafterzoo.budget import Budget
from drafterzoo.drafters.base import Drafter
from drafterzoo.engine.contract import Committed, Counters, Frontier, Offers
from drafterzoo.engine.decode import Settings, decode
from drafterzoo.engine.sampling import Sampling, Selector
from drafterzoo.target import Target

_ANSWERS: WeakKeyDictionary[Target, dict[object, list[list[int]]]] = WeakKeyDictionary()


def plainly(
    target: Target,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    max_new_tokens: int,
    keys: Sequence[int] | None = None,
    stops: tuple[int, ...] = (),
) -> list[list[int]]:
    """The target's own answers, by plain decoding in one batch; remembered, since tests ask for the same again."""
    keys = tuple(range(len(prompts)) if keys is None else keys)
    asked = (tuple(map(tuple, prompts)), sampling, max_new_tokens, keys, stops)
    known = _ANSWERS.setdefault(target, {})
    if asked not in known:
        known[asked] = [[] for _ in prompts]
        for emission in decode(None, target, prompts, Settings(None, sampling, max_new_tokens, stops), keys):
            known[asked][emission.request] += emission.tokens
    return known[asked]


@attrs.define(eq=False)
class OracleState:
    requests: Tensor  # [n], which text each row of the batch is
    observed: list[tuple[list[int], Committed]] = attrs.Factory(list)
    counters: Counters = attrs.Factory(Counters)

    def keep(self, requests: Tensor) -> None:
        self.requests = self.requests[requests]


class Oracle(Drafter):
    """Puts most mass on the known text's next token; in every `blunder`-th position of the text, on another."""

    name = "oracle"

    def __init__(self, target: Target, texts: Sequence[Sequence[int]], blunder: int = 0) -> None:
        super().__init__(None, target)
        self.texts, self.blunder = texts, blunder

    def open(self, target: Target, n: int, capacity: int, depth: int, rows: int) -> OracleState:
        self.table = torch.zeros(n, capacity + depth + 2, dtype=torch.int64)
        for row, text in enumerate(self.texts):
            self.table[row, : len(text)] = torch.tensor(text)[: self.table.shape[1]]
        self.state = OracleState(torch.arange(n))
        return self.state

    def observe(self, state: OracleState, committed: Committed) -> None:
        state.observed.append((state.requests.tolist(), committed))

    def expand(self, state: OracleState, frontier: Frontier, select: Selector) -> Offers:
        following = frontier.positions + 1
        known = self.table[state.requests[:, None], following.clamp(max=self.table.shape[1] - 1)]
        if self.blunder:
            known = torch.where(following % self.blunder == 0, (known + 1) % self.target.vocab_size, known)
        logits = torch.randn(
            *known.shape, self.target.vocab_size, generator=torch.Generator().manual_seed(frontier.step)
        )
        return select(logits.scatter(2, known[..., None], 9.0), frontier)


def oracle_for(
    target: Target, prompts: Sequence[Sequence[int]], sampling: Sampling, length: int, blunder: int = 0
) -> Oracle:
    """An oracle of what the target says after each prompt (keys 0, 1, ...)."""
    answers = plainly(target, prompts, sampling, length)
    oracle = Oracle(target, [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)], blunder)
    oracle.budget = Budget.chain(4)
    return oracle
