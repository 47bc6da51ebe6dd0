"""The HTML page: one self-contained file from a template, with every figure, style and script inside.

Knows the template and what it is filled with; nothing of how numbers were computed or tables were worded. Nothing on
the page is loaded from anywhere: figures are inlined, styles and the script are small and lie beside the template.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import attrs

from drafterzoo.errors import NotInstalledError
from drafterzoo.evaluation.conditions import differing
from drafterzoo.evaluation.diagnosis.folder import conditions_line as diagnosis_line
from drafterzoo.evaluation.offline.summary import conditions_line as offline_line
from drafterzoo.evaluation.report import diagnosis_tables, offline_tables, tabulate
from drafterzoo.evaluation.report.canvas import DARK, LIGHT, Picture, for_page
from drafterzoo.evaluation.report.collect import Collection, Section
from drafterzoo.evaluation.report.diagnoses import DiagnosisSection
from drafterzoo.evaluation.report.diagnosis_figures import diagnosis_pictures
from drafterzoo.evaluation.report.figures import batch_pictures, section_pictures
from drafterzoo.evaluation.report.offline import OfflineSection
from drafterzoo.evaluation.report.offline_figures import offline_pictures
from drafterzoo.evaluation.report.tabulate import Table
from drafterzoo.evaluation.summary import where
from drafterzoo.evaluation.tables import conditions_line
from drafterzoo.wording import quantity, verb

APART = 2  # differing conditions that a heading names


def check_jinja() -> None:
    """Raise NotInstalledError, naming the extra, where jinja2 is not installed."""
    try:
        import jinja2  # noqa: F401
    except ImportError as error:
        raise NotInstalledError(
            "report: the page needs jinja2, which is not installed; type: pip install 'drafterzoo[plots]'."
        ) from error


@attrs.frozen(eq=False)
class Pictures:
    """All figures of a report: over batch sizes, and by the number of their section."""

    batches: list[Picture]
    by_section: dict[int, list[Picture]]

    @classmethod
    def of(cls, collection: Collection) -> Pictures:
        decoded = {section.number: section_pictures(section) for section in collection.sections}
        counted = {section.number: offline_pictures(section) for section in collection.offline}
        asked = {section.number: diagnosis_pictures(section) for section in collection.diagnoses}
        return cls(batch_pictures(collection), {**decoded, **counted, **asked})

    @property
    def every(self) -> list[Picture]:
        return [*self.batches, *(picture for some in self.by_section.values() for picture in some)]


def build(collection: Collection, pictures: Pictures, inside: Mapping[str, Mapping[str, str]]) -> str:
    """The page. inside: for every picture's name, its `light` and `dark` data URI (see `inlined`)."""
    import jinja2

    folder = resources.files("drafterzoo.evaluation.report")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string((folder / "page.html").read_text(encoding="utf-8"))
    return template.render(
        style=(folder / "page.css").read_text(encoding="utf-8"),
        script=(folder / "page.js").read_text(encoding="utf-8"),
        themes=[("light", LIGHT), ("dark", DARK)],
        order=collection.drafters,
        remarks=collection.remarks,
        failures=tabulate.failures(collection),
        overview=tabulate.overview(collection),
        batches=pictures.batches,
        sections=[
            {
                **_section(section, collection),
                "title": titles(collection)[section.number],
                "pictures": pictures.by_section[section.number],
            }
            for section in collection.sections
        ],
        offline_overview=offline_tables.overview(collection.offline),
        offline=[
            {**_offline(section), "pictures": pictures.by_section[section.number]} for section in collection.offline
        ],
        diagnosis_overview=diagnosis_tables.overview(collection.diagnoses),
        diagnoses=[
            {**_diagnosed(section), "pictures": pictures.by_section[section.number]} for section in collection.diagnoses
        ],
        pictures=inside,
        title=_title(collection),
        version=sorted({str(run.conditions["code"].get("drafterzoo")) for run in collection.every_run}),
    )


def inlined(picture: Picture, order: Sequence[str]) -> dict[str, str]:
    """The picture for the light and for the dark page, as data URIs."""
    return {
        theme: "data:image/svg+xml;base64," + base64.b64encode(svg).decode()
        for theme, svg in for_page(picture, order).items()
    }


def titles(collection: Collection) -> dict[int, str]:
    """The heading of every decoded section; where two would be alike, with what tells them apart."""
    alike: dict[str, list[Section]] = {}
    batched = any(section.conditions["run"]["batch_size"] > 1 for section in collection.sections)
    for section in collection.sections:
        alike.setdefault(heading(section, batched), []).append(section)
    found = {}
    for title, sections in alike.items():
        fields = tabulate.telling(differing(*(section.conditions for section in sections)))
        readable = {field: values for field, values in fields.items() if not any(map(tabulate.is_hash, values))}
        for index, section in enumerate(sections):
            apart = [
                f"{field.replace('.', ' ').replace('_', ' ')} {tabulate.condition_cell(values[index]).text}"
                for field, values in list((readable or fields).items())[:APART]
            ]
            found[section.number] = " · ".join([title, *apart])
    return found


