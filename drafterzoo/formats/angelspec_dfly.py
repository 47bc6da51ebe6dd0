"""DFly as Tencent's AngelSpec publishes it: `pytorch_model.bin`, and names of its own for the fusion and the norms.

Source: block.md 5.1 and 5.2. A slot proposes for its own position; whether that holds of every release is not settled
(block.md 5.1), which `load(..., self_test=True)` finds out. `num_target_layers` is how many layers are tapped, and the
target's depth is `target_num_hidden_layers`. Trainers leave their prefixes on names, and heads that DFly has not:
these are kept, and not used. The head is the target's; the embedding is in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drafterzoo.drafters.base import Drafter
from drafterzoo.formats import block_config as said
from drafterzoo.formats.base import Files
from drafterzoo.formats.binding import EMBEDDING, HEAD, may_have
from drafterzoo.formats.block_layout import BlockLayout, check_expressible
from drafterzoo.target.target import Target

ARCHITECTURE = "Qwen3DFlyModel"


class AngelSpecDFly(BlockLayout):
    name = "angelspec-dfly"
    about = "DFly of AngelSpec"
    drafter = "dfly"
    weights = "pytorch_model.bin"
    begins = (("context_proj.", "fc."), ("context_norm.", "hidden_norm."), ("final_norm.", "norm."))
    ignored = ("markov_head.", "confidence_head.")
    carries = (EMBEDDING,)
    frozen = (HEAD,)
    whole = True

    def detect(self, files: Files) -> bool:
        return ARCHITECTURE in said.architectures(files.config)

    def section(self, files: Files, target: Target) -> dict[str, Any]:
        config = {"block_size": files.config.get("dflash_block_size"), **files.config}  # its trainer's word
        said.check_depth(files, config, "target_num_hidden_layers", target)
        body = said.body(files, config, target, layout="same_position")
        said.check_full(files, body)
        count = len(body["taps"])
        if config.get("num_target_layers") not in (None, count):
            said.refuse(files, "num_target_layers", config["num_target_layers"], f"{count}, as many as there are ids")
        return {
            **body,
            "correction": may_have(files, "enable_hidden_correction", bool) is not False,
            "correction_size": said.width(files, config, "hidden_correction_intermediate_size", 0),
        }

    def check(self, drafter: Drafter, section: Mapping[str, Any]) -> None:
        check_expressible(
            drafter,
            self.name,
            (drafter.spec != "dfly", "no drafter but dfly"),
            (section.get("layout") != "same_position", "no drafter whose slots propose for the next position"),
            (section.get("head") == "own", "no head but the target's"),
            (bool(section.get("sliding_layers") or section.get("causal")), "no windows, and slots that see all others"),
        )

    def anew(self, drafter: Drafter, section: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "architectures": [ARCHITECTURE],
            **said.written_decoder(drafter, section),
            "block_size": section["block_size"],
            "mask_token_id": section["mask_token_id"],
            "target_layer_ids": said.layer_ids(drafter, self.name, section["taps"], first=0, shift=1),
            "num_target_layers": len(section["taps"]),
            "target_num_hidden_layers": drafter.target.num_layers,
            "target_hidden_size": section["target_hidden_size"],
            "enable_hidden_correction": section["correction"],
            "hidden_correction_intermediate_size": section["correction_size"] or None,
        }


LAYOUT = AngelSpecDFly()
