"""The HTML page: one self-contained file from a template, with every figure, style and script inside.

Knows the template and what it is filled with; nothing of how numbers were computed or tables were worded. Nothing on
the page is loaded from anywhere: figures are inlined, styles and the script are small and lie beside the template.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from drafterzoo.errors import UsageError
from drafterzoo.evaluation.report import tabulate
from drafterzoo.evaluation.report.canvas import DARK, LIGHT, Picture, render
from drafterzoo.evaluation.report.collect import Collection, Section
from drafterzoo.evaluation.report.figures import batch_pictures, section_pictures
from drafterzoo.evaluation.tables import conditions_line


def check_jinja() -> None:
    """Raise UsageError, naming the extra, where jinja2 is not installed."""
    try:
        import jinja2  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "report: the page needs jinja2, which is not installed; type: pip install 'drafterzoo[plots]'."
        ) from error


def build(collection: Collection, pictures: Mapping[str, Mapping[str, str]]) -> str:
    """The page. pictures: for every picture's name, its `light` and `dark` data URI (see `inlined`)."""
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
        overview=tabulate.overview(collection),
        batches=batch_pictures(collection),
        sections=[_section(section, collection) for section in collection.sections],
        pictures=pictures,
        definition=collection.definition,
        title=_title(collection),
        version=sorted({str(run.conditions["code"].get("drafterzoo")) for run in collection.runs}),
    )


def inlined(picture: Picture, order: Sequence[str]) -> dict[str, str]:
    """The picture for the light and for the dark page, as data URIs."""
    return {
        theme.name: "data:image/svg+xml;base64," + base64.b64encode(render(picture, theme, order, "svg")).decode()
        for theme in (LIGHT, DARK)
    }


def _section(section: Section, collection: Collection) -> dict[str, Any]:
    """What the template needs of a section."""
    folded = (tabulate.best_budgets, tabulate.categories, tabulate.depths, tabulate.costs, tabulate.conditions)
    return {
        "number": section.number,
        "title": heading(section),
        "line": conditions_line(section.conditions),
        "lossless": lossless(section),
        "verdicts": tabulate.verdicts(section),
        "leaderboard": tabulate.leaderboard(section, collection),
        "pictures": section_pictures(section),
        "pairs": tabulate.head_to_head(section),
        "folded": [table for make in folded if (table := make(section)) is not None],
    }


def heading(section: Section) -> str:
    """The section's conditions in a few words; what else there is stands below it."""
    conditions = section.conditions
    words = [conditions["suite"]["name"], conditions["target"]["name"], f"T={conditions['sampling']['temperature']:g}"]
    if conditions["run"]["batch_size"] > 1:
        words.append(f"batch size {conditions['run']['batch_size']}")
    return " · ".join(words)


def _title(collection: Collection) -> str:
    suites = dict.fromkeys(section.conditions["suite"]["name"] for section in collection.sections)
    targets = dict.fromkeys(section.conditions["target"]["name"] for section in collection.sections)
    return f"Drafters on {', '.join(suites)}, target {', '.join(targets)}"


def _gap(gap: float | None) -> str:
    return "gap not recorded" if gap is None else f"logit gap {gap:.2g}"


def lossless(section: Section) -> dict[str, Any]:
    """Whether every text was plain decoding's: a `state` (equal, ties, differ, unchecked), a `text`, and `places`."""
    checks = [run.summary["lossless"] for run in section.runs]
    texts, different, ties = (sum(check[name] for check in checks) for name in ("texts", "different", "ties"))
    unknown = sum(d["gap"] is None for check in checks for d in check["differences"])
    places = [
        f"{d['cell']}, prompt {d['prompt']}, turn {d['turn'] + 1}, token {d['position']}: {d['token']} instead of "
        f"{d['plain_token']} ({_gap(d['gap'])})"
        for check in checks
        for d in check["differences"]
    ]
    if not all(check["checked"] for check in checks):
        said = "Texts are not compared: rejection sampling keeps the distribution, not the text."
        return {"state": "unchecked", "text": said, "places": []}
    if not texts:
        return {"state": "unchecked", "text": "There was nothing to compare plain decoding with.", "places": []}
    if not different:
        return {
            "state": "equal",
            "text": f"Lossless: all {texts} texts equal plain decoding's, token for token.",
            "places": [],
        }
    said = f"{different} of {texts} texts differ from plain decoding's"
    if ties == different:
        return {"state": "ties", "text": f"{said}, every one at a tie (logit gap under 0.001).", "places": places}
    if unknown == different:
        return {"state": "differ", "text": f"{said}; the run recorded no logit gaps for them.", "places": places}
    return {"state": "differ", "text": f"{said}, {ties} of them at a tie (logit gap under 0.001).", "places": places}
