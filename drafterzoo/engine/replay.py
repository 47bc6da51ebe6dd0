"""Rounds replayed on a text that the target has already given: drafted as in the engine, judged by the text alone.

Knows the loop and recorded texts; nothing of files, or of any drafter. Under `match` the target's own token at a node
of the followed path is the text's next token, so no target call is needed: a round commits the longest path of the tree
that the text follows, and one token more (methods.md 2.9, trees). Drafters read the features of one teacher-forced
forward, which equal those of decoding up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from drafterzoo.engine.contract import REJECTED_ROWS, DraftTree, Proposer, Verdict
from drafterzoo.engine.decode import Batch, Emission, Settings
from drafterzoo.engine.sampling import Sampler
from drafterzoo.engine.verify import follow
from drafterzoo.errors import UsageError
from drafterzoo.target.target import Reading, Target


@attrs.frozen
class Recording:
    """An answer of the target. ahead: its tokens after the answer, where a length limit cut it and they are known."""

    prompt: Sequence[int]
    answer: Sequence[int]
    ahead: Sequence[int] = ()

    @property
    def text(self) -> list[int]:
        return [*self.prompt, *self.answer, *self.ahead]


class Recorded:
    """A source of n recorded texts.

    features [n, T, T*H] of positions 0.., on the right of each text anything; they need not reach into `ahead`.
    """

    def __init__(self, recordings: Sequence[Recording], features: Tensor) -> None:
        texts = [recording.text for recording in recordings]
        width = max(map(len, texts)) + 1  # the last column is unknown to all: whatever lies past it is read there
        padded = [text + [-1] * (width - len(text)) for text in texts]
        self.texts = torch.tensor(padded, dtype=torch.int64, device=features.device)
        self.prompts = torch.tensor([len(recording.prompt) for recording in recordings], device=features.device)
        self.features = features

    def next(self, positions: Tensor) -> Tensor:
        """Tokens at positions [n, R] of the texts; -1 where none is known."""
        return self.texts.gather(1, positions.clamp(max=self.texts.shape[1] - 1))

    def prefill(self, sampler: Sampler) -> tuple[Reading, Tensor]:
        width = int(self.prompts.amax())
        columns, pads = torch.arange(width, device=self.texts.device), width - self.prompts[:, None]
        positions, valid = (columns - pads).clamp(min=0), columns >= pads
        tokens = torch.where(valid, self.next(positions), 0)
        return Reading(None, self._rows(positions), None, tokens, positions, valid), self.next(self.prompts[:, None])[
            :, 0
        ]

    def read(self, tree: DraftTree, tokens: Tensor, sampler: Sampler, depth: int) -> Reading:
        """No call: a tree's rejected nodes have no features here."""
        positions = sampler.roots[:, None].expand_as(tokens)
        return Reading(None, self.features[:, :0], None, tokens, positions, torch.ones_like(tokens, dtype=torch.bool))

    def judge(self, reading: Reading, tree: DraftTree, sampler: Sampler, depth: int) -> Verdict:
        """The longest path that the text follows. Where the text ends so does the path, and the next token is 0."""
        verdict = follow(tree, depth, lambda node, level: self.next(sampler.roots[:, None] + level + 1)[:, 0])
        return attrs.evolve(verdict, next_token=verdict.next_token.clamp(min=0))

    def along(self, reading: Reading, path: Tensor, roots: Tensor) -> Tensor:
        return self._rows(roots[:, None] + torch.arange(path.shape[1], device=roots.device))

    def _rows(self, positions: Tensor) -> Tensor:
        positions = positions.clamp(max=max(self.features.shape[1] - 1, 0))
        return self.features.gather(1, positions[..., None].expand(-1, -1, self.features.shape[-1]))

    def commit(self, path: Tensor, accepted: Tensor) -> None:
        """The text is committed already."""

    def keep(self, requests: Tensor) -> None:
        self.texts, self.prompts, self.features = self.texts[requests], self.prompts[requests], self.features[requests]


def check_replayable(verb: str, name: str, parts: Iterable[type]) -> None:
    """Raise UsageError when one of the classes that the drafter `name` is composed of needs what no text shows.

    verb: who asks, the first word of the complaint.
    """
    for part in parts:
        if REJECTED_ROWS in getattr(part, "needs", ()):
            keeper = getattr(part, "name", part.__name__)
            raise UsageError(
                f"{verb}: {name!r} cannot be replayed on recorded answers, since {keeper!r} keeps "
                f"features of rejected draft nodes, which only decoding has; compare it with `drafterzoo bench`, or "
                f"leave that part out."
            )


def parts_of(drafter: Any) -> list[type]:
    """The classes of a drafter and of what it wraps, from the outside in."""
    parts = []
    while drafter is not None:
        parts.append(type(drafter))
        drafter = getattr(drafter, "base", None)
    return parts


def replay(
    drafter: Proposer,
    target: Target,
    recordings: Sequence[Recording],
    features: Tensor,
    settings: Settings,
    keys: Sequence[int],
) -> Iterator[Emission]:
    """The emissions of `decode` under `match`, from recorded answers in place of the target.

    features [n, T, T*H]: the drafter's taps of every text up to its answer's end. keys and settings.sampling: those the
    answers were drawn with; they matter to coupled drafts alone. An answer shorter than settings.max_new_tokens ends
    where it ends. What the text does not show, how far the last round would have gone beyond it, counts as one token.
    Raises UsageError for `rejection`, whose rounds the text alone does not decide, and as `check_replayable` does.
    """
    check_replayable("replay", getattr(drafter, "spec", type(drafter).__name__), parts_of(drafter))
    if settings.sampling.rejects:
        raise UsageError("replay: under 'rejection' a text does not decide its rounds; use verification='match'.")
    limits = [min(settings.max_new_tokens, len(recording.answer)) for recording in recordings]
    prompts = [recording.prompt for recording in recordings]
    batch = Batch(drafter, target, prompts, settings, keys, Recorded(recordings, features), limits)
    yield from batch.prefill()
    while batch.alive:
        yield from batch.round()
