"""Expected rounds: a chain drafter on recorded answers, by the exact dynamic programme, as the lines' figures.

Knows proposals and the programme; nothing of how rows are chosen or results kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drafterzoo.drafters.base import Drafter
from drafterzoo.engine.sampling import Sampling
from drafterzoo.evaluation.offline.proposals import chains
from drafterzoo.evaluation.offline.rounds import realised_rounds, rounds_of_at_least, smoothed_rounds
from drafterzoo.evaluation.offline.teacher import Lesson


def expected_rounds(
    drafter: Drafter, drafts: int, lesson: Lesson, sampling: Sampling, stops: Sequence[int]
) -> list[dict[str, Any]]:
    """Per text of the lesson, what a Line holds beside its identity, over all that `rejection` may draw."""
    found = chains(drafter, lesson, drafts, sampling, stops)
    columns = (
        found.chains.starts,
        realised_rounds(found.chains),
        smoothed_rounds(found.chains),
        rounds_of_at_least(found.chains),
        found.doubtful,
    )
    return [
        {"tokens": tokens, "rounds": rounds, "smoothed": smoothed, "at_least": at_least, "doubtful": doubtful}
        for tokens, rounds, smoothed, at_least, doubtful in zip(*(c.tolist() for c in columns), strict=True)
    ]
