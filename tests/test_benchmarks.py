"""benchmarks/: what is typed wrongly is said in one sentence, before anything is loaded or measured."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "asking")
BY_PROMPTS = ("sampling", "carried", "exported", "layouts")  # whose size is a number of prompts


@pytest.fixture
def script(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module(request.param)


def status_of(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", [f"{script.__name__}.py", *words])
    with pytest.raises(SystemExit) as left:
        script.run(script.main)
    assert isinstance(left.value.code, int)
    return left.value.code


def test_every_script_is_here() -> None:
    assert {
        "memory",
        "overhead",
        "packing",
        "peers",
        "replay",
        "sampling",
        "coforward",
        "carried",
        "loading",
        "exported",
        "layouts",
    } <= set(SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS, indirect=True)
@pytest.mark.parametrize("typed", ["-3", "x", "2.5"])
def test_a_number_that_cannot_be_meant(script, monkeypatch, capsys, typed: str) -> None:
    option = {"memory": "--nodes"}.get(script.__name__, "--limit" if script.__name__ in BY_PROMPTS else "--repeats")
    assert status_of(script, monkeypatch, f"{option}={typed}") == 2
    said = capsys.readouterr().err
    assert f"{option}: {typed!r}, expected a whole number from" in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("script", "option"),
    [
        ("packing", "--target="),
        ("overhead", "--target="),
        ("coforward", "--target="),
        ("sampling", "-ddir:"),
        ("carried", "-ddir:"),
    ],
    indirect=["script"],
)
def test_what_is_not_there(script, monkeypatch, capsys, tmp_path: Path, option: str) -> None:
    missing = str(tmp_path / "nowhere")
    assert status_of(script, monkeypatch, f"{option}{missing}") in (1, 2)
    said = capsys.readouterr().err
    assert said.startswith("drafterzoo: ") and missing in said and said.count("\n") == 1
