"""What a chain drafter proposes at every round start of recorded texts, as acceptances and costs (see terms.py).

Knows the drafter's contract, the engine's growth and the target's head; nothing of any particular drafter, or of how
many rounds follow. Teacher forcing on the texts' own tokens is exact: a state is only reached when the drafts before it
were those tokens. Two ways, which agree (tested):

    unrolled   the parallel training forward: all starts and drafts of some texts in one call
    stepwise   `observe` and `expand` along the texts, a start at a time: any drafter, one without training forward too
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from drafterzoo.budget import Budget
from drafterzoo.drafters.base import Drafter, UnrollBatch
from drafterzoo.engine.contract import DraftTree, Frontier, Offers, Verdict
from drafterzoo.engine.decode import Batch, Settings
from drafterzoo.engine.replay import Recorded
from drafterzoo.engine.sampling import Sampler, Sampling, Selector, process
from drafterzoo.errors import UsageError
from drafterzoo.evaluation.offline import terms
from drafterzoo.evaluation.offline.rounds import Chains
from drafterzoo.evaluation.offline.teacher import ROWS_AT_ONCE, Lesson
from drafterzoo.target.target import Reading, Target

ATTENDED = 1 << 22  # pairs of (start, context row) that an unrolled forward may hold at once, over its texts


def chains(drafter: Drafter, lesson: Lesson, drafts: int, sampling: Sampling, stops: Sequence[int]) -> Proposals:
    """Acceptances and costs of a chain of `drafts` at every start of the lesson's texts; the first token is given.

    sampling: how target and drafter are processed; above temperature 0 the proposals are drawn from q. Raises
    UsageError for a drafter that offers more than a chain holds.
    """
    if drafter.rows_per_round(drafts, 1) > Drafter.rows_per_round(drafter, drafts, 1):
        raise UsageError(
            f"evaluate: {drafter.spec!r} offers more than one child of a node, and the rule 'rejection' counts chains "
            f"alone; use rule='match'."
        )
    has_training_forward = type(drafter).unroll is not Drafter.unroll
    return (unrolled if has_training_forward else stepwise)(drafter, lesson, drafts, sampling, stops)


@attrs.frozen(eq=False)
class Proposals:
    """chains: of N texts. doubtful [N]: how many tokens a text has that are impossible under the settings stated."""

    chains: Chains
    doubtful: Tensor


class Ledger:
    """Acceptances and costs as they are found, and the target's p that they are found from."""

    def __init__(self, target: Target, lesson: Lesson, drafts: int, sampling: Sampling, stops: Sequence[int]) -> None:
        device = lesson.tokens.device
        self.target, self.lesson, self.sampling = target, lesson, sampling
        self.stops = torch.tensor(sorted(stops), dtype=torch.int64, device=device)
        self.prompts = torch.tensor([len(recording.prompt) for recording in lesson.recordings], device=device)
        answers = torch.tensor([len(recording.answer) for recording in lesson.recordings], device=device)
        self.starts = answers - 1
        self.doubtful = torch.zeros_like(answers)
        shape = (len(answers), max(int(self.starts.amax()), 1), drafts)
        self.accept = torch.zeros(shape, dtype=torch.float64, device=device)
        self.cost = torch.zeros(shape, dtype=torch.float64, device=device)

    def p(self, texts: Tensor, positions: Tensor) -> Tensor:
        """The target's processed distribution [R, V] of the tokens at these positions of these texts; asked for once.

        Past a text's last ordinary token it is anything.
        """
        p = process(self.target.head(self.lesson.hidden[texts, positions - 1]), self.sampling).exp()
        impossible = p.gather(1, self.lesson.tokens[texts, positions][:, None])[:, 0] == 0
        concerned = positions - self.prompts[texts] < self.starts[texts]
        self.doubtful.index_add_(0, texts, (impossible & concerned).long())
        return p

    def proposals(self) -> Proposals:
        return Proposals(Chains(self.accept, self.cost, self.starts), self.doubtful)


