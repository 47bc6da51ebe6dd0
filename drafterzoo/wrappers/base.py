"""What a wrapper is: a drafter around a drafter, named in the spec string from left to right.

Knows the drafter contract; nothing of any particular drafter, wrapper, of growth or of verification. A wrapper may add
rows to `expand` and context rows to `observe`, own parameters and extend the training objective; it says which
capability of its base it needs, and every wrapper has a setting without effect, in which it equals the bare drafter bit
for bit.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar, Self

import attrs
from torch import Tensor, nn

from drafterzoo import checkpoint
from drafterzoo.drafters.base import Drafter, UnrollBatch, Unrolling, with_options
from drafterzoo.engine.contract import REJECTED_ROWS, Committed, DraftState, Frontier, Offers
from drafterzoo.engine.replay import parts_of
from drafterzoo.errors import UsageError
from drafterzoo.target.packed import PackedLinear, can_pack, pack_linears

if TYPE_CHECKING:
    from drafterzoo.engine.sampling import Selector
    from drafterzoo.target.target import Target


LACKS = {  # what is said of a base that has not a capability
    "recurrent": "is not recurrent",
    "context_rows": "takes no context rows of one round alone",
}


class Wrapper(Drafter):
    """A drafter that holds another and passes everything on; a subclass overrides what it changes.

    needs: capabilities the base must have ("recurrent", "context_rows"), and REJECTED_ROWS where features of rejected
    draft nodes are kept. Raises UsageError when the base lacks one, or is such a wrapper already.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    example: ClassVar[str] = "eagle3.1"  # a drafter that it goes around

    def __init__(self, base: Drafter, config: object) -> None:
        self.check_base(base.spec, base.capabilities, [getattr(part, "name", "") for part in parts_of(base)])
        super().__init__(config, base.target)
        self.base = base
        self.spec = f"{base.spec}+{self.name}"
        self.budget = base.budget
        self.capabilities = base.capabilities
        self.storage_dtype, self.training_record = base.storage_dtype, base.training_record

    @classmethod
    def check_base(cls, spec: str, capabilities: frozenset[str], names: Collection[str]) -> None:
        """Raise UsageError unless this can wrap a drafter of that spec, made of the parts of these names."""
        missing = cls.needs - capabilities - {REJECTED_ROWS}
        if missing:
            raise UsageError(
                f"{cls.name!r} cannot wrap {spec!r}, which {' and '.join(LACKS.get(m, m) for m in sorted(missing))}; "
                f"`drafterzoo show {cls.name}` says what it goes around, as in '{cls.example}+{cls.name}'."
            )
        if cls.name in names:
            raise UsageError(f"{cls.name!r} cannot wrap {spec!r}, which has it already; name a wrapper once.")

    # -- construction, and the native checkpoint ---------------------------------------------------------------

    @classmethod
    def default_config(cls, target: Target, **options: Any) -> Any:
        return with_options(cls.Config, cls.name, {}, options)

    @classmethod
    def create(cls, target: Target, **options: Any) -> Self:
        raise UsageError(f"{cls.name!r} is a wrapper and stands behind a drafter, as in '{cls.example}+{cls.name}'.")

    @classmethod
    def around(cls, base: Drafter, saved: checkpoint.Native) -> Self:
        """The wrapper that `saved` is the part of, around its base. Raises CheckpointError as a drafter does."""
        section = {key: value for key, value in saved.config["drafter"].items() if key != "name"}
        where = f"{saved.config_file}, {cls.name}"
        config = checkpoint.structure(cls.Config, section, where)
        checkpoint.check_whole(cls.Config, section, where)
        wrapper = cls(base, config)
        checkpoint.fill(wrapper, saved, but_for="base")
        return wrapper.to(base.target.device).eval()

    def manifest(self) -> dict[str, Any]:
        under = self.base.manifest()
        section = {"name": self.name, **attrs.asdict(self.config)}
        return {**super().manifest(), "drafter": under["drafter"], "wrappers": [*under["wrappers"], section]}

    def tensors(self) -> dict[str, Tensor]:
        own = {key: value for key, value in super().tensors().items() if not key.startswith("base.")}
        return {**self.base.tensors(), **{f"wrappers.{self.name}.{key}": value for key, value in own.items()}}

    def check_target(self, target: Target) -> None:
        self.base.check_target(target)

    def borrow(self) -> None:
        self.base.borrow()

    def packed_dtype(self) -> Any:
        return self.base.packed_dtype()

    def pack(self) -> None:
        """The base packs itself, its own way; then what the wrapper has beside it."""
        self.base.pack()
        self.packed = self.base.packed
        for name, child in list(self.named_children()):
            if name != "base" and self.packed is not None:
                if isinstance(child, nn.Linear) and can_pack(child):
                    setattr(self, name, PackedLinear(child, self.packed))
                else:
                    pack_linears(child, self.packed)

    # -- passed on ---------------------------------------------------------------------------------------------

    @property
    def taps(self) -> tuple[int, ...]:
        return self.base.taps

    @property
    def coupling(self) -> Any:
        return self.base.coupling

    @property
    def vocabulary(self) -> Tensor | None:
        return self.base.vocabulary

    def open(self, target: Target, n: int, capacity: int, depth: int, rows: int) -> DraftState:
        return self.base.open(target, n, capacity, depth, rows)

    def observe(self, state: Any, committed: Committed) -> None:
        self.base.observe(state, committed)

    def expand(self, state: Any, frontier: Frontier, select: Selector) -> Offers:
        return self.base.expand(state, frontier, select)

    def rows_per_round(self, depth: int, grow: int) -> int:
        return self.base.rows_per_round(depth, grow)

    def unroll(self, batch: UnrollBatch, passes: int, unrolling: Unrolling | None = None) -> list[Tensor]:
        return self.base.unroll(batch, passes, unrolling)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.base.logits(hidden)

    def head_matrix(self) -> Tensor:
        return self.base.head_matrix()

    @property
    def head_trained_from(self) -> int:
        return self.base.head_trained_from
