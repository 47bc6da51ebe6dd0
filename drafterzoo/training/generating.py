"""Rollouts made anew: the target answers prompts in batches through the engine, and every answer is a line of JSON.

Knows prompts, the engine's plain decoding and the rollout file; nothing of drafters or training. Lines are appended
batch by batch, so an interruption loses one batch and the same call goes on after the last whole line.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drafterzoo.errors import CheckpointError, DataError, UsageError
from drafterzoo.generation import generate
from drafterzoo.progress import progress
from drafterzoo.target.target import Target
from drafterzoo.training.rollouts import json_row


def make_rollouts(
    target: Target,
    prompts: Sequence[tuple[str, str]],
    path: Path,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    batch_size: int = 32,
    held_out: float = 0.05,
) -> dict[str, int]:
    """Answer (source, prompt) pairs and append the rollouts to `path`; prompts it already answers are skipped.

    Whether a prompt is held out depends on the seed and its place alone. Returns the counts of rows and new tokens.
    Raises DataError when `path` holds something else, CheckpointError when it cannot be written.
    """
    if batch_size < 1 or not 0 <= held_out <= 1:
        raise UsageError(
            f"rollout: batch_size={batch_size}, held_out={held_out}, expected at least 1 prompt and a share from 0 to "
            f"1; for example batch_size=32, held_out=0.05."
        )
    done = _answered(path, temperature)
    draw = random.Random(seed)
    splits = ["val" if draw.random() < held_out else "train" for _ in prompts]
    encoded = [target.encode_chat([{"role": "user", "content": text}]) for _, text in prompts]
    left = [i for i, (_, text) in enumerate(prompts) if text not in done]
    left.sort(key=lambda i: len(encoded[i]))  # prompts of like length waste no padding
    new_tokens = 0
    with progress(f"{len(left)} prompts to answer by {target.name}", len(left), "prompts/s") as advance:
        for start in range(0, len(left), batch_size):
            batch = left[start : start + batch_size]
            answers = generate(
                "none",
                [encoded[i] for i in batch],
                target=target,
                max_new_tokens=max_new_tokens,
                temperature=temperature,
                top_p=top_p,
                top_k=top_k,
                seed=seed,
                batch_size=batch_size,
                request_ids=batch,
            ).tokens
            rows = [
                {
                    "source": prompts[i][0],
                    "prompt": prompts[i][1],
                    "temperature": temperature,
                    "prompt_ids": encoded[i],
                    "response_ids": list(answer),
                    "split": splits[i],
                }
                for i, answer in zip(batch, answers, strict=True)
            ]
            _append(path, rows)
            new_tokens += sum(map(len, answers))
            advance(len(batch))
    return {"rows": len(done) + len(left), "new_rows": len(left), "new_tokens": new_tokens}


def _answered(path: Path, temperature: float) -> set[str]:
    """Prompts that `path` answers at this temperature. A last line cut short by an interruption is cut off."""
    if not path.exists():
        return set()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); choose another file.") from error
    *lines, cut_short = data.split(b"\n")
    rows: list[dict[str, Any]] = [json_row(line, path, i) for i, line in enumerate(lines, 1)]
    for number, row in enumerate(rows, 1):
        if not isinstance(row.get("prompt"), str) or "response_ids" not in row:
            raise DataError(
                f"{path}:{number}: not a rollout (no prompt, no response_ids); choose another file to write to."
            )
    if cut_short:
        if not rows and cut_short[:11] != b'{"source": '[: len(cut_short)]:
            raise DataError(f"{path}: holds something else than rollouts; choose another file to write to.")
        os.truncate(path, len(data) - len(cut_short))
    return {row["prompt"] for row in rows if row.get("temperature") == temperature}


def _append(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be written ({error.strerror}); free some space or choose another file."
        ) from error
