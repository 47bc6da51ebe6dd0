"""Randomness and distributions: seed-exact noise, processing shared by target and draft, the choice of offers.

Knows tensors, positions and request keys; nothing of drafters, targets, trees or budgets.

Every random number is a pure function of (seed, stream, request key, counters): integer hashing in int64, the same on
every device, in every batch and for every drafter. The four streams never meet: sharing noise between draft,
acceptance test and residual draw biases the output.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import attrs
import torch
from torch import Tensor

from drafterzoo.budget import MOST as MOST_NODES
from drafterzoo.engine.contract import Frontier, Offers
from drafterzoo.errors import UsageError

# Streams. MATCH: the target's own choice (and coupled proposals). The other three serve `rejection`.
MATCH, PROPOSAL, ACCEPTANCE, RESIDUAL = 1, 2, 3, 4

_LOW32 = (1 << 32) - 1
_LOW63 = (1 << 63) - 1
MOST = 1e30  # of any setting that is a number: beyond, float32 has no room for what is multiplied with it
COLDEST = 1e-6  # the least temperature above 0: far below it, logits over temperature leave float32
_BELOW_ONE = 1.0 - 2.0**-24  # the greatest float32 below 1


def _signed(word: int) -> int:
    """A 64-bit word as the int64 with the same bits."""
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >> 63 else word


# Odd multipliers with well-spread bits: 2^64 divided by the golden ratio, and two primes' square roots.
_STEP = _signed(0x9E3779B97F4A7C15)
_SPREAD_A = _signed(0xB504F333F9DE6485)
_SPREAD_B = _signed(0xDDB3D742C265539F)


# ------------------------------------------------------------------------------------------------ what is asked for


def _number(low: float, high: float, example: str, *, above: bool = False) -> Any:
    def check(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        fine = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MOST
        if not (fine and (low < value if above else low <= value) and value <= high):
            bounds = f"above {low:g}" if above else f"of at least {low:g}"
            limit = f" and at most {min(high, MOST):g}"
            raise UsageError(
                f"sampling: {attribute.name} is {value!r}, expected a number {bounds}{limit}; for example {example}."
            )

    return check


def _warm_enough(instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
    if 0 < value < COLDEST:
        raise UsageError(
            f"sampling: temperature is {value!r}, expected 0 (the likeliest token) or at least {COLDEST:g}; "
            f"for example temperature=0."
        )


def _whole(minimum: int | None, example: str) -> Any:
    def check(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or (minimum is not None and value < minimum):
            least = "" if minimum is None else f" of at least {minimum}"
            raise UsageError(
                f"sampling: {attribute.name} is {value!r}, expected a whole number{least}; for example {example}."
            )

    return check


def _switch(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, bool):
        raise UsageError(f"sampling: {attribute.name} is {value!r}, expected True or False; for example True.")


def _rule(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value not in ("match", "rejection"):
        raise UsageError(f"sampling: verification is {value!r}, expected 'match' or 'rejection'; for example 'match'.")


@attrs.frozen
class Sampling:
    """How the target's distribution is processed, and by which exact rule drafts are accepted.

    temperature 0 takes the likeliest token. top_k 0 and top_p 1 filter nothing. verification: "match" follows the
    target's own seed-exact choice, so every drafter gives the same text; "rejection" is exact in distribution only.
    coupled: with `match` above temperature 0, drafters rank their children with the same noise as the target (arXiv
    2408.07978).

    Raises UsageError when a field is out of range.
    """

    temperature: float = attrs.field(default=0.0, validator=[_number(0.0, math.inf, "temperature=0.7"), _warm_enough])
    top_p: float = attrs.field(default=1.0, validator=_number(0.0, 1.0, "top_p=0.95", above=True))
    top_k: int = attrs.field(default=0, validator=_whole(0, "top_k=50"))
    seed: int = attrs.field(default=0, validator=_whole(None, "seed=0"))
    verification: Literal["match", "rejection"] = attrs.field(default="match", validator=_rule)
    coupled: bool = attrs.field(default=True, validator=_switch)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def rejects(self) -> bool:
        """Whether acceptance is by rejection sampling; at temperature 0 both rules are the same argmax walk."""
        return self.verification == "rejection" and not self.greedy


# --------------------------------------------------------------------------------------- the processed distribution


def filtered(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits [..., V] at the temperature, -inf outside top-k and top-p, not normalised: float32 (float64 if given so).

    Tokens that tie with the last one admitted are admitted too, so the result does not depend on the order of a sort.
    At temperature 0 the logits come back as they are: ranks are all that matters there.
    """
    if logits.dtype not in (torch.float32, torch.float64):
        logits = logits.float()
    if sampling.greedy:
        return logits
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        least = logits.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < least, -math.inf)
    if sampling.top_p < 1:
        logits = logits.masked_fill(logits < _nucleus_floor(logits, sampling.top_p), -math.inf)
    return logits


