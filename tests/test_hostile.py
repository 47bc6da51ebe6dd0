"""What a hostile environment and other people's code can do: kills, full disks, foreign drafters, damaged text."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import safetensors.torch
import torch

import drafterzoo
from drafterzoo import checkpoint
from drafterzoo.budget import Budget
from drafterzoo.catalogue import load
from drafterzoo.cli import main
from drafterzoo.drafters.eagle31 import Eagle31
from drafterzoo.drafters.lookup import Lookup, LookupConfig
from drafterzoo.engine.contract import Frontier, Offers
from drafterzoo.engine.sampling import Sampling, Selector
from drafterzoo.errors import CheckpointError, DataError, DiskError, DrafterError, DrafterzooError, UsageError
from drafterzoo.evaluation.recipes import read_bench_recipe
from drafterzoo.evaluation.results import ROUNDS, Record, ResultsWriter
from drafterzoo.evaluation.suites import load_suite
from drafterzoo.parsing import parse_json, parse_toml
from drafterzoo.progress import console, progress
from drafterzoo.registry import DRAFTERS
from drafterzoo.target import load_target
from drafterzoo.training import run
from drafterzoo.training.prompts import read_prompts
from drafterzoo.training.recipe import read_recipe
from drafterzoo.training.rollouts import read_rollouts
from drafterzoo.training.run import alone
from tests.test_target_loading import tiny_tokenizer
from tests.tiny import tiny_model, tiny_target

NODES = Budget(nodes=8, depth=3, grow=3, offer=3)
HUGE = "9" * 5000


# -- text that parsers trip over --------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["[" * 100_000, f'{{"a": {HUGE}}}', '{"a": "\\ud800"}', "\0", '{"a": '])
def test_json_goes_wrong_in_one_way(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        parse_json(text)


def test_whole_characters_in_two_escapes_are_fine() -> None:
    assert parse_json('"\\ud83d\\ude00"') == "\U0001f600"


@pytest.mark.parametrize("text", ["a = " + "[" * 20_000, f"a = {HUGE}", "a = '\0'"])
def test_every_reader_says_so_in_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    for read in (read_recipe, read_bench_recipe):
        with pytest.raises(UsageError, match=r"recipe\.toml"):
            read(path)
    with pytest.raises(UsageError):
        read_recipe("a\0.toml")
    with pytest.raises(UsageError):
        read_bench_recipe("a\0.toml")


@pytest.mark.parametrize(
    "line", ["[" * 100_000, f'{{"prompt": "x", "id": {HUGE}}}', '{"id": "\\ud800", "prompt": "x"}']
)
def test_lines_that_parsers_trip_over_are_named(tmp_path: Path, line: str) -> None:
    """An id with half a character could be read and never be written: the run ended when the first answer was kept."""
    path = tmp_path / "lines.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(DataError, match=r"lines\.jsonl:1: not JSON"):
        load_suite(path)
    with pytest.raises(DataError, match=r"lines\.jsonl:1: not JSON.*mend or drop the line"):
        read_rollouts(path, 64)
    (tmp_path / "config.json").write_text(line)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        checkpoint.read_config(tmp_path)


def test_a_byte_order_mark_is_no_part_of_a_recipe() -> None:
    assert parse_toml("\ufeffa = 1") == {"a": 1}


def test_numbers_out_of_all_proportion(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text('{"prompt_ids": [1], "response_ids": [2], "temperature": 1' + "0" * 400 + "}\n")
    with pytest.raises(DataError, match="'temperature' is"):
        read_rollouts(tmp_path / "r.jsonl", 64)
    with pytest.raises(UsageError, match="expected builtin:<how many>"):
        read_prompts(f"builtin:{HUGE}")
    with pytest.raises(UsageError, match=r"limit is 2\.5"):
        load_suite("starter", limit=2.5)  # type: ignore[arg-type]
    for heat in (10**400, 1e39):
        with pytest.raises(UsageError, match=r"temperature is .* at most 1e\+30"):
            Sampling(temperature=heat)


# -- arguments --------------------------------------------------------------------------------------------------------


def test_a_message_outside_a_list_is_not_two_prompts() -> None:
    target = load_target(tiny_model(layers=1), tokenizer=tiny_tokenizer())
    message: Any = {"role": "user", "content": "hello"}
    with pytest.raises(UsageError, match="put it into a list"):
        drafterzoo.generate("none", message, target=target, max_new_tokens=2)
    assert len(drafterzoo.generate("none", [message], target=target, max_new_tokens=2).tokens) == 1


def test_request_ids_of_any_text() -> None:
    target = tiny_target(layers=1)
    ids: Any
    for ids in (5, "ab", {1: 2}):
        with pytest.raises(UsageError, match="request_ids is"):
            drafterzoo.generate("none", [[3], [4]], target=target, max_new_tokens=2, request_ids=ids)
    assert drafterzoo.generate("none", [[3]], target=target, max_new_tokens=2, request_ids=["\udc80"]).tokens


# -- drafters of other people -----------------------------------------------------------------------------------------


def foreign(**methods: Any) -> Lookup:
    """A drafter from elsewhere: `lookup` with something changed."""
    return type("Foreign", (Lookup,), {"name": "foreign", **methods})(LookupConfig(), tiny_target(layers=2))


def offering(change: Callable[[Offers], Any]) -> Lookup:
    def expand(self: Lookup, state: Any, frontier: Frontier, select: Selector) -> Any:
        return change(Lookup.expand(self, state, frontier, select))

    return foreign(expand=expand)


def decode(drafter: Lookup, **options: Any) -> list[list[int]]:
    return drafterzoo.generate(drafter, [[3, 4, 5], [7]], max_new_tokens=8, budget=NODES, **options).tokens


def fail(*_: Any) -> None:
    raise ZeroDivisionError("division by zero")


@pytest.mark.parametrize("method", ["open", "observe", "expand", "rows_per_round"])
def test_a_foreign_drafter_that_fails_is_named_with_the_line(method: str) -> None:
    with pytest.raises(
        DrafterError, match=rf"'foreign' of {__name__} failed .*ZeroDivisionError.*{Path(__file__).name}:"
    ):
        decode(foreign(**{method: fail}))


def test_our_own_failure_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lookup, "expand", fail)
    with pytest.raises(ZeroDivisionError):
        decode(Lookup(LookupConfig(), tiny_target(layers=2)))


@pytest.mark.parametrize("token", [999, -7, 64])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "verification": "rejection"}])
def test_an_offer_from_outside_the_vocabulary_is_named(token: int, options: dict[str, Any]) -> None:
    drafter = offering(lambda o: attrs.evolve(o, tokens=o.tokens * 0 + token, scores=o.scores * 0 - 1))
    with pytest.raises(DrafterError, match=rf"offers token {token}, but tiny-llama has ids 0 to 63"):
        decode(drafter, **options)


def test_an_offer_below_a_node_that_is_not_there_is_the_drafters_fault() -> None:
    with pytest.raises(DrafterError, match=r"'foreign' .* failed while drafting"):
        decode(offering(lambda o: attrs.evolve(o, nodes=o.nodes + 1000, scores=o.scores * 0 - 1)))


WRONG: dict[str, tuple[Callable[[Offers], Any], str]] = {
    "nothing": (lambda o: None, "returned a NoneType, expected Offers"),
    "a pair": (lambda o: (o.tokens, o.scores), "returned a tuple, expected Offers"),
    "float tokens": (
        lambda o: attrs.evolve(o, tokens=o.tokens.float()),
        r"returned tokens as float32 \[2, 1, 3\] on cpu, expected tokens as int64 \[2, 1, 3\] on cpu",
    ),
    "listed tokens": (
        lambda o: attrs.evolve(o, tokens=[[[1]]] * 2),
        r"tokens as a list, expected tokens as int64 \[2, R, k\]",
    ),
    "fewer requests": (lambda o: attrs.evolve(o, tokens=o.tokens[:1]), r"expected tokens as int64 \[2, R, k\]"),
    "flat tokens": (lambda o: attrs.evolve(o, tokens=o.tokens[0]), r"expected tokens as int64 \[2, R, k\]"),
    "narrow scores": (lambda o: attrs.evolve(o, scores=o.scores[..., :1]), r"scores as float32 \[2, 1, 1\]"),
    "whole scores": (lambda o: attrs.evolve(o, scores=o.tokens), r"expected scores as float \[2, 1, 3\]"),
    "flat nodes": (lambda o: attrs.evolve(o, nodes=o.nodes[:, 0]), r"expected nodes as int64 \[2, 1\]"),
    "another device": (lambda o: attrs.evolve(o, tokens=o.tokens.to("meta")), r"on meta, expected .* on cpu"),
    "no scores": (lambda o: attrs.evolve(o, scores=None), "scores as a NoneType"),
    "keep of another shape": (lambda o: attrs.evolve(o, keep=o.scores[0]), r"keep as float32 \[1, 3\]"),
    "a narrow q": (
        lambda o: attrs.evolve(o, q=torch.ones(2, 1, 7)),
        r"q as float32 \[2, 1, 7\] on cpu, expected .*1, 64\]",
    ),
    "no rows": (
        lambda o: Offers(o.nodes[:, :0], o.tokens[:, :0], o.scores[:, :0]),
        "returned 0 rows, expected one for each",
    ),
}


@pytest.mark.parametrize(("change", "words"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "verification": "rejection"}], ids=["match", "rejection"])
def test_offers_that_break_the_contract_are_one_sentence(
    change: Callable[[Offers], Any], words: str, options: dict[str, Any]
) -> None:
    with pytest.raises(DrafterError, match=rf"'foreign' of {__name__} breaks its contract: .*{words}") as caught:
        decode(offering(change), **options)
    said = str(caught.value)
    assert "\n" not in said and "tell whoever wrote it" in said and caught.value.exit_status == 1


def test_our_own_offers_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """They cost nothing, and our own mistake keeps its traceback."""
    monkeypatch.setattr(Lookup, "expand", lambda *_: None)
    with pytest.raises(AttributeError):
        decode(Lookup(LookupConfig(), tiny_target(layers=2)))


@pytest.mark.parametrize("taps", [(1.5,), 3, ("a",), property(fail)])
def test_taps_that_are_none_are_the_drafters_fault(taps: Any) -> None:
    with pytest.raises(DrafterError, match=r"'foreign' .* failed while naming its taps"):
        decode(foreign(taps=taps))


@pytest.mark.parametrize("score", [float("nan"), float("inf"), 5.0])
@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_scores_that_mean_nothing_change_no_text(score: float, heat: float) -> None:
    drafter = offering(lambda o: attrs.evolve(o, scores=o.scores * 0 + score))
    plain = drafterzoo.generate("none", [[3, 4, 5], [7]], target=drafter.target, max_new_tokens=8, temperature=heat)
    assert decode(drafter, temperature=heat) == plain.tokens


def test_a_foreign_drafter_that_cannot_be_made_or_imported() -> None:
    target = tiny_target(layers=2)
    DRAFTERS.register("test-unmade", type("Unmade", (Lookup,), {"name": "test-unmade", "__init__": fail}))
    DRAFTERS.register("test-missing", "no_such_package.module:Thing")
    DRAFTERS.register("test-absent", "json:nothing")
    try:
        with pytest.raises(DrafterError, match="failed while being made"):
            load("test-unmade", target)
        for name in ("test-missing", "test-absent"):
            with pytest.raises(UsageError, match="cannot be imported"):
                load(name, target)
    finally:
        for name in ("test-unmade", "test-missing", "test-absent"):
            del DRAFTERS._entries[name]


# -- checkpoints and targets ------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    target = tiny_target()
    return Eagle31(Eagle31.debug_config(target), target).save_pretrained(tmp_path / "checkpoint")


@pytest.mark.parametrize("weight", [torch.full((1,), 1e300, dtype=torch.float64), torch.tensor([float("nan")])])
def test_weights_that_float32_cannot_hold_are_refused(saved: Path, weight: torch.Tensor) -> None:
    path = saved / checkpoint.WEIGHTS
    tensors = safetensors.torch.load_file(path)
    safetensors.torch.save_file({**tensors, "fc.weight": weight.expand_as(tensors["fc.weight"]).contiguous()}, path)
    with pytest.raises(CheckpointError, match=r"'fc\.weight' holds values that are not finite"):
        load(f"dir:{saved}", tiny_target())


def test_weights_that_may_not_be_read_are_not_called_missing(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise FileNotFoundError("No such file or directory")  # safetensors' words for a lack of permission

    monkeypatch.setattr(safetensors.torch, "load_file", refuse)
    with pytest.raises(CheckpointError, match="check who may read it"):
        load(f"dir:{saved}", tiny_target())


def test_an_eighth_of_a_float_is_a_float(saved: Path) -> None:
    path = saved / checkpoint.WEIGHTS
    tensors = safetensors.torch.load_file(path)
    narrow = tensors["fc.weight"].to(torch.float8_e4m3fn)
    safetensors.torch.save_file({**tensors, "fc.weight": narrow}, path)
    assert torch.equal(checkpoint.read(saved).tensors["fc.weight"].float(), narrow.float())


@pytest.mark.parametrize("key", ["num_layers", "intermediate_size", "num_heads", "head_dim"])
def test_sizes_beyond_all_machines_are_refused_before_anything_is_allocated(saved: Path, key: str) -> None:
    config = json.loads((saved / "config.json").read_text())
    config["drafter"][key] = 2**70
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=rf"{key}={2**70}, expected at most"):
        load(f"dir:{saved}", tiny_target())


def test_paths_that_lead_nowhere(tmp_path: Path, saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (saved / "config.json").unlink()
    (saved / "config.json").symlink_to("config.json")
    for address in (f"dir:{saved}", f"dir:{'a' * 5000}"):
        with pytest.raises(CheckpointError, match="cannot be read"):
            load(address, tiny_target())
        assert main(["show", address]) == 1
    assert main(["bench", "-s", "a" * 5000 + ".jsonl"]) == 1
    assert "Traceback" not in capsys.readouterr().err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved tiny target with its tokenizer."""
    tiny_model(layers=2).save_pretrained(tmp_path / "target")
    tiny_tokenizer().save_pretrained(tmp_path / "target")
    return tmp_path / "target"


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_hidden_layers", "x"), ("num_attention_heads", 0), ("vocab_size", 0)],
)
def test_a_target_with_a_wrong_config_is_named(folder: Path, key: str, value: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(DrafterzooError, match="cannot be loaded"):
        load_target(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_a_damaged_tokenizer_is_not_taken_for_none(folder: Path, content: str) -> None:
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(
        CheckpointError, match=r"its tokenizer \(tokenizer\.json, tokenizer_config\.json\) cannot be read"
    ):
        load_target(folder)
    assert load_target(folder, tokenizer=tiny_tokenizer()).tokenizer is not None


# -- results, runs, and the streams -----------------------------------------------------------------------------------


def test_what_a_run_killed_while_warming_up_leaves_is_no_result(tmp_path: Path) -> None:
    writer = ResultsWriter(tmp_path, {"of": "the first"})
    with pytest.raises(UsageError, match="another process is writing"):
        ResultsWriter(tmp_path, {"of": "the second"})
    assert "the first" in (tmp_path / "conditions.json").read_text()
    writer._file.close()  # as the kernel does for a killed process
    assert (tmp_path / ROUNDS).read_bytes() == b""
    with ResultsWriter(tmp_path, {"of": "the third"}):
        assert "the third" in (tmp_path / "conditions.json").read_text()
    assert not tmp_path.exists()


def test_results_whose_folder_is_taken_away_say_so(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    with pytest.raises(DiskError, match="cannot be written"), ResultsWriter(folder, {}) as writer:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        writer.finish({})


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_disk_that_is_full_is_said_once(tmp_path: Path) -> None:
    """Closing a file tries again to write what was refused: that must not bury the sentence."""
    counters = dict.fromkeys(("committed", "emitted", "accepted", "nodes", "forwards", "rows"), ())
    times = dict.fromkeys(("draft_s", "verify_s", "rest_s"), ())
    names = {"cell": "a", "drafter": "a", "budget": "", "prompt": "p", "category": "c"}
    numbers = dict.fromkeys(("turn", "repeat", "group", "prompt_tokens"), 0)
    record = Record(**names, **numbers, tokens=(1,), **counters, **times, prefill_s=0.0, decode_s=0.0)
    folder = tmp_path / "results"
    with pytest.raises(DiskError, match="No space left on device"), ResultsWriter(folder, {}) as writer:
        writer._file.close()
        writer._file = open("/dev/full", "a")  # noqa: SIM115
        writer.append(record)
    assert not folder.exists()


def test_a_run_whose_folder_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="choose another --out"), alone(tmp_path / "file" / "run"):
        pass


def test_brackets_in_a_path_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("into runs/[/red]", 1) as bar:
        bar.remark("[/red]")
    console.print("runs/[/red]")
    assert "runs/[/red]" in capsys.readouterr().err


def test_an_interruption_while_the_command_line_is_imported_is_no_traceback() -> None:
    code = (
        "import sys, types\n"
        "class Stop(types.ModuleType):\n"
        "    def __getattr__(self, name): raise KeyboardInterrupt\n"
        "sys.modules['cyclopts'] = Stop('cyclopts')\n"
        "from drafterzoo.cli import main\n"
        "sys.exit(main(['list']))"
    )
    root = Path(drafterzoo.__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "drafterzoo: interrupted.\n")


def test_an_answer_cut_short_ends_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    from drafterzoo.cli.generate import follow
    from drafterzoo.generation import Chunk

    def chunks() -> Any:
        yield Chunk(0, "Once upon", [], None, None)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follow(chunks(), tiny_target(layers=1), quiet=False, trees=False)
    assert capsys.readouterr().out == "Once upon\n"


def test_a_log_that_cannot_be_written_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from drafterzoo.training.trainer import Trainer

    def full(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    trainer = object.__new__(Trainer)
    trainer.folder, trainer.visited, trainer.trained_seconds = tmp_path, 0, 0.0
    monkeypatch.setattr("builtins.open", full)
    with pytest.raises(DataError, match=re.escape(str(tmp_path)) + r".*No space left on device.*goes on"):
        trainer._log({"step": 1})


@pytest.mark.parametrize(("finished", "status"), [(True, 0), (False, 130)])
def test_a_stopped_training_has_the_status_of_an_interruption(
    finished: bool, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise `train && bench` goes on with half a run."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('spec = "eagle3.1"\n[data]\nrollouts = "x"\n')
    folder = tmp_path / "a folder whose name is longer than any terminal is wide [bold]" / ("x" * 60)
    summary = {"finished": finished, "step": 3, "of": 9, "best": {"step": 1, "tau": 1.5}}
    monkeypatch.setattr(run, "train", lambda *args, **options: run.TrainResult(summary, folder))
    assert main(["train", str(recipe)]) == status
    assert f"'dir:{folder / 'best'}'" in capsys.readouterr().out  # whole, so that it can be copied
    assert main(["train", str(recipe), "--json"]) == status


def test_a_run_that_learnt_nothing_is_kept_to_its_last_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_target()
    monkeypatch.setattr(run, "load_target", lambda *args, **options: target)
    rows = [
        {"prompt_ids": [3, 4, 5], "response_ids": [6 + i] * 9, "split": "val" if i == 4 else "train"} for i in range(5)
    ]
    (tmp_path / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = {
        "spec": "eagle3.1",
        "data": {"rollouts": str(tmp_path / "rollouts.jsonl"), "features": "online", "pack": 12},
        "optimizer": {"lr": 1e-30},
        "run": {"epochs": 1.0},
        "evaluate": {"prompts": 1, "max_new_tokens": 8, "budget": "chain:1"},
    }
    with pytest.raises(DataError, match=r"learnt nothing.*the checkpoint is kept"):
        run.train(recipe, out=tmp_path / "run", quiet=True)
    state = torch.load(tmp_path / "run" / "last" / "state.pt", weights_only=True)
    assert state["step"] == 4 and checkpoint.read(tmp_path / "run" / "last").config["training"]["steps"] == 4