# --------------------------------------------------------------------------------------------------------- unrolled


@torch.inference_mode()
def unrolled(drafter: Drafter, lesson: Lesson, drafts: int, sampling: Sampling, stops: Sequence[int]) -> Proposals:
    """By the training forward; the starts of all texts side by side, in parts that bound the memory."""
    ledger = Ledger(drafter.target, lesson, drafts, sampling, stops)
    texts, width = lesson.tokens.shape
    starts = torch.arange(ledger.accept.shape[1], device=lesson.tokens.device)
    passes: list[list[Tensor]] = []
    for part in starts.split(max(1, ATTENDED // (texts * width))):
        # Row t drafts for root t+1, and the root of start a is the answer's token a.
        rows = (ledger.prompts[:, None] - 1 + part).clamp(max=width - 1)
        passes.append(drafter.unroll(unroll_batch(drafter, lesson, rows), drafts))
    heads = [torch.cat(parts, dim=1) for parts in zip(*passes, strict=True)]
    last = torch.arange(1, int(ledger.starts.amax()), device=starts.device)  # answer tokens that a draft may concern
    wanted = (last < ledger.starts[:, None]).nonzero()
    for part in wanted.split(ROWS_AT_ONCE):
        _judge_unrolled(drafter, ledger, heads, part[:, 0], last[part[:, 1]])
    return ledger.proposals()


def unroll_batch(drafter: Drafter, lesson: Lesson, rows: Tensor) -> UnrollBatch:
    positions = torch.arange(lesson.tokens.shape[1], device=lesson.tokens.device).expand_as(lesson.tokens)
    lengths = torch.tensor([len(r.prompt) + len(r.answer) for r in lesson.recordings], device=positions.device)
    documents = torch.where(positions < lengths[:, None], 0, -1)
    return UnrollBatch(lesson.tokens, lesson.tapped(drafter.taps), positions, documents, queries=rows)


def _judge_unrolled(drafter: Drafter, ledger: Ledger, heads: Sequence[Tensor], texts: Tensor, at: Tensor) -> None:
    """Fill in what concerns the answers' tokens `at` [R] of `texts` [R]: one start for each draft."""
    positions = ledger.prompts[texts] + at
    tokens = ledger.lesson.tokens[texts, positions]
    p = None if ledger.sampling.greedy else ledger.p(texts, positions)
    for draft, head in enumerate(heads):
        start = at - 1 - draft
        some = start >= 0
        where = (texts[some], start[some])
        logits = process(drafter.logits(head[where]), ledger.sampling)
        if p is None:
            best = logits.topk(1).indices[:, 0]
            best = best if drafter.vocabulary is None else drafter.vocabulary[best]
            accept, cost = terms.greedy(best, tokens[some])
        else:
            accept, cost = terms.sampled(p[some], logits.exp(), tokens[some], ledger.stops, drafter.vocabulary)
        ledger.accept[(*where, draft)], ledger.cost[(*where, draft)] = accept, cost


# --------------------------------------------------------------------------------------------------------- stepwise


@torch.inference_mode()
def stepwise(drafter: Drafter, lesson: Lesson, drafts: int, sampling: Sampling, stops: Sequence[int]) -> Proposals:
    """By the engine's own growth, one committed token a round, the texts side by side."""
    ledger = Ledger(drafter.target, lesson, drafts, sampling, stops)
    source = Pacing(lesson, drafter.taps)
    settings = Settings(Budget.chain(drafts), sampling, int(ledger.starts.amax()) + 1)
    prompts = [recording.prompt for recording in lesson.recordings]
    limits = [len(recording.answer) for recording in lesson.recordings]
    batch = Batch(drafter, drafter.target, prompts, settings, range(len(prompts)), source, limits)
    forcing = Forcing(batch.sampler, source, ledger)
    if not sampling.greedy:
        batch.select = forcing
    batch.prefill()
    for start in range(int(ledger.starts.amax())):
        forcing.turn(start, batch.members)
        batch.round()
        if not forcing.heard:  # the drafter made its offers itself, or they are certain: the tree says what they were
            forcing.note_tree()
    return ledger.proposals()


class Pacing(Recorded):
    """A source that accepts no draft, so that every token of the texts is a root once."""

    tree: DraftTree
    expected: Tensor  # [n, G] the tokens after the root; -1 where unknown

    def __init__(self, lesson: Lesson, taps: Sequence[int]) -> None:
        super().__init__(lesson.recordings, lesson.tapped(taps))

    def read(self, tree: DraftTree, tokens: Tensor, sampler: Sampler, depth: int) -> Reading:
        self.tree = tree
        self.expected = self.next(sampler.roots[:, None] + torch.arange(1, depth + 1, device=tokens.device))
        return super().read(tree, tokens, sampler, depth)

    def judge(self, reading: Reading, tree: DraftTree, sampler: Sampler, depth: int) -> Verdict:
        following = self.next(sampler.roots[:, None] + 1)[:, 0].clamp(min=0)
        none = torch.zeros_like(following)
        return Verdict(none[:, None].repeat(1, 1 + depth), none, following)


class Forcing(Selector):
    """A selector that offers the text's own next token, and notes what the drafter's q says of it."""

    def __init__(self, sampler: Sampler, source: Pacing, ledger: Ledger) -> None:
        super().__init__(sampler, 1)
        self._source, self._ledger = source, ledger
        self._known: dict[int, Tensor] = {}  # p [N, V] of an answer's token, by its place

    def turn(self, start: int, members: Sequence[int]) -> None:
        """Round start number `start` comes next, of these texts."""
        self._start, self.heard = start, False
        self._members = torch.tensor(members, dtype=torch.int64, device=self._source.texts.device)
        self._known = {place: p for place, p in self._known.items() if place > start}

    def __call__(self, logits: Tensor, frontier: Frontier, vocabulary: Tensor | None = None) -> Offers:
        self.heard = True
        token = self._source.next(frontier.positions + 1).clamp(min=0)
        q = process(logits, self.sampler.sampling).exp()[:, 0]
        found = terms.sampled(self._p(frontier.step), q, token[:, 0], self._ledger.stops, vocabulary)
        self._note(frontier.step, *found)
        return Offers(frontier.nodes, token[..., None], torch.zeros_like(token[..., None], dtype=logits.dtype))

    def note_tree(self) -> None:
        """Note the drafts of the round's tree, a chain of certain proposals."""
        ledger, tree, expected = self._ledger, self._source.tree, self._source.expected
        drafts = torch.full_like(expected, -1)
        drafts[:, : tree.width] = torch.where(tree.valid, tree.tokens, -1)
        for draft in range(expected.shape[1]):
            proposal, token = drafts[:, draft], expected[:, draft]
            if ledger.sampling.greedy:
                self._note(draft, *terms.greedy(proposal, token))
            else:
                self._note(draft, *terms.proposed(self._p(draft), proposal, token, ledger.stops))

    def _p(self, draft: int) -> Tensor:
        """The target's distribution [n, V] of the tokens that this draft of the present start concerns."""
        place, ledger = self._start + 1 + draft, self._ledger
        if place not in self._known:
            texts = torch.arange(len(ledger.prompts), device=ledger.prompts.device)
            positions = (ledger.prompts + place).clamp(max=ledger.lesson.tokens.shape[1] - 1)
            self._known[place] = ledger.p(texts, positions)
        return self._known[place][self._members]

    def _note(self, draft: int, accept: Tensor, cost: Tensor) -> None:
        self._ledger.accept[self._members, self._start, draft] = accept
        self._ledger.cost[self._members, self._start, draft] = cost
