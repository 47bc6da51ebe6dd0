"""The report: what is gathered, what is kept apart, what the page says, and what it refuses."""

from __future__ import annotations

import builtins
import itertools
import json
import math
import re
import warnings
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import attrs
import handmade
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import drafterzoo
from drafterzoo.budget import Budget
from drafterzoo.cli import main
from drafterzoo.errors import DataError, UsageError
from drafterzoo.evaluation import statistics
from drafterzoo.evaluation.diagnosis import folder as diagnosis_folder
from drafterzoo.evaluation.report import diagnosis_tables, offline_tables, tabulate
from drafterzoo.evaluation.report.called import folder_names, row_names
from drafterzoo.evaluation.report.canvas import DARK, LIGHT, Canvas, _apart, dodged, recoloured
from drafterzoo.evaluation.report.collect import collect
from drafterzoo.evaluation.report.definitions import DEFINITIONS, find
from drafterzoo.evaluation.report.figures import batch_pictures, section_pictures
from drafterzoo.evaluation.report.offline_figures import offline_pictures
from drafterzoo.evaluation.report.page import titles
from drafterzoo.evaluation.report.panels import against_budget, brief_budget, largest_budgets
from drafterzoo.evaluation.report.verdicts import judged
from drafterzoo.evaluation.results import ResultsWriter, read
from drafterzoo.evaluation.summary import summarise

# ------------------------------------------------------------------------------------------------------ statistics


def test_swap_test_by_hand():
    # three clusters, all three times as slow in y: only swapping none or all gives a ratio as far from 1
    columns = np.array([[1.0, 1, 3, 1], [2, 1, 6, 1], [4, 1, 12, 1]])
    assert statistics.swap_test(columns) == 2 / 8
    assert statistics.swap_test(np.array([[1.0, 1, 1, 1], [2, 1, 2, 1]])) == 1.0
    assert statistics.swap_test(columns[:1]) is None and statistics.swap_test(0 * columns) is None


def test_swap_test_keeps_its_promise_when_nothing_differs():
    rng = np.random.default_rng(0)
    ones = np.ones(10)
    values = [
        statistics.swap_test(np.stack([rng.uniform(1, 2, 10), ones, rng.uniform(1, 2, 10), ones], 1))
        for _ in range(300)
    ]
    assert np.mean(np.array(values) < 0.05) < 0.09 and 0.4 < np.mean(values) < 0.6
    many = np.stack([rng.uniform(1, 2, 40), np.ones(40), rng.uniform(2, 3, 40), np.ones(40)], 1)
    assert 1 / statistics.SWAPS <= statistics.swap_test(many) < 0.001


def test_holm_by_hand():
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm([]) == [] and statistics.holm([0.7, 0.8]) == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_lies_between_none_and_bonferroni_and_keeps_the_order(p_values):
    adjusted = statistics.holm(p_values)
    for p, q in zip(p_values, adjusted, strict=True):
        assert p <= q <= min(1, len(p_values) * p) + 1e-12
    assert all(
        adjusted[i] <= adjusted[j]
        for i, j in itertools.permutations(range(len(p_values)), 2)
        if p_values[i] < p_values[j]
    )


# -------------------------------------------------------------------------------------------------------- gathering


def test_rows_are_ranked_by_pooled_tau_and_equal_the_summary(tmp_path):
    (section,) = collect([handmade.write(tmp_path / "run")], find("vllm")).sections
    assert [(row.name, row.figures["tau"], row.other) for row in section.rows] == [
        ("none", 1.0, None), ("good", 12 / 5, 3.25), ("poor", 1.0, 1.0),
    ]  # fmt: skip
    assert [row.figures for row in section.rows] == summarise(handmade.records(), handmade.conditions())["rows"]
    good = section.rows[1]
    assert good.tau.value == 12 / 5 and good.tau.low <= 12 / 5 <= good.tau.high
    # plain decoding: 10 rounds of 10 ms; good: 5 rounds of 15 ms
    assert section.speed(good).ratio.value == pytest.approx(0.100 / 0.075)


def test_folders_are_searched_and_equal_conditions_share_a_section(tmp_path):
    handmade.write(tmp_path / "grid" / "a", handmade.records(("good",)), handmade.conditions(("good",)))
    handmade.write(tmp_path / "grid" / "b", handmade.records(("poor",)), handmade.conditions(("poor",)))
    made = handmade.conditions(sampling__temperature=1.0)
    handmade.write(tmp_path / "grid" / "deep" / "c", None, made)
    found = collect([tmp_path / "grid", tmp_path / "grid" / "a"])  # given twice, read once
    first, second = found.sections
    assert [run.name for run in first.runs] == ["a", "b"] and [run.name for run in second.runs] == ["c"]
    assert [row.name for row in first.rows] == ["none", "good", "poor"]
    assert found.differing == {"sampling.temperature": (0.0, 1.0)}
    (pair,) = first.comparisons
    assert pair.tau.ratio.value == pytest.approx(12 / 5) and pair.speed is None  # timed in different runs
    (pair,) = second.comparisons
    assert pair.speed.ratio.value == pytest.approx(0.125 / 0.075)


def test_the_same_row_in_two_runs_is_named_after_its_run(tmp_path):
    for name in "ab":
        handmade.write(tmp_path / name)
    (section,) = collect([tmp_path]).sections
    assert [row.name for row in section.rows] == ["none", "good (a)", "good (b)", "poor (a)", "poor (b)"]
    assert section.drafters == ["good (a)", "good (b)", "poor (a)", "poor (b)"]


def test_answers_that_not_every_row_has_are_left_out_and_said(tmp_path):
    collection = collect([handmade.write(tmp_path / "run", handmade.records()[:-1])])
    assert {(r.prompt, r.turn) for r in collection.runs[0].records} == {("p1", 0), ("p1", 1)}
    assert collection.remarks == [
        "run: 1 answer is left out, since not every row has them.",
        "run is unfinished: 1 of 2 prompts is shown.",
        "run: intervals: of 1 prompt they say little; ask at least 5 prompts.",
    ]


def test_runs_of_one_section_are_shown_on_the_prompts_that_all_of_them_have(tmp_path):
    some = [one for one in handmade.records(("poor",)) if one.prompt == "p2"]
    handmade.write(tmp_path / "a", handmade.records(("good",)), handmade.conditions(("good",)))
    handmade.write(tmp_path / "b", some, handmade.conditions(("poor",)))
    collection = collect([tmp_path])
    (section,) = collection.sections
    assert [{(r.prompt, r.turn) for r in row.records} for row in section.rows] == [{("p2", 0)}] * 3
    assert [(row.name, row.figures["tau"]) for row in section.rows] == [("none", 1.0), ("good", 3.0), ("poor", 1.0)]
    assert section.partial == "1 of 2 prompts is shown"
    assert collection.remarks == [
        "a: 2 answers are left out, since not every run beside it has them.",
        "b is unfinished: 1 of 2 prompts is shown.",
        "a, b: intervals: of 1 prompt they say little; ask at least 5 prompts.",
    ]
    handmade.write(tmp_path / "c", [r for r in handmade.records() if r.prompt == "p1"])
    with pytest.raises(DataError, match="have no prompt in common; report on them one by one"):
        collect([tmp_path])


