"""DFlash as vllm-project/speculators writes it: the draft layers' config in a table of its own, a vocabulary mapped.

Source: block.md 1.4. Its layer ids are boundaries, one more than z-lab's. Whether a slot proposes for the next position
is `sample_from_anchor`; older files leave it out, and then it follows from how many tokens a block of that size drafts.
Embedding and head are in the file, or newer releases leave out what is the target's; `verifier_*` is training's, kept
and not used.

Its trainer lets every slot of a window see as many positions before the anchor, servers as many before the slot
(block.md 1.2); drafterzoo does as servers do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drafterzoo.drafters.base import Drafter
from drafterzoo.drafters.block_body import Layout
from drafterzoo.formats import block_config as said
from drafterzoo.formats.base import Convention, Files
from drafterzoo.formats.binding import EMBEDDING, HEAD, may_have, needs
from drafterzoo.formats.block_layout import BlockLayout, check_expressible
from drafterzoo.formats.speculators_config import algorithm_of, speculators_config, tokens_of
from drafterzoo.target.target import Target

LAYERS = "transformer_layer_config"


class SpeculatorsDFlash(BlockLayout):
    name = "speculators-dflash"
    about = "DFlash of vllm-project/speculators"
    drafter = "dflash"
    architecture = "DFlashSpeculator"
    ignored = ("verifier_",)
    carries = (HEAD, EMBEDDING)
    taps_as: Convention = "boundary"

    def detect(self, files: Files) -> bool:
        return algorithm_of(files.config) == self.drafter

    def section(self, files: Files, target: Target) -> dict[str, Any]:
        config, layers = files.config, needs(files, LAYERS, dict)
        # what a window sees is said outside, and never by the keys of z-lab and vLLM
        body = said.decoder(
            files, {**layers, "is_causal": None, "causal": None}, where=f"{files.config_file}: {LAYERS}"
        )
        seeing = may_have(files, "sliding_window_non_causal", bool) and body["sliding_layers"]
        vocabulary = needs(files, "draft_vocab_size", int)
        if not 0 < vocabulary <= body["vocab_size"]:
            said.refuse(files, "draft_vocab_size", vocabulary, f"a number up to the target's {body['vocab_size']}")
        return {
            **body,
            "causal": False if seeing else None,
            "draft_vocab_size": vocabulary,
            "target_hidden_size": said.width(files, config, "target_hidden_size", body["hidden_size"]),
            "taps": said.taps(files, config, "aux_hidden_state_layer_ids", target, first=0, shift=0),
            "mask_token_id": said.mask_token(files, config, body["vocab_size"]),
            "block_size": said.block_size(files, config),
            "layout": _layout(files),
        }

    def check(self, drafter: Drafter, section: Mapping[str, Any]) -> None:
        full = len(section.get("sliding_layers", ())) < section.get("num_layers", 0)
        check_expressible(
            drafter,
            self.name,
            (drafter.spec != self.drafter, f"no drafter but {self.drafter}"),
            (bool(section.get("causal")) and full, "no slots that are blind to later ones, but in windows"),
        )

    def anew(self, drafter: Drafter, section: Mapping[str, Any]) -> dict[str, Any]:
        from_anchor = section["layout"] == "anchor_first"
        return {
            "architectures": [self.architecture],
            **speculators_config(self.drafter, section["block_size"] - (not from_anchor), drafter.target),
            LAYERS: said.written_decoder(drafter, section),
            "draft_vocab_size": section["draft_vocab_size"],
            "target_hidden_size": section["target_hidden_size"],
            "block_size": section["block_size"],
            "aux_hidden_state_layer_ids": said.layer_ids(drafter, self.name, section["taps"], first=0, shift=0),
            "mask_token_id": section["mask_token_id"],
            "sliding_window_non_causal": section["causal"] is False,
            "sample_from_anchor": from_anchor,
        }


def _layout(files: Files) -> Layout:
    """What slots propose for: as the flag says, or else as many tokens as a block of this size drafts."""
    from_anchor = may_have(files, "sample_from_anchor", bool)
    if from_anchor is not None:
        return "anchor_first" if from_anchor else "same_position"
    tokens, size = tokens_of(files.config), said.block_size(files, files.config)
    if tokens not in (size, size - 1):
        said.refuse(
            files,
            "sample_from_anchor",
            "missing",
            f"true or false, which {tokens} speculative_tokens in a block of {size} do not tell; add it, true where "
            f"slot 0 drafts",
        )
    return "anchor_first" if tokens == size else "same_position"


LAYOUT = SpeculatorsDFlash()
