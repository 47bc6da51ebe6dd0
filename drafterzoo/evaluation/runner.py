"""Runs every (drafter, budget) cell on the same prompts in one process, interleaved, and checks that texts are equal.

Knows the decoding loop, suites and results; nothing of any particular drafter, of how a tree is grown or a table drawn.
Within a group of prompts the cells follow each other in a seeded random order, so that a machine that slows down slows
all alike. A group's order depends on nothing before it, so that a run can go on from any group.
"""

from __future__ import annotations

import math
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal

import attrs
import torch

from drafterzoo.budget import Budget
from drafterzoo.disk import check_folder
from drafterzoo.drafters.base import Drafter
from drafterzoo.engine import decode as engine
from drafterzoo.engine.sampling import Sampler, Sampling, filtered
from drafterzoo.errors import UsageError
from drafterzoo.evaluation.bench_result import BenchResult as BenchResult  # public here, beside what returns it
from drafterzoo.evaluation.conditions import Settings, entropy_seen, gather
from drafterzoo.evaluation.contenders import bind, budgets_of, listed, row_name
from drafterzoo.evaluation.interleaving import conversation, in_turn
from drafterzoo.evaluation.results import Record, ResultsWriter, check_free, default_directory
from drafterzoo.evaluation.suites import Prompt, Suite, chosen, introduced
from drafterzoo.evaluation.summary import PLAIN, Difference, differences, summarise
from drafterzoo.evaluation.tables import short_budget
from drafterzoo.progress import Bar, console, progress
from drafterzoo.target.target import Target
from drafterzoo.throughput import kept
from drafterzoo.wording import quantity

WARM_UP_TOKENS = 24
BASELINES = (PLAIN, "lookup")


@attrs.frozen(eq=False)
class Cell:
    """One row to be: a drafter at a budget. Plain decoding has neither."""

    name: str
    label: str
    drafter: Drafter | None
    budget: Budget | None

    @property
    def said(self) -> str:
        """The row as people call it."""
        return f"{self.label} {short_budget(str(self.budget))}" if self.budget else "plain decoding"


# (cell, prompts as token ids, their numbers in the suite, settings) -> per prompt, a Record without its identity
Decode = Callable[[Cell, Sequence[Sequence[int]], Sequence[int], Settings], list[dict[str, Any]]]


def bench(
    drafters: str | Drafter | Sequence[str | Drafter] = (),
    suite: str | Path | Suite = "starter",
    *,
    budget: str | int | Budget | Sequence[str | int | Budget] | None = None,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    verification: Literal["match", "rejection"] = "match",
    coupled: bool = True,
    turns: Literal["first", "all"] | None = None,
    thinking: bool | None = None,
    system: str | None = None,
    batch_size: int = 1,
    warmup: int = 1,
    repeats: int = 1,
    limit: int | None = None,
    exclude: Sequence[str] = (),
    target: Target | str | None = None,
    out: str | os.PathLike[str] | None = None,
    data_dir: str | Path | None = None,
    check_suite: bool = True,
    show_progress: bool = False,
) -> BenchResult:
    """Compare drafters with plain decoding, all at the same budgets, on the same prompts, in one process.

    drafters: specs, addresses or loaded drafters. Plain decoding ("none") and "lookup" are always rows;
    exclude=("lookup",) leaves the latter out. suite: a suite's name, a JSONL file, or a Suite. budget: one or several
    ("chain:4", 24, Budget); without it, the drafters' own. Every drafter runs at every budget.
    turns: "first" asks each prompt's first turn; "all" goes on with the target's own answers between; None does what
    the suite says, which is "first" for most. thinking: passed to the chat template, where it knows it. system: a
    system message before the first turn. check_suite: a named suite must have the prompts that its declaration records.
    batch_size: prompts decoded together. warmup: batches decoded by every cell first, not counted. repeats: how often
    every answer is timed; its median counts. out: the results directory, by default a new one under `runs`.

    Under `match`, and at temperature 0, every text is compared with plain decoding's; the summary lists every
    difference with the target's logit gap. Interrupted, it keeps what it has (a summary marked incomplete) and raises
    KeyboardInterrupt.
    Raises UsageError, DataError, CheckpointError or DiskError before anything is decoded; DiskError when the disk fills
    up.
    """
    questions = chosen(suite, limit, data_dir, check_suite)
    settings = Settings(
        max_new_tokens,
        temperature,
        top_p,
        top_k,
        seed,
        verification,
        coupled,
        turns or questions.turns,
        thinking,
        batch_size,
        warmup,
        repeats,
        system,
    )
    if show_progress:
        console.print(introduced(questions, settings.turns), markup=False, highlight=False, soft_wrap=True)
    directory = Path(out) if out is not None else default_directory(questions.name)
    check_free(directory)
    check_folder(directory, f"{directory}: results")
    loaded, bound = _contenders(drafters, target, exclude)
    cells = make_cells(loaded, _budgets(budget, loaded))
    names = list(dict.fromkeys(str(cell.budget) for cell in cells if cell.budget))
    run = Run(bound, questions, cells, settings, partial(decode, bound))
    run.check()
    conditions = gather(bound, questions, limit, settings, loaded, names)
    with ResultsWriter(directory, conditions) as writer:
        summary = run.measure(writer, conditions, show_progress)
    return BenchResult(summary, directory)


