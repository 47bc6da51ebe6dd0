"""The benchmark runner: interleaving, files that grow, turns, and the check that catches a lossy drafter."""

from __future__ import annotations

import io
import json
import random
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from drafterzoo.budget import Budget
from drafterzoo.errors import UsageError
from drafterzoo.evaluation import tables
from drafterzoo.evaluation.conditions import Settings, gather
from drafterzoo.evaluation.names import short_names
from drafterzoo.evaluation.results import ResultsWriter, read
from drafterzoo.evaluation.runner import BenchResult, Cell, Run, bench, choice_scores, decode, make_cells
from drafterzoo.evaluation.suites import Prompt, Suite
from drafterzoo.evaluation.summary import differences, summarise
from drafterzoo.evaluation.tables import Grid

PROMPTS = tuple(
    Prompt(f"p{i}", ("chat", "maths")[i % 2], (f"question {i}", f"and {i}")[: 1 + (i == 1)]) for i in range(4)
)
SUITE = Suite("toy", PROMPTS, "sha", "here")


class FakeTarget:
    """A target without a model: words are tokens, and answers come from `FakeDecoder`."""

    name, max_positions, packed, dense_rows, tokenizer = "fake", 100, False, 0, None
    dtype, device = torch.float32, torch.device("cpu")
    eos_token_ids = (0,)

    def encode_chat(self, messages, *, thinking=None):
        return [len(word) for message in messages for word in message["content"].split()]

    def decode(self, ids):
        return " ".join("w" * i for i in ids)

    def read(self, tokens, taps=(), valid=None):
        return SimpleNamespace(hidden=torch.nn.functional.one_hot(tokens % 10, 10).float())

    def head(self, hidden):
        return 3 * hidden

    def open_cache(self, n, capacity, scratch):
        return SimpleNamespace(n=n, capacity=capacity)

    def prefill(self, cache, prompts, taps):
        assert cache.capacity >= len(prompts[0])
        return SimpleNamespace(logits=torch.arange(10.0).mul(self.slope)[None, None])

    slope = 1e-4

    def fingerprint(self):
        return {"name": self.name, "revision": None, "tokenizer": None}


class FakeDecoder:
    """Answers with a text that depends on the prompt alone; plain decoding takes one token a round, others two."""

    def __init__(self, lossy=None, interrupt_at=None):
        self.calls = []
        self.lossy, self.interrupt_at = lossy, interrupt_at

    def __call__(self, cell, prompts, numbers, settings):
        self.calls.append((cell.name, tuple(numbers), tuple(map(tuple, prompts))))
        if self.interrupt_at == len(self.calls):
            raise KeyboardInterrupt
        return [self.answer(cell, prompt, number, settings) for prompt, number in zip(prompts, numbers, strict=True)]

    def answer(self, cell, prompt, number, settings):
        text = random.Random(str(prompt)).choices(range(1, 9), k=min(9, settings.max_new_tokens))
        if cell.label == self.lossy and number == 2:
            text[4] += 1
        step = 1 if cell.drafter is None else 2
        rounds = (len(text) - 1) // step
        return {
            "tokens": text, "committed": [step] * rounds, "emitted": [step] * rounds,
            "accepted": [step - 1] * rounds, "nodes": [4 * (step - 1)] * rounds,
            "forwards": [step - 1] * rounds, "rows": [step - 1] * rounds, "draft_s": [0.001] * rounds,
            "verify_s": [0.01] * rounds, "rest_s": [0.0] * rounds, "prefill_s": 0.1, "decode_s": 0.011 * rounds,
        }  # fmt: skip


def fake_drafter(name):
    manifest = {"spec": name, "drafter": {"name": name}, "wrappers": [], "dtype": "float32", "target": {}}
    return SimpleNamespace(spec=name, manifest=lambda: manifest, tensors=lambda: {"w": torch.arange(3.0)})


DRAFTERS = {name: fake_drafter(name) for name in ("lookup", "quick")}
CELLS = make_cells(DRAFTERS, [Budget.chain(4), Budget.tree(8)])


