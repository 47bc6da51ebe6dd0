"""Does a drafter that was exported draft in vLLM what it drafts here? Texts and accepted drafts, side by side.

    python benchmarks/exported.py -d eagle3.1 --python envs/vllm/bin/python --budget chain:3

The drafter is exported for vLLM into a temporary folder; a real vLLM, in an interpreter of its own, answers the same
prompts with it at temperature 0, greedy in both, and its counters of accepted drafts are set beside ours. Drafted
alike, both are equal but for the last round of an answer, and for ties. One line of JSON comes last.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from asking import at_least, run
from rich.console import Console
from rich.table import Table

import drafterzoo
from drafterzoo.budget import Budget
from drafterzoo.errors import DrafterzooError
from drafterzoo.evaluation.suites import load_suite
from drafterzoo.serving import export, target_path
from drafterzoo.wording import quantity

WORKER = Path(__file__).parent / "peer_workers" / "vllm_counts.py"


def ours(drafter: drafterzoo.Drafter, prompts: list[list[int]], budget: Budget, most: int) -> dict[str, Any]:
    """Our answers and counts, as the worker's."""
    found = drafterzoo.generate(drafter, prompts, budget=budget, max_new_tokens=most)
    rounds = [one for answer in found.rounds for one in answer]
    per_depth = [sum(one.accepted > depth for one in rounds) for depth in range(budget.depth)]
    accepted, drafted = sum(one.accepted for one in rounds), sum(one.drafted for one in rounds)
    return {
        "tokens": found.tokens,
        "drafts": len(rounds),
        "drafted": drafted,
        "accepted": accepted,
        "per_depth": per_depth,
    }


def theirs(python: str, job: dict[str, Any]) -> dict[str, Any]:
    """What vLLM answers. Raises DrafterzooError where it does not."""
    answer = Path(job["answer"])
    log = answer.with_name("vllm.log")
    with log.open("wb") as said:
        done = subprocess.run([python, str(WORKER)], input=json.dumps(job).encode(), stdout=said, stderr=said)
    if done.returncode or not answer.exists():
        last = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
        raise DrafterzooError(f"exported: vLLM ended with status {done.returncode}; its last words:\n{last}")
    value: dict[str, Any] = json.loads(answer.read_text())
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-d", "--drafter", default="eagle3.1")
    parser.add_argument("-t", "--target", default=None)
    parser.add_argument("--python", required=True, help="the interpreter that has vLLM")
    parser.add_argument("-b", "--budget", default="chain:3")
    parser.add_argument("--suite", default="starter")
    parser.add_argument("--limit", type=at_least(1), default=14, help="prompts, drawn evenly over the kinds")
    parser.add_argument("-n", "--max-new-tokens", type=at_least(2), default=64)
    asked = parser.parse_args()
    if not Path(asked.python).is_file():
        parser.error(f"--python: no such interpreter, {asked.python!r}")
    drafter, budget = drafterzoo.load(asked.drafter, asked.target), Budget.parse(asked.budget)
    target = drafter.target
    suite = load_suite(asked.suite, limit=asked.limit)
    prompts = [target.encode_chat([{"role": "user", "content": prompt.turns[0]}]) for prompt in suite.prompts]
    found = {"drafterzoo": ours(drafter, prompts, budget, asked.max_new_tokens)}
    with tempfile.TemporaryDirectory() as made:
        served = export(drafter, "vllm", Path(made) / "drafter", budget)
        config = json.loads(served.command.partition("--speculative-config ")[2].strip("'"))
        job = {
            "folder": target_path(target),
            "dtype": "float32",
            "positions": max(map(len, prompts)) + asked.max_new_tokens + budget.depth + 1,
            "speculative_config": config,
            "prompts": prompts,
            "max_new_tokens": asked.max_new_tokens,
            "answer": str(Path(made) / "answer.json"),
        }
        found["vLLM"] = theirs(asked.python, job)
    show(found, f"{drafter.spec} as {served.layout}, {budget}, {quantity(len(prompts), 'prompt')}")
    equal = sum(a == b for a, b in zip(found["drafterzoo"]["tokens"], found["vLLM"]["tokens"], strict=True))
    print(f"{equal} of {quantity(len(prompts), 'text')} equal")
    counts = {name: {key: value for key, value in one.items() if key != "tokens"} for name, one in found.items()}
    print(json.dumps({"drafter": drafter.spec, "equal": equal, "prompts": len(prompts), **counts}))


def show(found: dict[str, dict[str, Any]], title: str) -> None:
    """A table for a terminal."""
    table = Table(title=title, title_justify="left")
    for head in ("engine", "rounds", "accepted", "tau", "accepted at each depth"):
        table.add_column(head, justify="left" if head == "engine" else "right")
    for name, one in found.items():
        tau = 1 + one["accepted"] / one["drafts"]
        table.add_row(
            name, f"{one['drafts']:,}", f"{one['accepted']:,}", f"{tau:.3f}", ", ".join(map(str, one["per_depth"]))
        )
    Console().print(table)


if __name__ == "__main__":
    run(main)