def test_a_part_of_a_run_says_so_beside_every_number(tmp_path, undrawn):
    handmade.write(tmp_path / "whole")
    handmade.write(tmp_path / "part", handmade.records()[:-1], handmade.conditions(sampling__temperature=1.0))
    handmade.write_evaluation(tmp_path / "counted", handmade.lines()[:2])
    collection = collect([tmp_path])
    whole, part = collection.sections
    for picture in section_pictures(whole):
        assert "shown" not in picture.caption and picture.conditions.startswith("toy: 2 prompts, all turns")
    for picture in section_pictures(part):
        assert picture.caption.endswith(" 1 of 2 prompts is shown.")
        assert picture.conditions.startswith("toy: 1 of 2 prompts, all turns")
    for picture in offline_pictures(collection.offline[0]):
        assert picture.caption.endswith(" 1 of 2 rollouts is shown.") and ": 1 of 2 rollouts of" in picture.conditions
    page = drafterzoo.report(tmp_path).page.read_text(encoding="utf-8")
    assert page.count("toy: 2 prompts, all turns") == page.count("toy: 1 of 2 prompts, all turns") == 1
    assert page.count('<p class="note">1 of 2 prompts is shown.</p>') >= 4


def test_bars_of_several_drafters_stand_beside_each_other():
    from matplotlib.figure import Figure

    def ratio(value):
        return {"value": value, "low": value - 0.1, "high": value + 0.1}

    lines = {(name, "chain"): [(4, ratio(1.5)), (8, ratio(1.6))] for name in ("a", "b", "c")}
    lines["a", "tree"] = [(16, ratio(1.7))]  # alone at its size, where it stands exactly
    axes = Figure().add_subplot()
    against_budget(lines, "τ")(Canvas(axes, LIGHT, ["a", "b", "c"]))
    bars = [
        drawn.get_xdata() for drawn in axes.lines if len(set(drawn.get_xdata())) == 1 and len(drawn.get_xdata()) == 2
    ]
    places = sorted(float(x[0]) for x in bars)
    assert len(set(places)) == 7 and (places[1], places[4], places[6]) == (4, 8, 16)
    assert all(abs(place / size - 1) < 0.05 for place, size in zip(places[:6], [4, 4, 4, 8, 8, 8], strict=True))
    many = dodged({name: [(4, None)] for name in range(8)})
    assert min(many.values())[0] > 0.85 * 4 and max(many.values())[0] < 1.12 * 4, "within the axes"


def test_a_row_that_failed_early_does_not_take_the_others_with_it(tmp_path):
    some = [one for one in handmade.records() if one.drafter != "poor" or (one.prompt, one.turn) == ("p1", 1)]
    collection = collect([handmade.write(tmp_path / "run", some)])
    assert [row.name for row in collection.sections[0].rows] == ["none", "good"]
    assert collection.remarks == [
        "run: poor@chain:3 answered 1 of 3 questions and is left out.",
        "run: intervals: of 2 prompts they say little; ask at least 5 prompts.",
    ]


def test_a_half_written_last_line_is_left_out_and_said(tmp_path):
    path = handmade.write(tmp_path / "run") / "rounds.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    collection = collect([tmp_path / "run"])
    assert any("rounds.jsonl:9: the last line is half-written" in remark for remark in collection.remarks)
    assert len(collection.runs[0].records) == 6


def test_gaps_of_a_stored_summary_are_kept(tmp_path):
    wrong = [
        attrs.evolve(r, tokens=(*r.tokens[:-1], 99)) if r.drafter == "poor" and r.prompt == "p2" else r
        for r in handmade.records()
    ]
    made = handmade.conditions()
    with ResultsWriter(tmp_path / "run", made) as writer:
        for one in wrong:
            writer.append(one)
        summary = summarise(wrong, made)
        summary["lossless"]["differences"][0]["gap"] = 2e-5
        writer.finish(summary)
    lossless = collect([tmp_path / "run"]).runs[0].summary["lossless"]
    assert (lossless["different"], lossless["ties"], lossless["differences"][0]["gap"]) == (1, 1, 2e-5)


def test_corrected_comparisons_are_withdrawn():
    ratio = statistics.PairedRatio(1.1, 1.02, 1.2, 1.0, 1.2, 40)
    (alone,) = judged([(ratio, 0.03)])
    assert alone.clear and not alone.withdrawn
    verdict = judged([(ratio, 0.03)] * 4)[0]
    assert verdict.adjusted == pytest.approx(0.12) and not verdict.clear and verdict.withdrawn
    wide = attrs.evolve(ratio, low=0.9)
    assert not judged([(wide, 0.03)] * 4)[0].withdrawn


# --------------------------------------------------------------------------------------------------------- the page


class Page(HTMLParser):
    """Tables as lists of rows of text, figures' alternative texts, and every address that something is loaded from."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.alts, self.loaded, self._row, self._table = {}, [], [], None, None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.loaded += [given[name] for name in ("src", "srcset", "href", "action", "data") if name in given]
        if tag == "table":
            self._table = self.tables.setdefault(given["id"], [])
        if tag == "tr":
            self._row = []
            self._table.append(self._row)
        if tag in ("td", "th"):
            self._row.append("")
        if tag == "img":
            self.alts.append(given["alt"])

    def handle_endtag(self, tag):
        if tag == "tr":
            self._row = None

    def handle_data(self, text):
        if self._row:
            self._row[-1] += text.strip()


@pytest.fixture
def undrawn(monkeypatch):
    """Figures take most of the time; here nobody looks at them."""
    drawn = b"drawn"
    monkeypatch.setattr("drafterzoo.evaluation.report.page.for_page", lambda *_: {"light": drawn, "dark": drawn})
    monkeypatch.setattr("drafterzoo.evaluation.report.write.for_files", lambda *_: {"png": drawn, "svg": drawn})


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A report of two batch sizes (of the first, two budgets) and two temperatures, by vLLM's definition."""
    root = tmp_path_factory.mktemp("report")
    chain, several = ("chain:3",), ("chain:3", "nodes=6,depth=3,grow=2,offer=2")
    for name, budgets, changes in (
        ("one", several, {}),
        ("two", chain, {"run__batch_size": 2}),
        ("hot", chain, {"sampling__temperature": 1.0}),
    ):
        made = handmade.conditions(budgets=budgets, **changes)
        handmade.write(root / "runs" / name, handmade.records(budgets=budgets), made)
    return drafterzoo.report(root / "runs", root / "out", definition="vllm")


def test_the_page_shows_the_summary_s_numbers(written):
    page = Page(written.page.read_text(encoding="utf-8"))
    head, plain, best, *_ = page.tables["leaderboard-1"]
    assert head[:5] == ["drafter", "budget", "τ with bonus [95 %]", "τ macro", "τ by vLLM ‡"]
    row = next(r for r in written.summary["sections"][0]["rows"] if r["drafter"] == "good")
    low, high = row["tau_interval"]["low"], row["tau_interval"]["high"]
    assert best[:5] == [
        "good",
        "chain:3",
        f"{row['tau']:.2f} [{low:.2f}, {high:.2f}]",
        f"{row['tau_macro']:.2f}",
        "3.25",
    ]
    assert plain[:5] == ["plain", "-", "1.00 [1.00, 1.00]", "1.00", "-"]
    assert any(cell.startswith(f"{row['speedup']['value']:.2f}×") for cell in best)
    assert best[-1] == "3/3"
    depths = page.tables["depths-1"]
    assert depths[1] == ["good", "chain:3", "survival", "0.800", "0.600", "0.200"]
    assert depths[2] == ["good", "chain:3", "conditional", "0.800", "0.750", "0.500"]
    chat = page.tables["categories-1"][1]
    assert chat[2] == "2.25" and chat[4] == "3.00"


