"""The order in which rows take their turns at a prompt, and what is asked there: the same for whoever answers.

Knows prompts and names of rows; nothing of targets, servers or of how anything is decoded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from drafterzoo.evaluation.suite_rendering import Prompt

T = TypeVar("T")
Messages = list[dict[str, str]]


def in_turn(rows: Iterable[T], name: Callable[[T], str], seed: int, *place: int) -> list[T]:
    """The rows in a random order that hangs on seed and place alone: leaving one out does not move the others."""

    def lot(row: T) -> bytes:
        return hashlib.sha256(" ".join(map(str, (seed, *place, name(row)))).encode()).digest()

    return sorted(rows, key=lot)


def conversation(prompt: Prompt, said: Sequence[str], system: str | None) -> Messages:
    """What is asked in the turn after `said`, the answers so far: system message, turns and answers, the next turn."""
    talk = [] if system is None else [{"role": "system", "content": system}]
    for turn, answer in zip(prompt.turns[: len(said)], said, strict=True):
        talk += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer}]
    return [*talk, {"role": "user", "content": prompt.turns[len(said)]}]
