"""Writes a report: the page, and each figure as PNG and SVG, each file whole or not at all.

Knows the order of things; nothing of how anything is computed, worded or drawn.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import attrs

from drafterzoo.disk import ANOTHER_FOLDER, check_file, check_folder, writing
from drafterzoo.evaluation.report import definitions
from drafterzoo.evaluation.report.canvas import Picture, check_matplotlib, for_files
from drafterzoo.evaluation.report.collect import Collection, Comparison, Row, Section, collect
from drafterzoo.evaluation.report.diagnoses import DiagnosisSection
from drafterzoo.evaluation.report.folders import Failure
from drafterzoo.evaluation.report.offline import OfflineSection
from drafterzoo.evaluation.report.page import Pictures, build, check_jinja, inlined, lossless
from drafterzoo.evaluation.report.verdicts import Verdict
from drafterzoo.evaluation.results import unfinished, write_whole
from drafterzoo.progress import progress

PAGE, FIGURES = "report.html", "figures"
OURS = re.compile(
    r"\d+-(leaderboard|budget|survival|conditional|time|categories|batch|atleast|acceptance|share|recovered)[\w-]*\.(png|svg)"
)


@attrs.frozen
class ReportResult:
    """What was written. page: the HTML file. figures: PNG and SVG files. summary: the page's numbers, a plain dict.

    failures: the cells of grids that failed, which have no row, or not a whole one.
    """

    page: Path
    figures: list[Path]
    summary: dict[str, Any]
    remarks: list[str]
    failures: list[Failure]

    @property
    def directory(self) -> Path:
        return self.page.parent


def report(
    directories: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    *,
    definition: str | None = None,
    show_progress: bool = False,
) -> ReportResult:
    """Write one self-contained HTML page, and PNG and SVG figures, about one or several results directories.

    directories: what `bench`, `grid`, `evaluate` or `diagnose` wrote, or folders that hold such directories at any
    depth. Rows whose conditions differ in more than drafter and budget get sections of their own, and what was counted
    on rollouts or diagnosed stands apart from what was decoded. out: the report's folder, by default `report` inside
    the first directory; an older report there is replaced. definition: "vllm", "sglang", "eagle", "hass", "specforge"
    or "deepspec" adds τ as that project defines it, from the raw counters.
    Raises NotInstalledError (a missing extra), UsageError (no results, an unknown definition), DataError (broken
    results, or of another format version) and DiskError (a folder that cannot be written), before anything is written.
    """
    given = [directories] if isinstance(directories, str | os.PathLike) else list(directories)
    wanted = definitions.find(definition) if definition is not None else None
    collection = collect([Path(directory) for directory in given], wanted)
    check_matplotlib()
    check_jinja()
    folder = Path(out) if out is not None else Path(given[0]) / "report"
    what = f"{folder}: the report"
    check_folder(folder / FIGURES, what)
    check_file(folder / PAGE, what, ANOTHER_FOLDER)
    pictures = Pictures.of(collection)
    inside, figures = _drawn(pictures.every, collection, show_progress)
    page, summary = build(collection, pictures, inside).encode(), _summary(collection)
    with writing(what):
        files = _replace(folder, page, figures)
    return ReportResult(folder / PAGE, files, summary, collection.remarks, collection.failures)


def _replace(folder: Path, page: bytes, figures: Mapping[str, bytes]) -> list[Path]:
    """Write the figures and the page over those of an older report, whose other figures go. Returns the figures."""
    (folder / FIGURES).mkdir(parents=True, exist_ok=True)
    for name, content in figures.items():
        write_whole(folder / FIGURES / name, content)
    for path in (folder / FIGURES).iterdir():
        if OURS.fullmatch(unfinished(path.name) or path.name) and path.name not in figures:
            path.unlink()
    write_whole(folder / PAGE, page)
    return [folder / FIGURES / name for name in figures]


def _drawn(
    pictures: Sequence[Picture], collection: Collection, show_progress: bool
) -> tuple[dict[str, dict[str, str]], dict[str, bytes]]:
    """Draw everything: data URIs for the page by picture, and the files by name."""
    inside, files = {}, {}
    with progress("drawing", len(pictures), "figures") if show_progress else nullcontext() as bar:
        for picture in pictures:
            inside[picture.name] = inlined(picture, collection.drafters)
            for kind, content in for_files(picture, collection.drafters).items():
                files[f"{picture.name}.{kind}"] = content
            if bar is not None:
                bar(1)
    return inside, files


def _summary(collection: Collection) -> dict[str, Any]:
    return {
        "definition": collection.definition.name if collection.definition else None,
        "differing": {field: list(values) for field, values in collection.differing.items()},
        "remarks": collection.remarks,
        "failures": [attrs.asdict(failure) for failure in collection.failures],
        "sections": [_section(section) for section in collection.sections],
        "offline": [_offline(section) for section in collection.offline],
        "diagnoses": [_diagnosed(section) for section in collection.diagnoses],
    }


def _section(section: Section) -> dict[str, Any]:
    return {
        "number": section.number,
        "conditions": section.conditions,
        "runs": [str(run.directory) for run in section.runs],
        "lossless": lossless(section)["text"],
        "rows": [_row(row) for row in section.rows],
        "comparisons": [_comparison(comparison) for comparison in section.comparisons],
    }


def _offline(section: OfflineSection) -> dict[str, Any]:
    return {
        "number": section.number,
        "conditions": section.conditions,
        "definition": section.summary["definition"],
        "runs": [str(run.directory) for run in section.runs],
        "rows": [{**row.figures, "mal_interval": row.mal.as_dict()} for row in section.rows],
        "comparisons": [
            {
                "budget": pair.row.figures["budget"],
                "drafter": pair.row.name,
                "against": pair.against.name,
                "mal_ratio": _verdict(pair.mal),
            }
            for pair in section.comparisons
        ],
    }


def _diagnosed(section: DiagnosisSection) -> dict[str, Any]:
    return {
        "number": section.number,
        "conditions": section.conditions,
        "runs": [str(run.directory) for run in section.runs],
        "rows": [{**summary, "name": name} for name, summary in section.summaries.items()],
    }


def _row(row: Row) -> dict[str, Any]:
    return {**row.figures, "name": row.name, "tau_interval": row.tau.as_dict(), "tau_by_definition": row.other}


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "budget": comparison.row.figures["budget"],
        "drafter": comparison.row.name,
        "against": comparison.against.name,
        "tau_ratio": _verdict(comparison.tau),
        "speed_ratio": None if comparison.speed is None else _verdict(comparison.speed),
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {**verdict.ratio.as_dict(), "p_holm": verdict.adjusted, "significant": verdict.clear}
