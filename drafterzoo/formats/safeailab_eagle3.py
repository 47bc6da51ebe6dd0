"""SafeAILab's EAGLE-3 heads: one flat Llama layer without norm flags, whose aux layers no file says.

Source: eagle.md 1.2, 2.1 and 2.2; repository SafeAILab/EAGLE. The embedding is the target's unless their widths differ,
and then it is in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drafterzoo.drafters.base import Drafter
from drafterzoo.errors import UsageError
from drafterzoo.formats.base import Contents, Files, Translated
from drafterzoo.formats.binding import HEAD, as_contents, lent_tensors, origin_in
from drafterzoo.formats.eagle3_flat import (
    called,
    check_embedding,
    checked_plain,
    flat_config,
    producer,
    read_plain,
)
from drafterzoo.formats.files import PICKLED
from drafterzoo.target.target import Target

NAME = "safeailab-eagle3"


class SafeAILabEagle3:
    """Heads of SafeAILab/EAGLE, versions from 3 on."""

    name: str = NAME
    about: str = "EAGLE-3 heads of SafeAILab/EAGLE"

    def detect(self, files: Files) -> bool:
        return producer(files) == "safeailab"

    def translate(self, files: Files, target: Target) -> Translated:
        return read_plain(files, target, NAME)

    def contents(self, drafter: Drafter) -> Contents:
        body = checked_plain(drafter, NAME)
        config = body.config
        if config.head_dim * config.num_heads != config.hidden_size:
            raise UsageError(
                f"{drafter.spec}: {NAME} makes heads as wide as hidden_size over num_heads, not head_dim="
                f"{config.head_dim}; write it as 'specforge-eagle3'."
            )
        if config.hidden_size == config.target_hidden_size and origin_in(drafter, NAME) is None:
            check_embedding(body, NAME)

        def written(section: Mapping[str, Any]) -> dict[str, Any]:
            return flat_config(section, body, NAME, "LlamaForCausalLM")

        return as_contents(
            drafter, NAME, written=written, called=called, lent=lambda: lent_tensors(drafter, HEAD), weights=PICKLED
        )


LAYOUT = SafeAILabEagle3()
