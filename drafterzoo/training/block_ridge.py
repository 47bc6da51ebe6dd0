"""A closed-form start for a block drafter: it looks where most is said of what comes next, and reads off what follows.

[our design, block.md 1.1] From random weights a block drafter must first find, among hundreds of rows, the two that say
most: the last row of the context and the anchor. Here the heads look at them from the beginning, by rotary positions
and by three directions of the width that tell rows of the context, anchors and masks apart. Every projection behind
them is then solved by ridge regression, in order, on what those before it leave to be said of the target's next hidden
states. Knows a block drafter's layers, and least squares; nothing of recipes, steps or objectives.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import attrs
import torch
from torch import Tensor, nn
from torch.nn import functional

from drafterzoo.drafters.base import Unrolling
from drafterzoo.drafters.block_body import BlockBody, Read
from drafterzoo.drafters.rope import rotary
from drafterzoo.errors import UsageError
from drafterzoo.training.batches import pack
from drafterzoo.training.features import Document
from drafterzoo.training.objectives.base import TrainingBatch

SHARPNESS = 32.0  # by how much the score of the row looked at stands out
REACH = 512  # positions over which the nearest row must stand out
ANCHORS = 64  # of each document
FADING = 1.5  # a proposal counts exp(-k / FADING), k = 0 for the first: one after a wrong one is of no use
STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)  # of the ridge, the best on documents held out
HELD_OUT = 4  # every fourth document
SHARES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12)  # of what is predicted, which a head may take for more than it is
ROWS_JUDGED = 1024  # by which of these it is surprised least
CONSTANT = 0.5  # share of a context row's square that is the sign of its being one

# What the heads that share keys look at, from layer to layer: the last row of the context or the anchor, from all
# slots (0) or from those alone that propose the first so many tokens, the others looking at the masks.
ROLES: tuple[tuple[Literal["last", "anchor"], int], ...] = (
    ("last", 0),
    ("anchor", 0),
    ("last", 1),
    ("anchor", 1),
    ("last", 3),
    ("anchor", 3),
)


@torch.no_grad()
def block_ridge_start(drafter: BlockBody, documents: Iterable[Document], rows: int, *, seed: int = 0) -> None:
    """Give all of the drafter's weights but its feed-forward gates such a start, from blocks of up to `rows` anchors.

    Raises UsageError for a drafter without norms of queries and keys, by which a key is as long as any other, and for
    one that is not as wide as its target, whose head it could not read by.
    """
    config = drafter.config
    if not config.qk_norm or config.hidden_size != config.target_hidden_size:
        raise UsageError(
            'recipe [init]: fc = "ridge" needs a block drafter with qk_norm = true and the target\'s width; '
            "set them in [drafter], or leave fc out."
        )
    batches = list(_batches(documents, rows, seed))
    goal = _Goal.of(drafter, batches)
    signs = _Signs.of(drafter, batches)
    keys, basis = _Keys.of(drafter), _fuse(drafter, batches, goal, signs)
    for layer in drafter.layers:
        nn.init.zeros_(layer.self_attn.o_proj.weight)
        nn.init.zeros_(layer.mlp.down_proj.weight)
    for index, layer in enumerate(drafter.layers):
        _look(drafter, index, signs, keys, basis)
        for projection in (layer.self_attn.o_proj, layer.mlp.down_proj):
            _solve(drafter, batches, goal, signs, projection)
    _temper(drafter, batches, goal)


def _batches(documents: Iterable[Document], rows: int, seed: int) -> Iterator[TrainingBatch]:
    """One of each document, until they have so many anchors."""
    generator, seen = torch.Generator().manual_seed(seed), 0
    for document in documents:
        if seen >= rows:
            return
        batch = pack([document], ANCHORS, generator)
        if len(_roots(batch)):
            seen += len(_roots(batch))
            yield batch


def _roots(batch: TrainingBatch) -> Tensor:
    """The rows [Q] of a batch of one document below which a block is drafted: the last before its anchor."""
    assert batch.queries is not None, "as `pack` lays documents out"
    return batch.queries[0]


@attrs.frozen(eq=False)
class _Goal:
    """What the rows of a block should be: the target's final hidden states, every channel at unit scale.

    gain [h]: the scale of each channel; counts [P]: what each proposal of a block counts.
    """

    gain: Tensor
    counts: Tensor

    @classmethod
    def of(cls, drafter: BlockBody, batches: Sequence[TrainingBatch]) -> _Goal:
        hidden = torch.cat([batch.hidden[0] for batch in batches])
        gain = hidden.square().mean(0).sqrt().clamp(min=1e-6)
        return cls(gain, (-torch.arange(drafter.config.proposals) / FADING).exp())

    def rows(self, batch: TrainingBatch) -> tuple[Tensor, Tensor]:
        """For the blocks of a batch, [Q, P, h], and what each row counts [Q, P]: nothing behind the document's end."""
        at = _roots(batch)[:, None] + 1 + torch.arange(len(self.counts))
        there = at < batch.tokens.shape[1]
        return batch.hidden[0][at.clamp(max=batch.tokens.shape[1] - 1)] / self.gain, there * self.counts


