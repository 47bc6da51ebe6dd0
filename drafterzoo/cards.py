"""The card of a checkpoint: README.md for its Hub repository, from its config and, where given, results.

Knows what a config says, the Hub's metadata of cards (field.md 5b) and the template beside this file; nothing of the
Hub's protocol or of how anything was measured (measured.py). A card holds what the files say, and says what nobody
measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import jinja2
import yaml
from huggingface_hub import EvalResult, EvalResultEntry, ModelCardData, eval_result_entries_to_yaml

from drafterzoo import checkpoint
from drafterzoo.budget import Budget
from drafterzoo.registry import DRAFTERS, SUITES, WRAPPERS
from drafterzoo.staging import CARD
from drafterzoo.target import embedded
from drafterzoo.wording import quantity

if TYPE_CHECKING:
    from drafterzoo.drafters.base import Drafter
    from drafterzoo.measured import Figure, Measured

TEMPLATE = Path(__file__).with_name("card.md.jinja")
FIGURES = ".eval_results"
METRICS = {"acceptance_length": "tokens per target call", "speedup": "times as fast as plain decoding"}
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


@attrs.frozen
class Usage:
    """How another server loads what lies in the repository: for layouts that it reads."""

    server: str
    command: str
    remark: str = ""


def write_card(
    place: Path,
    drafter: Drafter,
    repo_id: str,
    *,
    results: Path | None = None,
    licence: str | None = None,
    servers: Sequence[Usage] = (),
) -> None:
    """Write README.md, and .eval_results/ where there are figures on data sets of the Hub, into a checkpoint's folder.

    drafter: the one in that folder. results: a folder of `bench`, `grid` or `evaluate` that measured it. servers: those
    that load a layout beside the native files.
    """
    config = checkpoint.read_config(place)
    title = repo_id.rpartition("/")[2]
    found = None
    if results is not None:
        from drafterzoo.measured import measured

        found = measured(results, drafter, title, target_name(config))
    (place / CARD).write_text(card(config, drafter, repo_id, found, licence, servers), encoding="utf-8")
    for suite, entries in indexed(found.figures if found else ()).items():
        (place / FIGURES).mkdir(exist_ok=True)
        text = yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False, allow_unicode=True)
        (place / FIGURES / f"{suite}.yaml").write_text(text, encoding="utf-8")


def card(
    config: Mapping[str, Any],
    drafter: Drafter,
    repo_id: str,
    found: Measured | None = None,
    licence: str | None = None,
    servers: Sequence[Usage] = (),
) -> str:
    """The card's text."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["cell"] = _cell
    title, base = repo_id.rpartition("/")[2], base_model(config)
    link = f"[{base}](https://huggingface.co/{base})" if base else target_name(config)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        metadata=metadata(config, title, found.figures if found else (), licence).to_yaml().rstrip(),
        title=title,
        repo_id=repo_id,
        target=link,
        about=" with ".join(_told(part) for part in _parts(config)),
        servers=servers,
        facts=list(_facts(config, drafter)),
        training=list(_training(config.get("training", {}))),
        tables=found.tables if found else [],
        remarks=found.remarks if found else [],
    )


def metadata(
    config: Mapping[str, Any], title: str, figures: Sequence[Figure] = (), licence: str | None = None
) -> ModelCardData:
    """What the Hub reads of a card. `base_model_relation` is left out: the Hub knows none that a drafter has."""
    return ModelCardData(
        base_model=base_model(config),
        library_name="drafterzoo",
        license=licence,
        metrics=["acceptance_length"],
        model_name=title,
        pipeline_tag="text-generation",
        tags=["speculative-decoding", "drafter", *(part.name for part in _parts(config))],
        eval_results=[_result(figure) for figure in figures] or None,
    )


def indexed(figures: Sequence[Figure]) -> dict[str, list[EvalResultEntry]]:
    """By suite, the figures on data sets that are on the Hub; as a task of our own, since they are nobody's scores."""
    made: dict[str, list[EvalResultEntry]] = {}
    for figure in figures:
        data_set = _data_set(figure.suite)
        if data_set is not None:
            notes = f"{METRICS[figure.metric]}, {figure.setting}; {figure.conditions}"
            entry = EvalResultEntry(data_set, figure.metric, figure.value, date=figure.date, notes=notes)
            made.setdefault(figure.suite, []).append(entry)
    return made


