"""Drafting by recurrence, shared by the EAGLE family: one forward of a block per draft step, on its own output.

Source: eagle.md 0 and 4.1. Knows the contract and a drafter's own K/V memory; what the block is, what it first reads
and what recurs is a subclass's. Knows nothing of growth, verification, sampling or training objectives.

Row t pairs the target's features of position t with the embedding of x_{t+1} and predicts x_{t+2} (eagle.md 0.1), so
the row of a draft node at position p stands at rotary position p-1, and the newest committed row is the root's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import attrs
import torch
from torch import Tensor, nn

from drafterzoo.drafters.attention import grouped_attention
from drafterzoo.drafters.base import UnrollBatch, Unrolling, counted
from drafterzoo.drafters.context import ContextCache
from drafterzoo.drafters.headed import HeadedDrafter
from drafterzoo.drafters.rope import rotary
from drafterzoo.drafters.rows import at_rows, causal, own_document, shift_left
from drafterzoo.engine.contract import Committed, Counters, Frontier, Offers
from drafterzoo.errors import UsageError

if TYPE_CHECKING:
    from drafterzoo.engine.sampling import Selector
    from drafterzoo.target.target import Target


Chains = list[list[tuple[Tensor, Tensor]]]  # of every layer: the keys of pass 0, and of each later pass


@attrs.frozen(eq=False)
class Pass:
    """One pass of the training forward over Q rows of n texts.

    tokens, positions [n, Q]: what the rows read, and where they stand; sight: what they see of pass 0 (`_sight`);
    recurs, normed [n, Q, h]: what the next pass and the head read; chains: the keys up to and of this pass.
    """

    step: int
    tokens: Tensor
    positions: Tensor
    sight: tuple[Tensor, Tensor | None]
    recurs: Tensor
    normed: Tensor
    chains: Chains


@attrs.define(eq=False)
class RecurrentState:
    """Requests in flight: context K/V, and the recurrent output of every row of this round (row 0: the root's)."""

    cache: ContextCache
    outputs: Tensor  # [n, 1+scratch, h], what recurs
    normed: Tensor  # [n, h], the root's head input
    counters: Counters = attrs.Factory(Counters)

    def keep(self, requests: Tensor) -> None:
        self.cache.keep(requests)
        self.outputs, self.normed = self.outputs[requests], self.normed[requests]


class RecurrentBody(HeadedDrafter):
    """A drafter whose block runs once per draft step, on what it gave at the step before.

    A subclass sets `fc` and `layers` (blocks.Layer), defines what fuses, enters and finishes, and calls `furnish` last.
    """

    capabilities: frozenset[str] = frozenset({"recurrent"})

    fc: nn.Linear

    # -- the network -------------------------------------------------------------------------------------------

    @property
    def window(self) -> int | None:
        """How many positions a row looks back, its own included; None: to the beginning."""
        return None

    def fuse(self, features: Tensor) -> Tensor:
        """[..., T*H] -> [..., h]: what the first draft step reads in the place of what recurs."""
        raise NotImplementedError(f"{self.name} must define fuse")

    def recurring(self, hidden: Tensor) -> Tensor:
        """What recurs, from the last layer's output."""
        raise NotImplementedError(f"{self.name} must define recurring")

    def finish(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(what recurs, what the head reads) from the last layer's output."""
        recurs = self.recurring(hidden)
        return recurs, self.head_input(recurs)

    def head_input(self, recurs: Tensor) -> Tensor:
        """What the head reads of what recurs."""
        raise NotImplementedError(f"{self.name} must define head_input")

    def fc_rows(self, features: Tensor, next_tokens: Tensor) -> Tensor:
        """What `fc` reads [R, F] in the first pass, for features [R, T*H] and the tokens [R] after them."""
        raise NotImplementedError(f"{self.name} must define fc_rows")

    def begin_with(self, weight: Tensor, gain: Tensor, explained: float) -> None:
        """Take a closed-form `fc` (training/ridge.py): weight [h, F] predicts the target's next feature over gain [h].

        explained: the share of that feature's square that it predicts.
        """
        raise NotImplementedError(f"{self.name} must define begin_with")

    def enter(self, index: int, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The residual and the attention input of a layer, both before any attention."""
        return self.layers[index].enter(embedded, hidden)

    # -- drafting ----------------------------------------------------------------------------------------------

    def open(self, target: Target, n: int, capacity: int, depth: int, rows: int) -> RecurrentState:
        c, like = self.config, self.like
        self._check_window(depth)
        cache = ContextCache(
            n,
            capacity,
            rows,
            layers=c.num_layers,
            kv_heads=c.num_kv_heads,
            head_dim=c.head_dim,
            device=like.device,
            dtype=like.dtype,
        )
        outputs = torch.zeros(n, 1 + rows, c.hidden_size, device=like.device, dtype=like.dtype)
        return RecurrentState(cache, outputs, outputs[:, 0].clone())

    def observe(self, state: RecurrentState, committed: Committed) -> None:
        cache = state.cache
        cache.longest = committed.longest
        slots = cache.committed_slots(committed.positions, committed.valid)
        mask = cache.committed_mask(committed.positions, committed.valid)
        mask = self._near(mask, torch.where(committed.valid, committed.positions, 0), cache)
        embedded, fused = self.embed(committed.next_tokens), self.fuse(committed.features)
        hidden = self._forward(state, embedded, fused, committed.positions, slots, mask, cache.committed)
        newest = committed.last[:, None]
        cache.lengths = committed.positions.gather(1, newest)[:, 0] + 1
        recurs, state.normed = self.finish(hidden.gather(1, newest[..., None].expand(-1, 1, hidden.shape[-1]))[:, 0])
        state.outputs[:, 0] = recurs

    def expand(self, state: RecurrentState, frontier: Frontier, select: Selector) -> Offers:
        return select(self.frontier_logits(state, frontier), frontier, self.ids)

    def frontier_logits(self, state: RecurrentState, frontier: Frontier) -> Tensor:
        """Logits [n, W, D] of the frontier's rows; the root's are there already."""
        if frontier.step == 0:
            return self.logits(state.normed)[:, None]
        embedded, hidden = self.embed(frontier.tokens), self.outputs_of(state, frontier.sources)
        seen = frontier.positions, frontier.visible
        return self.logits(self.draft_rows(state, frontier.first_row, embedded, hidden, *seen))

    def outputs_of(self, state: RecurrentState, rows: Tensor) -> Tensor:
        """What recurs of this round's rows [n, R]: [n, R, h]."""
        return state.outputs.gather(1, rows[..., None].expand(-1, -1, state.outputs.shape[-1]))

    def draft_rows(
        self,
        state: RecurrentState,
        first: int,
        embedded: Tensor,
        hidden: Tensor,
        positions: Tensor,
        visible: Tensor,
        settle: Callable[[Tensor], Tensor] = lambda recurs: recurs,
    ) -> Tensor:
        """One forward of the block over the drafted rows first .. first+R-1; returns the head inputs [n, R, h].

        embedded, hidden [n, R, h]: what each row reads; positions [n, R] of its token in the text; visible
        [n, R, first+R]: the rows it attends, itself included (row 0 is committed context, and seen whatever it says);
        settle: makes of what recurs [n, R, h] what is kept, and read by the head.
        """
        rows = torch.arange(first, first + embedded.shape[1], device=embedded.device)
        slots = (rows - 1).expand(embedded.shape[:2])
        mask = self._near(state.cache.drafted_mask(visible[:, :, 1:]), positions - 1, state.cache)
        hidden = self._forward(state, embedded, hidden, positions - 1, slots, mask, state.cache.everything)
        recurs = settle(self.recurring(hidden))
        state.outputs[:, first : first + len(rows)] = recurs
        return self.head_input(recurs)

    def _near(self, mask: Tensor, positions: Tensor, cache: ContextCache) -> Tensor:
        """A mask [n, R, S] whose last columns are the committed rows, without those that the window has left behind.

        positions [n, R]: of the rows themselves.
        """
        if self.window is None:
            return mask
        back = positions[..., None] - torch.arange(cache.longest, device=positions.device)
        drafted = mask.shape[-1] - cache.longest
        return torch.cat((mask[..., :drafted], mask[..., drafted:] & (back < self.window)), dim=-1)

    def _check_window(self, steps: int) -> None:
        """Raise UsageError for more steps than the window is wide: the rows of one draft always see each other."""
        if self.window is not None and steps > self.window:
            raise UsageError(
                f"{self.name}: drafts of {steps} steps, but its layers look back sliding_window={self.window} "
                f"positions; draft at most so many steps."
            )

    def _forward(
        self,
        state: RecurrentState,
        embedded: Tensor,
        hidden: Tensor,
        positions: Tensor,
        slots: Tensor,
        mask: Tensor,
        view: Callable[[int], tuple[Tensor, Tensor]],
    ) -> Tensor:
        """The layers over rows [n, R]: writes K/V at `slots`, attends what `view` shows and `mask` [n, R, S] allows."""
        counted(state, embedded.shape[1])
        cos, sin = rotary(positions, self.config, hidden.dtype)
        for index, layer in enumerate(self.layers):
            residual, x = self.enter(index, embedded, hidden)
            state.cache.write(index, slots, *layer.self_attn.keys(x, cos, sin))
            q = layer.self_attn.queries(x, cos, sin)
            hidden = layer.leave(residual, grouped_attention(q, *view(index), mask))
        return hidden

    # -- the training forward ----------------------------------------------------------------------------------

    def unroll(self, batch: UnrollBatch, passes: int, unrolling: Unrolling | None = None) -> list[Tensor]:
        """Training-time test (eagle.md 3.2). Returns the head inputs of every pass [n, Q, h].

        Pass j at row t reads x_{t+1+j}, its own output of pass j-1 at row t, the keys of pass 0 at rows up to t, and
        one key of each later pass at row t. HASS's context alignment (eagle.md 3.3) is the same sight, its rows counted
        by the token they read: pass m at row s is pass j = m-1 at row t = s-j here.
        """
        return [one.normed for one in self.passes(batch, passes, unrolling or Unrolling())]

    def passes(self, batch: UnrollBatch, count: int, how: Unrolling) -> Iterator[Pass]:
        """The passes of `unroll`, one by one."""
        self._check_window(count)
        chains, hidden = self._first_pass(batch, how)
        tokens = at_rows(shift_left(batch.tokens, 1), batch.queries)
        positions = at_rows(batch.positions, batch.queries)
        one = Pass(0, tokens, positions, (causal(batch, self.window), None), *self.finish(hidden), chains)
        yield one
        for step in range(1, count):
            tokens = at_rows(shift_left(batch.tokens, 1 + step), batch.queries)
            recurs = one.recurs.detach() if how.detached else one.recurs
            one = self._pass(step, tokens, positions + step, _sight(batch, step, how, self.window), recurs, chains)
            chains = one.chains
            yield one

    def again(self, one: Pass, embedded: Tensor, hidden: Tensor) -> Pass:
        """The block once more over a pass's rows, at the same place, over what they saw and themselves."""
        return self._pass(one.step, one.tokens, one.positions, one.sight, hidden, one.chains, embedded)

    def _pass(
        self,
        step: int,
        tokens: Tensor,
        positions: Tensor,
        sight: tuple[Tensor, Tensor | None],
        hidden: Tensor,
        chains: Chains,
        embedded: Tensor | None = None,
    ) -> Pass:
        """The block over one row of every chain, whose keys join it. embedded: of the tokens, unless given."""
        embedded = self.embed(tokens) if embedded is None else embedded
        cos, sin = rotary(positions, self.config, hidden.dtype)
        longer = []
        for index, (layer, chain) in enumerate(zip(self.layers, chains, strict=True)):
            residual, x = self.enter(index, embedded, hidden)
            chain = [*chain, layer.self_attn.keys(x, cos, sin)]
            hidden = layer.leave(residual, chain_attention(layer.self_attn.queries(x, cos, sin), chain, *sight))
            longer.append(chain)
        return Pass(step, tokens, positions, sight, *self.finish(hidden), longer)

    def _first_pass(self, batch: UnrollBatch, how: Unrolling) -> tuple[Chains, Tensor]:
        """Pass 0: keys of every row in every layer, the last layer's output of the wanted rows [n, Q, h]."""
        features = batch.features if how.noise is None else batch.features + how.noise.to(batch.features)
        hidden, embedded = self.fuse(features), self.embed(shift_left(batch.tokens, 1))
        cos, sin = rotary(batch.positions, self.config, hidden.dtype)
        everything = UnrollBatch(batch.tokens, batch.features, batch.positions, batch.documents)
        chains = []
        for index, layer in enumerate(self.layers):
            residual, x = self.enter(index, embedded, hidden)
            keys = layer.self_attn.keys(x, cos, sin)
            wanted = batch if index == len(self.layers) - 1 else everything  # earlier layers feed the keys of all rows
            residual, x = at_rows(residual, wanted.queries), at_rows(x, wanted.queries)
            here = rotary(at_rows(batch.positions, wanted.queries), self.config, hidden.dtype)
            q, seen = layer.self_attn.queries(x, *here), causal(wanted, self.window)
            hidden = layer.leave(residual, grouped_attention(q, *keys, seen))
            chains.append([keys])
        return chains, hidden


def _sight(batch: UnrollBatch, step: int, how: Unrolling, window: int | None) -> tuple[Tensor, Tensor | None]:
    """Which rows of pass 0 a row of pass `step` sees [n, Q, T], and at which its score is 0 (`legacy` only)."""
    seen = causal(batch, window, step)
    if not how.legacy:
        return seen, None
    own, at = own_document(batch)
    beyond = own & (torch.arange(batch.tokens.shape[1], device=own.device) > at[:, :, None] + step)
    return seen | beyond, beyond


def chain_attention(
    q: Tensor, chain: list[tuple[Tensor, Tensor]], seen: Tensor, zeroed: Tensor | None = None
) -> Tensor:
    """Attention of the pass whose keys stand last in `chain`.

    One softmax over the rows of pass 0 that are seen and, of each later pass, the row itself: exactly what a drafted
    row sees.

    q [n, H, Q, d]; chain: (k, v), of pass 0 [n, KV, T, d] and of every later pass [n, KV, Q, d]; seen, zeroed [n, Q, T]
    bool: scores are taken where seen, and are 0 where zeroed. Returns [n, Q, H*d].
    """
    (k0, v0), later = chain[0], chain[1:]
    n, heads, rows, dim = q.shape
    context, group = k0.shape[2], heads // k0.shape[1]
    folded = q.reshape(n, -1, group, rows, dim) * dim**-0.5
    scores = torch.einsum("ngmtd,ngsd->ngmts", folded, k0)
    if zeroed is not None:
        scores = scores.masked_fill(zeroed[:, None, None], 0.0)
    scores = scores.masked_fill(~seen[:, None, None], float("-inf"))
    own = torch.stack([(folded * k[:, :, None]).sum(-1) for k, _ in later], dim=-1)
    weights = torch.cat((scores, own), dim=-1).softmax(-1)
    out = torch.einsum("ngmts,ngsd->ngmtd", weights[..., :context], v0)
    for index, (_, v) in enumerate(later):
        out = out + weights[..., context + index, None] * v[:, :, None]
    return out.reshape(n, heads, rows, dim).transpose(1, 2).reshape(n, rows, heads * dim)
