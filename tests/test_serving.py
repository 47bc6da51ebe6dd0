"""convert and export: what is written is the same drafter, the command fits it, and what a server lacks is said."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import attrs
import pytest
import torch

import drafterzoo
from drafterzoo.budget import Budget
from drafterzoo.cli import main
from drafterzoo.composition import create, innermost
from drafterzoo.drafters.base import WEIGHTLESS, Drafter
from drafterzoo.errors import UsageError
from drafterzoo.formats.base import Contents
from drafterzoo.formats.files import read_files
from drafterzoo.formats.writing import write_layout
from drafterzoo.registry import DRAFTERS, FORMATS, parse_spec
from drafterzoo.serving import SERVERS, export
from drafterzoo.target import Target
from tests.test_invariants import build
from tests.tiny import tiny_target

PAIRS = [(server, name) for server, kind in SERVERS.items() for name in kind.reads]


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target()


def made(name: str, target: Target) -> Drafter:
    """A drafter that a server can have: with a vocabulary of its own and, of blocks, a token for a mask."""
    spec = parse_spec(name)
    options = attrs.asdict(DRAFTERS.get(spec.base).debug_config(target), recurse=False)
    torch.manual_seed(0)
    if "mask_token_id" in options:
        options |= {"mask_token_id": 5, "draft_vocab_size": {"dspark": target.vocab_size}.get(spec.base, 48)}
    drafter = create(spec, target, options)
    base = innermost(drafter)
    with torch.no_grad():  # what training begins at zero would hide what it does
        for parameter in base.parameters():
            if not parameter.any():
                parameter.normal_(std=0.3)
    if base.vocabulary is not None:
        base.set_vocabulary(torch.arange(target.vocab_size)[-len(base.vocabulary) :])
    return drafter.eval()


def drafted(drafter: Drafter) -> list[list[int]]:
    return drafterzoo.generate(drafter, [[5, 6, 7], [9]], budget=Budget.chain(3), max_new_tokens=12).tokens


@pytest.mark.parametrize(("server", "name"), PAIRS)
def test_what_a_server_gets_is_the_drafter(server: str, name: str, target: Target, tmp_path: Path) -> None:
    drafter, folder = made(name, target), tmp_path / "served"
    served = export(drafter, server, folder, Budget.chain(3))
    assert served.layout == SERVERS[server].reads[name][0] and served.folder == str(folder)
    assert [FORMATS.get(each).detect(read_files(folder)) for each in FORMATS].count(True) == 1
    again = drafterzoo.load(f"dir:{folder}", target)
    ours, theirs = attrs.asdict(drafter.config), attrs.asdict(again.config)
    whole = {"draft_vocab_size"} if served.layout in ("safeailab-eagle2", "zlab-dflash") else set()  # no part of one
    assert [key for key in ours if key not in {*WEIGHTLESS, *whole} and ours[key] != theirs[key]] == []
    own, found = drafter.tensors(), again.tensors()
    assert own.keys() - found.keys() <= ({"d2t", "t2d"} if whole else set())
    assert all(torch.equal(own[key], found[key]) for key in found)
    assert drafted(again) == drafted(drafter)
    words = shlex.split(served.command)
    assert str(folder) in served.command and target.name in words


@pytest.mark.parametrize(
    ("server", "name", "budget", "said"),
    [
        ("vllm", "eagle3.1", "chain:3", ['{"method": "eagle3", "model": "FOLDER", "num_speculative_tokens": 3}']),
        ("vllm", "hass", "chain:2", ['{"method": "eagle", "model": "FOLDER", "num_speculative_tokens": 2}']),
        ("vllm", "dflash", "chain:3", ['{"method": "dflash", "model": "FOLDER", "num_speculative_tokens": 3}']),
        ("sglang", "eagle3", "chain:3", ["--speculative-num-steps", "3", "--speculative-eagle-topk", "1"]),
        ("sglang", "eagle3", "chain:3", ["--speculative-num-draft-tokens", "4"]),
        ("sglang", "eagle3", "nodes=8,depth=4,grow=6,offer=5", ["--speculative-num-draft-tokens", "9"]),
        ("sglang", "eagle3", "nodes=8,depth=4,grow=6,offer=5", ["--speculative-eagle-topk", "5"]),
        ("sglang", "dflash", "chain:4", ["--speculative-num-draft-tokens", "5"]),
        ("sglang", "dspark", "chain:3", ["--speculative-dspark-block-size", "3"]),
    ],
)
def test_the_command_counts_as_the_server_does(
    server: str, name: str, budget: str, said: list[str], target: Target, tmp_path: Path
) -> None:
    served = export(made(name, target), server, tmp_path / "served", Budget.parse(budget))
    words = [word.replace(served.folder, "FOLDER") for word in shlex.split(served.command)]
    assert any(words[start : start + len(said)] == said for start in range(len(words))), words


def test_a_chain_is_no_longer_than_a_block(target: Target, tmp_path: Path) -> None:
    drafter = made("dflash", target)
    served = export(drafter, "vllm", tmp_path / "served", Budget.chain(12))
    assert f'"num_speculative_tokens": {drafter.config.proposals}' in served.command


@pytest.mark.parametrize(
    ("server", "name", "budget", "lost"),
    [
        ("vllm", "eagle3.1+pr", "8", ["+pr is left out", "No trees: vLLM drafts a chain of 5", "No coupled sampling"]),
        ("sglang", "hass+pr", "8", ["+pr is left out", "No coupled sampling"]),
        ("sglang", "dflash+carryover", "8", ["+carryover is left out", "No trees", "No coupled sampling"]),
        ("vllm", "eagle3", "chain:4,p_min=0.1", ["No early end of a draft", "No coupled sampling"]),
        ("sglang", "eagle3", "chain:4", ["No coupled sampling"]),
    ],
)
def test_what_a_server_lacks_is_said(
    server: str, name: str, budget: str, lost: list[str], target: Target, tmp_path: Path
) -> None:
    found = export(made(name, target), server, tmp_path / "served", Budget.parse(budget)).lost
    assert len(found) == len(lost) and all(line.startswith(wanted) for line, wanted in zip(found, lost, strict=True))


def test_who_has_no_server_is_refused(target: Target, tmp_path: Path) -> None:
    for name in set(DRAFTERS) - set(SERVERS["vllm"].reads):
        with pytest.raises(UsageError, match=rf"vLLM drafts with nothing like '{name}'; it has eagle2"):
            export(build(name, target), "vllm", tmp_path / "served")
    with pytest.raises(UsageError, match="unknown server 'llama'; there is vllm, sglang"):
        export(made("eagle3", target), "llama", tmp_path / "served")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_something_is_left_alone(target: Target, tmp_path: Path) -> None:
    drafter = made("eagle3", target)
    full = drafter.save_pretrained(tmp_path / "full")
    before = {file.name: file.read_bytes() for file in full.iterdir()}
    for place in (full, full / "config.json"):
        with pytest.raises(UsageError, match="is there already and not an empty folder; name a new one"):
            write_layout(drafter, place, "specforge-eagle3")
    assert {file.name: file.read_bytes() for file in full.iterdir()} == before
    (tmp_path / "empty").mkdir()
    assert (write_layout(drafter, tmp_path / "empty", "specforge-eagle3") / "config.json").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full"]


class Forgetful:
    """A layout that loses what it cannot hold, and says nothing."""

    name, about = "forgetful", "for tests"

    def __init__(self, **lost: object) -> None:
        self.lost, self.like = lost, FORMATS.get("specforge-eagle3")
        self.detect, self.translate = self.like.detect, self.like.translate

    def contents(self, drafter: Drafter) -> Contents:
        whole = self.like.contents(drafter)
        moved = {} if self.lost else {"fc.weight": whole.tensors["fc.weight"] + 1}
        return attrs.evolve(whole, config={**whole.config, **self.lost}, tensors={**whole.tensors, **moved})


@pytest.mark.parametrize(
    ("lost", "said"),
    [({"rms_norm_eps": 0.5}, "rms_norm_eps is 0.5 and was 1e-05"), ({}, "fc.weight holds other numbers")],
)
def test_a_layout_that_loses_something_is_found_out(
    lost: dict[str, object], said: str, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FORMATS, "get", lambda name, get=FORMATS.get: Forgetful(**lost) if name == "x" else get(name))
    with pytest.raises(UsageError, match=rf"the layout 'x' does not hold this drafter: read back, {said}"):
        write_layout(made("eagle3", target), tmp_path / "served", "x")
    assert list(tmp_path.iterdir()) == [], "nothing half-written"


def test_convert_there_and_back(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("drafterzoo.catalogue._target", lambda *_: target)
    made("eagle3.1", target).save_pretrained(tmp_path / "ours")
    there, back = tmp_path / "theirs", tmp_path / "back"
    assert main(["convert", f"dir:{tmp_path / 'ours'}", str(there), "--layout", "speculators-eagle3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "drafter": "eagle3.1", "from": "native", "to": "speculators-eagle3", "folder": str(there),
    }  # fmt: skip
    assert main(["convert", f"dir:{there}", str(back), "--target", "tiny"]) == 0
    said = capsys.readouterr()
    assert said.out.strip() == str(back) and "speculators-eagle3 -> native" in said.err
    one, other = (drafterzoo.load(f"dir:{folder}", target).tensors() for folder in (tmp_path / "ours", back))
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_export_says_the_command_alone_on_stdout(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("drafterzoo.catalogue._target", lambda *_: target)
    made("eagle3.1+pr", target).save_pretrained(tmp_path / "ours")
    words = ["export", f"dir:{tmp_path / 'ours'}", str(tmp_path / "served"), "--for", "vllm", "--budget", "chain:3"]
    assert main(words) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"vllm serve {target.name} --speculative-config") and said.out.count("\n") == 1
    assert "not on vllm: +pr is left out" in said.err
    assert main(words) == 2
    assert "is there already" in capsys.readouterr().err
    assert main([*words[:2], str(tmp_path / "json"), *words[3:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["layout"] == "speculators-eagle3"


def test_what_is_better_known_is_one_line(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("drafterzoo.catalogue._target", lambda *_: target)
    made("hass", target).save_pretrained(tmp_path / "ours")
    assert main(["export", f"dir:{tmp_path / 'ours'}", str(tmp_path / "served"), "--for", "sglang"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert [
        line for line in said if line.startswith("drafterzoo: note: hass: safeailab-eagle2 has no draft vocabulary")
    ]
    assert not [line for line in said if "UserWarning" in line or "write_files" in line]
