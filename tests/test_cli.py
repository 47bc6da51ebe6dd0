"""The command line: every verb's help, its exit statuses, one-line errors, `--json`; and the drawing of a tree.

Run in-process through `main`, with the parts that need a model replaced by fakes; a subprocess proves the statuses.
"""

from __future__ import annotations

import errno
import importlib
import inspect
import io
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from rich.console import Console

import drafterzoo
from drafterzoo.budget import Budget
from drafterzoo.cli import VERBS, doctor, main
from drafterzoo.cli.tree_view import draw_tree, visible
from drafterzoo.errors import CheckpointError, UsageError


def fake_module(monkeypatch: pytest.MonkeyPatch, name: str, **contents: Any) -> None:
    """Put a module of these contents where `name` is imported from."""
    module = types.ModuleType(name)
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, name, module)
    parent, _, child = name.rpartition(".")
    monkeypatch.setattr(importlib.import_module(parent), child, module, raising=False)


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
    """Replace what `drafterzoo doctor` runs."""

    def replace(function: Callable[..., Any]) -> None:
        monkeypatch.setitem(sys.modules, "stand_in", types.SimpleNamespace(run=function))  # type: ignore[arg-type]
        monkeypatch.setitem(VERBS, "doctor", ("stand_in:run", "Stand in."))

    return replace


# -- the frame -------------------------------------------------------------------------------------------------------


