"""Adding up every outcome of `rejection`: all draws, all accept/reject patterns, as one batch of the real code.

The sampler is rigged: it draws in a given order and accepts as told. What each order and each decision was worth is
read off the code itself (the q it stored, the chances it compared with), so the sum is the exact law of the emitted
tokens.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from drafterzoo.engine.contract import DraftTree, Frontier, Offers
from drafterzoo.engine.sampling import Sampler, Selector
from drafterzoo.engine.verify import RejectionWalk


class Rigged(Sampler):
    """A sampler of every case at once: each request has its own draws and decisions, see `cases`."""

    draws: Tensor  # [n, rows, D]: when each column is drawn
    bits: Tensor  # [n, tests] bool: accept
    chances: list[Tensor]  # per row, the probability of its order of drawing

    @staticmethod
    def cases(rows: int, columns: int, tests: int) -> tuple[Tensor, Tensor]:
        orders = torch.tensor(list(itertools.permutations(range(columns))))
        draws = torch.tensor(list(itertools.product(range(len(orders)), repeat=rows)), dtype=torch.int64)
        bits = torch.tensor(list(itertools.product([True, False], repeat=tests)))
        return orders[draws].repeat_interleave(len(bits), dim=0), bits.repeat(len(draws), 1)

    def rig(self, draws: Tensor, bits: Tensor) -> None:
        self.draws, self.bits, self.chances = draws, bits, []

    def proposal_noise(self, first_row: int, rows: int, width: int) -> Tensor:
        # Gaps beyond any difference of log q: the order of drawing is the rig's.
        return -1e6 * self.draws[:, first_row : first_row + rows].double()

    def acceptance_uniforms(self, tests: int) -> Tensor:
        return torch.where(self.bits[:, :tests], -1.0, 2.0).double()


class Weighing(Selector):
    """A selector that notes how likely each row's rigged order of drawing was."""

    def __call__(self, logits: Tensor, frontier: Frontier, vocabulary: Tensor | None = None) -> Offers:
        offers = super().__call__(logits, frontier, vocabulary)
        assert isinstance(self.sampler, Rigged) and offers.q is not None
        q = offers.q if vocabulary is None else offers.q[..., vocabulary]
        for column in range(frontier.width):
            order = self.sampler.draws[:, frontier.first_row + column]
            self.sampler.chances.append(chance_of_order(q[:, column].double(), order))
        return offers


def chance_of_order(q: Tensor, order: Tensor) -> Tensor:
    """Probability [n] that sampling without replacement from q [n, D] draws column d as number order[d]."""
    drawn = torch.zeros_like(q).scatter(1, order, q)
    left = 1.0 - torch.cat((torch.zeros_like(drawn[:, :1]), drawn[:, :-1].cumsum(1)), dim=1)
    # Once nothing is left there is no draw, and whatever order the rig puts the rest in is as good as certain.
    return torch.where(left > 1e-12, drawn / left.clamp(min=1e-12), 1.0).clamp(max=1.0).prod(1)


def weights(walk: RejectionWalk, sampler: Rigged) -> Tensor:
    """Probability [n] of every case. Of the cases that differ in tests that were not made, one counts."""
    made = walk.tested.shape[1]
    decided = torch.where(sampler.bits[:, :made], walk.chance, 1.0 - walk.chance)
    weight = torch.where(walk.tested, decided, 1.0).double().prod(1)
    unmade = torch.cat((~walk.tested, torch.ones_like(sampler.bits[:, made:])), dim=1)
    weight = weight * ~(unmade & ~sampler.bits).any(1)
    for chance in sampler.chances:
        weight = weight * chance
    unforwarded = sampler.draws.shape[1] - len(sampler.chances)  # rows in which no case had a node to grow
    return weight / math.factorial(sampler.draws.shape[2]) ** unforwarded


Law = Callable[[tuple[int, ...]], Tensor]  # the target's next-token probabilities [V] after these tokens


def emitted(
    walk: RejectionWalk, tree: DraftTree, weight: Tensor, following: Law, vocabulary: int, length: int
) -> Tensor:
    """Joint law [V]*length of the first tokens after the root; where a round is shorter the target goes on alone."""
    total = torch.zeros([vocabulary] * length, dtype=torch.float64)
    residual = (walk.residual / walk.residual.sum(1, keepdim=True)).double()
    for case in weight.nonzero()[:, 0].tolist():
        accepted = int(walk.verdict.accepted[case])
        kept = tuple(tree.tokens[case, walk.verdict.path[case, 1 : accepted + 1] - 1].tolist())
        heads = {kept: 1.0}
        if accepted < length:
            heads = {(*kept, x): float(residual[case, x]) for x in range(vocabulary)}
        for head, mass in heads.items():
            total[head[:length]] += weight[case] * mass * joint(following, vocabulary, length, head[:length])
    return total


def joint(following: Law, vocabulary: int, length: int, head: tuple[int, ...] = ()) -> Tensor:
    """The target's own joint law of tokens len(head)+1 .. length, after the head."""
    if len(head) == length:
        return torch.ones((), dtype=torch.float64)
    if len(head) + 1 == length:
        return following(head).double()
    rest = [joint(following, vocabulary, length, (*head, x)) for x in range(vocabulary)]
    return torch.stack([following(head)[x].double() * rest[x] for x in range(vocabulary)])
