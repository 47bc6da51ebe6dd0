"""What every drafter is: a frozen config, a module bound to a target, the engine's contract, and a native checkpoint.

Knows the contract, the target's sizes and the native checkpoint; nothing of any particular drafter, of growth, of
verification, of training objectives or of foreign checkpoint layouts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import attrs
import torch
from torch import Tensor, nn

from drafterzoo import checkpoint
from drafterzoo.budget import Budget
from drafterzoo.engine.contract import Committed, Counters, DraftState, Frontier, Offers
from drafterzoo.errors import CheckpointError, DrafterzooError, UsageError, suggest
from drafterzoo.target.packed import PackedLinear, fits_float16, pack_linears, packing_works, quickest_dtype

if TYPE_CHECKING:
    from drafterzoo.engine.sampling import Selector
    from drafterzoo.formats.base import Origin
    from drafterzoo.hub import Pushed
    from drafterzoo.target.target import Target

# Options that no weight depends on: how a drafter is run, not what it computes.
WEIGHTLESS = ("coupling", "packed_dtype", "confidence_temperatures")
_DRAFTER = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*: ")  # what a complaint begins with


@attrs.frozen(eq=False)
class UnrollBatch:
    """Teacher-forced text for the parallel training forward. One row of the batch may hold several documents.

    tokens    [n, T] int64   x_t
    features  [n, T, T*H]    the drafter's taps of row t
    positions [n, T] int64   t, counted from the start of its document
    documents [n, T] int64   which document a row belongs to; -1 for padding
    queries   [n, Q] int64   the rows whose outputs are wanted, or None for all: the others are context alone, which
                             saves most of their cost
    """

    tokens: Tensor
    features: Tensor
    positions: Tensor
    documents: Tensor
    queries: Tensor | None = attrs.field(default=None, kw_only=True)


@attrs.frozen(eq=False)
class Unrolling:
    """How a training forward departs from plain training-time test.

    detached: what recurs carries no gradient into the pass before (HASS, eagle.md 3.3). noise [n, T, T*H] is added to
    the features of pass 0. legacy: from the second pass on, rows of a row's own document that it may not see get the
    score 0 and not -inf, as in the released HASS code; only to reproduce its numbers.
    """

    detached: bool = False
    noise: Tensor | None = None
    legacy: bool = False


class Drafter(nn.Module):
    """A drafter bound to a target. Subclasses set `name`, `Config`, `capabilities`, and fill in the contract.

    needs: REJECTED_ROWS (engine/contract.py) where it keeps rows of rejected draft nodes; what a wrapper asks of its
    base, too.
    For `drafterzoo show` they say more of themselves: the first line of the docstring; source, the paper or project the
    method comes from; flags, defaults that differ from the config's; meanings, one line for each field of the config.

    Public attributes: target, spec (as typed), config (attrs-frozen), budget (what it is best used with), training
    (provenance, a plain dict).
    """

    name: ClassVar[str]
    Config: ClassVar[type]
    capabilities: frozenset[str] = frozenset()  # of its class; a wrapper has those of what it holds
    needs: ClassVar[frozenset[str]] = frozenset()
    has_weights: ClassVar[bool] = True
    source: ClassVar[str] = ""
    flags: ClassVar[dict[str, Any]] = {}
    meanings: ClassVar[Mapping[str, str]] = {}

    def __init__(self, config: Any, target: Target) -> None:
        super().__init__()
        self.config = config
        self.spec = self.name
        self.budget = Budget.tree(8)
        self.training_record: dict[str, Any] = {}
        self.storage_dtype = torch.float32
        self.packed: torch.dtype | None = None  # in what packed layers multiply; None: none are packed
        self.origin: Origin | None = None  # the foreign checkpoint that it was read from
        object.__setattr__(self, "target", target)  # not a submodule: the target is never trained, saved or counted

    target: Target

    # -- what a subclass says of itself -------------------------------------------------------------------------

    @classmethod
    def default_config(cls, target: Target, **options: Any) -> Any:
        """The config for this target, with `options` overriding fields. Raises UsageError for an unknown field."""
        raise NotImplementedError(f"{cls.__name__} must define default_config")

    @classmethod
    def debug_config(cls, target: Target) -> Any:
        """The smallest config worth testing on a tiny target; the shared tests build every drafter with it."""
        return cls.default_config(target)

    @classmethod
    def create(cls, target: Target, **options: Any) -> Self:
        """A drafter with random weights for this target, in float32 on the target's device."""
        return cls(cls.default_config(target, **options), target).to(target.device)

    @property
    def taps(self) -> tuple[int, ...]:
        """Boundaries of the target this drafter reads (eagle.md 0.3)."""
        return ()

    @property
    def coupling(self) -> Any:
        """The weights of the coupled score (engine/sampling.py), where the config has any."""
        return getattr(self.config, "coupling", 1.0)

    def check_target(self, target: Target) -> None:
        """Raise CheckpointError when the config cannot belong to this target."""

    def borrow(self) -> None:
        """Take from the target what the config says is the target's; called again when dtype or vocabulary changes."""

    # -- the contract of the engine ----------------------------------------------------------------------------

    def open(self, target: Target, n: int, capacity: int, depth: int, rows: int) -> DraftState:
        raise NotImplementedError(f"{self.name} must define open")

    def observe(self, state: Any, committed: Committed) -> None:
        raise NotImplementedError(f"{self.name} must define observe")

    def expand(self, state: Any, frontier: Frontier, select: Selector) -> Offers:
        raise NotImplementedError(f"{self.name} must define expand")

    def rows_per_round(self, depth: int, grow: int) -> int:
        """Rows beyond the root's that one round may forward."""
        return max(depth - 1, 0) * grow

    # -- the contract of training ------------------------------------------------------------------------------

    @property
    def vocabulary(self) -> Tensor | None:
        """Target ids [D] of the draft vocabulary, ascending, or None when it is the target's own."""
        return None

    def unroll(self, batch: UnrollBatch, passes: int, unrolling: Unrolling | None = None) -> list[Tensor]:
        """The parallel training forward: per pass j, what `logits` turns into the distribution of x_{t+2+j} at row t.

        Must equal step-by-step drafting along the same text. Returns `passes` tensors [n, T, h], or [n, Q, h] of the
        batch's queries.
        """
        raise NotImplementedError(f"{self.name} has no training forward")

    def logits(self, hidden: Tensor) -> Tensor:
        """Draft logits [..., D] of the rows that `unroll` returned."""
        raise NotImplementedError(f"{self.name} has no output head")

    def head_matrix(self) -> Tensor:
        """The head's weight [D, h], for losses that never hold all logits at once."""
        raise NotImplementedError(f"{self.name} has no output head")

    @property
    def head_trained_from(self) -> int:
        """The first column of `head_matrix` that is trained; those before it are the target's."""
        return 0

    # -- inference ---------------------------------------------------------------------------------------------

    def pack(self) -> None:
        """Lay linear layers out for fast inference on CPU (target/packed.py); training is over after that."""
        self.packed = self.packed_dtype()
        pack_linears(self, self.packed)

    def packed_dtype(self) -> torch.dtype:
        """In what packed layers multiply: what the config's `packed_dtype` says, "auto" for the machine's quickest.

        Raises UsageError where the machine cannot.
        """
        asked = getattr(self.config, "packed_dtype", "float32")
        if asked == "auto":
            quickest = quickest_dtype()
            return torch.float32 if quickest == torch.float16 and not fits_float16(self) else quickest
        dtype: torch.dtype = getattr(torch, asked)
        if not packing_works(dtype):
            raise UsageError(
                f"{self.name}: this machine's torch cannot multiply packed layers in {asked}; "
                f"load it with packed_dtype='float32'."
            )
        return dtype

    # -- the native checkpoint ---------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds: floats in the storage dtype, maps in their own; borrowed tensors are not in it."""
        state = self.state_dict()
        for name, module in self.named_modules():
            if isinstance(module, PackedLinear):
                state[f"{name}.weight"] = module.to_dense()
        return {
            key: (value.to(self.storage_dtype) if value.is_floating_point() else value).detach().cpu().contiguous()
            for key, value in state.items()
        }

    def manifest(self) -> dict[str, Any]:
        """The contents of config.json, but for the version."""
        return {
            "spec": self.spec,
            "dtype": str(self.storage_dtype).removeprefix("torch."),
            "target": self.target.fingerprint(),
            "drafter": {"name": self.name, **attrs.asdict(self.config)},
            "wrappers": [],
            "budget": attrs.asdict(self.budget),
            "training": self.training_record,
        }

    def save_pretrained(self, directory: str | os.PathLike[str]) -> Path:
        """Write config.json and model.safetensors, whole or not at all; an older checkpoint survives a failure.

        Raises CheckpointError when the folder cannot be written.
        """
        return checkpoint.write(Path(directory), self.manifest(), self.tensors())

    def push_to_hub(self, repo_id: str, **options: Any) -> Pushed:
        """Upload the native checkpoint and a card as one commit; the address of that is `.url` of what is returned.

        options: those of hub.Push, such as private=True, revision="v2", create_pr=True, tag="v2", dry_run=True.
        """
        from drafterzoo import hub

        return hub.push(self, repo_id, **options)

    def export(self, directory: str | os.PathLike[str], layout: str = "native") -> Path:
        """Write the checkpoint in a named layout, into a new folder unless it is ours (formats/writing.py).

        Raises UsageError for a layout nobody has registered, and for what it cannot express.
        """
        if layout == "native":
            return self.save_pretrained(directory)
        from drafterzoo.formats.writing import write_layout

        return write_layout(self, Path(directory), layout)

    @classmethod
    def without_weights(cls, config: Any, target: Target) -> Self:
        """A drafter whose weights are about to be read: with any, or on the meta device."""
        return cls(config, target)

    @classmethod
    def from_checkpoint(cls, saved: checkpoint.Native, target: Target) -> Self:
        """Build the drafter of a checkpoint that has been read. Raises CheckpointError naming file, key and remedy."""
        section = {k: v for k, v in saved.config["drafter"].items() if k != "name"}
        config = _structured(cls.Config, section, saved.config_file, CheckpointError)
        checkpoint.check_whole(cls.Config, section, saved.config_file)
        drafter = cls.without_weights(config, target)
        drafter.check_target(target)
        drafter.storage_dtype = saved.dtype
        checkpoint.fill(drafter, saved)
        drafter.spec = saved.config["spec"]
        drafter.training_record = dict(saved.config.get("training", {}))
        if "budget" in saved.config:
            drafter.budget = checkpoint.structure(Budget, saved.config["budget"], saved.config_file)
        return drafter.to(target.device).eval()


