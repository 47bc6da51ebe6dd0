"""Asks a server the prompts of a suite, a plain one beside it if there is one, and writes what `bench` writes.

Knows suites, results and servers by what they can be asked; nothing of HTTP, of any one server, or of drafters and
targets in this process. Server and baseline take turns prompt by prompt, in a seeded order, as rows do in one process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import attrs

from drafterzoo.budget import Budget
from drafterzoo.disk import check_folder
from drafterzoo.errors import ServerError, UsageError
from drafterzoo.evaluation.bench_result import BenchResult
from drafterzoo.evaluation.conditions import Settings
from drafterzoo.evaluation.interleaving import Messages, conversation, in_turn
from drafterzoo.evaluation.results import Record, ResultsWriter, check_free, default_directory
from drafterzoo.evaluation.served import rounds
from drafterzoo.evaluation.served.answers import Answer, Server, Tally, between, goes_back, total
from drafterzoo.evaluation.served.conditions import gather
from drafterzoo.evaluation.served.find import find
from drafterzoo.evaluation.suites import Suite, chosen, introduced
from drafterzoo.evaluation.summary import PLAIN, summarise
from drafterzoo.progress import Bar, console, progress
from drafterzoo.wording import quantity

WARM_UP_TOKENS = 24
TRIES = 3  # an event of a stream may bring two rounds now and then; more often is how the server is set
LOOKS, LOOK_SECONDS = 10, 0.05  # a server's counters may follow its answers a moment later


@attrs.frozen(eq=False)
class Row:
    """A row to be: a server, and what its row is called. Plain decoding has no budget."""

    label: str
    server: Server

    @property
    def plain(self) -> bool:
        return self.label == PLAIN

    @property
    def budget(self) -> str:
        return "" if self.plain else self.server.about.budget

    @property
    def cell(self) -> str:
        return PLAIN if self.plain else f"{self.label}@{self.budget}"

    @property
    def said(self) -> str:
        """The row as people call it."""
        return "plain decoding" if self.plain else self.label

    @property
    def counts(self) -> bool:
        """Whether it tells its rounds, and a drafter has a part in them."""
        return bool(self.server.about.speculates and self.budget and self.server.about.told)


def bench(
    server: str,
    suite: str | Path | Suite = "starter",
    *,
    baseline: str | None = None,
    name: str | None = None,
    target: str | None = None,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    turns: Literal["first", "all"] | None = None,
    thinking: bool | None = None,
    system: str | None = None,
    batch_size: int = 1,
    warmup: int = 1,
    repeats: int = 1,
    limit: int | None = None,
    out: str | os.PathLike[str] | None = None,
    data_dir: str | Path | None = None,
    check_suite: bool = True,
    show_progress: bool = False,
) -> BenchResult:
    """Measure a running vLLM or SGLang server on a suite, from its streams and its own counts of what it drafted.

    server: its address. baseline: the address of a server of the same target without speculation, asked the same
    prompts in turn; without it there is no speed-up, and no text to compare with. name: what the row is called, by
    default the drafter or the method that the server names. target: the model to ask for, by default the first that
    the server lists. batch_size: prompts asked at once. All else is as in `drafterzoo.bench`.

    The server applies its own chat template, draws by its own rule, and counts as it does: where a stream and the count
    disagree the prompt is asked again. Any other OpenAI-compatible server can be timed; its rounds are not known.
    Interrupted, it keeps what it has (a summary marked incomplete) and raises KeyboardInterrupt.
    Raises UsageError, DataError or DiskError before anything is asked; ServerError when a server fails, after keeping
    what there is.
    """
    questions = chosen(suite, limit, data_dir, check_suite)
    settings = Settings(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        verification="rejection",  # above temperature 0 a server's texts agree in distribution alone
        coupled=False,
        turns=turns or questions.turns,
        thinking=thinking,
        batch_size=batch_size,
        warmup=warmup,
        repeats=repeats,
        system=system,
    )
    directory = Path(out) if out is not None else default_directory(questions.name)
    check_free(directory)
    check_folder(directory, f"{directory}: results")
    rows = make_rows(server, baseline, name, target, settings)
    if show_progress:
        for line in (introduced(questions, settings.turns), *map(presented, rows)):
            console.print(line, soft_wrap=True)
    drafted = {row.label: row.server for row in rows if not row.plain}
    plain = next((row.server for row in rows if row.plain), None)
    conditions = gather(questions, limit, settings, drafted, plain)
    with ResultsWriter(directory, conditions) as writer:
        summary = Run(questions, rows, settings).measure(writer, conditions, show_progress)
    return BenchResult(summary, directory)


def make_rows(server: str, baseline: str | None, name: str | None, target: str | None, settings: Settings) -> list[Row]:
    """Who is asked, plain decoding first. Raises UsageError for two that cannot be compared, ServerError."""
    main = find(server, target, settings)
    if main.about.speculates is False:
        if baseline or name:
            raise UsageError(
                f"bench: the server at {main.place} does not speculate, so its row is plain decoding; leave out "
                f"--baseline and --name, or start it with a drafter."
            )
        return [Row(PLAIN, main)]
    row = Row(_called(name, main), main)
    if baseline is None:
        return [row]
    plain = find(baseline, target, settings)
    if plain.about.speculates:
        raise UsageError(
            f"bench: the baseline at {plain.place} speculates, too; give one that was started without a drafter."
        )
    if plain.about.model != main.about.model:
        raise UsageError(
            f"bench: {main.place} serves {main.about.model!r} and the baseline {plain.about.model!r}; give servers of "
            f"one target, under one --served-model-name."
        )
    return [Row(PLAIN, plain), row]


def _called(name: str | None, server: Server) -> str:
    """What a server's row is called."""
    if name is not None and (not name.strip() or name == PLAIN):
        raise UsageError(f"bench: --name {name!r} cannot be what a drafter is called; give another, such as eagle3.")
    said = name or server.about.drafter or server.about.method or "server"
    return said if name else Path(said).name


