"""The EAGLE-3 network and its drafting, shared by `eagle3` and `eagle3.1`, which differ in the default of two flags.

Source: eagle.md 1.2 and 1.3 (EAGLE-3, arXiv 2503.01840; EAGLE-3.1, arXiv 2605.09992). Knows nothing of growth,
verification, sampling or training objectives; of the target it knows its taps, its embedding and its head.

Row t pairs the target's features of position t with the embedding of x_{t+1} and predicts x_{t+2} (eagle.md 0.1), so
the row of a draft node at position p stands at rotary position p-1, and the newest committed row is the root's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import attrs
import torch
from torch import Tensor, nn
from torch.nn import functional

from drafterzoo.drafters.attention import grouped_attention, rotary, rotate
from drafterzoo.drafters.base import Drafter, UnrollBatch, counted, with_options
from drafterzoo.drafters.context import ContextCache
from drafterzoo.engine.contract import Committed, Counters, Frontier, Offers
from drafterzoo.errors import CheckpointError, UsageError
from drafterzoo.target.packed import PackedLinear, can_pack

if TYPE_CHECKING:
    from drafterzoo.engine.sampling import Selector
    from drafterzoo.target.target import Target


MOST_LAYERS, WIDEST = 256, 1 << 17
WIDTHS = ("hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim")


@attrs.frozen
class Eagle3Config:
    """Sizes and flags of an EAGLE-3 body.

    taps: boundaries of the target, fused in this order. head, embedding: "borrowed" takes the target's (the head cut to
    the draft vocabulary) and saves nothing; "own" stores them in the checkpoint. The four norm flags are those of
    eagle.md 1.2 and 1.3. coupling: weights of log q and of the noise in the coupled score (engine/sampling.py), fitted
    after training. packed_dtype: in what linear layers multiply when they are packed, beside a target that is;
    "bfloat16" reads half the memory, "int8" a quarter, and both round the products, which changes drafts a little and
    never the text (target/packed.py). "auto" takes bfloat16 where the CPU multiplies it by itself, int8 elsewhere.
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
    num_layers: int = 1
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    attention_bias: bool = False
    qk_norm: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    head: Literal["own", "borrowed"] = "own"
    embedding: Literal["own", "borrowed"] = "borrowed"
    coupling: tuple[float, float] = (1.0, 1.0)
    packed_dtype: Literal["auto", "float32", "bfloat16", "int8"] = "auto"

    # Several drafters share this config: whoever builds one says for which, and the messages here name none.

    def __attrs_post_init__(self) -> None:
        if self.fc_norm and self.norm_before_fc:
            raise UsageError("fc_norm and norm_before_fc exclude each other (eagle.md 1.3); set one of them to false.")
        self._check_sizes()
        if not (self.rms_norm_eps >= 0 and all(0 < weight < math.inf for weight in self.coupling)):
            raise UsageError(
                f"rms_norm_eps={self.rms_norm_eps} and coupling={list(self.coupling)}, expected an eps that is not "
                f"negative and two weights above zero."
            )
        if len(set(self.taps)) < len(self.taps):
            raise UsageError(
                f"taps={list(self.taps)} name a boundary more than once; name each once, for example taps=(2, 15, 27)."
            )
        if self.hidden_size != self.target_hidden_size and "borrowed" in (self.head, self.embedding):
            raise UsageError(
                f"hidden_size={self.hidden_size} differs from the target's {self.target_hidden_size}, so head and "
                f"embedding cannot be borrowed; set head='own' and embedding='own'."
            )

    def _check_sizes(self) -> None:
        for name in ("hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim", "rope_theta"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"{name}={getattr(self, name)}, expected a number above zero.")
        # a damaged config must not be answered by allocating until the machine gives up
        for name, most in (("num_layers", MOST_LAYERS), *((name, WIDEST) for name in WIDTHS)):
            if getattr(self, name) > most:
                raise UsageError(f"{name}={getattr(self, name)}, expected at most {most}.")
        if self.head_dim % 2:
            raise UsageError(f"head_dim={self.head_dim} cannot be rotated in pairs; give an even number.")
        if self.num_heads % self.num_kv_heads:
            raise UsageError(f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}.")
        if not self.taps or self.num_layers < 1:
            raise UsageError("at least one tap and one layer are needed, for example taps=(2, 15, 27), num_layers=1.")
        if not 0 < self.draft_vocab_size <= self.vocab_size:
            raise UsageError(
                f"draft_vocab_size={self.draft_vocab_size} must lie between 1 and the target's {self.vocab_size}."
            )


