"""Training: the loss against a plain reference, the mask, the packing, exact resumption, recipes' errors."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from drafterzoo.drafters.eagle31 import Eagle31
from drafterzoo.errors import DataError, UsageError
from drafterzoo.registry import DRAFTERS, WRAPPERS, parse_spec
from drafterzoo.target import Target
from drafterzoo.training import features
from drafterzoo.training.batches import pack, packs
from drafterzoo.training.chunked import Teacher, soft_cross_entropy
from drafterzoo.training.features import OnlineFeatures, cache_bytes, open_cache
from drafterzoo.training.objectives.base import TeacherHead, supervised
from drafterzoo.training.objectives.ttt import TTT
from drafterzoo.training.prompts import builtin_source
from drafterzoo.training.recipe import OptimizerSection, Recipe, build_recipe, read_recipe
from drafterzoo.training.ridge import ridge_start
from drafterzoo.training.rollouts import Rollout, Rollouts, read_rollouts, thinned
from drafterzoo.training.run import alone, open_features, train
from drafterzoo.training.trainer import Trainer, learning_rate
from drafterzoo.training.vocabulary import coverage, frequent_ids
from tests.tiny import tiny_rollouts, tiny_target

VOCAB = 64


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("llama")


@pytest.fixture
def rollouts(tmp_path: Path) -> Rollouts:
    return tiny_rollouts(tmp_path, VOCAB)


def recipe(**sections: Any) -> Recipe:
    values: dict[str, Any] = {
        "spec": "eagle3.1",
        "data": {"rollouts": "unused", "pack": 40},
        "objective": {"name": "ttt", "passes": [1, 2, 3]},
        "optimizer": {"lr": 1e-2, "ema": 0.9},
        "run": {"epochs": 4.0, "save_every": 1000, "log_every": 1},
        "evaluate": {"every": 1000, "prompts": 2, "max_new_tokens": 4},
    }
    return build_recipe({**values, **sections}, "recipe")


def trainer(target: Target, rollouts: Rollouts, folder: Path, made: Recipe | None = None) -> Trainer:
    torch.manual_seed(0)
    made = made or recipe()
    drafter = Eagle31(Eagle31.debug_config(target), target)
    drafter.set_vocabulary(torch.arange(2, 2 + drafter.config.draft_vocab_size))
    source = OnlineFeatures(target, rollouts, drafter.taps, made.data.max_length)
    objective = TTT(passes=(1, 2, 3))
    return Trainer(made, drafter, objective, rollouts, source, folder, lambda text: None)


# -- the loss ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize(("plain_weight", "top_k", "top_weight"), [(1.0, 0, 0.0), (0.5, 0, 0.0), (0.1, 3, 2.0)])
@pytest.mark.parametrize("chunk_bytes", [1, 1 << 12, 1 << 25])
def test_the_chunked_loss_equals_the_plain_one(
    renormalise: bool, plain_weight: float, top_k: int, top_weight: float, chunk_bytes: int
) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(7, 5, requires_grad=True)
    head = torch.randn(11, 5, requires_grad=True)
    full = torch.randn(16, 6)
    judged = torch.randn(7, 6)
    how, shuffled = {"weight": plain_weight, "top_k": top_k, "top_weight": top_weight}, torch.randperm(7)
    lse = (judged @ full.T).logsumexp(-1)
    teacher = Teacher.of(judged[shuffled], full[:11], lse[shuffled], renormalise=renormalise)
    teacher = attrs.evolve(teacher, at=shuffled.argsort(), **how)  # the rows that judge stand in any order
    weight = torch.rand(7)
    loss, agree, sure = soft_cross_entropy(hidden, head, weight, teacher, chunk_bytes=chunk_bytes)
    (3 * loss).backward()
    got = hidden.grad.clone(), head.grad.clone()
    hidden.grad = head.grad = None

    logits = judged @ full.T
    p = logits[:, :11].softmax(-1) if renormalise else logits.softmax(-1)[:, :11]
    log_q = (hidden @ head.T).log_softmax(-1)
    greatest = torch.zeros_like(p).scatter(-1, p.topk(top_k).indices, 1.0)
    plain = -(weight[:, None] * p * (plain_weight + top_weight * greatest) * log_q).sum()
    (3 * plain).backward()
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(got[0], hidden.grad)
    torch.testing.assert_close(got[1], head.grad)
    assert torch.equal(agree, p.argmax(-1) == log_q.argmax(-1))
    torch.testing.assert_close(sure, log_q.exp().amax(-1))


def test_the_chunked_loss_in_half_precision_is_near_and_its_sums_are_float32() -> None:
    torch.manual_seed(0)
    head, draft = torch.randn(40, 24), torch.randn(40, 24, requires_grad=True)
    rows = torch.randn(9, 24)
    judged, found = torch.randn(9, 24), []
    for half in (False, True):
        hidden = rows.clone().requires_grad_()
        draft.grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            teacher = Teacher.of(judged, head, torch.full((9,), 9.0))
            loss, *_ = soft_cross_entropy(hidden, draft, torch.ones(9), teacher, chunk_bytes=1 << 12)
        loss.backward()
        assert loss.dtype == hidden.grad.dtype == draft.grad.dtype == torch.float32
        found.append((loss.detach(), hidden.grad, draft.grad.clone()))
    for exact, near in zip(*found, strict=True):
        assert 0 < float((exact - near).norm() / exact.norm()) < 0.03


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_step_in_half_precision_moves_the_weights_nearly_alike(
    target: Target, rollouts: Rollouts, tmp_path: Path, precision: str
) -> None:
    made = recipe(run={"epochs": 4.0, "precision": precision})
    run, plain = trainer(target, rollouts, tmp_path, made), trainer(target, rollouts, tmp_path)
    head = TeacherHead.of(run.drafter)
    before = [p.detach().clone() for p in run.parameters]
    for one in (run, plain):
        _, notes = one._take_step([0, 1], 100, head)
        assert all(torch.isfinite(note.loss) for note in notes)
    losses = [p.grad.flatten() for p in run.parameters], [p.grad.flatten() for p in plain.parameters]
    half, full = (torch.cat(grads) for grads in losses)
    assert half.dtype == torch.float32 and all(p.dtype == torch.float32 for p in run.parameters)
    assert torch.equal(half, full) == (precision == "float32")
    assert torch.nn.functional.cosine_similarity(half, full, dim=0) > 0.98
    assert any(not torch.equal(p, b) for p, b in zip(run.parameters, before, strict=True))


def test_the_mask_is_shifted_with_the_inputs(target: Target, rollouts: Rollouts) -> None:
    source = OnlineFeatures(target, rollouts, (2, 4, 5), 512)
    documents = [source.document(0), source.document(1)]  # prompts of 4, texts of 10 and 11 tokens
    batch = pack(documents)
    for step in range(3):
        _, columns = supervised(batch, step)
        columns = batch.queries[0, columns]
        # The root x_{t+1} must be an answer token (t >= 3) and x_{t+2+step} must exist in the same document.
        want = [*range(3, 10 - 2 - step), *(10 + t for t in range(3, 11 - 2 - step))]
        assert columns.tolist() == want


def test_the_teacher_of_a_row_is_the_target_one_row_ahead(target: Target, rollouts: Rollouts) -> None:
    """A drafter whose head input is the target's own next hidden state has the lowest loss there is, the entropy."""
    source = OnlineFeatures(target, rollouts, (2, 4, 5), 512)
    batch = pack([source.document(i) for i in (0, 1, 2)])

    class Oracle:
        vocabulary = None
        config = Eagle31.default_config(target, draft_vocab_size=VOCAB)

        def __init__(self) -> None:
            self.target = target

        def head_matrix(self) -> Tensor:
            return target.head_weight(None)

        def unroll(self, batch: Any, passes: int, how: Any) -> list[Tensor]:
            return [
                batch.hidden[:, (batch.queries[0] + 1 + j).clamp(max=batch.hidden.shape[1] - 1)] for j in range(passes)
            ]

    oracle: Any = Oracle()
    loss, notes = TTT(decay=1.0).loss(oracle, batch, 2, TeacherHead.of(oracle))
    want = 0.0
    for step, note in enumerate(notes):
        rows = supervised(batch, step)
        log_p = (batch.hidden[0, batch.queries[0, rows[1]] + 1 + step] @ target.head_weight(None).T).log_softmax(-1)
        entropy = -(log_p.exp() * log_p).sum(-1).mean()
        assert float(note.loss) == pytest.approx(float(entropy), abs=1e-5)
        assert int(note.right) == note.rows > 0
        want += float(entropy)
    assert float(loss) == pytest.approx(want, abs=1e-5)


