"""Whether a block drafter's layout is the one it was trained for: the weights do not tell, and nothing else fails.

Source: block.md 0.1 and 6.3. Knows block drafters and the target's own answers; nothing of files or of how a tree
grows. Under the wrong layout every slot proposes for the position beside its own, and hardly a draft is accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, get_args

import attrs
import torch
from torch import Tensor

from drafterzoo.composition import innermost
from drafterzoo.drafters.base import Drafter, UnrollBatch, Unrolling
from drafterzoo.drafters.block_body import BlockBody, Layout
from drafterzoo.errors import CheckpointError, UsageError
from drafterzoo.generation import Prompt, generate

LAYOUTS: tuple[Layout, ...] = get_args(Layout)
DEPTHS = 3  # proposals of a block that are compared with the text
TOKENS = 40  # of every answer
CLEARLY = 0.1  # so much more agreement is no chance
PROMPTS = (
    "Explain to a child why the sky is blue.",
    "Write a Python function that returns the largest of three numbers.",
    "What is 17 plus 25? Say how you found it.",
    "Name five animals that live in the sea.",
)


def has_layout(drafter: Drafter) -> bool:
    """Whether it drafts blocks as ours do."""
    return isinstance(innermost(drafter), BlockBody)


def layout_agreement(drafter: Drafter, prompts: Sequence[Prompt] = PROMPTS) -> dict[str, float]:
    """By layout, the share of proposals that are the target's own choice, below every token of a few greedy answers.

    Raises UsageError for a drafter that drafts no blocks, and where no answer is long enough.
    """
    base = innermost(drafter)
    if not isinstance(base, BlockBody):
        raise UsageError(f"self-test: {drafter.spec} drafts no blocks, so there is no layout to test.")
    answers = generate("none", list(prompts), target=base.target, max_new_tokens=TOKENS)
    found: dict[str, list[Tensor]] = {layout: [] for layout in LAYOUTS}
    layouts = [layout for layout in LAYOUTS if base.config.block_size > (layout == "same_position")]
    for prompt, answer in zip(answers.prompts, answers.tokens, strict=True):
        if len(answer) <= DEPTHS:
            continue
        with torch.inference_mode():
            batch = _text(base, prompt, answer)
            for layout in layouts:
                with _as(base, layout):
                    found[layout].append(_agreed(base, batch))
    if not any(found.values()):
        raise UsageError("self-test: every answer is too short to tell a layout by; give other prompts.")
    return {layout: float(torch.cat(parts).float().mean()) for layout, parts in found.items() if parts}


def check_layout(drafter: Drafter, prompts: Sequence[Prompt] = PROMPTS, where: str = "") -> dict[str, float]:
    """`layout_agreement`. Raises CheckpointError where another layout than the config's agrees clearly more."""
    found = layout_agreement(drafter, prompts)
    stated = innermost(drafter).config.layout
    best = max(found, key=lambda layout: found[layout])
    if found[best] >= found[stated] + CLEARLY:
        raise CheckpointError(
            f"{where or drafter.spec}: layout is {stated!r}, by which {found[stated]:.0%} of its proposals are the "
            f"target's choice, and {found[best]:.0%} by {best!r}; correct it in config.json, or load it with "
            f"layout={best!r}."
        )
    return found


@contextmanager
def _as(base: BlockBody, layout: Layout) -> Iterator[None]:
    """The drafter, read by another layout for a while; a block is as wide either way, but proposes more or less."""
    kept = base.config
    fitted: dict[str, Any] = {"confidence_temperatures": ()} if hasattr(kept, "confidence_temperatures") else {}
    base.config = attrs.evolve(kept, layout=layout, **fitted)
    try:
        yield
    finally:
        base.config = kept


def _text(base: BlockBody, prompt: Sequence[int], answer: Sequence[int]) -> UnrollBatch:
    """A prompt and its answer, every row wanted whose proposals the answer shows."""
    tokens = torch.tensor([[*prompt, *answer]], device=base.target.device)
    rows = torch.arange(tokens.shape[1], device=tokens.device)
    queries = rows[len(prompt) - 1 : tokens.shape[1] - 1 - DEPTHS]
    features = base.target.read(tokens, base.taps).features
    return UnrollBatch(tokens, features, rows[None], torch.zeros_like(tokens), queries=queries[None])


def _agreed(base: BlockBody, batch: UnrollBatch) -> Tensor:
    """Whether each proposal [Q*depths] is what the text has."""
    depths = min(DEPTHS, base.config.proposals)
    joined = base.settled(batch, base.block_rows(batch, depths, Unrolling()))
    assert batch.queries is not None, "rows are wanted by number"
    hits = []
    for depth, read in enumerate(joined):
        columns = base.logits(read)[0].argmax(-1)
        tokens = columns if base.ids is None else base.ids[columns]
        hits.append(tokens == batch.tokens[0, batch.queries[0] + 2 + depth])
    return torch.cat(hits)
