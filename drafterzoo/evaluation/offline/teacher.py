"""One teacher-forced forward of the target over some rollouts: features for every drafter, hidden states for p.

Knows the target and recorded texts; nothing of drafters, rounds or files. Boundaries are read once, however many
drafters tap them.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from drafterzoo.engine.replay import Recording
from drafterzoo.engine.sampling import Sampler, Sampling
from drafterzoo.errors import DataError
from drafterzoo.target.target import Target
from drafterzoo.wording import quantity

ROWS_AT_ONCE = 128  # rows of logits held at once: 25 MB at 49152 tokens


def check_length(ids: Sequence[int], target: Target, where: str) -> None:
    """Raise DataError, which begins with `where`, for a text that the target has not the positions to read."""
    if len(ids) > target.max_positions:
        raise DataError(
            f"{where} has {quantity(len(ids), 'token')}, but {target.name} has {target.max_positions} positions; leave "
            f"that row out."
        )


@attrs.frozen(eq=False)
class Lesson:
    """What the target says of n texts, padded on the right.

    tokens [n, T] int64 (0 where padding or unknown); hidden [n, T, H] after the final norm; features [n, T, U*H] of the
    boundaries `taps`.
    """

    recordings: Sequence[Recording]
    tokens: Tensor
    hidden: Tensor
    features: Tensor
    taps: tuple[int, ...]

    def tapped(self, taps: Sequence[int]) -> Tensor:
        """Features [n, T, T*H] of some of the boundaries, in the order given."""
        if tuple(taps) == self.taps:
            return self.features
        if not taps:
            return self.features[..., :0]
        parts = self.features.unflatten(-1, (len(self.taps), -1))
        return torch.cat([parts[..., self.taps.index(tap), :] for tap in taps], dim=-1)


def teach(target: Target, recordings: Sequence[Recording], taps: Sequence[int]) -> Lesson:
    """Read the texts up to their answers' ends, in one forward."""
    texts = [[*recording.prompt, *recording.answer] for recording in recordings]
    width = max(map(len, texts))
    tokens = torch.tensor([text + [0] * (width - len(text)) for text in texts], dtype=torch.int64)
    tokens = tokens.clamp(min=0).to(target.device)
    lengths = torch.tensor([len(text) for text in texts], device=target.device)
    valid = torch.arange(width, device=target.device) < lengths[:, None]
    reading = target.read(tokens, taps, valid)
    assert reading.hidden is not None, "a target's teacher forward gives hidden states"
    return Lesson(recordings, tokens, reading.hidden, reading.features, tuple(taps))


@torch.inference_mode()
def agreement(target: Target, lesson: Lesson, sampling: Sampling, keys: Sequence[int]) -> float:
    """Share of the answers' tokens after the given first (ROWS_AT_ONCE over all texts) that the target itself chooses.

    1 but for rounding where the texts are this target's, drawn with these settings and keys; 1 where there is none.
    """
    each = max(1, ROWS_AT_ONCE // len(lesson.recordings))
    places = [
        (row, place)
        for row, recording in enumerate(lesson.recordings)
        for place in range(len(recording.prompt) + 1, len(recording.prompt) + min(1 + each, len(recording.answer)))
        if recording.text[place] >= 0
    ]
    if not places:
        return 1.0
    rows, at = torch.tensor(places, device=lesson.tokens.device).unbind(1)
    noise = torch.tensor([keys[row] for row, _ in places], dtype=torch.int64, device=rows.device)
    sampler = Sampler(sampling, noise, target.vocab_size, 1)
    sampler.begin(at - 1)
    chosen = sampler.choose(target.head(lesson.hidden[rows, at - 1]), at)
    return float((chosen == lesson.tokens[rows, at]).float().mean())