def test_sections_are_apart_and_the_page_says_why(written):
    text = written.page.read_text(encoding="utf-8")
    page = Page(text)
    assert [row[:3] for row in page.tables["sections"]] == [
        ["section", "sampling.temperature", "run.batch_size"], ["1", "0", "1"], ["2", "0", "2"], ["3", "1", "1"],
    ]  # fmt: skip
    assert "all 12 texts equal plain decoding&#39;s" in text and "1 + accepted drafts / drafting steps" in text


def test_nothing_is_loaded_from_anywhere(written):
    text = written.page.read_text(encoding="utf-8")
    page = Page(text)
    assert page.loaded and all(address.startswith(("data:", "#")) for address in page.loaded)
    style = "".join(re.findall(r"<style>(.*?)</style>", text, re.S))
    assert "url(" not in style and "@import" not in style
    assert "default-src 'none'" in text


def test_every_figure_is_described_with_its_numbers_and_lies_beside_the_page(written):
    page = Page(written.page.read_text(encoding="utf-8"))
    assert len(page.alts) == len(written.figures) / 2 and all(re.search(r"\d\.\d\d|\d %", alt) for alt in page.alts)
    leaderboard = next(alt for alt in page.alts if alt.startswith("Speed-up at matched budgets"))
    assert "good at chain:3 1.33x [" in leaderboard
    batch = next(alt for alt in page.alts if alt.startswith("Speed-up against batch size, chain:3"))
    assert "good: batch 1 1.33x [" in batch and "batch 2 1.33x [" in batch
    for path in written.figures:
        start = path.read_bytes()[:400]
        assert start.startswith(b"\x89PNG") if path.suffix == ".png" else b"<svg" in start


def test_the_same_results_give_the_same_bytes(tmp_path):
    handmade.write(tmp_path / "run", handmade.records(("good",)), handmade.conditions(("good",)))
    first, second = (drafterzoo.report(tmp_path / "run", tmp_path / name) for name in "ab")
    assert first.page.read_bytes() == second.page.read_bytes()
    assert [p.read_bytes() for p in first.figures] == [p.read_bytes() for p in second.figures]


def test_a_bench_of_a_tiny_target_is_reported(tmp_path, undrawn):
    from test_runner import REAL
    from tiny import tiny_target

    target = tiny_target(vocab=32, layers=4)
    target.encode_chat = lambda messages, *, thinking=None: [
        3 + sum(map(ord, word)) % 29 for message in messages for word in message["content"].split()
    ]
    target.decode = lambda ids: " ".join(f"w{i}" for i in ids)
    bench = drafterzoo.bench([], REAL, target=target, budget=["chain:3", 8], max_new_tokens=12, out=tmp_path / "run")
    result = drafterzoo.report(bench.directory, definition="deepspec")
    (section,) = result.summary["sections"]
    rows = {row["cell"]: row for row in section["rows"]}
    for row in bench.summary["rows"]:
        shown = rows[row["cell"]]
        assert all(shown[name] == row[name] for name in row) and shown["tau_by_definition"] in (None, row["tau"])
    assert section["lossless"] == "Lossless: all 10 texts equal plain decoding's, token for token."
    for record in read(bench.directory).records:
        assert all(walked >= accepted for walked, accepted in zip(record.walked, record.accepted, strict=True))


def test_figures_of_an_older_report_go_and_other_files_stay(tmp_path, undrawn):
    handmade.write(tmp_path / "run")
    figures = drafterzoo.report(tmp_path / "run", tmp_path / "out").figures
    for name in ("7-leaderboard-tau.png", "7-mine.png", "notes.txt"):
        (tmp_path / "out" / "figures" / name).write_text("")
    assert drafterzoo.report(tmp_path / "run", tmp_path / "out").figures == figures
    left = {path.name for path in (tmp_path / "out" / "figures").iterdir()} - {path.name for path in figures}
    assert left == {"7-mine.png", "notes.txt"}


def test_a_lossy_run_is_reported_as_such(tmp_path, undrawn):
    from test_runner import FakeDecoder, measure

    summary = measure(tmp_path / "run", FakeDecoder(lossy="quick"))
    result = drafterzoo.report(tmp_path / "run")
    assert result.page == tmp_path / "run" / "report" / "report.html"
    (section,) = result.summary["sections"]
    assert [(row["cell"], row["tau"], row["speedup"]) for row in section["rows"]] == sorted(
        ((row["cell"], row["tau"], row["speedup"]) for row in summary["rows"]),
        key=lambda row: [r["cell"] for r in section["rows"]].index(row[0]),
    )
    assert (
        section["lossless"] == "2 of 16 texts differ from plain decoding's, every one at a tie (logit gap under 0.001)."
    )


def test_names_and_texts_cannot_break_the_page(tmp_path, undrawn):
    name = "<script>alert(1)</script>"
    handmade.write(tmp_path / "run", handmade.records((name,)), handmade.conditions((name,)))
    text = drafterzoo.report(tmp_path / "run").page.read_text(encoding="utf-8")
    assert name not in text and "&lt;script&gt;alert(1)" in text


def test_only_figures_with_data_are_drawn(tmp_path):
    handmade.write(tmp_path / "run", handmade.records(()), handmade.conditions((), ()))
    collection = collect([tmp_path / "run"])
    assert [picture.name for picture in section_pictures(collection.sections[0])] == ["1-time"]
    assert not batch_pictures(collection) and tabulate.head_to_head(collection.sections[0]) is None
    drafterzoo.report(tmp_path / "run")


@given(st.lists(st.floats(0, 1), max_size=8).map(sorted))
def test_names_beside_a_panel_are_moved_apart(heights):
    places = _apart(heights, 0.05, 1.0)
    assert all(b - a >= 0.05 - 1e-9 for a, b in itertools.pairwise(places)) and all(place <= 1 for place in places)


# ----------------------------------------------------------------------------------------------------------- colours

VISIONS = {  # as seen by protanopes, deuteranopes, tritanopes (Machado, Oliveira, Fernandes, IEEE TVCG 15, 2009)
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    "normal": np.eye(3),
}  # fmt: skip


