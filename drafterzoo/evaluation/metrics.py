"""What the raw counters say: one function per quantity, its definition in the docstring.

Knows nothing of models, files or tables. Every function takes the records of ONE cell. Tokens that prefill gave are in
no count: numerators and denominators begin with the first round. A quantity with an empty denominator is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median

from drafterzoo.evaluation.results import Record

Column = Callable[[Record], Sequence[float] | None]


def ratio(numerator: float, denominator: float) -> float | None:
    """A fraction; None where there is nothing to divide by."""
    return numerator / denominator if denominator else None


def tau(records: Sequence[Record]) -> float | None:
    """Committed tokens per target call, pooled: all tokens of all rounds over all rounds.

    tau counts the bonus token: a round commits its accepted drafts + 1, so plain decoding has tau = 1. Rounds are cut
    at EOS *before* counting, so nothing past the end is credited. A round that the length limit cut counts whole: where
    the limit falls says nothing of the drafter.
    """
    return ratio(sum(sum(r.committed) for r in records), sum(r.rounds for r in records))


def tau_macro(records: Sequence[Record]) -> float | None:
    """The mean over answers of each answer's own tau (bonus token counted, cut at EOS).

    Answers without rounds are left out.
    """
    values = [sum(r.committed) / r.rounds for r in records if r.rounds]
    return ratio(sum(values), len(values))


def accepted_per_round(records: Sequence[Record]) -> float | None:
    """Accepted draft nodes per target call, pooled, cut at EOS. The bonus token is NOT counted: about tau - 1."""
    return ratio(sum(sum(r.accepted) for r in records), sum(r.rounds for r in records))


def survival(records: Sequence[Record], depth: int) -> list[float | None]:
    """Per depth d = 1..depth: the share of all rounds that committed at least d draft nodes (cut at EOS).

    Their sum over all depths is `accepted_per_round`. A drafter that offers nothing at a depth fails there.
    """
    accepted = [a for r in records for a in r.accepted]
    return [ratio(sum(a >= d for a in accepted), len(accepted)) for d in range(1, depth + 1)]


def conditional(records: Sequence[Record], depth: int) -> list[float | None]:
    """Per depth d = 1..depth: of the rounds that accepted d-1 nodes and had a d-th token, the share that accepted it.

    Rounds that the end of the answer cut short before depth d say nothing about depth d and are left out of both counts
    (this is where it differs from a quotient of `survival`).
    """
    rounds = [(a, c) for r in records for a, c in zip(r.accepted, r.committed, strict=True)]
    values: list[float | None] = []
    for d in range(1, depth + 1):
        tried = [a >= d for a, c in rounds if a >= d - 1 and c >= d]
        values.append(ratio(sum(tried), len(tried)))
    return values


def _per_round(records: Sequence[Record], column: Column) -> float | None:
    """A column's sum per target call; None where some answer lacks it, as those of servers may."""
    columns = [column(r) for r in records]
    told = [values for values in columns if values is not None]
    return ratio(sum(map(sum, told)), sum(r.rounds for r in records)) if len(told) == len(columns) else None


def forwards_per_round(records: Sequence[Record]) -> float | None:
    """Forwards of the drafter's block per target call, counted where they happen."""
    return _per_round(records, lambda r: r.forwards)


def rows_per_round(records: Sequence[Record]) -> float | None:
    """Rows in the drafter's forwards per target call and request, counted where they happen."""
    return _per_round(records, lambda r: r.rows)


def nodes_per_round(records: Sequence[Record]) -> float | None:
    """Draft nodes verified per target call, the root excluded."""
    return _per_round(records, lambda r: r.nodes)


def decode_seconds(records: Sequence[Record]) -> float:
    """Seconds in rounds: per answer the median over its repeats, summed. Prefill excluded."""
    return _over_repeats(records, lambda r: r.decode_s)


def prefill_seconds(records: Sequence[Record]) -> float:
    """Seconds before the first round: per answer the median over its repeats, summed."""
    return _over_repeats(records, lambda r: r.prefill_s)


def _over_repeats(records: Iterable[Record], value: Callable[[Record], float]) -> float:
    answers: dict[tuple[str, int], list[float]] = {}
    for r in records:
        answers.setdefault((r.prompt, r.turn), []).append(value(r))
    return sum(median(values) for values in answers.values())


def tokens_per_second(records: Sequence[Record]) -> float | None:
    """Tokens of the answers that rounds gave, per second of `decode_seconds`.

    Each answer counts once, however often it was timed.
    """
    decoded = sum(r.decoded for r in first(records))
    return ratio(decoded, decode_seconds(records)) if decoded else None  # answers that prefill ended had no rounds


def tokens_per_second_with_prefill(records: Sequence[Record]) -> float | None:
    """All tokens of the answers, prefill's included, per second of prefill and rounds together."""
    return ratio(sum(r.length for r in first(records)), decode_seconds(records) + prefill_seconds(records))


def milliseconds_per_round(records: Sequence[Record]) -> dict[str, float | None]:
    """Mean milliseconds of a round in `draft` (the drafter), `verify` (the target's forward) and `rest` (all else)."""
    parts: dict[str, Column] = {
        "draft": lambda r: r.draft_s,
        "verify": lambda r: r.verify_s,
        "rest": lambda r: r.rest_s,
    }
    seconds = {name: _per_round(records, part) for name, part in parts.items()}
    return {name: None if value is None else 1e3 * value for name, value in seconds.items()}


def time_shares(records: Sequence[Record]) -> dict[str, float | None]:
    """Shares of the rounds' time in draft, verify and rest; they add up to 1."""
    times = milliseconds_per_round(records)
    total = sum(value or 0.0 for value in times.values())
    return {name: ratio(value or 0.0, total) for name, value in times.items()}


def by_category(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each category, in order of first appearance."""
    groups: dict[str, list[Record]] = {}
    for r in records:
        groups.setdefault(r.category, []).append(r)
    return groups


def first(records: Iterable[Record]) -> list[Record]:
    """The records of the first repeat: further repeats are the same answers, timed again."""
    return [r for r in records if r.repeat == 0]
