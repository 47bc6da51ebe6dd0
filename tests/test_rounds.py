"""The dynamic programme of expected rounds: fixtures, brute force over texts and over accept/reject patterns."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterator
from functools import lru_cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from drafterzoo.evaluation.offline import rounds, terms
from drafterzoo.evaluation.offline.rounds import Chains, inclusion, occupancies, values

# ------------------------------------------------------------------- fixtures F1 to F4 (methods.md 2.10), as published

F1 = [[0.9, 0.5], [0.8, 0.6], [0.7, 0.4], [0.5, 0.5]]


def chain(accept: list[list[float]], cost: list[list[float]] | None = None) -> Chains:
    """One text whose last start stands before the boundary: nothing is verified there, so it holds nonsense."""
    a = torch.tensor([*accept, [0.3] * len(accept[0])], dtype=torch.float64)[None]
    c = 1.0 - a if cost is None else torch.tensor([*cost, [0.7] * len(accept[0])], dtype=torch.float64)[None]
    return Chains(a, c, torch.tensor([len(accept) + 1]))


def close(found: Tensor, wanted: list[float]) -> bool:
    return torch.allclose(found, torch.tensor(wanted, dtype=torch.float64), atol=1e-12, rtol=0)


def test_f1_starts_values_and_rounds_of_at_least() -> None:
    c = chain(F1)
    assert close(occupancies(c)[0, :, 0], [1, 0.1, 0.47, 0.623, 0.5569])
    assert close(rounds.realised_rounds(c), [2.7499]) and close(rounds.smoothed_rounds(c), [2.7499])
    v = values(c)[0]
    assert close(v[0], [1.7499, 1.685, 1.5]) and close(v[1], [1.334, 1.2, 1.0])
    assert close(v[2], [0.87, 0.6, 0]) and close(v[3], [0.5, 0, 0]) and close(v[4], [0, 0, 0])
    assert close(rounds.rounds_of_at_least(c)[0], [2.7499, 1.6205, 0.6296])


def test_f2_a_cost_of_its_own() -> None:
    c = chain(F1, [[0.2, 0.4], [0.25, 0.35], [0.3, 0.5], [0.45, 0.5]])
    assert close(rounds.smoothed_rounds(c), [2.69685]) and close(rounds.realised_rounds(c), [2.7499])
    v = values(c)[0]
    gaps = [v[n, j + 1] - v[n + j + 1, 0] for n, j in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]]
    assert close(torch.stack(gaps), [0.2065, 0.665, 0.345, 0.55, 0.05, 0, 0])


def test_f3_greedy_is_an_integer() -> None:
    c = chain([[1, 1, 0], [1, 0, 0], [0, 1, 1], [1, 1, 1], [0, 0, 0], [1, 1, 1]])
    assert occupancies(c)[0, :, 0].nonzero()[:, 0].tolist() == [0, 3]
    assert float(rounds.realised_rounds(c)) == float(rounds.smoothed_rounds(c)) == 2
    assert int(c.starts) / float(rounds.realised_rounds(c)) == 7 / 2


def test_f4_which_starts_an_estimator_looks_at() -> None:
    scale, pi = inclusion(torch.tensor([1, 0.9, 0.2, 0.1, 0.1], dtype=torch.float64), 3)
    assert scale == pytest.approx(2.5, abs=1e-12) and close(pi, [1, 1, 0.5, 0.25, 0.25])
    assert inclusion(torch.tensor([1.0, 0.0, 0.4]), 2)[1].tolist() == [1, 0, 1]


@given(st.lists(st.floats(0.001, 1.0), min_size=2, max_size=30), st.integers(1, 29))
def test_inclusion_adds_up_to_what_was_asked(occupancy: list[float], count: int) -> None:
    scale, pi = inclusion(torch.tensor(occupancy, dtype=torch.float64), count)
    assert float(pi.sum()) == pytest.approx(min(count, len(occupancy)), abs=1e-9)
    assert all(p == pytest.approx(min(1.0, scale * w), abs=1e-9) for p, w in zip(pi.tolist(), occupancy, strict=True))


# ---------------------------------------------------------------------------- brute force on given acceptances


def walked(accept: Tensor, starts: int) -> tuple[float, list[float]]:
    """Rounds, and rounds that commit at least j tokens, by following every accept/reject pattern of one text."""
    drafts = accept.shape[1]
    at_least = [0.0] * (drafts + 1)

    def follow(start: int, draft: int, chance: float) -> None:
        if chance == 0.0:
            return
        at_least[draft] += chance
        token = start + draft + 1
        if token >= starts:
            return
        a = float(accept[start, draft]) if draft < drafts else 0.0
        follow(start, draft + 1, chance * a) if a else None
        follow(token, 0, chance * (1 - a))

    if starts:
        follow(0, 0, 1.0)
    return at_least[0], at_least


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 4), st.integers(1, 8))
def test_batched_ragged_texts_equal_each_walked_by_hand(seed: int, drafts: int, longest: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    accept = torch.rand(3, longest, drafts, generator=generator, dtype=torch.float64)
    accept = torch.where(torch.rand(accept.shape, generator=generator) < 0.2, accept.round(), accept)
    starts = torch.randint(0, longest + 1, (3,), generator=generator)
    together = Chains(accept, torch.rand(accept.shape, generator=generator, dtype=torch.float64), starts)
    tau, at_least = rounds.realised_rounds(together), rounds.rounds_of_at_least(together)
    smoothed = rounds.smoothed_rounds(together.realised())
    for text in range(3):
        wanted, wanted_at_least = walked(accept[text], int(starts[text]))
        assert float(tau[text]) == pytest.approx(wanted, abs=1e-12)
        assert float(smoothed[text]) == pytest.approx(wanted, abs=1e-12), "1 + V at cost R is tau(x)"
        assert at_least[text].tolist() == pytest.approx(wanted_at_least, abs=1e-12)


def test_blocks_of_a_long_text_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    accept = torch.rand(2, 57, 5, generator=generator, dtype=torch.float64)
    c = Chains(accept, 1 - accept, torch.tensor([57, 31]))
    whole = rounds.realised_rounds(c), values(c), occupancies(c)
    monkeypatch.setattr(rounds, "BLOCK", 8)
    parts = rounds.realised_rounds(c), values(c), occupancies(c)
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(whole, parts, strict=True))


# ------------------------------------------------------------------------------------- the toy model, by enumeration

EOS, LONGEST, DRAFTS = 2, 5, 2
Text = tuple[int, ...]


@lru_cache(None)
def law(*name: object) -> Tensor:
    """A random distribution over two ordinary tokens and end-of-sequence that depends on everything in the name."""
    generator = torch.Generator().manual_seed(zlib.crc32(str(name).encode()))
    weights = torch.rand(3, generator=generator, dtype=torch.float64) + 0.05
    return weights / weights.sum()


def target(text: Text) -> Tensor:
    return law("p", text)


def first_order(start: Text, text: Text) -> Tensor:
    """What is drafted after `text` in the round from `start`: it knows the start and the last token."""
    return law("q", start, text[-1:])


def texts(prefix: Text = ()) -> Iterator[tuple[Text, float]]:
    """Every text the target may give, ended by end-of-sequence or cut, with its probability."""
    for token, chance in enumerate(target(prefix).tolist()):
        text = (*prefix, token)
        if token == EOS or len(text) == LONGEST:
            yield text, chance
        else:
            yield from ((longer, chance * rest) for longer, rest in texts(text))


def speculated(start: Text, text: Text) -> float:
    """Expected rounds to come after `text` in the round from `start`, adding up every draw and every decision."""

    def after(token: int, opens: bool) -> float:
        longer = (*text, token)
        if token == EOS or len(longer) == LONGEST:
            return 0.0
        return 1.0 + speculated(longer, longer) if opens else speculated(start, longer)

    p = target(text)
    if len(text) - len(start) == DRAFTS:
        return sum(float(p[v]) * after(v, True) for v in range(3))
    q = first_order(start, text)
    residual = (p - q).clamp(min=0)
    refused = sum(float(residual[v]) / float(residual.sum()) * after(v, True) for v in range(3))
    total = 0.0
    for v in range(3):
        chance = min(1.0, float(p[v] / q[v]))
        total += float(q[v]) * (chance * after(v, False) + (1 - chance) * refused)
    return total


def test_both_estimators_are_exact_on_the_toy_model() -> None:
    every, chances = zip(*texts(), strict=True)
    assert math.fsum(chances) == pytest.approx(1.0, abs=1e-12) and len(every) == 1 + 2 + 4 + 8 + 16 * 3
    accept = torch.zeros(len(every), LONGEST, DRAFTS, dtype=torch.float64)
    cost = torch.zeros_like(accept)
    for row, text in enumerate(every):
        for start, draft in itertools.product(range(len(text)), range(DRAFTS)):
            if start + draft + 1 < len(text):
                before, token = text[: start + draft], text[start + draft]
                p, q = target(before)[None], first_order(text[:start], before)[None]
                found = terms.sampled(p, q, torch.tensor([token]), torch.tensor([EOS]))
                accept[row, start, draft], cost[row, start, draft] = found[0][0], found[1][0]
    chains = Chains(accept, cost, torch.tensor([len(text) for text in every]))
    mean = torch.tensor(chances, dtype=torch.float64)
    wanted = 1.0 + speculated((), ())
    assert float((rounds.realised_rounds(chains) * mean).sum()) == pytest.approx(wanted, abs=1e-12)
    assert float((rounds.smoothed_rounds(chains) * mean).sum()) == pytest.approx(wanted, abs=1e-12)
    assert not torch.allclose(rounds.realised_rounds(chains), rounds.smoothed_rounds(chains), atol=1e-3)
    assert 1.2 < wanted < 4, "the toy decides something"


# --------------------------------------------------------------------------------------------------- single positions

P = torch.tensor([[0.5, 0.3, 0.0, 0.2]], dtype=torch.float64)


def test_a_reduced_vocabulary_has_no_mass_elsewhere() -> None:
    q, stop = torch.tensor([[0.6, 0.4]], dtype=torch.float64), torch.tensor([3])
    accept, cost = terms.sampled(P, q, torch.tensor([0]), stop, torch.tensor([0, 2]))
    assert float(accept) == 1.0 and float(cost) == pytest.approx(1 - 0.5 / 0.8)
    accept, _ = terms.sampled(P, q, torch.tensor([1]), stop, torch.tensor([0, 2]))
    assert float(accept) == 0.0
    accept, _ = terms.sampled(P, q / 2, torch.tensor([0]), stop, torch.tensor([0, 2]))
    assert float(accept) == pytest.approx(0.6)


def test_certain_proposals_and_stop_tokens() -> None:
    stop = torch.tensor([3])
    for draft, wanted in ((0, 1 - 0.5 / 0.8), (1, 1 - 0.3 / 0.8), (3, 1.0), (-1, 1.0)):
        accept, cost = terms.proposed(P, torch.tensor([draft]), torch.tensor([1]), stop)
        assert float(accept) == float(draft == 1) and float(cost) == pytest.approx(wanted)
    over = torch.tensor([[0.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    assert float(terms.proposed(over, torch.tensor([0]), torch.tensor([3]), stop)[1]) == 0.0