def measure(folder, decoder, settings=None, target=None, **more):
    settings = settings or Settings(max_new_tokens=16, warmup=0)
    run = Run(target or FakeTarget(), SUITE, CELLS, settings, decoder)
    run.check()
    conditions = gather(run.target, SUITE, None, settings, DRAFTERS, ["chain:4", str(Budget.tree(8))])
    with ResultsWriter(folder, conditions) as writer:
        return run.measure(writer, conditions, **more)


def test_cells_are_plain_and_every_drafter_at_every_budget():
    tree = str(Budget.tree(8))
    assert [cell.name for cell in CELLS] == [
        "none",
        "lookup@chain:4",
        f"lookup@{tree}",
        "quick@chain:4",
        f"quick@{tree}",
    ]
    assert isinstance(CELLS[0], Cell) and CELLS[0].drafter is None


def test_cells_are_interleaved_prompt_by_prompt_in_a_seeded_order(tmp_path):
    decoder = FakeDecoder()
    measure(tmp_path / "a", decoder)
    assert len(decoder.calls) == 4 * 5
    names = {cell.name for cell in CELLS}
    orders = []
    for prompt in range(4):
        block = decoder.calls[5 * prompt : 5 * prompt + 5]
        assert {name for name, *_ in block} == names and {numbers for _, numbers, _ in block} == {(prompt,)}
        orders.append(tuple(name for name, *_ in block))
    assert len(set(orders)) > 1
    again, other = FakeDecoder(), FakeDecoder()
    measure(tmp_path / "b", again)
    measure(tmp_path / "c", other, Settings(max_new_tokens=16, warmup=0, seed=5))
    assert again.calls == decoder.calls and other.calls != decoder.calls


def test_warm_up_is_every_cell_and_not_counted(tmp_path):
    decoder = FakeDecoder()
    summary = measure(tmp_path / "a", decoder, Settings(max_new_tokens=16, warmup=2))
    assert [numbers for _, numbers, _ in decoder.calls[:10]] == [(0,)] * 5 + [(1,)] * 5
    assert len(decoder.calls) == 10 + 20 and summary["rows"][0]["answers"] == 4


def test_the_summary_of_a_faithful_drafter(tmp_path):
    summary = measure(tmp_path / "a", FakeDecoder())
    json.dumps(summary, allow_nan=False)
    assert summary["complete"] and summary["answers"] == 4 and summary["memory"]["peak_resident_bytes"] > 1e7
    counts = {"texts": 16, "different": 0, "ties": 0}
    assert summary["lossless"] == {"checked": True, "unit": "token", **counts, "differences": []}
    plain, *_, quick = summary["rows"]
    assert plain["cell"] == "none" and plain["tau"] == 1 and plain["speedup"]["value"] == 1
    assert (
        quick["drafter"] == "quick"
        and quick["tau"] == 2
        and quick["tau_macro"] == 2
        and quick["accepted_per_round"] == 1
    )
    assert quick["speedup"]["value"] == pytest.approx(2) and quick["speedup"]["low"] == pytest.approx(2)
    assert quick["speedup_with_prefill"]["value"] == pytest.approx((8 * 0.011 + 0.1) / (4 * 0.011 + 0.1))
    assert quick["survival"] == [1, 0, 0, 0, 0] and quick["conditional"] == [1, 0, None, None, None]
    assert quick["equal_texts"] == quick["texts"] == 4
    assert set(quick["categories"]) == {"chat", "maths"} and quick["categories"]["maths"]["answers"] == 2
    head = {(pair["drafter"], pair["against"], pair["budget"]): pair for pair in summary["comparisons"]}
    assert set(head) == {("quick", "lookup", "chain:4"), ("quick", "lookup", str(Budget.tree(8)))}
    assert head["quick", "lookup", "chain:4"]["tau_ratio"]["value"] == 1
    found = read(tmp_path / "a")
    assert found.summary == json.loads(json.dumps(summary))
    again = summarise(found.records, found.conditions)
    assert again["rows"] == summary["rows"] and again["conditions_key"] == summary["conditions_key"]


