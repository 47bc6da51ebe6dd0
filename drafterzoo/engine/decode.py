"""The decoding loop: prefill, then rounds of drafting, one target call, exact verification and commit.

Knows the contract, the target and the budget; nothing of a drafter's name, of text, files or terminals. Requests of a
batch go through every round together; there is one device-to-host synchronisation per round, at its end. Plain decoding
is the same loop without a drafter: a tree without nodes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from operator import index
from typing import Any

import attrs
import torch
from torch import Tensor

from drafterzoo.budget import Budget
from drafterzoo.engine.contract import Committed, DraftTree, Proposer, Verdict
from drafterzoo.engine.faults import blamed
from drafterzoo.engine.sampling import Coupling, Sampler, Sampling, Selector
from drafterzoo.engine.schedule import SCHEDULES, Throughput
from drafterzoo.engine.source import Live, Source
from drafterzoo.engine.tree import bare_tree, grow, narrowed, shortened
from drafterzoo.errors import DrafterError, UsageError
from drafterzoo.target.target import Reading, Target
from drafterzoo.wording import quantity


@attrs.frozen
class TreeView:
    """One request's draft tree of one round as plain lists (see DraftTree), and the verified path (0 is the root)."""

    tokens: list[int]
    parents: list[int]
    depths: list[int]
    scores: list[float]
    valid: list[bool]
    path: list[int]


@attrs.frozen
class Round:
    """Raw counters of one target call for one request. Tokens that prefill gave belong to no round.

    accepted: draft nodes on the verified path; committed: tokens this call committed, the target's own included; both
    are cut at a stop token. emitted: committed, cut at max_new_tokens too. walked: accepted before any cut, past a stop
    token too: no text, but what some projects count. drafted: draft nodes verified, root excluded. forwards, rows:
    forwards of the drafter's block, and the rows a request had in them. draft_s, verify_s, rest_s: seconds of the
    round, which `batch` requests shared.
    """

    accepted: int
    committed: int
    emitted: int
    drafted: int
    forwards: int
    rows: int
    draft_s: float
    verify_s: float
    rest_s: float
    batch: int
    tree: TreeView | None = None
    walked: int = attrs.field(kw_only=True)


@attrs.frozen
class Emission:
    """New tokens of one request: of prefill (`round` is None) or of one round.

    finished: None, "stop" or "length". seconds: what the prefill or the round took for the whole batch.
    """

    request: int
    tokens: list[int]
    round: Round | None
    finished: str | None
    seconds: float


@attrs.frozen
class Settings:
    """What decoding is asked to do. max_new_tokens is exact; `stops` are token ids that end an answer, as its last.

    throughput: what the target's forward costs here, where the budget has a schedule.
    """

    budget: Budget | None
    sampling: Sampling
    max_new_tokens: int
    stops: tuple[int, ...] = ()
    keep_trees: bool = False
    throughput: Throughput | None = None


