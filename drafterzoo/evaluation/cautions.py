"""What the numbers of a run cannot bear, said in sentences: intervals of few prompts, speeds that cannot be.

Knows summaries (evaluation/summary.py); nothing of how they were measured or are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drafterzoo.evaluation.tables import short_cell
from drafterzoo.wording import quantity

DOUBTFUL = 1.02  # times τ: a speed-up that batch size 1 cannot reach, but for noise
FEW_PROMPTS = 5  # resampling fewer whole prompts gives the ends of their own range


def cautions(summary: Mapping[str, Any]) -> list[str]:
    """Every caution that a run's summary calls for."""
    return [*doubtful_speeds(summary), *few_prompts(summary)]


def doubtful_speeds(summary: Mapping[str, Any]) -> list[str]:
    """A remark on every row faster than its τ allows, one prompt at a time."""
    if summary["conditions"]["run"]["batch_size"] > 1:
        return []
    return [
        f"doubtful: {short_cell(row['cell'])} is {row['speedup']['value']:.2f}x as fast at τ {row['tau']:.2f}, and no "
        f"call costs less than plain decoding's: something slowed plain decoding; measure again with nothing beside it"
        for row in summary["rows"]
        if None not in (row["speedup"]["value"], row["tau"]) and row["speedup"]["value"] > DOUBTFUL * row["tau"]
    ]


def few_prompts(summary: Mapping[str, Any]) -> list[str]:
    """A remark on intervals that stand on little: on few prompts, or batches of them, which are resampled whole."""
    resampled = max(row["speedup"]["clusters"] for row in summary["rows"])
    size = summary["conditions"]["run"]["batch_size"]
    if resampled >= FEW_PROMPTS or not resampled:  # without plain decoding there is no interval
        return []
    if size == 1:
        of = quantity(resampled, "prompt")
        return [f"intervals: of {of} they say little; ask at least {FEW_PROMPTS} prompts"]
    of = quantity(resampled, "batch", "batches")
    return [f"intervals: of {of} they say little; ask at least {FEW_PROMPTS * size} prompts, or in smaller batches"]
