"""What a server's answer is made of, and what a server counts, whichever server it is.

Knows numbers, ids and words; nothing of HTTP or of what any server calls them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import Literal, Protocol

import attrs

from drafterzoo.evaluation.conditions import Settings
from drafterzoo.evaluation.interleaving import Messages


@attrs.frozen
class Tally:
    """What a server counted, for one answer or for several.

    steps: verification steps that had a draft. drafted, accepted: tokens of those drafts; not cut at EOS or at the
    length limit (field.md 6a). drafted None: not told. histogram: at j, how many of the steps accepted j drafts; None:
    not told. each: per step (accepted, drafted), in order; None: not told.
    """

    steps: int
    accepted: int
    drafted: int | None = None
    histogram: tuple[int, ...] | None = None
    each: tuple[tuple[int, int], ...] | None = None


@attrs.frozen
class Answer:
    """One answer.

    text: all words, what was thought before the answer included; content: the answer alone, as later turns quote it.
    ids: its tokens, None where the server does not tell; length: how many they were. sizes: the tokens that each event
    of the stream brought; empty where that is not told. stopped: it ended by itself, and not at the length limit.
    began, first, last: when it was asked for, when its first and its last words were there, by `time.perf_counter`.
    tally: what the server counted for this answer, where the answer itself says so.
    """

    text: str
    content: str
    ids: tuple[int, ...] | None
    length: int
    sizes: tuple[int, ...]
    prompt_tokens: int
    stopped: bool
    began: float
    first: float
    last: float
    tally: Tally | None = None


@attrs.frozen
class About:
    """What is known of a server.

    speculates: None where it does not tell. method, drafter: what it says it drafts with. budget: what a round may
    draft, as budgets are typed; empty where it does not tell, and where it does not speculate. dtype: the target's.
    told: where the rounds of an answer are known from, for people; empty where they are not told.
    """

    kind: Literal["vLLM", "SGLang", "OpenAI-compatible"]
    version: str | None
    model: str
    speculates: bool | None
    budget: str = ""
    method: str | None = None
    drafter: str | None = None
    dtype: str | None = None
    told: str = ""

    @property
    def name(self) -> str:
        """Server and version as people call them."""
        return f"{self.kind} server" if self.version is None else f"{self.kind} {self.version}"


class Server(Protocol):
    """Somebody to ask. place: where it is."""

    @property
    def about(self) -> About: ...
    @property
    def place(self) -> str: ...

    def ask(self, messages: Messages, settings: Settings, max_new_tokens: int) -> Answer:
        """The answer to a conversation. Raises ServerError."""
        ...

    def counted(self) -> Tally | None:
        """What the server has counted since it was started, over all requests; None where it keeps no such counters."""
        ...


def between(before: Tally | None, after: Tally | None) -> Tally | None:
    """What was counted between two readings; None where one of them is missing."""
    if before is None or after is None:
        return None
    steps, accepted = after.steps - before.steps, after.accepted - before.accepted
    drafted = (after.drafted or 0) - (before.drafted or 0)
    # a counter that is missing has counted nothing yet; one that has gone since shows as less than nothing
    pairs = zip_longest(after.histogram or (), before.histogram or (), fillvalue=0)
    histogram = tuple(now - then for now, then in pairs)
    return Tally(steps, accepted, drafted, histogram)


def goes_back(tally: Tally) -> bool:
    """Whether a difference of two readings is below zero somewhere: the server was restarted in between."""
    return min(tally.steps, tally.accepted, tally.drafted or 0) < 0


def total(tallies: Iterable[Tally]) -> Tally:
    """Several tallies as one, without the order of their steps."""
    some = list(tallies)
    drafted = [t.drafted for t in some if t.drafted is not None]
    return Tally(
        sum(t.steps for t in some), sum(t.accepted for t in some), sum(drafted) if len(drafted) == len(some) else None
    )
