"""Expected rounds of chain drafters on given texts: the exact dynamic programme of EDR (arXiv 2610.10411).

Knows probabilities of acceptance and costs; nothing of drafters, targets, tokens or files. In float64, for N texts at
once. Words of methods.md 2.2: state (n, t) is the round that began after n tokens and is now verifying position t. Here
start a is a text's a-th possible round start, and draft j (0..G-1) of start a concerns the token a+1+j; after draft G-1
comes the bonus token, which ends the round for certain. A text of K starts ends with token K: it is the boundary
(end-of-sequence, or where a length limit cut), which costs nothing to reach, by whichever token.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

BLOCK = 256  # starts solved at once: bounds the memory to N * BLOCK * (BLOCK + G + 1) numbers


@attrs.frozen(eq=False)
class Chains:
    """What the programme needs of N texts, with K starts at most.

    accept [N, K, G] float64: A, the chance that a draft is accepted given that the text's token was committed there.
    cost [N, K, G] float64: c, the chance that the target's own token is not the draft, given that the text goes on;
    1 - accept gives the realised estimator. starts [N] int64: how many starts each text has. Entries past a text's last
    ordinary token may hold anything.
    """

    accept: Tensor
    cost: Tensor
    starts: Tensor

    def realised(self) -> Chains:
        """The same chains at the cost that the texts themselves show: R = 1 - A."""
        return attrs.evolve(self, cost=1.0 - self.accept)

    def inside(self) -> Tensor:
        """[N, K, G+1] bool: the states whose token is an ordinary one, the bonus token's state last."""
        starts, drafts = self.accept.shape[1:]
        device = self.accept.device
        token = torch.arange(starts, device=device)[:, None] + torch.arange(1, drafts + 2, device=device)
        return token < self.starts[:, None, None]

    def moves(self) -> tuple[Tensor, Tensor]:
        """(A, R) [N, K, G+1] of every state: 0 and 1 at the bonus token, both 0 where the text is over."""
        inside = self.inside().double()
        accept = torch.cat((self.accept, torch.zeros_like(self.accept[..., :1])), dim=-1) * inside
        return accept, inside - accept


def occupancies(chains: Chains) -> Tensor:
    """w [N, K, G+1]: the chance, given the text, that the state of start a at draft j is visited; the first has 1."""
    accept, refuse = chains.moves()
    survival = _survival(accept)
    jumps = survival * refuse  # [N, a, j]: from start a to start a+1+j
    width = jumps.shape[-1]
    arrivals = torch.zeros_like(jumps)
    for back in range(min(width, jumps.shape[1] - 1)):
        arrivals[:, back + 1 :, back] = jumps[:, : -back - 1, back]
    first = torch.zeros_like(jumps[..., 0])
    first[:, 0] = (chains.starts > 0).to(first.dtype)
    starts = solve(arrivals.flip(1), first.flip(1)).flip(1)
    return starts[..., None] * survival


def values(chains: Chains) -> Tensor:
    """V [N, K, G+1]: expected further rounds from each state, the present one not counted (methods.md 2.4)."""
    accept, refuse = chains.moves()
    cost = torch.cat((chains.cost, torch.ones_like(chains.cost[..., :1])), dim=-1)
    cost = torch.where(chains.inside(), cost, 0.0)
    survival = _survival(accept)
    fresh = solve(survival * refuse, (survival * cost).sum(-1))  # of every start
    ahead = torch.cat((fresh, fresh.new_zeros(len(fresh), cost.shape[-1])), dim=1)
    value = torch.empty_like(cost)
    later = torch.zeros_like(fresh)
    for draft in reversed(range(cost.shape[-1])):
        restart = ahead[:, draft + 1 : draft + 1 + fresh.shape[1]]
        later = cost[..., draft] + accept[..., draft] * later + refuse[..., draft] * restart
        value[..., draft] = later
    return value


def realised_rounds(chains: Chains) -> Tensor:
    """tau(x) [N]: expected rounds given each text, from A alone."""
    return occupancies(chains)[..., 0].sum(1)


def smoothed_rounds(chains: Chains) -> Tensor:
    """1 + V of the first start [N]: the estimator with the target's own chances in place of the text's tokens.

    Averaged over texts drawn from the target it has the same mean as `realised_rounds`; per text the two differ.
    """
    return torch.where(chains.starts > 0, 1.0 + values(chains)[:, 0, 0], 0.0)


def rounds_of_at_least(chains: Chains) -> Tensor:
    """[N, G+1]: expected rounds that commit at least j tokens, j = 1..G+1.

    The boundary's own state counts as reached and never as accepted, so a quotient of two neighbours is slightly low
    where texts are short (methods.md 2.8).
    """
    return occupancies(chains).sum(1)


def _survival(accept: Tensor) -> Tensor:
    """Products of the acceptances before each draft."""
    before = torch.cat((torch.ones_like(accept[..., :1]), accept[..., :-1]), dim=-1)
    return before.cumprod(-1)


def solve(jumps: Tensor, gain: Tensor) -> Tensor:
    """u [N, K] with u_a = gain_a + sum_j jumps[a, j] u_{a+1+j}, and u = 0 past the end.

    A unit triangular system with a band of J = G+1 numbers, solved from the end in blocks.
    """
    texts, starts, width = jumps.shape
    u = jumps.new_zeros(texts, starts + width)
    for end in range(starts, 0, -BLOCK):
        begin = max(0, end - BLOCK)
        size = end - begin
        band = jumps.new_zeros(texts, size, size + width)
        columns = torch.arange(size, device=jumps.device)[:, None] + 1 + torch.arange(width, device=jumps.device)
        band.scatter_(2, columns.expand(texts, -1, -1), jumps[:, begin:end])
        known = gain[:, begin:end] + (band[..., size:] @ u[:, end : end + width, None])[..., 0]
        system = torch.eye(size, dtype=jumps.dtype, device=jumps.device) - band[..., :size]
        u[:, begin:end] = torch.linalg.solve_triangular(system, known[..., None], upper=True, unitriangular=True)[
            ..., 0
        ]
    return u[:, :starts]


def inclusion(occupancy: Tensor, count: float) -> tuple[float, Tensor]:
    """(lambda, pi [K]) with pi = min(1, lambda * occupancy) and sum(pi) = count: which starts a stochastic estimator
    should look at, `count` of them on average (methods.md 2.6). All of them where no more than `count` are occupied.
    """
    reached = occupancy > 0
    if int(reached.sum()) <= count:
        return float("inf"), reached.to(occupancy.dtype)
    ordered = occupancy.sort(descending=True).values
    rest = ordered.flip(0).cumsum(0).flip(0)
    taken = torch.arange(len(ordered), dtype=occupancy.dtype, device=occupancy.device)
    scales = (count - taken) / rest  # were the greatest 0, 1, 2, ... taken for certain
    fits = (scales * ordered <= 1.0) & (taken < count)
    scale = float(scales[fits.long().argmax()])
    return scale, (scale * occupancy).clamp(max=1.0)