def base_model(config: Mapping[str, Any]) -> str | None:
    """The target's repository on the Hub; None where it is only known as somebody's folder."""
    name = str(config["target"]["name"])
    if name == embedded.NAME:
        return embedded.FULL_NAME
    return name if _REPOSITORY.fullmatch(name) and not Path(name).exists() else None


def target_name(config: Mapping[str, Any]) -> str:
    """The target as a card calls it: of a folder, its own name alone."""
    return base_model(config) or Path(str(config["target"]["name"])).name


# -- parts of the text ---------------------------------------------------------------------------------------------


def _parts(config: Mapping[str, Any]) -> list[type[Drafter]]:
    """The classes that the checkpoint is composed of."""
    return [DRAFTERS.get(config["drafter"]["name"]), *(WRAPPERS.get(part["name"]) for part in config["wrappers"])]


def _told(part: type[Drafter]) -> str:
    said = (part.__doc__ or part.name).strip().partition("\n")[0].rstrip(".")
    return f"{said} ({part.source})" if part.source else said


def _facts(config: Mapping[str, Any], drafter: Drafter) -> Iterator[tuple[str, str]]:
    target, section = config["target"], config["drafter"]
    yield "spec", f"`{config['spec']}`"
    for part in _parts(config):
        yield f"`{part.name}`", _told(part)
    revision = f", revision {target['revision']}" if target["revision"] else ""
    yield "target", f"{target_name(config)}{revision}: {target['architecture']}"
    yield (
        "its sizes",
        (f"{target['num_layers']} layers of width {target['hidden_size']}, {quantity(target['vocab_size'], 'token')}"),
    )
    if drafter.taps:
        yield "reads", f"boundaries {', '.join(map(str, drafter.taps))} of the target's residual stream"
    if section.get("draft_vocab_size", target["vocab_size"]) != target["vocab_size"]:
        yield "proposes", f"{quantity(section['draft_vocab_size'], 'token')} of the target's"
    borrowed = [name for name in ("embedding", "head") if section.get(name) == "borrowed"]
    if borrowed:
        yield "not in the file", f"{' and '.join(borrowed)}, borrowed from the target"
    values = sum(tensor.numel() for tensor in drafter.tensors().values())
    yield "file", f"{values / 1e6:.2f} M values, {config['dtype']}"
    if "budget" in config:
        yield "usual budget", Budget(**config["budget"]).brief


_TRAINING = ("recipe", "steps", "epochs", "rows_visited", "documents", "seed", "training_seconds", "rollouts_sha256")


def _training(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What training recorded of itself, in words; any of it may be missing."""
    for key in _TRAINING:
        if key in record:
            yield key.replace("_", " "), str(record[key])
    objective = record.get("objective")
    if isinstance(objective, dict):
        yield "objective", ", ".join(f"{key} {value}" for key, value in objective.items() if value not in (None, []))
    for budget, tau in (record.get("held_out_tau") or {}).items():
        yield f"τ at {budget}, held out", f"{tau:.2f}" if isinstance(tau, float) else str(tau)
    before = record.get("began_with")
    if isinstance(before, dict) and before:
        yield "began with", f"a drafter of recipe {before.get('recipe', 'unknown')}, {before.get('steps', '?')} steps"


def _result(figure: Figure) -> EvalResult:
    return EvalResult(
        task_type="text-generation",
        dataset_type=_data_set(figure.suite) or figure.suite,
        dataset_name=figure.suite,
        metric_type=figure.metric,
        metric_value=figure.value,
        metric_name=f"{METRICS[figure.metric]}, {figure.setting}; {figure.conditions}",
    )


def _data_set(suite: str) -> str | None:
    """Where a suite's data lies on the Hub; None for one that is not there."""
    declared = SUITES.get(suite) if suite in SUITES else None
    return declared.hub.id if declared is not None and declared.hub is not None else None


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
