"""DSpark as vllm-project/speculators writes it: its DFlash, and the flags and tensors of two heads.

Source: block.md 1.4 and 3.3. The markov head is looked up by ids of the target and emits those of the draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drafterzoo.drafters.base import Drafter
from drafterzoo.formats import block_config as said
from drafterzoo.formats.base import Files
from drafterzoo.formats.speculators_dflash import SpeculatorsDFlash
from drafterzoo.target.target import Target


class SpeculatorsDSpark(SpeculatorsDFlash):
    name = "speculators-dspark"
    about = "DSpark of vllm-project/speculators"
    drafter = "dspark"
    architecture = "DSparkSpeculator"

    def section(self, files: Files, target: Target) -> dict[str, Any]:
        return {**super().section(files, target), **said.heads(files, files.config)}

    def anew(self, drafter: Drafter, section: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().anew(drafter, section), **said.written_heads(section)}


LAYOUT = SpeculatorsDSpark()
