"""A ratio and what is left of it once every comparison of its column is counted.

Knows the statistics; nothing of where ratios come from, of tables or figures.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from drafterzoo.evaluation import statistics
from drafterzoo.evaluation.statistics import PairedRatio

LEVEL = 0.05  # of significance, for all comparisons of one column together
TESTABLE = 6  # prompts, or batches of them: of fewer, a swap test never comes out below the level (2 / 2^5 is above it)


@attrs.frozen
class Verdict:
    """A ratio, and whether it still stands when all comparisons of its column are counted.

    adjusted: Holm's p-value. clear: significant, corrected. withdrawn: the interval leaves out 1, the corrected p-value
    does not bear it out.
    """

    ratio: PairedRatio
    adjusted: float | None

    @property
    def clear(self) -> bool:
        return self.adjusted is not None and self.adjusted < LEVEL

    @property
    def withdrawn(self) -> bool:
        low, high = self.ratio.low, self.ratio.high
        return low is not None and high is not None and not low <= 1 <= high and not self.clear


def tested(columns: statistics.Array) -> tuple[PairedRatio, float | None]:
    """The ratio of some columns (see `statistics`) and its own p-value, not corrected yet."""
    return statistics.paired_ratio(*columns.T), statistics.swap_test(columns)


def judged(ratios: Sequence[tuple[PairedRatio, float | None]]) -> list[Verdict]:
    """The ratios of one column, their p-values corrected for one another."""
    known = {i: p for i, (_, p) in enumerate(ratios) if p is not None}
    adjusted = dict(zip(known, statistics.holm(list(known.values())), strict=True))
    return [Verdict(ratio, adjusted.get(i)) for i, (ratio, _) in enumerate(ratios)]