def process(logits: Tensor, sampling: Sampling) -> Tensor:
    """Log-probabilities [..., V] after temperature, top-k and top-p, in this order: one function for target and draft.

    At temperature 0 it is the plain log-softmax, by which drafters rank.
    """
    return filtered(logits, sampling).log_softmax(-1)


def _nucleus_floor(logits: Tensor, top_p: float) -> Tensor:
    """The logit [..., 1] of the last token of the smallest set of likeliest tokens that holds `top_p`."""
    total = logits.logsumexp(-1, keepdim=True)
    width = logits.shape[-1]
    # A sort of the whole vocabulary costs milliseconds on a CPU, and a short prefix nearly always holds the mass.
    # Whether it does is asked only there, where asking is free; the answer is the same either way.
    prefixes = [size for size in (64, 1024, 8192) if size < width] if logits.device.type == "cpu" else []
    for size in [*prefixes, width]:
        likeliest = logits.topk(size, dim=-1).values if size < width else logits.sort(-1, descending=True).values
        mass = (likeliest - total).exp().cumsum(-1)
        if size == width or bool((mass[..., -1] >= top_p).all()):
            break
    needed = (mass < top_p).sum(-1, keepdim=True).clamp(max=width - 1)
    return likeliest.gather(-1, needed)


# ------------------------------------------------------------------------------------------------------------ noise


def _logical_shift(x: Tensor, by: int) -> Tensor:
    return (x >> by).bitwise_and_((1 << (64 - by)) - 1)


def _mix(x: Tensor) -> Tensor:
    """A bijection of int64 in which every input bit moves every output bit: three xor-shifts, two multiplications."""
    x = (x ^ _logical_shift(x, 32)) * _SPREAD_A
    x = (x ^ _logical_shift(x, 29)) * _SPREAD_B
    return x ^ _logical_shift(x, 32)


def derive(key: Tensor, counter: Tensor | int) -> Tensor:
    """The key of one counter value below `key`: a hash of both, broadcast."""
    # a number stays one: made into a tensor on the device it would be waited for, in the middle of a round
    spread = _signed(counter * _STEP + 1) if isinstance(counter, int) else counter * _STEP + 1
    return _mix(_mix(key + _STEP) ^ spread)


class Hash:
    """Uniform, exponential and Gumbel numbers below given keys; column j of a row depends on (key, j) alone."""

    def __init__(self, width: int, device: torch.device) -> None:
        self._columns = _mix(torch.arange(1, width + 1, device=device) * _STEP)

    def uniform(self, keys: Tensor, width: int | None = None) -> Tensor:
        """float32 [..., width] in [0, 1) for keys [...]; small values keep full relative precision (63 random bits)."""
        x = keys[..., None] ^ self._columns[:width]
        x.mul_(_SPREAD_A)
        x.bitwise_xor_((x >> 32).bitwise_and_(_LOW32))
        x.mul_(_SPREAD_B)
        x = x.bitwise_right_shift_(1).bitwise_and_(_LOW63)
        return x.float().mul_(2.0**-63).clamp_(max=_BELOW_ONE)

    def gumbel(self, keys: Tensor, width: int | None = None) -> Tensor:
        """Standard Gumbel float32 [..., width]: -log E with E = -log(1-u), precise at great g, where it matters."""
        return self.uniform(keys, width).neg_().log1p_().neg_().log_().neg_()


