"""DSpark as vllm-project/speculators writes it: its DFlash, and the flags and tensors of two heads.

Source: block.md 1.4 and 3.3. The markov head is looked up by ids of the target and emits those of the draft vocabulary.
Where slots propose for their own position, speculators runs a recurrent head over slot 0, too, and drafterzoo begins it
at the first slot that proposes: these are different networks, and that combination is refused both ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drafterzoo.drafters.base import Drafter
from drafterzoo.formats import block_config as said
from drafterzoo.formats.base import Files
from drafterzoo.formats.block_layout import check_expressible
from drafterzoo.formats.speculators_dflash import SpeculatorsDFlash
from drafterzoo.target.target import Target

BEGINS = "where slots propose for their own position, its state begins in slot 0, and drafterzoo's in slot 1"


class SpeculatorsDSpark(SpeculatorsDFlash):
    name = "speculators-dspark"
    about = "DSpark of vllm-project/speculators"
    drafter = "dspark"
    architecture = "DSparkSpeculator"

    def section(self, files: Files, target: Target) -> dict[str, Any]:
        section = {**super().section(files, target), **said.heads(files, files.config)}
        if _runs_over_the_anchor(section):
            said.refuse(files, "markov_head_type", "rnn", f"another with sample_from_anchor false: {BEGINS}")
        return section

    def check(self, drafter: Drafter, section: Mapping[str, Any]) -> None:
        super().check(drafter, section)
        check_expressible(drafter, self.name, (_runs_over_the_anchor(section), f"no such recurrent head: {BEGINS}"))

    def anew(self, drafter: Drafter, section: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().anew(drafter, section), **said.written_heads(section)}


def _runs_over_the_anchor(section: Mapping[str, Any]) -> bool:
    return section["markov"] == "rnn" and section["layout"] == "same_position"


LAYOUT = SpeculatorsDSpark()
