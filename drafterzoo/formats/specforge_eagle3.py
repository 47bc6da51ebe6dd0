"""SpecForge's EAGLE-3 heads, as SGLang serves them: one flat Llama layer, norm flags, aux layers in `eagle_config`.

Source: eagle.md 1.3, 2.1 to 2.3; repositories sgl-project/SpecForge and sgl-project/sglang. The export drops the
embedding and always has the vocabulary's maps. Until SpecForge's PR 879 `norm_output` meant the norm
before the head alone, and nothing in a file tells: a head of that time is loaded with norm_output=False.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drafterzoo.drafters.base import Drafter
from drafterzoo.formats.base import Contents, Files, Translated
from drafterzoo.formats.binding import HEAD, as_contents, lent_tensors, origin_in
from drafterzoo.formats.eagle3_flat import (
    SERVED,
    aux_config,
    called,
    check_embedding,
    checked_flat,
    flat_config,
    producer,
    read_with_ids,
)
from drafterzoo.formats.eagle3_heads import identity_maps
from drafterzoo.target.target import Target

NAME = "specforge-eagle3"


class SpecForgeEagle3:
    """Heads that SpecForge trains and SGLang serves."""

    name: str = NAME
    about: str = "EAGLE-3 and 3.1 heads of SpecForge, for SGLang"

    def detect(self, files: Files) -> bool:
        return producer(files) == "specforge"

    def translate(self, files: Files, target: Target) -> Translated:
        return read_with_ids(files, target)

    def contents(self, drafter: Drafter) -> Contents:
        body = checked_flat(drafter, NAME)
        if origin_in(drafter, NAME) is None:
            check_embedding(body, NAME)

        def written(section: Mapping[str, Any]) -> dict[str, Any]:
            return {**flat_config(section, body, NAME, SERVED), **aux_config(section, body, NAME)}

        def lent() -> dict[str, Any]:
            return {**lent_tensors(drafter, HEAD), **identity_maps(body)}

        return as_contents(drafter, NAME, written=written, called=called, lent=lent)


LAYOUT = SpecForgeEagle3()