@pytest.mark.parametrize(("slope", "ties"), [(2.0, 0), (1e-4, 2)])
def test_a_lossy_drafter_is_caught_and_explained(tmp_path, slope, ties):
    target = FakeTarget()
    target.slope = slope
    summary = measure(tmp_path / "a", FakeDecoder(lossy="quick"), target=target)
    assert summary["lossless"]["different"] == 2 and summary["lossless"]["ties"] == ties
    places = summary["lossless"]["differences"]
    assert {place["cell"] for place in places} == {CELLS[3].name, CELLS[4].name}
    for place in places:
        assert place["prompt"] == "p2" and place["position"] == 4 and place["token"] == place["plain_token"] + 1
        assert place["gap"] == pytest.approx(-slope) and place["tie"] == bool(ties)
    by_cell = {row["cell"]: row for row in summary["rows"]}
    assert by_cell["quick@chain:4"]["equal_texts"] == 3 and by_cell["lookup@chain:4"]["equal_texts"] == 4
    assert ("3/4 (1 tie)" if ties else "3/4 |") in tables.markdown(summary)


def test_a_difference_that_a_filter_made_has_no_gap_and_costs_no_summary(tmp_path):
    """Infinity is no JSON: the summary of a whole run would be lost to it."""
    target = FakeTarget()
    target.slope = 2.0  # of the tokens, the two highest alone pass the filter
    settings = Settings(max_new_tokens=16, warmup=0, temperature=1.0, top_k=2)
    summary = measure(tmp_path / "a", FakeDecoder(lossy="quick"), settings, target=target)
    assert summary["lossless"]["different"] == 2 and read(tmp_path / "a").summary is not None
    assert [(place["gap"], place["tie"]) for place in summary["lossless"]["differences"]] == [(None, False)] * 2


def test_rejection_when_sampling_does_not_compare_texts(tmp_path):
    settings = Settings(max_new_tokens=16, warmup=0, verification="rejection", temperature=1.0)
    summary = measure(tmp_path / "a", FakeDecoder(lossy="quick"), settings)
    assert not summary["lossless"]["checked"] and summary["rows"][3]["equal_texts"] is None
    assert "not checked" in tables.markdown(summary)


def test_sampling_that_draws_nothing_is_refused(tmp_path):
    decoder = FakeDecoder()
    with pytest.raises(UsageError, match=r"temperature=0.7 with top_k=1 and top_p=1 one token is left everywhere"):
        measure(tmp_path / "a", decoder, Settings(max_new_tokens=16, temperature=0.7, top_k=1))
    assert not decoder.calls
    summary = measure(tmp_path / "a", decoder, Settings(max_new_tokens=16, temperature=0.7, top_k=2))
    assert summary["entropy_nats"] > 0.01


def test_an_answer_that_ends_early_differs_at_its_end():
    from test_metrics import record

    plain = record([1, 1], [0, 0], cell="none", tokens=[5, 6, 7])
    short = record([1], [0], cell="x", tokens=[5, 6])
    (found,) = differences([plain, short])
    assert (found.position, found.plain_token, found.token, found.tie) == (2, 7, None, False)


def test_interrupting_keeps_every_finished_prompt(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path / "a", FakeDecoder(interrupt_at=13), show_progress=True)  # in the third prompt
    found = read(tmp_path / "a")
    assert [r.prompt for r in found.records] == ["p0"] * 5 + ["p1"] * 5
    assert found.summary["complete"] is False and found.summary["prompts_done"] == 2


def test_interrupting_before_the_first_prompt_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path / "a", FakeDecoder(interrupt_at=2))  # in the warm-up
    assert not (tmp_path / "a").exists()


def test_later_turns_follow_the_targets_own_answer(tmp_path):
    decoder = FakeDecoder(lossy="quick")
    summary = measure(tmp_path / "a", decoder, Settings(max_new_tokens=16, warmup=0, turns="all"))
    assert summary["answers"] == 5
    target = FakeTarget()
    records = read(tmp_path / "a").records
    first = next(r for r in records if (r.cell, r.prompt, r.turn) == ("none", "p1", 0))
    talk = [
        {"role": "user", "content": "question 1"},
        {"role": "assistant", "content": target.decode(first.tokens)},
        {"role": "user", "content": "and 1"},
    ]
    second = [prompts for _, numbers, prompts in decoder.calls if numbers == (1,)][5:]
    assert second == [(tuple(target.encode_chat(talk)),)] * 5


