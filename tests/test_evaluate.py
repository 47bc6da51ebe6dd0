"""The offline evaluator on tiny targets: replayed rounds are the engine's, expected ones its mean.

Parametrised over the registry, so that a new drafter is replayed the moment it is registered.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

import drafterzoo
from drafterzoo.budget import Budget
from drafterzoo.cli import main
from drafterzoo.cli.evaluate import remarks
from drafterzoo.drafters.base import Drafter
from drafterzoo.engine.contract import REJECTED_ROWS, Committed
from drafterzoo.engine.decode import Round, Settings, decode
from drafterzoo.engine.replay import Recording, replay
from drafterzoo.engine.sampling import Sampling
from drafterzoo.errors import CheckpointError, DataError, UsageError
from drafterzoo.evaluation.offline import run as evaluation
from drafterzoo.evaluation.offline.expected import expected_rounds
from drafterzoo.evaluation.offline.lines import LinesFile
from drafterzoo.evaluation.offline.proposals import stepwise, unrolled
from drafterzoo.evaluation.offline.rounds import realised_rounds
from drafterzoo.evaluation.offline.teacher import agreement, teach
from drafterzoo.registry import DRAFTERS, WRAPPERS
from drafterzoo.target import Target
from drafterzoo.training.rollouts import read_rollouts
from drafterzoo.wrappers.base import Wrapper
from tests.oracle import Oracle, plainly
from tests.test_invariants import BARE, CARRYING, NAMES, PROMPTS, SAMPLINGS, build, in_turn
from tests.tiny import tiny_target

NETWORKS = [name for name in BARE if DRAFTERS.get(name).has_weights]
IDS = ["greedy", "sampled", "filtered", "uncoupled"]
COUNTERS = ("accepted", "committed", "emitted", "drafted", "forwards", "rows", "batch")
KNOWN, CUT = 34, 24  # tokens that recordings know, and where answers are cut


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(dtype=torch.float64)


# -------------------------------------------------------------------------------------- integer replay = the engine


def decoded(drafter: Drafter, settings: Settings, keys: Sequence[int]) -> tuple[list[list[int]], list[list[Round]]]:
    tokens: list[list[int]] = [[] for _ in PROMPTS]
    rounds: list[list[Round]] = [[] for _ in PROMPTS]
    for emission in decode(drafter, drafter.target, PROMPTS, settings, keys):
        tokens[emission.request] += emission.tokens
        rounds[emission.request] += [emission.round] if emission.round else []
    return tokens, rounds


def replayed(
    drafter: Drafter, recordings: list[Recording], settings: Settings, keys: Sequence[int]
) -> tuple[list[list[int]], list[list[Round]]]:
    lesson = teach(drafter.target, recordings, drafter.taps)
    tokens: list[list[int]] = [[] for _ in recordings]
    rounds: list[list[Round]] = [[] for _ in recordings]
    for emission in replay(drafter, drafter.target, recordings, lesson.features, settings, keys):
        tokens[emission.request] += emission.tokens
        rounds[emission.request] += [emission.round] if emission.round else []
    return tokens, rounds


def counters(rounds: list[list[Round]]) -> list[list[tuple[int, ...]]]:
    """Of every round. The rows of a round that follows another's end are left out: of the batch, the longest walk is
    observed, and how far one went past its stop token no replay can know.
    """
    return [
        [
            tuple(getattr(made, name) for name in COUNTERS if name != "rows" or made.batch == before.batch)
            for before, made in pairwise([some[0], *some])
        ]
        for some in rounds
    ]


def a_stop(answers: list[list[int]]) -> tuple[int, ...]:
    """The token that ends some answers as late as can be, and leaves others to the length limit."""
    said = {token: [a.index(token) for a in answers if token in a[:CUT]] for answer in answers for token in answer}
    return (max((token for token, at in said.items() if 0 < len(at) < len(answers)), key=lambda t: min(said[t])),)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=IDS)
@pytest.mark.parametrize("name", [*(name for name in NAMES if name not in CARRYING), "oracle"])
def test_replay_makes_the_rounds_of_the_engine(name: str, sampling: Sampling, target: Target) -> None:
    keys = [3, 1, 4, 15]
    answers = plainly(target, PROMPTS, sampling, KNOWN, keys)
    stops = a_stop(answers)
    if name == "oracle":  # deep paths, and what a plug-in looks like
        texts = [[*prompt, *answer] for prompt, answer in zip(PROMPTS, answers, strict=True)]
        drafter: Drafter = Oracle(target, texts, blunder=5)
    else:
        drafter = build(name, target)
    endings = set()
    for budget in in_turn(sampling):
        settings = Settings(budget, sampling, CUT, stops)
        tokens, rounds = decoded(drafter, settings, keys)
        ahead = [
            Recording(prompt, answer, () if answer[-1] in stops else known[CUT:])
            for prompt, answer, known in zip(PROMPTS, tokens, answers, strict=True)
        ]
        again, made = replayed(drafter, ahead, settings, keys)
        assert again == tokens and counters(made) == counters(rounds), f"{name} at {budget}"
        endings |= {answer[-1] in stops for answer in tokens}
    longer = [Recording(prompt, answer) for prompt, answer in zip(PROMPTS, answers, strict=True)]
    again, made = replayed(drafter, longer, settings, keys)
    assert again == tokens and counters(made) == counters(rounds), "a longer answer is cut alike"
    assert endings == {True, False}, "both a stop token and the limit ended answers"


def test_without_what_follows_only_the_last_round_is_a_lower_bound(target: Target) -> None:
    answers = plainly(target, PROMPTS, Sampling(), KNOWN)
    texts = [[*prompt, *answer] for prompt, answer in zip(PROMPTS, answers, strict=True)]
    drafter, settings = Oracle(target, texts), Settings(Budget.chain(4), Sampling(), CUT)
    tokens, rounds = decoded(drafter, settings, range(4))
    again, made = replayed(drafter, [Recording(p, t) for p, t in zip(PROMPTS, tokens, strict=True)], settings, range(4))
    assert again == tokens
    for wanted, found in zip(rounds, made, strict=True):
        assert [r.emitted for r in wanted] == [r.emitted for r in found]
        assert [r.committed for r in wanted[:-1]] == [r.committed for r in found[:-1]]
        assert found[-1].committed == found[-1].emitted + 1 < wanted[-1].committed


@pytest.mark.parametrize("kind", ["gemma3", "qwen3"])
def test_replay_on_another_architecture(kind: str) -> None:
    target, sampling = tiny_target(kind, dtype=torch.float64), Sampling(temperature=0.7, seed=3)
    drafter, settings = build("eagle3.1", target), Settings(Budget.tree(8), sampling, 16)
    answers = plainly(target, PROMPTS, sampling, KNOWN)
    tokens, rounds = decoded(drafter, settings, range(4))
    again, made = replayed(
        drafter, [Recording(p, a) for p, a in zip(PROMPTS, answers, strict=True)], settings, range(4)
    )
    assert again == tokens and counters(made) == counters(rounds)


def test_replay_refuses_rejection(target: Target) -> None:
    settings = Settings(Budget.chain(2), Sampling(temperature=1.0, verification="rejection"), 4)
    with pytest.raises(UsageError, match="does not decide its rounds"):
        replayed(build("lookup", target), [Recording([3], [4, 5])], settings, [0])


# ----------------------------------------------------------------------------------- expected rounds, drafts drawn


@pytest.mark.parametrize("sampling", [Sampling(), *(attrs.evolve(s, verification="rejection") for s in SAMPLINGS[1:3])])
@pytest.mark.parametrize("name", NETWORKS)
def test_unrolled_and_stepwise_proposals_agree(
    name: str, sampling: Sampling, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter, match = build(name, target), attrs.evolve(sampling, verification="match")
    answers = plainly(target, PROMPTS, match, 20)
    recordings = [Recording(p, a[: 20 - 6 * i]) for i, (p, a) in enumerate(zip(PROMPTS, answers, strict=True))]
    lesson = teach(target, recordings, (1, *drafter.taps))
    monkeypatch.setattr("drafterzoo.evaluation.offline.proposals.ATTENDED", 500)  # several parts
    one, other = (way(drafter, lesson, 3, sampling, (2,)) for way in (unrolled, stepwise))
    assert torch.equal(one.doubtful, other.doubtful) and not one.doubtful.any()
    inside = one.chains.inside()[..., :3]
    if not sampling.greedy:  # there, a chain's own drafts part from the text's after the first miss
        assert torch.allclose(one.chains.accept[inside], other.chains.accept[inside], atol=1e-9)
        assert torch.allclose(one.chains.cost[inside], other.chains.cost[inside], atol=1e-9)
    assert torch.allclose(realised_rounds(one.chains), realised_rounds(other.chains), atol=1e-9)


@pytest.mark.parametrize("name", BARE)
def test_at_temperature_0_expected_rounds_are_the_replayed_ones(name: str, target: Target) -> None:
    drafter, settings = build(name, target), Settings(Budget.chain(3), Sampling(), CUT)
    answers = plainly(target, PROMPTS, Sampling(), CUT)
    recordings = [Recording(prompt, answer) for prompt, answer in zip(PROMPTS, answers, strict=True)]
    _, made = replayed(drafter, recordings, settings, range(4))
    found = expected_rounds(drafter, 3, teach(target, recordings, drafter.taps), Sampling(verification="rejection"), ())
    for rounds, figures in zip(made, found, strict=True):
        assert figures["rounds"] == figures["smoothed"] == len(rounds)
        assert figures["tokens"] == CUT - 1 == sum(r.emitted for r in rounds)
        assert figures["at_least"] == [sum(r.emitted >= j for r in rounds) for j in range(1, 5)]


@pytest.mark.parametrize("name", ["eagle3.1", "lookup"])
def test_expected_rounds_are_the_mean_of_the_engines(name: str) -> None:
    """Both of the same answers: given the text, the engine's count has the expectation tau(x), whatever the text."""
    target = tiny_target(vocab=8, dtype=torch.float64, eos_token_id=2)
    drafter, sampling = build(name, target), Sampling(temperature=1.0, seed=5, verification="rejection")
    settings, runs = Settings(Budget.chain(3), sampling, 14, (2,)), 400
    tokens: list[list[int]] = [[] for _ in range(runs)]
    rounds: list[list[int]] = [[] for _ in range(runs)]
    for emission in decode(drafter, target, [[5, 6, 5]] * runs, settings, range(runs)):
        tokens[emission.request] += emission.tokens
        rounds[emission.request] += [emission.round.emitted] if emission.round else []
    lesson = teach(target, [Recording([5, 6, 5], answer) for answer in tokens], drafter.taps)
    found = expected_rounds(drafter, 3, lesson, sampling, (2,))
    assert len({len(answer) for answer in tokens}) > 5, "some answers stop and some are cut"
    for counted, expected in (
        ([len(r) for r in rounds], [f["rounds"] for f in found]),
        ([sum(n >= 2 for n in r) for r in rounds], [f["at_least"][1] for f in found]),
        ([f["smoothed"] for f in found], [f["rounds"] for f in found]),
    ):
        gap = torch.tensor(counted, dtype=torch.float64) - torch.tensor(expected, dtype=torch.float64)
        error = float(gap.std() / runs**0.5)
        assert error < 0.15 and abs(float(gap.mean())) <= 3 * error + 1e-12
    if name == "lookup":
        assert [len(r) for r in rounds] == [f["rounds"] for f in found], "certain proposals leave nothing to chance"


