"""Integer rounds: a drafter at a budget, replayed on recorded answers (engine/replay.py), as the lines' figures.

Knows the engine's emissions; nothing of how rows are chosen or results kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drafterzoo.budget import Budget
from drafterzoo.drafters.base import Drafter
from drafterzoo.engine.decode import Round, Settings
from drafterzoo.engine.replay import replay
from drafterzoo.engine.sampling import Sampling
from drafterzoo.evaluation.offline.teacher import Lesson


def integer_rounds(
    drafter: Drafter, budget: Budget, lesson: Lesson, sampling: Sampling, keys: Sequence[int], stops: Sequence[int]
) -> list[dict[str, Any]]:
    """Per text of the lesson, what a Line holds beside its identity: the rounds that decoding under `match` makes."""
    rounds: list[list[Round]] = [[] for _ in lesson.recordings]
    longest = max(len(recording.answer) for recording in lesson.recordings)
    settings = Settings(budget, sampling, longest, tuple(stops))
    features = lesson.tapped(drafter.taps)
    for emission in replay(drafter, drafter.target, lesson.recordings, features, settings, keys):
        if emission.round is not None:
            rounds[emission.request].append(emission.round)
    return [
        _figures(made, sum(token >= 0 for token in (*recording.answer, *recording.ahead)), budget.depth)
        for made, recording in zip(rounds, lesson.recordings, strict=True)
    ]


def _figures(rounds: Sequence[Round], known: int, depth: int) -> dict[str, Any]:
    emitted = [made.emitted for made in rounds]
    names = ("accepted", "committed", "emitted", "forwards", "rows")
    return {
        "tokens": sum(emitted),
        "rounds": len(rounds),
        "at_least": [sum(amount >= tokens for amount in emitted) for tokens in range(1, depth + 2)],
        # The token after all that is known counts, but which it is, and so whether the path goes on, nobody knows.
        "open": 1 + sum(made.committed for made in rounds) > known and rounds[-1].accepted < depth if rounds else False,
        **{name: [getattr(made, name) for made in rounds] for name in names},
        "nodes": [made.drafted for made in rounds],
    }
