"""Is the difference real? Ratios of two cells paired by prompt, with 95 % intervals.

Knows nothing of records' origin, files or tables; numpy only. The unit that is resampled is the prompt (with all its
turns; with batches, the prompts decoded together): tokens and rounds within one answer are not independent.

Both comparisons are one estimator, a ratio of two pooled rates,

    rho = (sum_c xn_c / sum_c xd_c) / (sum_c yn_c / sum_c yd_c)

Speed-up over plain decoding: x is plain decoding's seconds per token, y the drafter's. The two cells' texts are equal,
so their token counts cancel, and rho = total plain seconds / total drafter seconds. Ratio of tau: x and y are tokens
per round.

`swap_test` gives the p-value of a ratio, also where prompts are few; `holm` corrects the p-values of several ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from statistics import median
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from drafterzoo.evaluation.results import Record

Array = NDArray[np.float64]
Z95 = 1.959963984540054
SWAPS = 10_000  # patterns of swaps that are drawn where there are too many to try them all
ALL_SWAPS = 12  # clusters up to which all 2^C patterns are tried


@attrs.frozen
class PairedRatio:
    """rho and two 95 % intervals: `low`, `high` by bootstrap, `delta_low`, `delta_high` by the delta method.

    Intervals are None with fewer than two clusters; everything is None when nothing was decoded.
    """

    value: float | None
    low: float | None
    high: float | None
    delta_low: float | None
    delta_high: float | None
    clusters: int

    def as_dict(self) -> dict[str, Any]:
        return attrs.asdict(self)


def paired_ratio(
    xn: Array | Sequence[float],
    xd: Array | Sequence[float],
    yn: Array | Sequence[float],
    yd: Array | Sequence[float],
    *,
    seed: int = 0,
    draws: int = 4000,
) -> PairedRatio:
    """(sum xn / sum xd) / (sum yn / sum yd); all four are [C], for the same clusters in the same order."""
    columns = np.stack([np.asarray(column, dtype=np.float64) for column in (xn, xd, yn, yd)], axis=1)
    return _estimate(columns, seed, draws)


def _estimate(columns: Array, seed: int, draws: int = 4000) -> PairedRatio:
    clusters = columns.shape[0]
    if clusters == 0 or np.any(columns.sum(0) <= 0):
        return PairedRatio(None, None, None, None, None, clusters)
    value = float(_rho(columns.sum(0)))
    if clusters < 2:
        return PairedRatio(value, None, None, None, None, clusters)
    margin = Z95 * standard_error(columns)
    low, high = _bootstrap(columns, seed, draws)
    return PairedRatio(value, low, high, value - margin, value + margin, clusters)


def _rho(sums: Array) -> Array:
    return (sums[..., 0] / sums[..., 1]) / (sums[..., 2] / sums[..., 3])


def standard_error(columns: Array) -> float:
    """Standard error of rho by linearisation over clusters; columns is [C, 4] = xn, xd, yn, yd.

    With xd = yd it is sqrt(C/(C-1) * sum_c (xn_c - rho*yn_c)^2) / sum_c yn_c (methods.md 2.8).
    """
    clusters = columns.shape[0]
    relative = (columns / columns.sum(0)) @ np.array([1.0, -1.0, -1.0, 1.0])
    return float(_rho(columns.sum(0)) * np.sqrt(clusters / (clusters - 1) * np.sum(relative**2)))


def _bootstrap(columns: Array, seed: int, draws: int) -> tuple[float | None, float | None]:
    """Percentile interval of rho when the clusters are drawn anew, with replacement, `draws` times."""
    sums = _resamplings(columns.shape[0], seed, draws) @ columns
    usable = sums[np.all(sums > 0, axis=1)]  # a draw of nothing but empty answers has no ratio
    if not len(usable):
        return None, None
    low, high = np.quantile(_rho(usable), [0.025, 0.975])
    return float(low), float(high)


@lru_cache(maxsize=4)  # one report draws the same ones hundreds of times
def _resamplings(clusters: int, seed: int, draws: int) -> Array:
    """How often each cluster is drawn, [draws, C]."""
    generator = np.random.default_rng(seed)
    return generator.multinomial(clusters, np.full(clusters, 1.0 / clusters), size=draws).astype(np.float64)


def swap_test(columns: Array, seed: int = 0) -> float | None:
    """Two-sided p-value of rho = 1: were the two cells alike, swapping them within any prompts would change nothing.

    columns is [C, 4] = xn, xd, yn, yd; None where there is no ratio. p is the share of swap patterns that give a
    |log rho| at least as large as the one seen: of all 2^C patterns up to 12 clusters, of 10,000 drawn ones beyond.
    With C clusters it is never below 2 / 2^C, however long the answers are.
    """
    if len(columns) < 2 or np.any(columns.sum(0) <= 0):
        return None
    sums = columns.sum(0) + _swaps(columns.shape[0], seed) @ (columns[:, [2, 3, 0, 1]] - columns)
    with np.errstate(
        divide="ignore", invalid="ignore"
    ):  # a side left without tokens or time is as far from 1 as can be
        distances = np.nan_to_num(np.abs(np.log(_rho(sums))), nan=np.inf)
    return float(np.mean(distances >= distances[0] - 1e-12))


@lru_cache(maxsize=4)
def _swaps(clusters: int, seed: int) -> Array:
    """Which clusters are swapped (1) and which are not (0), [patterns, C]; the first pattern is the one seen: none."""
    if clusters <= ALL_SWAPS:
        return (np.arange(2**clusters)[:, None] >> np.arange(clusters) & 1).astype(np.float64)
    patterns = np.random.default_rng(seed).integers(0, 2, size=(SWAPS, clusters)).astype(np.float64)
    patterns[0] = 0
    return patterns


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values (Scandinavian Journal of Statistics 6, 1979), in the order given.

    Those below 0.05 are significant together, at a chance of 5 % that even one of them is so by accident.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return adjusted.tolist()


def speedup(
    plain: Sequence[Record], drafter: Sequence[Record], *, with_prefill: bool = False, seed: int = 0
) -> PairedRatio:
    """How many times faster than plain decoding: plain's seconds per token over the drafter's, pooled over the prompts.

    Seconds are the rounds' (decoding); with_prefill adds prefill's seconds and tokens to both. Of repeats, each
    answer's median time counts. Answers that only one of the two cells has are left out.
    """
    return _estimate(speedup_columns(plain, drafter, with_prefill=with_prefill), seed)


def speedup_columns(plain: Sequence[Record], drafter: Sequence[Record], *, with_prefill: bool = False) -> Array:
    """What `speedup` is computed from: seconds and tokens of both cells per cluster, [C, 4] = xn, xd, yn, yd."""

    def seconds(answer: list[Record]) -> float:
        return median(r.decode_s + (r.prefill_s if with_prefill else 0.0) for r in answer)

    def tokens(answer: list[Record]) -> float:
        return answer[0].length if with_prefill else answer[0].decoded

    return _paired(plain, drafter, (seconds, tokens))


def tau_ratio(better: Sequence[Record], base: Sequence[Record], *, seed: int = 0) -> PairedRatio:
    """tau of `better` over tau of `base` (both pooled, bonus token counted, cut at EOS), over the same prompts."""
    return _estimate(tau_columns(better, base), seed)


def tau_columns(better: Sequence[Record], base: Sequence[Record]) -> Array:
    """What `tau_ratio` is computed from: tokens and rounds of both cells per cluster, [C, 4] = xn, xd, yn, yd."""
    return _paired(better, base, (_committed, _rounds))


def tau_interval(records: Sequence[Record], *, seed: int = 0) -> PairedRatio:
    """Pooled tau itself with its intervals: its ratio to plain decoding's, which is 1 whatever the prompt."""
    return _estimate(tau_columns(records, records)[:, [0, 1, 1, 1]], seed)


def _committed(answer: list[Record]) -> float:
    return sum(answer[0].committed)


def _rounds(answer: list[Record]) -> float:
    return answer[0].rounds


_Measure = Callable[[list[Record]], float]


def _paired(x: Sequence[Record], y: Sequence[Record], rate: tuple[_Measure, _Measure]) -> Array:
    """[C, 4] = xn, xd, yn, yd: numerator and denominator of each cell's rate, summed within clusters."""
    left, right = _answers(x), _answers(y)
    sums: dict[str, Array] = {}
    for key in left:
        if key in right:
            row = np.array([measure(side[key]) for side in (left, right) for measure in rate], dtype=np.float64)
            cluster = _cluster(left[key][0])
            sums[cluster] = sums.get(cluster, np.zeros(4)) + row
    return np.stack(list(sums.values())) if sums else np.zeros((0, 4))


def _answers(records: Sequence[Record]) -> Mapping[tuple[str, int], list[Record]]:
    """Repeats of each (prompt, turn)."""
    answers: dict[tuple[str, int], list[Record]] = {}
    for r in records:
        answers.setdefault((r.prompt, r.turn), []).append(r)
    return answers


def _cluster(record: Record) -> str:
    return record.prompt if record.group < 0 else f"group {record.group}"
