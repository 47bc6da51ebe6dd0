"""What drafters with weights share: taps, a head over a vocabulary that may be reduced, and what is the target's.

Source: eagle.md 0.5 and 1.2. Knows the config's sizes, the maps between both vocabularies, and what may be borrowed of
the target; nothing of how anything is drafted, of attention or of training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from drafterzoo.drafters.base import Drafter
from drafterzoo.drafters.blocks import Layer, Sizes
from drafterzoo.errors import CheckpointError, UsageError
from drafterzoo.target.packed import PackedLinear, can_pack

if TYPE_CHECKING:
    from drafterzoo.target.target import Target

MOST_TOKENS = 1 << 24  # of a vocabulary: beyond, a damaged config


class HeadedConfig(Sizes, Protocol):
    """What the config of such a drafter says, however its own fields are called.

    head, embedding: "borrowed" takes the target's (the head cut to the draft vocabulary) and saves nothing; "own"
    stores them in the checkpoint. coupling: weights of log q and of the noise in the coupled score
    (engine/sampling.py), fitted after training. packed_dtype: in what linear layers multiply when they are packed,
    beside a target that is; "bfloat16" and "float16" read half the memory and round, which changes drafts a little and
    never the text (target/packed.py). "auto" takes bfloat16 where the CPU multiplies it by itself, float16 elsewhere.
    """

    @property
    def vocab_size(self) -> int: ...
    @property
    def target_hidden_size(self) -> int: ...
    @property
    def taps(self) -> tuple[int, ...]: ...
    @property
    def draft_vocab_size(self) -> int: ...
    @property
    def head(self) -> Literal["own", "borrowed"]: ...
    @property
    def embedding(self) -> Literal["own", "borrowed"]: ...
    @property
    def coupling(self) -> tuple[float, float]: ...


def check_vocabulary(config: HeadedConfig) -> None:
    """Raise UsageError for a draft vocabulary, an eps or coupling weights that no drafter can have."""
    if not (0 <= config.rms_norm_eps <= 1 and all(0 < weight < math.inf for weight in config.coupling)):
        raise UsageError(
            f"rms_norm_eps={config.rms_norm_eps} and coupling={list(config.coupling)}, expected an eps from 0 to 1 "
            f"and two weights above zero."
        )
    if config.vocab_size > MOST_TOKENS:  # maps of the vocabulary are made before the target's own size is compared
        raise UsageError(f"vocab_size={config.vocab_size}, expected at most {MOST_TOKENS}.")
    if not 0 < config.draft_vocab_size <= config.vocab_size:
        raise UsageError(
            f"draft_vocab_size={config.draft_vocab_size} must lie between 1 and the target's {config.vocab_size}."
        )


class HeadedDrafter(Drafter):
    """A drafter of decoder layers that reads taps of the target and proposes through a head.

    A subclass sets `layers` (blocks.Layer), and calls `furnish` last.
    """

    config: HeadedConfig
    layers: Sequence[Layer]
    d2t: Tensor
    t2d: Tensor

    # -- construction ------------------------------------------------------------------------------------------

    def furnish(self) -> None:
        """Add head, embedding and maps of the vocabulary, as the config says: own, or borrowed."""
        config = self.config
        if config.head == "own":
            self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        if config.embedding == "own":
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        if self._reduced:
            # Offsets, not ids: target id = draft id + d2t[draft id] (eagle.md 0.5); the first D until a map is set.
            self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
            self.register_buffer("t2d", torch.arange(config.vocab_size) < config.draft_vocab_size)
        self._borrowed: dict[str, Any] = {}
        self.borrow()

    @classmethod
    def without_weights(cls, config: Any, target: Target) -> Self:
        """On the meta device: of a large checkpoint, none are made only to be thrown away."""
        with torch.device("meta"):
            return cls(config, target)

    @classmethod
    def from_checkpoint(cls, saved: Any, target: Target) -> Self:
        drafter = super().from_checkpoint(saved, target)
        drafter.check_maps(saved.weights_file)
        drafter.borrow()
        return drafter

    @property
    def like(self) -> Tensor:
        """A parameter that there always is: device and dtype of all of them."""
        return self.layers[0].post_attention_layernorm.weight

    @property
    def taps(self) -> tuple[int, ...]:
        return self.config.taps

    def check_target(self, target: Target) -> None:
        """Raise CheckpointError when vocabulary, width or taps cannot be this target's."""
        for what, have, need in (
            ("vocab_size", target.vocab_size, self.config.vocab_size),
            ("hidden_size", target.hidden_size, self.config.target_hidden_size),
        ):
            if have != need:
                raise CheckpointError(
                    f"{self.name}: made for a target with {what} {need}, but {target.name} has {have}; "
                    f"load it with the target it was trained for."
                )
        if max(self.taps) > target.num_layers + 1 or min(self.taps) < 0:
            raise CheckpointError(
                f"{self.name}: taps {list(self.taps)} do not lie within 0..{target.num_layers + 1} of {target.name}; "
                f"correct taps in config.json or load the target it was trained for."
            )

    # -- the draft vocabulary ----------------------------------------------------------------------------------

    def set_vocabulary(self, ids: Tensor) -> None:
        """Fix the draft vocabulary to these target ids [D], in any order; they are stored ascending.

        Raises UsageError when they are not D different ids of the target.
        """
        ids = ids.unique().to(self.like.device)
        if len(ids) != self.config.draft_vocab_size or ids[0] < 0 or ids[-1] >= self.config.vocab_size:
            raise UsageError(
                f"{self.name}: a draft vocabulary of {self.config.draft_vocab_size} different ids below "
                f"{self.config.vocab_size} is needed, got {len(ids)}."
            )
        if len(ids) < self.config.vocab_size:
            self.d2t = ids - torch.arange(len(ids), device=ids.device)
            self.t2d = torch.zeros_like(self.t2d).index_fill_(0, ids, True)
        self.borrow()

    def check_maps(self, where: str) -> None:
        """Raise CheckpointError unless d2t and t2d describe one and the same ascending set of ids (eagle.md 1.2)."""
        if self.vocabulary is None:
            return
        size, ids = self.config.draft_vocab_size, self.vocabulary
        wrong = None
        if not self.d2t.any() and not self.t2d[:size].all():
            wrong = "d2t is all zeros although t2d names other ids"
        elif int(self.t2d.sum()) != size:
            wrong = f"t2d marks {int(self.t2d.sum())} ids, expected {size}"
        elif torch.equal(self.d2t, self.t2d.nonzero()[:, 0]):
            wrong = "d2t holds absolute ids, those that t2d marks"
        elif int(ids.min()) < 0 or int(ids.max()) >= self.config.vocab_size:
            wrong = f"id + d2t[id] leaves the target's {self.config.vocab_size} ids (are these absolute ids?)"
        elif not (ids.diff() > 0).all():
            wrong = "id + d2t[id] is not strictly ascending (are these absolute ids?)"
        elif not self.t2d[ids].all():
            wrong = "d2t and t2d name different ids"
        if wrong:
            raise CheckpointError(f"{where}: {wrong}; d2t must hold offsets, target id = draft id + d2t[draft id].")

    def borrow(self) -> None:
        """Take the target's embedding and head rows, as far as the config says so: neither trained nor saved.

        A drafter on the meta device takes none yet: its vocabulary is still to be read.
        """
        dtype = self.like.dtype
        if self.like.is_meta and self.target.device.type != "meta":
            return
        if self.config.embedding == "borrowed":
            self._borrowed["embedding"] = self.target.embedding_weight().detach()
        if self.config.head == "borrowed":
            head = nn.Linear(self.config.hidden_size, self.config.draft_vocab_size, bias=False, device="meta")
            head.weight = nn.Parameter(self.target.head_weight(self.vocabulary).detach().to(dtype), requires_grad=False)
            self._borrowed["linear"] = head
        self._borrowed["ids"] = (
            None if not self._reduced else torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t
        )

    @property
    def _reduced(self) -> bool:
        return self.config.draft_vocab_size < self.config.vocab_size

    @property
    def vocabulary(self) -> Tensor | None:
        if not self._reduced:
            return None
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    @property
    def ids(self) -> Tensor | None:
        """Target ids [D] of the head's columns; None where they are the target's own."""
        ids: Tensor | None = self._borrowed["ids"]
        return ids

    # -- embedding and head ------------------------------------------------------------------------------------

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings [..., h] of target ids."""
        if self.config.embedding == "own":
            return self.embed_tokens(tokens)
        return functional.embedding(tokens, self._borrowed["embedding"]).to(self.like.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        if self.config.head == "own":
            return self.lm_head(hidden)
        return self._borrowed["linear"](hidden)

    def head_matrix(self) -> Tensor:
        head = self.lm_head if self.config.head == "own" else self._borrowed["linear"]
        return head.to_dense() if isinstance(head, PackedLinear) else head.weight

    @property
    def head_trained_from(self) -> int:
        return 0 if self.config.head == "own" else self.config.hidden_size

    def pack(self) -> None:
        super().pack()
        if isinstance(head := self._borrowed.get("linear"), nn.Linear) and can_pack(head):
            assert self.packed is not None, "packed above"
            self._borrowed["linear"] = PackedLinear(head, self.packed)
