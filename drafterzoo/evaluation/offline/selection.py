"""Which rollouts are evaluated, how they were drawn, and by which convention their rounds are counted.

Knows rollout files and sampling settings; nothing of drafters, models or rounds. One evaluation has one temperature,
top-p and top-k: rows drawn otherwise are for another.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

import attrs

from drafterzoo.engine.replay import Recording
from drafterzoo.engine.sampling import Sampling
from drafterzoo.errors import DataError, UsageError
from drafterzoo.training.rollouts import Rollout, Rollouts
from drafterzoo.wording import quantity, verb

Rule = Literal["match", "rejection"]


@attrs.frozen
class Convention:
    """How rounds and tokens of an answer are counted (methods.md 2.8). The defaults are this engine's.

    start: "prefill" has the first token from the prompt's forward, so it is in no round and in no count; "prompt"
    begins the first round at the last token of the prompt. boundary: what ends an answer that a length limit cut: its
    "last" token, or one token "ahead" of it, which is then counted with it. A stop token is always the boundary.
    Raises UsageError for other words.
    """

    start: Literal["prefill", "prompt"] = "prefill"
    boundary: Literal["last", "ahead"] = "last"

    def __attrs_post_init__(self) -> None:
        for name, words in (("start", ("prefill", "prompt")), ("boundary", ("last", "ahead"))):
            if getattr(self, name) not in words:
                raise UsageError(
                    f"evaluate: {name} is {getattr(self, name)!r}, expected {words[0]!r} or {words[1]!r}; "
                    f"leave it out to count as the engine does."
                )

    def recording(self, row: Rollout, stops: Sequence[int]) -> Recording:
        """The row as rounds see it: `prompt` is context, and the first token of `answer` is given to every drafter."""
        answer, ahead = list(row.response_ids), list(row.ahead_ids)
        stop = next((i for i, token in enumerate(answer) if token in stops), None)
        if stop is not None:
            answer, ahead = answer[: stop + 1], []
        elif self.boundary == "ahead":
            # An unknown boundary is a token that nobody can draft: which one it is plays no part.
            answer, ahead = [*answer, *(ahead[:1] or [-1])], ahead[1:]
        if self.start == "prefill":
            return Recording(row.prompt_ids, answer, ahead)
        return Recording(row.prompt_ids[:-1], [row.prompt_ids[-1], *answer], ahead)


@attrs.frozen
class Selection:
    """The rows to evaluate, by their number in the file (0 first), and how they were drawn.

    sampling: with the first row's seed; `seeds` gives each row's. keys: of each row's noise. known: whether the file
    says which noise that was (always, at temperature 0, where there is none).
    """

    rows: tuple[int, ...]
    rollouts: Rollouts
    sampling: Sampling
    known: bool

    def row(self, number: int) -> Rollout:
        return self.rollouts.rows[number]

    def prompt(self, number: int) -> str:
        """What names the prompt of a row: rows of the same prompt are one cluster."""
        return hashlib.sha256(repr(self.row(number).prompt_ids).encode()).hexdigest()[:12]

    def drawn(self, numbers: Sequence[int]) -> tuple[Sampling, list[int]]:
        """The sampling of some rows of one seed, and their noise keys."""
        rows = [self.row(number) for number in numbers]
        seed = rows[0].seed or 0
        assert all((row.seed or 0) == seed for row in rows), "rows of several seeds have no common noise"
        return attrs.evolve(self.sampling, seed=seed), [row.request or 0 for row in rows]

    def batches(self, size: int, tokens: int) -> list[list[int]]:
        """The rows in batches of one seed and like length, of at most `tokens` padded tokens (or one row)."""
        ordered = sorted(self.rows, key=lambda n: (self.row(n).seed or 0, -len(self.row(n).ids), n))
        batches: list[list[int]] = []
        for number in ordered:
            first = self.row(batches[-1][0]) if batches else None
            room = min(size, tokens // (len(first.ids) + 1)) if first else 0
            if first is None or len(batches[-1]) >= max(room, 1) or first.seed != self.row(number).seed:
                batches.append([])
            batches[-1].append(number)
        return batches


def check_asked(temperature: float | None, top_p: float | None, top_k: int | None) -> None:
    """Raise UsageError for settings that no row can have been drawn with; None asks for nothing."""
    asked = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
    try:
        Sampling(**{name: value for name, value in asked.items() if value is not None})  # type: ignore[arg-type]
    except UsageError as error:
        raise UsageError(f"evaluate: {str(error).removeprefix('sampling: ')}") from error


def select(
    rollouts: Rollouts,
    *,
    split: str | None,
    limit: int | None,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    rule: Rule,
    coupled: bool,
) -> Selection:
    """The first `limit` rows (1 or more) of a split that were drawn as asked; None asks for nothing in particular.

    Raises DataError when no row is left or the noise that coupled drafts need is not recorded, UsageError when the rows
    left were drawn in several ways.
    """
    numbers = list(range(len(rollouts.rows)))
    where = rollouts.path
    if split is not None:
        numbers = _kept(rollouts, numbers, lambda row: row.split, split, "split")
    for name, asked in (("temperature", temperature), ("top_p", top_p), ("top_k", top_k)):
        if asked is not None:
            numbers = _drawn_with(rollouts, numbers, name, asked)
    ways = {_way(rollouts.rows[n], top_p, top_k) for n in numbers}
    if len(ways) > 1:
        raise UsageError(
            f"{where}: its rows were drawn in {len(ways)} ways ({'; '.join(sorted(map(_said, ways)))}), and one "
            f"evaluation has one; choose with --temperature, --top-p or --top-k."
        )
    (way,) = ways
    numbers = numbers[:limit]
    sampling = Sampling(*way, verification=rule, coupled=coupled)
    unknown = [n for n in numbers if None in (rollouts.rows[n].seed, rollouts.rows[n].request)]
    known = sampling.greedy or not unknown
    if not known and rule == "match" and coupled:
        do_not = verb(len(unknown), "does not", "do not")
        raise DataError(
            f"{where}: {len(unknown)} of {quantity(len(numbers), 'row')} drawn at temperature "
            f"{sampling.temperature:g} {do_not} say with which noise (seed, request), so drafts coupled to it cannot "
            f"be "
            f"replayed; make them anew with `drafterzoo rollout`, or give --uncoupled."
        )
    return Selection(tuple(numbers), rollouts, sampling, known)


def _kept(rollouts: Rollouts, numbers: list[int], of: Callable[[Rollout], Any], asked: Any, name: str) -> list[int]:
    """The numbers of rows whose value is the one asked for. Raises DataError naming what there is."""
    kept = [n for n in numbers if of(rollouts.rows[n]) == asked]
    if not kept:
        there_is = Counter(of(rollouts.rows[n]) for n in numbers)
        listed = ", ".join(
            f"{_shown(value)} ({quantity(count, 'row')})" for value, count in sorted(there_is.items(), key=str)
        )
        raise DataError(f"{rollouts.path}: no row has {name} {_shown(asked)}; the rows have {name} {listed}.")
    return kept


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str) else f"{value:g}"


def _drawn_with(rollouts: Rollouts, numbers: list[int], name: str, asked: float) -> list[int]:
    """Rows whose field is as asked; one that the file does not record is what it is asked to be."""

    def value(row: Rollout) -> Any:
        recorded = getattr(row, name)
        return asked if recorded is None else recorded

    return _kept(rollouts, numbers, value, asked, name.replace("_", "-"))


def _way(row: Rollout, top_p: float | None, top_k: int | None) -> tuple[float, float, int]:
    return (
        row.temperature,
        row.top_p if row.top_p is not None else 1.0 if top_p is None else top_p,
        row.top_k if row.top_k is not None else 0 if top_k is None else top_k,
    )


def _said(way: tuple[float, float, int]) -> str:
    temperature, top_p, top_k = way
    return f"temperature {temperature:g}" + (f", top-p {top_p:g}, top-k {top_k}" if (top_p, top_k) != (1.0, 0) else "")
