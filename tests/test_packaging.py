"""The project's own files: what a wheel must carry, that versions agree, and that CONTRIBUTING's example runs."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

import drafterzoo
from drafterzoo import resources
from drafterzoo.errors import DrafterzooError
from drafterzoo.registry import DRAFTERS, FORMATS, SUITES, WRAPPERS, Registry

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SET_UP = "python3 -m venv .venv && .venv/bin/pip install -q tox && .venv/bin/tox -e "


def test_resources_are_found_in_a_checkout() -> None:
    for name in ("recipes", "model_cards"):
        folder = resources.folder(name)  # type: ignore[arg-type]
        assert folder == ROOT / name and folder.is_dir()


def test_resources_are_found_in_an_installed_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "drafterzoo"
    (package / "recipes").mkdir(parents=True)
    (package.parent / "recipes").mkdir()  # somebody else's
    monkeypatch.setattr(resources, "PACKAGE", package)
    assert resources.folder("recipes") == package / "recipes"
    with pytest.raises(DrafterzooError, match=r"'model_cards' is missing.*install drafterzoo again"):
        resources.folder("model_cards")


def test_the_wheel_is_told_to_carry_both_folders() -> None:
    carried = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert carried == {name: f"drafterzoo/{name}" for name in ("recipes", "model_cards")}
    assert {f"/{name}" for name in carried} <= set(PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"])
    assert (ROOT / "drafterzoo" / "evaluation" / "data" / "starter.jsonl").is_file()
    assert (ROOT / "drafterzoo" / "training" / "data" / "prompts.toml").is_file()


def test_versions_agree() -> None:
    assert PROJECT["project"]["version"] == drafterzoo.__version__
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{drafterzoo.__version__}]" in changes or "## [Unreleased]" in changes


def test_the_entry_point_leads_to_the_command_line() -> None:
    module, _, function = PROJECT["project"]["scripts"]["drafterzoo"].partition(":")
    assert callable(getattr(__import__(module, fromlist=[function]), function))


def test_the_licence_is_apache() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text and "END OF TERMS AND CONDITIONS" in text
    assert PROJECT["project"]["license"] == "Apache-2.0"


def test_constraints_satisfy_the_declared_bounds() -> None:
    requirement = pytest.importorskip("packaging.requirements").Requirement
    pinned = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"
    )
    assert "torch" in pinned
    extras = PROJECT["project"]["optional-dependencies"]
    for text in [*PROJECT["project"]["dependencies"], *extras["dev"]]:
        wanted = requirement(text)
        assert wanted.name not in pinned or pinned[wanted.name] in wanted.specifier


def test_ci_and_readme_run_the_same_commands() -> None:
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert f"{SET_UP}tests" in ci and os.access(ROOT / ".ci" / "run", os.X_OK)
    assert f"{SET_UP}tests" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    readme = ROOT / "README.md"
    if not readme.is_file():
        pytest.skip("no README here")
    said = readme.read_text(encoding="utf-8")
    assert f"{SET_UP}tests" in said and f"{SET_UP}quickstart" in said


def test_every_tox_environment_that_is_named_exists() -> None:
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    known = {section.removeprefix("testenv:") for section in tox.sections() if section.startswith("testenv:")}
    assert {"lint", "types", "tests", "quickstart", "build"} <= known
    for file in (".ci/run", "CONTRIBUTING.md", "tox.ini"):
        for names in re.findall(r"tox -e ([a-z,]+)", (ROOT / file).read_text(encoding="utf-8")):
            assert set(names.split(",")) <= known, file


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    names = listed.stdout.split("\n") if listed.returncode == 0 else []
    texts = [name for name in names if name.endswith((".py", ".md", ".toml", ".ini", ".txt", ".json", ".yml"))]
    if not texts:
        pytest.skip("not a git checkout")
    pattern = re.compile(r"(?<![\w.])/(?:home|root|Users)/\w")
    found = [name for name in texts if pattern.search((ROOT / name).read_text(encoding="utf-8", errors="replace"))]
    assert not found


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, drafterzoo; dir(drafterzoo); print([m for m in ('torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("registry", [DRAFTERS, WRAPPERS, FORMATS, SUITES], ids=lambda registry: registry.kind)
def test_contributing_names_every_entry_point_group(registry: Registry) -> None:
    assert f".{registry.group.rpartition('.')[2]}" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_worked_example_of_contributing_drafts_and_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    from drafterzoo.budget import Budget
    from drafterzoo.engine.decode import Settings, decode
    from drafterzoo.engine.sampling import Sampling
    from tests.tiny import tiny_target

    code = re.search(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
    assert code, "CONTRIBUTING.md must show a whole drafter"
    module = types.ModuleType("bigram_of_contributing")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code.group(1), "CONTRIBUTING.md", "exec"), vars(module))

    target = tiny_target()
    registry: Registry = Registry("drafter", "drafterzoo.drafters.base:Drafter", "drafterzoo.test_none")
    registry.register("bigram", f"{module.__name__}:Bigram")
    drafter = registry.get("bigram").create(target, rank=8).eval()

    def answer(chosen: object) -> list[int]:
        settings = Settings(Budget.tree(6) if chosen else None, Sampling(), max_new_tokens=12)
        rounds = list(decode(chosen, target, [[1, 5, 9]], settings, keys=[0]))  # type: ignore[arg-type]
        return [token for emission in rounds for token in emission.tokens]

    assert len(answer(None)) == 12 and answer(drafter) == answer(None)