class Eagle3Attention(nn.Module):
    """Self-attention over committed and drafted rows; in layer 0 its input is twice as wide (embedding first)."""

    def __init__(self, config: Eagle3Config, width: int) -> None:
        super().__init__()
        self.config = config
        bias, dim = config.attention_bias, config.head_dim
        self.q_proj = nn.Linear(width, config.num_heads * dim, bias=bias)
        self.k_proj = nn.Linear(width, config.num_kv_heads * dim, bias=bias)
        self.v_proj = nn.Linear(width, config.num_kv_heads * dim, bias=bias)
        self.o_proj = nn.Linear(config.num_heads * dim, config.hidden_size, bias=bias)
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(dim, eps=config.rms_norm_eps)
            self.k_norm = nn.RMSNorm(dim, eps=config.rms_norm_eps)

    def queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """q [n, H, R, d] of x [n, R, width], rotated."""
        q = self.q_proj(x).unflatten(-1, (-1, self.config.head_dim))
        return rotate((self.q_norm(q) if self.config.qk_norm else q).transpose(1, 2), cos, sin)

    def keys(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """k (rotated) and v [n, KV, R, d] of x [n, R, width]."""
        k, v = (p(x).unflatten(-1, (-1, self.config.head_dim)) for p in (self.k_proj, self.v_proj))
        return rotate((self.k_norm(k) if self.config.qk_norm else k).transpose(1, 2), cos, sin), v.transpose(1, 2)


class Eagle3Mlp(nn.Module):
    """The gated feed-forward block."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Eagle3Layer(nn.Module):
    """One decoder layer. Layer 0 reads the normed token embedding beside the normed feature; later layers are plain."""

    def __init__(self, config: Eagle3Config, first: bool) -> None:
        super().__init__()
        h, eps = config.hidden_size, config.rms_norm_eps
        self.first, self.norm_before_residual = first, config.norm_before_residual
        self.input_layernorm = nn.RMSNorm(h, eps=eps)
        if first:
            self.hidden_norm = nn.RMSNorm(h, eps=eps)
        self.self_attn = Eagle3Attention(config, 2 * h if first else h)
        self.post_attention_layernorm = nn.RMSNorm(h, eps=eps)
        self.mlp = Eagle3Mlp(config)

    def enter(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The residual and the attention input, both before any attention."""
        if not self.first:
            return hidden, self.input_layernorm(hidden)
        normed = self.hidden_norm(hidden)
        residual = normed if self.norm_before_residual else hidden
        return residual, torch.cat((self.input_layernorm(embedded), normed), dim=-1)

    def leave(self, residual: Tensor, attended: Tensor) -> Tensor:
        """The layer's output from its residual and what attention brought (before o_proj)."""
        residual = residual + self.self_attn.o_proj(attended)
        return residual + self.mlp(self.post_attention_layernorm(residual))


@attrs.define(eq=False)
class Eagle3State:
    """Requests in flight: context K/V, and the recurrent output of every row of this round (row 0: the root's)."""

    cache: ContextCache
    outputs: Tensor  # [n, 1+scratch, h], what recurs
    normed: Tensor  # [n, h], the root's head input
    counters: Counters = attrs.Factory(Counters)

    def keep(self, requests: Tensor) -> None:
        self.cache.keep(requests)
        self.outputs, self.normed = self.outputs[requests], self.normed[requests]


class Eagle3Body(Drafter):
    """An EAGLE-3 drafter: one or more layers, fused taps, reduced vocabulary, recurrence on its own output."""

    Config: ClassVar[type] = Eagle3Config
    capabilities: frozenset[str] = frozenset({"recurrent"})
    flags: ClassVar[dict[str, Any]] = {}

    config: Eagle3Config
    d2t: Tensor
    t2d: Tensor

    def __init__(self, config: Eagle3Config, target: Target) -> None:
        super().__init__(config, target)
        h, eps, reduced = config.hidden_size, config.rms_norm_eps, config.draft_vocab_size < config.vocab_size
        self.fc = nn.Linear(len(config.taps) * config.target_hidden_size, h, bias=False)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(nn.RMSNorm(config.target_hidden_size, eps=eps) for _ in config.taps)
        if config.norm_before_fc:
            self.input_norm = nn.RMSNorm(len(config.taps) * config.target_hidden_size, eps=eps)
        layers = nn.ModuleList(Eagle3Layer(config, first=i == 0) for i in range(config.num_layers))
        self.layers = cast("Sequence[Eagle3Layer]", layers)  # a ModuleList does not say what it holds
        self.norm = nn.RMSNorm(h, eps=eps)
        if config.head == "own":
            self.lm_head = nn.Linear(h, config.draft_vocab_size, bias=False)
        if config.embedding == "own":
            self.embed_tokens = nn.Embedding(config.vocab_size, h)
        if reduced:
            # Offsets, not ids: target id = draft id + d2t[draft id] (eagle.md 0.5); the first D until a map is set.
            self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
            self.register_buffer("t2d", torch.arange(config.vocab_size) < config.draft_vocab_size)
        self._borrowed: dict[str, Any] = {}
        self.borrow()

    # -- construction ------------------------------------------------------------------------------------------

    @classmethod
    def default_config(cls, target: Target, **options: Any) -> Eagle3Config:
        """Taps 2, L//2, L-3 (eagle.md 0.4), the target's widths, D = 32000 or the whole vocabulary."""
        layers = target.num_layers
        if "taps" not in options and layers < 7:
            raise UsageError(
                f"{cls.name}: the usual taps 2, L//2, L-3 need a target of at least 7 layers and this one has "
                f"{layers}; name them, for example taps=(1, {layers})."
            )
        text = target.model.config.get_text_config()
        heads = text.num_attention_heads
        values = dict(
            vocab_size=target.vocab_size,
            target_hidden_size=target.hidden_size,
            taps=(2, layers // 2, layers - 3),
            hidden_size=target.hidden_size,
            intermediate_size=getattr(text, "intermediate_size", 4 * target.hidden_size),
            num_heads=heads,
            num_kv_heads=getattr(text, "num_key_value_heads", heads),
            head_dim=getattr(text, "head_dim", None) or target.hidden_size // heads,
            draft_vocab_size=min(32000, target.vocab_size),
            **cls.flags,
        )
        return with_options(cls.Config, cls.name, values, options)

    @classmethod
    def debug_config(cls, target: Target) -> Eagle3Config:
        return cls.default_config(
            target,
            draft_vocab_size=max(2, target.vocab_size * 3 // 4),
            intermediate_size=48,
            num_heads=4,
            num_kv_heads=2,
            head_dim=8,
        )

    @classmethod
    def from_checkpoint(cls, saved: Any, target: Target) -> Eagle3Body:
        drafter = super().from_checkpoint(saved, target)
        drafter.check_maps(saved.weights_file)
        drafter.borrow()
        return drafter

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

    def set_vocabulary(self, ids: Tensor) -> None:
        """Fix the draft vocabulary to these target ids [D], in any order; they are stored ascending.

        Raises UsageError when they are not D different ids of the target.
        """
        ids = ids.unique().to(self.norm.weight.device)
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
        elif int(ids.min()) < 0 or int(ids.max()) >= self.config.vocab_size or not (ids.diff() > 0).all():
            wrong = "id + d2t[id] is not strictly ascending within the target's vocabulary (are these absolute ids?)"
        elif not self.t2d[ids].all():
            wrong = "d2t and t2d name different ids"
        if wrong:
            raise CheckpointError(f"{where}: {wrong}; d2t must hold offsets, target id = draft id + d2t[draft id].")

    def borrow(self) -> None:
        """Take the target's embedding and head rows, as far as the config says so: neither trained nor saved."""
        dtype = self.norm.weight.dtype
        if self.config.embedding == "borrowed":
            self._borrowed["embedding"] = self.target.embedding_weight().detach()
        if self.config.head == "borrowed":
            head = nn.utils.skip_init(nn.Linear, self.config.hidden_size, self.config.draft_vocab_size, bias=False)
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

    # -- the network -------------------------------------------------------------------------------------------

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings [..., h] of target ids."""
        if self.config.embedding == "own":
            return self.embed_tokens(tokens)
        return functional.embedding(tokens, self._borrowed["embedding"]).to(self.norm.weight.dtype)

    def fc_input(self, features: Tensor) -> Tensor:
        """The concatenated taps [..., T*H] with the norms that the flags put before `fc`."""
        features = features.to(self.norm.weight.dtype)
        if self.config.norm_before_fc:
            features = self.input_norm(features)
        if self.config.fc_norm:
            parts = features.unflatten(-1, (len(self.taps), -1)).unbind(-2)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return features

    def fuse(self, features: Tensor) -> Tensor:
        """[..., T*H] -> [..., h]: what the first draft step reads."""
        # under autocast too, what recurs is a sum in the dtype of the weights
        return self.fc(self.fc_input(features)).to(self.norm.weight.dtype)

    def finish(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(what recurs, what the head reads) from the last layer's output: the final norm applies exactly once."""
        normed = self.norm(hidden)
        return (normed if self.config.norm_output else hidden), normed

    def logits(self, hidden: Tensor) -> Tensor:
        if self.config.head == "own":
            return self.lm_head(hidden)
        return self._borrowed["linear"](hidden)

    def head_matrix(self) -> Tensor:
        head = self.lm_head if self.config.head == "own" else self._borrowed["linear"]
        return head.to_dense() if isinstance(head, PackedLinear) else head.weight

    def pack(self) -> None:
        super().pack()
        if isinstance(head := self._borrowed.get("linear"), nn.Linear) and can_pack(head):
            self._borrowed["linear"] = PackedLinear(head, self.packed_dtype())

    # -- drafting ----------------------------------------------------------------------------------------------

    def open(self, target: Target, n: int, capacity: int, depth: int, rows: int) -> Eagle3State:
        c, like = self.config, self.norm.weight
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
        return Eagle3State(cache, outputs, outputs[:, 0].clone())

    def observe(self, state: Eagle3State, committed: Committed) -> None:
        cache = state.cache
        cache.longest = committed.longest
        slots = cache.committed_slots(committed.positions, committed.valid)
        mask = cache.committed_mask(committed.positions, committed.valid)
        hidden = self._forward(
            state,
            committed.next_tokens,
            self.fuse(committed.features),
            committed.positions,
            slots,
            mask,
            cache.committed,
        )
        newest = committed.last[:, None]
        cache.lengths = committed.positions.gather(1, newest)[:, 0] + 1
        recurs, state.normed = self.finish(hidden.gather(1, newest[..., None].expand(-1, 1, hidden.shape[-1]))[:, 0])
        state.outputs[:, 0] = recurs

    def expand(self, state: Eagle3State, frontier: Frontier, select: Selector) -> Offers:
        if frontier.step == 0:
            return select(self.logits(state.normed)[:, None], frontier, self._borrowed["ids"])
        first, width = frontier.first_row, frontier.width
        rows = torch.arange(first, first + width, device=frontier.tokens.device)
        slots = (rows - 1).expand(len(frontier.tokens), width)
        sources = frontier.sources[..., None].expand(-1, -1, state.outputs.shape[-1])
        mask = state.cache.drafted_mask(frontier.visible[:, :, 1:])
        hidden = self._forward(
            state,
            frontier.tokens,
            state.outputs.gather(1, sources),
            frontier.positions - 1,
            slots,
            mask,
            state.cache.everything,
        )
        state.outputs[:, first : first + width], normed = self.finish(hidden)
        return select(self.logits(normed), frontier, self._borrowed["ids"])

    def _forward(
        self,
        state: Eagle3State,
        tokens: Tensor,
        hidden: Tensor,
        positions: Tensor,
        slots: Tensor,
        mask: Tensor,
        view: Callable[[int], tuple[Tensor, Tensor]],
    ) -> Tensor:
        """The layers over rows [n, R]: writes K/V at `slots`, attends what `view` shows and `mask` [n, R, S] allows."""
        counted(state, tokens.shape[1])
        embedded = self.embed(tokens)
        cos, sin = rotary(positions, self.config.head_dim, self.config.rope_theta, hidden.dtype)
        for index, layer in enumerate(self.layers):
            residual, x = layer.enter(embedded, hidden)
            state.cache.write(index, slots, *layer.self_attn.keys(x, cos, sin))
            q = layer.self_attn.queries(x, cos, sin)
            hidden = layer.leave(residual, grouped_attention(q, *view(index), mask))
        return hidden

    # -- the training forward ----------------------------------------------------------------------------------

    def unroll(self, batch: UnrollBatch, passes: int) -> list[Tensor]:
        """Training-time test (eagle.md 3.2). Returns the head inputs of every pass [n, Q, h].

        Pass j at row t reads x_{t+1+j}, its own output of pass j-1 at row t, the keys of pass 0 at rows up to t, and
        one key of each later pass at row t.
        """
        chains, hidden = self._first_pass(batch)
        recurs, normed = self.finish(hidden)
        read = [normed]
        causal, positions = _causal(batch), _at(batch.positions, batch.queries)
        for step in range(1, passes):
            embedded, hidden = self.embed(_at(shift_left(batch.tokens, 1 + step), batch.queries)), recurs
            cos, sin = rotary(positions + step, self.config.head_dim, self.config.rope_theta, hidden.dtype)
            for layer, chain in zip(self.layers, chains, strict=True):
                residual, x = layer.enter(embedded, hidden)
                chain.append(layer.self_attn.keys(x, cos, sin))
                hidden = layer.leave(residual, chain_attention(layer.self_attn.queries(x, cos, sin), chain, causal))
            recurs, normed = self.finish(hidden)
            read.append(normed)
        return read

    def _first_pass(self, batch: UnrollBatch) -> tuple[list[list[tuple[Tensor, Tensor]]], Tensor]:
        """Pass 0: keys of every row in every layer, the last layer's output of the wanted rows [n, Q, h]."""
        hidden, embedded = self.fuse(batch.features), self.embed(shift_left(batch.tokens, 1))
        cos, sin = rotary(batch.positions, self.config.head_dim, self.config.rope_theta, hidden.dtype)
        everything = UnrollBatch(batch.tokens, batch.features, batch.positions, batch.documents)
        chains = []
        for index, layer in enumerate(self.layers):
            residual, x = layer.enter(embedded, hidden)
            keys = layer.self_attn.keys(x, cos, sin)
            wanted = batch if index == len(self.layers) - 1 else everything  # earlier layers feed the keys of all rows
            residual, x = _at(residual, wanted.queries), _at(x, wanted.queries)
            here = rotary(
                _at(batch.positions, wanted.queries), self.config.head_dim, self.config.rope_theta, hidden.dtype
            )
            hidden = layer.leave(residual, grouped_attention(layer.self_attn.queries(x, *here), *keys, _causal(wanted)))
            chains.append([keys])
        return chains, hidden


def _at(x: Tensor, rows: Tensor | None) -> Tensor:
    """x [n, T, ...] at `rows` [n, Q]; all of it for None."""
    return x if rows is None else x[torch.arange(len(x), device=x.device)[:, None], rows]


def _causal(batch: UnrollBatch) -> Tensor:
    """Mask [n, Q, T]: a wanted row sees the rows of its document up to itself."""
    own, row = _at(batch.documents, batch.queries), torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    at = row.expand_as(batch.documents) if batch.queries is None else batch.queries
    return (own[:, :, None] == batch.documents[:, None, :]) & (row <= at[:, :, None])


def shift_left(x: Tensor, by: int) -> Tensor:
    """x [n, T] moved `by` rows to the left, zeros filling in at the end."""
    return functional.pad(x[:, by:], (0, by))


def chain_attention(q: Tensor, chain: list[tuple[Tensor, Tensor]], causal: Tensor) -> Tensor:
    """Attention of the pass whose keys stand last in `chain`.

    One softmax over the causal rows of pass 0 and, of each later pass, the row itself: exactly what a drafted row sees.

    q [n, H, Q, d]; chain: (k, v), of pass 0 [n, KV, T, d] and of every later pass [n, KV, Q, d]; causal [n, Q, T] bool.
    Returns [n, Q, H*d].
    """
    (k0, v0), later = chain[0], chain[1:]
    n, heads, rows, dim = q.shape
    context, group = k0.shape[2], heads // k0.shape[1]
    folded = q.reshape(n, -1, group, rows, dim) * dim**-0.5
    scores = torch.einsum("ngmtd,ngsd->ngmts", folded, k0).masked_fill(~causal[:, None, None], float("-inf"))
    own = torch.stack([(folded * k[:, :, None]).sum(-1) for k, _ in later], dim=-1)
    weights = torch.cat((scores, own), dim=-1).softmax(-1)
    out = torch.einsum("ngmts,ngsd->ngmtd", weights[..., :context], v0)
    for index, (_, v) in enumerate(later):
        out = out + weights[..., context + index, None] * v[:, :, None]
    return out.reshape(n, heads, rows, dim).transpose(1, 2).reshape(n, rows, heads * dim)