def _contenders(
    given: str | Drafter | Sequence[str | Drafter], target: Target | str | None, exclude: Sequence[str]
) -> tuple[dict[str, Drafter], Target]:
    """Drafters by the name of their rows, `lookup` first unless it is excluded or given, and their target."""
    for name in exclude:
        if name != "lookup":
            raise UsageError(
                f"bench: {name!r} cannot be excluded, only 'lookup' can; plain decoding is what all is measured by."
            )
    wanted = [drafter for drafter in listed(given) if drafter != PLAIN]
    if "lookup" in exclude or "lookup" in map(row_name, wanted):
        return bind("bench", wanted, target)
    loaded, bound = bind("bench", [*wanted, "lookup"], target)
    return {"lookup": loaded["lookup"], **loaded}, bound


def _budgets(given: Any, drafters: Mapping[str, Drafter]) -> list[Budget]:
    """The budgets every drafter runs at: those given, or the drafters' own, the baselines' only where they are all."""
    own = [drafter.budget for name, drafter in drafters.items() if name not in BASELINES]
    return budgets_of("bench", given, own or [drafter.budget for drafter in drafters.values()])


def make_cells(drafters: Mapping[str, Drafter], budgets: Sequence[Budget]) -> list[Cell]:
    """Plain decoding, then every drafter at every budget."""
    rows = [Cell(f"{name}@{budget}", name, drafter, budget) for name, drafter in drafters.items() for budget in budgets]
    return [Cell(PLAIN, PLAIN, None, None), *rows]


def decode(
    target: Target, cell: Cell, prompts: Sequence[Sequence[int]], numbers: Sequence[int], settings: Settings
) -> list[dict[str, Any]]:
    """Answer some prompts together: per prompt, what a Record holds beside its identity.

    A prompt's number keys its noise, so batches of any size draw the same. Seconds are the wall clock's, shared
    equally.
    """
    scheduled = cell.budget is not None and cell.budget.schedule != "none"
    asked = engine.Settings(
        cell.budget,
        settings.sampling,
        settings.max_new_tokens,
        target.eos_token_ids,
        throughput=kept(target) if scheduled else None,
    )
    tokens: list[list[int]] = [[] for _ in prompts]
    rounds: list[list[engine.Round]] = [[] for _ in prompts]
    started = time.perf_counter()
    filled = None
    for emission in engine.decode(cell.drafter, target, prompts, asked, numbers):
        filled = filled or time.perf_counter()  # prefill's emissions come first, once it is done
        tokens[emission.request] += emission.tokens
        if emission.round is not None:
            rounds[emission.request].append(emission.round)
    done = time.perf_counter()
    filled = filled or done
    share = {"prefill_s": (filled - started) / len(prompts), "decode_s": (done - filled) / len(prompts)}
    return [{"tokens": t, **_columns(r), **share} for t, r in zip(tokens, rounds, strict=True)]