def test_batches_are_groups_and_repeats_are_lines(tmp_path):
    decoder = FakeDecoder()
    summary = measure(
        tmp_path / "a", decoder, Settings(max_new_tokens=16, warmup=0, batch_size=3, repeats=2, turns="all")
    )
    assert {numbers for _, numbers, _ in decoder.calls} == {(0, 1, 2), (1,), (3,)}
    records = read(tmp_path / "a").records
    assert {(r.prompt, r.group) for r in records} == {("p0", 0), ("p1", 0), ("p2", 0), ("p3", 1)}
    assert len(records) == 5 * 5 * 2 and summary["rows"][1]["answers"] == 5 and summary["rows"][1]["texts"] == 10
    assert summary["rows"][1]["speedup"]["clusters"] == 2


def test_a_prompt_that_cannot_fit_is_refused_before_anything_is_decoded(tmp_path):
    decoder = FakeDecoder()
    with pytest.raises(
        UsageError, match=r"prompt 'p0' of toy has 2 tokens, and 99 new ones do not fit the 100 positions"
    ):
        measure(tmp_path / "a", decoder, Settings(max_new_tokens=99))
    with pytest.raises(UsageError, match=r"prompt 'p1' of toy .* and 50 new ones for each of 2 turns do not fit"):
        measure(tmp_path / "a", decoder, Settings(max_new_tokens=50, turns="all"))
    assert not decoder.calls and not (tmp_path / "a").exists()


def test_tables_name_definition_and_conditions(tmp_path):
    summary = measure(tmp_path / "a", FakeDecoder())
    result = BenchResult(summary, tmp_path / "a")
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(result.table())
    text = " ".join(console.export_text().split())
    for said in (
        "τ with",
        "cut at EOS",
        "tree:8",
        "quick",
        "chain:4",
        "2.00x [2.00, 2.00]",
        "4/4",
        "T=0",
        "toy: 4 prompts",
    ):
        assert said in text
    assert "| quick | chain:4 | 2.00 | 1.00 | 2.00x [2.00, 2.00] | 181.8 | 4/4 |" in result.markdown()
    assert "| quick | chain:4 | 1.00 | 1.0 | 4.0 | 1.00 | 10.00 | 0.00 |" in result.markdown()
    assert "| quick | lookup | tree:8 | 1.00x [1.00, 1.00] | 1.00x [1.00, 1.00] |" in result.markdown()
    assert "**Acceptance by depth, conditional**" in result.markdown() and "chat (2)" in result.markdown()
    for what in ("conditional", "survival"):
        table = result.markdown().partition(f"**Acceptance by depth, {what}**")[2].partition("**By category**")[0]
        assert "| quick | chain:4 | 1.00 |" in table, what


def test_runs_under_unlike_conditions_are_not_tabled_together(tmp_path):
    one = measure(tmp_path / "a", FakeDecoder())
    two = measure(tmp_path / "b", FakeDecoder(), Settings(max_new_tokens=16, warmup=0, temperature=0.5))
    assert len(tables.grids(one, one)[0].rows) == 5 + 4  # plain decoding once
    with pytest.raises(UsageError, match=r"differ in sampling.temperature \(0.0 against 0.5\)"):
        tables.grids(one, two)


# ------------------------------------------------------------------------------------------ with the real engine


@pytest.fixture(scope="module")
def tiny():
    from tiny import tiny_target

    target = tiny_target(vocab=32, layers=4)

    def encode_chat(messages, *, thinking=None):
        return [3 + sum(map(ord, word)) % 29 for message in messages for word in message["content"].split()]

    target.encode_chat = encode_chat
    target.decode = lambda ids: " ".join(f"w{i}" for i in ids)
    return target


WORDS = ["one", "two", "one", "two", "three"] * 2
REAL = Suite(
    "real", tuple(Prompt(f"r{i}", "ab"[i % 2], (" ".join(WORDS[: 3 + i]), "again")) for i in range(5)), "s", "here"
)


