"""Losses row by row and objectives of blocks, against the plain formulas written out and differentiated by torch."""

from __future__ import annotations

import math
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from drafterzoo.drafters.base import Drafter
from drafterzoo.drafters.dflash import DFlash
from drafterzoo.drafters.dspark import DSpark
from drafterzoo.errors import UsageError
from drafterzoo.training.batches import pack
from drafterzoo.training.chunked import Teacher
from drafterzoo.training.features import Document
from drafterzoo.training.mixed import Mix, mixed_losses
from drafterzoo.training.objectives.base import TeacherHead, TrainingBatch
from drafterzoo.training.objectives.block import BlockObjective
from drafterzoo.training.objectives.ce import CrossEntropy
from drafterzoo.training.objectives.dspark import ThreeParts
from drafterzoo.training.objectives.e2e_tv import EndToEnd
from drafterzoo.training.objectives.kl import Divergence
from drafterzoo.training.objectives.lk import Hybrid
from drafterzoo.training.objectives.tv import TotalVariation
from tests.tiny import tiny_target

MIXES = [Mix(ce=1.0), Mix(kl=1.0), Mix(tv=1.0), Mix(ce=0.1, tv=1.8), Mix(hybrid=True)]


def plain(hidden: Tensor, head: Tensor, labels: Tensor, teacher: Teacher, mix: Mix) -> tuple[Tensor, Tensor]:
    """(loss [R], overlap [R]) by the formulas of block.md 1.5, 3.4 and 5.3."""
    q, p = (hidden @ head.T).softmax(-1), (teacher.logits - teacher.norm[:, None]).exp()[teacher.at]
    overlap = torch.minimum(p, q).sum(-1)
    label = q.gather(-1, labels.clamp(min=0)[:, None])[:, 0].log()
    loss = -mix.ce * torch.where(labels >= 0, label, 0.0)
    divergence = (p * (p.log() - q.log())).sum(-1)
    if mix.hybrid:
        share = (-3 * overlap.detach()).exp()
        return loss + share * divergence + (1 - share) * (1 - overlap), overlap
    return loss + mix.kl * divergence + mix.tv * (1 - overlap), overlap


@pytest.mark.parametrize("mix", MIXES, ids=str)
@pytest.mark.parametrize("trained_from", [0, 6, None], ids=["whole head", "bias alone", "frozen head"])
def test_losses_and_gradients_are_those_of_the_formulas(mix: Mix, trained_from: int | None) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(11, 8, dtype=torch.float64, requires_grad=True)
    head = torch.randn(13, 8, dtype=torch.float64, requires_grad=trained_from is not None)
    labels = torch.randint(-1, 13, (11,))
    features, matrix = torch.randn(7, 5, dtype=torch.float64), torch.randn(13, 5, dtype=torch.float64)
    teacher = attrs.evolve(
        Teacher.of(features, matrix, torch.zeros(7, dtype=torch.float64)), at=torch.randint(0, 7, (11,))
    )
    weight = torch.rand(11, dtype=torch.float64)
    found = mixed_losses(hidden, head, labels, teacher, mix, trained_from=trained_from or 0, chunk_bytes=13 * 8 * 4 * 3)
    (weight * found.loss).sum().backward()
    grads = hidden.grad, head.grad
    hidden.grad = head.grad = None
    wanted, overlap = plain(hidden, head, labels, teacher, mix)
    (weight * wanted).sum().backward()
    torch.testing.assert_close(found.loss, wanted)
    torch.testing.assert_close(found.overlap, overlap.detach())
    torch.testing.assert_close(grads[0], hidden.grad)
    if trained_from is None:
        assert grads[1] is None
    else:
        torch.testing.assert_close(grads[1][:, trained_from:], head.grad[:, trained_from:])
        assert not grads[1][:, :trained_from].any()
    q = (hidden @ head.T).softmax(-1)
    assert torch.equal(found.agree, q.argmax(-1) == teacher.logits[teacher.at].argmax(-1))
    torch.testing.assert_close(found.sure, q.amax(-1).detach())
    torch.testing.assert_close(
        found.chance, torch.where(labels >= 0, q.gather(1, labels.clamp(min=0)[:, None])[:, 0], 0.0).detach()
    )