def test_rows_whose_target_choice_is_outside_the_draft_vocabulary(target: Target, rollouts: Rollouts) -> None:
    source = OnlineFeatures(target, rollouts, (2, 4, 5), 512)
    batch = pack([source.document(i) for i in range(6)])
    drafter = Eagle31(Eagle31.debug_config(target), target)
    drafter.set_vocabulary(torch.arange(2, 50))
    head = TeacherHead.of(drafter)
    loss = {
        kind: float(TTT(out_of_vocabulary=kind).loss(drafter, batch, 1, head)[0].detach())
        for kind in ("mask", "share", "keep")
    }
    rows = supervised(batch, 0)
    known = head.inside[batch.argmax[0, batch.queries[0, rows[1]] + 1]]
    assert 0 < int(known.sum()) < len(known), "the example must have both kinds of row"
    assert loss["mask"] < loss["keep"] and loss["share"] < loss["keep"]
    note = TTT().loss(drafter, batch, 1, head)[1][0]
    assert int(note.right) <= int(known.sum()), "an unknown choice is a miss, whatever the draft says"


# -- data ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(1, 50), st.integers(0, 5))
def test_every_document_is_seen_once_an_epoch_and_packs_are_bounded(lengths: list[int], limit: int, epoch: int) -> None:
    steps = packs(lengths, range(len(lengths)), limit, seed=1, epoch=epoch)
    assert sorted(i for step in steps for i in step) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in step) <= limit or len(step) == 1 for step in steps)
    assert steps == packs(lengths, range(len(lengths)), limit, seed=1, epoch=epoch)