class NoiseBook:
    """The match noise of every open position: made once when the position opens, kept until it is decided.

    For each of n requests the positions root+1 .. root+window are open. A ring: position t lies at slot t modulo
    window.
    """

    def __init__(self, keys: Tensor, hash: Hash, width: int, window: int) -> None:
        self._keys, self._hash, self.window = keys, hash, window
        self._values = torch.empty(len(keys), window, width, device=keys.device)

    def open(self, roots: Tensor, fresh: int) -> None:
        """Make the noise of the last `fresh` positions of the window after the roots [n]; the others are there."""
        fresh = min(fresh, self.window)
        newest = roots[:, None] + torch.arange(self.window - fresh + 1, self.window + 1, device=roots.device)
        noise = self._hash.gumbel(derive(self._keys[:, None], newest), self._values.shape[-1])
        slots = (newest % self.window)[..., None].expand_as(noise)
        self._values.scatter_(1, slots, noise)

    def at(self, positions: Tensor, columns: Tensor | None = None) -> Tensor:
        """Noise [n, R, V] at open positions [n, R], or [n, R, D] of the given columns [D]."""
        requests = torch.arange(len(positions), device=positions.device)[:, None]
        slots = positions % self.window
        if columns is None:
            return self._values[requests, slots]
        return self._values[requests[..., None], slots[..., None], columns]

    def keep(self, requests: Tensor) -> None:
        self._keys, self._values = self._keys[requests], self._values[requests]


class Sampler:
    """The randomness of n requests in flight, and the choices made with it. `begin` opens each round.

    keys [n] int64 name the requests: the same key gives the same noise, whatever the batch. window: depth + 1.
    """

    def __init__(self, sampling: Sampling, keys: Tensor, vocab_size: int, window: int) -> None:
        self.sampling, self.vocab_size, self.window = sampling, vocab_size, window
        self._keys = keys
        self.roots = torch.zeros_like(keys)
        self._hash = Hash(max(vocab_size, MOST_NODES), keys.device)  # a walk may make more tests than there are tokens
        matching = not (sampling.greedy or sampling.rejects)
        self.book = NoiseBook(self._stream(MATCH), self._hash, vocab_size, window) if matching else None

    def _stream(self, stream: int) -> Tensor:
        seed = torch.full_like(self._keys, _signed(self.sampling.seed))
        return derive(derive(_mix(seed + _STEP), stream), self._keys)

    def begin(self, roots: Tensor, fresh: int | None = None) -> None:
        """The round after the roots at positions [n] begins; `fresh`: how far they moved at most (None: unknown)."""
        self.roots = roots
        if self.book is not None:
            self.book.open(roots, self.window if fresh is None else fresh)

    def choose(self, logits: Tensor, positions: Tensor) -> Tensor:
        """The target's own token [n] for open positions [n], from its logits [n, V]: argmax of processed log p + g."""
        if self.book is None:
            return logits.argmax(-1)
        return (filtered(logits, self.sampling) + self.book.at(positions[:, None])[:, 0]).argmax(-1)

    # The three streams of `rejection`, keyed by the root's position: no two rounds share a number.

    def proposal_noise(self, first_row: int, rows: int, width: int) -> Tensor:
        """Gumbel noise [n, rows, width] for what rows first_row.. propose: independent between rows and rounds."""
        numbers = torch.arange(first_row, first_row + rows, device=self.roots.device)
        keys = derive(derive(self._stream(PROPOSAL), self.roots)[:, None], numbers)
        return self._hash.gumbel(keys, width)

    def acceptance_uniforms(self, tests: int) -> Tensor:
        """Uniforms [n, tests] for the acceptance tests of this round, in the order they are made."""
        return self._hash.uniform(derive(self._stream(ACCEPTANCE), self.roots), tests)

    def residual_draw(self, probabilities: Tensor) -> Tensor:
        """A token [n] drawn from distributions [n, V] (not necessarily normalised) with this round's last noise."""
        noise = self._hash.gumbel(derive(self._stream(RESIDUAL), self.roots), probabilities.shape[-1])
        return (probabilities.log() + noise).argmax(-1)

    def keep(self, requests: Tensor) -> None:
        """Keep only these requests, in this order."""
        self._keys, self.roots = self._keys[requests], self.roots[requests]
        if self.book is not None:
            self.book.keep(requests)


# ----------------------------------------------------------------------------------------------------------- offers