def a_batch(drafter: Drafter, lengths: tuple[int, ...] = (12, 9), prompt: int = 3) -> TrainingBatch:
    target = drafter.target
    documents = []
    for number, length in enumerate(lengths):
        tokens = torch.randint(3, 64, (length,), generator=torch.Generator().manual_seed(number))
        reading = target.read(tokens[None], drafter.taps)
        logits = target.head(reading.hidden[0])
        documents.append(
            Document(
                tokens=tokens,
                prompt=prompt,
                features=reading.features[0],
                hidden=reading.hidden[0],
                argmax=logits.argmax(-1),
                lse=logits.logsumexp(-1),
            )
        )
    return pack(documents)


def a_drafter(cls: Any = DFlash, **options: Any) -> Drafter:
    torch.manual_seed(0)
    target = tiny_target()
    drafter = cls(attrs.evolve(cls.debug_config(target), **options), target)
    with torch.no_grad():
        for parameter in drafter.parameters():
            if not parameter.any():
                parameter.normal_(std=0.3)
    return drafter


def by_hand(drafter: Drafter, batch: TrainingBatch, objective: BlockObjective) -> Tensor:
    """The same loss, block by block and depth by depth, in a loop."""
    unrolled = drafter.unroll(batch, drafter.config.proposals)
    ids = drafter.vocabulary if drafter.vocabulary is not None else torch.arange(64)
    head = drafter.target.head_weight(ids)
    weighed, total = torch.zeros(()), torch.zeros(())
    ends = []
    for column, row in enumerate(batch.queries[0].tolist()):
        losses, chances, overlaps, counts, doubts = [], [], [], [], []
        for step, read in enumerate(unrolled):
            at = row + 2 + step
            if at >= batch.tokens.shape[1] or batch.documents[0, at] != batch.documents[0, row]:
                break
            q = drafter.logits(read[0, column]).softmax(-1)
            p = (head @ batch.hidden[0, at - 1]).softmax(-1)
            known = float(batch.argmax[0, at - 1] in ids)
            label = (ids == batch.tokens[0, at]).nonzero()
            chance = q[label[0, 0]] if len(label) else None
            overlap = torch.minimum(p, q).sum()
            mix = objective.mix()
            divergence = (p * (p.log() - q.log())).sum()
            share = (-3 * overlap.detach()).exp()
            loss = mix.kl * divergence + mix.tv * (1 - overlap)
            loss = share * divergence + (1 - share) * (1 - overlap) if mix.hybrid else loss
            losses.append(loss - (mix.ce * chance.log() if chance is not None else 0))
            chances.append(0.0 if chance is None else float(chance))
            overlaps.append(overlap)
            counts.append(known)
            if isinstance(objective, ThreeParts):
                logit = drafter.confidence(read[:, column, : drafter.config.hidden_size], batch.tokens[:, at - 1])
                sure, wanted = logit.sigmoid(), overlap.detach()
                doubts.append((-wanted * sure.log() - (1 - wanted) * (1 - sure).log())[0])
        if isinstance(objective, EndToEnd):
            if sum(counts):
                reached, gained = torch.ones(()), torch.zeros(())
                for count, overlap in zip(counts, overlaps, strict=True):
                    reached = reached * (overlap if count else 1.0)
                    gained = gained + count * reached
                ends.append(1 - gained / sum(counts))
            continue
        smooth = [(1 - objective.smoothing) * chance + objective.smoothing for chance in chances]
        prefixes = [math.prod(smooth[: k + 1]) for k in range(len(smooth))]
        for k, (loss, count) in enumerate(zip(losses, counts, strict=True)):
            counted = {"decay": math.exp(-k / objective.gamma), "dpace": sum(prefixes[k:]), "even": 1.0}
            weight = count * counted[objective.weights]
            weighed = weighed + weight * (loss + (doubts[k] if doubts else 0))
            total = total + weight
    return torch.stack(ends).mean() if ends else weighed / total


