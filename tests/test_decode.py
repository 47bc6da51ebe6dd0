"""The loop: exact lengths, exact stops, ragged batches, frozen and dropped requests, true counters, early refusals."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from drafterzoo.budget import Budget
from drafterzoo.drafters.eagle31 import Eagle31
from drafterzoo.engine.coupling import collect
from drafterzoo.engine.decode import Batch, Emission, Settings, decode
from drafterzoo.engine.sampling import Sampling
from drafterzoo.errors import UsageError
from drafterzoo.target import Target
from tests.oracle import Oracle, oracle_for, plainly
from tests.tiny import tiny_target

PROMPTS = [[5, 6, 7, 8, 9], [3], [11] * 12, [20, 21, 22]]
GREEDY = Sampling()


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(layers=3, dtype=torch.float64)


def run(
    drafter: Oracle | None, target: Target, settings: Settings, prompts=PROMPTS
) -> tuple[list[list[int]], list[Emission]]:
    emissions = list(decode(drafter, target, prompts, settings, range(len(prompts))))
    tokens: list[list[int]] = [[] for _ in prompts]
    for emission in emissions:
        tokens[emission.request] += emission.tokens
    return tokens, emissions


@pytest.mark.parametrize("length", [1, 2, 7, 30])
@pytest.mark.parametrize("blunder", [0, 3])
def test_max_new_tokens_is_exact_however_many_are_accepted(target: Target, length: int, blunder: int) -> None:
    oracle = oracle_for(target, PROMPTS, GREEDY, 40, blunder)
    tokens, emissions = run(oracle, target, Settings(Budget.chain(4), GREEDY, length))
    assert tokens == plainly(target, PROMPTS, GREEDY, length)
    assert [len(answer) for answer in tokens] == [length] * 4
    assert all(e.finished == "length" for e in emissions if e.finished)


def test_the_first_token_belongs_to_no_round(target: Target) -> None:
    _, emissions = run(None, target, Settings(None, GREEDY, 3))
    assert [e.round is None for e in emissions] == [True] * 4 + [False] * 8


def test_a_perfect_drafter_commits_depth_plus_one_per_call(target: Target) -> None:
    oracle = oracle_for(target, PROMPTS, GREEDY, 60)
    _, emissions = run(oracle, target, Settings(Budget.chain(4), GREEDY, 21))
    rounds = [e.round for e in emissions if e.round]
    assert len(rounds) == 4 * 4 and all((r.accepted, r.committed, r.drafted) == (4, 5, 4) for r in rounds)


def test_a_stop_token_cuts_inside_the_accepted_span(target: Target) -> None:
    free = plainly(target, PROMPTS, GREEDY, 30)
    oracle = Oracle(target, [[*prompt, *answer] for prompt, answer in zip(PROMPTS, free, strict=True)])
    for stop in {free[0][0], free[1][1], free[2][3], free[3][4], free[0][5]}:
        tokens, emissions = run(oracle, target, Settings(Budget.chain(4), GREEDY, 25, (stop,)))
        for answer, whole in zip(tokens, free, strict=True):
            cut = whole[: whole.index(stop) + 1] if stop in whole[:25] else whole[:25]
            assert answer == cut
        for e in emissions:
            assert e.finished != "stop" or e.tokens[-1] == stop
            if e.round:
                assert e.round.emitted == len(e.tokens) <= e.round.committed
                assert e.round.accepted in (e.round.committed, e.round.committed - 1), "cut at the stop token"
                assert e.round.walked == 4, "a perfect draft, whatever the cut"
                assert e.finished != "stop" or e.round.emitted == e.round.committed


def test_what_is_committed_is_not_cut_by_the_length_limit(target: Target) -> None:
    oracle = oracle_for(target, PROMPTS, GREEDY, 60)
    _, emissions = run(oracle, target, Settings(Budget.chain(4), GREEDY, 4))
    rounds = [e.round for e in emissions if e.round]
    assert [(r.emitted, r.committed) for r in rounds] == [(3, 5)] * 4


def test_finished_requests_leave_and_the_others_go_on_undisturbed(target: Target) -> None:
    """Stops at different times: rows are frozen, then dropped, and no answer changes."""
    free = plainly(target, PROMPTS, GREEDY, 40)
    stops = (free[1][2], free[2][9])
    wanted = plainly(target, PROMPTS, GREEDY, 40, stops=stops)
    assert len({len(answer) for answer in wanted}) > 1
    oracle = Oracle(target, [[*prompt, *answer] for prompt, answer in zip(PROMPTS, free, strict=True)], blunder=3)
    tokens, emissions = run(oracle, target, Settings(Budget.chain(3), GREEDY, 40, stops))
    assert tokens == wanted
    batches = [e.round.batch for e in emissions if e.round]
    assert batches[0] > batches[-1] >= 1
    assert len(oracle.state.requests) < 4, "the batch was never compacted"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_the_drafter_observes_is_the_committed_text(target: Target, temperature: float) -> None:
    """Every row once, in order, with its position, its successor and the target's own features."""
    sampling, prompts = Sampling(temperature=temperature), [PROMPTS[0], PROMPTS[3]]
    oracle = oracle_for(target, prompts, sampling, 40, blunder=4)
    type(oracle).taps = (1, 3)  # type: ignore[assignment, misc]
    try:
        tokens, _ = run(oracle, target, Settings(Budget(8, 4, 2, 3), sampling, 25), prompts)
    finally:
        del type(oracle).taps
    for request, prompt in enumerate(prompts):
        text = [*prompt, *tokens[request]]
        features = target.read(torch.tensor([text]), (1, 3)).features[0]
        at = 0
        for requests, committed in oracle.state.observed:
            if request not in requests:
                break  # finished, and dropped from the batch
            row = requests.index(request)
            valid = committed.valid[row]
            count = int(valid.sum())
            assert committed.positions[row][valid].tolist() == list(range(at, at + count))
            assert committed.tokens[row][valid].tolist() == text[at : at + count]
            assert committed.next_tokens[row][valid].tolist() == text[at + 1 : at + count + 1]
            assert torch.allclose(committed.features[row][valid], features[at : at + count], atol=1e-9)
            assert count == 0 or (bool(valid[committed.last[row]]) and not valid[committed.last[row] + 1 :].any())
            at += count
            assert at <= committed.longest
        assert at > len(prompt) + 10


