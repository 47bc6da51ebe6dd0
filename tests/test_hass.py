"""HASS: aligned contexts against a literal reading of the method, its loss against the plain formula, its refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from drafterzoo import load
from drafterzoo.drafters.base import UnrollBatch, Unrolling
from drafterzoo.drafters.eagle31 import Eagle31
from drafterzoo.drafters.hass import Hass as HassDrafter
from drafterzoo.drafters.rope import rotary
from drafterzoo.errors import UsageError
from drafterzoo.registry import DRAFTERS
from drafterzoo.target import Target
from drafterzoo.training.batches import pack
from drafterzoo.training.features import OnlineFeatures
from drafterzoo.training.objectives.base import TeacherHead, supervised
from drafterzoo.training.objectives.hass import Hass, feature_noise
from drafterzoo.training.recipe import build_recipe
from drafterzoo.training.ridge import ridge_start
from drafterzoo.training.rollouts import Rollouts
from drafterzoo.training.run import build_objective, train
from tests.tiny import tiny_rollouts, tiny_target

VOCAB = 64


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("llama")


@pytest.fixture
def rollouts(tmp_path: Path) -> Rollouts:
    return tiny_rollouts(tmp_path, VOCAB)


def drafter_of(target: Target, name: str = "hass", **options: Any) -> Any:
    torch.manual_seed(0)
    cls = DRAFTERS.get(name)
    options = {"draft_vocab_size": VOCAB, **options}
    drafter = cls(attrs.evolve(cls.debug_config(target), **options), target)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.normal_(std=0.3) if parameter.dim() > 1 else parameter.uniform_(0.5, 1.5)
    return drafter


def batch_of(drafter: Any, length: int = 9) -> UnrollBatch:
    tokens = torch.randint(0, VOCAB, (1, length), generator=torch.Generator().manual_seed(1))
    at = torch.arange(length)[None]
    features = drafter.target.read(tokens, drafter.taps).features
    return UnrollBatch(tokens, features, at, torch.zeros_like(at))


def aligned(drafter: Any, batch: UnrollBatch, passes: int, legacy: bool) -> list[Tensor]:
    """Outputs of every pass, row by row as eagle.md 3.3 says it: rows by position, streams shifted and detached.

    Rows below the pass's number are left out of the method's sight, and are zeros here.
    """
    (layer,), attention, length = drafter.layers, drafter.layers[0].self_attn, batch.tokens.shape[1]
    embedded = drafter.embed(batch.tokens[0])
    group = drafter.config.num_heads // drafter.config.num_kv_heads

    def projected(stream: Tensor, row: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(z, q, k, v) of a row of a stream; the token it reads is the one after it."""
        z = drafter.fc(torch.cat((embedded[row + 1], stream[row])))[None, None]
        cos, sin = rotary(torch.tensor([[row]]), drafter.config, z.dtype)
        k, v = attention.keys(z, cos, sin)
        return z[0, 0], attention.queries(z, cos, sin)[0, :, 0], k[0, :, 0], v[0, :, 0]

    streams, outputs = [batch.features[0]], []
    for number in range(1, passes + 1):
        rows = [torch.zeros(drafter.config.hidden_size, dtype=embedded.dtype)] * length
        for s in range(number - 1, length - 1):
            z, q, _, _ = projected(streams[-1], s)
            sources = [(0, r) for r in range(s - number + 2)] + [(i, s - number + 1 + i) for i in range(1, number)]
            keys, values = zip(*[projected(streams[i], r)[2:] for i, r in sources], strict=True)
            scores = [(q * k.repeat_interleave(group, 0)).sum(-1) / q.shape[-1] ** 0.5 for k in keys]
            if legacy and number > 1:
                beyond = [projected(streams[0], r)[3] for r in range(s + 1, length - 1)]
                scores, values = scores + [torch.zeros_like(q[:, 0])] * len(beyond), (*values, *beyond)
            weights = torch.stack(scores).softmax(0)
            read = sum(w[:, None] * v.repeat_interleave(group, 0) for w, v in zip(weights, values, strict=True))
            rows[s] = layer.leave(z, read.flatten())
        outputs.append(torch.stack(rows))
        streams.append(torch.cat((batch.features[0, :1], outputs[-1][:-1])).detach())
    return outputs


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_the_alignment_is_the_methods_row_by_row(target: Target, legacy: bool, bias: bool) -> None:
    """Outputs and gradients: pass m at position s is pass j = m-1 of `unroll` at row s-j."""
    drafter = drafter_of(tiny_target("llama", dtype=torch.float64), fc_bias=bias, qkv_bias=bias).double()
    drafter.borrow()
    batch = batch_of(drafter)
    length, passes = batch.tokens.shape[1], 4
    if legacy:  # the last row has no token after it: the plain reading leaves it out, and so must the sight here
        batch = attrs.evolve(batch, documents=torch.tensor([[0] * (length - 1) + [1]]))
    want = aligned(drafter, batch, passes, legacy)
    found = drafter.unroll(batch, passes, Unrolling(detached=True, legacy=legacy))
    gradients = []
    for outputs in (
        [w[j : length - 1] for j, w in enumerate(want)],
        [f[0, : length - 1 - j] for j, f in enumerate(found)],
    ):
        drafter.zero_grad()
        torch.cat(outputs).square().sum().backward()
        gradients.append([p.grad.clone() for p in drafter.parameters()])
    for j, (a, b) in enumerate(zip(want, found, strict=True)):
        torch.testing.assert_close(b[0, : length - 1 - j], a[j : length - 1], rtol=1e-5, atol=1e-7)
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6)