OBJECTIVES: list[BlockObjective] = [
    CrossEntropy(),
    CrossEntropy(weights="dpace"),
    CrossEntropy(weights="even"),
    Divergence(weights="dpace", smoothing=0.2),
    TotalVariation(gamma=2.0),
    Hybrid(weights="dpace"),
    EndToEnd(),
]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: f"{o.called},{o.weights}")
@pytest.mark.parametrize("layout", ["same_position", "anchor_first"])
def test_every_objective_is_its_formula(objective: BlockObjective, layout: str) -> None:
    drafter = a_drafter(layout=layout)
    batch = a_batch(drafter)
    loss, notes = objective.loss(drafter, batch, 1, TeacherHead.of(drafter))
    torch.testing.assert_close(loss, by_hand(drafter, batch, objective), rtol=1e-4, atol=1e-5)
    assert len(notes) == drafter.config.proposals and notes[0].rows > notes[-1].rows > 0


@pytest.mark.parametrize("markov", ["vanilla", "gated", "rnn"])
def test_the_three_parts_and_whom_they_teach(markov: str) -> None:
    drafter = a_drafter(DSpark, markov=markov)
    batch, objective = a_batch(drafter), ThreeParts()
    loss, _ = objective.loss(drafter, batch, 1, TeacherHead.of(drafter))
    torch.testing.assert_close(loss, by_hand(drafter, batch, objective), rtol=1e-4, atol=1e-5)
    loss.backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in drafter.parameters())
    apart = ThreeParts(confidence=1e3, detached=True)
    fc = drafter.fc.weight.grad.clone()
    drafter.zero_grad()
    apart.loss(drafter, batch, 1, TeacherHead.of(drafter))[0].backward()
    drafted = drafter.fc.weight.grad.clone()
    drafter.zero_grad()
    ThreeParts(confidence=0.0).loss(drafter, batch, 1, TeacherHead.of(drafter))[0].backward()
    torch.testing.assert_close(drafted, drafter.fc.weight.grad)
    assert not torch.allclose(fc, drafted, rtol=1e-3)


def test_anchors_are_drawn_anew_and_stay_within_the_answer() -> None:
    drafter = a_drafter()
    batch = a_batch(drafter, (30, 20, 6))
    documents = [
        Document(
            tokens=batch.tokens[0, batch.documents[0] == i],
            prompt=3,
            features=batch.features[0, batch.documents[0] == i],
            hidden=batch.hidden[0, batch.documents[0] == i],
            argmax=batch.argmax[0, batch.documents[0] == i],
            lse=batch.lse[0, batch.documents[0] == i],
        )
        for i in range(3)
    ]
    generator = torch.Generator().manual_seed(0)
    first, second = (pack(documents, 4, generator).queries[0].tolist() for _ in range(2))
    every = batch.queries[0].tolist()
    assert len(first) == len(second) == 4 + 4 + 2 and first != second
    assert first == sorted(first) and set(first) | set(second) <= set(every)
    assert pack(documents).queries[0].tolist() == every


def test_what_no_block_objective_can_be_is_refused() -> None:
    with pytest.raises(UsageError, match="a block is always trained whole"):
        CrossEntropy(passes=(3,))
    with pytest.raises(UsageError, match="gamma=0"):
        CrossEntropy(gamma=0.0)
    with pytest.raises(UsageError, match="nothing is drafted better"):
        ThreeParts(ce=0.0, l1=0.0)
    with pytest.raises(UsageError, match="has none; set confidence = 0"):
        ThreeParts().check(a_drafter())
    ThreeParts(confidence=0.0).check(a_drafter())
    from drafterzoo.drafters.eagle31 import Eagle31

    target = tiny_target()
    with pytest.raises(UsageError, match=r"trains block drafters, and 'eagle3\.1' is none"):
        CrossEntropy().check(Eagle31(Eagle31.debug_config(target), target))