@pytest.fixture(scope="module")
def untrained(tiny):
    from drafterzoo.registry import DRAFTERS

    return DRAFTERS.get("eagle3.1").create(tiny, taps=(1, 2, 3)).eval()


@pytest.mark.parametrize(
    "options",
    [
        {"budget": ["chain:3", 8]},
        {"budget": 6, "temperature": 1.0, "seed": 3},
        {"budget": 6, "temperature": 0.8, "top_k": 8, "coupled": False, "batch_size": 3},
        {"budget": "chain:4", "turns": "all", "batch_size": 2, "repeats": 2},
    ],
)
def test_bench_on_a_tiny_target_is_lossless(tmp_path, tiny, untrained, options):
    result = bench(untrained, REAL, target=tiny, max_new_tokens=12, out=tmp_path / "run", **options)
    summary = result.summary
    assert summary["complete"] and summary["lossless"]["checked"] and summary["lossless"]["different"] == 0
    records = read(result.directory).records
    plain = [r for r in records if r.cell == "none"]
    drafted = [r for r in records if r.cell != "none"]
    assert all(set(r.committed) <= {1} and not sum(r.nodes) for r in plain) and sum(sum(r.nodes) for r in drafted)
    assert all(len(r.tokens) <= 12 and len(r.draft_s) == r.rounds for r in records)
    assert all(sum(r.draft_s + r.verify_s + r.rest_s) > 0 for r in records if r.rounds)
    if options.get("batch_size", 1) == 1:  # alone, the rounds' own clocks agree with the wall's
        assert all(sum(r.draft_s + r.verify_s + r.rest_s) <= r.decode_s * 1.001 for r in records)
    for row in summary["rows"]:
        nodes = Budget.parse(row["budget"]).nodes if row["budget"] else 0
        assert row["nodes_per_round"] <= nodes and row["equal_texts"] == row["texts"]
        assert sum(row["survival"]) == pytest.approx(row["accepted_per_round"])
    assert "| plain | - | 1.00 | 0.00 | 1 |" in result.markdown()


def test_batches_draw_the_same_texts_as_singles(tmp_path, tiny):
    texts = []
    for size in (1, 4):
        result = bench(
            [], REAL, target=tiny, max_new_tokens=12, temperature=1.0, batch_size=size, out=tmp_path / str(size)
        )
        texts.append({(r.cell, r.prompt): r.tokens for r in read(result.directory).records})
    assert texts[0] == texts[1]
    assert len(set(texts[0].values())) > 1


def test_rejection_runs_and_says_that_texts_are_not_compared(tmp_path, tiny):
    result = bench(
        [], REAL, target=tiny, max_new_tokens=8, temperature=1.0, verification="rejection", out=tmp_path / "run"
    )
    assert not result.summary["lossless"]["checked"] and result.summary["entropy_nats"] > 0


def test_choice_scores_are_what_plain_decoding_chooses_by(tiny):
    settings = Settings(max_new_tokens=10, temperature=1.0, seed=7)
    ids = [5, 6, 7, 8]
    (counters,) = decode(tiny, Cell("none", "none", None, None), [ids], [3], settings)
    for place, token in enumerate(counters["tokens"]):
        text = [*ids, *counters["tokens"][:place]]
        cache = tiny.open_cache(1, len(text), 1)
        logits = tiny.prefill(cache, [text], ()).logits[:, -1]
        assert choice_scores(logits, len(text), 3, settings.sampling).argmax() == token


def test_what_cannot_be_compared_is_refused(tmp_path, tiny):
    from drafterzoo.catalogue import load

    lookup = load("lookup", tiny)
    wrong = [
        ({"exclude": ["none"]}, "'none' cannot be excluded, only 'lookup' can"),
        ({"budget": []}, "no budget was given"),
        ({"limit": 2}, "limit is for suites given by name"),
        ({"drafters": [lookup, lookup]}, "two drafters are called 'lookup'"),
        ({"drafters": ["lookupp"]}, "unknown drafter 'lookupp'"),
    ]
    for options, said in wrong:
        with pytest.raises(UsageError, match=said):
            bench(**{"drafters": [], "suite": REAL, "target": tiny, "out": tmp_path / "run", **options})
    assert not (tmp_path / "run").exists()


