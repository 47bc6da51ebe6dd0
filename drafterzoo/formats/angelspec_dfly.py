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
from drafterzoo.formats.binding import EMBEDDING, HEAD
from drafterzoo.formats.block_layout import BlockLayout, bare, check_expressible
from drafterzoo.target.target import Target

ARCHITECTURE = "Qwen3DFlyModel"
THEIRS = {"fc.": "context_proj.", "hidden_norm.": "context_norm.", "norm.": "final_norm."}
STRAY = ("markov_head.", "confidence_head.")


class AngelSpecDFly(BlockLayout):
    name = "angelspec-dfly"
    about = "DFly of AngelSpec"
    drafter = "dfly"
    weights = "pytorch_model.bin"
    carries = (EMBEDDING,)
    frozen = (HEAD,)

    def detect(self, files: Files) -> bool:
        return ARCHITECTURE in said.architectures(files.config)

    def section(self, config: Mapping[str, Any], where: str, target: Target) -> dict[str, Any]:
        said.check_depth(config, "target_num_hidden_layers", where, target)
        found = said.taps(config, "target_layer_ids", where, target, first=0, shift=1)
        if config.get("num_target_layers") not in (None, len(found)):
            said.refuse(
                where, "num_target_layers", config["num_target_layers"], f"{len(found)}, as many as target_layer_ids"
            )
        body = said.decoder(config, where)
        if body["sliding_layers"]:
            said.refuse(where, "layer_types", config["layer_types"], "full attention alone, as DFly's layers have")
        size = "block_size" if "block_size" in config else "dflash_block_size"  # its trainer's word
        return {
            **body,
            "draft_vocab_size": body["vocab_size"],
            "target_hidden_size": said.width(config, "target_hidden_size", where, body["hidden_size"]),
            "taps": found,
            "mask_token_id": said.mask_token(config, where, body["vocab_size"]),
            "block_size": said.block_size(config, where, size if size in config else "block_size"),
            "layout": "same_position",
            "correction": said.switch(config, "enable_hidden_correction", where, True),
            "correction_size": said.width(config, "hidden_correction_intermediate_size", where, 0),
        }

    def called(self, key: str) -> str:
        own = next((one for one in THEIRS if key.startswith(one)), "")
        return THEIRS.get(own, "") + key.removeprefix(own)

    def native(self, key: str) -> str:
        key = bare(key)
        own = next((one for one, theirs in THEIRS.items() if key.startswith(theirs)), "")
        return own + key.removeprefix(THEIRS.get(own, ""))

    def ignores(self, key: str) -> bool:
        return key.startswith(STRAY)

    def check(self, drafter: Drafter, section: Mapping[str, Any]) -> None:
        check_expressible(
            drafter,
            self.name,
            (drafter.spec != "dfly", "no drafter but dfly"),
            (section.get("layout") != "same_position", "no drafter whose slots propose for the next position"),
            (section.get("draft_vocab_size") != section.get("vocab_size"), "no reduced vocabulary"),
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
