"""Drafting a whole block in one forward, shared by the DFlash family: the target's features enter as keys and values.

Source: block.md 0, 1.1 and 1.6 (DFlash, arXiv 2602.06036). Knows the contract, a drafter's own K/V memory and the
block; how the taps are fused, and what stands between the block and the head, is a subclass's. Knows nothing of
growth, verification, sampling or training objectives.

The block of the root x_a (the anchor) is [x_a, MASK, MASK, ...] at positions a, a+1, ... Its slots attend each other
and the features of the positions before a, and after one forward slot k proposes the token at a+k ("same_position", in
which slot 0 says nothing) or at a+k+1 ("anchor_first"). Weights do not tell which of both they were trained for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

import attrs
import torch
from torch import Tensor, nn

from drafterzoo.checkpoint import LATER
from drafterzoo.drafters.attention import block_attention, grouped_attention
from drafterzoo.drafters.base import UnrollBatch, Unrolling, counted, with_options
from drafterzoo.drafters.blocks import Layer, PlainLayer, check_sizes, widths_of
from drafterzoo.drafters.context import ContextCache
from drafterzoo.drafters.headed import HeadedDrafter, check_vocabulary
from drafterzoo.drafters.rope import rotary
from drafterzoo.drafters.rows import at_rows, causal, row_numbers, shift_left
from drafterzoo.engine.contract import Committed, Counters, Frontier, Offers
from drafterzoo.errors import UsageError

if TYPE_CHECKING:
    from drafterzoo.engine.sampling import Selector
    from drafterzoo.target.target import Target

MOST_SLOTS = 256  # of a block: beyond, a damaged config
TAPS = 5  # of nearly all releases

Layout = Literal["same_position", "anchor_first"]


@attrs.frozen
class BlockConfig:
    """Sizes and switches of a block drafter; what is not said here is in headed.HeadedConfig.

    block_size: tokens fed to the drafter, the anchor included. layout: which position slot k proposes for (block.md
    0.1). mask_token_id: the id whose embedding stands in the empty slots; None: a vector of the checkpoint's own.
    sliding_window: how many positions a slot of `sliding_layers` looks back, its own included; None: no layer slides.
    causal: whether a slot attends only those before it; None: in sliding layers alone (block.md 1.2).
    """

    vocab_size: int
    target_hidden_size: int
    taps: tuple[int, ...]
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    draft_vocab_size: int
    block_size: int = 16
    layout: Layout = "same_position"
    mask_token_id: int | None = None
    num_layers: int = 5
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    attention_bias: bool = False
    qk_norm: bool = True
    sliding_window: int | None = None
    sliding_layers: tuple[int, ...] = ()
    causal: bool | None = None
    head: Literal["own", "borrowed"] = "borrowed"
    embedding: Literal["own", "borrowed"] = "borrowed"
    rope_scaling: dict[str, Any] | None = attrs.field(default=None, metadata=LATER)
    coupling: tuple[float, float] = attrs.field(default=(1.0, 1.0), metadata=LATER)
    packed_dtype: Literal["auto", "float32", "bfloat16", "float16"] = attrs.field(default="auto", metadata=LATER)

    # Several drafters share this config: whoever builds one says for which, and the messages here name none.

    def __attrs_post_init__(self) -> None:
        check_sizes(self)
        check_vocabulary(self)
        if self.num_layers < 1 or not self.taps or len(set(self.taps)) < len(self.taps):
            raise UsageError(
                f"taps={list(self.taps)} and num_layers={self.num_layers}, expected boundaries, each named once, and "
                f"at least one layer; for example taps=(2, 10, 18, 26, 34), num_layers=5."
            )
        if not 1 + self.first_slot <= self.block_size <= MOST_SLOTS:
            raise UsageError(
                f"block_size={self.block_size}, expected a number from {1 + self.first_slot} to {MOST_SLOTS} with "
                f"layout={self.layout!r}."
            )
        if self.mask_token_id is not None and not 0 <= self.mask_token_id < self.vocab_size:
            raise UsageError(
                f"mask_token_id={self.mask_token_id} is no id of a vocabulary of {self.vocab_size}; correct it, or "
                f"leave it out for a vector of the drafter's own."
            )
        sliding = self.sliding_layers
        if (self.sliding_window is None) != (not sliding) or not all(0 <= i < self.num_layers for i in sliding):
            raise UsageError(
                f"sliding_window={self.sliding_window} and sliding_layers={list(sliding)}, expected both, with layers "
                f"from 0 to {self.num_layers - 1}, or neither."
            )
        if self.sliding_window is not None and self.sliding_window < 1:
            raise UsageError(f"sliding_window={self.sliding_window}, expected at least 1, the slot's own position.")
        if self.hidden_size != self.target_hidden_size and "borrowed" in (self.head, self.embedding):
            raise UsageError(
                f"hidden_size={self.hidden_size} differs from target_hidden_size={self.target_hidden_size}, so head "
                f"and embedding cannot be borrowed; correct either, or set head='own' and embedding='own'."
            )

    @property
    def first_slot(self) -> int:
        """The first slot that proposes: slot 0 stands for the anchor where slots propose for their own position."""
        return 1 if self.layout == "same_position" else 0

    @property
    def proposals(self) -> int:
        """How deep one block drafts."""
        return self.block_size - self.first_slot


def published_taps(layers: int, count: int = TAPS) -> tuple[int, ...]:
    """The boundaries after the decoder layers that the first releases tapped (block.md 1.1), of so many layers.

    Evenly spaced from layer 1 to layer N-3. Raises UsageError where there are not as many.
    """
    ids = [layers // 2] if count == 1 else [round(1 + i * (layers - 4) / (count - 1)) for i in range(count)]
    if len(set(ids)) < count or ids[0] < 0 or ids[-1] >= layers:
        raise UsageError(
            f"the usual {count} taps need a target of more layers, and this one has {layers}; name them, for example "
            f"taps=(1, {max(layers - 1, 2)})."
        )
    return tuple(i + 1 for i in ids)


@attrs.frozen(eq=False)
class Carried:
    """Context rows for one round alone, beside the committed ones (`+carryover`).

    features [n, C, T*H]; positions [n, C]: where their keys stand; valid [n, C]; mark [h] or None: what is added to
    them after their taps are fused.
    """

    features: Tensor
    positions: Tensor
    valid: Tensor
    mark: Tensor | None = None


@attrs.frozen(eq=False)
class Read:
    """What the head reads of rows at one depth, and what they hand to their children.

    hidden [n, 1 or Q, h]; extra [n, Q, r] or None: what a head with a bias reads beside it; memory [n, Q, m] or None.
    """

    hidden: Tensor
    extra: Tensor | None = None
    memory: Tensor | None = None

    @property
    def joined(self) -> Tensor:
        """Both side by side [n, Q, h+r], which the columns of `head_matrix` multiply."""
        if self.extra is None:
            return self.hidden
        return torch.cat((self.hidden.expand(*self.extra.shape[:-1], -1), self.extra), dim=-1)


@attrs.define(eq=False)
class BlockState:
    """Requests in flight: context K/V, and the block's outputs of this round.

    slots: tokens of a block, the anchor included. outputs [n, proposals, h]: what stands before the head, by depth.
    memory [n, 1+rows, m] or None: what each row of the tree hands to its children, where the head has any.
    """

    cache: ContextCache
    slots: int
    outputs: Tensor
    memory: Tensor | None
    counters: Counters = attrs.Factory(Counters)

    def keep(self, requests: Tensor) -> None:
        self.cache.keep(requests)
        self.outputs = self.outputs[requests]
        self.memory = None if self.memory is None else self.memory[requests]


class BlockBody(HeadedDrafter):
    """A drafter whose layers run once per round, over the whole block.

    A subclass defines `contexts`, and `settle` and `logits_below` where the head depends on the token before; it calls
    `furnish` last.
    """

    capabilities: frozenset[str] = frozenset({"block", "context_rows"})
    Config: ClassVar[type] = BlockConfig
    config: BlockConfig

    # -- construction ------------------------------------------------------------------------------------------

    def __init__(self, config: BlockConfig, target: Target) -> None:
        super().__init__(config, target)
        how = {"bias": config.attention_bias, "out_bias": config.attention_bias, "qk_norm": config.qk_norm}
        layers = nn.ModuleList(PlainLayer(config, **how) for _ in range(config.num_layers))
        self.layers = cast("Sequence[Layer]", layers)  # a ModuleList does not say what it holds
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        if config.mask_token_id is None:
            self.mask_embedding = nn.Parameter(torch.zeros(config.hidden_size))

    @classmethod
    def default_config(cls, target: Target, **options: Any) -> Any:
        """Five taps evenly spaced (block.md 1.1), the target's widths and whole vocabulary."""
        taps = {} if "taps" in options else {"taps": published_taps(target.num_layers)}
        values = dict(
            target_hidden_size=target.hidden_size,
            draft_vocab_size=target.vocab_size,
            **taps,
            **widths_of(target),
            **cls.flags,
        )
        return with_options(cls.Config, cls.name, values, options)

    @classmethod
    def debug_config(cls, target: Target) -> Any:
        return cls.default_config(
            target,
            taps=(2, 4, target.num_layers - 1),
            num_layers=2,
            block_size=5,
            draft_vocab_size=max(2, target.vocab_size * 3 // 4),
            intermediate_size=48,
            num_heads=4,
            num_kv_heads=2,
            head_dim=8,
        )

    @classmethod
    def create(cls, target: Target, **options: Any) -> Self:
        drafter = super().create(target, **options)
        if drafter.config.mask_token_id is None:  # as long as the embeddings among which it stands
            some = drafter.embed(torch.arange(min(1024, target.vocab_size), device=target.device))
            with torch.no_grad():
                drafter.mask_embedding.normal_(0.0, 1.0 if some.is_meta else float(some.std()))
        return drafter

    @property
    def memory_size(self) -> int:
        """Numbers that a row of the tree hands to its children."""
        return 0

    # -- the network -------------------------------------------------------------------------------------------

    def contexts(self, features: Tensor) -> Sequence[Tensor]:
        """For every layer, what its keys and values of context rows are made of [..., h], from features [..., T*H]."""
        raise NotImplementedError(f"{self.name} must define contexts")

    def begin_with(self, fusion: Tensor) -> None:
        """Make a context row the norm of `fusion` [h, T*H] times its features.

        For a start that is solved for (training/block_ridge.py). Raises UsageError where a drafter does not say how.
        """
        raise UsageError(f'recipe [init]: fc = "ridge" is not defined for {self.name}; leave it out.')

    def settle(self, hidden: Tensor, tokens: Tensor, memory: Tensor | None) -> Read:
        """What the head reads of the rows of one depth, each below a token of its own.

        hidden [n, 1 or Q, h]: the block's, after its norm; tokens [n, Q]: the token before each; memory [n, Q, m]: of
        the rows that proposed these.
        """
        return Read(hidden)

    def logits_below(self, read: Read) -> Tensor:
        """Draft logits of one depth [n, Q, D], or [n, 1, D] where they do not depend on the token before."""
        return self.logits(read.hidden)

    def blocks(self, anchors: Tensor, slots: int) -> Tensor:
        """Embeddings [..., slots, h] of the blocks of anchors [...]."""
        if self.config.mask_token_id is None:
            empty = self.mask_embedding.to(self.like.dtype)
        else:
            empty = self.embed(anchors.new_tensor(self.config.mask_token_id))
        rest = empty.expand(*anchors.shape, slots - 1, -1)
        return torch.cat((self.embed(anchors)[..., None, :], rest), dim=-2)

    def _slides(self, layer: int) -> bool:
        return layer in self.config.sliding_layers

    def _inside(self, layer: int, slots: int, device: torch.device) -> Tensor:
        """Which slots of the block a slot attends in a layer [slots, slots]."""
        config, at = self.config, torch.arange(slots, device=device)
        back = at[:, None] - at
        seen = torch.ones_like(back, dtype=torch.bool)
        if config.causal if config.causal is not None else self._slides(layer):
            seen &= back >= 0
        if self._slides(layer) and config.sliding_window is not None:
            seen &= back.abs() < config.sliding_window
        return seen

    # -- drafting ----------------------------------------------------------------------------------------------

    def open(self, target: Target, n: int, capacity: int, depth: int, rows: int, carried: int = 0) -> BlockState:
        """carried: context rows of one round alone, at most. Of a block only the slots that `depth` asks for are fed.

        A budget deeper than the block is cut to it: slots that were never trained propose nothing of use.
        """
        c, like = self.config, self.like
        slots = min(c.block_size, depth + c.first_slot)
        cache = ContextCache(
            n,
            capacity,
            slots + carried,
            layers=c.num_layers,
            kv_heads=c.num_kv_heads,
            head_dim=c.head_dim,
            device=like.device,
            dtype=like.dtype,
        )
        memory = like.new_zeros(n, 1 + rows, self.memory_size) if self.memory_size else None
        return BlockState(cache, slots, like.new_zeros(n, slots - c.first_slot, c.hidden_size), memory)

    def observe(self, state: BlockState, committed: Committed, carried: Carried | None = None) -> None:
        cache = state.cache
        cache.longest = committed.longest
        slots = cache.committed_slots(committed.positions, committed.valid)
        self._write_context(cache, slots, committed.features, committed.positions)
        newest = committed.last[:, None]
        cache.lengths = committed.positions.gather(1, newest)[:, 0] + 1
        if carried is not None:
            first = torch.arange(state.slots, state.slots + carried.valid.shape[1], device=slots.device)
            self._write_context(
                cache, first.expand_as(carried.positions), carried.features, carried.positions, carried.mark
            )
        anchors = committed.next_tokens.gather(1, newest)[:, 0]
        state.outputs = self._draft_block(state, anchors, None if carried is None else carried.valid)

    def _write_context(
        self, cache: ContextCache, slots: Tensor, features: Tensor, positions: Tensor, mark: Tensor | None = None
    ) -> None:
        """Keys and values of context rows [n, R], in every layer: the target's features, as the block will see them."""
        for index, keys in enumerate(self._context_keys(features, positions, mark)):
            cache.write(index, slots, *keys)

    def _draft_block(self, state: BlockState, anchors: Tensor, carried: Tensor | None) -> Tensor:
        """The one forward of a round: outputs [n, proposals, h] below anchors [n].

        carried [n, C]: which of the rows carried for this round alone are real.
        """
        count, cache = state.slots, state.cache
        counted(state, count)
        own = torch.arange(count, device=anchors.device)
        positions = cache.lengths[:, None] + own
        hidden = self.blocks(anchors, count)
        cos, sin = rotary(positions, self.config, hidden.dtype)
        for index, layer in enumerate(self.layers):
            residual, x = layer.enter(hidden, hidden)
            cache.write(index, own.expand_as(positions), *layer.self_attn.keys(x, cos, sin))
            mask = self._mask(cache, index, positions, carried)
            q = layer.self_attn.queries(x, cos, sin)
            hidden = layer.leave(residual, grouped_attention(q, *cache.everything(index), mask))
        return self.norm(hidden[:, self.config.first_slot :])

    def _mask(self, cache: ContextCache, layer: int, positions: Tensor, carried: Tensor | None) -> Tensor:
        """What the block's slots at `positions` [n, b] attend in a layer, over the whole memory [n, b, S]."""
        n, count = positions.shape
        visible = self._inside(layer, count, positions.device).expand(n, -1, -1)
        if carried is not None:
            visible = torch.cat((visible, carried[:, None].expand(-1, count, -1)), dim=-1)
        mask = cache.drafted_mask(visible)
        if self._slides(layer) and self.config.sliding_window is not None:
            back = positions[..., None] - torch.arange(cache.longest, device=positions.device)
            mask[..., cache.first :] &= back < self.config.sliding_window
        return mask

    def expand(self, state: BlockState, frontier: Frontier, select: Selector) -> Offers:
        depth = min(frontier.step, state.outputs.shape[1] - 1)
        read = self.settle(state.outputs[:, depth : depth + 1], frontier.tokens, self._handed(state, frontier))
        if state.memory is not None and read.memory is not None:
            state.memory[:, frontier.first_row : frontier.first_row + frontier.width] = read.memory
        offers = select(self.logits_below(read), frontier, self.ids)
        if frontier.hopes:
            offers = attrs.evolve(offers, hope=self.hope(state.outputs[:, depth : depth + 1], frontier.tokens, depth))
        return offers if depth == frontier.step else _none(offers)

    def hope(self, hidden: Tensor, tokens: Tensor, depth: int) -> Tensor:
        """Log of the chance [n, Q] that what the rows of a depth propose is accepted; hidden, tokens as in `settle`."""
        raise NotImplementedError(f"{self.name} has no confidence head")

    def _handed(self, state: BlockState, frontier: Frontier) -> Tensor | None:
        """What the rows that proposed the frontier's nodes handed down [n, W, m]; zeros above the root."""
        if state.memory is None or not frontier.step:
            return None if state.memory is None else torch.zeros_like(state.memory[:, :1])
        return state.memory.gather(1, frontier.sources[..., None].expand(-1, -1, state.memory.shape[-1]))

    # -- the training forward ----------------------------------------------------------------------------------

    def unroll(self, batch: UnrollBatch, passes: int, unrolling: Unrolling | None = None) -> list[Tensor]:
        """One block below every wanted row's root, all of them in one forward (block.md 1.5).

        Row t is the block of the anchor x_{t+1}, over the features up to t; pass j is the block's depth j+1, below the
        text's own tokens. Raises UsageError for more passes than a block has proposals.
        """
        return self.settled(batch, self.block_rows(batch, passes, unrolling or Unrolling()))

    def settled(self, batch: UnrollBatch, rows: Tensor) -> list[Tensor]:
        """What the head reads [n, Q, h+r] of block rows [n, Q, passes, h], depth by depth along the text."""
        memory = rows.new_zeros(*rows.shape[:2], self.memory_size) if self.memory_size else None
        joined = []
        for step in range(rows.shape[2]):
            tokens = at_rows(shift_left(batch.tokens, 1 + step), batch.queries)
            read = self.settle(rows[:, :, step], tokens, memory)
            memory = read.memory
            joined.append(read.joined)
        return joined

    def block_rows(self, batch: UnrollBatch, passes: int, how: Unrolling, carried: Carried | None = None) -> Tensor:
        """Outputs [n, Q, passes, h] of the blocks below the wanted rows. carried: [n, Q*C] rows, C for each block."""
        config = self.config
        if passes > config.proposals:
            raise UsageError(
                f"{self.name}: {passes} passes, but a block of {config.block_size} slots proposes {config.proposals} "
                f"tokens; ask for at most so many."
            )
        count = passes + config.first_slot
        features = batch.features if how.noise is None else batch.features + how.noise.to(batch.features)
        anchors = at_rows(shift_left(batch.tokens, 1), batch.queries)
        own = at_rows(batch.positions, batch.queries)[..., None] + 1 + torch.arange(count, device=anchors.device)
        hidden = self.blocks(anchors, count)
        context_keys = self._context_keys(features, batch.positions)
        more = None if carried is None else self._context_keys(carried.features, carried.positions, carried.mark)
        seen = causal(batch)
        cos, sin = rotary(own.flatten(1), config, hidden.dtype)
        for index, layer in enumerate(self.layers):
            residual, x = layer.enter(hidden, hidden)
            flat = x.flatten(1, 2)
            q = layer.self_attn.queries(flat, cos, sin).unflatten(2, own.shape[1:])
            keys = [part.unflatten(2, own.shape[1:]) for part in layer.self_attn.keys(flat, cos, sin)]
            inside = self._inside(index, count, flat.device).expand(*own.shape[:2], -1, -1)
            if carried is not None and more is not None:
                each = carried.valid.unflatten(1, (own.shape[1], -1))
                extra = [part.unflatten(2, each.shape[1:]) for part in more[index]]
                keys = [torch.cat(pair, dim=3) for pair in zip(keys, extra, strict=True)]
                inside = torch.cat((inside, each[:, :, None].expand(-1, -1, count, -1)), dim=-1)
            attended = block_attention(q, context_keys[index], keys, self._seen(index, batch, seen, count), inside)
            hidden = layer.leave(residual, attended)
        return self.norm(hidden[:, :, config.first_slot :])

    def _context_keys(
        self, features: Tensor, positions: Tensor, mark: Tensor | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of every layer of context rows [n, T]. mark [h]: added to what the layers read."""
        cos, sin = rotary(positions, self.config, self.like.dtype)
        contexts = self.contexts(features.to(self.like.dtype))
        if mark is not None:
            contexts = [context + mark for context in contexts]
        return [layer.self_attn.keys(x, cos, sin) for layer, x in zip(self.layers, contexts, strict=True)]

    def _seen(self, layer: int, batch: UnrollBatch, seen: Tensor, count: int) -> Tensor:
        """Which context rows [n, Q, 1 or count, T] the slots of a block attend in a layer."""
        if not self._slides(layer) or self.config.sliding_window is None:
            return seen[:, :, None]
        at = row_numbers(batch)[..., None] + 1 + torch.arange(count, device=seen.device)
        back = at[..., None] - torch.arange(batch.tokens.shape[1], device=seen.device)
        return seen[:, :, None] & (back < self.config.sliding_window)


def _none(offers: Offers) -> Offers:
    """As many offers, none of which is one: a budget may be deeper than a block."""
    keep = None if offers.keep is None else torch.full_like(offers.keep, -math.inf)
    return attrs.evolve(offers, scores=torch.full_like(offers.scores, -math.inf), keep=keep)
