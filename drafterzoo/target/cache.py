"""The target's K/V memory: preallocated rows, a length per request, and room for one tree after the committed rows.

Knows the cache interface of transformers and nothing of models, tokens or verification. Per request the rows are

    [0, length)               committed tokens, row = position
    [length, length + Q)      the rows of the tree in flight, in tree order
    capacity + scratch        the trash row, where prompt padding is written and which nobody may attend

A forward is prepared first (`prepare_prompt`, `prepare_tree`): that fixes where its rows go, how much of the buffers
attention sees, and the additive masks. Committing a path is one gather per pool.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from drafterzoo.errors import UsageError

FULL = "full_attention"
SLIDING = "sliding_attention"
_ROUND = 64  # attention widths are rounded up to this, so that few distinct shapes occur

Mask = Tensor | dict[str, Tensor]


@attrs.frozen
class CacheLayout:
    """What a model stores per token and layer, and which part of the past each layer may attend.

    kinds: FULL or SLIDING per layer; window: how many positions a SLIDING layer sees, the row itself included.
    """

    heads: tuple[int, ...]
    key_dims: tuple[int, ...]
    value_dims: tuple[int, ...]
    kinds: tuple[str, ...]
    window: int | None
    dtype: torch.dtype
    device: torch.device

    def rows(self, capacity: int, scratch: int) -> int:
        """Rows allocated per request and head: committed, scratch, trash, rounded up to 8 for aligned masks."""
        return -(-(capacity + scratch + 1) // 8) * 8

    def nbytes(self, n: int, capacity: int, scratch: int) -> int:
        """Bytes of a cache before it is opened."""
        per_row = sum(h * (k + v) for h, k, v in zip(self.heads, self.key_dims, self.value_dims, strict=True))
        return n * self.rows(capacity, scratch) * per_row * self.dtype.itemsize

    def masks(self, allowed: Tensor, queries: Tensor, keys: Tensor) -> Mask:
        """Additive masks [n, 1, Q, W] from allowed [n, Q, W] bool, a dict by kind when the layers differ in kind.

        Windows are taken over positions: queries [n, Q], and keys [W] or [n, 1, W].
        """
        kinds = dict.fromkeys(self.kinds)
        masks = {FULL: allowed}
        if SLIDING in kinds:
            assert self.window is not None
            masks[SLIDING] = allowed & (queries[..., None] - keys < self.window)
        additive = {kind: _additive(masks[kind], self.dtype) for kind in kinds}
        return additive if len(additive) > 1 else next(iter(additive.values()))


@attrs.define(eq=False)
class _Plan:
    """Where the forward in progress writes: `slots` [n, Q], and the `width` of the rows attention reads."""

    slots: Tensor
    width: int
    index: dict[int, Tensor] = attrs.field(factory=dict)

    def flat(self, heads: int, rows: int) -> Tensor:
        """Row numbers [n*heads*Q] of `slots` in a buffer viewed as [n*heads*rows, dim]; made once per head count."""
        if heads not in self.index:
            self.index[heads] = _flat(self.slots, heads, rows)
        return self.index[heads]


def _flat(slots: Tensor, heads: int, rows: int) -> Tensor:
    first = torch.arange(slots.shape[0] * heads, device=slots.device).view(-1, heads, 1) * rows
    return (first + slots[:, None, :]).reshape(-1)


class _LayerRows(CacheLayerMixin):
    """One layer's rows, as transformers wants to see them: `update` stores the new rows and returns views."""

    is_compileable = True
    is_sliding = False  # windows are in the masks

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.plan: _Plan | None = None
        self.bind(keys, values)

    def bind(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values
        self.key_rows, self.value_rows = keys.view(-1, keys.shape[-1]), values.view(-1, values.shape[-1])
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the rows are allocated when the cache is opened."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Store K/V [n, heads, Q, dim] at the planned slots; return views [n, heads, width, dim] of the buffers."""
        n, heads, _, key_dim = key_states.shape
        plan = self.plan
        assert plan is not None and self.keys is not None and self.values is not None
        index = plan.flat(heads, self.keys.shape[2])
        self.key_rows.index_copy_(0, index, key_states.reshape(-1, key_dim))
        self.value_rows.index_copy_(0, index, value_states.reshape(-1, value_states.shape[-1]))
        return self.keys[:n, :, : plan.width], self.values[:n, :, : plan.width]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return (self.plan.width if self.plan else 0), 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # its name before transformers 5.20


class TargetCache:
    """K/V of n requests of one target; opened by `Target.open_cache`.

    lengths [n] int64: committed rows per request (once decoding runs, the root is not among them).
    capacity: committed rows there is room for; scratch: tree rows (root included) there is room for beside them.
    """

    def __init__(self, layout: CacheLayout, n: int, capacity: int, scratch: int) -> None:
        self.layout, self.n, self.capacity, self.scratch = layout, n, capacity, scratch
        self.lengths = torch.zeros(n, dtype=torch.int64, device=layout.device)
        self._pools = self._allocate(n, capacity)
        self._layers = [_LayerRows(keys, values) for keys, values in self._layer_views()]
        self.kv = Cache(layers=list(self._layers))

    def _allocate(self, n: int, capacity: int) -> dict[tuple[int, int], Tensor]:
        # Layers of equal shape share one pool [members, n, heads, rows, dim], so that a commit is one gather for all.
        members: dict[tuple[int, int], int] = {}
        for shape in self._shapes():
            members[shape] = members.get(shape, 0) + 1
        rows = self.layout.rows(capacity, self.scratch)
        return {
            (heads, dim): torch.zeros((count, n, heads, rows, dim), dtype=self.layout.dtype, device=self.layout.device)
            for (heads, dim), count in members.items()
        }

    def _shapes(self) -> list[tuple[int, int]]:
        layout = self.layout
        both = zip(layout.heads, layout.key_dims, layout.value_dims, strict=True)
        return [(heads, dim) for heads, *dims in both for dim in dims]

    def _layer_views(self) -> list[tuple[Tensor, Tensor]]:
        members = {shape: iter(pool.unbind(0)) for shape, pool in self._pools.items()}
        views = [next(members[shape]) for shape in self._shapes()]
        return list(zip(views[0::2], views[1::2], strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes really held by the buffers."""
        return sum(pool.untyped_storage().nbytes() for pool in self._pools.values())

    @property
    def _rows(self) -> int:
        return self.layout.rows(self.capacity, self.scratch)

    @property
    def _trash(self) -> int:
        return self.capacity + self.scratch

    def _filled(self) -> int:
        """Upper bound of `lengths` known to the host. On an accelerator asking would synchronise: take the capacity."""
        return int(self.lengths.max()) if self.lengths.device.type == "cpu" else self.capacity

    def _width(self, used: int) -> int:
        if self.lengths.device.type != "cpu":
            return self._rows  # static shapes there: CUDA graphs, and no synchronisation
        return min(-(-used // _ROUND) * _ROUND, self._rows)

    def _plan(self, slots: Tensor, width: int) -> None:
        plan = _Plan(slots, width)
        for layer in self._layers:
            layer.plan = plan

    def prepare_prompt(self, positions: Tensor, valid: Tensor, used: int) -> Mask:
        """Make ready to write prompt rows at their positions [n, Q]; `used` is one more than the greatest position.

        Rows that are not valid [n, Q] go to the trash row. Returns the additive mask(s) [n, 1, Q, width].
        """
        width = self._width(used)
        self._plan(torch.where(valid, positions, self._trash), width)
        keys = torch.arange(width, device=positions.device)
        return self.layout.masks(keys <= positions[..., None], positions, keys)

    def prepare_tree(self, positions: Tensor, visible: Tensor) -> Mask:
        """Make ready to write Q tree rows after the committed ones.

        positions [n, Q] of the rows in the text; visible [n, Q, Q]: which tree rows each row attends, itself included.
        Returns the additive mask(s) [n, 1, Q, width]. Raises UsageError when the rows do not fit.
        """
        count = positions.shape[1]
        filled = self._filled()
        if count > self.scratch + 1 or filled + count > self._trash:
            raise UsageError(
                f"cache: {count} tree rows after {filled} committed tokens do not fit into capacity {self.capacity} "
                f"and scratch {self.scratch}; open the cache for the prompt, all new tokens and 1 + nodes scratch rows."
            )
        width = self._width(filled + count)
        rows = torch.arange(count, device=positions.device)
        # Where the host cannot know the lengths, rows of an over-full request end in the trash row, not in a neighbour.
        self._plan((self.lengths[:, None] + rows).clamp(max=self._trash), width)
        slots = torch.arange(width, device=positions.device)
        offset = slots - self.lengths[:, None]  # [n, width]; below 0: committed, else the row of the tree
        row = offset.clamp(0, count - 1)
        in_tree = visible.gather(2, row[:, None].expand(-1, count, -1)) & (offset < count)[:, None]
        allowed = torch.where((offset < 0)[:, None], True, in_tree)
        return self.layout.masks(allowed, positions, torch.where(offset < 0, slots, positions.gather(1, row))[:, None])

    def commit(self, path: Tensor, accepted: Tensor) -> None:
        """Move tree rows `path` [n, A] to follow the committed rows, and advance `lengths` by accepted [n] + 1.

        accepted = -1 leaves a request as it is.
        """
        steps = torch.arange(path.shape[1], device=path.device)
        source = (self.lengths[:, None] + path).clamp(max=self._trash)
        target = (self.lengths[:, None] + steps).clamp(max=self._trash)
        for pool in self._pools.values():
            members, n, heads, rows, dim = pool.shape
            first = torch.arange(members, device=path.device)[:, None] * (n * heads * rows)
            flat = pool.view(-1, dim)
            moved = flat.index_select(0, (first + _flat(source, heads, rows)).reshape(-1))
            flat.index_copy_(0, (first + _flat(target, heads, rows)).reshape(-1), moved)
        self.lengths = (self.lengths + accepted + 1).clamp(max=self.capacity)

    @torch.inference_mode()
    def keep(self, requests: Tensor) -> None:
        """Keep only the given requests (indices [n'] into the present n), in that order. The memory stays allocated."""
        requests = requests.to(self.lengths.device)
        used = self._width(self._filled())
        for pool in self._pools.values():
            for member in pool.unbind(0):  # one at a time: the copy made for the gather stays small
                member[: len(requests), :, :used] = member[:, :, :used].index_select(0, requests)
        self.lengths = self.lengths[requests]
        self.n = len(requests)

    @torch.inference_mode()
    def reserve(self, capacity: int) -> None:
        """Grow to room for `capacity` committed rows, keeping what is there; never shrinks. For between answers."""
        if capacity <= self.capacity:
            return
        old, used = self._pools, self._width(self._filled())
        self.capacity, self._pools = capacity, self._allocate(self.n, capacity)
        for shape, pool in self._pools.items():
            pool[:, :, :, :used] = old[shape][:, : self.n, :, :used]
        for layer, (keys, values) in zip(self._layers, self._layer_views(), strict=True):
            layer.bind(keys, values)

    def refill(self, lengths: Sequence[int]) -> None:
        """Record that the prompts, and nothing else, are committed."""
        self.lengths = torch.tensor(lengths, dtype=torch.int64, device=self.layout.device)


def _additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """[n, Q, width] bool to [n, 1, Q, width]: 0 where allowed, the most negative number elsewhere."""
    mask = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return mask.masked_fill_(~allowed, torch.finfo(dtype).min)[:, None]