def test_lookup_can_be_left_out_and_is_never_doubled(tmp_path, tiny):
    from drafterzoo.catalogue import load

    options = {"suite": REAL, "max_new_tokens": 4, "budget": 4}
    alone = bench([], target=tiny, exclude=["lookup"], out=tmp_path / "a", **options)
    assert [row["cell"] for row in alone.summary["rows"]] == ["none"]
    given = bench(load("lookup", tiny), out=tmp_path / "b", **options)
    assert [row["drafter"] for row in given.summary["rows"]] == ["none", "lookup"]


def test_progress_says_what_is_at_work_and_how_it_ended(tmp_path, capsys, monkeypatch):
    from drafterzoo import progress

    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)  # every line
    measure(tmp_path / "a", FakeDecoder(), show_progress=True)
    said = capsys.readouterr().err.splitlines()
    assert said[1] == f"{SUITE.name}: 4 prompts, 5 rows, 20 answers"
    assert any(line.endswith(f"plain decoding on {SUITE.name}, prompt 4 of 4") for line in said)
    assert any(line.endswith(f"quick tree:8 on {SUITE.name}, prompt 1 of 4") for line in said)
    assert said[-1].startswith("20 of 20 answers in ")
    measure(tmp_path / "b", FakeDecoder(), Settings(max_new_tokens=16, warmup=0, batch_size=3), show_progress=True)
    assert f"on {SUITE.name}, prompts 1 to 3 of 4" in capsys.readouterr().err


NAMES = ("dir:runs/eagle3.1-ttt7-lr3e-4/step-12000", "dir:runs/hass/best", "dir:runs/other-hass/best", "lookup")


def test_names_are_cut_where_it_tells_least():
    assert short_names(NAMES, 20) == {
        NAMES[0]: "eagle3.1-…step-12000", NAMES[1]: NAMES[1], NAMES[2]: "other-hass/best", "lookup": "lookup",
    }  # fmt: skip
    assert short_names(NAMES, 12)[NAMES[1]] == "hass/best" and short_names(NAMES, 12)[NAMES[2]] == "other…s/best"
    alike = [f"eagle3.1+pr(reconsider={i},self_query='token')" for i in range(3)]
    short = short_names(alike, 20)
    assert len(set(short.values())) == 3 and all(len(name) <= 21 for name in short.values())


def test_names_and_budgets_do_not_break_in_their_middle_at_80_columns():
    budget = "nodes=16,depth=6,grow=3,offer=6"
    rows = [(name, budget, "2.48", "1.48", "1.59x [1.30, 2.02]", "38.5", "7/7") for name in NAMES]
    results = Grid("t", "c", tables.RESULT_COLUMNS, tuple(rows))
    drawn = tables.drawn([results], NAMES)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(drawn)
    text = console.export_text()
    lines = text.splitlines()
    for words in (
        "eagle3.1-…step-12000",
        "nodes=16,depth=6,",
        "grow=3,offer=6",
        "dir:runs/hass/best",
        "other-hass/best",
    ):
        assert any(words in line for line in lines), words
    assert any(line.startswith(f"eagle3.1-…step-12000: {NAMES[0]}") for line in lines), "and what it stands for"
    assert results.markdown().count(NAMES[0]) == 1 and budget in results.markdown(), "a card has room for all of it"


def test_of_names_that_begin_and_end_alike_what_is_between_tells_them_apart() -> None:
    runs = [f"dir:runs/eagle3.1-{kind}-smollm2/best" for kind in ("alone", "pr", "pr-token", "pr-guess", "two-layers")]
    runs.insert(2, f"{runs[1]}(reconsider=0)")
    short = short_names(["plain", *runs], 20)
    assert list(short.values()) == [
        "plain", "…alone…", "…pr…", "…pr…(reconsider=0)", "…pr-token…", "…pr-guess…", "…two-layers…",
    ]  # fmt: skip
    same = ["dir:runs/eagle3.1-smollm2/best(reconsider=1)", "dir:runs/eagle3.1-smollm2/best(reconsider=2)"]
    assert len(set(short_names(same, 20).values())) == 2
