"""TorchSpec's EAGLE-3 heads: those of SpecForge with the embedding kept, also under the names that vLLM loads.

Source: eagle.md 2.1 to 2.3; repository lightseekorg/TorchSpec, whose files say so. Its aux layers are named by their
outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drafterzoo.drafters.base import Drafter
from drafterzoo.formats.base import Contents, Files, Translated
from drafterzoo.formats.binding import EMBEDDING, HEAD, as_contents, lent_tensors
from drafterzoo.formats.eagle3_flat import (
    SERVED,
    TORCHSPEC,
    aux_config,
    called,
    checked_flat,
    flat_config,
    producer,
    read_with_ids,
)
from drafterzoo.formats.eagle3_heads import identity_maps
from drafterzoo.target.target import Target

NAME = "torchspec-eagle3"


class TorchSpecEagle3:
    """Heads that TorchSpec trains."""

    name: str = NAME
    about: str = "EAGLE-3 and 3.1 heads of TorchSpec"

    def detect(self, files: Files) -> bool:
        return producer(files) == "torchspec"

    def translate(self, files: Files, target: Target) -> Translated:
        return read_with_ids(files, target, "layer_output" if TORCHSPEC in files.config else None)

    def contents(self, drafter: Drafter) -> Contents:
        body = checked_flat(drafter, NAME)

        def written(section: Mapping[str, Any]) -> dict[str, Any]:
            return {**flat_config(section, body, NAME, SERVED), **aux_config(section, body, NAME)}

        def lent() -> dict[str, Any]:
            return {**lent_tensors(drafter, HEAD, EMBEDDING), **identity_maps(body)}

        return as_contents(drafter, NAME, written=written, called=called, lent=lent)


LAYOUT = TorchSpecEagle3()
