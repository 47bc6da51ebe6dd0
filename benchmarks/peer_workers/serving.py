"""How a worker talks with `peers.py`: one JSON object a line, answers on the stdout that nobody else may write to.

Standard library only, since each worker runs in an environment of its own. Knows nothing of models.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

# (prompt ids, most new tokens) -> (new tokens, target calls after the one that reads the prompt, None when unknown)
Answer = Callable[[Sequence[int], int], tuple[list[int], int | None]]
Command = Callable[[dict[str, Any]], dict[str, Any]]


class Missing(Exception):
    """Why this peer cannot run here, as a sentence without its full stop."""


def serve(
    load: Callable[[dict[str, Any]], tuple[str, dict[str, Answer]]], commands: dict[str, Command] | None = None
) -> None:
    """Load what the job (the only argument, JSON) describes, then answer requests until stdin ends.

    load gives the engine's name and version, and its rows. A request names a row, or one of `commands`.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is a remark

    def say(**message: Any) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    try:
        engine, rows = load(json.loads(sys.argv[1]))
    except Missing as why:
        say(missing=str(why))
        return
    except Exception as error:  # whatever a peer may raise: told, and the others run on
        say(missing=f"it failed to load: {type(error).__name__}: {_first_line(error)}")
        return
    say(engine=engine, rows=list(rows))
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "row" in request:
                say(**_timed(rows[request["row"]], request))
            else:
                say(**(commands or {})[request["command"]](request))
        except Exception as error:
            say(error=f"{type(error).__name__}: {_first_line(error)}")


def _timed(answer: Answer, request: dict[str, Any]) -> dict[str, Any]:
    """One answer and its wall seconds, the reading of the prompt included."""
    started = time.perf_counter()
    tokens, calls = answer(request["prompt"], request["max_new_tokens"])
    return {"tokens": tokens, "seconds": time.perf_counter() - started, "calls": calls}


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "").rstrip(".")