def test_cached_features_are_the_online_ones(target: Target, rollouts: Rollouts, tmp_path: Path) -> None:
    taps = (0, 3, 8)
    cached = open_cache(target, rollouts, taps, 14, tmp_path / "cache")
    online = OnlineFeatures(target, rollouts, taps, 14)
    for i in range(len(rollouts.rows)):
        a, b = cached.document(i), online.document(i)
        assert torch.equal(a.tokens, b.tokens) and len(a.tokens) <= 14 and a.prompt == b.prompt
        torch.testing.assert_close(a.features, b.features, rtol=2e-3, atol=2e-3)  # stored in 16 bit
        torch.testing.assert_close(a.lse, b.lse)
        assert torch.equal(a.argmax, b.argmax)
    widths = {"features.f16": 3 * 32, "hidden.f16": 32, "argmax.i32": 0, "lse.f32": 0}
    on_disk = sum(p.stat().st_size for p in next((tmp_path / "cache").iterdir()).iterdir() if p.suffix != ".json")
    assert on_disk == cache_bytes(cached.total, widths)


def test_features_read_in_half_precision_are_near_and_kept_apart(
    target: Target, rollouts: Rollouts, tmp_path: Path
) -> None:
    exact = open_cache(target, rollouts, (2, 4, 5), 512, tmp_path)
    near = open_cache(target, rollouts, (2, 4, 5), 512, tmp_path, "bfloat16")
    online = OnlineFeatures(target, rollouts, (2, 4, 5), 512, "bfloat16")
    a, b, c = exact.document(1), near.document(1), online.document(1)
    for name in ("features", "hidden", "lse"):
        one, other = getattr(a, name), getattr(b, name)
        assert 0 < float((one - other).norm() / one.norm()) < 0.1, name
        assert float((other - getattr(c, name)).norm() / one.norm()) < 0.1, name
    assert len([f for f in tmp_path.iterdir() if f.is_dir()]) == 2


