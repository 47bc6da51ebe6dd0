"""Which figures stand beside diagnoses: acceptance by confidence of all, and each drafter's rejected tokens.

Knows sections of diagnoses; nothing of colours, files, HTML or how a number was found.
"""

from __future__ import annotations

from drafterzoo.evaluation.diagnosis.figures import acceptance, tables
from drafterzoo.evaluation.diagnosis.folder import conditions_line
from drafterzoo.evaluation.names import short_names
from drafterzoo.evaluation.report.canvas import LONGEST_NAME, Picture
from drafterzoo.evaluation.report.diagnoses import DiagnosisSection


def diagnosis_pictures(section: DiagnosisSection) -> list[Picture]:
    said = conditions_line(section.conditions)
    short = short_names(section.drafters, LONGEST_NAME)
    pictures = [acceptance(section.summaries, f"{section.number}-acceptance-confidence", said)]
    for index, (drafter, summary) in enumerate(section.summaries.items(), start=1):
        name, of = f"{section.number}-{{}}-{index}", short[drafter]
        pictures += tables(summary, name, f"{drafter} on {said}", of)
    return pictures