def presented(row: Row) -> str:
    """A line that says which server was found where, and what is known of its rounds."""
    about = row.server.about
    drafts = f"drafts {about.budget or 'it does not say what'} as {row.label}" if not row.plain else "plain decoding"
    told = about.told or "acceptance not reported"
    return f"server: {about.name} at {row.server.place}, {about.model}, {drafts}; rounds: {told}"


@attrs.define(eq=False)
class Run:
    """The measurement itself, from prompts to the summary.

    again: how often a prompt was asked again. counted: what the speculating server counted for the answers kept.
    """

    suite: Suite
    rows: Sequence[Row]
    settings: Settings
    again: int = attrs.field(default=0, init=False)
    counted: list[Tally] = attrs.field(factory=list, init=False)

    def measure(self, writer: ResultsWriter, conditions: Mapping[str, Any], show_progress: bool) -> dict[str, Any]:
        """Warm up, ask everything, write records and summary."""
        records: list[Record] = []
        count = len(self.suite)
        answers = sum(map(self._turns, range(count))) * len(self.rows) * self.settings.repeats
        title = f"{self.suite.name}: {quantity(count, 'prompt')}, {quantity(len(self.rows), 'row')}, "
        title += quantity(answers, "answer")
        self._warm_up()
        started = time.perf_counter()
        try:
            with progress(title, answers, "answers") if show_progress else nullcontext(None) as bar:
                for start in range(0, count, self.settings.batch_size):
                    group = self._group(start, bar)
                    records += group
                    writer.extend(group)
        except (KeyboardInterrupt, ServerError):
            if records:
                writer.finish(self._summary(records, conditions, time.perf_counter() - started, complete=False))
                done = f"{len({r.prompt for r in records})} of {quantity(count, 'prompt')}"
                console.print(f"stopped after {done}; they are in {writer.directory}", soft_wrap=True)
            raise
        summary = self._summary(records, conditions, time.perf_counter() - started, complete=True)
        writer.finish(summary)
        return summary

    def _summary(
        self, records: Sequence[Record], conditions: Mapping[str, Any], seconds: float, *, complete: bool
    ) -> dict[str, Any]:
        whole = total(self.counted)
        return {
            **summarise(records, conditions, must_be_equal=self.settings.same_text),
            "complete": complete,
            "entropy_nats": None,
            "prompts_done": len({r.prompt for r in records}),
            "wall_seconds": round(seconds, 3),
            "server": {
                "counted": {"steps": whole.steps, "drafted": whole.drafted, "accepted": whole.accepted},
                "mean_acceptance_length": 1 + whole.accepted / whole.steps if whole.steps else None,
                "asked_again": self.again,
            },
        }

    def _warm_up(self) -> None:
        """Every server answers the first prompts briefly; one whose stream and count never agree is found out here."""
        brief = min(WARM_UP_TOKENS, self.settings.max_new_tokens)
        size = self.settings.batch_size
        for start in range(0, min(self.settings.warmup * size, len(self.suite)), size):
            talks = [self._talk(number, []) for number in self._members(start)]
            for row in self.rows:
                self._answers(row, talks, brief)
        self.again = 0
        self.counted.clear()

    def _group(self, start: int, bar: Bar | None) -> list[Record]:
        """The records of prompts that are asked at once: all turns, repeats and rows. No half-done group is seen."""
        fresh: list[Record] = []
        said: dict[int, list[str]] = {number: [] for number in self._members(start)}
        turn = 0
        while members := self._members(start, turn):
            talks = [self._talk(number, said[number]) for number in members]
            for repeat in range(self.settings.repeats):
                for row in in_turn(self.rows, lambda row: row.cell, self.settings.seed, start, turn, repeat):
                    if bar is not None:
                        bar.remark(f"{row.said} on {self.suite.name}, prompt {start + 1} of {len(self.suite)}")
                    answers = self._answers(row, talks, self.settings.max_new_tokens)
                    fresh += self._records(row, members, answers, turn, repeat)
                    if repeat == 0 and row is self.rows[0]:  # plain decoding's answers, where there are any
                        for number, (answer, _) in zip(members, answers, strict=True):
                            said[number].append(answer.content)
                    if bar is not None:
                        bar(len(answers))
            turn += 1
        return fresh

    def _members(self, start: int, turn: int = 0) -> list[int]:
        """The numbers of the prompts of a group that have such a turn."""
        numbers = range(start, min(start + self.settings.batch_size, len(self.suite)))
        return [number for number in numbers if turn < self._turns(number)]

    def _turns(self, number: int) -> int:
        return len(self.suite.prompts[number].turns) if self.settings.turns == "all" else 1

    def _talk(self, number: int, said: Sequence[str]) -> Messages:
        return conversation(self.suite.prompts[number], said, self.settings.system)

    def _answers(self, row: Row, talks: Sequence[Messages], most: int) -> list[tuple[Answer, rounds.Columns]]:
        """What a server answers, with its rounds: asked again where those are in doubt, given up where they stay so."""
        for _ in range(TRIES):
            before = row.server.counted() if row.counts else None
            answers = self._ask(row.server, talks, most)
            columns = self._columns(row, answers, before)
            if columns is not None:
                return list(zip(answers, columns, strict=True))
            self.again += 1
        raise ServerError(
            f"{row.server.place}: what its stream brought and what it counted disagree, {TRIES} times over; let nobody "
            f"else use the server meanwhile, and start it so that every step is streamed by itself (--stream-interval "
            f"1)."
        )

    def _ask(self, server: Server, talks: Sequence[Messages], most: int) -> list[Answer]:
        if len(talks) == 1:
            return [server.ask(talks[0], self.settings, most)]
        with ThreadPoolExecutor(len(talks)) as pool:
            return list(pool.map(lambda talk: server.ask(talk, self.settings, most), talks))

    def _columns(self, row: Row, answers: Sequence[Answer], before: Tally | None) -> list[rounds.Columns] | None:
        """The rounds of some answers; None where stream and count disagree. What is not told stays empty."""
        if row.server.about.speculates is False:
            return [rounds.plain(answer) for answer in answers]
        if not row.counts:
            return [rounds.Columns() for _ in answers]
        budget = Budget.parse(row.budget)
        tallies = [answer.tally for answer in answers if answer.tally is not None]
        if len(tallies) == len(answers):
            each = [rounds.alone(answer, tally, budget) for answer, tally in zip(answers, tallies, strict=True)]
            found = [columns for columns in each if columns is not None]
            return self._kept(found, tallies) if len(found) == len(answers) else None
        for look in range(LOOKS):
            time.sleep(LOOK_SECONDS if look else 0)
            tally = between(before, row.server.counted())
            if tally is None or goes_back(tally):
                raise ServerError(
                    f"{row.server.place}: its counters went back or are gone, so it was started anew in the middle of "
                    f"an answer; run the benchmark again."
                )
            if len(answers) == 1:
                one = rounds.alone(answers[0], tally, budget)
                several = None if one is None else [one]
            else:
                several = rounds.together(answers, tally, budget)
            if several is not None:
                return self._kept(several, [tally])
        return None

    def _kept(self, columns: list[rounds.Columns], tallies: Sequence[Tally]) -> list[rounds.Columns]:
        self.counted += tallies
        return columns

    def _records(
        self,
        row: Row,
        members: Sequence[int],
        answers: Sequence[tuple[Answer, rounds.Columns]],
        turn: int,
        repeat: int,
    ) -> list[Record]:
        size = self.settings.batch_size
        first = min(answer.first for answer, _ in answers)
        prefill = first - min(answer.began for answer, _ in answers)
        decode = max(answer.last for answer, _ in answers) - first
        return [
            Record(
                cell=row.cell,
                drafter=row.label,
                budget=row.budget,
                prompt=self.suite.prompts[number].id,
                category=self.suite.prompts[number].category,
                turn=turn,
                repeat=repeat,
                group=members[0] // size if size > 1 else -1,
                prompt_tokens=answer.prompt_tokens,
                tokens=answer.ids,
                **attrs.asdict(columns, recurse=False),
                draft_s=None,
                verify_s=None,
                rest_s=None,
                prefill_s=prefill / len(answers),
                decode_s=decode / len(answers),
                text=answer.text,
                counted=answer.length if answer.ids is None else None,
            )
            for number, (answer, columns) in zip(members, answers, strict=True)
        ]