def test_a_cache_left_half_written_is_made_again(target: Target, rollouts: Rollouts, tmp_path: Path) -> None:
    whole = open_cache(target, rollouts, (2,), 512, tmp_path / "cache").document(0)
    folder = next((tmp_path / "cache").iterdir())
    (folder / "index.json").unlink()
    (folder / "features.f16").write_bytes(b"\0" * 10)
    again = open_cache(target, rollouts, (2,), 512, tmp_path / "cache").document(0)
    assert torch.equal(whole.features, again.features)


def test_no_room_on_disk_is_said_before_anything_is_written(
    target: Target, rollouts: Rollouts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("U", (), {"free": 10})())
    with pytest.raises(DataError, match=r'needs .* MB and 0\.0 MB are free; set features = "online"'):
        open_cache(target, rollouts, (2,), 512, tmp_path / "cache")


def test_a_disk_that_fills_while_room_is_made_is_said(
    target: Target, rollouts: Rollouts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(DataError, match="No space left on device"):
        open_cache(target, rollouts, (2,), 512, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*/*.f16"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "rollouts.jsonl:2: not JSON at column 2"),
        ("[1]", "rollouts.jsonl:2: expected a JSON object, found a list"),
        ('{"prompt_ids": [1]}', "rollouts.jsonl:2: 'response_ids' must be a non-empty list"),
        ('{"prompt_ids": [1], "response_ids": [64]}', "outside the target's vocabulary of 64"),
    ],
)
def test_a_broken_rollout_names_file_and_line(line: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text('{"prompt_ids": [1], "response_ids": [2]}\n' + line + "\n")
    with pytest.raises(DataError) as caught:
        read_rollouts(path, VOCAB)
    assert words in str(caught.value)


def test_missing_rollouts_and_unset_variables(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="drafterzoo rollout"):
        read_rollouts(tmp_path / "none.jsonl", VOCAB)
    with pytest.raises(DataError, match="DRAFTERZOO_NOT_SET is not set"):
        read_rollouts("$DRAFTERZOO_NOT_SET/x.jsonl", VOCAB)


def test_the_draft_vocabulary_holds_the_frequent_ids_and_the_stop_tokens() -> None:
    answers = [[5, 5, 9, 7], [5, 9, 30]]
    ids = frequent_ids(answers, 4, 40, always=[2])
    assert ids.tolist() == [2, 5, 7, 9]
    assert coverage(answers, ids, 40) == pytest.approx(6 / 7)
    assert frequent_ids([[5]], 3, 40).tolist() == [0, 1, 5], "unused ids fill up from the smallest"


# -- the start -----------------------------------------------------------------------------------------------------


def test_the_ridge_start_predicts_the_next_hidden_state(target: Target, rollouts: Rollouts) -> None:
    torch.manual_seed(0)
    source = OnlineFeatures(target, rollouts, (2, 4, 8), 512)
    documents = [source.document(i) for i in range(len(rollouts.rows))]
    drafter = Eagle31(Eagle31.default_config(target, taps=(2, 4, 8), draft_vocab_size=VOCAB, head="borrowed"), target)
    drafter.borrow()

    def error() -> float:
        hidden = torch.cat([drafter.unroll(attrs.evolve(pack([d]), queries=None), 1)[0][0, :-1] for d in documents])
        return float((hidden - torch.cat([d.hidden[1:] for d in documents])).square().mean().detach())

    before = error()
    ridge_start(drafter, documents, 10_000)
    assert error() < 0.7 * before


# -- the loop ------------------------------------------------------------------------------------------------------


def test_the_learning_rate_rises_and_falls() -> None:
    section = OptimizerSection(lr=1.0, warmup=0.1, final=0.1)
    rates = [learning_rate(section, step, 100) for step in range(101)]
    assert rates[0] == pytest.approx(0.1) and rates[9] == 1.0 and rates[100] == pytest.approx(0.1)
    assert rates[:10] == sorted(rates[:10]) and rates[10:] == sorted(rates[10:], reverse=True)


def weights(run: Trainer) -> list[Tensor]:
    return [*run.parameters, *run.average, *(v for s in run.optimizer.state.values() for v in s.values())]


@pytest.mark.parametrize("stop_at", [1, 5, 11])
def test_a_resumed_run_is_bitwise_the_uninterrupted_one(
    target: Target, rollouts: Rollouts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: int
) -> None:
    monkeypatch.setattr(Trainer, "_evaluate", lambda self: None)
    straight = trainer(target, rollouts, tmp_path / "straight")
    straight.resume()
    straight.train()

    first = trainer(target, rollouts, tmp_path / "broken")
    first.resume()
    step = first._take_step

    def interrupted(*args: Any) -> Any:
        done = step(*args)
        if first.step + 1 == stop_at:
            signal.raise_signal(signal.SIGINT)  # Ctrl-C in the middle of a step
        return done

    monkeypatch.setattr(first, "_take_step", interrupted)
    before = signal.getsignal(signal.SIGINT)  # ignored, where the tests run in the background
    summary = first.train()
    assert summary["step"] == stop_at < summary["of"] and not summary["finished"]
    assert signal.getsignal(signal.SIGINT) is before

    torch.manual_seed(99)  # a new process has another random state
    second = trainer(target, rollouts, tmp_path / "broken")
    assert second.resume() and second.step == stop_at
    assert second.train()["finished"]
    assert second.visited == straight.visited
    assert all(torch.equal(a, b) for a, b in zip(weights(straight), weights(second), strict=True))
    left, right = (tmp_path / side / "last" / "model.safetensors" for side in ("straight", "broken"))
    assert left.read_bytes() == right.read_bytes()


def test_training_lowers_the_loss_and_logs_every_pass(
    target: Target, rollouts: Rollouts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "_evaluate", lambda self: None)
    run = trainer(target, rollouts, tmp_path / "run", recipe(run={"epochs": 25.0, "log_every": 5, "save_every": 1000}))
    run.resume()
    run.train()
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"][0] < 0.8 * lines[0]["loss"][0]
    assert all(0 <= a <= 1 for line in lines for a in line["agree"]) and lines[-1]["visited"] == run.visited
    record = json.loads((tmp_path / "run" / "last" / "config.json").read_text())["training"]
    assert record["rollouts_sha256"] == rollouts.sha256 and record["steps"] == run.total
    assert run.drafter.training_record["rows_visited"] == run.visited


def test_the_decode_keeps_the_best_and_changes_no_weight(target: Target, rollouts: Rollouts, tmp_path: Path) -> None:
    run = trainer(target, rollouts, tmp_path / "run")
    run.resume()
    before = [p.detach().clone() for p in run.parameters]
    run.average = [a + 0.01 for a in run.average]
    run._evaluate()
    assert all(torch.equal(a, b) for a, b in zip(before, run.parameters, strict=True))
    assert run.best["tau"] >= 1.0 and (tmp_path / "run" / "best" / "model.safetensors").is_file()
    line = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1])
    assert line["tau"] == pytest.approx(run.best["tau"], abs=1e-4) and line["prompts"] == 2


def test_without_held_out_rows_best_is_the_last_step(target: Target, rollouts: Rollouts, tmp_path: Path) -> None:
    everything = attrs.evolve(rollouts, rows=tuple(attrs.evolve(row, split="train") for row in rollouts.rows))
    run = trainer(target, everything, tmp_path / "run", recipe(run={"epochs": 1.0}))
    run.resume()
    assert run.train()["finished"] and run.best["step"] == -1
    best, last = (tmp_path / "run" / name / "model.safetensors" for name in ("best", "last"))
    assert best.read_bytes() == last.read_bytes()


def test_stopped_in_its_last_step_a_run_is_not_finished(
    target: Target, rollouts: Rollouts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drafterzoo.training.trainer.LEARNT_NOTHING", 0.0)
    run = trainer(target, rollouts, tmp_path / "run", recipe(run={"epochs": 1.0}))
    run.resume()
    step = run._take_step

    def interrupted(*args: Any) -> Any:
        if run.step + 1 == run.total:
            signal.raise_signal(signal.SIGINT)
        return step(*args)

    monkeypatch.setattr(run, "_take_step", interrupted)
    summary = run.train()
    assert summary["step"] == summary["of"] and not summary["finished"] and run.best["step"] == -1
    again = trainer(target, rollouts, tmp_path / "run", recipe(run={"epochs": 1.0}))
    assert again.resume() and again.train()["finished"] and again.best["step"] == again.total


def test_the_log_of_a_killed_run_tells_of_every_step_once(
    target: Target, rollouts: Rollouts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "_evaluate", lambda self: None)
    made = recipe(run={"epochs": 4.0, "save_every": 3, "log_every": 1})
    run = trainer(target, rollouts, tmp_path / "run", made)
    run.resume()
    step = run._take_step

    def killed(*args: Any) -> Any:
        if run.step == 5:
            raise MemoryError  # after the save of step 3
        return step(*args)

    monkeypatch.setattr(run, "_take_step", killed)
    with pytest.raises(MemoryError):
        run.train()
    log = tmp_path / "run" / "log.jsonl"
    log.write_text(log.read_text() + '{"step": 6, "o')  # cut short
    again = trainer(target, rollouts, tmp_path / "run", made)
    assert again.resume() and again.step == 3
    again.train()
    steps = [json.loads(line)["step"] for line in log.read_text().splitlines()]
    assert steps == list(range(1, again.total + 1))


def test_all_steps_are_saved_before_the_last_decode(
    target: Target, rollouts: Rollouts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(self: Trainer) -> None:
        raise KeyboardInterrupt

    run = trainer(target, rollouts, tmp_path / "run", recipe(run={"epochs": 1.0}))
    run.resume()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Trainer, "_evaluate", stopped)
        run.train()
    again = trainer(target, rollouts, tmp_path / "run", recipe(run={"epochs": 1.0}))
    assert again.resume() and again.step == again.total


def test_a_loss_that_is_no_number_ends_the_run_and_spoils_nothing(
    target: Target, rollouts: Rollouts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trainer(target, rollouts, tmp_path / "run", recipe(run={"epochs": 1.0, "save_every": 1}))
    run.resume()
    document = run.source.document

    def spoilt(index: int) -> Any:
        found = document(index)
        return attrs.evolve(found, features=found.features * (float("nan") if run.step == 2 else 1.0))

    monkeypatch.setattr(run.source, "document", spoilt)
    with pytest.raises(DataError, match="step 3 has loss nan and a gradient of norm nan; check rollouts and features"):
        run.train()
    again = trainer(target, rollouts, tmp_path / "run", recipe(run={"epochs": 1.0, "save_every": 1}))
    assert again.resume() and again.step == 2 and all(p.isfinite().all() for p in again.parameters)


def test_features_that_16_bits_cannot_hold_are_refused(
    target: Target, rollouts: Rollouts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = features.read_batch

    def enormous(*args: Any) -> dict[str, Tensor]:
        found = read(*args)
        return {**found, "features.f16": found["features.f16"] * 1e6}

    monkeypatch.setattr(features, "read_batch", enormous)
    with pytest.raises(
        DataError, match=r'features.f16 would hold .*, beyond what 16 bits can; set features = "online"'
    ):
        open_cache(target, rollouts, (2,), 512, tmp_path / "cache")


def test_rows_cut_before_their_answer_are_left_out(
    target: Target, rollouts: Rollouts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "_evaluate", lambda self: None)
    long = attrs.evolve(rollouts.rows[0], prompt_ids=tuple(rollouts.rows[0].ids) * 3)
    mixed = attrs.evolve(rollouts, rows=(long, *rollouts.rows[1:]))
    short = recipe(data={"rollouts": "unused", "pack": 40, "max_length": 12}, run={"epochs": 1.0})
    run = trainer(target, mixed, tmp_path / "run", short)
    assert run.left_out == 1 and 0 not in run.indices
    run.resume()
    assert run.train()["finished"]
    with pytest.raises(DataError, match="within max_length = 3 tokens"):
        trainer(target, mixed, tmp_path / "b", recipe(data={"rollouts": "unused", "max_length": 3}))


def test_a_folder_with_another_recipe_is_not_taken_up(target: Target, rollouts: Rollouts, tmp_path: Path) -> None:
    trainer(target, rollouts, tmp_path / "run").resume()
    with pytest.raises(UsageError, match="another recipe"):
        trainer(target, rollouts, tmp_path / "run", recipe(optimizer={"lr": 1.0})).resume()


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    refused = pytest.raises(UsageError, match="another process is training in it")
    with alone(tmp_path / "run"), refused, alone(tmp_path / "run"):
        pass
    with alone(tmp_path / "run"):
        assert (tmp_path / "run").is_dir()


# -- recipes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ('spec = "eagle3.1"\n[dta]\nrollouts = "x"', "unknown key 'dta' (did you mean 'data'?)"),
        ('spec = "eagle3.1"\n[data]\nrolouts = "x"', "[data]: unknown key 'rolouts' (did you mean 'rollouts'?)"),
        ('spec = "eagle3.1"\n[data]\nrollouts = 3', "[data]: key 'rollouts' is 3, expected a text."),
        ('spec = "eagle3.1"\n[data]\nrollouts = "x"\npack = 0', "pack is 0, expected a number above zero"),
        ('[data]\nrollouts = "x"', "key 'spec' is missing; expected a text."),
        ('spec = "eagle3.1"\ndata = 3', "'data' is 3, expected a table [data]"),
        ("spec = ", "cannot be read as TOML"),
    ],
)
def test_a_wrong_recipe_names_the_key(toml: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(toml)
    with pytest.raises(UsageError) as caught:
        read_recipe(path)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
        ("run", "precision", "float16", "expected 'float32' or 'bfloat16'."),
        ("target", "dtype", "int8", "expected 'float32', 'bfloat16' or 'float16'."),
        ("optimizer", "betas", [0.9], "expected two numbers."),
        ("optimizer", "betas", [0.9, "x"], "expected two numbers."),
        ("optimizer", "betas", [0.9, True], "expected two numbers."),
        ("generate", "temperatures", 1.0, "expected a list of numbers."),
        ("run", "seed", 1.5, "expected a whole number."),
        ("run", "seed", True, "expected a whole number."),
        ("run", "epochs", "1", "expected a number."),
        ("target", "revision", 5, "expected a text."),
        ("objective", "mean", "some", "expected 'valid' or 'all'."),
        ("objective", "passes", [1.5], "expected a list of whole numbers."),
        ("objective", "name", ["ttt"], "there is ttt, hass, ce, kl, tv, lk, e2e_tv, dspark."),
        ("objective", "pases", [1], "(did you mean 'passes'?)"),
        ("drafter", "head", "mine", "expected 'own' or 'borrowed'."),
        ("drafter", "coupling", [1.0], "expected two numbers."),
        ("drafter", "taps", "2", "expected a list of whole numbers."),
        ("drafter", "qk_norm", 1, "expected true or false."),
        ("drafter", "tap", [2], "(did you mean 'taps'?)"),
    ],
)
def test_what_was_expected_is_said_in_words(section: str, key: str, value: Any, words: str) -> None:
    """And before a target is loaded."""
    values = {"spec": "eagle3.1", "data": {"rollouts": "x"}, section: {key: value}}
    with pytest.raises(UsageError) as caught:
        train(values, out="nowhere", quiet=True)
    said = str(caught.value)
    assert said.startswith("recipe") and key in said and said.endswith(words if words.endswith(".") else ".")
    assert words in said and not any(word in said for word in ("Literal", "tuple", "typing", "str |"))


@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
        ("run", "seed", 2**32, "seed is 4294967296, expected from 0 to 4294967295."),
        ("run", "threads", 5000, "expected from 0 to 4096."),
        ("run", "fit_coupling", 10**10, "expected from 0 to 1000000000."),
        ("optimizer", "betas", [0.9, 1.0], "expected from 0 to 0.9999999."),
        ("run", "epochs", 1e300, "epochs is 1e+300, expected a number above zero, at most 10000."),
        ("run", "epochs", 10_001, "at most 10000."),
        ("run", "epochs", float("nan"), "expected a number."),
    ],
)
def test_bounds_are_said_in_full(section: str, key: str, value: Any, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        recipe(**{section: {key: value}})
    assert str(caught.value).endswith(words)


def test_the_longest_run_is_long_enough() -> None:
    assert recipe(run={"epochs": 10_000}).run.epochs == 10_000


def test_what_has_no_weights_cannot_be_trained() -> None:
    with pytest.raises(UsageError, match="'lookup' cannot be trained; give a drafter that has weights"):
        train({"spec": "lookup", "data": {"rollouts": "x"}}, out="nowhere", quiet=True)


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parent.parent / "recipes" / "train").glob("*.toml")), ids=lambda p: p.stem
)
def test_the_recipes_that_come_with_the_package_are_valid(path: Path) -> None:
    from drafterzoo.training.run import build_objective

    made = read_recipe(path)
    assert made.name == path.stem
    build_objective(made)
    spec = parse_spec(made.spec)
    options = {field.name for field in attrs.fields(DRAFTERS.get(spec.base).Config)}
    assert all(WRAPPERS.get(name).default_config(None, **given) for name, given in spec.wrappers)
    assert set(made.drafter) <= options


def test_the_recipe_for_learning_needs_nothing_but_itself() -> None:
    made = read_recipe(Path(__file__).parent.parent / "recipes" / "train" / "first-steps.toml")
    assert "$" not in made.data.rollouts + made.data.cache and made.init.from_checkpoint is None
    assert made.generate is not None
    asked = builtin_source(made.generate.prompts)
    assert asked is not None and asked[0] <= 100
    assert made.generate.held_out > 0, "tau is measured"
    assert made.evaluate.every >= 1000, "once, at the end"


@given(st.lists(st.sampled_from(["train", "val"]), min_size=1, max_size=40), st.integers(1, 45))
def test_so_many_documents_are_taken_evenly_and_every_held_out_one(splits: list[str], documents: int) -> None:
    rows = tuple(Rollout((1,), (2 + i,), split, "", 0.0) for i, split in enumerate(splits))
    whole = Rollouts(Path("r.jsonl"), rows, "ab")
    kept = thinned(whole, documents)
    assert [row for row in kept.rows if row.split == "val"] == [row for row in rows if row.split == "val"]
    train, chosen = (some.split("train") for some in (whole, kept))
    assert len(chosen) == min(documents, len(train)) and thinned(whole, None) is whole
    assert (kept is whole) == (documents >= len(train)) and (kept is whole or kept.sha256 != whole.sha256)
    places = [train.index(rows.index(kept.rows[i])) for i in chosen]
    gaps = [b - a for a, b in zip([-1, *places], [*places, len(train)], strict=True)]
    assert places == sorted(places) and (not chosen or max(gaps) <= len(train) // len(chosen) + 1)


def test_a_run_on_some_of_the_documents_reads_those_alone(target: Target, tmp_path: Path) -> None:
    rows = [{"prompt_ids": [5, 6], "response_ids": [7 + i, 8, 9, 10], "split": "train"} for i in range(8)]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"rollouts": str(tmp_path / "r.jsonl"), "pack": 40, "cache": str(tmp_path / "features"), "documents": 3}
    recipe = build_recipe({"spec": "eagle3.1", "data": data}, "recipe")
    kept = thinned(read_rollouts(recipe.data.rollouts, target.vocab_size), recipe.data.documents)
    cache = open_features(recipe, target, kept, (2, 4, 6))
    assert [int(cache.document(i).tokens[2]) for i in range(3)] == [8, 11, 13]
    with pytest.raises(UsageError, match=r"documents is 0, expected a number above zero"):
        build_recipe({"spec": "eagle3.1", "data": {**data, "documents": 0}}, "recipe")