def _section(section: Section, collection: Collection) -> dict[str, Any]:
    """What the template needs of a section."""
    folded = (tabulate.best_budgets, tabulate.categories, tabulate.depths, tabulate.costs, tabulate.conditions)
    return {
        "number": section.number,
        "line": conditions_line(section.conditions, section.held),
        "lossless": lossless(section),
        "verdicts": tabulate.verdicts(section),
        "leaderboard": _saying(tabulate.leaderboard(section, collection), section.partial),
        "pairs": _saying(tabulate.head_to_head(section), section.partial),
        "folded": [_saying(table, section.partial) for make in folded if (table := make(section)) is not None],
    }


def _offline(section: OfflineSection) -> dict[str, Any]:
    """What the template needs of an evaluation."""
    made = (offline_tables.acceptance, offline_tables.at_least, offline_tables.categories, offline_tables.conditions)
    conditions = section.conditions
    sampling, target = conditions["sampling"], conditions["target"]["name"]
    words = [conditions["rollouts"]["name"], target, f"T={sampling['temperature']:g}", sampling["rule"]]
    return {
        "number": section.number,
        "title": " · ".join(words),
        "line": offline_line(conditions, section.held),
        "leaderboard": _saying(offline_tables.leaderboard(section), section.partial),
        "pairs": _saying(offline_tables.head_to_head(section), section.partial),
        "folded": [_saying(table, section.partial) for make in made if (table := make(section)) is not None],
    }


def _diagnosed(section: DiagnosisSection) -> dict[str, Any]:
    """What the template needs of diagnoses."""
    line = diagnosis_line(section.conditions)
    makers = (diagnosis_tables.by_confidence, diagnosis_tables.rejected, diagnosis_tables.conditions)
    return {
        "number": section.number,
        "title": line,
        "leaderboard": diagnosis_tables.leaderboard(section),
        "folded": [make(section) for make in makers],
    }


def _saying(table: Table | None, part: str) -> Table | None:
    """The table; where it shows a part of its run only, a note says which (empty: all of it)."""
    return attrs.evolve(table, notes=(*table.notes, f"{part}.")) if table is not None and part else table


def heading(section: Section, batched: bool) -> str:
    """The section's conditions in a few words; what else there is stands below it. batched: name the batch size."""
    conditions = section.conditions
    words = [conditions["suite"]["name"], conditions["target"]["name"], f"T={conditions['sampling']['temperature']:g}"]
    if batched:
        words.append(f"batch size {conditions['run']['batch_size']}")
    return " · ".join(words)


def _title(collection: Collection) -> str:
    asked = [section.conditions["suite"]["name"] for section in collection.sections]
    apart: list[OfflineSection | DiagnosisSection] = [*collection.offline, *collection.diagnoses]
    counted = [section.conditions["rollouts"]["name"] for section in apart]
    every = [run.conditions["target"]["name"] for run in collection.every_run]
    return f"Drafters on {', '.join(dict.fromkeys(asked + counted))}, target {', '.join(dict.fromkeys(every))}"


def _gap(gap: float | None) -> str:
    return "gap not recorded" if gap is None else f"logit gap {gap:.2g}"


def lossless(section: Section) -> dict[str, Any]:
    """Whether every text was plain decoding's: a `state` (equal, ties, differ, unchecked), a `text`, and `places`."""
    checks = [run.summary["lossless"] for run in section.runs]
    texts, different, ties = (sum(check[name] for check in checks) for name in ("texts", "different", "ties"))
    unknown = sum(d["gap"] is None for check in checks for d in check["differences"])
    places = [
        f"{d['cell']}, prompt {d['prompt']}, turn {d['turn'] + 1}, {where(d)} ({_gap(d['gap'])})"
        for check in checks
        for d in check["differences"]
    ]
    if not all(check["checked"] for check in checks):
        said = "Texts are not compared: rejection sampling keeps the distribution, not the text."
        return {"state": "unchecked", "text": said, "places": []}
    if not texts:
        return {"state": "unchecked", "text": "There was nothing to compare plain decoding with.", "places": []}
    if not different:
        all_texts = verb(texts, "the one text equals", f"all {texts} texts equal")
        unit = "character" if any(check["unit"] == "character" for check in checks) else "token"
        return {
            "state": "equal",
            "text": f"Lossless: {all_texts} plain decoding's, {unit} for {unit}.",
            "places": [],
        }
    said = f"{different} of {quantity(texts, 'text')} {verb(different, 'differs', 'differ')} from plain decoding's"
    if ties == different:
        return {"state": "ties", "text": f"{said}, every one at a tie (logit gap under 0.001).", "places": places}
    if unknown == different:
        return {"state": "differ", "text": f"{said}; the run recorded no logit gaps for them.", "places": places}
    return {"state": "differ", "text": f"{said}, {ties} of them at a tie (logit gap under 0.001).", "places": places}
