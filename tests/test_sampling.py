"""Noise is a pure function of its keys, processing is exact, and offers are what the rule in force says."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from drafterzoo.engine.contract import Frontier
from drafterzoo.engine.coupling import Samples, fit
from drafterzoo.engine.sampling import Coupling, Hash, Sampler, Sampling, Selector, derive, filtered, process
from drafterzoo.errors import UsageError


def frontier_of(positions: Tensor, first_row: int = 0) -> Frontier:
    n, width = positions.shape
    zeros = torch.zeros_like(positions)
    visible = torch.ones(n, width, first_row + width, dtype=torch.bool)
    return Frontier(0, first_row, zeros, zeros - 1, positions, zeros, visible, torch.ones(n, width, dtype=torch.bool))


def sampler_of(sampling: Sampling, n: int = 1, vocabulary: int = 50, window: int = 4, root: int = 10) -> Sampler:
    sampler = Sampler(sampling, torch.arange(n), vocabulary, window)
    sampler.begin(torch.full((n,), root))
    return sampler


# ------------------------------------------------------------------------------------------------ what is asked for


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0}, {"temperature": math.nan}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -1}, {"top_k": 2.5},
        {"seed": "1"}, {"verification": "loose"},
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused_by_name(wrong: dict) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Sampling(**wrong)


# ------------------------------------------------------------------------------------------------------- processing


def nucleus(logits: list[float], top_p: float) -> set[int]:
    """The smallest set of likeliest tokens that holds top_p, by definition."""
    exact = torch.tensor(logits, dtype=torch.float64)
    p = exact.softmax(0)
    kept: set[int] = set()
    for token in exact.argsort(descending=True, stable=True).tolist():  # softmax may round a difference away
        if sum(float(p[i]) for i in kept) >= top_p:
            break
        kept.add(token)
    return kept


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=40, unique=True),
    st.floats(0.05, 0.99),
)
def test_top_p_keeps_the_smallest_set_that_holds_the_mass(logits: list[float], top_p: float) -> None:
    x = torch.tensor([logits], dtype=torch.float64)
    kept = filtered(x, Sampling(temperature=1.0, top_p=top_p))[0] > -math.inf
    assert set(kept.nonzero()[:, 0].tolist()) == nucleus(logits, top_p)


def test_top_p_by_a_short_prefix_equals_the_full_sort() -> None:
    generator = torch.Generator().manual_seed(0)
    for sharpness in (0.1, 1.0, 4.0):  # full sort, a longer prefix, the shortest
        x = sharpness * torch.randn(3, 9000, generator=generator, dtype=torch.float64)
        kept = filtered(x, Sampling(temperature=1.0, top_p=0.9)) > -math.inf
        ordered, order = x.softmax(-1).sort(-1, descending=True)
        needed = (ordered.cumsum(-1) < 0.9).sum(-1) + 1
        assert kept.sum(-1).tolist() == needed.tolist()
        assert all(kept[row, order[row, : needed[row]]].all() for row in range(3))


def test_top_k_keeps_k_and_ties() -> None:
    x = torch.tensor([[3.0, 1.0, 2.0, 2.0, 0.0]])
    assert (filtered(x, Sampling(temperature=1.0, top_k=2)) > -math.inf)[0].tolist() == [True, False, True, True, False]
    assert (filtered(x, Sampling(temperature=1.0, top_k=99)) > -math.inf).all()


def test_processing_is_temperature_then_top_k_then_top_p_normalised() -> None:
    x = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    got = process(x, Sampling(temperature=0.5, top_k=3, top_p=0.9)).exp()[0]
    p = torch.tensor([4.0, 2.0, 0.0]).softmax(0)  # 0.867, 0.117, 0.016: the first two hold 0.9
    assert torch.allclose(got, torch.tensor([*(p[:2] / p[:2].sum()).tolist(), 0.0, 0.0]))


def test_at_temperature_zero_nothing_is_filtered() -> None:
    x = torch.randn(2, 30)
    assert torch.equal(filtered(x, Sampling(top_k=1, top_p=0.1)), x)
    assert torch.allclose(process(x, Sampling(top_k=1)), x.log_softmax(-1))


def test_half_precision_is_processed_in_float32() -> None:
    assert process(torch.randn(1, 9).half(), Sampling(temperature=0.7)).dtype == torch.float32


# ------------------------------------------------------------------------------------------------------------ noise


def test_noise_depends_on_seed_stream_request_and_position_alone() -> None:
    one = sampler_of(Sampling(temperature=1.0, seed=3), n=3)
    for request in range(3):
        alone = Sampler(Sampling(temperature=1.0, seed=3), torch.tensor([request]), 50, 7)
        alone.begin(torch.tensor([9]))  # another window, opened elsewhere
        positions = torch.arange(11, 15)
        assert torch.equal(one.book.at(positions.expand(3, -1))[request], alone.book.at(positions[None])[0]), (
            "a bit of noise depended on the batch"
        )
    other = sampler_of(Sampling(temperature=1.0, seed=4), n=3)
    positions = torch.full((3, 1), 11)
    assert not torch.equal(one.book.at(positions), other.book.at(positions))


def test_noise_of_an_open_position_stays_when_the_window_moves() -> None:
    sampler = sampler_of(Sampling(temperature=1.0), n=2, window=5)
    before = sampler.book.at(torch.tensor([[13, 15], [13, 15]]))
    sampler.begin(torch.tensor([12, 10]), fresh=2)  # one root moved two on, the other stayed
    assert torch.equal(before, sampler.book.at(torch.tensor([[13, 15], [13, 15]])))
    made_new = Sampler(Sampling(temperature=1.0), torch.arange(2), 50, 5)
    made_new.begin(torch.tensor([12, 10]))
    everything = torch.stack((torch.arange(13, 18), torch.arange(11, 16)))
    assert torch.equal(sampler.book.at(everything), made_new.book.at(everything))


def test_noise_follows_its_request_when_the_batch_shrinks() -> None:
    sampler = sampler_of(Sampling(temperature=1.0), n=4)
    positions = torch.full((4, 1), 12)
    before = sampler.book.at(positions)
    sampler.keep(torch.tensor([3, 1]))
    assert torch.equal(sampler.book.at(positions[:2]), before[[3, 1]])


def test_uniforms_are_uniform_and_neighbours_independent() -> None:
    keys = derive(derive(torch.tensor([5]), 1), torch.arange(400))
    u = Hash(2000, torch.device("cpu")).uniform(keys)
    assert float(u.min()) >= 0 and float(u.max()) < 1
    assert abs(float(u.mean()) - 0.5) < 0.002 and abs(float(u.var()) - 1 / 12) < 0.001
    cells = torch.histc(u, bins=128, min=0, max=1)
    chi = ((cells - cells.mean()) ** 2 / cells.mean()).sum()
    assert 70 < float(chi) < 200  # 127 degrees of freedom
    by_position, by_token = torch.corrcoef(u[:60]), torch.corrcoef(u.T[:60])
    for correlations, length in ((by_position, 2000), (by_token, 400)):
        assert float(correlations.fill_diagonal_(0).abs().max()) < 5 / length**0.5


def test_gumbel_noise_draws_from_the_distribution() -> None:
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    sampler = Sampler(Sampling(temperature=1.0), torch.arange(20_000), 4, 1)
    sampler.begin(torch.zeros(20_000, dtype=torch.int64))
    drawn = sampler.choose(p.log().expand(20_000, -1), torch.ones(20_000, dtype=torch.int64))
    share = torch.bincount(drawn, minlength=4) / 20_000
    assert ((share - p).abs() < 5 * (p * (1 - p) / 20_000).sqrt()).all()


def test_streams_of_rejection_never_meet() -> None:
    sampler = sampler_of(Sampling(temperature=1.0, verification="rejection"))
    proposals = sampler.proposal_noise(0, 2, 50)
    assert not torch.equal(proposals[:, 0], proposals[:, 1])
    uniforms = sampler.acceptance_uniforms(50)
    as_gumbel = -(-torch.log1p(-uniforms)).log()
    assert float(torch.corrcoef(torch.cat((as_gumbel, proposals[0])))[0, 1:].abs().max()) < 0.6
    sampler.begin(torch.tensor([11]))
    assert not torch.equal(sampler.proposal_noise(0, 2, 50), proposals), "two rounds shared their noise"


def test_more_rows_do_not_change_the_noise_of_the_first() -> None:
    sampler = sampler_of(Sampling(temperature=1.0, verification="rejection"))
    assert torch.equal(sampler.proposal_noise(0, 5, 50)[:, 3:], sampler.proposal_noise(3, 2, 50))


# ----------------------------------------------------------------------------------------------------------- offers


def test_greedy_offers_are_the_likeliest_scored_by_log_q() -> None:
    logits = torch.randn(2, 3, 50)
    offers = Selector(sampler_of(Sampling(), n=2), 4)(logits, frontier_of(torch.full((2, 3), 10)))
    best = logits.log_softmax(-1).topk(4, dim=-1)
    assert torch.equal(offers.tokens, best.indices) and torch.allclose(offers.scores, best.values)


def test_a_draft_vocabulary_is_translated_to_target_ids() -> None:
    ids = torch.tensor([3, 7, 20, 49])
    logits = torch.tensor([[[0.0, 3.0, 1.0, 2.0]]])
    offers = Selector(sampler_of(Sampling()), 6)(logits, frontier_of(torch.tensor([[10]])), ids)
    assert offers.tokens.tolist() == [[[7, 49, 20, 3]]]


@pytest.mark.parametrize("sampling", [Sampling(temperature=1.0), Sampling(temperature=0.7, top_p=0.9, top_k=20)])
def test_a_draft_equal_to_the_target_always_offers_its_choice_first(sampling: Sampling) -> None:
    sampler = sampler_of(sampling, n=8)
    logits = 3 * torch.randn(8, 2, 50)
    positions = torch.tensor([[10, 12]]).expand(8, -1)
    offers = Selector(sampler, 3)(logits, frontier_of(positions))
    for row in range(2):
        assert torch.equal(offers.tokens[:, row, 0], sampler.choose(logits[:, row], positions[:, row] + 1))
    assert (offers.scores <= 0).all() and (offers.scores.exp().sum(-1) <= 1 + 1e-5).all()


def test_filtered_tokens_are_no_offers() -> None:
    sampling = Sampling(temperature=1.0, top_k=2)
    for chosen in (sampling, Sampling(temperature=1.0, top_k=2, verification="rejection")):
        offers = Selector(sampler_of(chosen), 4)(torch.randn(1, 1, 50), frontier_of(torch.tensor([[10]])))
        assert (offers.scores > -math.inf).sum() == 2


def test_uncoupled_offers_ignore_the_noise() -> None:
    logits = torch.randn(1, 1, 50)
    offers = Selector(sampler_of(Sampling(temperature=1.0, coupled=False)), 4)(
        logits, frontier_of(torch.tensor([[10]]))
    )
    assert torch.equal(offers.tokens, logits.topk(4, dim=-1).indices)


def test_sampled_offers_are_without_replacement_and_keep_is_blind_to_the_own_token() -> None:
    sampler = sampler_of(Sampling(temperature=1.0, verification="rejection"), n=500)
    logits = torch.randn(1, 1, 50).expand(500, -1, -1)
    offers = Selector(sampler, 4)(logits, frontier_of(torch.full((500, 1), 10)))
    q = logits.softmax(-1)
    assert all(len(set(row)) == 4 for row in offers.tokens[:, 0].tolist())
    assert torch.allclose(offers.q, q)
    drawn = q.gather(-1, offers.tokens)
    left = 1 - torch.cat((torch.zeros(500, 1, 1), drawn.cumsum(-1)[..., :-1]), dim=-1)
    assert torch.allclose(offers.keep.exp(), left, atol=1e-5)
    assert (offers.keep.diff(dim=-1) <= 0).all()
    share = torch.bincount(offers.tokens[:, 0, 0], minlength=50) / 500
    assert ((share - q[0, 0]).abs() < 5 * (q[0, 0] * (1 - q[0, 0]) / 500).sqrt() + 1e-3).all()


def test_a_reduced_vocabulary_gives_q_over_the_whole_one() -> None:
    ids = torch.tensor([3, 7, 20, 49])
    sampler = sampler_of(Sampling(temperature=1.0, verification="rejection"))
    logits = torch.randn(1, 1, 4)
    offers = Selector(sampler, 2)(logits, frontier_of(torch.tensor([[10]])), ids)
    assert offers.q.shape == (1, 1, 50) and torch.allclose(offers.q[..., ids], logits.softmax(-1))
    assert torch.allclose(offers.q.sum(-1), torch.ones(1, 1))


# --------------------------------------------------------------------------------------------------------- coupling


def made_up_samples(scale: float, tail: float, temperature: float = 1.0) -> Samples:
    """Choices of a target whose log p is log q with errors: Gumbel of this scale, or normal and growing with -log q."""
    generator = torch.Generator().manual_seed(1)

    def gumbel() -> Tensor:
        return -(-torch.rand(900, 300, generator=generator).clamp(min=1e-7).log()).log()

    log_q = (3 * torch.randn(900, 300, generator=generator)).log_softmax(-1)
    errors = gumbel() * scale if scale else torch.randn(900, 300, generator=generator) * (0.2 - tail * log_q)
    noise = gumbel()
    processed = (log_q / temperature).log_softmax(-1)
    choices = ((log_q + errors) / temperature + noise).argmax(-1)
    return Samples(processed, noise, choices, temperature)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_fit_finds_the_scale_that_made_the_choices(temperature: float) -> None:
    found = fit(made_up_samples(0.5, 0.0, temperature), weights=1)
    assert found.coupling.prior == found.coupling.noise
    assert abs(1 / found.coupling.prior - 0.5) < 0.05


def test_two_weights_explain_errors_that_grow_in_the_tail_better_than_one() -> None:
    samples = made_up_samples(0.0, 0.12)
    assert fit(samples).log_likelihood > fit(samples, weights=1).log_likelihood + 0.005


def test_choices_outside_the_draft_vocabulary_are_left_out() -> None:
    samples = made_up_samples(0.5, 0.0)
    samples.choices[::3] = -1
    assert abs(samples.covered - 2 / 3) < 0.01
    assert abs(1 / fit(samples, weights=1).coupling.prior - 0.5) < 0.06
    samples.choices[:] = -1
    with pytest.raises(UsageError, match="draft vocabulary"):
        fit(samples)


def test_coupling_reads_a_scale_or_a_pair() -> None:
    assert Coupling.of(0.5) == Coupling(2.0, 2.0)
    assert Coupling.of([1.5, 2]) == Coupling(1.5, 2.0)
