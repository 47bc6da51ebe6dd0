"""The conditions of a run: everything that can change a number, and the rule that unlike rows are never in one table.

Knows targets, suites and drafters by their public attributes; nothing of decoding, records or tables. Everything but
the rows' own attributes (drafters, their budgets) and the date goes into `conditions_key`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs
import torch

from drafterzoo import __version__
from drafterzoo.cpu import cpu_model
from drafterzoo.engine.sampling import Sampling, process
from drafterzoo.errors import UsageError
from drafterzoo.resources import PACKAGE

if TYPE_CHECKING:
    from drafterzoo.drafters.base import Drafter
    from drafterzoo.evaluation.suites import Suite
    from drafterzoo.target.target import Target

# A row's own attributes, not the table's: the drafter and what it may spend. The date changes nothing.
OF_A_ROW = ("drafters", "budgets", "date")
ENTROPY_ROWS = 64  # positions looked at: enough to see a choice, little enough memory for any vocabulary


@attrs.frozen
class Settings:
    """How every cell is decoded, as resolved: no field is ever a default somebody else might fill in differently.

    turns is "first" or "all"; thinking is passed to the chat template, None leaves its default. system: what a system
    message before the first turn says; None sends none.
    Raises UsageError for values that cannot be meant.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    verification: Literal["match", "rejection"] = "match"
    coupled: bool = True
    turns: str = "first"
    thinking: bool | None = None
    batch_size: int = 1
    warmup: int = 1
    repeats: int = 1
    system: str | None = None

    def __attrs_post_init__(self) -> None:
        # two new tokens at least: prefill gives the first, and there must be a round to measure
        for name, least in (("max_new_tokens", 2), ("batch_size", 1), ("warmup", 0), ("repeats", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"bench: {name} is {getattr(self, name)}, expected at least {least}.")
        if self.turns not in ("first", "all"):
            raise UsageError(f"bench: turns is {self.turns!r}, expected 'first' or 'all'.")
        if self.system is not None and not self.system.strip():
            raise UsageError("bench: the system prompt is empty; leave it out to send none.")
        self.sampling  # noqa: B018  refuses what cannot be meant

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_p, self.top_k, self.seed, self.verification, self.coupled)

    @property
    def same_text(self) -> bool:
        """True when every cell must give plain decoding's text, token for token."""
        return not self.sampling.rejects


def gather(
    target: Target,
    suite: Suite,
    limit: int | None,
    settings: Settings,
    drafters: Mapping[str, Drafter],
    budgets: Sequence[str],
) -> dict[str, Any]:
    """The contents of conditions.json. drafters: by the name of their rows."""
    return {**asked(target, suite, limit, settings), **surroundings(target, drafters), "budgets": list(budgets)}


def asked(target: Target, suite: Suite, limit: int | None, settings: Settings) -> dict[str, Any]:
    """The part of the conditions that says what is decoded, and how."""
    return {"target": target_conditions(target), **asked_of(suite, limit, settings, _template(target))}


def asked_of(suite: Suite, limit: int | None, settings: Settings, template: str | None) -> dict[str, Any]:
    """What is asked, whoever answers it. template: the hash of the chat template, where it is known."""
    fixed = attrs.asdict(settings)
    sampling = {name: fixed.pop(name) for name in ("temperature", "top_p", "top_k", "seed", "verification", "coupled")}
    prompting = {name: fixed.pop(name) for name in ("turns", "thinking", "system")}
    return {
        "suite": {"name": suite.name, "sha256": suite.sha256, "limit": limit, "prompts": len(suite.prompts)},
        "prompting": {**prompting, "template_sha256": template},
        "sampling": sampling,
        "run": fixed,
    }


def target_conditions(target: Target) -> dict[str, Any]:
    """What of a target can change a number."""
    fingerprint = target.fingerprint()
    return {**fingerprint, "dtype": _plain(target.dtype), "packed": target.packed, "dense_rows": target.dense_rows}


