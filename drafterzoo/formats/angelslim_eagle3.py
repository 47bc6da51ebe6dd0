"""AngelSlim's EAGLE-3 heads: SafeAILab's tensors under an architecture of their own, without an embedding.

Source: eagle.md 2.1 and 2.2; repository Tencent/AngelSlim. Their configs take `tie_word_embeddings` over from a tied
target, although the head is in the file: the flag means nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drafterzoo.drafters.base import Drafter
from drafterzoo.formats.base import Contents, Files, Translated
from drafterzoo.formats.binding import HEAD, as_contents, lent_tensors, origin_in
from drafterzoo.formats.eagle3_flat import (
    ANGELSLIM,
    called,
    check_embedding,
    checked_plain,
    flat_config,
    producer,
    read_plain,
)
from drafterzoo.formats.files import PICKLED
from drafterzoo.target.target import Target

NAME = "angelslim-eagle3"


class AngelSlimEagle3:
    """Heads that AngelSlim trains."""

    name: str = NAME
    about: str = "EAGLE-3 heads of Tencent/AngelSlim"

    def detect(self, files: Files) -> bool:
        return producer(files) == "angelslim"

    def translate(self, files: Files, target: Target) -> Translated:
        return read_plain(files, target, NAME)

    def contents(self, drafter: Drafter) -> Contents:
        body = checked_plain(drafter, NAME)
        if origin_in(drafter, NAME) is None:
            check_embedding(body, NAME)
        model_type = drafter.target.model.config.get_text_config().model_type

        def written(section: Mapping[str, Any]) -> dict[str, Any]:
            return {**flat_config(section, body, NAME, ANGELSLIM), "target_model_type": model_type}

        return as_contents(
            drafter, NAME, written=written, called=called, lent=lambda: lent_tensors(drafter, HEAD), weights=PICKLED
        )


LAYOUT = AngelSlimEagle3()