def linear(colour):
    part = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.95047, 1, 1.08883])
    f = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(a, b):
    dark, light = sorted(linear(colour) @ [0.2126, 0.7152, 0.0722] for colour in (a, b))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_a_hue_means_a_drafter_and_parts_of_a_round_are_greys(theme):
    assert not set(theme.parts) & set(theme.colours[: -len(theme.parts)])
    for colour in theme.parts:
        channels = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        assert max(channels) - min(channels) < 25
    drafter, target, rest = theme.parts
    for part, text in ((drafter, theme.surface), (target, theme.surface), (rest, theme.ink)):
        assert contrast(part, text) >= 4.5  # the number within a bar
    assert contrast(drafter, target) > 1.6 and contrast(target, rest) > 1.6


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_is_legible_and_drafters_are_told_apart(theme):
    for colour in (theme.ink, theme.muted, *theme.series):
        assert contrast(colour, theme.surface) >= 4.5  # WCAG AA
    for vision in VISIONS.values():
        seen = [lab(np.array(vision) @ linear(colour)) for colour in theme.series]
        distances = [np.linalg.norm(a - b) for a, b in itertools.combinations(seen[:6], 2)]
        assert min(distances) > 20  # the first six; a just noticeable difference is 2.3
        assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 9


# ------------------------------------------------------------------------------------- evaluations, and what failed


def test_an_evaluation_is_reported_in_a_section_of_its_own(tmp_path, undrawn):
    handmade.write(tmp_path / "runs" / "decoded")
    handmade.write_evaluation(tmp_path / "runs" / "counted")
    result = drafterzoo.report(tmp_path / "runs", tmp_path / "out", definition="vllm")
    assert result.remarks[-1].startswith("τ by vLLM needs decoded results")
    assert [section["number"] for section in result.summary["sections"]] == [1]
    (section,) = result.summary["offline"]
    good, poor = section["rows"]
    # 12 tokens each: good in 3 + 2 rounds, poor in 6 + 6
    assert (good["drafter"], good["mal"], poor["mal"]) == ("good", 12 / 5, 1.0) and section["number"] == 2
    assert good["mal_interval"]["value"] == 12 / 5 and good["mal_interval"]["low"] <= 12 / 5
    (pair,) = section["comparisons"]
    assert (pair["drafter"], pair["against"], pair["mal_ratio"]["value"]) == ("good", "poor", 12 / 5)
    assert pair["mal_ratio"]["p_holm"] == 0.5  # of two prompts, only swapping both or none is as far from 1
    text = result.page.read_text(encoding="utf-8")
    page = Page(text)
    head, best, other = page.tables["leaderboard-2"]
    assert head[:5] == ["drafter", "budget", "MAL [95 %]", "τ with bonus", "rounds per answer"]
    assert best[:2] == ["good", "chain:2"] and best[2].startswith("2.40 [") and best[3:5] == ["2.60", "2.5"]
    assert other[2] == "1.00 [1.00, 1.00]" and best[-3:] == ["5", "12", "2"]
    assert page.tables["atleast-2"][0] == ["drafter", "budget", "of all rounds", "≥ 1", "≥ 2", "≥ 3"]
    assert page.tables["atleast-2"][1:3] == [
        ["good", "chain:2", "rounds", "5", "4", "3"], ["good", "chain:2", "share", "1.000", "0.800", "0.600"],
    ]  # fmt: skip
    assert page.tables["acceptance-2"][1] == ["good", "chain:2", "0.800", "0.750"]
    assert page.tables["pairs-2"][1][:3] == ["good", "chain:2", "poor"]
    assert (
        text.index("leaderboard-1") < text.index("Counted on rollouts, nothing decoded") < text.index("leaderboard-2")
    )
    assert "Nothing was timed" in text and "sections" not in page.tables
    assert "τ: the last round of up to 1 answer may have gone further" in text
    assert any("Of all rounds" in caption or "At least 1, 2" in caption for caption in page.alts)


def test_expected_rounds_show_both_estimators(tmp_path, undrawn):
    made = handmade.evaluation_conditions(sampling__rule="rejection", sampling__temperature=1.0)
    handmade.write_evaluation(tmp_path / "run", handmade.lines(smoothed=2.0), made)
    result = drafterzoo.report(tmp_path / "run")
    page = Page(result.page.read_text(encoding="utf-8"))
    head, best, _ = page.tables["leaderboard-1"]
    assert head[3:5] == ["MAL (c)", "expected rounds per answer"] and best[3] == "3.00"
    assert result.summary["sections"] == [] and result.page.parent == tmp_path / "run" / "report"
    assert best[5:] == ["5.0", "12", "2"]


def test_evaluations_share_a_section_only_under_equal_conditions(tmp_path):
    write, made = handmade.write_evaluation, handmade.evaluation_conditions
    write(tmp_path / "a", handmade.lines(("good",)), made(("good",)))
    write(tmp_path / "b", handmade.lines(("poor",))[:1], made(("poor",)))  # stopped after the first rollout
    write(tmp_path / "c", handmade.lines(("good",)), made(("good",), convention__start="prompt"))
    collection = collect([tmp_path])
    first, second = collection.offline
    assert [(row.name, row.figures["rollouts"]) for row in first.rows] == [("good", 1), ("poor", 1)]
    assert collection.remarks == ["a, b: 1 of 2 rollouts is shown, since not every row has the others."]
    assert [row.name for row in second.rows] == ["good"] and not second.comparisons
    table = offline_tables.overview(collection.offline)
    assert [column.title for column in table.columns] == ["section", "convention.start", "highest MAL"]
    write(tmp_path / "d", handmade.lines(("good",)), made(("good",)))
    assert "good (d)" in collect([tmp_path]).offline[0].drafters


def test_broken_evaluations_are_refused_and_nothing_is_changed(tmp_path, capsys):
    folder = handmade.write_evaluation(tmp_path / "run")
    path = folder / "rollouts.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    assert any("the last line is half-written" in remark for remark in collect([folder]).remarks)
    assert path.read_bytes() == whole[:-9]  # reading is no repairing
    path.write_bytes(b"nonsense\n" + whole)
    assert "rollouts.jsonl:1: not a line of an evaluation" in refused(capsys, folder)[1]
    path.write_bytes(whole)
    conditions = json.loads((folder / "conditions.json").read_text())
    (folder / "conditions.json").write_text(json.dumps({**conditions, "drafters": {}}))
    assert "has rows of 'good@chain:2'" in refused(capsys, folder)[1]
    (folder / "conditions.json").write_text(json.dumps({**conditions, "format_version": 2}))
    assert "format_version is 2, expected 1" in refused(capsys, folder)[1]
    path.write_bytes(b"")
    (folder / "conditions.json").write_text(json.dumps(conditions))
    assert "there is no answer in" in refused(capsys, folder)[1]