def _columns(rounds: Sequence[engine.Round]) -> dict[str, list[Any]]:
    """Rounds as the lists of a Record."""
    names = ("committed", "emitted", "accepted", "walked", "forwards", "rows", "draft_s", "verify_s", "rest_s")
    columns = {name: [getattr(r, name) for r in rounds] for name in names}
    return {**columns, "nodes": [r.drafted for r in rounds]}


@attrs.define(eq=False)
class Run:
    """The measurement itself, from encoded prompts to the summary. `decode` is handed in, so that tests can lie.

    failed: the cells that raised, by name, with the reason; they are not asked again and the others go on. Without a
    dict to note them in, and for plain decoding always, what was raised ends the run. label: what the run is called
    while it is at work, if not by its suite.
    """

    target: Target
    suite: Suite
    cells: Sequence[Cell]
    settings: Settings
    decode: Decode
    failed: dict[str, str] | None = None
    label: str = ""
    found: list[Difference] = attrs.field(factory=list, init=False)
    entropy: float | None = attrs.field(default=None, init=False)

    def check(self) -> None:
        """Raise UsageError, before anything is decoded, when a prompt does not fit or sampling draws nothing."""
        new = self.settings.max_new_tokens
        for prompt in self.suite.prompts:
            turns = prompt.turns if self.settings.turns == "all" else prompt.turns[:1]
            length = len(self._encode(prompt, [""] * (len(turns) - 1)))
            if length + new * len(turns) > self.target.max_positions:
                each = f" for each of {quantity(len(turns), 'turn')}" if len(turns) > 1 else ""
                raise UsageError(
                    f"bench: prompt {prompt.id!r} of {self.suite.name} has {quantity(length, 'token')}, and {new} new "
                    f"ones{each} do not fit the {self.target.max_positions} positions of {self.target.name}; lower "
                    f"max_new_tokens, or leave that prompt out."
                )
        if self.settings.temperature:
            ids = self._encode(self.suite.prompts[0], [])
            self.entropy = entropy_seen(self.target, ids, self.settings.sampling)

    def measure(
        self, writer: ResultsWriter, conditions: Mapping[str, Any], show_progress: bool = False
    ) -> dict[str, Any]:
        """Warm up, decode everything, write records and summary."""
        records: list[Record] = []
        started = time.perf_counter()
        if show_progress:
            console.print(f"warming up {quantity(len(self.cells), 'row')}")
        self.warm_up()
        try:
            for group in self.groups(show_progress):
                records += group
                writer.extend(group)
                if self.settings.same_text:
                    self.found += self.explained(group)
        except KeyboardInterrupt:
            if records:
                seconds = time.perf_counter() - started
                writer.finish(self.summary(records, conditions, seconds, complete=False))
            if show_progress:
                done = f"{len({r.prompt for r in records})} of {quantity(len(self.suite.prompts), 'prompt')}"
                console.print(f"stopped after {done}; they are in {writer.directory}", soft_wrap=True)
            raise
        summary = self.summary(records, conditions, time.perf_counter() - started, complete=True)
        writer.finish(summary)
        return summary

    def explained(self, records: Sequence[Record]) -> list[Difference]:
        """The differences within some records, each with its gap. All turns of their prompts must be among them."""
        answers = {(r.cell, *r.key): r.ids for r in records}
        numbers = {prompt.id: number for number, prompt in enumerate(self.suite.prompts)}
        found = []
        for d in differences(records):
            number = numbers[d.prompt]
            said = [self._plain_texts(records, [number], turn)[number] for turn in range(d.turn)]
            asked = self._encode(self.suite.prompts[number], said)
            found.append(self.explain(d, number, asked, answers[d.cell, d.prompt, d.turn, d.repeat]))
        return found

    def warm_up(self) -> None:
        """Every cell answers the first prompts, a batch at a time and briefly, so that nobody pays for first calls."""
        brief = attrs.evolve(self.settings, max_new_tokens=min(WARM_UP_TOKENS, self.settings.max_new_tokens))
        size, count = self.settings.batch_size, len(self.suite.prompts)
        for start in range(0, min(self.settings.warmup * size, count), size):
            numbers = self.members(start)
            ids = [self._encode(self.suite.prompts[number], []) for number in numbers]
            for cell in self.cells:
                self._try(cell, ids, numbers, brief)

    @property
    def starts(self) -> range:
        """The number of the first prompt of every group: prompts of a group are decoded together."""
        return range(0, len(self.suite.prompts), self.settings.batch_size)

    def members(self, start: int, turn: int = 0) -> list[int]:
        """The numbers of the prompts of a group that have such a turn."""
        numbers = range(start, min(start + self.settings.batch_size, len(self.suite.prompts)))
        return [number for number in numbers if turn < self.turns(number)]

    def turns(self, number: int) -> int:
        """How many turns of a prompt are asked."""
        return len(self.suite.prompts[number].turns) if self.settings.turns == "all" else 1

    def groups(self, show_progress: bool = False) -> Iterator[list[Record]]:
        """The records of one group of prompts at a time: all turns, repeats and cells. No half-done group is seen."""
        count = len(self.suite.prompts)
        total = sum(map(self.turns, range(count))) * len(self.cells) * self.settings.repeats
        title = f"{self.suite.name}: {quantity(count, 'prompt')}, {quantity(len(self.cells), 'row')}, "
        title += quantity(total, "answer")
        with progress(title, total, "answers") if show_progress else nullcontext(None) as bar:
            for start in self.starts:
                yield self.group(start, bar)

    def group(self, start: int, bar: Bar | None = None, kept: Sequence[Record] = ()) -> list[Record]:
        """What the group that begins with prompt `start` answers, in the order it was decoded.

        bar: is told which cell is at work. kept: records of this group that there are already; what they hold is not
        decoded again.
        """
        there = {(r.cell, r.turn, r.repeat) for r in kept}
        fresh: list[Record] = []
        said: dict[int, list[str]] = {number: [] for number in self.members(start)}
        turn = 0
        while members := self.members(start, turn):
            if turn:
                for number, text in self._plain_texts([*kept, *fresh], members, turn - 1).items():
                    said[number].append(text)
            ids = [self._encode(self.suite.prompts[number], said[number]) for number in members]
            for repeat in range(self.settings.repeats):
                for cell in self._order(start, turn, repeat):
                    if (cell.name, turn, repeat) not in there:
                        if bar is not None:
                            bar.remark(f"{cell.said} on {self._place(members, turn)}")
                        answers = self._answers(cell, members, ids, turn, repeat)
                        fresh += answers
                        if bar is not None:
                            bar(len(answers))
            turn += 1
        return fresh

    def _place(self, members: Sequence[int], turn: int) -> str:
        """Where the run is, for people: `starter, prompt 3 of 40`."""
        first, last = members[0] + 1, members[-1] + 1
        which = f"prompt {first}" if first == last else f"prompts {first} to {last}"
        later = f", turn {turn + 1}" if turn else ""
        return f"{self.label or self.suite.name}, {which} of {len(self.suite)}{later}"

    def _order(self, start: int, turn: int, repeat: int) -> list[Cell]:
        return in_turn(self.cells, lambda cell: cell.name, self.settings.seed, start, turn, repeat)

    def _try(
        self, cell: Cell, ids: Sequence[Sequence[int]], numbers: Sequence[int], settings: Settings
    ) -> list[dict[str, Any]]:
        """What the cell answers; nothing when it fails or has failed before."""
        if self.failed is None or cell.name == PLAIN:
            return self.decode(cell, ids, numbers, settings)
        if cell.name in self.failed:
            return []
        try:
            return self.decode(cell, ids, numbers, settings)
        except Exception as error:  # whatever a drafter may raise: its own cell's trouble, not the others'
            place = f"prompt {self.suite.prompts[numbers[0]].id!r}"
            self.failed[cell.name] = f"{place}: {type(error).__name__}: {' '.join(str(error).split())}"
            return []

    def _answers(
        self, cell: Cell, members: Sequence[int], ids: Sequence[Sequence[int]], turn: int, repeat: int
    ) -> list[Record]:
        size = self.settings.batch_size
        answers = self._try(cell, ids, members, self.settings)
        return [
            Record(
                cell=cell.name,
                drafter=cell.label,
                budget=str(cell.budget) if cell.budget else "",
                prompt=self.suite.prompts[number].id,
                category=self.suite.prompts[number].category,
                turn=turn,
                repeat=repeat,
                group=members[0] // size if size > 1 else -1,
                prompt_tokens=len(prompt_ids),
                **counters,
            )
            for number, prompt_ids, counters in zip(members, ids, answers, strict=bool(answers))
        ]

    def _plain_texts(self, records: Sequence[Record], members: Sequence[int], turn: int) -> dict[int, str]:
        """Plain decoding's answers: what a second turn refers to, for every cell alike."""
        plain = {r.prompt: r for r in records if r.cell == PLAIN and r.turn == turn and r.repeat == 0}
        return {number: self.target.decode(plain[self.suite.prompts[number].id].ids) for number in members}

    def _encode(self, prompt: Prompt, said: Sequence[str]) -> list[int]:
        """Token ids of the conversation up to the turn after `said`."""
        talk = conversation(prompt, said, self.settings.system)
        return self.target.encode_chat(talk, thinking=self.settings.thinking)

    def explain(self, difference: Difference, number: int, asked: Sequence[int], answer: Sequence[int]) -> Difference:
        """The difference with the target's gap between the two tokens: one more forward, on the common text.

        number: of the prompt, which keys its noise. The gap is of logits; when sampling, of the scores that `match`
        chooses by (processed logits + noise). Where top-k or top-p leaves one of the two out there is none.
        """
        if difference.plain_token is None or difference.token is None:
            return difference
        text = [*asked, *answer[: difference.position]]
        cache = self.target.open_cache(1, len(text), 1)
        logits = self.target.prefill(cache, [text], ()).logits
        assert logits is not None, "prefill gives the last token's logits"
        scores = choice_scores(logits[:, -1], len(text), number, self.settings.sampling)
        gap = float(scores[difference.plain_token] - scores[difference.token])
        return attrs.evolve(difference, gap=gap if math.isfinite(gap) else None)

    def summary(
        self, records: Sequence[Record], conditions: Mapping[str, Any], seconds: float, *, complete: bool
    ) -> dict[str, Any]:
        return {
            **summarise(records, conditions, self.found, must_be_equal=self.settings.same_text),
            "complete": complete,
            "entropy_nats": self.entropy,
            "prompts_done": len({r.prompt for r in records}),
            "wall_seconds": round(seconds, 3),
            "memory": peak_memory(self.target.device),
        }


def choice_scores(logits: torch.Tensor, position: int, key: int, sampling: Sampling) -> torch.Tensor:
    """What plain decoding takes the argmax of at a position, [V], from the target's logits [1, V]."""
    keys = torch.tensor([key], device=logits.device)
    sampler = Sampler(sampling, keys, logits.shape[-1], window=1)
    sampler.begin(keys * 0 + position - 1)
    scores = filtered(logits, sampling)
    if sampler.book is not None:
        scores = scores + sampler.book.at(keys[:, None] * 0 + position)[:, 0]
    return scores[0]


def peak_memory(device: torch.device) -> dict[str, int]:
    """Bytes: the process's largest resident size so far, and what torch held at most on the GPU."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = {"peak_resident_bytes": peak if sys.platform == "darwin" else peak * 1024}  # macOS counts bytes, Linux KiB
    if device.type == "cuda":
        memory["peak_device_bytes"] = torch.cuda.max_memory_allocated(device)
    return memory