def check(target: Target, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
    """Raise UsageError for what cannot be decoded, before anything is: a prompt that is empty, foreign or too long."""
    if not isinstance(max_new_tokens, int) or isinstance(max_new_tokens, bool) or max_new_tokens < 1:
        raise UsageError(f"generate: max_new_tokens is {max_new_tokens!r}, expected a whole number of at least 1.")
    if not prompts:
        raise UsageError("generate: there is no prompt; give at least one, for example generate(drafter, 'Hello').")
    limit = target.max_positions
    for number, prompt in enumerate(prompts):
        if not len(prompt):
            raise UsageError(f"generate: prompt {number} is empty; give it at least one token.")
        foreign = [token for token in (min(prompt), max(prompt)) if not 0 <= token < target.vocab_size]
        if foreign:
            raise UsageError(
                f"generate: prompt {number} holds token id {foreign[0]}, but {target.name} has ids 0 to "
                f"{target.vocab_size - 1}; encode it with this target's tokenizer."
            )
        if len(prompt) >= limit:
            raise UsageError(
                f"generate: prompt {number} has {len(prompt)} tokens, but {target.name} has {limit} positions; "
                f"shorten it to at most {limit - 1}."
            )
        if len(prompt) + max_new_tokens > limit:
            raise UsageError(
                f"generate: prompt {number} has {quantity(len(prompt), 'token')}, and max_new_tokens={max_new_tokens} "
                f"more do not "
                f"fit into the {limit} positions of {target.name}; set max_new_tokens to at most {limit - len(prompt)}."
            )


def decode(
    drafter: Proposer | None,
    target: Target,
    prompts: Sequence[Sequence[int]],
    settings: Settings,
    keys: Sequence[int],
) -> Iterator[Emission]:
    """Decode one batch of prompts, yielding tokens as they are committed; requests are numbered as in `prompts`.

    drafter None decodes plainly. keys: one per prompt; the same key draws the same noise, whatever the batch.
    Raises UsageError (see `check`) before anything is decoded.
    """
    batch = Batch(drafter, target, prompts, settings, keys)
    yield from batch.prefill()
    while batch.alive:
        yield from batch.round()


def _rates(drafter: Proposer, settings: Settings, most: int, device: torch.device) -> Tensor | None:
    """The target's forwards per second over up to `most` rows; None without a schedule.

    Raises UsageError where the budget asks for what this drafter cannot say, or nobody has measured.
    """
    budget = settings.budget
    if budget is None or (not budget.c_min and budget.schedule == "none"):
        return None
    if "confidence" not in drafter.capabilities:
        asked = "c_min" if budget.c_min else "schedule"
        raise UsageError(
            f"budget: {asked} needs a drafter with a confidence head, and {getattr(drafter, 'spec', drafter)!r} has "
            f"none; take for example dspark, or p_min instead."
        )
    if budget.schedule == "none":
        return None
    if settings.throughput is None:
        raise UsageError(
            f"budget: schedule={budget.schedule} needs this machine's throughput, which nobody has measured; run "
            f"`drafterzoo doctor --profile` once."
        )
    return settings.throughput.rates(most, device)


def _taps_of(drafter: Proposer) -> tuple[int, ...]:
    with blamed(type(drafter), "naming its taps"):
        return tuple(index(tap) for tap in drafter.taps)


class Stopwatch:
    """Seconds between marks, without waiting for the device: events there, the host's clock on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[torch.cuda.Event | float] = []

    def start(self) -> None:
        self._marks = []
        self.began = time.perf_counter()
        self.mark()

    def mark(self) -> None:
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def between(self, first: int, second: int) -> float:
        """Seconds from mark to mark; on a device only after a synchronisation that both have passed."""
        a, b = self._marks[first], self._marks[second]
        if isinstance(a, float) or isinstance(b, float):
            return float(b) - float(a)  # type: ignore[arg-type]  # a watch never mixes the two
        return a.elapsed_time(b) / 1e3

    def total(self) -> float:
        """Seconds on the host since the start."""
        return time.perf_counter() - self.began


class Batch:
    """Requests in flight. Finished ones stay frozen until the batch is compacted.

    source: what judges the drafts; None asks the target. limits: new tokens of each request at most, by default
    max_new_tokens. Raises UsageError (see `check`), or when the memory cannot be had.
    """

    def __init__(
        self,
        drafter: Proposer | None,
        target: Target,
        prompts: Sequence[Sequence[int]],
        settings: Settings,
        keys: Sequence[int],
        source: Source | None = None,
        limits: Sequence[int] | None = None,
    ) -> None:
        self.limits = [settings.max_new_tokens] * len(prompts) if limits is None else list(limits)
        if source is None:
            check(target, prompts, settings.max_new_tokens)
        budget = settings.budget
        if drafter is not None and budget is None:
            raise UsageError("decode: a drafter needs a budget; for example Budget.tree(24) or Budget.chain(4).")
        self.drafter, self.target, self.settings = drafter, target, settings
        self.depth = budget.depth if drafter is not None and budget is not None else 0
        self.nodes = budget.nodes if drafter is not None and budget is not None else 0
        self.taps = _taps_of(drafter) if drafter is not None else ()
        self.device = target.device
        self.static = self.device.type != "cpu"  # there, widths that follow the data would cost a synchronisation
        n, capacity = len(prompts), max(map(len, prompts)) + max(self.limits)
        self.source = source or Live(target, [list(prompt) for prompt in prompts], capacity, self.nodes, self.taps)
        key_tensor = torch.tensor(list(keys), dtype=torch.int64, device=self.device)
        self.sampler = Sampler(settings.sampling, key_tensor, target.vocab_size, self.depth + 1)
        self.watch = Stopwatch(self.device)
        if drafter is not None and budget is not None:
            coupling = Coupling.of(getattr(drafter, "coupling", 1.0))
            self.select = Selector(self.sampler, budget.offer, coupling)
            self.rates = _rates(drafter, settings, n * (1 + self.nodes), self.device)
            # A last round may accept beyond max_new_tokens.
            room = capacity + self.depth + 1
            with blamed(type(drafter), "opening its memory"):
                rows = drafter.rows_per_round(self.depth, budget.grow + budget.advance)
                self.state = drafter.open(target, n, room, self.depth, rows)
        self.pending: Committed | None = None  # rows that the drafter has yet to observe
        self.fresh: int | None = 1  # how far the roots moved in the last round at most; None: the host does not know
        self.members = list(range(n))  # which request each row of the batch is
        self.living = [True] * n
        self.generated = [0] * n
        self.lengths = [len(prompt) for prompt in prompts]  # positions of the roots

    @property
    def alive(self) -> int:
        """How many requests are not finished."""
        return sum(self.living)

    # ------------------------------------------------------------------------------------------------- prefill

    @torch.inference_mode()
    def prefill(self) -> list[Emission]:
        """Read the prompts; the target gives the first token of every answer."""
        self.watch.start()
        self.roots = torch.tensor(self.lengths, dtype=torch.int64, device=self.device)
        self.sampler.begin(self.roots - 1)
        reading, self.tokens = self.source.prefill(self.sampler)
        if self.drafter is not None:
            with blamed(type(self.drafter), "observing the prompts"):
                self.drafter.observe(self.state, self._read_prompts(reading, self.tokens))
                self.state.counters.take()
        first = self.tokens.tolist()
        seconds = self.watch.total()
        emissions = [self._emit(row, [token], None, seconds) for row, token in enumerate(first)]
        self._settle()
        return emissions

    def _read_prompts(self, reading: Reading, roots: Tensor) -> Committed:
        tokens = reading.tokens
        n, width = tokens.shape
        return Committed(
            tokens=tokens,
            next_tokens=torch.cat((tokens[:, 1:], roots[:, None]), dim=1),
            positions=reading.positions,
            features=reading.features,
            valid=reading.valid,
            last=torch.full((n,), width - 1, dtype=torch.int64, device=self.device),
            longest=width,
        )

    # --------------------------------------------------------------------------------------------------- round

    @torch.inference_mode()
    def round(self) -> list[Emission]:
        """One round of the whole batch; its emissions are those of the requests that were alive in it."""
        watch, n = self.watch, len(self.members)
        watch.start()
        self.sampler.begin(self.roots, self.fresh)
        watch.mark()
        tree = self._draft()
        watch.mark()
        tokens, reading = self._read_tree(tree)
        watch.mark()
        verdict = self.source.judge(reading, tree, self.sampler, self.depth)
        self._commit(tree, tokens, reading, verdict)
        counts = self.state.counters.take() if self.drafter is not None else (0, 0)
        facts = self._facts(tree, tokens, verdict)  # the one synchronisation of the round
        draft_s, verify_s = watch.between(1, 2), watch.between(2, 3)
        views = self._views(tree, verdict) if self.settings.keep_trees else None
        rows = [row for row in range(n) if self.living[row]]
        cuts = [(row, *self._cut(row, facts[row])) for row in rows]
        self.fresh = None if self.static else max(facts[row][0] for row in rows) + 1
        for row in rows:
            self.lengths[row] += facts[row][0] + 1
        emissions = []
        rest_s = watch.total() - draft_s - verify_s
        for row, accepted, committed in cuts:
            made = Round(
                accepted=accepted,
                committed=len(committed),
                emitted=0,
                walked=facts[row][0],
                drafted=facts[row][2],
                forwards=counts[0],
                rows=counts[1],
                draft_s=draft_s,
                verify_s=verify_s,
                rest_s=rest_s,
                batch=len(rows),
                tree=views[row] if views else None,
            )
            emissions.append(self._emit(row, committed, made, draft_s + verify_s + rest_s))
        self._settle()
        return emissions

    def _draft(self) -> DraftTree:
        if self.drafter is None or self.settings.budget is None:
            return bare_tree(len(self.members), self.device)
        with blamed(type(self.drafter), "drafting"):
            if self.pending is not None:
                self.drafter.observe(self.state, self.pending)
            tree = grow(self.drafter, self.state, self.settings.budget, self.tokens, self.roots, self.select)
        assert tree.width <= self.nodes, "a tree beyond its budget"
        tree = self._known(tree)
        schedule = self.settings.budget.schedule
        if schedule != "none" and tree.hopes is not None and self.rates is not None:
            tree = shortened(tree, SCHEDULES[schedule](tree.hopes, tree.valid, self.rates))
        # Padding costs time on a CPU; elsewhere the width stays what it is, so that shapes do not depend on the data.
        return tree if self.static else narrowed(tree, int(tree.valid.sum(dim=1).amax()) if tree.width else 0)

    def _known(self, tree: DraftTree) -> DraftTree:
        """The tree with tokens that the target has an embedding for. Raises DrafterError for others on a CPU.

        Elsewhere asking would synchronise, so there they become tokens that do no harm: any tree gives the same text.
        """
        if self.static:
            return attrs.evolve(tree, tokens=tree.tokens.clamp(0, self.target.vocab_size - 1))
        alien = tree.tokens[(tree.tokens < 0) | (tree.tokens >= self.target.vocab_size)]
        if len(alien):
            raise DrafterError(
                f"drafter {getattr(self.drafter, 'spec', self.drafter)!r} offers token {int(alien[0])}, but "
                f"{self.target.name} has ids 0 to {self.target.vocab_size - 1}; it is made for another target, or its "
                f"map of the vocabulary is wrong."
            )
        return tree

    def _read_tree(self, tree: DraftTree) -> tuple[Tensor, Reading]:
        """The one target call of the round, over the root and all nodes."""
        tokens = torch.cat((self.tokens[:, None], tree.tokens), dim=1)
        return tokens, self.source.read(tree, tokens, self.sampler, self.depth)

    def _commit(self, tree: DraftTree, tokens: Tensor, reading: Reading, verdict: Verdict) -> None:
        """Keep the path's K/V and move the roots on; a frozen request stays where it is."""
        accepted = torch.where(self.moving, verdict.accepted, -1)
        self.source.commit(verdict.path, accepted)
        if self.drafter is not None:
            self.pending = self._read_path(tree, tokens, reading, verdict, accepted)
        self.tokens = torch.where(self.moving, verdict.next_token, self.tokens)
        self.roots = self.roots + accepted + 1

    def _read_path(
        self, tree: DraftTree, tokens: Tensor, reading: Reading, verdict: Verdict, accepted: Tensor
    ) -> Committed:
        """The rows of the accepted path, as the drafter will observe them at the start of the next round."""
        path = verdict.path
        if not self.static:
            path = path[:, : 1 + max(int(accepted.amax()), 0)]
        steps = torch.arange(path.shape[1], device=self.device)
        kept = tokens.gather(1, path)
        ahead = torch.cat((kept[:, 1:], kept[:, :1]), dim=1)
        return Committed(
            tokens=kept,
            next_tokens=torch.where(steps == verdict.accepted[:, None], verdict.next_token[:, None], ahead),
            # A frozen request stands where it stood: no valid row, and `last` at its newest one.
            positions=(self.roots + accepted.clamp(max=0))[:, None] + steps,
            features=self.source.along(reading, path, self.roots),
            valid=steps <= accepted[:, None],
            last=accepted.clamp(min=0),
            longest=0,
            tree=tree,
            verdict=verdict,
            tree_features=reading.features if reading.logits is not None else None,
        )

    def _facts(self, tree: DraftTree, tokens: Tensor, verdict: Verdict) -> list[list[int]]:
        """Per row: accepted, next token, nodes verified, tokens of the path without the root."""
        columns = (verdict.accepted, verdict.next_token, tree.valid.sum(dim=1))
        along = tokens.gather(1, verdict.path[:, 1:])
        return torch.cat((torch.stack(columns, dim=1), along), dim=1).tolist()

    def _views(self, tree: DraftTree, verdict: Verdict) -> list[TreeView]:
        parts = (tree.tokens, tree.parents, tree.depths, tree.scores, tree.valid, verdict.path)
        tokens, parents, depths, scores, valid, paths = (part.tolist() for part in parts)
        kept = verdict.accepted.tolist()
        return [
            TreeView(tokens[row], parents[row], depths[row], scores[row], valid[row], paths[row][: kept[row] + 1])
            for row in range(len(kept))
        ]

    # ---------------------------------------------------------------------------------------------- bookkeeping

    def _cut(self, row: int, facts: list[int]) -> tuple[int, list[int]]:
        """(accepted, committed tokens) of a row, cut at the first stop token."""
        accepted, next_token, _, *along = facts
        committed = [*along[:accepted], next_token]
        stop = next((i for i, token in enumerate(committed) if token in self.settings.stops), None)
        if stop is not None:
            committed = committed[: stop + 1]
        return min(accepted, len(committed)), committed

    def _emit(self, row: int, committed: list[int], made: Round | None, seconds: float) -> Emission:
        """Hand over a row's new tokens, cut at its limit, and note whether that was its end."""
        tokens = committed[: self.limits[row] - self.generated[row]]
        self.generated[row] += len(tokens)
        finished = None
        if tokens[-1] in self.settings.stops:
            finished = "stop"
        elif self.generated[row] >= self.limits[row]:
            finished = "length"
        self.living[row] = finished is None
        made = made and attrs.evolve(made, emitted=len(tokens))
        return Emission(self.members[row], tokens, made, finished, seconds)

    def _settle(self) -> None:
        """Freeze what has finished; drop it once a quarter of the batch is frozen. Then fix what the host knows."""
        if self.alive and 4 * self.alive <= 3 * len(self.members):
            self._compact([row for row, lives in enumerate(self.living) if lives])
        self.moving = torch.tensor(self.living).to(self.device, non_blocking=True)
        if self.pending is not None:
            valid = self.pending.valid & self.moving[:, None]
            self.pending = attrs.evolve(self.pending, valid=valid, longest=max(self.lengths))

    def _compact(self, rows: list[int]) -> None:
        kept = torch.tensor(rows, dtype=torch.int64, device=self.device)
        self.source.keep(kept)
        self.sampler.keep(kept)
        self.tokens, self.roots = self.tokens[kept], self.roots[kept]
        if self.drafter is not None:
            with blamed(type(self.drafter), "letting go of requests"):
                self.state.keep(kept)
        if self.pending is not None:
            self.pending = _kept(self.pending, kept)
        self.members = [self.members[row] for row in rows]
        self.living = [self.living[row] for row in rows]
        self.generated = [self.generated[row] for row in rows]
        self.lengths = [self.lengths[row] for row in rows]
        self.limits = [self.limits[row] for row in rows]


def _kept(value: Any, rows: Tensor) -> Any:
    """The given requests of a container of batched tensors, and of the containers in it."""
    if isinstance(value, Tensor):
        return value[rows]
    if attrs.has(type(value)):
        return attrs.evolve(value, **{a.name: _kept(getattr(value, a.name), rows) for a in attrs.fields(type(value))})
    return value