def surroundings(target: Target, drafters: Mapping[str, Drafter]) -> dict[str, Any]:
    """The part that is the same for everything one process measures: machine, code, drafters, date."""
    return {
        "machine": machine(target.device),
        "code": code(),
        "drafters": {name: drafter_conditions(drafter) for name, drafter in drafters.items()},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@torch.no_grad()
def entropy_seen(target: Target, ids: Sequence[int], sampling: Sampling) -> float:
    """Mean entropy (nats) of the processed distribution over the last positions of a prompt: is anything drawn at all?

    Raises UsageError when it is zero above temperature 0: a filter leaves one token everywhere, and the run would be
    greedy under another name.
    """
    hidden = target.read(torch.tensor([list(ids)], device=target.device)).hidden
    assert hidden is not None, "a target's teacher forward gives hidden states"
    probabilities = process(target.head(hidden[:, -ENTROPY_ROWS:]), sampling).exp()
    entropy = float(torch.special.entr(probabilities).sum(-1).mean())
    if not sampling.greedy and entropy == 0:
        raise UsageError(
            f"bench: at temperature={sampling.temperature:g} with top_k={sampling.top_k} and top_p={sampling.top_p:g} "
            f"one token is left everywhere, so nothing is drawn; use temperature=0, or raise top_k or top_p."
        )
    return entropy


def conditions_key(conditions: Mapping[str, Any]) -> str:
    """A hash over everything but the drafters, their budgets and the date: equal keys may share a table."""
    return hashlib.sha256(json.dumps(shared(conditions), sort_keys=True).encode()).hexdigest()[:16]


def shared(conditions: Mapping[str, Any]) -> dict[str, Any]:
    """The conditions without the rows' own: all that the rows of one table have in common."""
    return by_sources({key: value for key, value in conditions.items() if key not in OF_A_ROW})


def by_sources(conditions: Mapping[str, Any]) -> dict[str, Any]:
    """The conditions without the commit, where a hash of the sources tells better which code ran: a wheel has none."""
    code = conditions.get("code", {})
    if not code.get("sources_sha256"):
        return dict(conditions)
    return {**conditions, "code": {key: value for key, value in code.items() if key != "commit"}}


def when(conditions: Mapping[str, Any]) -> str:
    """When a run began, and the commit of its code where it is known."""
    commit = conditions["code"].get("commit")
    return f"{conditions['date']}, commit {commit[:12]}" if commit else str(conditions["date"])


def check_comparable(runs: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise UsageError, naming every field that differs, unless all runs (name -> conditions) may share a table."""
    (first, reference), *others = runs.items()
    for name, conditions in others:
        if conditions_key(conditions) == conditions_key(reference):
            continue
        fields = ", ".join(f"{key} ({a!r} against {b!r})" for key, (a, b) in differing(reference, conditions).items())
        raise UsageError(
            f"{first} and {name} cannot stand in one table, since they differ in {fields}; "
            f"run them alike, or table them apart."
        )


def differing(*several: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The fields in which some conditions differ, rows' own left out: `sampling.temperature` -> the value of each."""
    return unlike(*map(shared, several))


def unlike(*several: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The keys, joined by dots, in which some nested objects differ, with the value of each (or `absent`)."""
    flat = [dict(flatten(one)) for one in several]
    fields = dict.fromkeys(key for one in flat for key in one)
    values = {key: tuple(one.get(key, "absent") for one in flat) for key in fields}
    return {key: each for key, each in values.items() if any(value != each[0] for value in each)}


def flatten(conditions: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(field, value) of all that is nested: `target.name`, `run.batch_size`, ..."""
    for key, value in conditions.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def machine(device: torch.device) -> dict[str, Any]:
    """Device, CPU model, threads."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        "device": device.type,
        "device_name": name,
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def code() -> dict[str, Any]:
    """Versions, the commit of the checkout that is running (None when installed from a package), and a hash of it."""
    return {
        "drafterzoo": __version__,
        "commit": _commit(PACKAGE),
        "sources_sha256": _sources(),
        "torch": torch.__version__,
        "transformers": metadata.version("transformers"),
        "python": platform.python_version(),
    }


@cache
def _sources() -> str:
    """A hash of the package's own Python files: equal for a checkout and the wheel that was built from it."""
    digest = hashlib.sha256()
    for file in sorted(PACKAGE.rglob("*.py"), key=lambda file: file.relative_to(PACKAGE).as_posix()):
        digest.update(f"{file.relative_to(PACKAGE).as_posix()}\0{file.stat().st_size}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _commit(package: Path) -> str | None:
    """The checkout's commit, `-dirty` when the package differs from it; None where git does not track the package."""

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["git", "-C", str(package), *arguments], capture_output=True, text=True, timeout=20, check=False
        )

    try:
        # An environment inside somebody else's repository must not lend us that repository's commit.
        if git("ls-files", "--error-unmatch", "errors.py").returncode:
            return None
        commit = git("rev-parse", "HEAD")
        dirty = "-dirty" if git("status", "--porcelain", "--", ".").stdout.strip() else ""
    except (OSError, subprocess.TimeoutExpired):
        return None
    return commit.stdout.strip() + dirty if commit.returncode == 0 else None


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _template(target: Target) -> str | None:
    template = getattr(target.tokenizer, "chat_template", None)
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:16] if template else None


def drafter_conditions(drafter: Drafter) -> dict[str, Any]:
    """What of a drafter can change a number: spec, config, dtype, weights, the target it was made for."""
    packed = getattr(drafter, "packed", None)  # drafters of other packages need not know of it
    manifest = json.loads(json.dumps(drafter.manifest()))  # plain as it will be read back: no tuples
    return {
        "spec": manifest["spec"],
        "config": {"drafter": manifest["drafter"], "wrappers": manifest["wrappers"]},
        "dtype": manifest["dtype"],
        "packed": None if packed is None else _plain(packed),
        "weights_sha256": weights_sha256(drafter),
        "target": manifest["target"],
    }


def weights_sha256(drafter: Drafter) -> str | None:
    """A hash of what the drafter's checkpoint holds: names, types, shapes and bytes. None when it has no weights."""
    tensors = drafter.tensors()
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest() if tensors else None