def test_the_legacy_sight_differs_from_the_second_pass_on(target: Target) -> None:
    drafter = drafter_of(target)
    batch = batch_of(drafter)
    plain, legacy = (drafter.unroll(batch, 3, Unrolling(legacy=legacy)) for legacy in (False, True))
    assert torch.equal(plain[0], legacy[0]) and not torch.allclose(plain[1], legacy[1])


@pytest.mark.parametrize("name", ["hass", "eagle3.1"])
def test_no_gradient_goes_from_pass_to_pass(target: Target, name: str) -> None:
    drafter = drafter_of(target, name)
    batch = attrs.evolve(batch_of(drafter), features=batch_of(drafter).features.requires_grad_())
    own = batch.features
    flows = []
    for detached in (False, True):
        read = drafter.unroll(batch, 2, Unrolling(detached=detached))
        # a later row's second pass reaches its own feature only through what recurs, and through the keys of pass 0
        (found,) = torch.autograd.grad(read[1][0, 0].sum(), own, retain_graph=True)
        flows.append(found[0, 0])
    assert not torch.allclose(flows[0], flows[1])
    assert all(p.requires_grad for p in drafter.parameters())


# -- the loss ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_weight": 0.0},
        {"top_k": 3, "top_weight": 0.5, "ce_weight": 0.0, "feature_weight": 0.0},
        {"feature_weight": 2.0, "mean": "all", "out_of_vocabulary": "keep"},
    ],
)
@pytest.mark.parametrize("size", [VOCAB, 40])
def test_the_loss_is_the_plain_formula(target: Target, rollouts: Rollouts, options: dict, size: int) -> None:
    drafter = drafter_of(target, draft_vocab_size=size)
    source = OnlineFeatures(target, rollouts, drafter.taps, 512)
    batch = pack([source.document(i) for i in (0, 1, 2)])
    objective, head = Hass(**options), TeacherHead.of(drafter)
    total, notes = objective.loss(drafter, batch, 3, head)
    want = torch.zeros(())
    for step, hidden in enumerate(drafter.unroll(batch, 3, Unrolling(detached=True))):
        rows = supervised(batch, step)
        feature = batch.hidden[0, batch.queries[0, rows[1]] + 1 + step]
        logits = feature @ target.head_weight(None).T
        p = logits[:, drafter.vocabulary if size < VOCAB else slice(None)].softmax(-1)
        log_q = drafter.logits(hidden[rows]).log_softmax(-1)
        weight = torch.ones(len(p))
        if objective.out_of_vocabulary == "mask" and size < VOCAB:
            weight = torch.isin(logits.argmax(-1), drafter.vocabulary).float()
        top = p.topk(objective.top_k)
        distilled = (top.values * log_q.gather(-1, top.indices)).sum(-1)
        cross = objective.ce_weight * (p * log_q).sum(-1) + objective.top_weight * distilled
        apart = functional.smooth_l1_loss(hidden[rows], feature, reduction="none").mean(-1)
        strength = 1.0 if objective.feature_weight is None else objective.feature_weight
        count = len(p) if objective.mean == "valid" else batch.tokens.numel()
        loss = (-(weight * cross).sum() + strength * apart.sum()) / count
        torch.testing.assert_close(notes[step].loss, loss.detach(), rtol=1e-5, atol=1e-5)
        want = want + loss
    torch.testing.assert_close(total, want, rtol=1e-5, atol=1e-5)
    found = torch.autograd.grad(total, list(drafter.parameters()), retain_graph=True)
    for a, b in zip(found, torch.autograd.grad(want, list(drafter.parameters())), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_the_noise_is_as_wide_as_the_document_is_short(target: Target, rollouts: Rollouts) -> None:
    source = OnlineFeatures(target, rollouts, (9,), 512)
    batch = pack([source.document(i) for i in (0, 11)])
    torch.manual_seed(0)
    noise = feature_noise(batch, 0.2)
    for document, length in ((0, len(rollouts.rows[0].ids)), (1, len(rollouts.rows[11].ids))):
        own = noise[batch.documents == document]
        bound = 0.1 * 512 / length
        assert own.shape[0] == length and 0.95 * bound < float(own.abs().max()) <= bound
        assert abs(float(own.mean())) < 0.1 * bound
    loss = [float(Hass(noise=width).loss(drafter_of(target), batch, 2, TeacherHead.of(drafter_of(target)))[0].detach())
            for width in (0.0, 0.2)]  # fmt: skip
    assert loss[0] != loss[1]


# -- training ------------------------------------------------------------------------------------------------------


def values(rollouts: Rollouts, **sections: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "spec": "hass",
        "data": {"rollouts": str(rollouts.path), "features": "online", "pack": 40},
        "drafter": {"intermediate_size": 48},
        "objective": {"name": "hass", "passes": [1, 2, 3], "noise": 0.05},
        "optimizer": {"lr": 1e-3, "clip_by": "value"},
        "run": {"epochs": 8.0, "log_every": 1},
        "evaluate": {"every": 1000, "prompts": 1, "max_new_tokens": 3},
    }
    return {**base, **sections}


@pytest.mark.parametrize(
    ("spec", "objective"),
    [
        ("hass", {"name": "hass", "passes": [3]}),
        ("eagle2", {"name": "hass", "passes": [1], "top_weight": 0.0}),
        ("eagle3.1", {"name": "hass", "body": "eagle3"}),
        ("hass", {"name": "ttt", "passes": [2]}),
    ],
)
def test_a_run_learns_and_its_checkpoint_loads(
    target: Target, rollouts: Rollouts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, objective: dict
) -> None:
    monkeypatch.setattr("drafterzoo.training.run.load_target", lambda *args, **options: target)
    monkeypatch.setattr("drafterzoo.training.trainer.LEARNT_NOTHING", 0.0)
    train(values(rollouts, spec=spec, objective=objective), out=tmp_path / "run", quiet=True)
    lines = [line for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines() if '"loss"' in line]
    first, last = (float(line.split('"loss": [')[1].split(",")[0].rstrip("]")) for line in (lines[0], lines[-1]))
    assert last < first
    drafter = load(f"dir:{tmp_path / 'run' / 'best'}", target=target)
    assert drafter.spec == spec and drafter.config.intermediate_size == 48


def test_the_ridge_start_predicts_the_next_feature(target: Target, rollouts: Rollouts) -> None:
    torch.manual_seed(0)
    drafter = HassDrafter(HassDrafter.default_config(target), target)
    source = OnlineFeatures(target, rollouts, drafter.taps, 512)
    documents = [source.document(i) for i in range(len(rollouts.rows))]

    def error() -> float:
        hidden = torch.cat([drafter.unroll(attrs.evolve(pack([d]), queries=None), 1)[0][0, :-1] for d in documents])
        return float((hidden - torch.cat([d.hidden[1:] for d in documents])).square().mean().detach())

    before = error()
    ridge_start(drafter, documents, 10_000)
    assert error() < 0.7 * before


def test_it_reads_the_feature_after_the_final_norm_and_the_targets_own_head(target: Target) -> None:
    drafter = drafter_of(target)
    tokens = torch.arange(5)[None]
    reading = target.read(tokens, drafter.taps)
    assert torch.equal(reading.features, reading.hidden)
    assert torch.equal(drafter.head_matrix(), target.head_weight(None)) and drafter.vocabulary is None
    assert not {"lm_head.weight", "norm.weight", "layers.0.input_layernorm.weight"} & drafter.state_dict().keys()
    assert "fc.bias" in drafter.state_dict()
    assert "layers.1.input_layernorm.weight" in drafter_of(target, num_layers=2).state_dict()


# -- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "objective", "words"),
    [
        ("eagle3.1", {"name": "hass"}, "hass with body = 'eagle2' cannot train 'eagle3.1'; set body = 'eagle3'."),
        ("hass", {"name": "hass", "body": "eagle3"}, "cannot train 'hass'; set body = 'eagle2'."),
        ("hass", {"name": "hass", "passes": [0]}, "objective hass: passes must list numbers from 1 to 64"),
        ("hass", {"name": "hass", "noise": -1.0}, "noise is -1.0, expected a number from 0 to 1,000,000."),
        ("hass", {"name": "hass", "body": "eagle"}, "expected 'eagle2' or 'eagle3'."),
        (
            "hass",
            {"name": "hass", "ce_weight": 0.0, "top_k": 0, "feature_weight": 0.0},
            "every weight is 0, so nothing is learnt",
        ),
        ("hass", {"name": "hass", "feature_weight": -1.0}, "feature_weight is -1.0, expected a number from 0"),
        ("hass", {"name": "hass", "passes": [10**6]}, "passes must list numbers from 1 to 64"),
        ("hass", {"name": "hass", "topk": 3}, "unknown key 'topk' (did you mean 'top_k'?)"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    target: Target, rollouts: Rollouts, spec: str, objective: dict, words: str
) -> None:
    with pytest.raises(UsageError) as refused:
        made = build_recipe(values(rollouts, spec=spec, objective=objective), "recipe")
        cls = DRAFTERS.get(spec)
        build_objective(made).check(cls(cls.debug_config(target), target))
    assert words in str(refused.value)


def test_the_feature_loss_needs_the_targets_width(target: Target) -> None:
    config = attrs.evolve(Eagle31.debug_config(target), hidden_size=16, embedding="own")
    with pytest.raises(UsageError, match=r"has width 16, and the target's features 32; set it to 0\."):
        Hass(body="eagle3", feature_weight=1.0).check(Eagle31(config, target))
