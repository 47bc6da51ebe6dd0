"""DSpark as SpecForge trains it, and as it is normalised for SGLang.

Source: block.md 1.4. A DFlash config whose `dflash_config` says projector_type "dspark" and how the heads are;
normalised, those flags stand at the top and the architecture is DeepSpec's, which is told apart by having no
`dflash_config`. Early checkpoints put the heads under `logit_head.`. A slot proposes for the next position; SpecForge's
own generating reads them as DFlash's, which is its mistake (block.md 8, row 5).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drafterzoo.drafters.base import Drafter
from drafterzoo.formats import block_config as said
from drafterzoo.formats.base import Files
from drafterzoo.formats.binding import EMBEDDING, HEAD
from drafterzoo.formats.block_layout import BlockLayout, check_expressible
from drafterzoo.target.target import Target

ARCHITECTURE = "DSparkDraftModel"
PROJECTOR = "dspark"
MODES = ("gqa", "mha")


class SpecForgeDSpark(BlockLayout):
    name = "specforge-dspark"
    about = "DSpark of SpecForge, and as SGLang reads it"
    drafter = "dspark"
    older = (("logit_head.", ""),)
    frozen = (HEAD, EMBEDDING)

    def detect(self, files: Files) -> bool:
        if "speculators_model_type" in files.config:
            return False
        named = said.architectures(files.config)
        return said.projector(files.config) == PROJECTOR or ARCHITECTURE in named

    def section(self, files: Files, target: Target) -> dict[str, Any]:
        values = said.merged(files)
        if values.get("projector_type") != PROJECTOR:
            said.refuse(files, "projector_type", values.get("projector_type", "missing"), f"{PROJECTOR!r}")
        if values.get("attention_mode", "gqa") not in MODES:
            said.refuse(files, "attention_mode", values["attention_mode"], "'gqa' or 'mha', which drafterzoo computes")
        said.check_depth(files, values, "num_target_layers", target)
        return {**said.body(files, values, target, layout="anchor_first"), **said.heads(files, values)}

    def check(self, drafter: Drafter, section: Mapping[str, Any]) -> None:
        check_expressible(
            drafter,
            self.name,
            (drafter.spec != "dspark", "no drafter but dspark"),
            (section.get("layout") != "anchor_first", "no drafter whose slots propose for their own position"),
            (section.get("draft_vocab_size") != section.get("vocab_size"), "no reduced vocabulary"),
            ("own" in (section.get("head"), section.get("embedding")), "no head or embedding but the target's"),
        )

    def anew(self, drafter: Drafter, section: Mapping[str, Any]) -> dict[str, Any]:
        heads = {
            "projector_type": PROJECTOR,
            "attention_mode": MODES[section["num_heads"] == section["num_kv_heads"]],
            **said.written_heads(section),
        }
        return said.written_dflash(drafter, self.name, section, ARCHITECTURE, heads)


LAYOUT = SpecForgeDSpark()
