"""Which of two readings of a checkpoint's layer ids is right: the one by which it agrees with its target.

Source: eagle.md 2.3. Knows drafters, their training forward and the target's own answers; nothing of any layout. One
boundary beside the right one, a drafter still runs, and hardly anything that it proposes is accepted.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import get_args

import torch

from drafterzoo.drafters.base import Drafter, UnrollBatch
from drafterzoo.errors import CheckpointError, Note
from drafterzoo.formats.base import Convention, Files
from drafterzoo.generation import Generation, Prompt, generate
from drafterzoo.self_test import PROMPTS, TOKENS
from drafterzoo.target.target import Target

CLEARLY = 0.02  # so much more agreement, on some hundred tokens, is no chance
CONVENTIONS: tuple[Convention, ...] = get_args(Convention)


def better_convention(bound: Callable[[Convention], Drafter], files: Files, target: Target) -> Convention:
    """The convention by which the drafter agrees with its target more often; a warning says so.

    bound: the drafter, read by a convention. Raises CheckpointError where neither fits the target, and where they
    differ by less than CLEARLY, which says what to type.
    """
    answers = answers_of(target)
    found: dict[Convention, float] = {}
    refused: list[CheckpointError] = []
    for convention in CONVENTIONS:
        try:
            drafter = bound(convention)
        except CheckpointError as error:  # a boundary that the target has not
            refused.append(error)
        else:
            found[convention] = agreement(drafter, answers)
    if not found:
        raise refused[0]
    best = max(found, key=lambda convention: found[convention])
    shares = " and ".join(f"{share:.0%} as {convention!r}" for convention, share in found.items())
    if len(found) == 2 and found[best] < min(found.values()) + CLEARLY:
        raise CheckpointError(
            f"{files.config_file}: layer ids may name boundaries or layers' outputs, and the drafter agrees with the "
            f"target on {shares}, which does not tell; say aux_convention='boundary' or 'layer_output'."
        )
    warnings.warn(
        f"{files.config_file}: layer ids are read as {best!r}: the drafter agrees with the target on {shares}. "
        f"aux_convention={best!r} says so without a test.",
        Note,
        stacklevel=2,
    )
    return best


def agreement(drafter: Drafter, answers: Generation) -> float:
    """The share of its first proposals that are the target's own choice, along greedy answers of the target."""
    target, hits = drafter.target, []
    for prompt, answer in zip(answers.prompts, answers.tokens, strict=True):
        if len(answer) < 2:
            continue
        tokens = torch.tensor([[*prompt, *answer]], device=target.device)
        rows = torch.arange(tokens.shape[1], device=tokens.device)
        with torch.inference_mode():
            features = target.read(tokens, drafter.taps).features
            queries = rows[None, len(prompt) - 1 : -2]
            batch = UnrollBatch(tokens, features, rows[None], torch.zeros_like(tokens), queries=queries)
            columns = drafter.logits(drafter.unroll(batch, 1)[0]).argmax(-1)
        ids = drafter.vocabulary
        hits.append((columns if ids is None else ids[columns]) == tokens[0, queries + 2])
    return float(torch.cat(hits, dim=1).float().mean()) if hits else 0.0


def answers_of(target: Target) -> Generation:
    """A few greedy answers."""
    return generate("none", _prompts(target), target=target, max_new_tokens=TOKENS)


def _prompts(target: Target) -> list[Prompt]:
    """Questions; for a target that takes none, ids from all over its vocabulary, which it goes on from just as well."""
    if getattr(target.tokenizer, "chat_template", None):
        return list(PROMPTS)
    step = max(1, target.vocab_size // (8 * len(PROMPTS)))
    return [[(8 * i + j) * step % target.vocab_size for j in range(8)] for i in range(len(PROMPTS))]
