"""DFlash as z-lab publishes it: a decoder's body without embedding or head, and `dflash_config` in a Qwen3 config.

Source: block.md 1.1 to 1.4. Layer ids name layers whose outputs are tapped, and a slot proposes for its own position.
SpecForge and SGLang write the same names and the same config, so this layout is theirs, too; and transformers' DFlash
assistants are its older names (`encoder.*`) with every key at the top. Exports that say `midlayer.` for their only
layer, or one `qkv_proj` for three projections, are read and written back as they were.

`auto_map` is not written: it names a file of code, which no folder of ours holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drafterzoo.drafters.base import Drafter
from drafterzoo.errors import CheckpointError
from drafterzoo.formats import block_config as said
from drafterzoo.formats.base import Files
from drafterzoo.formats.binding import EMBEDDING, HEAD
from drafterzoo.formats.block_layout import BlockLayout, check_expressible
from drafterzoo.target.target import Target

ARCHITECTURE, ASSISTANT = "DFlashDraftModel", "MuseGlimmerAssistantModel"
NAMED = {ARCHITECTURE, ASSISTANT, "DFlash2DraftModel"}  # the last is refused for what it asks for
SEES_AHEAD = {"is_causal": False}  # in all layers of transformers' assistants, whose configs name no vocabulary either
MASK_FILE = "mask_embedding.pt"  # a vector in the place of an id's embedding, as MiMo's have


class ZLabDFlash(BlockLayout):
    name = "zlab-dflash"
    about = "DFlash of z-lab, and of SpecForge and SGLang"
    drafter = "dflash"
    older = (("encoder.fc.", "fc."), ("encoder.output_norm_enc.", "hidden_norm."), ("midlayer.", "layers.0."))
    frozen = (HEAD, EMBEDDING)
    whole = True

    def detect(self, files: Files) -> bool:
        if "speculators_model_type" in files.config or said.projector(files.config) == "dspark":
            return False
        named = said.architectures(files.config)
        return not NAMED.isdisjoint(named) if named else "encoder.fc.weight" in files.tensors

    def section(self, files: Files, target: Target) -> dict[str, Any]:
        values = said.merged(files)
        if ASSISTANT in said.architectures(files.config):
            values = {"vocab_size": target.vocab_size, **SEES_AHEAD, **values}
        if values.get("projector_type") not in (None, "dflash"):
            said.refuse(files, "projector_type", values["projector_type"], "'dflash' or none, as this layout is")
        if (files.folder / MASK_FILE).exists():
            raise CheckpointError(
                f"{files.folder / MASK_FILE}: a mask of its own beside the weights, which drafterzoo does not read; "
                f"run the drafter where it comes from."
            )
        said.check_depth(files, values, "num_target_layers", target)
        return said.body(files, values, target, layout="same_position")

    def check(self, drafter: Drafter, section: Mapping[str, Any]) -> None:
        check_expressible(
            drafter,
            self.name,
            (drafter.spec != "dflash", "no drafter but dflash"),
            (section.get("layout") != "same_position", "no drafter whose slots propose for the next position"),
            ("own" in (section.get("head"), section.get("embedding")), "no head or embedding but the target's"),
        )

    def anew(self, drafter: Drafter, section: Mapping[str, Any]) -> dict[str, Any]:
        return said.written_dflash(drafter, self.name, section, ARCHITECTURE, {"block_size": section["block_size"]})


LAYOUT = ZLabDFlash()
