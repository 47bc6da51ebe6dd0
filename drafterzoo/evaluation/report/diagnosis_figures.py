"""Which figures stand beside diagnoses: acceptance by confidence of all, and each drafter's rejected tokens.

Knows sections of diagnoses; nothing of colours, files, HTML or how a number was found.
"""

from __future__ import annotations

from drafterzoo.evaluation.diagnosis.figures import acceptance, tables
from drafterzoo.evaluation.diagnosis.folder import conditions_line
from drafterzoo.evaluation.report.canvas import Picture
from drafterzoo.evaluation.report.diagnoses import DiagnosisSection


def diagnosis_pictures(section: DiagnosisSection) -> list[Picture]:
    said = conditions_line(section.conditions)
    pictures = [acceptance(section.summaries, f"{section.number}-acceptance-confidence", said)]
    for index, (drafter, summary) in enumerate(section.summaries.items(), start=1):
        pictures += tables(summary, f"{section.number}-{{}}-{index}", said, of=drafter)
    return pictures
