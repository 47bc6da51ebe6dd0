"""A run's folder whose files are damaged, of another release or of other settings: said in a sentence, or made good."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from drafterzoo import checkpoint
from drafterzoo.cli import main
from drafterzoo.errors import UsageError
from drafterzoo.target import Target
from drafterzoo.training import run
from drafterzoo.training.trainer import Trainer
from tests.tiny import tiny_target

VOCAB = 64
DEEP = "[" * 100_000


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("llama")


@pytest.fixture(scope="module")
def finished(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rollouts, a recipe and its finished run, `run`."""
    folder = tmp_path_factory.mktemp("finished")
    drawn = torch.randint(3, VOCAB, (12, 14), generator=torch.Generator().manual_seed(3)).tolist()
    rows = [
        json.dumps({"prompt_ids": ids[:4], "response_ids": ids[4:], "split": "val" if i % 4 == 3 else "train"})
        for i, ids in enumerate(drawn)
    ]
    (folder / "rollouts.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "small.toml").write_text(
        'spec = "eagle3.1"\n[drafter]\ndraft_vocab_size = 32\n'
        '[data]\nrollouts = "rollouts.jsonl"\nfeatures = "online"\npack = 40\n'
        '[run]\nepochs = 1.0\n[evaluate]\nprompts = 1\nmax_new_tokens = 3\nbudget = "chain:2"\n'
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(run, "load_target", lambda *args, **options: target)
        patch.setattr("drafterzoo.training.trainer.LEARNT_NOTHING", 0.0)
        run.train("small.toml", out="run", quiet=True)
    return folder


@pytest.fixture
def here(finished: Path, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, to be damaged."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "load_target", lambda *args, **options: target)
    monkeypatch.setattr("drafterzoo.training.trainer.LEARNT_NOTHING", 0.0)
    return tmp_path


def again() -> run.TrainResult:
    return run.train("small.toml", out="run", quiet=True)


def refused(capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Status and the one line of the command that should have gone on."""
    capsys.readouterr()
    status = main(["train", "small.toml", "--out", "run"])
    said = capsys.readouterr().err.strip().splitlines()
    assert "Traceback" not in "".join(said)
    return status, said[-1]


def test_a_whole_run_is_finished(here: Path) -> None:
    assert again().already


# -- finished, it says ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
@pytest.mark.parametrize("cut", [None, 20], ids=["gone", "cut"])
def test_a_run_whose_best_is_damaged_is_not_finished(name: str, cut: int | None, here: Path) -> None:
    file = here / "run" / "best" / name
    data = file.read_bytes()
    file.unlink() if cut is None else file.write_bytes(data[:cut])
    done = again()
    assert not done.already and done.summary["finished"]
    checkpoint.read(here / "run" / "best")
    assert again().already


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: "{}",
        lambda kept: "[]",
        lambda kept: "",
        lambda kept: DEEP,
        lambda kept: '{"recipe": ' + "9" * 5000 + "}",
        lambda kept: json.dumps({**kept, "summary": {}}),
        lambda kept: json.dumps({**kept, "summary": None}),
        lambda kept: json.dumps({**kept, "recipe": {}}),
        lambda kept: json.dumps({**kept, "summary": {**kept["summary"], "best": {}}}),
        lambda kept: json.dumps({**kept, "summary": {**kept["summary"], "step": "3"}}),
        lambda kept: json.dumps({**kept, "summary": {**kept["summary"], "finished": False}}),
    ],
)
def test_a_damaged_summary_is_made_anew(change: Callable[[Any], str], here: Path) -> None:
    file = here / "run" / "summary.json"
    whole = json.loads(file.read_text())
    file.write_text(change(whole))
    assert not again().already
    assert json.loads(file.read_text())["summary"]["best"] == whole["summary"]["best"]
    assert again().already


def test_a_finished_run_on_part_of_the_rollouts_is_known_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it was made from is the choice, not the file; another choice is not what the run began with."""
    few = ["train", "small.toml", "--out", "few", "--documents", "5"]
    assert main(few) == 0 and "finished at step" in capsys.readouterr().out
    assert main(few) == 0 and "already finished" in capsys.readouterr().out
    assert main([*few[:-1], "6"]) == 2 and "documents" in capsys.readouterr().err.splitlines()[-1]
    assert main(few) == 0 and "already finished" in capsys.readouterr().out


def test_another_recipes_folder_is_refused_before_anything_is_loaded(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "load_target", lambda *args, **options: pytest.fail("the target was loaded"))
    for typed, key in ((["--documents", "5"], "data.documents"), (["--precision", "bfloat16"], "run.precision")):
        assert main(["train", "small.toml", "--out", "run", *typed]) == 2
        said = capsys.readouterr().err
        assert "run: holds a run of another recipe, which differs in" in said and key in said


def test_what_a_killed_process_left_half_written_is_removed(here: Path) -> None:
    left = [here / "run" / name for name in (".recipe.json.7.partial", "last/.state.pt.7.partial", "best/.a.7.partial")]
    for path in left:
        path.write_bytes(b"half")
    (here / "run" / "summary.json").unlink()  # so that it goes on
    assert not again().already
    assert [path for path in left if path.exists()] == []


def test_other_rollouts_are_no_finished_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rollouts = here / "rollouts.jsonl"
    whole = rollouts.read_text()
    rollouts.write_text(whole.replace("[", "[5, ", 1))
    status, said = refused(capsys)
    assert status == 2 and "not the rollouts that the run in" in said
    rollouts.unlink()
    assert again().already, "they are not needed any more"


# -- what a run goes on from ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("junk", [b"", b"junk", b"\x80\x02G\x00", b"\x80\x02J\x00", b"\x80\x02}.", b"PK\x03\x04" * 9])
def test_a_state_of_junk_is_damaged(junk: bytes, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "run" / "summary.json").unlink()
    (here / "run" / "last" / "state.pt").write_bytes(junk)
    status, said = refused(capsys)
    assert status == 1 and "state.pt: damaged, so the run cannot go on" in said and "--out" in said


def _at(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(state: dict[str, Any]) -> None:
        place: Any = state
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value(place[path[-1]]) if callable(value) else value

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("average"),
        lambda state: state["parameters"].pop(),
        _at("parameters", 0, value=torch.zeros(1)),  # which copying would broadcast
        _at("parameters", 0, value=lambda p: p.double()),
        _at("average", 0, value=torch.zeros(1)),
        _at("average", value=3),
        _at("step", value="3"),
        _at("seconds", value=None),
        _at("best", value={}),
        _at("best", value=[]),
        _at("best", "measured_with", value={}),
        _at("generator", value=torch.zeros(3, dtype=torch.uint8)),
        _at("torch_rng", value=torch.zeros(3, dtype=torch.uint8)),
        _at("optimizer", value={}),
        _at("optimizer", "param_groups", value=[]),
        _at("optimizer", "param_groups", 0, value={"params": [0]}),
        _at("optimizer", "param_groups", 0, "params", value=[0]),
        _at("optimizer", "state", 0, "exp_avg", value=torch.zeros(1)),
        _at("optimizer", "state", 0, "step", value=3),
        _at("optimizer", "state", value={10_000: {}}),
    ],
)
def test_a_state_of_another_form_is_damaged(
    change: Callable[[dict[str, Any]], Any], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "run" / "summary.json").unlink()
    path = here / "run" / "last" / "state.pt"
    state = torch.load(path, weights_only=True)
    change(state)
    torch.save(state, path)
    status, said = refused(capsys)
    assert status == 1 and "state.pt: damaged, so the run cannot go on" in said


def test_a_list_is_no_state(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "run" / "summary.json").unlink()
    torch.save([1, 2], here / "run" / "last" / "state.pt")
    assert refused(capsys)[0] == 1


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", DEEP, '{"spec": 3}', '{"spec": "eagle3.1", "data": 5}'])
def test_a_damaged_recipe_is_not_another_recipe(text: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "run" / "summary.json").unlink()
    (here / "run" / "recipe.json").write_text(text)
    status, said = refused(capsys)
    assert status == 1 and "recipe.json: damaged, so the run cannot go on" in said and "another recipe" not in said


def test_a_recipe_kept_before_a_key_was_added_is_the_same(here: Path) -> None:
    """A new release adds keys; their defaults are what the run was made with."""
    kept, done = here / "run" / "recipe.json", here / "run" / "summary.json"
    old, finished = json.loads(kept.read_text()), json.loads(done.read_text())
    for values in (old, finished["recipe"]):
        del values["data"]["precision"], values["run"]["precision"], values["init"]["vocabulary"]
    kept.write_text(json.dumps(old))
    done.write_text(json.dumps(finished))
    assert again().already
    done.unlink()
    assert again().summary["finished"]
    old["data"]["precision"] = "bfloat16"
    kept.write_text(json.dumps(old))
    done.unlink()
    with pytest.raises(UsageError, match=r"holds a run of another recipe, which differs in data\.precision; choose"):
        again()


# -- the best so far, and how it was measured -------------------------------------------------------------------------


def measured(here: Path, taus: list[float], monkeypatch: pytest.MonkeyPatch, **settings: Any) -> dict[str, Any]:
    """Go on with other [evaluate] settings, where the decodes give these taus one after the other."""
    text = (here / "small.toml").read_text()
    for key, value in settings.items():
        text = "\n".join(f"{key} = {value!r}" if line.startswith(f"{key} =") else line for line in text.splitlines())
    (here / "small.toml").write_text(text.replace("'", '"'))
    (here / "run" / "summary.json").unlink(missing_ok=True)
    left = list(taus)
    monkeypatch.setattr(Trainer, "_tau", lambda self, drafter, prompts: left.pop(0))
    best: dict[str, Any] = again().summary["best"]
    assert not left, "as many decodes as were expected"
    return best


def held_out_tau(here: Path, name: str) -> dict[str, float]:
    record: dict[str, float] = checkpoint.read(here / "run" / name).config["training"]["held_out_tau"]
    return record


@pytest.mark.parametrize("settings", [{"budget": "chain:3"}, {"prompts": 2}, {"max_new_tokens": 4}], ids=str)
def test_a_best_of_other_settings_is_measured_anew(
    settings: dict[str, Any], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = measured(here, [9.0], monkeypatch)  # of the last step
    assert first["tau"] == 9.0 and held_out_tau(here, "best") == {"chain:2": 9.0}
    first = measured(here, [1.2, 1.5], monkeypatch, **settings)  # of the best, and of the last
    asked = {"budget": "chain:2", "prompts": 1, "max_new_tokens": 3, **settings}
    assert first["tau"] == 1.5 and first["measured_with"] == asked
    assert held_out_tau(here, "best") == held_out_tau(here, "last") == {asked["budget"]: 1.5}
    assert measured(here, [1.4], monkeypatch)["tau"] == 1.5, "nothing has changed: measured once is enough"


def test_a_best_that_stays_the_best_is_kept(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (here / "run" / "best" / "model.safetensors").read_bytes()
    best = measured(here, [1.5, 1.2], monkeypatch, budget="chain:3")
    assert best["tau"] == 1.5 and best["measured_with"]["budget"] == "chain:3"
    assert (here / "run" / "best" / "model.safetensors").read_bytes() == before
    assert held_out_tau(here, "last") == {"chain:3": 1.5}


def test_tau_is_recorded_under_the_budget_it_was_measured_at(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved between the resumption and the next decode."""
    tau = held_out_tau(here, "last")
    (here / "run" / "summary.json").unlink()
    text = (here / "small.toml").read_text()
    (here / "small.toml").write_text(text.replace("chain:2", "chain:3"))

    def stopped(self: Trainer) -> None:
        self.save()
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "_evaluate", stopped)
    with pytest.raises(KeyboardInterrupt):
        again()
    assert held_out_tau(here, "last") == tau and list(tau) == ["chain:2"]


def test_a_best_that_does_not_say_how_it_was_measured_is_measured_anew(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = here / "run" / "last" / "state.pt"
    state = torch.load(path, weights_only=True)
    del state["best"]["measured_with"]
    torch.save(state, path)
    assert measured(here, [1.5, 1.2], monkeypatch)["tau"] == 1.5


def test_a_best_that_is_gone_gives_way_to_what_there_is(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "run" / "best" / "model.safetensors").unlink()
    assert measured(here, [0.5], monkeypatch)["tau"] == 0.5
    checkpoint.read(here / "run" / "best")


def test_measuring_anew_draws_nothing(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[torch.Tensor] = []
    look = Trainer._look_at_best

    def looked(self: Trainer, prompts: list[list[int]]) -> None:
        states.append(torch.get_rng_state())
        look(self, prompts)
        states.append(torch.get_rng_state())

    monkeypatch.setattr(Trainer, "_look_at_best", looked)
    measured(here, [1.5, 1.2], monkeypatch, budget="chain:3")
    assert torch.equal(*states)
