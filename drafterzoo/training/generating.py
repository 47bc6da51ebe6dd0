"""Rollouts made anew: the target answers prompts in batches through the engine, and every answer is a line of JSON.

Knows prompts, the engine's plain decoding and the rollout file; nothing of drafters or training. Lines are appended
batch by batch, so an interruption loses one batch and the same call goes on after the last whole line.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from drafterzoo.disk import check_file, unwritable, writing
from drafterzoo.errors import DataError, UsageError
from drafterzoo.generation import generate
from drafterzoo.locks import waited_for
from drafterzoo.parsing import parse_object
from drafterzoo.progress import progress
from drafterzoo.target.target import Target
from drafterzoo.training.identity import target_identity
from drafterzoo.training.prompts import read_prompts
from drafterzoo.training.recipe import GenerateSection
from drafterzoo.training.rollouts import ADVICE
from drafterzoo.wording import quantity

ANOTHER_FILE = "free some space or choose another file"
ANOTHER_ENTRY = "free some space, or name another file in [data] rollouts"
_BEGINNING = b'{"source": "'  # of every line that is written here


def ensure_rollouts(section: GenerateSection, target: Target, path: Path) -> None:
    """Make the rollouts that a recipe's [generate] describes, unless `path` exists: then whatever it holds is used.

    They appear under their name once they are whole. Until then they grow in a file beside it whose name is that of
    these settings and this target, so that an interrupted call goes on, and never with answers made otherwise. Another
    process that wants the same file waits for it. Raises as `make_rollouts` and `read_prompts` do.
    """
    if path.exists():
        return
    prompts = read_prompts(section.prompts, seed=section.seed)
    settings = json.dumps([attrs.asdict(section), target_identity(target)], sort_keys=True)
    growing = path.with_name(f"{path.name}.{hashlib.sha256(settings.encode()).hexdigest()[:12]}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        why = f"Another process is making {path}; waiting until it is done"
        with waited_for(path.with_name(f"{path.name}.lock"), why):
            if path.exists():
                return
            make_rollouts(
                target,
                prompts,
                growing,
                max_new_tokens=section.max_new_tokens,
                temperatures=section.temperatures,
                seed=section.seed,
                batch_size=section.batch_size,
                held_out=section.held_out,
            )
            os.replace(growing, path)
    except OSError as error:
        raise unwritable(f"{path}:", error, ANOTHER_ENTRY) from error


def make_rollouts(
    target: Target,
    prompts: Sequence[tuple[str, str]],
    path: Path,
    *,
    max_new_tokens: int,
    temperatures: Sequence[float] = (0.0,),
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    batch_size: int = 32,
    held_out: float = 0.05,
    look_ahead: int = 0,
) -> dict[str, int]:
    """Answer (source, prompt) pairs and append the rollouts to `path`; prompts it already answers are skipped.

    temperatures: taken in turn, prompt by prompt. A prompt's temperature depends on its place, whether it is held out
    on its place and the seed; nothing on where an earlier call stopped. look_ahead: so many tokens more of an answer
    that max_new_tokens cuts are kept apart, as `ahead_ids`: how far a drafter's last round went shows in them alone.
    Returns the counts of rows and new tokens.
    Raises DataError when `path` holds something else, DiskError when it cannot be written.
    """
    if look_ahead < 0:
        raise UsageError(f"rollout: look_ahead={look_ahead}, expected 0 or more tokens, such as 8.")
    if batch_size < 1 or not 0 <= held_out <= 1:
        raise UsageError(
            f"rollout: batch_size={batch_size}, held_out={held_out}, expected at least 1 prompt and a share from 0 to "
            f"1; for example batch_size=32, held_out=0.05."
        )
    if not temperatures:
        raise UsageError("rollout: no temperature is given, expected at least one, such as 0.")
    check_file(path, f"{path}:", ANOTHER_FILE)
    done = _answered(path)
    splits = _splits(len(prompts), held_out, seed)
    heat = [temperatures[i % len(temperatures)] for i in range(len(prompts))]
    encoded = [target.encode_chat([{"role": "user", "content": text}]) for _, text in prompts]
    left = _left([(text, heat[i]) for i, (_, text) in enumerate(prompts)], done)
    new_tokens, started = 0, time.perf_counter()
    title = f"{len(left)} of {quantity(len(prompts), 'prompt')} to answer by {target.name}"
    with progress(title, len(left), "prompts") as bar:
        for batch in _batches(left, heat, [len(ids) for ids in encoded], batch_size):
            answers = generate(
                "none",
                [encoded[i] for i in batch],
                target=target,
                max_new_tokens=max_new_tokens + look_ahead,
                temperature=heat[batch[0]],
                top_p=top_p,
                top_k=top_k,
                seed=seed,
                batch_size=batch_size,
                request_ids=batch,
            ).tokens
            drawn = {"temperature": heat[batch[0]], "top_p": top_p, "top_k": top_k, "seed": seed}
            _append(
                path,
                [
                    _row(prompts[i], {**drawn, "request": i}, encoded[i], answer, max_new_tokens, splits[i])
                    for i, answer in zip(batch, answers, strict=True)
                ],
            )
            new_tokens += sum(min(len(answer), max_new_tokens) for answer in answers)
            bar(len(batch))
            bar.remark(f"{new_tokens:,} tokens, {new_tokens / (time.perf_counter() - started):,.0f} tokens/s")
    return {"rows": done.total() + len(left), "new_rows": len(left), "new_tokens": new_tokens}


def _row(
    asked: tuple[str, str],
    drawn: dict[str, Any],
    prompt: Sequence[int],
    answer: Sequence[int],
    limit: int,
    split: str,
) -> dict[str, Any]:
    """A line of the file. asked: source and prompt; limit: what goes beyond it is kept apart."""
    ahead = {"ahead_ids": answer[limit:]} if len(answer) > limit else {}
    ids = {"prompt_ids": prompt, "response_ids": answer[:limit], **ahead}
    return {"source": asked[0], "prompt": asked[1], **drawn, **ids, "split": split}


def check_output(path: Path) -> None:
    """Raise, before anything is loaded, where rollouts cannot go: DiskError, or DataError for a file of something else.

    A last line cut short by an interruption is cut off.
    """
    check_file(path, f"{path}:", ANOTHER_FILE)
    _answered(path)


def _splits(count: int, held_out: float, seed: int) -> list[str]:
    """Which prompts are held out: one in every block of 1 / held_out, at a place drawn by the seed.

    Neighbours are of different families, so a fixed distance between held-out prompts would hold out one family alone;
    and what a prompt is does not change when more prompts follow.
    """
    block = math.ceil(1 / held_out) if held_out else max(count, 1)
    draw, chosen = random.Random(seed), set[int]()
    for number, start in enumerate(range(0, count, block)):
        many = math.floor((number + 1) * block * held_out + 1e-9) - math.floor(number * block * held_out + 1e-9)
        chosen.update(start + place for place in draw.sample(range(block), many))
    return ["val" if i in chosen else "train" for i in range(count)]


def _batches(
    left: Sequence[int], heat: Sequence[float], lengths: Sequence[int], batch_size: int
) -> Iterator[list[int]]:
    """Batches of one temperature each, of prompts of like length, which waste no padding."""
    for temperature in sorted(set(heat)):
        like = sorted((i for i in left if heat[i] == temperature), key=lambda i: lengths[i])
        for start in range(0, len(like), batch_size):
            yield like[start : start + batch_size]


def _left(asked: Sequence[tuple[str, float]], done: Counter[tuple[str, float]]) -> list[int]:
    """The places of what is not answered yet; what is asked twice is answered twice, the first place first."""
    seen: Counter[tuple[str, float]] = Counter()
    places = []
    for place, pair in enumerate(asked):
        seen[pair] += 1
        if seen[pair] > done[pair]:
            places.append(place)
    return places


def _answered(path: Path) -> Counter[tuple[str, float]]:
    """How often `path` answers each (prompt, temperature). A last line cut short by an interruption is cut off."""
    if not path.exists():
        return Counter()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); choose another file.") from error
    whole = data[: data.rfind(b"\n") + 1]
    # Not splitlines(): a prompt may hold a line end of another kind, which JSON leaves as it is.
    lines = whole.split(b"\n")[:-1]
    rows: list[dict[str, Any]] = [parse_object(line, f"{path}:{i}", ADVICE) for i, line in enumerate(lines, 1)]
    for number, row in enumerate(rows, 1):
        if not isinstance(row.get("prompt"), str) or "response_ids" not in row:
            raise DataError(
                f"{path}:{number}: not a rollout (no prompt, no response_ids); choose another file to write to."
            )
    if len(whole) < len(data):
        if not _BEGINNING.startswith(data[len(whole) :][: len(_BEGINNING)]):  # not ours to shorten
            raise DataError(f"{path}:{len(lines) + 1}: not a rollout; choose another file to write to.")
        try:
            os.truncate(path, len(whole))
        except OSError as error:
            raise unwritable(f"{path}:", error, ANOTHER_FILE) from error
    return Counter((row["prompt"], row.get("temperature", 0.0)) for row in rows)


def _append(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    with writing(f"{path}:", ANOTHER_FILE):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