class _Moments:
    """Sums of products for a weighted ridge regression from [N, i] to [N, o], some of them held out."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.xx = torch.zeros(2, inputs, inputs, dtype=torch.float64)
        self.xy = torch.zeros(2, inputs, outputs, dtype=torch.float64)

    def add(self, x: Tensor, y: Tensor, counts: Tensor | None = None, *, held_out: bool) -> None:
        weighed = x if counts is None else x * counts[:, None]
        self.xx[int(held_out)] += weighed.T @ x
        self.xy[int(held_out)] += weighed.T @ y

    def solve(self) -> Tensor:
        """The map [i, o], at the strength that errs least on what was held out."""
        errors = {strength: self._error(_ridge(self.xx[0], self.xy[0], strength)) for strength in STRENGTHS}
        return _ridge(self.xx.sum(0), self.xy.sum(0), min(errors, key=lambda strength: errors[strength]))

    def _error(self, found: Tensor) -> float:
        """Of the held-out rows, less their own square, which no map changes."""
        return float((found * (self.xx[1] @ found - 2 * self.xy[1])).sum())


def _ridge(xx: Tensor, xy: Tensor, strength: float) -> Tensor:
    return torch.linalg.solve(xx + strength * xx.diagonal().mean() * torch.eye(len(xx), dtype=xx.dtype), xy)


@attrs.frozen(eq=False)
class _Signs:
    """What tells the rows apart that a block attends: directions of what the layers read, after its norm.

    anchor, mask [h]: 1 on anchors' and on masks' embeddings, 0 on the others'; context [h]: a unit vector on which
    embeddings have next to nothing. Rows of the context are given something on `context` and nothing on the others, and
    no layer writes on any of the three. rest [h-3, h]: an orthonormal basis of what is left.
    """

    anchor: Tensor
    mask: Tensor
    context: Tensor
    rest: Tensor

    @classmethod
    def of(cls, drafter: BlockBody, batches: Sequence[TrainingBatch]) -> _Signs:
        anchors = torch.cat([_anchors(drafter, batch) for batch in batches]).double()
        mask = _normed(drafter, drafter.blocks(batches[0].tokens[0, :1], 2)[0, 1]).double()
        square, empty, mean = anchors.T @ anchors / len(anchors), torch.outer(mask, mask), anchors.mean(0)
        sign = _ridge(square + 100 * empty, mean[:, None], 1e-3)[:, 0]
        other = _ridge(100 * square + empty, mask[:, None], 1e-4)[:, 0]
        other = other / (other @ mask)
        sign = sign - other * (sign @ mask)
        eye = torch.eye(len(mask), dtype=torch.float64)
        both = torch.linalg.qr(torch.stack((sign, other), dim=1))[0]
        outside = torch.linalg.qr(torch.cat((both, eye), dim=1))[0][:, 2:]
        least = torch.linalg.eigh(outside.T @ (square + empty) @ outside)[1][:, 0]
        context = outside @ least
        taken = torch.cat((both, context[:, None]), dim=1)
        rest = torch.linalg.qr(torch.cat((taken, eye), dim=1))[0][:, 3:].T
        return cls(sign, other, context, rest)


def _normed(drafter: BlockBody, rows: Tensor) -> Tensor:
    return functional.rms_norm(rows, rows.shape[-1:], eps=drafter.config.rms_norm_eps)


def _anchors(drafter: BlockBody, batch: TrainingBatch) -> Tensor:
    """The embeddings [Q, h] of the blocks' anchors, as the first layer reads them."""
    return _normed(drafter, drafter.embed(batch.tokens[0][_roots(batch) + 1]))