def test_diagnoses_of_the_same_answers_are_reported_in_one_section_apart(tmp_path, undrawn):
    handmade.write(tmp_path / "runs" / "decoded", handmade.records(("good",)), handmade.conditions(("good",)))
    handmade.write_diagnosis(tmp_path / "runs" / "one", "good")
    handmade.write_diagnosis(tmp_path / "runs" / "two", "good+pr", again=True)
    result = drafterzoo.report(tmp_path / "runs", tmp_path / "out")
    (section,) = result.summary["diagnoses"]
    assert section["number"] == 2 and [row["name"] for row in section["rows"]] == ["good", "good+pr"]
    assert [row["acceptance"] for row in section["rows"]] == [2 / 6, 2 / 6]
    text = result.page.read_text(encoding="utf-8")
    page = Page(text)
    head, bare, again = page.tables["leaderboard-2"]
    assert head == [
        "drafter", "tokens", "accepted", "at depth 1", "at depth 2", "of rejected: unsure",
        "of rejected: unsure, target decisive", "of rejected: recovered",
    ]  # fmt: skip
    # four are rejected, two of them while unsure, and one of these against a decisive target
    assert bare == ["good", "6", "0.333", "0.333", "0.333", "0.500", "0.250", "-"] and again[-1] == "0.500"
    assert page.tables["confidence-2"][0][2:] == [f"{i / 10:g} to {(i + 1) / 10:g}" for i in range(10)]
    assert page.tables["confidence-2"][1][-1] == "0.500" and page.tables["confidence-2"][2][-1] == "2"
    assert page.tables["rejected-2"][10] == ["good", "all", "all", "4", "1.000", "-", "-", "-"]
    assert page.tables["rejected-2"][20] == ["good+pr", "all", "all", "4", "1.000", "0.500", "+0.200", "-0.050"]
    assert text.index("leaderboard-1") < text.index("When drafters are wrong") < text.index("leaderboard-2")
    alts = [alt for alt in page.alts if alt.startswith(("Acceptance by conf", "Rejected tokens", "Recovered"))]
    assert len(alts) == 4 and "good: 0.2 to 0.3 100.0%" in alts[0] and "good+pr: 0.2" in alts[0]
    assert {path.stem for path in result.figures if path.stem.startswith("2-")} == {
        "2-acceptance-confidence", "2-share-1", "2-share-2", "2-recovered-2",
    }  # fmt: skip
    page_of = [row for row in page.tables["conditions-2"] if row[0].startswith("diagnosis")]
    assert page_of == [
        [f"diagnosis {name}", f"cpu, {tmp_path / 'runs' / name}"] for name in ("one", "two")
    ]  # fmt: skip


def test_diagnoses_share_a_section_only_where_the_same_was_asked(tmp_path):
    handmade.write_diagnosis(tmp_path / "a", "good")
    handmade.write_diagnosis(tmp_path / "b", "good")
    handmade.write_diagnosis(tmp_path / "c", "poor", depth=3)
    first, second = collect([tmp_path, tmp_path / "a"]).diagnoses  # given twice, read once
    assert first.drafters == ["good (a)", "good (b)"] and second.drafters == ["poor"]
    table = diagnosis_tables.overview([first, second])
    assert [column.title for column in table.columns] == ["section", "depth", "most accepted"]
    assert [cell.text for cell in table.rows[1]] == ["2", "3", "0.333 poor"]
    assert [cell.text for cell in diagnosis_tables.leaderboard(second).rows[0]][3:6] == ["0.333", "0.333", "-"]


def test_a_diagnosis_alone_makes_a_page_with_its_figures(tmp_path):
    handmade.write_diagnosis(tmp_path / "run", "good+pr", again=True)
    result = drafterzoo.report(tmp_path / "run", definition="vllm")
    assert result.remarks == [
        "run: shares: of 3 answers they say little; diagnose at least 5 answers.",
        "τ by vLLM needs decoded results, and here are none.",
    ]
    assert result.page.parent == tmp_path / "run" / "report" and len(result.figures) == 6
    assert not result.summary["sections"] and "Drafters on r.jsonl, target tiny" in result.page.read_text()


def test_a_killed_diagnosis_leaves_its_folder_to_the_same_one_again(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".diagnosis.json.fmr85j68").write_text("half of i")
    diagnosis_folder.check_place(tmp_path / "run", {})
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds something else"):
        diagnosis_folder.check_place(tmp_path / "run", {})


@pytest.mark.parametrize("kind", ["bench", "evaluate", "diagnose"])
def test_folders_of_one_name_are_rows_of_their_own(tmp_path, kind, undrawn):
    write = {"bench": handmade.write, "evaluate": handmade.write_evaluation, "diagnose": handmade.write_diagnosis}[kind]
    for name in ("a", "b"):
        write(tmp_path / name / "run")
    write(tmp_path / "c" / "else")
    summary = drafterzoo.report(tmp_path, tmp_path / "out").summary
    (section,) = summary[{"bench": "sections", "evaluate": "offline", "diagnose": "diagnoses"}[kind]]
    names = [row.get("name", row["drafter"]) for row in section["rows"]]
    assert {name for name in names if "good" in name} == {"good (a/run)", "good (b/run)", "good (else)"}


def test_rows_are_told_apart_by_run_and_never_twice_alike():
    assert row_names([("good", "a"), ("poor", "a")]) == ["good", "poor"]
    assert row_names([("good", "a"), ("good", "b"), ("good (a)", "c")]) == ["good (a)", "good (b)", "good (a) (c)"]


@given(st.lists(st.tuples(st.sampled_from("xy"), st.sampled_from("xy"), st.sampled_from("rs")), unique=True))
def test_folders_are_told_apart_by_as_little_as_it_takes(places):
    folders = [Path("/runs").joinpath(*place) for place in places]
    names = folder_names(folders)
    assert len(set(names)) == len(names)
    for name, folder in zip(names, folders, strict=True):
        assert str(folder).endswith(name)
        shorter = name.partition("/")[2]
        alike = [other for other in folders if shorter and str(other).endswith(f"/{shorter}")]
        assert not shorter or len(alike) > 1


