"""DSpark, and its DFlash, as DeepSpec publishes them: one class, whose heads may be off, in one flat config.

Source: block.md 3.1 to 3.3. Both are anchor-first: a slot proposes for the next position also where markov_rank is 0,
so such a model is no z-lab DFlash. It becomes `dspark` with markov='none': the class that DeepSpec trained, for which
anchor-first and a block of 7 go without saying; `dflash` with layout='anchor_first' is the same network, and is
written here, too. Head and embedding are frozen copies of the target's. Rows of ids are strictly ascending, and -1
means the embedding's output.
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

ARCHITECTURE, GEMMA = "Qwen3DSparkModel", "Gemma4DSparkModel"
ANCHORS = 512  # blocks of a training sequence; of no use afterwards, and asked for when loading


class DeepSpec(BlockLayout):
    """headed: whether its folders have a head that reads the token before, or one that doubts."""

    drafter = "dspark"
    carries = (HEAD, EMBEDDING)

    def __init__(self, name: str, about: str, *, headed: bool) -> None:
        self.name, self.about, self.headed = name, about, headed

    def detect(self, files: Files) -> bool:
        config = files.config
        named = said.architectures(config)
        if not {ARCHITECTURE, GEMMA} & set(named) or said.SHARED in config or "speculators_model_type" in config:
            return False
        return self.headed != (config.get("markov_rank") == 0 and config.get("enable_confidence_head") is False)

    def section(self, files: Files, target: Target) -> dict[str, Any]:
        config = files.config
        if GEMMA in said.architectures(config):
            raise CheckpointError(
                f"{files.config_file}: architectures says {GEMMA}, whose layers have four norms, values tied to keys "
                f"and capped logits, and no drafter here is built so; run it where it comes from."
            )
        if "num_anchors" not in config:  # the other four that DeepSpec asserts are needed here, too
            said.refuse(files, "num_anchors", "missing", "a number, without which DeepSpec loads nothing")
        said.check_depth(files, config, "num_target_layers", target)
        body = said.body(files, config, target, layout="anchor_first", first=-1)
        said.check_full(files, body)
        if body["taps"] != sorted(body["taps"]):
            said.refuse(files, "target_layer_ids", config["target_layer_ids"], "ascending ids")
        return {**body, **said.heads(files, config)}

    def check(self, drafter: Drafter, section: Mapping[str, Any]) -> None:
        headed = section.get("markov", "none") != "none" or section.get("confidence", False)
        check_expressible(
            drafter,
            self.name,
            (drafter.spec not in ("dspark", "dflash"), "no drafter but dspark and dflash"),
            (section.get("layout") != "anchor_first", "no drafter whose slots propose for their own position"),
            (headed and not self.headed, "no heads, which 'deepspec-dspark' does"),
            (self.headed and not headed, "no drafter without any head, which 'deepspec-dflash' does"),
            (section.get("draft_vocab_size") != section.get("vocab_size"), "no reduced vocabulary"),
            (bool(section.get("sliding_layers") or section.get("causal")), "no windows, and slots that see all others"),
            (sorted(drafter.taps) != list(drafter.taps), "no taps in another order than the layers'"),
        )

    def anew(self, drafter: Drafter, section: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "architectures": [ARCHITECTURE],
            **said.written_decoder(drafter, section),
            "block_size": section["block_size"],
            "mask_token_id": section["mask_token_id"],
            "target_layer_ids": said.layer_ids(drafter, self.name, section["taps"], first=-1, shift=1),
            "num_target_layers": drafter.target.num_layers,
            "num_anchors": ANCHORS,
            **said.written_heads(section),
        }


DSPARK = DeepSpec("deepspec-dspark", "DSpark of DeepSpec", headed=True)
DFLASH = DeepSpec("deepspec-dflash", "DFlash of DeepSpec, which is DSpark without its heads", headed=False)
