"""Rounds out of a stream: what each of its events brought, held against what the server counted.

Knows answers and tallies; nothing of HTTP, servers or results files. One event of a stream is one step of the engine
only as long as nothing held two together, so that a stream alone proves nothing: where the server's count says
otherwise there are no rounds here, and whoever asked must ask again.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from drafterzoo.budget import Budget
from drafterzoo.evaluation.served.answers import Answer, Tally


@attrs.frozen
class Columns:
    """The rounds of an answer as a Record has them. walked, nodes: None where only a total is known."""

    committed: tuple[int, ...] = ()
    emitted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    walked: tuple[int, ...] | None = None
    nodes: tuple[int, ...] | None = None
    forwards: tuple[int, ...] | None = None
    rows: tuple[int, ...] | None = None


def plain(answer: Answer) -> Columns:
    """Without a drafter every call of the target gives one token, however the stream held them together."""
    ones, zeros = (1,) * (answer.length - 1), (0,) * (answer.length - 1)
    return Columns(ones, ones, zeros, zeros, zeros, zeros, zeros)


def alone(answer: Answer, tally: Tally, budget: Budget) -> Columns | None:
    """The rounds of an answer that was counted by itself; None where stream and count disagree.

    Every round but the last brought its accepted drafts and one more. Of the last, which EOS or the length limit may
    have cut, the count tells how many drafts were accepted: the total less those of the others.
    """
    if tally.each is not None and (listed := _by_steps(answer, tally.each)) is not None:
        return listed
    sizes = _after_prefill(answer)
    if sizes is None:
        return None
    if not sizes:
        return Columns(nodes=(), walked=()) if not tally.steps else None
    walked = [size - 1 for size in sizes]
    walked[-1] = tally.accepted - sum(walked[:-1])
    if not sizes[-1] - 1 <= walked[-1] <= budget.depth or not _as_often(walked, tally):
        return None
    return _columns(sizes, walked, _nodes(tally, len(sizes), budget), answer.stopped)


def together(answers: Sequence[Answer], tally: Tally, budget: Budget) -> list[Columns] | None:
    """The rounds of answers of which only the total was counted; None where it disagrees with the streams.

    What a last round accepted beyond its cut is not known then, nor whether EOS itself was a draft: what it committed
    and accepted is what was seen of it.
    """
    every = []
    for answer in answers:
        sizes = _after_prefill(answer)
        if sizes is None:
            return None
        every.append(sizes)
    seen = sum(size - 1 for sizes in every for size in sizes)
    hidden = sum(budget.depth - (sizes[-1] - 1) for sizes in every if sizes)
    rounds = sum(map(len, every))
    if tally.steps > rounds or not 0 <= tally.accepted - seen <= hidden:
        return None
    nodes = _nodes(tally, rounds, budget)
    return [
        _columns(sizes, None, None if nodes is None else nodes[: len(sizes)], answer.stopped)
        for sizes, answer in zip(every, answers, strict=True)
    ]


def _after_prefill(answer: Answer) -> list[int] | None:
    """The sizes of the rounds; None unless prefill gave one token by itself, and the others are all there."""
    sizes = [size for size in answer.sizes if size]
    whole = sizes[:1] == [1] and sum(sizes) == answer.length
    return sizes[1:] if whole else None


def _as_often(walked: Sequence[int], tally: Tally) -> bool:
    """Whether so many rounds accepted so many drafts as the server says; rounds without a draft are in no count."""
    if tally.histogram is None:
        return tally.steps == len(walked)
    most = max(len(tally.histogram), max(walked) + 1)
    counted = [*tally.histogram, *[0] * (most - len(tally.histogram))]
    return tally.steps <= len(walked) and counted[1:] == [walked.count(number) for number in range(1, most)]


def _by_steps(answer: Answer, each: Sequence[tuple[int, int]]) -> Columns | None:
    """The rounds as the server lists them; None where that lacks some, since steps without a draft are not listed."""
    walked = [accepted for accepted, _ in each]
    sizes = [accepted + 1 for accepted in walked]
    beyond = sum(sizes) - (answer.length - 1)
    if not sizes or not 0 <= beyond < sizes[-1]:
        return None
    sizes[-1] -= beyond
    return _columns(sizes, walked, tuple(drafted for _, drafted in each), answer.stopped)


def _nodes(tally: Tally, rounds: int, budget: Budget) -> tuple[int, ...] | None:
    """The drafts of every round, where they were all alike."""
    alike = tally.steps == rounds and tally.drafted == rounds * budget.nodes
    return (budget.nodes,) * rounds if alike else None


def _columns(
    sizes: Sequence[int], walked: Sequence[int] | None, nodes: tuple[int, ...] | None, stopped: bool
) -> Columns:
    committed, accepted = list(sizes), [size - 1 for size in sizes]
    if walked is not None and sizes:
        accepted[-1] = min(walked[-1], sizes[-1]) if stopped else walked[-1]
        committed[-1] = sizes[-1] if stopped else walked[-1] + 1
    beyond = None if walked is None else tuple(walked)
    return Columns(tuple(committed), tuple(sizes), tuple(accepted), beyond, nodes)
