"""DSpark (arXiv 2607.05147): DFlash's block, with a head that reads the token before, and one that doubts.

Source: block.md 3. Knows the Markov head, its gated and recurrent forms, and the confidence head; how a block is
drafted and trained is in block_body.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs
import torch
from torch import Tensor, nn
from torch.nn import functional

from drafterzoo.checkpoint import LATER
from drafterzoo.drafters.block_body import BlockConfig, Read
from drafterzoo.drafters.block_options import MARKOV_MEANINGS
from drafterzoo.drafters.dflash import SharedContext
from drafterzoo.errors import UsageError
from drafterzoo.target.packed import PackedLinear

if TYPE_CHECKING:
    from drafterzoo.target.target import Target

MOST_RANK = 1 << 14  # of the bias: beyond, a damaged config


@attrs.frozen
class DSparkConfig(BlockConfig):
    """A block drafter's config, and the two heads (block.md 3.2).

    markov: how the token before biases the logits; "none" has no bias, and is DFlash in DeepSpec's layout.
    markov_rank: width of the bias. confidence: whether there is a confidence head; confidence_with_markov: whether it
    reads the token before, too. confidence_temperatures: of each depth, by which its logits are divided (sequential
    temperature scaling), fitted after training; empty: none was fitted.
    """

    markov: Literal["vanilla", "gated", "rnn", "none"] = "vanilla"
    markov_rank: int = 256
    confidence: bool = True
    confidence_with_markov: bool = True
    confidence_temperatures: tuple[float, ...] = attrs.field(default=(), metadata=LATER)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if not 1 <= self.markov_rank <= MOST_RANK:
            raise UsageError(f"markov_rank={self.markov_rank}, expected a number from 1 to {MOST_RANK}.")
        if self.markov == "none" and self.confidence and self.confidence_with_markov:
            raise UsageError("confidence_with_markov=true needs a markov head, and markov='none'; set it to false.")
        temperatures = self.confidence_temperatures
        if temperatures and (len(temperatures) != self.proposals or min(temperatures) <= 0):
            raise UsageError(
                f"confidence_temperatures={list(temperatures)}, expected {self.proposals} numbers above zero, or none."
            )


class MarkovHead(nn.Module):
    """The bias that the token before adds to a row's logits: W2 u, with u made of that token's row of W1."""

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__()
        rank, width = config.markov_rank, config.hidden_size
        self.kind = config.markov
        self.markov_w1 = nn.Embedding(config.vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, config.draft_vocab_size, bias=False)
        if self.kind == "gated":
            self.gate_proj = nn.Linear(width + rank, rank)
        elif self.kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + width, 3 * rank)
        nn.init.normal_(self.markov_w1.weight, std=0.02)
        nn.init.zeros_(self.markov_w2.weight)  # at first there is no bias

    def read(self, hidden: Tensor, tokens: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(u [n, Q, r], the state handed down [n, Q, r] or None) for rows as in BlockBody.settle."""
        embedded = self.markov_w1(tokens)
        if self.kind == "vanilla":
            return embedded, None
        hidden = hidden.expand(*embedded.shape[:-1], -1)
        if self.kind == "gated":
            return self.gate_proj(torch.cat((hidden, embedded), dim=-1)).sigmoid() * embedded, None
        assert memory is not None, "a recurrent head has a state"
        joint = self.joint_proj(torch.cat((memory.expand_as(embedded), embedded, hidden), dim=-1))
        gate, candidate, output = joint.chunk(3, dim=-1)
        return output.tanh(), torch.lerp(candidate.tanh(), memory.expand_as(embedded), gate.sigmoid())


class ConfidenceHead(nn.Module):
    """The chance that a draft is accepted, given that those before it were (block.md 3.2)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x)[..., 0]


class DSpark(SharedContext):
    """DFlash's block, whose head reads the token before: drafted in parallel, chosen one after the other.

    A confidence head says how far to trust a draft. The token before enters as a low-rank bias of the logits.
    """

    name: ClassVar[str] = "dspark"
    Config: ClassVar[type] = DSparkConfig
    source: ClassVar[str] = "DSpark, arXiv 2607.05147"
    meanings: ClassVar[Mapping[str, str]] = MARKOV_MEANINGS
    flags: ClassVar[dict[str, Any]] = {"layout": "anchor_first", "block_size": 7}

    config: DSparkConfig

    def __init__(self, config: DSparkConfig, target: Target) -> None:
        super().__init__(config, target)
        if config.markov != "none":
            self.markov_head = MarkovHead(config)
        if config.confidence:
            rank = config.markov_rank if config.confidence_with_markov else 0
            self.confidence_head = ConfidenceHead(config.hidden_size + rank)
            self.capabilities = self.capabilities | {"confidence"}
        self.furnish()

    @classmethod
    def debug_config(cls, target: Target) -> Any:
        return attrs.evolve(super().debug_config(target), markov="rnn", markov_rank=6)

    @property
    def memory_size(self) -> int:
        return self.config.markov_rank if self.config.markov == "rnn" else 0

    def settle(self, hidden: Tensor, tokens: Tensor, memory: Tensor | None) -> Read:
        if self.config.markov == "none":
            return Read(hidden)
        return Read(hidden, *self.markov_head.read(hidden, tokens, memory))

    def logits_below(self, read: Read) -> Tensor:
        logits = super().logits(read.hidden)
        return logits if read.extra is None else logits + self.markov_head.markov_w2(read.extra)

    def logits(self, hidden: Tensor) -> Tensor:
        if self.config.markov == "none":
            return super().logits(hidden)
        own, extra = hidden.split((self.config.hidden_size, self.config.markov_rank), dim=-1)
        return self.logits_below(Read(own, extra))

    def head_matrix(self) -> Tensor:
        head = super().head_matrix()
        if self.config.markov == "none":
            return head
        bias = self.markov_head.markov_w2
        return torch.cat((head, bias.to_dense() if isinstance(bias, PackedLinear) else bias.weight), dim=-1)

    def confidence(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Logits [n, Q] of the chance that the drafts of rows [n, 1 or Q, h] below `tokens` [n, Q] are accepted."""
        if self.config.confidence_with_markov:
            embedded = self.markov_head.markov_w1(tokens)
            hidden = torch.cat((hidden.expand(*embedded.shape[:-1], -1), embedded), dim=-1)
        return self.confidence_head(hidden)

    def hope(self, hidden: Tensor, tokens: Tensor, depth: int) -> Tensor:
        logits = self.confidence(hidden, tokens).expand(tokens.shape)
        if self.config.confidence_temperatures:
            logits = logits / self.config.confidence_temperatures[depth]
        return functional.logsigmoid(logits.float())
