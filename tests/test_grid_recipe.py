"""What a grid is asked: recipes with every mistake named, selections, the plan, its cost, and the shipped recipes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafterzoo.budget import Budget
from drafterzoo.cli import main
from drafterzoo.errors import NotInstalledError, UsageError
from drafterzoo.evaluation.grid_plan import costs, make_plan, schedule
from drafterzoo.evaluation.grid_recipe import build_grid_recipe, read_grid_recipe
from drafterzoo.evaluation.selection import Where
from drafterzoo.resources import folder

GRIDS = sorted((folder("recipes") / "grids").glob("*.toml"))


def recipe(**changes):
    return build_grid_recipe({"drafters": ["eagle3.1"], "budgets": ["chain:4", 8], **changes}, "r.toml")


def test_axes_are_crossed_and_lookup_is_a_row():
    plan = make_plan(recipe(suites=["starter", "gsm8k"], temperatures=[0, 0.7], batch_sizes=[1, 4], seeds=[0, 1]))
    assert len(plan.tables) == 16 and len({table.name for table in plan.tables}) == 16
    assert [cell.name for cell in plan.tables[0].cells] == [
        f"{drafter}@{budget}" for drafter in ("lookup", "eagle3.1") for budget in ("chain:4", Budget.tree(8))
    ]
    assert plan.tables[3].name == "starter_T0_n4_seed1" and plan.tables[-1].name == "gsm8k_T0.7_n4_seed1"
    assert plan.tables[-1].settings.temperature == 0.7 and plan.tables[-1].settings.batch_size == 4
    assert plan.drafters == ["lookup", "eagle3.1"]
    assert make_plan(recipe(exclude=["lookup"])).drafters == ["eagle3.1"]
    assert make_plan(recipe(drafters=["eagle3.1", "lookup"])).drafters == ["eagle3.1", "lookup"]


def test_single_values_stand_for_lists_of_one():
    assert recipe(drafters="lookup", budgets=8, temperatures=0) == recipe(
        drafters=["lookup"], budgets=["8"], temperatures=[0.0]
    )


def test_skips_and_overrides():
    made = recipe(
        suites=["starter", "gsm8k"],
        batch_sizes=[1, 16],
        skip=["suite=gsm8k,batch_size=16", "drafter=lookup,budget=8"],
        override=[{"where": "suite=starter", "limit": 3}, {"where": "batch_size=16", "max_new_tokens": 7, "limit": 2}],
    )
    plan = make_plan(made)
    assert [table.name for table in plan.tables] == ["starter_T0_n1_seed0", "starter_T0_n16_seed0", "gsm8k_T0_n1_seed0"]
    assert all(len(table.cells) == 3 for table in plan.tables)
    assert [(t.limit, t.settings.max_new_tokens) for t in plan.tables] == [(3, 128), (2, 7), (None, 128)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"drafter": "x"}, r"r.toml: unknown key 'drafter' \(did you mean 'drafters'\?\)"),
        ({"drafters": []}, "r.toml: drafters is empty, so there is nothing to run"),
        ({"budgets": []}, "r.toml: budgets is empty"),
        ({"suites": []}, "r.toml: suites is empty"),
        ({"budgets": [8, "tree:8"]}, "r.toml: budgets gives 'tree:8' twice"),
        ({"budgets": ["chian:4"]}, "r.toml: budget: cannot read 'chian:4'"),
        ({"drafters": ["eagle3.2"]}, r"unknown drafter 'eagle3.2' \(did you mean"),
        ({"drafters": ["eagle3.1", "none"]}, "plain decoding is a row anyway"),
        ({"drafters": ["./runs/x"]}, "write 'dir:./runs/x'"),
        ({"exclude": ["eagle3.1"]}, "only 'lookup' can be left out"),
        ({"temperatures": ["hot"]}, "r.toml: key 'temperatures' is"),
        ({"temperatures": [-1]}, "temperature"),
        ({"batch_sizes": [0]}, "r.toml: batch_size is 0, expected at least 1"),
        ({"max_new_tokens": 1}, "r.toml: max_new_tokens is 1, expected at least 2"),
        ({"limit": 0}, "r.toml: limit is 0, expected at least 1"),
        ({"limit": "all"}, "r.toml: key 'limit' is 'all', expected a whole number"),
        ({"max_new_tokens": "eight"}, "r.toml: key 'max_new_tokens' is 'eight', expected a whole number"),
        ({"drafters": {"a": 1}}, "r.toml: key 'drafters' is .*, expected a list of texts"),
        ({"threads": -1}, "r.toml: threads is -1"),
        ({"threads": 99999999999}, "r.toml: threads is 99999999999, expected from 0 to 4096"),
        ({"verification": "mtach"}, "r.toml: key 'verification' is 'mtach'"),
        ({"skip": ["drafer=x"]}, r"skip: unknown key 'drafer' \(did you mean 'drafter'\?\)"),
        ({"override": {"where": "suite=starter"}}, r"expected tables, each under a line \[\[override\]\]"),
        ({"override": [{"where": "suite=starter", "turn": "all"}]}, r"r.toml \[\[override\]\] 1: unknown key 'turn'"),
        ({"override": [{"where": "suite=starter"}]}, "sets nothing"),
        ({"override": [{"where": "drafter=lookup", "limit": 2}]}, "override, where: unknown key 'drafter'"),
        ({"estimate": {"token_per_second": 3}}, r"r.toml \[estimate\]: unknown key 'token_per_second'"),
        ({"estimate": {"tokens_per_second": 0}}, "tokens_per_second is 0.*expected a number above zero"),
    ],
)
def test_every_mistake_in_a_recipe_is_one_sentence(changes, said):
    with pytest.raises(UsageError, match=said) as caught:
        recipe(**changes)
    assert "\n" not in str(caught.value)


def test_mistakes_that_only_the_plan_shows():
    with pytest.raises(UsageError, match=r"skip: no cell has suite=gsm8k; there is starter"):
        make_plan(recipe(skip=["suite=gsm8k"]))
    with pytest.raises(UsageError, match="skip leaves no cell to run"):
        make_plan(recipe(skip=["suite=starter"]))
    with pytest.raises(UsageError, match="override, where: no cell has temperature=1; there is 0"):
        make_plan(recipe(override=[{"where": "temperature=1", "limit": 2}]))
    with pytest.raises(UsageError, match="would share the folder p_T0_n1_seed0"):
        make_plan(recipe(suites=["a/p.jsonl", "b/p.jsonl"]))


def test_broken_files(tmp_path):
    (tmp_path / "r.toml").write_text("drafters = ")
    with pytest.raises(UsageError, match=r"r.toml: not TOML .* write lines such as"):
        read_grid_recipe(tmp_path / "r.toml")
    with pytest.raises(UsageError, match="cannot be read"):
        read_grid_recipe(tmp_path / "none.toml")


# -------------------------------------------------------------------------------------------------------- selections


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ("drafter=eagle3.1", 8),
        ("drafter=eagle*", 8),
        ("drafter=lookup(max_ngram=2, min_ngram=1)", 8),
        ("budget=8", 8),
        ("budget=8|chain:4", 16),
        ("nodes=4", 8),
        ("budget=nodes=8,depth=5,grow=6,offer=6", 8),
        ("temperature=0,batch_size=4,seed=0", 4),
        ("temperature=0.70,drafter=eagle3.1,budget=tree:8", 2),
        (" suite = starter , budget = 8 ", 8),
    ],
)
def test_selections(text, cells):
    made = recipe(
        drafters=["lookup(max_ngram=2, min_ngram=1)", "eagle3.1"],
        exclude=["lookup"],
        temperatures=[0, 0.7],
        batch_sizes=[1, 4],
    )
    assert sum(len(table.cells) for table in make_plan(made, text).tables) == cells


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("drafter=eagle4", "--where: no cell has drafter=eagle4.*there is lookup, eagle3.1"),
        ("budget=9", "--where: no cell has budget=9; there is chain:4, tree:8"),
        ("temperature=hot", "--where: no cell has temperature=hot; there is 0"),
        ("temprature=0", r"--where: unknown key 'temprature' \(did you mean 'temperature'\?\)"),
        ("eagle3.1", "--where: cannot read 'eagle3.1'; write key=value"),
        ("budget=", "cannot read 'budget='"),
        ("", "--where: it is empty"),
        ("nodes=4,budget=8", "selects no cell, though every value in it occurs"),
    ],
)
def test_selections_that_meet_nothing_say_what_there_is(text, said):
    with pytest.raises(UsageError, match=said):
        make_plan(recipe(), text)


@settings(deadline=None)  # the first plan imports what suites need
@given(st.data())
def test_a_selection_takes_exactly_the_cells_with_its_values(data):
    tables = make_plan(recipe(temperatures=[0, 0.5, 1], batch_sizes=[1, 2, 4], seeds=[0, 7])).tables
    facts = [cell for table in tables for cell in table.cell_facts()]
    keys = data.draw(st.lists(st.sampled_from(["drafter", "temperature", "batch_size", "seed", "budget"]), min_size=1))
    wanted = {key: data.draw(st.sampled_from(facts))[key] for key in keys}
    where = Where.parse(",".join(f"{key}={value}" for key, value in wanted.items()))
    for cell in facts:
        assert where.takes(cell) == all(cell[key] == value for key, value in wanted.items())


def test_a_least_probability_behind_a_budget_belongs_to_it():
    tables = make_plan(recipe(budgets=["chain:4", "chain:6", "chain:6,p_min=0.1", "8,p_min=0.1"])).tables
    facts = [cell for table in tables for cell in table.cell_facts()]

    def taken(text: str) -> set[str]:
        return {str(cell["budget"]) for cell in facts if Where.parse(text).takes(cell)}

    early, tree = "chain:6,p_min=0.1", "nodes=8,depth=5,grow=6,offer=6,p_min=0.1"
    assert taken("budget=chain:6") == {"chain:6"} and taken("budget=chain:6,p_min=0.1") == {early}
    assert taken("p_min=0.1") == {early, tree} and taken("temperature=0,p_min=0") == {"chain:4", "chain:6"}
    assert taken("budget=chain:4|chain:6,p_min=0.1,seed=0") == {"chain:4", early}
    assert taken("budget=chain:6,p_min=0|0.1") == {"chain:6", early}
    assert taken("budget=chain:6,p_min=.1|chain:4|8,p_min=0.2|0.1") == {"chain:4", early, tree}


# ------------------------------------------------------------------------------------------------- order, cost, dry run


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_tables_advance_together_and_every_group_comes_once(groups):
    order = schedule(groups)
    assert sorted(order) == [(table, group) for table, count in enumerate(groups) for group in range(count)]
    done = [0] * len(groups)
    for table, group in order:
        assert group == done[table]
        done[table] += 1
        shares = [count / of for count, of in zip(done, groups, strict=True)]
        assert max(shares) - min(shares) < 1.001 / min(groups)


def test_costs_count_what_can_be_counted(tmp_path, monkeypatch):
    lines = [json.dumps({"turns": ["a", "b"][: 1 + i % 2], "category": "xy"[i % 2]}) for i in range(6)]
    (tmp_path / "mine.jsonl").write_text("\n".join(lines))
    made = recipe(
        suites=["mine", "mine:y", "elsewhere"],
        data_dir=str(tmp_path),
        turns="all",
        repeats=2,
        max_new_tokens=10,
        limit=4,
        estimate={"tokens_per_second": 5, "prompts": {"elsewhere": 80}, "turns": {"elsewhere": 2}},
    )
    whole, part, elsewhere = costs(make_plan(made))
    assert (whole.load.prompts, whole.load.turns, whole.load.counted) == (4, 6, True)
    assert (part.load.prompts, part.load.turns) == (3, 6)
    assert (elsewhere.load.prompts, elsewhere.load.turns, elsewhere.load.counted) == (4, 8, False)
    assert whole.rows == 5 and whole.answers == 6 * 5 * 2 and whole.tokens == 600 and whole.seconds == 120
    with pytest.raises(UsageError, match=r"'gsm8kk' is not known here \(did you mean 'gsm8k'\?\).*under \[estimate\]"):
        costs(make_plan(recipe(suites=["gsm8kk"])))
    declared, talks = costs(make_plan(recipe(suites=["gsm8k", "mt-bench"], limit=None, data_dir=str(tmp_path))))
    assert (declared.load.prompts, declared.load.turns, declared.load.counted) == (1319, 1319, False)
    assert declared.table.settings.turns == "first" and talks.table.settings.turns == "all", "the suites' own"
    with pytest.raises(UsageError, match=r'needs the file gsm8k.jsonl .* prompts = \{ "gsm8k:x" = 80 \}'):
        costs(make_plan(recipe(suites=["gsm8k:x"], data_dir=str(tmp_path))))


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a\0b", "x" * 300])
def test_a_name_that_no_folder_can_have_is_refused(name):
    with pytest.raises(UsageError, match=r"r.toml: .*name is .*, but a folder is called after it"):
        recipe(name=name)


def test_what_is_missing_and_how_many_threads_are_said(tmp_path, capsys):
    path = tmp_path / "two.toml"
    path.write_text(
        'drafters = ["dir:runs/nowhere", "eagle2", "lookup"]\nbudgets = ["chain:2"]\nsuites = ["starter"]\nlimit = 1\n'
    )
    assert main(["grid", str(path), "--dry-run"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "missing: runs/nowhere: no such folder" in said and "missing: no checkpoint of 'eagle2'" in said
    assert said.count("missing: ") == 2 and "what makes them" not in said
    assert main(["grid", "pr_ablation_small", "--dry-run"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("missing: runs/eagle3.1-pr-smollm2/best: ") == 1, "two rows are made of it"
    assert re.search(r"what makes them is said at the top of \S+/pr_ablation_small.toml ", said)
    assert main(["grid", str(path), "--threads", "0x"]) == 2
    capsys.readouterr()
    assert main(["grid", str(path), "--threads", "-1", "--dry-run"]) == 2
    assert "--threads is -1, expected from 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("drafter", "words"),
    [
        ("hass-pr-smollm2-135m(recnsider=0)", "no option 'recnsider' (did you mean 'reconsider'?)"),
        ("hass+pr(reconsider=-7)", "reconsider=-7, expected a whole number from 0 to 256"),
    ],
)
def test_an_option_that_can_never_be_is_refused_by_a_dry_run(drafter, words, tmp_path, capsys):
    path = tmp_path / "one.toml"
    path.write_text(f'drafters = ["{drafter}"]\nbudgets = ["chain:2"]\nsuites = ["starter"]\nlimit = 1\n')
    assert main(["grid", str(path), "--dry-run"]) == 2
    said = capsys.readouterr()
    assert words in said.err and said.err.count("\n") == 1


def test_the_papers_tables_are_there_and_small_ones_too():
    names = {path.stem for path in GRIDS}
    small = {f"pr_table{n}_small" for n in (1, 2, 5, 6, 9)} | {"pr_ablation_small", "pr_gain_small", "families_small"}
    blocks = {"dspark_table1", "dflash_table", "carryover_kinds"}
    large = {f"pr_table{n}" for n in (1, 2, 3, 4, 5, 6, 9)} | blocks
    assert names == large | small | {f"{name}_small" for name in blocks}


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_every_shipped_recipe_passes_a_dry_run(path, tmp_path, monkeypatch, capsys):
    from drafterzoo.target import loading

    def forbidden(*_, **__):
        raise AssertionError("a dry run loads no weights")

    monkeypatch.setattr(loading, "load_target", forbidden)
    monkeypatch.setenv("DRAFTERZOO_DATA", str(tmp_path / "nothing"))  # no data here, and no network
    assert main(["grid", path.stem, "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["total"]["tokens"] == sum(table["tokens"] for table in plan["tables"]) > 0
    if path.stem.endswith("_small"):
        assert plan["total"]["seconds"] < 15 * 60 and all(table["prompts_counted"] for table in plan["tables"])
        assert plan["target"] == "smollm2-135m"
    else:
        assert plan["total"]["seconds"] > 3600 and not (tmp_path / "nothing").exists()


def test_a_dry_run_names_the_suites_that_are_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DRAFTERZOO_DATA", str(tmp_path))
    path = tmp_path / "two.toml"
    path.write_text('drafters = ["lookup"]\nbudgets = ["chain:2"]\nsuites = ["starter", "gsm8k"]\n')
    assert main(["grid", str(path), "--dry-run"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "missing: suite 'gsm8k' needs the file gsm8k.jsonl" in said and f"which is not in {tmp_path}" in said
    assert "the grid will ask the Hub for it (openai/gsm8k)." in said and "missing: suite 'starter'" not in said
    assert main(["grid", str(path), "--dry-run", "--json"]) == 0
    tables = json.loads(capsys.readouterr().out)["tables"]
    assert [table["suite_missing"] for table in tables] == [False, True]


@pytest.mark.parametrize("words", [["bench", "--suite", "gsm8k"], ["grid", "two.toml"]])
def test_a_suite_that_is_not_here_is_a_failure_that_names_its_file(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("drafterzoo.evaluation.suite_hub._resolves", lambda: False)
    monkeypatch.setenv("DRAFTERZOO_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("two.toml").write_text('drafters = ["lookup"]\nbudgets = ["chain:2"]\nsuites = ["starter", "gsm8k"]\n')
    assert main(words) == 1
    said = capsys.readouterr().err
    assert "suite 'gsm8k' needs the file gsm8k.jsonl" in said and "the Hub (openai/gsm8k) cannot be reached" in said
    assert "--data-dir" in said and "Traceback" not in said and not list(Path().glob("runs/*"))


def test_the_dry_run_is_readable(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["grid", "pr_table2_small", "--dry-run", "--where", "drafter=eagle3.1,batch_size=1|16"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for words in ("starter 0 1 0 16 2 32 1,536 70 s", "in all", "rows: plain decoding, eagle3.1@", "22 tokens/s"):
        assert words in said
    time = said[said.index("time: ") :]  # what leaves prefill out is no bound
    assert "prefill and warm-up come on top" in time and "at most" not in time
    assert not list(tmp_path.iterdir())


def test_a_parquet_file_is_a_suite_that_an_extra_counts(tmp_path, monkeypatch):
    path = tmp_path / "mine.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (table,) = make_plan(recipe(suites=[str(path)])).tables
    assert table.name == "mine_T0_n1_seed0"
    with pytest.raises(NotInstalledError, match=r"pip install 'drafterzoo\[suites\]', or say under \[estimate\]"):
        costs(make_plan(recipe(suites=[str(path)])))
    (cost,) = costs(make_plan(recipe(suites=[str(path)], estimate={"prompts": {str(path): 7}})))
    assert cost.load.prompts == 7
    with pytest.raises(UsageError, match=r"suite file mine\.parquet does not exist"):
        costs(make_plan(recipe(suites=["mine.parquet"])))


def test_mistakes_on_the_command_line(capsys):
    for words, said in [
        (["grid", "pr_table11", "--dry-run"], "pr_table11: no such recipe (did you mean 'pr_table1'?)"),
        (
            ["grid", "pr_table1", "--dry-run", "--where", "suite=mbppp"],
            "no cell has suite=mbppp (did you mean 'mbpp'?)",
        ),
    ]:
        assert main(words) == 2
        err = capsys.readouterr().err
        assert said in err and err.count("\n") == 1


def test_help_has_an_example(capsys):
    assert main(["grid", "--help"]) == 0
    assert "drafterzoo grid pr_table1_small --dry-run" in " ".join(capsys.readouterr().out.split())


def test_schedule_of_equal_tables_goes_round_by_round():
    rounds = schedule([3, 3])
    assert rounds == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    assert schedule([1, 4])[2] == (0, 0)  # the short table stands in the middle of the long one