@pytest.mark.parametrize("name", ["$^$", "日本語", "a\x0bb", "\x1b[31mred", "x" * 100, "<script>"])
def test_any_name_can_be_drawn(tmp_path, name):
    handmade.write_diagnosis(tmp_path / "run", name, again=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = drafterzoo.report(tmp_path / "run")
    drawings = [path.read_bytes() for path in result.figures if path.suffix == ".svg"]
    assert len(drawings) == 3
    assert {ElementTree.fromstring(drawing).tag for drawing in drawings} == {"{http://www.w3.org/2000/svg}svg"}


def test_an_older_report_stays_whole_where_a_new_one_cannot_be_made(tmp_path, capsys):
    folder = handmade.write_diagnosis(tmp_path / "run")
    drafterzoo.report(folder, tmp_path / "out")
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    (tmp_path / "out" / "figures" / ".1-share-1.svg.41hkaji3").write_text("half of i")  # of one that was killed
    whole = json.loads((folder / "diagnosis.json").read_text())
    (folder / "diagnosis.json").write_text(json.dumps({**whole, "unsure_share": 7.5}))
    assert "unsure_share is 7.5 of 4 tokens" in refused(capsys, folder, "--out", tmp_path / "out")[1]
    assert all(path.read_bytes() == content for path, content in before.items())
    (folder / "diagnosis.json").write_text(json.dumps(whole))
    drafterzoo.report(folder, tmp_path / "out")
    assert {path for path in (tmp_path / "out").rglob("*") if path.is_file()} == set(before)
    (tmp_path / "out" / "report.html").unlink()
    (tmp_path / "out" / "report.html").mkdir()
    for path in (tmp_path / "out" / "figures").iterdir():
        path.unlink()
    assert "cannot be written" in refused(capsys, folder, "--out", tmp_path / "out")[1]
    assert not list((tmp_path / "out" / "figures").iterdir())


def test_results_below_results_are_shown_too(tmp_path):
    handmade.write_diagnosis(tmp_path / "x", "good")
    handmade.write_diagnosis(tmp_path / "x" / "y", "poor")
    handmade.write(tmp_path / "x" / "b")
    collection = collect([tmp_path / "x"])
    assert [section.drafters for section in collection.diagnoses] == [["good", "poor"]] and len(
        collection.sections
    ) == 1


BROKEN_DIAGNOSES = [
    ("drafter", 3, "drafter is 3, expected a text"),
    ("tokens", "six", "tokens is 'six', expected a whole number"),
    ("by_confidence", [], "by_confidence does not hold 10 equal bins"),
    ("by_confidence.0.high", 0.05, "by_confidence does not hold 10 equal bins"),
    ("by_confidence.3.tokens", 10**300, "by_confidence does not add up to 6 tokens"),
    ("by_confidence.0.low", 10**400, "by_confidence[0].low is 1000"),
    ("by_depth", [], "by_depth has 0 depths, expected from 1 to 2"),
    ("conditions.depth", 1, "by_depth has 2 depths, expected from 1 to 1"),
    ("conditions.depth", 200000, "conditions.depth is 200000, expected from 1 to 4096"),
    ("conditions.rollouts.answers", -3, "conditions.rollouts.answers is -3, expected at least 1"),
    ("unsure_share", math.nan, "not JSON (NaN is no number)"),
    ("unsure_share", -3.0, "unsure_share is -3.0 of 4 tokens, expected a share from 0 to 1"),
    ("buckets.0.rejected", -4, "buckets do not add up to 4 rejected tokens"),
    ("rejected", 5, "buckets do not add up to 5 rejected tokens"),
    ("buckets.2.rise_recovered", 5e300, "buckets[2].rise_recovered is 5e+300, expected from -1 to 1"),
    ("by_confidence.0", {}, "by_confidence[0].low is missing"),
    ("by_confidence.0", 3, "by_confidence[0] is 3, expected an object"),
    ("by_confidence.9.acceptance", None, "by_confidence[9].acceptance is None of 2 tokens, expected a share"),
    ("by_depth.0.acceptance", 1.5, "by_depth[0].acceptance is 1.5 of 3 tokens, expected a share from 0 to 1"),
    ("buckets.4.drafter", "never", "buckets are not one for each of below 0.5, 0.5 to 0.9, from 0.9"),
    ("buckets.2.recovered", -1.0, "buckets[2].recovered is -1.0 of 1 token, expected a share"),
    ("all_rejected.share", "all", "all_rejected.share is 'all', expected a number"),
    ("conditions.rollouts", [], "conditions.rollouts is [], expected an object"),
    ("format_version", 2, "format_version is 2, expected 1; read it with the drafterzoo that wrote it"),
]


@pytest.mark.parametrize(("key", "value", "words"), BROKEN_DIAGNOSES)
def test_damaged_diagnoses_are_named_by_file_and_key(tmp_path, capsys, key, value, words):
    path = handmade.write_diagnosis(tmp_path / "run", again=True) / "diagnosis.json"
    whole = json.loads(path.read_text())
    *places, last = [int(name) if name.isdigit() else name for name in key.split(".")]
    inside = whole
    for place in places:
        inside = inside[place]
    inside[last] = value
    path.write_text(json.dumps(whole))
    status, said = refused(capsys, tmp_path / "run")
    assert (
        status == 1
        and re.search(rf"diagnosis.json(:\d+)?: {re.escape(words)}", said)
        and not (tmp_path / "run" / "report").exists()
    )


def test_recovery_of_some_buckets_alone_is_damage(tmp_path, capsys):
    path = handmade.write_diagnosis(tmp_path / "run", again=True) / "diagnosis.json"
    whole = json.loads(path.read_text())
    for holder in (whole["buckets"][3], whole["all_rejected"]):
        value = holder.pop("recovered")
        path.write_text(json.dumps(whole))
        assert "recovered does not stand in all of buckets and all_rejected" in refused(capsys, tmp_path / "run")[1]
        holder["recovered"] = value


DAMAGED = ("", "{", "[]", "null", "{}", "\x00")


@pytest.mark.parametrize("content", DAMAGED)
@pytest.mark.parametrize("kind", ["bench", "evaluate", "grid"])
def test_a_damaged_summary_is_named(kind, content, tmp_path, capsys):
    write = {"bench": handmade.write, "evaluate": handmade.write_evaluation, "grid": failing_grid}[kind]
    folder = tmp_path / "run"
    write(folder)
    (folder / "summary.json").write_text(content)
    status, said = refused(capsys, folder, "--out", tmp_path / "out")
    assert status == 1 and "summary.json" in said and not (tmp_path / "out").exists()


@pytest.mark.parametrize("lossless", [[], None, {"differences": 3}, {"differences": [{"cell": "x"}]}])
def test_a_summary_whose_gaps_cannot_be_read_is_named(lossless, tmp_path, capsys):
    folder = handmade.write(tmp_path / "run")
    (folder / "summary.json").write_text(json.dumps({"format_version": 1, "lossless": lossless}))
    status, said = refused(capsys, folder)
    assert status == 1 and "summary.json: lossless is not what bench writes" in said


@pytest.mark.parametrize("content", [b"garbage", b"{", b"\x00" * 64, b" ", b"\n \ngarbage", b'{"prompt": "x"'])
@pytest.mark.parametrize("kind", ["bench", "evaluate"])
def test_lines_that_are_nothing_but_garbage_are_damage(kind, content, tmp_path, capsys):
    write, name = (handmade.write, "rounds.jsonl") if kind == "bench" else (handmade.write_evaluation, "rollouts.jsonl")
    folder = write(tmp_path / "run")
    (folder / name).write_bytes(content)
    status, said = refused(capsys, folder)
    assert status == 1 and name in said
    assert (folder / name).read_bytes() == content


@pytest.mark.parametrize("kind", ["bench", "evaluate"])
def test_a_run_stopped_in_its_first_line_holds_no_answer_and_others_are_shown(kind, tmp_path, capsys):
    write, name = (handmade.write, "rounds.jsonl") if kind == "bench" else (handmade.write_evaluation, "rollouts.jsonl")
    folder, other = write(tmp_path / "run"), handmade.write(tmp_path / "other")
    (folder / name).write_bytes((folder / name).read_bytes()[:50])
    status, said = refused(capsys, folder)
    assert status == 2 and "there is no answer in" in said
    remarks = collect([folder, other]).remarks
    assert any(name in remark and "the last line is half-written" in remark for remark in remarks)
    assert any("is left out" in remark and str(folder) in remark for remark in remarks)


def test_an_evaluation_without_its_lines_lacks_them_by_name(tmp_path, capsys):
    folder = handmade.write_evaluation(tmp_path / "run")
    (folder / "rollouts.jsonl").unlink()
    status, said = refused(capsys, folder)
    assert status == 2 and "has conditions.json but no rollouts.jsonl" in said and "rounds.jsonl" not in said
    handmade.write(tmp_path / "other")
    assert collect([tmp_path]).remarks[0] == f"{folder} is left out: it has no rollouts.jsonl."


def failing_grid(folder, reason="prompt 'p1': RuntimeError: boom <b>"):
    handmade.write(folder / "t1", handmade.records(("good",)), handmade.conditions(("good",)))
    (folder / "grid.json").write_text(json.dumps({"format_version": 1, "name": "toy"}))
    failed = [
        {"table": "t1", "cell": f"hub:a/b@main@{Budget.tree(8)}", "reason": reason},
        {"table": "t2", "cell": "hub:a/b@main@chain:4", "reason": reason},
        {"table": "t2", "cell": "none", "reason": "RuntimeError: out of memory"},
    ]
    (folder / "failures.json").write_text(json.dumps({"format_version": 1, "failures": failed}))
    return folder


def test_failed_cells_of_a_grid_are_shown_with_their_reason(tmp_path, undrawn, capsys):
    folder = failing_grid(tmp_path / "grid")
    assert main(["report", str(folder), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    assert (
        "failed: hub:a/b@main at tree:8, chain:4 in t1, t2 of grid toy: prompt 'p1': RuntimeError: boom <b>" in said.err
    )
    assert "failed: plain in t2 of grid toy: RuntimeError: out of memory" in said.err
    page = Page((tmp_path / "out" / "report.html").read_text(encoding="utf-8"))
    assert page.tables["failures"] == [
        ["drafter", "budgets", "why", "tables", "grid"],
        ["hub:a/b@main", "tree:8, chain:4", "prompt 'p1': RuntimeError: boom <b>", "t1, t2", "toy"],
        ["plain", "-", "RuntimeError: out of memory", "t2", "toy"],
    ]
    assert [one.tables for one in collect([folder / "t1"]).failures] == [("t1",)]  # of one table, what failed in it
    (folder / "failures.json").unlink()
    assert "failures" not in Page(drafterzoo.report(folder).page.read_text(encoding="utf-8")).tables


def test_failures_that_cannot_be_read_are_said(tmp_path, capsys):
    folder = failing_grid(tmp_path / "grid")
    (folder / "failures.json").write_text('{"format_version": 1, "failures": [{"cell": "x"}]}')
    assert "failures.json: expected failures, each with table, cell and reason" in refused(capsys, folder)[1]


def test_what_follows_from_a_name_needs_no_column_and_alike_headings_are_told_apart(tmp_path):
    suites = (("toy", "ab" * 20, 2), ("other", "cd" * 20, 2), ("toy", "ef" * 20, 3))
    for index, (suite, sha, prompts) in enumerate(suites):
        made = handmade.conditions(suite__name=suite, suite__sha256=sha, suite__prompts=prompts)
        name = "big" if suite == "other" else "tiny"
        made["target"] = {"name": name, "revision": suite, "dtype": "float32", "packed": False}
        handmade.write(tmp_path / str(index), None, made)
    collection = collect([tmp_path])
    table = tabulate.overview(collection)
    columns = ["section", "target.name", "suite.name", "suite.sha256", "suite.prompts"]
    assert [column.title for column in table.columns][:-2] == columns
    assert [row[3].text for row in table.rows] == ["abababab…", "efefefef…", "cdcdcdcd…"]
    assert table.rows[0][3].csv == ("ab" * 20,)
    assert titles(collection) == {
        1: "toy · tiny · T=0 · suite prompts 2", 2: "toy · tiny · T=0 · suite prompts 3", 3: "other · big · T=0",
    }  # fmt: skip


def test_budgets_of_other_widths_are_named_briefly_in_figures():
    assert brief_budget("nodes=16,depth=6,grow=3,offer=6") == "tree:16 6·3·6"
    assert brief_budget("nodes=16,depth=6,grow=3,offer=6,reconsider=2") == "tree:16 6·3·6, reconsider 2"
    assert brief_budget(str(Budget.tree(8))) == "tree:8" and brief_budget("chain:4") == "chain:4"


def test_a_budget_that_may_end_early_is_the_smaller_one_and_its_dots_are_explained(tmp_path):
    budgets = ("chain:3,p_min=0.2", "chain:2", "chain:3", "chain:3,p_min=0.1")
    made = handmade.conditions(budgets=budgets)
    handmade.write(tmp_path / "run", handmade.records(budgets=budgets), made)
    (section,) = collect([tmp_path / "run"]).sections
    assert section.budgets == ["chain:2", "chain:3,p_min=0.2", "chain:3,p_min=0.1", "chain:3"]
    assert largest_budgets(section.drafted) == ["chain:3"]
    (curve,) = [picture for picture in section_pictures(section) if picture.name.endswith("budget-tau")]
    assert curve.caption.endswith("With dots: drafts end early (p ≥ 0.1; p ≥ 0.2).")
    handmade.write(tmp_path / "other")
    assert "dots" not in " ".join(p.caption for p in section_pictures(collect([tmp_path / "other"]).sections[0]))


def test_the_dark_page_has_the_light_one_s_pictures_in_its_own_colours():
    assert len(set(zip(LIGHT.colours, DARK.colours, strict=True))) == len(set(LIGHT.colours)) == len(set(DARK.colours))
    svg = f'<a fill="{LIGHT.ink}" stroke="{LIGHT.series[3]}"/><b href="#m{LIGHT.ink[1:]}" fill="#123456"/>'.encode()
    dark = f'<a fill="{DARK.ink}" stroke="{DARK.series[3]}"/><b href="#m{LIGHT.ink[1:]}" fill="#123456"/>'.encode()
    assert recoloured(svg, LIGHT, DARK) == dark


# ----------------------------------------------------------------------------------------------------- bad input


def refused(capsys, *words):
    """What the command says of a user's mistake: one sentence, and no page."""
    status = main(["report", *map(str, words)])
    said = capsys.readouterr()
    assert status and not said.out and "Traceback" not in said.err
    lines = [line for line in said.err.splitlines() if line.startswith("drafterzoo: ")]
    assert len(lines) == 1
    return status, lines[0]


def test_no_results(tmp_path, capsys):
    assert refused(capsys, tmp_path)[1].endswith(
        f"{tmp_path} holds no results (no conditions.json or diagnosis.json in it or below it); give folders that "
        f"`drafterzoo bench`, `grid`, `evaluate` or `diagnose` wrote."
    )
    assert "is not a folder" in refused(capsys, tmp_path / "nowhere")[1]
    assert refused(capsys)[0] == 2
    handmade.write(tmp_path / "run")
    (tmp_path / "run" / "rounds.jsonl").write_text("")
    assert "there is no answer in" in refused(capsys, tmp_path)[1]


def test_directories_of_another_kind(tmp_path, capsys):
    handmade.write(tmp_path / "ours")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "conditions.json").write_text('{"format_version": 1}')
    status, said = refused(capsys, tmp_path / "ours", tmp_path / "theirs", "--out", tmp_path / "out")
    assert status == 2 and "theirs has conditions.json but no rounds.jsonl" in said
    assert not (tmp_path / "out").exists()
    assert collect([tmp_path]).remarks[0] == f"{tmp_path / 'theirs'} is left out: it has no rounds.jsonl."


BROKEN = [
    ("suite.prompts", "two"), ("suite.name", None), ("sampling.temperature", "warm"), ("sampling.temperature", -1.0),
    ("sampling.top_p", None), ("sampling.verification", "luck"), ("run.batch_size", "x"), ("run.batch_size", 2.5),
    ("target.name", 3), ("machine", "a laptop"), ("code", "mine"), ("drafters", None), ("drafters.good", "good"),
    ("budgets", None), ("budgets", ["chain:none"]), ("budgets", [3]), ("prompting.thinking", "deeply"),
]  # fmt: skip


@pytest.mark.parametrize("absent", [False, True])
@pytest.mark.parametrize(("key", "value"), BROKEN)
def test_damaged_conditions_are_named_by_file_and_key(tmp_path, capsys, key, value, absent):
    path = handmade.write(tmp_path / "run") / "conditions.json"
    whole = json.loads(path.read_text())
    *sections, last = key.split(".")
    section = whole
    for name in sections:
        section = section[name]
    if absent:
        del section[last]
    else:
        section[last] = value
    path.write_text(json.dumps(whole))
    if absent and key == "drafters.good":
        pytest.skip("a drafter that is not there is told by its rows")
    status, said = refused(capsys, tmp_path / "run")
    assert status == 1 and said.endswith("restore the file, or run the command again in another folder.")
    assert "conditions.json: " in said and (last in said or key == "budgets")
    assert not (tmp_path / "figures").exists()


def test_answers_that_ended_before_any_round_make_a_page_without_curves(tmp_path):
    budgets = ("chain:2", "chain:4")
    rounds = (
        "committed",
        "emitted",
        "accepted",
        "nodes",
        "forwards",
        "rows",
        "draft_s",
        "verify_s",
        "rest_s",
        "walked",
    )
    none = {**dict.fromkeys(rounds, ()), "tokens": (7,), "decode_s": 0.0}
    some = [attrs.evolve(one, **none) for one in handmade.records(budgets=budgets)]
    handmade.write(tmp_path / "run", some, handmade.conditions(budgets=budgets))
    written = drafterzoo.report(tmp_path / "run", out=tmp_path / "page")
    assert written.page.is_file() and not [path for path in written.figures if "budget" in path.name]
    assert {row["tokens_per_second"] for row in collect([tmp_path / "run"]).runs[0].summary["rows"]} == {None}


def test_results_of_a_newer_version_or_broken_ones(tmp_path, capsys):
    path = handmade.write(tmp_path / "run") / "conditions.json"
    whole = json.loads(path.read_text())
    path.write_text(json.dumps({**whole, "format_version": 2}))
    status, said = refused(capsys, tmp_path / "run")
    assert status == 1 and "format_version is 2, expected 1" in said
    path.write_text(json.dumps({name: value for name, value in whole.items() if name != "suite"}))
    assert "conditions.json: suite is missing" in refused(capsys, tmp_path / "run")[1]
    path.write_text(json.dumps({**whole, "drafters": {}}))
    assert (
        "has rows of 'good@chain:3', which conditions.json beside it does not name"
        in refused(capsys, tmp_path / "run")[1]
    )
    assert not (tmp_path / "run" / "report").exists()


def test_an_output_that_cannot_be_written(tmp_path, capsys, monkeypatch):
    handmade.write(tmp_path / "run")
    (tmp_path / "file").write_text("")
    status, said = refused(capsys, tmp_path / "run", "--out", tmp_path / "file" / "out")
    assert status == 1 and "cannot be written" in said and "--out" in said

    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("drafterzoo.evaluation.report.write.write_whole", full)
    assert "No space left on device" in refused(capsys, tmp_path / "run")[1]


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_a_missing_extra_is_named(tmp_path, capsys, monkeypatch, package):
    handmade.write(tmp_path / "run")
    ordinary = builtins.__import__

    def without(name, *rest, **more):
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return ordinary(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    status, said = refused(capsys, tmp_path / "run")
    assert status == 1  # nothing was asked wrongly
    assert said.endswith(f" {package}, which is not installed; type: pip install 'drafterzoo[plots]'.")


def test_the_command_says_where_the_page_is_and_gives_json(tmp_path, capsys, undrawn):
    folder = handmade.write(tmp_path / "run", handmade.records()[:-1])
    assert main(["report", str(folder), "--definition", "eagle"]) == 0
    said = capsys.readouterr()
    assert said.out.strip() == str(folder / "report" / "report.html") and "run is unfinished" in said.err
    assert main(["report", str(folder), "--json", "--out", str(tmp_path / "out")]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["page"] == str(tmp_path / "out" / "report.html") and len(shown["sections"][0]["rows"]) == 3


def test_the_command_knows_every_definition(capsys):
    assert main(["report", "x", "--definition", "nobody"]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in DEFINITIONS)


def test_results_from_before_the_counter_are_read(tmp_path, undrawn):
    path = handmade.write(tmp_path / "run") / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        del line["walked"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert all(r.walked is None for r in read(tmp_path / "run").records)
    text = drafterzoo.report(tmp_path / "run", definition="vllm").page.read_text(encoding="utf-8")
    assert "a lower bound" in text
    lines[0]["walked"] = [1]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(DataError, match=r"rounds\.jsonl:1: walked has 1 entry, committed has 7"):
        read(tmp_path / "run")


def test_no_folder_is_refused_in_python_too():
    with pytest.raises(UsageError, match="no folder was given"):
        drafterzoo.report([])


@pytest.mark.parametrize(
    ("gain", "words"), [(1.2, "a is the fastest, 1.20×"), (0.47, "plain decoding is faster than all; a has 0.47×")]
)
def test_nothing_is_called_the_fastest_that_plain_decoding_beats(gain: float, words: str) -> None:
    from types import SimpleNamespace

    from drafterzoo.evaluation.report.tabulate import _fastest
    from drafterzoo.evaluation.report.verdicts import Verdict
    from drafterzoo.evaluation.statistics import PairedRatio

    speeds = (("a", gain), ("b", 0.4))
    rows: list[Any] = [SimpleNamespace(name=name, figures={"speedup": {"value": value}}) for name, value in speeds]
    speed = Verdict(PairedRatio(gain / 0.4, 1.0, 2.0, None, None, 6), 0.5)
    pair: Any = SimpleNamespace(row=rows[0], against=rows[1], speed=speed)
    said = _fastest(rows, [pair])
    assert said is not None and said.startswith(f"{words} plain decoding; over the next, b, ")
    assert said.endswith("not a significant difference.")


def test_batches_share_their_time_and_few_of_them_test_nothing(tmp_path):
    rows = [attrs.evolve(one, group=0) for one in handmade.records()]
    handmade.write(tmp_path / "run", rows, handmade.conditions(run__batch_size=2))
    (section,) = collect([tmp_path / "run"]).sections
    kinds = [kind for row in section.rows for kind in row.figures["categories"].values()]
    assert kinds and all(kind["speedup"]["value"] is None and kind["tau"] is not None for kind in kinds)
    names = [picture.name for picture in section_pictures(section)]
    assert not [name for name in names if "categories" in name]
    said = " ".join(picture.caption for picture in section_pictures(section))
    assert "over batches of prompts" in said and "over prompts" not in said
    assert tabulate.verdicts(section)[0][1].endswith(": too few batches of prompts to test it.")
    (note, *_) = tabulate.head_to_head(section).notes
    assert "intervals over batches of prompts" in note and "Holm" not in note