def test_help_names_every_verb_and_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name, (_, summary) in VERBS.items():
        assert name in shown and summary[:40] in shown
    assert 'drafterzoo generate "Explain rainbows." --show-tree' in shown
    assert main([]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_help_with_an_example_and_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    address, summary = VERBS[name]
    module, _, function = address.partition(":")
    doc = inspect.getdoc(getattr(importlib.import_module(module), function)) or ""
    assert doc.splitlines()[0] == summary, "drafterzoo --help must say what the verb itself says"
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Example" in shown and f"drafterzoo {name}" in shown and "--json" in shown


@pytest.mark.parametrize("name", ["generate", "bench", "evaluate"])
def test_budgets_have_one_name_and_one_spelling_everywhere(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--budget" in shown and "--nodes" in shown and "-b " in shown
    assert "typed as tables print it: tree:8 (a tree of 8 nodes; 8 for short), chain:4" in shown.replace("`", "")


def test_help_is_quick_and_imports_no_torch() -> None:
    code = (
        "import sys; from drafterzoo.cli import main; main(['--help']); print('torch' in sys.modules, file=sys.stderr)"
    )
    spent = []
    for _ in range(2):
        before = os.times()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        after = os.times()
        spent.append(after.children_user - before.children_user + after.children_system - before.children_system)
        assert done.stderr.strip() == "False"
    # processor time, since a busy machine may take its time: 0.2 s where this was written
    assert min(spent) < 0.8, f"{min(spent):.2f} s"


USAGE = {
    "an unknown verb": (["lst"], "unknown command 'lst' (did you mean 'list'?); there is list, show"),
    "an unknown option": (["list", "--colour"], "see 'drafterzoo list --help'."),
    "a missing value": (["list", "--match"], "requires an argument"),
    "a wrong choice": (["list", "dafters"], 'Did you mean "drafters"?'),
    "a missing argument": (["show"], "NAME requires an argument"),
    "too many arguments": (["doctor", "now"], "see 'drafterzoo doctor --help'."),
    "a wrong number": (["generate", "Hello", "--top-k", "many"], "top-k"),
    "an empty prompt": (["generate", "  "], "the prompt is empty"),
}


@pytest.mark.parametrize(("words", "why"), USAGE.values(), ids=USAGE.keys())
def test_a_wrong_command_is_one_line_and_status_2(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert said.err.startswith("drafterzoo: ") and why in said.err


def no_room(message: int, name: str) -> Callable[[], None]:
    def fail() -> None:
        raise OSError(message, "words of the system", name)

    return fail


def raises(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


ENDINGS: dict[str, tuple[Callable[[], Any], int, str]] = {
    "done": (lambda: None, 0, ""),
    "a status of its own": (lambda: 1, 1, ""),
    "a damaged checkpoint": (
        raises(CheckpointError("file x is cut short; fetch it.")),
        1,
        "file x is cut short; fetch it.",
    ),
    "a usage error": (raises(UsageError("no such suite.")), 2, "no such suite."),
    "interrupted": (raises(KeyboardInterrupt()), 130, "interrupted."),
    "no permission": (no_room(errno.EACCES, "out.json"), 1, "words of the system: out.json"),
    "a full disk": (no_room(errno.ENOSPC, "out.json"), 1, "words of the system: out.json"),
}


@pytest.mark.parametrize(("run", "status", "said"), ENDINGS.values(), ids=ENDINGS.keys())
def test_every_ending_has_its_status_and_at_most_one_line(
    run: Callable[[], Any], status: int, said: str, verb: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    verb(run)
    assert main(["doctor"]) == status
    errors = capsys.readouterr().err
    assert errors.count("\n") == (1 if said else 0)
    assert not said or errors.startswith(f"drafterzoo: {said}")


def test_our_own_mistakes_keep_their_traceback(verb: Callable[..., None]) -> None:
    verb(raises(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        main(["doctor"])
    verb(no_room(errno.ENOENT, "x"))
    with pytest.raises(FileNotFoundError):
        main(["doctor"])


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == drafterzoo.__version__


def test_statuses_reach_the_shell() -> None:
    def status(*words: str) -> tuple[int, str]:
        done = subprocess.run([sys.executable, "-m", "drafterzoo.cli", *words], capture_output=True, text=True)
        return done.returncode, done.stderr

    assert status("list", "suites") == (0, "")
    code, said = status("list", "--colour")
    assert code == 2 and said.count("\n") == 1 and "Traceback" not in said


# -- list and show ---------------------------------------------------------------------------------------------------


@pytest.fixture
def catalogue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A catalogue of one checkpoint of two small tensors; returns its folder."""
    folder = tmp_path / "tiny-one"
    folder.mkdir()
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]},
        "b": {"dtype": "I64", "shape": [1], "data_offsets": [12, 20]},
    }
    raw = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(20))
    (folder / "config.json").write_text('{"spec": "eagle3.1", "format_version": 1}')
    (folder / "README.md").write_text("# tiny\n")

    def checkpoint_folder(name: str) -> Path:
        if name != "tiny-one":
            raise UsageError(f"unknown checkpoint {name!r}; there is tiny-one.")
        return folder

    fake_module(
        monkeypatch,
        "drafterzoo.catalogue",
        fetched=str,
        list_checkpoints=lambda glob=None, **_: ["tiny-one"] if glob in (None, "tiny*") else [],
        checkpoint_folder=checkpoint_folder,
        checkpoints_of=lambda drafter: ["tiny-one"] if drafter == "eagle3.1" else [],
        find=checkpoint_folder,
        options_typed=lambda name: {},
    )
    return folder


def test_list_shows_every_kind(catalogue: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    for word in (
        "drafters",
        "wrappers",
        "formats",
        "suites",
        "checkpoints",
        "eagle3.1",
        "lookup",
        "starter",
        "tiny-one",
    ):
        assert word in shown
    assert main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["drafters"]["eagle3.1"].startswith("drafterzoo.drafters.eagle31:Eagle31")
    assert found["checkpoints"].pop("tiny-one") == str(catalogue) and found["broken"] == {}
    assert all(said.startswith("hub:") for said in found["checkpoints"].values()), "the others lie elsewhere"


def test_list_tells_what_recipes_there_are_and_which_verb_runs_them(capsys: pytest.CaptureFixture[str]) -> None:
    from drafterzoo.resources import folder

    assert main(["list", "recipes", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["recipes"]
    assert set(found) == {path.stem for path in folder("recipes").rglob("*.toml")} and len(found) > 20
    verbs = {"train": "train", "grids": "grid", "bench": "bench"}
    for path in folder("recipes").rglob("*.toml"):
        verb, _, said = found[path.stem].partition(": ")
        assert verb == verbs[path.parent.name] and 10 < len(said) < 160 and not said.endswith((".", ":"))
    assert main(["list", "recipes", "-m", "first*"]) == 0
    shown = capsys.readouterr().out
    assert "first-steps  train: " in shown and "hass" not in shown


def test_list_keeps_paths_whole_on_narrow_terminals(
    catalogue: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    assert main(["list", "checkpoints"]) == 0
    assert str(catalogue) in capsys.readouterr().out


@pytest.mark.parametrize("columns", [80, 50])
def test_suites_are_listed_within_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from drafterzoo.registry import SUITES

    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["list", "suites"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    flowing = " ".join(" ".join(lines).split())
    for name in SUITES:
        suite = SUITES.get(name)
        assert f" {name} {suite.description} {suite.count:,} prompts, " in flowing
        assert f"; licence: {suite.licence}" in flowing and f"({suite.licence})" not in flowing


def test_list_takes_a_kind_and_a_pattern(catalogue: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "drafters", "-m", "eagle*", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["drafters", "broken"] and list(found["drafters"]) == ["eagle2", "eagle3", "eagle3.1"]
    assert main(["list", "checkpoints", "--match", "other*"]) == 0
    assert "none" in capsys.readouterr().out


def test_list_shows_a_broken_plug_in_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from drafterzoo.registry import WRAPPERS

    monkeypatch.setattr(WRAPPERS, "_broken", {"mine": "mine 0.1: ImportError: no [brackets] here"})
    assert main(["list", "wrappers"]) == 0
    assert "broken: mine 0.1: ImportError: no [brackets] here" in " ".join(capsys.readouterr().out.split())


def test_show_gives_config_card_and_sizes(catalogue: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "tiny-one", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["card"] == str(catalogue / "README.md") and shown["config"]["spec"] == "eagle3.1"
    size = (catalogue / "model.safetensors").stat().st_size
    assert shown["sizes"] == {"model.safetensors": {"bytes": size, "tensors": 2, "values": 7, "dtypes": ["F16", "I64"]}}
    assert main(["show", "tiny-one", "--config"]) == 0
    text = capsys.readouterr().out
    assert "README.md" in text and '"spec": "eagle3.1"' in text and "2 tensors" in text


def test_show_names_what_is_damaged(catalogue: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(status: int, name: str = "tiny-one") -> str:
        assert main(["show", name]) == status
        return capsys.readouterr().err

    assert "nothing to show is named 'other'" in said(2, "other")
    weights = catalogue / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-4])
    assert f"holds {len(whole) - 4} bytes where its header announces {len(whole)}" in said(1)
    for broken in (b"", whole[:20], b"\xff" * 40, (2).to_bytes(8, "little") + b"[]"):
        weights.write_bytes(broken)
        assert "does not begin as a safetensors file does" in said(1)
    weights.write_bytes(whole)
    (catalogue / "config.json").write_text("{")
    assert "config.json is not JSON" in said(1)
    (catalogue / "config.json").unlink()
    assert "has no config.json" in said(1)


# -- generate --------------------------------------------------------------------------------------------------------


WORDS = {1: "The", 2: " cat", 3: " dog", 4: " sat", 5: ".", 6: "\n"}


class FakeTokenizer:
    def decode(self, ids: list[int]) -> str:
        return "".join(WORDS[i] for i in ids)


class FakeTarget:
    name, tokenizer = "tiny", FakeTokenizer()


@attrs.frozen
class FakeDrafter:
    target: FakeTarget
    budget: Budget = attrs.field(factory=lambda: Budget.chain(3))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replace load, load_target and stream; what they were called with ends up in the returned dict."""
    from drafterzoo.engine.decode import Round, TreeView
    from drafterzoo.generation import Chunk

    calls: dict[str, Any] = {}
    target = FakeTarget()
    tree = TreeView(
        tokens=[2, 3, 4, 0],
        parents=[0, 0, 1, 0],
        depths=[1, 1, 2, 0],
        scores=[-0.1, -2.0, -0.5, float("-inf")],
        valid=[True, True, True, False],
        path=[0, 1, 3],
    )

    def stream(drafter: object, prompt: object, *, keep_trees: bool, **options: Any) -> list[Chunk]:
        calls.update(options, drafter=drafter, prompt=prompt)
        counters = Round(2, 3, 3, 3, 2, 3, 0.1, 0.2, 0.0, 1, tree if keep_trees else None, walked=2)
        return [Chunk(0, "The", [1], None, None), Chunk(0, " cat sat.", [2, 4, 5], counters, "length")]

    def load(spec: str, named: object = None) -> FakeDrafter:
        calls.update(spec=spec, bound=named)
        return FakeDrafter(target)

    def load_target(*names: str) -> FakeTarget:
        calls.update(target_name=names)
        return target

    for name, stand_in in {"stream": stream, "load": load, "load_target": load_target}.items():
        monkeypatch.setitem(vars(drafterzoo), name, stand_in)
    return calls


def test_generate_streams_the_answer_to_stdout_and_remarks_to_stderr(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "Say it.", "-d", "lookup", "-b", "chain:4", "--temperature", "0.5", "--seed", "7"]) == 0
    said = capsys.readouterr()
    assert said.out == "The cat sat.\n"
    assert "4 tokens in" in said.err and "1 target call after prefill, 3.00 tokens each" in said.err
    assert asked["spec"] == "lookup" and asked["bound"] is None and asked["prompt"] == "Say it."
    assert (str(asked["budget"]), asked["temperature"], asked["seed"]) == ("chain:4", 0.5, 7)


def test_generate_plain_needs_no_drafter(asked: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "Say it.", "--plain", "--target", "some/model"]) == 0
    assert asked["drafter"] == "none" and asked["target_name"] == ("some/model",) and "spec" not in asked
    assert main(["generate", "Say it.", "--plain"]) == 0
    assert asked["target_name"] == () and asked["budget"] is None
    capsys.readouterr()


def test_generate_with_the_drafter_none_decodes_plainly(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "Say it.", "-d", "none", "--target", "some/model", "--json"]) == 0
    assert asked["drafter"] == "none" and asked["target_name"] == ("some/model",) and "spec" not in asked
    found = json.loads(capsys.readouterr().out)
    assert (found["drafter"], found["budget"]) == ("none", None)


def test_generate_draws_trees(asked: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "Say it.", "--show-tree"]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "✓ accepted; %: the drafter's own chance of the path down to a node",
        "round 1: 2 of 3 accepted, then .; root  The",
        "├── ␣cat  90.5%  ✓",
        "│   └── ␣sat  60.7%  ✓",
        "└── ␣dog  13.5%",
        "",
        "The cat sat.",
    ], "the answer stands apart, below the last tree"


def test_generate_gives_json(asked: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "Say it.", "--json", "--show-tree"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["text"] == "The cat sat." and found["tokens"] == [1, 2, 4, 5]
    assert (found["rounds"], found["tau"], found["target"], found["drafter"]) == (1, 3.0, "tiny", "eagle3.1")
    assert (found["budget"], found["temperature"], found["verification"]) == ("chain:3", 0.0, "match")
    tree = found["trees"][0]
    assert (tree["accepted"], tree["scores"][3], tree["root"], tree["then"]) == ([1, 3], None, "The", ["."])
    assert main(["generate", "Say it.", "--json"]) == 0
    assert "trees" not in json.loads(capsys.readouterr().out)


def test_generate_reads_standard_input(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("From a pipe."))
    assert main(["generate"]) == 0
    assert asked["prompt"] == "From a pipe."
    capsys.readouterr()


def test_generate_refuses_a_bad_budget_before_anything_is_loaded(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "Say it.", "--budget", "0"]) == 2
    said = capsys.readouterr().err
    assert "nodes is 0" in said and "--budget chain:4" in said and not asked
    assert main(["generate", "Say it.", "--budget", ""]) == 2
    assert "budget: it is empty; write for example chain:4" in capsys.readouterr().err and not asked


def test_a_pipe_that_holds_no_text_is_misuse(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hi \xff"), encoding="utf-8"))
    assert main(["generate"]) == 2
    assert "standard input: not text" in capsys.readouterr().err and not asked


# -- the drawing -----------------------------------------------------------------------------------------------------


def rendered(tree: Any) -> str:
    console = Console(file=io.StringIO(), width=80, color_system=None, highlight=False)
    console.print(tree)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_tree_is_drawn_with_its_accepted_path_marked() -> None:
    tree = draw_tree(["a", "b", "c", "d"], [0, 0, 1, 3], accepted={1, 3}, root="r")
    lines = [line.rstrip() for line in rendered(tree).splitlines()]
    assert lines == ["r", "├── a  ✓", "│   └── c  ✓", "│       └── d", "└── b"]
    styled = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")
    styled.print(tree)
    assert "\x1b[1;32ma" in styled.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[1;32mb" not in styled.file.getvalue()  # type: ignore[attr-defined]


def test_padding_is_not_drawn_and_scores_are() -> None:
    text = rendered(draw_tree(["a", "pad"], [0, 0], valid=[True, False], scores=[-0.6931, -1.0], title="round 1"))
    assert "round 1" in text and "a  50.0%" in text and "pad" not in text


def test_tokens_are_text_never_markup_and_blanks_show() -> None:
    assert "[bold]x[/bold]" in rendered(draw_tree(["[bold]x[/bold]"], [0], root="[/]"))
    assert [visible(t) for t in (" the", "\n\n", "", "\t", "é", "\x00")] == ["␣the", "⏎⏎", "(empty)", "⇥", "é", "\\x00"]


# -- doctor ----------------------------------------------------------------------------------------------------------


def test_doctor_reports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from drafterzoo.target import embedded, packed

    monkeypatch.setenv("DRAFTERZOO_CACHE", str(tmp_path))
    monkeypatch.setattr(packed, "packing_works", lambda: False)
    monkeypatch.setattr(embedded, "status", lambda: "not converted yet")
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    target = facts["default target"]
    assert target["status"] == "not converted yet" and target["cache folder"] == str(tmp_path)
    assert target["packed linears"].startswith("not available")
    assert facts["device"]["threads"] >= 1 and facts["versions"]["torch"]
    extras = {"accelerate", "gguf", "jinja2", "matplotlib", "pyarrow", "ray"}  # what pyproject.toml's extras bring
    assert extras <= facts["versions"].keys()
    assert facts["broken plug-ins"] == {}
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert facts["checkpoints"] == doctor.checkpoints() and str(tmp_path) in text  # in one piece, however long
    assert "threads" in text and "transformers" in text and "not converted yet" in text


def test_doctor_shows_broken_plug_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.DRAFTERS, "_broken", {"mine": "mine 0.1: ImportError: no"})
    assert doctor.DRAFTERS.broken() == {"mine": "mine 0.1: ImportError: no"}
    assert doctor.versions()["python"].startswith(f"{sys.version_info[0]}.{sys.version_info[1]}")  # type: ignore[union-attr]