def _fuse(drafter: BlockBody, batches: Sequence[TrainingBatch], goal: _Goal, signs: _Signs) -> Tensor:
    """Make rows of the context of what says most in the taps, the most telling first.

    Their own coordinates and those of anchors are laid over each other, since both are read by the same values.
    Returns what the values read: a basis [h-3, h] of the width without the signs.
    """
    first, width = batches[0], drafter.config.hidden_size
    taps = first.features.shape[-1]
    moments = _Moments(taps + width, len(goal.counts) * width)
    sums, squares, rows = torch.zeros(taps).double(), torch.zeros(taps, taps).double(), 0
    for number, batch in enumerate(batches):
        targets, counts = goal.rows(batch)
        read = torch.cat((batch.features[0][_roots(batch)], _anchors(drafter, batch)), dim=1)
        moments.add(read, (targets * counts.sqrt()[..., None]).flatten(1), held_out=number % HELD_OUT == HELD_OUT - 1)
        own = batch.features[0][1:]  # not the first: it is where attention goes that is not needed, and huge
        sums, squares, rows = sums + own.sum(0), squares + own.T @ own, rows + len(own)
    solved, square = moments.solve(), moments.xx.sum(0) / sum(len(_roots(batch)) for batch in batches)
    telling = _telling(square[:taps, :taps], solved[:taps], width - 3)
    alike = _telling(square[taps:, taps:], solved[taps:], width) @ signs.rest.T
    basis = torch.linalg.qr(alike.T)[0].T @ signs.rest
    always = _ridge(squares / rows, (sums / rows)[:, None], 1e-4)[:, 0]  # 1 on every row of the context
    size = math.sqrt((width - 3) * CONSTANT / (1 - CONSTANT))
    drafter.begin_with(basis.T @ telling + size * torch.outer(signs.context, always))
    return basis


def _telling(square: Tensor, solved: Tensor, count: int) -> Tensor:
    """The directions [count, i] of an input that say most of what was solved, each of unit mean square."""
    lower = torch.linalg.cholesky(square + 1e-2 * square.diagonal().mean() * torch.eye(len(square)).to(square))
    white = lower.T @ solved
    order = torch.linalg.eigh(white @ white.T)[1].flip(-1)[:, :count]
    return torch.linalg.solve_triangular(lower.T, order, upper=True).T


def _look(drafter: BlockBody, index: int, signs: _Signs, keys: _Keys, basis: Tensor) -> None:
    """Set a layer's queries, keys and values by its heads' roles."""
    config, attention = drafter.config, drafter.layers[index].self_attn
    dim, shared = config.head_dim, config.num_heads // config.num_kv_heads
    level = math.sqrt(config.hidden_size * CONSTANT)
    key = torch.outer(keys.last, signs.context / level)
    key += torch.outer(keys.anchor, signs.anchor) + torch.outer(keys.mask, signs.mask)
    roles = [ROLES[(index * shared + head) % len(ROLES)] for head in range(shared)]
    query = torch.stack([keys.query(*role) for role in roles]).repeat(config.num_kv_heads, 1).flatten()
    attention.q_proj.weight.copy_(torch.outer(query, signs.anchor + signs.mask))
    attention.k_proj.weight.copy_(key.repeat(config.num_kv_heads, 1))
    attention.v_proj.weight.copy_(basis[torch.arange(config.num_kv_heads * dim) % len(basis)])
    for norm in (attention.q_norm, attention.k_norm):
        norm.weight.fill_(math.sqrt(SHARPNESS / math.sqrt(dim)))


@attrs.frozen(eq=False)
class _Keys:
    """Keys [d] before rotation, of unit length, of the three kinds of rows, and the queries that find them.

    The pairs of a head turn at different speeds, and a sum of their cosines falls with the distance. Every other pair
    serves the context's rows, so that the nearest stands out; the pairs between them the anchor, whose score then says
    how far it is; the slowest one hardly turns and tells anchors (its cosine) and masks (its sine) wherever they are.

    falls: by kind, the score of a row at each distance.
    """

    last: Tensor
    anchor: Tensor
    mask: Tensor
    flat: Tensor
    near: Tensor
    falls: dict[str, Tensor]
    first_slot: int

    @classmethod
    def of(cls, drafter: BlockBody) -> _Keys:
        config = drafter.config
        half, slots = config.head_dim // 2, config.block_size
        cosines = rotary(torch.arange(REACH + 1)[None], config, torch.float32)[0][0, 0, :, :half]
        found: dict[str, tuple[Tensor, Tensor]] = {}
        for kind, begin in (("last", 1), ("anchor", 0)):
            pairs = torch.arange(begin % max(half - 1, 1), half - 1, 2)
            shares = _nearest_first(cosines[:, pairs], slots)
            vector = torch.zeros(config.head_dim)
            vector[pairs] = shares.sqrt()
            found[kind] = vector, cosines[:, pairs] @ shares
        flat, mask = torch.zeros(2, config.head_dim)
        flat[half - 1], mask[-1] = 1.0, 1.0
        (last, by_last), (near, by_near) = found["last"], found["anchor"]
        anchor = (flat + near) / math.sqrt(2)
        falls = {"last": by_last, "anchor": by_near / math.sqrt(2)}
        return cls(last, anchor, mask, flat, near, falls, config.first_slot)

    def query(self, kind: str, first: int) -> Tensor:
        """For a role: the query of all slots, or the one by which those that propose the first so many tell themselves.

        Their row then scores more than the masks do, and beyond them the masks score more.
        """
        if not first:
            return self.last if kind == "last" else self.flat
        slot = first - 1 + self.first_slot
        at = slot + 1 if kind == "last" else slot  # the anchor stands in slot 0, the last row before it
        edge = float(self.falls[kind][at] + self.falls[kind][at + 1]) / 2
        wanted = self.last if kind == "last" else self.near
        return functional.normalize(wanted + self.mask * (edge - math.log(8) / SHARPNESS), dim=0)