@attrs.frozen
class Coupling:
    """The score of a coupled child: log-softmax over the draft vocabulary of `prior` * log q + `noise` * g.

    Coupled drafting ranks children by log q + g, but q is not p, so the leader is the target's choice with some chance
    only. If log p differs from log q by errors of a Gumbel-like scale s, that chance is softmax((log q + g) / s): both
    weights 1/s. Two weights allow for errors that grow where q is small. `engine/coupling.py` fits them. The weights
    are those at temperature 1: temperature T divides the errors by T too, so there both are T times as great.
    """

    prior: float = 1.0
    noise: float = 1.0

    @classmethod
    def of(cls, value: Any) -> Coupling:
        """From a drafter's config: a scale s, a pair of weights, or a Coupling."""
        if isinstance(value, Coupling):
            return value
        if isinstance(value, int | float):
            return cls(1.0 / value, 1.0 / value)
        prior, noise = value
        return cls(float(prior), float(noise))


class Selector:
    """Turns a drafter's logits into offers, by the rule in force. A drafter calls it and knows nothing of sampling.

    offer: children per row, at most.
    """

    def __init__(self, sampler: Sampler, offer: int, coupling: Coupling | None = None) -> None:
        self.sampler, self.offer = sampler, offer
        coupling, heat = coupling or Coupling(), sampler.sampling.temperature
        self._prior, self._noise = coupling.prior * heat, coupling.noise * heat

    def __call__(self, logits: Tensor, frontier: Frontier, vocabulary: Tensor | None = None) -> Offers:
        """Offers of the frontier's rows from logits [n, R, D]; vocabulary [D] gives the target ids of the columns.

        One row of logits [n, 1, D] stands for all of a frontier whose rows lie at one position: that of a block
        drafter, whose logits do not depend on the node.
        At temperature 0, and with coupled=False, the likeliest by q, scored by log q. With coupling, the best by the
        score of `Coupling` at the child's position. In `rejection`, a sample from q without replacement.
        """
        sampling = self.sampler.sampling
        log_q = process(logits, sampling)
        count = min(self.offer, logits.shape[-1])
        if sampling.rejects:
            return self._sampled(log_q, frontier, vocabulary, count)
        ranks = log_q
        if self.sampler.book is not None and sampling.coupled:
            ranks = self.coupled(log_q, frontier.positions[:, : log_q.shape[1]] + 1, vocabulary)
        scores, columns = ranks.topk(count, dim=-1)
        tokens, scores = _ids(columns, vocabulary), scores.clamp(max=0.0)
        rows = (-1, frontier.nodes.shape[1], -1)
        return Offers(frontier.nodes, tokens.expand(*rows), scores.expand(*rows), likeliest=sampling.greedy)

    def coupled(self, log_q: Tensor, positions: Tensor, vocabulary: Tensor | None) -> Tensor:
        """Log of the estimated chance [n, R, D] that each token is the target's choice at open positions [n, R]."""
        assert self.sampler.book is not None, "coupling needs the match noise"
        noise = self.sampler.book.at(positions, vocabulary)
        return (log_q * self._prior + noise * self._noise).log_softmax(-1)

    def _sampled(self, log_q: Tensor, frontier: Frontier, vocabulary: Tensor | None, count: int) -> Offers:
        """Gumbel top-k: a sample without replacement, in the order of drawing.

        `keep` is the log of the mass that was left before each draw: it knows earlier siblings and nothing of the child
        itself, so whether a slot is verified cannot depend on the token in it.
        """
        rows = frontier.nodes.shape[1]
        noise = self.sampler.proposal_noise(frontier.first_row, rows, log_q.shape[2])
        columns = (log_q + noise).topk(count, dim=-1).indices
        scores = log_q.expand_as(noise).gather(-1, columns)
        q = log_q.exp()
        drawn = q.expand_as(noise).gather(-1, columns).cumsum(-1)
        left = 1.0 - torch.cat((torch.zeros_like(drawn[..., :1]), drawn[..., :-1]), dim=-1)
        keep = left.clamp(min=1e-30).log().masked_fill(scores == -math.inf, -math.inf)
        if vocabulary is not None:
            full = torch.zeros(*q.shape[:-1], self.sampler.vocab_size, dtype=q.dtype, device=q.device)
            q = full.index_copy_(-1, vocabulary, q)
        return Offers(frontier.nodes, _ids(columns, vocabulary), scores.clamp(max=0.0), keep, q.expand(-1, rows, -1))


def _ids(columns: Tensor, vocabulary: Tensor | None) -> Tensor:
    return columns if vocabulary is None else vocabulary.take(columns)