# --------------------------------------------------------------------------------------------------- the whole thing


def write_rollouts(path: Path, target: Target, temperature: float = 0.0, *, known: bool = True, **more: Any) -> Path:
    """A file of rollouts of PROMPTS, two of each prompt, as `drafterzoo rollout` writes them."""
    sampling, prompts = Sampling(temperature=temperature), PROMPTS * 2
    rows = []
    for request, answer in enumerate(plainly(target, prompts, sampling, KNOWN)):
        row = {"source": "ab"[request % 2], "prompt": str(request % 4), "temperature": temperature}
        noise = {"top_p": 1.0, "top_k": 0, "seed": 0, "request": request}
        ids = {"prompt_ids": prompts[request], "response_ids": answer[:CUT], "ahead_ids": answer[CUT:]}
        rows.append(row | (noise if known else {}) | ids | {"split": ("val", "train")[request > 5]} | more)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def pair(target: Target) -> list[Drafter]:
    return [build("lookup", target), build("eagle3.1", target)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_evaluate_counts_what_bench_counts(
    temperature: float, target: Target, pair: list[Drafter], tmp_path: Path
) -> None:
    file = write_rollouts(tmp_path / "r.jsonl", target, temperature)
    result = drafterzoo.evaluate(pair, file, budget=["chain:3", 8], out=tmp_path / "out", batch_size=3)
    rows = {(row["drafter"], row["budget"]): row for row in result.summary["rows"]}
    assert result.summary["complete"] and len(rows) == 4
    for drafter in pair:
        for budget in (Budget.chain(3), Budget.tree(8)):
            settings = Settings(budget, Sampling(temperature=temperature), CUT, target.eos_token_ids)
            made = [
                emission.round
                for emission in decode(drafter, target, PROMPTS * 2, settings, range(8))
                if emission.round is not None
            ]
            row = rows[drafter.spec, str(budget)]
            assert row["rounds"] == len(made) and row["open_rounds"] == 0
            assert row["tau"] == sum(r.committed for r in made) / len(made)
            assert row["mal"] == sum(r.emitted for r in made) / len(made)
            assert row["nodes_per_round"] == sum(r.drafted for r in made) / len(made)
            assert row["prompts"] == 4 and row["rollouts"] == 8
    (chain, _) = result.summary["comparisons"]
    ratio, base = rows["eagle3.1", "chain:3"]["mal"], rows["lookup", "chain:3"]["mal"]
    assert chain["mal_ratio"]["value"] == pytest.approx(ratio / base) and chain["mal_ratio"]["clusters"] == 4
    assert chain["mal_ratio"]["delta_low"] < ratio / base < chain["mal_ratio"]["delta_high"]
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["rows"] == result.summary["rows"]
    assert "| eagle3.1 | chain:3 |" in result.markdown() and "8 rollouts of 4 prompts" in result.markdown()


def test_the_standard_error_is_that_of_the_specification(target: Target, pair: list[Drafter], tmp_path: Path) -> None:
    file = write_rollouts(tmp_path / "r.jsonl", target, 1.0)
    result = drafterzoo.evaluate(pair, file, budget="chain:3", rule="rejection", out=tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out" / "rollouts.jsonl").read_text().splitlines()]
    of = {name: {x["rollout"]: x for x in lines if x["drafter"] == name} for name in ("lookup", "eagle3.1")}
    t_a, t_b = ([of[name][i]["rounds"] for i in range(8)] for name in ("lookup", "eagle3.1"))
    rho = sum(t_a) / sum(t_b)
    clusters = [sum(t_a[i] - rho * t_b[i] for i in (c, c + 4)) for c in range(4)]
    se = (4 / 3 * sum(e**2 for e in clusters)) ** 0.5 / sum(t_b)
    found = result.summary["comparisons"][0]["mal_ratio"]
    assert found["value"] == pytest.approx(rho) and found["se"] == pytest.approx(se)
    row = result.summary["rows"][1]
    assert row["tau"] == row["mal"] and row["mal_smoothed"] == pytest.approx(row["tokens"] / row["rounds_smoothed"])
    assert len(row["acceptance"]) == 3 and row["doubtful_tokens"] == 0


@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_conventions_count_a_round_or_a_token_more(
    rule: Any, target: Target, pair: list[Drafter], tmp_path: Path
) -> None:
    file = write_rollouts(tmp_path / "r.jsonl", target, ahead_ids=[])
    options: dict[str, Any] = {"budget": "chain:3", "rule": rule, "split": "train"}
    file.write_text(file.read_text().replace('"prompt_ids": [3]', '"prompt_ids": [3, 3]'))
    tokens = {}
    for start, boundary in (("prefill", "last"), ("prompt", "last"), ("prefill", "ahead")):
        out = tmp_path / f"{start}-{boundary}"
        found = drafterzoo.evaluate(pair, file, start=start, boundary=boundary, out=out, **options)
        tokens[start, boundary] = {row["tokens"] for row in found.summary["rows"]}
    assert tokens == {
        ("prefill", "last"): {2 * (CUT - 1)},
        ("prompt", "last"): {2 * CUT},
        ("prefill", "ahead"): {2 * CUT},
    }
    engine = drafterzoo.evaluate(pair, file, out=tmp_path / "default", **options).summary
    assert engine["conditions"]["convention"] == {"start": "prefill", "boundary": "last"}


def test_unknown_noise_is_said_and_uncoupled_drafts_need_none(
    target: Target, pair: list[Drafter], tmp_path: Path
) -> None:
    file = write_rollouts(tmp_path / "r.jsonl", target, 1.0, known=False)
    with pytest.raises(DataError, match=r"8 of 8 rows drawn at temperature 1 do not say .* --uncoupled"):
        drafterzoo.evaluate(pair, file, out=tmp_path / "out")
    loose = drafterzoo.evaluate(pair, file, budget=8, coupled=False, out=tmp_path / "loose").summary["rows"]
    named = write_rollouts(tmp_path / "named.jsonl", target, 1.0)
    tight = drafterzoo.evaluate(pair, named, budget=8, coupled=False, out=tmp_path / "tight").summary["rows"]
    assert loose == tight
    drafterzoo.evaluate(pair, file, budget="chain:2", rule="rejection", out=tmp_path / "expected")


# ------------------------------------------------------------------------------------------------- resumed after a stop

KILLED = """
import os, signal, sys, torch
from pathlib import Path
import drafterzoo
from drafterzoo.evaluation.offline.lines import LinesFile
from tests.test_invariants import build
from tests.tiny import tiny_target

append, left = LinesFile.append, [int(sys.argv[3])]
def deadly(self, lines):
    left[0] -= 1
    if left[0] < 0:
        self._file.write('{"cell": "half a li')
        self._file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    append(self, lines)
LinesFile.append = deadly
target = tiny_target(dtype=torch.float64)
pair = [build("lookup", target), build("eagle3.1", target)]
drafterzoo.evaluate(pair, sys.argv[1], budget=["chain:3", 8], batch_size=3, out=sys.argv[2])
"""


def test_a_killed_evaluation_goes_on_and_ends_the_same(target: Target, pair: list[Drafter], tmp_path: Path) -> None:
    file = write_rollouts(tmp_path / "r.jsonl", target, 1.0)
    options: dict[str, Any] = {"budget": ["chain:3", 8], "batch_size": 3}
    whole = drafterzoo.evaluate(pair, file, out=tmp_path / "whole", **options)
    command = [sys.executable, "-c", KILLED, str(file), str(tmp_path / "killed"), "5"]
    root = str(Path(__file__).parents[1])
    died = subprocess.run(command, cwd=root, env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    left = (tmp_path / "killed" / "rollouts.jsonl").read_text()
    assert 0 < left.count("\n") < 32 and left.endswith("half a li")
    assert not (tmp_path / "killed" / "summary.json").exists()
    again = drafterzoo.evaluate(pair, file, out=tmp_path / "killed", **options)
    assert same(again.summary) == same(whole.summary)
    one, other = ((tmp_path / name / "rollouts.jsonl").read_bytes() for name in ("whole", "killed"))
    assert one == other
    summary = tmp_path / "whole" / "summary.json"
    newer = summary.read_text().replace('"format_version": 1', '"format_version": 2')
    summary.write_text(newer)
    with pytest.raises(DataError, match=r"summary.json: format_version is 2, expected 1"):
        drafterzoo.evaluate(pair, file, out=tmp_path / "whole", **options)
    assert summary.read_text() == newer


def same(summary: dict[str, Any]) -> dict[str, Any]:
    return {**summary, "conditions": {k: v for k, v in summary["conditions"].items() if k != "date"}}


def test_the_same_call_finds_its_directory_and_computes_nothing_anew(
    target: Target, pair: list[Drafter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write_rollouts(tmp_path / "r.jsonl", target)
    first = drafterzoo.evaluate(pair, file, budget="chain:3", limit=4)
    assert first.directory.parent == Path("runs") and first.directory.name.startswith("evaluate-r-")
    monkeypatch.setattr(evaluation, "teach", None)
    assert drafterzoo.evaluate(pair, file, budget="chain:3", limit=4).summary == first.summary
    with pytest.raises(UsageError, match="holds the results of something else"):
        drafterzoo.evaluate(pair, file, budget="chain:2", limit=4, out=first.directory)


def test_stopped_before_the_first_line_it_leaves_nothing(
    target: Target, pair: list[Drafter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluation, "teach", stop)
    with pytest.raises(KeyboardInterrupt):
        drafterzoo.evaluate(pair, write_rollouts(tmp_path / "r.jsonl", target), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------------------------ mistakes


def test_what_cannot_be_evaluated_is_one_sentence(target: Target, pair: list[Drafter], tmp_path: Path) -> None:
    file = write_rollouts(tmp_path / "r.jsonl", target)
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text(file.read_text() + write_rollouts(tmp_path / "w.jsonl", target, 1.0).read_text())
    empty, foreign, odd = (tmp_path / name for name in ("empty.jsonl", "foreign.jsonl", "odd.jsonl"))
    empty.write_text("\n")
    foreign.write_text(file.read_text().replace('"response_ids": [', '"response_ids": [9999, ', 1))
    odd.write_text(file.read_text().replace('"seed": 0', '"seed": "none"', 1))
    short = write_rollouts(tmp_path / "short.jsonl", target, prompt_ids=[3])
    other = tiny_target(seed=9, dtype=torch.float64)
    wrong: list[tuple[type[Exception], dict[str, Any], str]] = [
        (DataError, {"rollouts": tmp_path / "none.jsonl"}, "none.jsonl: no such file"),
        (DataError, {"rollouts": tmp_path}, "is a folder, expected a file of rollouts; name one"),
        (DataError, {"rollouts": empty}, "empty.jsonl: holds no rollouts"),
        (DataError, {"split": "test"}, r"has split 'test'; the rows have split 'train' \(2 rows\), 'val' \(6 rows\)"),
        (DataError, {"temperature": 0.5}, r"no row has temperature 0.5; the rows have temperature 0 \(8 rows\)"),
        (UsageError, {"temperature": float("nan")}, "evaluate: temperature is nan, expected a number of at least 0"),
        (UsageError, {"temperature": -1.0}, "evaluate: temperature is -1.0"),
        (UsageError, {"top_p": float("nan")}, "evaluate: top_p is nan"),
        (UsageError, {"top_k": -1}, "evaluate: top_k is -1"),
        (DataError, {"rollouts": foreign}, "foreign.jsonl:1: 'response_ids' holds an id outside"),
        (DataError, {"rollouts": odd}, "odd.jsonl:1: 'seed' is 'none', expected a whole number"),
        (DataError, {"rollouts": short, "start": "prompt"}, "prompt of one token"),
        (UsageError, {"rollouts": mixed}, r"drawn in 2 ways \(temperature 0; temperature 1\)"),
        (UsageError, {"drafters": []}, "no drafter is given"),
        (UsageError, {"drafters": ["none"]}, "plain decoding"),
        (UsageError, {"drafters": [pair[0], pair[0]]}, "two drafters are called 'lookup'"),
        (UsageError, {"drafters": [pair[0], build("eagle3", other)]}, "'eagle3' is bound to tiny-llama"),
        (UsageError, {"rule": "rejection", "budget": 8}, "chains of one length, and tree:8 is a tree"),
        (UsageError, {"rule": "rejection", "budget": "8,p_min=0.1"}, "tree:8,p_min=0.1 is a tree"),
        (UsageError, {"rule": "rejection", "budget": "chain:4,p_min=0.1"}, "chain:4,p_min=0.1 ends its drafts early"),
        (UsageError, {"rule": "rejection", "budget": Budget(2, 4, 1, 1)}, "offer=1 drafts deeper"),
        (UsageError, {"rule": "reject"}, "rule is 'reject'"),
        (UsageError, {"start": "middle"}, "start is 'middle'"),
        (UsageError, {"budget": []}, "no budget was given"),
        (UsageError, {"limit": 0}, "limit is 0"),
        (UsageError, {"batch_size": 0}, "batch_size is 0"),
    ]
    for kind, options, said in wrong:
        with pytest.raises(kind, match=said) as caught:
            drafterzoo.evaluate(**{"drafters": pair, "rollouts": file, "out": tmp_path / "out", **options})
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


class Keeping(Wrapper):
    """A wrapper that reads what the target said of rejected drafts, as Carryover does."""

    name = "test-keeping"
    needs = frozenset({"recurrent", REJECTED_ROWS})

    def observe(self, state: Any, committed: Committed) -> None:
        assert committed.tree is None or committed.tree_features is not None
        super().observe(state, committed)


class Plain(Wrapper):
    name = "test-plain"


class Outer(Wrapper):
    name = "test-outer"


def test_what_keeps_rejected_rows_is_refused_before_any_work(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(*args: Any, **options: Any) -> Any:
        raise AssertionError("a target is loaded for what is refused")

    monkeypatch.setattr("drafterzoo.target.load_target", load)
    WRAPPERS.register(Keeping.name, Keeping)
    try:
        bare = build("eagle3.1", target)
        kept = Keeping(Plain(bare, None), None)  # what a wrapper holds can, it can
        assert kept.capabilities == bare.capabilities
        saved = bare.save_pretrained(tmp_path / "saved")
        config = json.loads((saved / "config.json").read_text())
        config |= {"spec": "eagle3.1+test-keeping", "wrappers": [{"name": "test-keeping"}]}
        (saved / "config.json").write_text(json.dumps(config))
        file = write_rollouts(tmp_path / "r.jsonl", target)
        given: list[str | Drafter] = ["eagle3.1+test-keeping", f"dir:{saved}", kept, Outer(kept, None)]
        for one in given:
            for rule in ("match", "rejection"):
                with pytest.raises(UsageError, match=r"^evaluate: .* since 'test-keeping' keeps .* bench") as caught:
                    drafterzoo.evaluate(["lookup", one], file, rule=rule, budget="chain:2", out=tmp_path / "out")
                assert "\n" not in str(caught.value)
        assert main(["evaluate", "-d", "eagle3.1+test-keeping", "-r", str(file)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
        with pytest.raises(UsageError, match=r"'eagle3\.1\+test-plain\+test-keeping' cannot be replayed"):
            replayed(kept, [Recording(PROMPTS[0], [4, 5])], Settings(Budget.chain(2), Sampling(), 2), [0])
        assert not (tmp_path / "out").exists()
        tokens, _ = decoded(kept, Settings(Budget.chain(2), Sampling(), 6), range(4))
        assert tokens == plainly(target, PROMPTS, Sampling(), 6), "decoding has what it needs"
    finally:
        del WRAPPERS._entries[Keeping.name]


def test_a_checkpoint_of_another_target_is_refused(target: Target, tmp_path: Path) -> None:
    place = build("eagle3.1", tiny_target(vocab=32)).save_pretrained(tmp_path / "other")
    with pytest.raises(CheckpointError, match=r"vocab_size is 32, but the one here has 64"):
        drafterzoo.evaluate(f"dir:{place}", write_rollouts(tmp_path / "r.jsonl", target), target=target)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rollouts_of_another_target_are_found_out(temperature: float, target: Target, tmp_path: Path) -> None:
    other = tiny_target(seed=9, dtype=torch.float64)
    file = write_rollouts(tmp_path / "r.jsonl", target, temperature)
    with pytest.raises(DataError, match=r"tiny-llama itself says only \d+% of the tokens"):
        drafterzoo.evaluate(build("lookup", other), file, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    lesson = teach(target, [Recording(PROMPTS[0], [4])], ())
    assert agreement(target, lesson, Sampling(), [0]) == 1.0, "an answer of one token says nothing"


def test_a_folder_is_written_by_one_evaluation_at_a_time(tmp_path: Path) -> None:
    with LinesFile(tmp_path / "out", {"kind": "evaluate"}):
        with pytest.raises(UsageError, match="another evaluation is writing there"):
            LinesFile(tmp_path / "out", {"kind": "evaluate"})
        (tmp_path / "bench").mkdir()
        (tmp_path / "bench" / "rounds.jsonl").write_text("")
        with pytest.raises(UsageError, match="results of something else"):
            LinesFile(tmp_path / "bench", {"kind": "evaluate"})
        assert [path.name for path in (tmp_path / "bench").iterdir()] == ["rounds.jsonl"]
    assert not (tmp_path / "out").exists()


def test_a_broken_line_is_named(target: Target, pair: list[Drafter], tmp_path: Path) -> None:
    file, out = write_rollouts(tmp_path / "r.jsonl", target), tmp_path / "out"
    drafterzoo.evaluate(pair, file, budget="chain:2", out=out)
    lines = (out / "rollouts.jsonl").read_text().splitlines()
    (out / "rollouts.jsonl").write_text("\n".join([lines[0], "nonsense", *lines[2:]]) + "\n")
    with pytest.raises(DataError, match=r"rollouts.jsonl:2: not a line of an evaluation"):
        drafterzoo.evaluate(pair, file, budget="chain:2", out=out)


# ------------------------------------------------------------------------------------------------------------ the verb


def test_progress_names_the_batch_whose_rows_need_not_be_neighbours(
    target: Target, pair: list[Drafter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("drafterzoo.progress.QUIET_SECONDS", 0.0)  # every line
    file = write_rollouts(tmp_path / "r.jsonl", target)
    drafterzoo.evaluate(pair[0], file, budget="chain:2", batch_size=3, out=tmp_path / "out", show_progress=True)
    assert " chain:2 on 3 rollouts, batch 1 of " in capsys.readouterr().err


def test_the_verb_prints_tables_or_json(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("drafterzoo.target.load_target", lambda *args, **options: target)
    monkeypatch.setattr("drafterzoo.catalogue._target", lambda *args: target)
    file = write_rollouts(tmp_path / "r.jsonl", target)
    words = [
        "-d",
        "lookup",
        "-d",
        "lookup(max_ngram=2)",
        "--rollouts",
        str(file),
        "--budget",
        "chain:3",
        "--nodes",
        "8",
    ]
    assert main(["evaluate", *words, "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    for word in ("τ with", "MAL", "over lookup", "At depth d", "2 of 8 are marked 'train'"):
        assert word in said.out
    assert str(tmp_path / "out") in said.err and "8 rollouts, 4 rows" in said.err
    assert main(["evaluate", *words, "-o", str(tmp_path / "out"), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["complete"] and "32 of 32 figures are there already" in said.err
    assert main(["evaluate", *words, "--split", "test"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_remarks_on_what_the_file_does_not_show() -> None:
    summary = {
        "conditions": {"rollouts": {"seen_in_training": 0, "rows": 5, "prompts": 4}, "drafters": {"a": {}, "b": {}}},
        "rows": [{"open_rounds": 0, "doubtful_tokens": 2}, {"open_rounds": 3, "doubtful_tokens": 0}],
    }
    one, other, few = remarks(summary)
    assert "up to 3 answers" in one and "2 tokens have no chance" in other and "of 4 prompts" in few


def test_rollouts_record_their_noise_and_what_follows(target: Target, tmp_path: Path) -> None:
    from drafterzoo.training.generating import make_rollouts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Target, "encode_chat", lambda self, messages, **options: [5, 6, len(messages[0]["content"])])
        prompts = [("a", "one"), ("b", "three"), ("a", "seven!")]
        for name, ahead in (("r", 4), ("s", 0)):
            make_rollouts(
                target,
                prompts,
                tmp_path / f"{name}.jsonl",
                max_new_tokens=6,
                temperatures=(1.0,),
                top_k=9,
                seed=3,
                look_ahead=ahead,
            )
        with pytest.raises(UsageError, match="look_ahead=-1"):
            make_rollouts(target, prompts, tmp_path / "t.jsonl", max_new_tokens=6, look_ahead=-1)
    rows, plain = (read_rollouts(tmp_path / name, 64).rows for name in ("r.jsonl", "s.jsonl"))
    assert {row.request for row in rows} == {0, 1, 2} and {(row.seed, row.top_k) for row in rows} == {(3, 9)}
    assert [attrs.evolve(row, ahead_ids=()) for row in rows] == list(plain)
    assert all(len(row.response_ids) <= 6 and len(row.ahead_ids) <= 4 for row in rows)
    assert any(len(row.ahead_ids) == 4 for row in rows)
    result = drafterzoo.evaluate(
        build("eagle3.1", target), tmp_path / "r.jsonl", budget="chain:4", out=tmp_path / "out"
    )
    assert result.summary["conditions"]["sampling"]["top_k"] == 9