def _nearest_first(cosines: Tensor, slots: int) -> Tensor:
    """Shares of pairs [p] whose score at `SHARPNESS` makes the nearest of all rows further than each slot stand out.

    cosines [distances, p]. The likelihood of the nearest is concave in the shares; a few hundred steps find the best.
    """
    logits = torch.zeros(cosines.shape[1], requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    with torch.enable_grad():
        for _ in range(300):
            score = SHARPNESS * (cosines @ logits.softmax(0))
            loss = sum((-score[at:].log_softmax(0)[0] for at in range(1, slots + 1)), torch.zeros(()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return logits.detach().softmax(0)


def _solve(
    drafter: BlockBody, batches: Sequence[TrainingBatch], goal: _Goal, signs: _Signs, projection: nn.Linear
) -> None:
    """Solve a projection for what is left: those behind it are still zero, so the last norm reads what there is."""
    config = drafter.config
    moments = _Moments(projection.in_features, config.hidden_size)
    with _read_by(projection) as inner, _read_by(drafter.norm) as before:
        for number, batch in enumerate(batches):
            drafter.block_rows(batch, config.proposals, Unrolling())
            targets, counts = goal.rows(batch)
            there = counts > 0
            moments.add(
                inner.pop()[0][:, config.first_slot :][there],
                (targets - before.pop()[0])[there],
                counts[there],
                held_out=number % HELD_OUT == HELD_OUT - 1,
            )
    projection.weight.copy_((moments.solve() @ signs.rest.T @ signs.rest).T)


def _temper(drafter: BlockBody, batches: Sequence[TrainingBatch], goal: _Goal) -> None:
    """Let the last norm give no more than can be predicted: of each channel, and as sure as suits the head.

    It makes every row as long as any other, so that a row which says little would be as sure as one that says all.
    Both are found on the documents held out.
    """
    along, square = torch.zeros(2, drafter.config.hidden_size)
    rows, columns = [], []
    with _read_by(drafter.norm) as before:
        for batch in batches[HELD_OUT - 1 :: HELD_OUT] or batches:
            drafter.block_rows(batch, drafter.config.proposals, Unrolling())
            targets, counts = goal.rows(batch)
            found = _normed(drafter, before.pop()[0])
            along += (counts[..., None] * found * targets).sum((0, 1))
            square += (counts[..., None] * found.square()).sum((0, 1))
            here = counts[:, 0] > 0
            rows.append(found[here, 0])
            columns.append(_columns(drafter, batch.argmax[0][_roots(batch)[here] + 1]))
    gain = goal.gain * (along / square.clamp(min=1e-9)).clamp(0.0, 1.0)
    first, wanted = torch.cat(rows)[:ROWS_JUDGED], torch.cat(columns)[:ROWS_JUDGED]

    def surprise(share: float) -> float:
        logits = drafter.logits_below(Read((first * gain * share)[None]))[0].float()
        return float(functional.cross_entropy(logits, wanted, ignore_index=-1))

    drafter.norm.weight.copy_(gain * min(SHARES, key=surprise))


def _columns(drafter: BlockBody, tokens: Tensor) -> Tensor:
    """The head's columns of target ids, -1 where it has none."""
    if drafter.ids is None:
        return tokens
    at = torch.searchsorted(drafter.ids, tokens).clamp(max=len(drafter.ids) - 1)
    return torch.where(drafter.ids[at] == tokens, at, -1)


@contextmanager
def _read_by(module: nn.Module) -> Iterator[list[Tensor]]:
    """What the module is given, call by call."""
    heard: list[Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, given: heard.append(given[0]))
    try:
        yield heard
    finally:
        hook.remove()