def test_trees_are_kept_when_asked_for(target: Target) -> None:
    oracle = oracle_for(target, PROMPTS, GREEDY, 40)
    _, emissions = run(oracle, target, Settings(Budget(8, 4, 2, 3), GREEDY, 12, keep_trees=True))
    for e in emissions:
        if e.round:
            assert e.round.tree is not None
            path = [e.round.tree.tokens[i - 1] for i in e.round.tree.path[1:]]
            assert e.round.tree.path[0] == 0 and path[: len(e.tokens)] == e.tokens[: len(path)]
            assert sum(e.round.tree.valid) == e.round.drafted


def test_decoding_goes_up_to_the_last_position(target: Target) -> None:
    prompts = [[7, 8, 9] * 166, [4] * 480]  # 498 and 480 of 512 positions
    oracle = oracle_for(target, prompts, GREEDY, 14)
    tokens, _ = run(oracle, target, Settings(Budget.chain(6), GREEDY, 14), prompts)
    assert tokens == plainly(target, prompts, GREEDY, 14)


@pytest.mark.parametrize(
    ("prompts", "length", "said"),
    [
        ([[1, 2], []], 4, "prompt 1 is empty"),
        ([], 4, "no prompt"),
        ([[1, 64]], 4, "token id 64.*0 to 63"),
        ([[1, -3]], 4, "token id -3"),
        ([[1] * 512], 4, "512 tokens.*512 positions"),
        ([[1] * 500], 20, "max_new_tokens to at most 12"),
        ([[1]], 0, "max_new_tokens is 0"),
    ],
)
def test_what_cannot_be_decoded_is_refused_at_once(target: Target, prompts: list, length: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Batch(None, target, prompts, Settings(None, GREEDY, length), range(len(prompts)))


def test_a_drafter_needs_a_budget(target: Target) -> None:
    with pytest.raises(UsageError, match="budget"):
        run(Oracle(target, PROMPTS), target, Settings(None, GREEDY, 4))


def test_coupling_samples_hold_what_the_target_chose(target: Target) -> None:
    sampling = Sampling(temperature=1.0)
    prompts = PROMPTS[:2]
    oracle = oracle_for(target, prompts[:1], sampling, 40)
    samples = collect(oracle, target, prompts[:1], sampling, max_new_tokens=30, limit=20)
    assert samples.log_q.shape == samples.noise.shape == (len(samples.choices), 64)
    answer = plainly(target, prompts[:1], sampling, 30)[0]
    chosen = samples.choices.tolist()
    assert all(token in answer for token in chosen) and samples.covered == 1.0
    agreeing = ((samples.log_q + samples.noise).argmax(1) == samples.choices).float().mean()
    assert agreeing > 0.8, "an oracle coupled with the right noise nearly always leads with the choice"
    with pytest.raises(UsageError, match="noise"):
        collect(oracle, target, prompts[:1], GREEDY)
    with pytest.raises(UsageError, match="every answer ended with its first token"):
        collect(oracle, target, prompts[:1], sampling, max_new_tokens=1)


class Lifted(TorchDispatchMode):
    """Counts tensors that are made from numbers of the host: on a device each is waited for."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten.lift_fresh.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_nothing_in_a_round_is_made_from_numbers_of_the_host(rule: str) -> None:
    drafter = Eagle31.create(tiny_target(), draft_vocab_size=40)
    settings = Settings(Budget.tree(8), Sampling(temperature=1.0, verification=rule), 40)
    batch = Batch(drafter, drafter.target, PROMPTS, settings, range(len(PROMPTS)))
    batch.prefill()
    for _ in range(3):
        with Lifted() as lifted:
            batch.round()
        assert lifted.count <= 1, "which requests are alive is told to the device once, at the end"
