"""Results directories made by hand, small enough that every figure of a report can be worked out on paper."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from drafterzoo.evaluation.diagnosis import folder as diagnosis_folder
from drafterzoo.evaluation.diagnosis.summary import summarise
from drafterzoo.evaluation.diagnosis.tokens import Tokens
from drafterzoo.evaluation.offline.lines import Line, LinesFile
from drafterzoo.evaluation.results import Record, ResultsWriter

CONDITIONS: dict[str, Any] = {
    "target": {"name": "tiny", "revision": None, "dtype": "float32", "packed": False},
    "suite": {"name": "toy", "sha256": "ab", "limit": None, "prompts": 2},
    "prompting": {"turns": "all", "thinking": None, "template_sha256": None},
    "sampling": {
        "temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": 0, "verification": "match", "coupled": True,
    },
    "run": {"max_new_tokens": 8, "batch_size": 1, "warmup": 0, "repeats": 1},
    "machine": {"device": "cpu", "device_name": "cpu", "cpu": "paper", "cores": 2, "threads": 1, "system": "none"},
    "code": {"drafterzoo": "0.1.0", "commit": "abc", "torch": "2", "transformers": "5", "python": "3.11"},
    "date": "2026-01-01T00:00:00+00:00",
}  # fmt: skip

# (prompt, turn) -> what its answer is, and per round of drafter `good`: walked, accepted, committed, emitted, nodes.
# Round 3 of p1 drafts three tokens of which the second is EOS; the one round of p2 is cut by the length limit.
ANSWERS = {("p1", 0): range(10, 18), ("p1", 1): range(20, 23), ("p2", 0): range(30, 32)}
GOOD = {
    ("p1", 0): [(3, 3, 4, 4, 3), (0, 0, 1, 1, 0), (3, 2, 2, 2, 3)],
    ("p1", 1): [(1, 1, 2, 2, 3)],
    ("p2", 0): [(2, 2, 3, 1, 3)],
}
# drafter `poor` commits one token a round, and never gets a draft accepted
TIMES = {"none": 0.010, "good": 0.015, "poor": 0.0125}  # seconds of a round; 2 ms of it are drafting, 1 ms is rest


def conditions(drafters: tuple[str, ...] = ("good", "poor"), budgets: tuple[str, ...] = ("chain:3",), **changes: Any):
    """Conditions with some fields changed: conditions(run__batch_size=2)."""
    made = copy.deepcopy(CONDITIONS)
    for key, value in changes.items():
        section, _, field = key.partition("__")
        made[section][field] = value
    return {**made, "drafters": {name: {"spec": name} for name in drafters}, "budgets": list(budgets)}


def record(drafter: str, budget: str, prompt: str, turn: int, **more: Any) -> Record:
    """One answer of one row: `none`, `good` or `poor`, or any other name, which is as good as `good`."""
    tokens = list(ANSWERS[prompt, turn])
    rounds = GOOD[prompt, turn]
    if drafter in ("none", "poor"):
        nodes = 3 if drafter == "poor" else 0
        rounds = [(0, 0, 1, 1, nodes)] * (len(tokens) - 1)
    walked, accepted, committed, emitted, nodes = zip(*rounds, strict=True)
    seconds, count = TIMES.get(drafter, TIMES["good"]), len(rounds)
    drafting = 0.0 if drafter == "none" else 0.002
    fields = {
        "cell": "none" if drafter == "none" else f"{drafter}@{budget}", "drafter": drafter,
        "budget": "" if drafter == "none" else budget, "prompt": prompt,
        "category": {"p1": "chat", "p2": "maths"}[prompt],
        "turn": turn, "repeat": 0, "group": -1, "prompt_tokens": 4, "tokens": tokens, "committed": committed,
        "emitted": emitted, "accepted": accepted, "nodes": nodes, "forwards": [3 if drafting else 0] * count,
        "rows": [3 if drafting else 0] * count, "draft_s": [drafting] * count,
        "verify_s": [seconds - drafting - 0.001] * count, "rest_s": [0.001] * count, "prefill_s": 0.02,
        "decode_s": seconds * count, "walked": walked,
    }  # fmt: skip
    return Record(**{**fields, **more})


def records(drafters: tuple[str, ...] = ("good", "poor"), budgets: tuple[str, ...] = ("chain:3",)) -> list[Record]:
    rows = [("none", ""), *((drafter, budget) for drafter in drafters for budget in budgets)]
    return [record(drafter, budget, *key) for key in ANSWERS for drafter, budget in rows]


def write(folder: Path, some: list[Record] | None = None, made: dict[str, Any] | None = None) -> Path:
    """A results directory without a summary, as an interrupted run leaves it."""
    with ResultsWriter(folder, made or conditions()) as writer:
        for one in records() if some is None else some:
            writer.append(one)
    return folder


EVALUATED: dict[str, Any] = {
    "kind": "evaluate",
    "target": {"name": "tiny", "revision": None, "dtype": "float32", "packed": False},
    "rollouts": {
        "name": "r.jsonl", "sha256": "cd", "split": None, "limit": None, "rows": 2, "prompts": 2, "seen_in_training": 0,
        "noise_known": True,
    },
    "sampling": {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "coupled": True, "rule": "match"},
    "convention": {"start": "prefill", "boundary": "last"},
    "run": {"batch_size": 16},
    "machine": CONDITIONS["machine"],
    "code": CONDITIONS["code"],
    "date": CONDITIONS["date"],
}  # fmt: skip

# per rollout, the tokens that each round commits; the last round of the first went one token beyond the limit
COUNTED = {0: [3, 3, 1], 1: [2, 3]}


def evaluation_conditions(drafters: tuple[str, ...] = ("good", "poor"), **changes: Any):
    """Conditions of an evaluation with some fields changed."""
    made = copy.deepcopy(EVALUATED)
    for key, value in changes.items():
        section, _, field = key.partition("__")
        made[section][field] = value
    return {**made, "drafters": {name: {"spec": name} for name in drafters}, "budgets": ["chain:2"]}


def lines(drafters: tuple[str, ...] = ("good", "poor"), smoothed: float | None = None) -> list[Line]:
    """What `good` and `poor` need for two answers of 7 and 5 tokens; poor commits one token a round."""
    made = []
    for rollout, counted in COUNTED.items():
        for drafter in drafters:
            emitted = [1] * sum(counted) if drafter == "poor" else counted
            opened = drafter == "good" and rollout == 0
            committed = [*emitted[:-1], emitted[-1] + opened]
            made.append(
                Line(
                    cell=f"{drafter}@chain:2", drafter=drafter, budget="chain:2", rollout=rollout,
                    prompt=f"p{rollout}", category="toy", tokens=sum(emitted), rounds=len(emitted),
                    at_least=[sum(e >= j for e in emitted) for j in (1, 2, 3)], smoothed=smoothed, open=opened,
                    accepted=[c - 1 for c in committed], committed=committed, emitted=emitted,
                    nodes=[2] * len(emitted), forwards=[2] * len(emitted), rows=[2] * len(emitted),
                )
            )  # fmt: skip
    return made


def write_evaluation(folder: Path, some: list[Line] | None = None, made: dict[str, Any] | None = None) -> Path:
    """A results directory of an evaluation without a summary."""
    with LinesFile(folder, made or evaluation_conditions()) as file:
        file.append(lines() if some is None else some)
    return folder


def write_diagnosis(folder: Path, drafter: str = "good", again: bool = False, **changes: Any) -> Path:
    """A diagnosis of six drafted tokens, four of them rejected; second thoughts recover two of those."""
    columns: dict[str, Any] = {
        "depth": torch.tensor([1, 1, 1, 2, 2, 2]),
        "sure": torch.tensor([0.95, 0.3, 0.4, 0.6, 0.2, 1.0]),
        "target": torch.tensor([0.99, 0.95, 0.4, 0.7, 0.92, 0.3]),
        "right": torch.tensor([True, False, False, False, True, False]),
    }
    if again:
        columns["again"] = torch.tensor([0.9, 0.8, 0.4, 0.5, 0.9, 0.9])
        columns["right_again"] = torch.tensor([True, True, False, False, True, True])
    made = {
        "target": CONDITIONS["target"], "drafter": {"spec": drafter},
        "rollouts": {"name": "r.jsonl", "sha256": "cd", "split": None, "answers": 3},
        "depth": 2, "bins": 10, "machine": CONDITIONS["machine"], "code": CONDITIONS["code"], **changes,
    }  # fmt: skip
    folder.mkdir(parents=True)
    summary = {"drafter": drafter, "conditions": made, **summarise(Tokens(**columns), made["bins"])}
    diagnosis_folder.write(folder, summary)
    return folder
