"""What the JSON files of results must hold for others to read them: checked once, when they are opened.

Knows names of keys and kinds of values; nothing of what they mean. A file may hold more than is declared here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from drafterzoo.budget import Budget
from drafterzoo.engine.sampling import Sampling
from drafterzoo.errors import DataError, UsageError
from drafterzoo.evaluation.results import AGAIN
from drafterzoo.kinds import check_shape


@attrs.frozen
class _Target:
    name: str
    dtype: str
    packed: bool


@attrs.frozen
class _Machine:
    device: str
    device_name: str
    threads: int | None


@attrs.frozen
class _Suite:
    name: str
    prompts: int


@attrs.frozen
class _Prompting:
    turns: str
    thinking: bool | None


@attrs.frozen
class _Sampling:
    temperature: float
    top_p: float
    top_k: int
    seed: int
    verification: str
    coupled: bool


@attrs.frozen
class _Run:
    max_new_tokens: int
    batch_size: int
    warmup: int
    repeats: int


@attrs.frozen
class _Described:
    """What all conditions tell: the target, the surroundings, and what the rows are."""

    target: _Target
    machine: _Machine
    code: dict
    drafters: dict[str, dict]
    budgets: tuple[str, ...]
    date: str


@attrs.frozen
class Conditions(_Described):
    """conditions.json of `bench`, and of a table of a grid."""

    suite: _Suite
    prompting: _Prompting
    sampling: _Sampling
    run: _Run


@attrs.frozen
class _Rollouts:
    name: str
    rows: int
    prompts: int


@attrs.frozen
class _Rule:
    temperature: float
    top_p: float
    top_k: int
    coupled: bool
    rule: str


@attrs.frozen
class Evaluated(_Described):
    """conditions.json of `evaluate`."""

    rollouts: _Rollouts
    sampling: _Rule
    convention: dict
    run: dict


@attrs.frozen
class _Lossless:
    checked: bool
    texts: int
    different: int
    ties: int
    differences: tuple[dict, ...]


@attrs.frozen
class Summary:
    """summary.json of `bench`: what is taken from it as it is, and not computed anew from the lines."""

    rows: tuple[dict, ...]
    answers: int
    complete: bool
    conditions_key: str
    conditions: Conditions
    lossless: _Lossless


@attrs.frozen
class _Asked:
    name: str
    split: str | None
    answers: int


@attrs.frozen
class _OfDiagnosis:
    target: _Target
    rollouts: _Asked
    drafter: dict
    depth: int
    bins: int
    machine: _Machine
    code: dict


@attrs.frozen
class _Bin:
    low: float
    high: float
    tokens: int
    acceptance: float | None


@attrs.frozen
class _AtDepth:
    tokens: int
    acceptance: float | None


@attrs.frozen
class _Rejected:
    """recovered and the rises: of a drafter with second thoughts alone."""

    rejected: int
    share: float | None
    recovered: float | None = None
    rise_recovered: float | None = None
    rise_not_recovered: float | None = None


@attrs.frozen
class _Bucket(_Rejected):
    drafter: str = attrs.field(kw_only=True)
    target: str = attrs.field(kw_only=True)


@attrs.frozen
class Diagnosed:
    """diagnosis.json."""

    drafter: str
    conditions: _OfDiagnosis
    tokens: int
    rejected: int
    acceptance: float | None
    by_depth: tuple[_AtDepth, ...]
    by_confidence: tuple[_Bin, ...]
    unsure_share: float | None
    unsure_while_target_decisive_share: float | None
    buckets: tuple[_Bucket, ...]
    all_rejected: _Rejected


@attrs.frozen
class GridFile:
    """grid.json."""

    name: str
    recipe: dict
    sessions: tuple[dict, ...]


@attrs.frozen
class Failures:
    """failures.json of a grid."""

    failures: tuple[dict, ...]


def check_conditions(conditions: Mapping[str, Any], path: Path, shape: type = Conditions) -> None:
    """Raise DataError, naming file and key, unless the conditions can be read: values of their kinds, and possible."""
    check_shape(shape, conditions, str(path), AGAIN)
    try:
        for budget in filter(None, conditions["budgets"]):  # it is empty where a server does not tell its own
            Budget.parse(budget)
        if shape is Conditions:
            Sampling(**conditions["sampling"])
    except (UsageError, TypeError) as error:
        raise DataError(f"{path}: {str(error).rstrip('.')}; {AGAIN}.") from error