def with_options(config_class: type, drafter: str, values: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Build a config from computed `values` and the `options` over them. Raises UsageError naming an unknown option."""
    _check_names(config_class, drafter, options)
    return _structured(config_class, {**values, **options}, f"options of {drafter}", UsageError)


def check_options(drafter: type[Drafter], options: Mapping[str, Any]) -> None:
    """Raise UsageError for options that a drafter has not, and for values that they cannot take, one by one."""
    config_class = getattr(drafter, "Config", None)
    if isinstance(config_class, type) and attrs.has(config_class):
        _check_names(config_class, drafter.name, options)
        checkpoint.check_values(config_class, options, f"options of {drafter.name}", UsageError)


def check_together(drafter: type[Drafter], section: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raise UsageError for options that the drafter's config refuses in the place of a checkpoint's own."""
    values = {**{key: value for key, value in section.items() if key != "name"}, **options}
    config_class = getattr(drafter, "Config", None)
    if isinstance(config_class, type) and attrs.has(config_class):
        _structured(config_class, values, f"options of {drafter.name}", UsageError)


def _check_names(config_class: type, drafter: str, options: Mapping[str, Any]) -> None:
    fields = [f.name for f in attrs.fields(config_class)]
    for key in options:
        if key not in fields:
            raise UsageError(
                f"{drafter}: no option {key!r}{suggest(key, fields)}; the options are {', '.join(fields)}."
            )


def _structured(config_class: type, values: Mapping[str, Any], where: str, error: type[DrafterzooError]) -> Any:
    """A config from plain values. Raises `error`, which says where; the config's own complaint names no drafter again.

    Drafters may share a config, and it cannot know for which of them it is made.
    """
    try:
        return checkpoint.structure(config_class, values, where, error)
    except error as problem:
        said = str(problem).removeprefix(f"{where}: ")
        raise error(f"{where}: {_DRAFTER.sub('', said)}") from problem


def counted(state: DraftState, rows: int) -> None:
    """Note one forward of a drafter's block over `rows` rows a request."""
    counters: Counters = state.counters
    counters.count(rows)
