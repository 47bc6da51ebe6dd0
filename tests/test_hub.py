"""Pulling and pushing through a real huggingface_hub client and a small Hub on loopback (hub_server.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from huggingface_hub import HfApi, RepoFile, constants, snapshot_download
from huggingface_hub.utils import close_session

import drafterzoo
from drafterzoo import catalogue, hub
from drafterzoo.cli import main
from drafterzoo.drafters.base import Drafter
from drafterzoo.drafters.eagle31 import Eagle31
from drafterzoo.errors import CheckpointError, DiskError, DrafterzooError, UsageError
from drafterzoo.target import Target
from tests.hub_server import serving
from tests.hub_state import TOKENS, Hub
from tests.tiny import tiny_target

# huggingface_hub hands files to its HTTP library in a way that the library would rather not see
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

ALICE, BOB = TOKENS
NAME = "alice/eagle3.1-tiny"
CONFIG, WEIGHTS = b'{"library_name": "somebody"}', b"weights" * 2000


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub that this process's client talks to, as alice, with an empty cache of its own."""
    with serving() as running:
        for name, value in {
            "ENDPOINT": running.endpoint,
            "HUGGINGFACE_CO_URL_TEMPLATE": running.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "HF_TOKEN_PATH": str(tmp_path / "token"),
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_OFFLINE": False,
        }.items():
            monkeypatch.setattr(constants, name, value)
        be(monkeypatch, ALICE)
        yield running


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    """One HTTP client for all tests: making one reads every certificate of the machine."""
    yield
    close_session()


def be(monkeypatch: pytest.MonkeyPatch, token: str | None) -> None:
    """Be the owner of a token; nobody without one."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody wait between two tries."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("llama")


@pytest.fixture(scope="module")
def drafter(target: Target) -> Drafter:
    torch.manual_seed(0)
    return Eagle31(Eagle31.debug_config(target), target)


@pytest.fixture
def folder(drafter: Drafter, tmp_path: Path) -> Path:
    return drafter.save_pretrained(tmp_path / "best")


@pytest.fixture
def loading(monkeypatch: pytest.MonkeyPatch, target: Target) -> None:
    """Let the command line, which takes targets by name, find the tiny one."""
    monkeypatch.setattr("drafterzoo.target.load_target", lambda *args, **options: target)


def run(*words: object) -> int:
    return main([str(word) for word in words])


def said(error: pytest.ExceptionInfo[DrafterzooError]) -> str:
    text = str(error.value)
    assert "\n" not in text and text.endswith("."), "an error is one sentence"
    return text


# -- pulling ---------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_pulled_once(server: Hub) -> None:
    held = {"config.json": CONFIG, "model.safetensors": WEIGHTS, "README.md": b"# card"}
    server.add(NAME, {**held, "optimizer.pt": b"1", "pytorch_model.bin": b"2", "step-1/model.safetensors": b"3"})
    folder = hub.pull(NAME)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == held, "no more than a checkpoint needs"
    server.requests.clear()
    assert hub.pull(NAME) == folder
    assert server.requests == [("GET", f"/api/models/{NAME}/revision/main")], "asked for the newest commit alone"
    assert not server.tokens_at_storage, "the token goes to the Hub alone"


@pytest.mark.parametrize(
    ("files", "pulled"),
    [
        (["model.safetensors", "pytorch_model.bin"], {"model.safetensors"}),
        (["pytorch_model.bin"], {"pytorch_model.bin"}),
        (
            ["model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
            {"model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"},
        ),
        (
            ["pytorch_model.bin.index.json", "pytorch_model-00001-of-00001.bin"],
            {"pytorch_model.bin.index.json", "pytorch_model-00001-of-00001.bin"},
        ),
    ],
)
def test_pickled_weights_are_taken_where_there_are_no_others(server: Hub, files: list[str], pulled: set[str]) -> None:
    server.add(NAME, {name: b"{}" for name in ["config.json", "training_args.bin", *files]})
    assert {path.name for path in hub.pull(NAME).iterdir()} == {"config.json", *pulled}
    server.requests.clear()
    hub.pull(NAME)
    assert len(server.requests) == 1


def test_every_revision_is_what_it_was(server: Hub) -> None:
    repo = server.add(NAME, {"config.json": b"1", "model.safetensors": b"1"})
    first = repo.refs["refs/heads/main"]
    HfApi().create_tag(NAME, tag="v1")
    HfApi().create_branch(NAME, branch="next")
    HfApi().upload_file(path_or_fileobj=b"2", path_in_repo="config.json", repo_id=NAME, revision="next")
    texts = {at: (hub.pull(NAME, revision=at) / "config.json").read_text() for at in (None, "v1", first, "next")}
    assert texts == {None: "1", "v1": "1", first: "1", "next": "2"}
    assert (hub.pull(NAME, revision="next") / "model.safetensors").read_text() == "1"


@pytest.mark.parametrize(
    ("token", "name", "revision", "about", "words"),
    [
        (None, "alice/private", None, {"private": True}, "no such repository, or it is private and you are not logged"),
        (BOB, "alice/private", None, {"private": True}, "check the name or log in with `hf auth login`"),
        ("hf_wrong", "alice/private", None, {"private": True}, "does not take your token; log in with `hf auth login`"),
        ("hf_wrong", "alice/open", None, {}, "does not take your token"),
        ("hf_\N{SNOWMAN}", "alice/open", None, {}, "your token holds a character that no token has"),
        (None, "alice/nowhere", None, {}, "hub:alice/nowhere: no such repository"),
        (None, "alice/open", "v9", {}, "hub:alice/open: has no revision 'v9'"),
        (BOB, "alice/gated", None, {"gated": True}, "its owner wants you to accept terms first"),
        (None, "alice/gated", None, {"gated": True}, "on the page of alice/gated on the Hub, and log in"),
        (None, "alice/empty", None, {}, "has no config.json, so it holds no checkpoint"),
    ],
)
def test_what_cannot_be_pulled_is_a_sentence(
    server: Hub,
    monkeypatch: pytest.MonkeyPatch,
    token: str | None,
    name: str,
    revision: str | None,
    about: dict[str, bool],
    words: str,
) -> None:
    files = {"notes.txt": b""} if name.endswith("empty") else {"config.json": CONFIG, "model.safetensors": WEIGHTS}
    if not name.endswith("nowhere"):
        server.add(name, files, **about)
    be(monkeypatch, token)
    with pytest.raises(CheckpointError) as caught:
        hub.pull(name, revision=revision)
    assert words in said(caught) and "hf_" not in said(caught)


def test_its_owner_pulls_what_is_private(server: Hub) -> None:
    server.add(NAME, {"config.json": CONFIG, "model.safetensors": WEIGHTS}, private=True, gated=True)
    assert (hub.pull(NAME) / "model.safetensors").read_bytes() == WEIGHTS
    assert not server.tokens_at_storage


@pytest.mark.parametrize("way", ["HF_HUB_OFFLINE", "no Hub"])
def test_without_a_network_what_is_in_the_cache_is_found(
    server: Hub, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    server.add(NAME, {"config.json": CONFIG, "pytorch_model.bin": WEIGHTS})
    warm = hub.pull(NAME)
    server.requests.clear()
    if way == "HF_HUB_OFFLINE":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    else:
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert hub.pull(NAME) == warm and (warm / "pytorch_model.bin").read_bytes() == WEIGHTS
    reason = "HF_HUB_OFFLINE is set" if way == "HF_HUB_OFFLINE" else "the Hub cannot be reached"
    for other, revision in (("alice/other", None), (NAME, "v9")):
        with pytest.raises(CheckpointError) as caught:
            hub.pull(other, revision=revision)
        assert reason in said(caught) and "load 'dir:path'" in said(caught)
    assert not server.requests


def test_a_download_that_breaks_off_goes_on_where_it_was(server: Hub, at_once: None) -> None:
    server.add(NAME, {"config.json": CONFIG, "model.safetensors": WEIGHTS})
    server.cut_downloads = 2
    assert (hub.pull(NAME) / "model.safetensors").read_bytes() == WEIGHTS
    assert server.cut_downloads == 0


def test_a_download_that_keeps_breaking_off_leaves_a_clean_cache(
    server: Hub, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(NAME, {"config.json": CONFIG, "model.safetensors": WEIGHTS})
    server.cut_downloads = 10**6
    with pytest.raises(CheckpointError) as caught:
        hub.pull(NAME)
    assert "the connection broke off" in said(caught)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match="not all of it is in the cache"):
        hub.pull(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    server.cut_downloads = 0
    folder = hub.pull(NAME)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == server.files(NAME)


def test_pulled_to_a_folder_it_is_there_whole_or_not_at_all(server: Hub, tmp_path: Path, at_once: None) -> None:
    server.add(NAME, {"config.json": CONFIG, "model.safetensors": WEIGHTS})
    place = tmp_path / "here" / "copy"
    server.cut_downloads = 10**6
    with pytest.raises(CheckpointError):
        hub.pull_to(place, NAME)
    assert not place.exists()
    server.cut_downloads = 0
    assert hub.pull_to(place, NAME) == place
    assert {path.name: path.read_bytes() for path in place.iterdir()} == server.files(NAME)
    assert not any(path.is_symlink() for path in place.iterdir()) and list(place.parent.iterdir()) == [place]
    with pytest.raises(UsageError, match="is there already and holds something"):
        hub.pull_to(place, NAME)
    with pytest.raises(DiskError, match="name another folder with --to"):
        hub.pull_to(place / "config.json" / "below", NAME)


# -- pushing ---------------------------------------------------------------------------------------------------------


def test_pushed_pulled_and_loaded_it_is_the_same_drafter(server: Hub, drafter: Drafter, target: Target) -> None:
    sent = drafter.push_to_hub(NAME, message="the first", private=True, tag="v1")
    repo = server.repos[NAME]
    assert repo.private and [commit.title for commit in repo.commits.values()] == ["initial commit", "the first"]
    assert sent.commit == repo.refs["refs/heads/main"] == repo.refs["refs/tags/v1"] and sent.tag == "v1"
    assert sent.url == f"{server.endpoint}/{NAME}/commit/{sent.commit}"
    assert sent.files == {path: len(data) for path, data in server.files(NAME).items() if path != ".gitattributes"}
    assert set(sent.files) == {"config.json", "model.safetensors", "README.md"}
    again = drafterzoo.load(f"hub:{NAME}@v1", target)
    before, after = drafter.tensors(), again.tensors()
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    prompts = [[5, 6, 7], [9, 3]]
    one, other = (drafterzoo.generate(d, prompts, max_new_tokens=8) for d in (drafter, again))
    assert one.tokens == other.tokens and one.tau == other.tau
    assert one.accepted_per_depth == other.accepted_per_depth, "the same drafts"


def test_the_same_again_is_no_new_commit(server: Hub, folder: Path, target: Target) -> None:
    first = hub.push_folder(folder, NAME, hub.Push(), target)
    assert hub.push_folder(folder, NAME, hub.Push(), target).commit == first.commit
    assert len(server.repos[NAME].commits) == 2


def test_a_branch_is_made_and_pushed_to(server: Hub, folder: Path, target: Target) -> None:
    server.add(NAME, {"notes.txt": b"kept"})
    before = server.files(NAME)
    for _ in range(2):
        hub.push_folder(folder, NAME, hub.Push(revision="next"), target)
    assert server.files(NAME) == before and {"notes.txt", "config.json"} < set(server.files(NAME, "next"))


def test_a_pull_request_is_opened_in_somebody_elses_repository(
    server: Hub, folder: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(NAME, {"notes.txt": b"kept"})
    be(monkeypatch, BOB)
    sent = hub.push_folder(folder, NAME, hub.Push(create_pr=True), target)
    assert sent.pull_request == f"{server.endpoint}/{NAME}/discussions/1"
    assert set(server.files(NAME)) == {"notes.txt"} and "config.json" in server.files(NAME, "refs/pr/1")
    with pytest.raises(CheckpointError) as caught:
        hub.push_folder(folder, NAME, hub.Push(), target)
    assert "the Hub answered 403" in said(caught) and "a token that may write" in said(caught)
    with pytest.raises(CheckpointError, match="no such repository"):
        hub.push_folder(folder, "alice/none", hub.Push(create_pr=True), target)
    with pytest.raises(UsageError, match="takes no tag"):
        hub.Push(create_pr=True, tag="v1")


@pytest.mark.parametrize(
    ("token", "options", "error", "words"),
    [
        (None, {}, CheckpointError, "log in with `hf auth login`"),
        ("hf_wrong", {}, CheckpointError, "the Hub answered 401 (Invalid credentials in Authorization header)"),
        (ALICE, {"private": True}, UsageError, "is public already; make it private there"),
        (ALICE, {"tag": "v1"}, UsageError, "has a tag 'v1' already"),
    ],
)
def test_what_may_not_be_pushed_changes_nothing(
    server: Hub,
    folder: Path,
    target: Target,
    monkeypatch: pytest.MonkeyPatch,
    token: str | None,
    options: dict[str, Any],
    error: type[DrafterzooError],
    words: str,
) -> None:
    server.add(NAME, {"notes.txt": b"kept"})
    HfApi().create_tag(NAME, tag="v1")
    be(monkeypatch, token)
    with pytest.raises(error) as caught:
        hub.push_folder(folder, NAME, hub.Push(**options), target)
    assert words in said(caught)
    assert len(server.repos[NAME].commits) == 1 and not server.objects


@pytest.mark.parametrize("revision", [None, "next"])
def test_of_two_who_push_at_once_the_later_is_told(
    server: Hub, folder: Path, drafter: Drafter, target: Target, revision: str | None
) -> None:
    hub.push_folder(folder, NAME, hub.Push(revision=revision), target)
    both = threading.Barrier(2, timeout=20)
    server.before_commit = both.wait  # by then each knows the commit that it goes on from
    outcomes: list[hub.Pushed | CheckpointError] = []

    def one(number: int) -> None:
        own = drafter.save_pretrained(folder.parent / f"best-{number}")
        (own / "README.md").write_text(f"# card {number}\n")
        try:
            outcomes.append(hub.push_folder(own, NAME, hub.Push(revision=revision), target))
        except CheckpointError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (sent,) = [outcome for outcome in outcomes if isinstance(outcome, hub.Pushed)]
    (late,) = [outcome for outcome in outcomes if isinstance(outcome, CheckpointError)]
    assert "somebody else has pushed there meanwhile, and nothing of yours was added" in str(late)
    assert server.repos[NAME].refs[f"refs/heads/{revision or 'main'}"] == sent.commit


def test_an_upload_that_breaks_off_is_tried_again(server: Hub, folder: Path, target: Target, at_once: None) -> None:
    server.cut_uploads = 2
    hub.push_folder(folder, NAME, hub.Push(), target)
    assert server.files(NAME)["model.safetensors"] == (folder / "model.safetensors").read_bytes()


def test_an_upload_that_keeps_breaking_off_adds_nothing(
    server: Hub, folder: Path, target: Target, at_once: None
) -> None:
    server.cut_uploads = 10**6
    with pytest.raises(CheckpointError) as caught:
        hub.push_folder(folder, NAME, hub.Push(), target)
    assert "the connection broke off" in said(caught) and "nothing was changed" in said(caught)
    assert set(server.files(NAME)) == {".gitattributes"} and not server.objects
    server.cut_uploads = 0
    hub.push_folder(folder, NAME, hub.Push(), target)
    assert server.files(NAME)["config.json"] == (folder / "config.json").read_bytes()


def test_nothing_is_sent_of_what_does_not_load_back(server: Hub, folder: Path, target: Target) -> None:
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    lost = min(tensors)
    safetensors.torch.save_file(
        {key: value for key, value in tensors.items() if key != lost}, folder / "model.safetensors"
    )
    with pytest.raises(CheckpointError, match=f"tensor '{lost}' is missing"):
        hub.push_folder(folder, NAME, hub.Push(), target)
    assert not server.requests


def test_nothing_is_sent_of_what_comes_back_changed(
    server: Hub, folder: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Eagle31.tensors
    monkeypatch.setattr(Eagle31, "tensors", lambda self: {key: value * 2 for key, value in honest(self).items()})
    with pytest.raises(CheckpointError, match="comes back other than it was saved"):
        hub.push_folder(folder, NAME, hub.Push(), target)
    assert not server.requests


def test_a_dry_run_says_what_would_go_and_sends_nothing(server: Hub, folder: Path, target: Target) -> None:
    (folder / "optimizer.pt").write_bytes(b"1")
    (folder / "LICENSE").write_bytes(b"free")
    would = hub.push_folder(folder, NAME, hub.Push(dry_run=True), target)
    assert not server.requests and would.url is None and would.commit is None
    assert would.left_out == ["optimizer.pt"] and not (folder / "README.md").exists()
    sent = hub.push_folder(folder, NAME, hub.Push(), target)
    assert sent.files == would.files and would.files["LICENSE"] == 4


def test_servers_layouts_go_beside_it_and_the_card_says_how_to_start_them(
    server: Hub, folder: Path, target: Target, tmp_path: Path
) -> None:
    sent = hub.push_folder(folder, NAME, hub.Push(servers=["vllm", "sglang"]), target)
    assert {path.partition("/")[0] for path in sent.files if "/" in path} == {"vllm", "sglang"}
    theirs = Path(snapshot_download(NAME, local_dir=tmp_path / "all"))
    card = (theirs / "README.md").read_text()
    for name, command in (("vLLM", "vllm serve"), ("SGLang", "python -m sglang.launch_server")):
        part = card.partition(f"### {name}")[2].partition("###")[0]
        short, where = NAME.rpartition("/")[2], name.lower()
        assert command in part and f"hf download {NAME} --include '{where}/*' --local-dir {short}" in part
        assert f"{short}/{where}" in part.partition(command)[2] and "No coupled sampling" in part
        assert str(tmp_path) not in part
        again = drafterzoo.load(f"dir:{theirs / where}", target)
        own = drafterzoo.load(f"dir:{folder}", target).tensors()
        assert all(torch.equal(own[key].float(), value.float()) for key, value in again.tensors().items())
    assert [path.name for path in hub.pull(NAME).iterdir() if path.is_dir()] == [], "pulled, it is the checkpoint alone"
    with pytest.raises(UsageError, match="unknown server 'llama'"):
        hub.push_folder(folder, NAME, hub.Push(servers=["llama"]), target)


def test_other_layouts_are_not_pushed(server: Hub, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="not a drafterzoo checkpoint, and no other is pushed"):
        hub.push_folder(tmp_path, NAME, hub.Push())
    with pytest.raises(CheckpointError, match="no such folder"):
        hub.push_folder(tmp_path / "nowhere", NAME, hub.Push())
    assert not server.requests


def test_options_are_checked(drafter: Drafter) -> None:
    with pytest.raises(UsageError, match=r"no option 'privat' \(did you mean 'private'\?\)"):
        drafter.push_to_hub(NAME, privat=True)


def test_what_else_the_client_may_ask_is_answered(server: Hub) -> None:
    """The rest of the interface, so that the server may be trusted where later tests lean on it."""
    api = HfApi()
    api.create_repo(NAME, private=False)
    api.upload_file(path_or_fileobj=b"1", path_in_repo="notes/a.txt", repo_id=NAME, commit_message="notes")
    api.upload_file(path_or_fileobj=b"2", path_in_repo="b.txt", repo_id=NAME)
    assert api.whoami()["name"] == "alice" and [model.id for model in api.list_models(author="alice")] == [NAME]
    assert [commit.title for commit in api.list_repo_commits(NAME)][1:] == ["notes", "initial commit"]
    (entry,) = api.get_paths_info(NAME, ["b.txt", "c.txt"])
    assert isinstance(entry, RepoFile) and (entry.path, entry.size) == ("b.txt", 1)
    api.delete_file("b.txt", NAME)
    api.delete_folder("notes", NAME)
    assert set(api.list_repo_files(NAME)) == {".gitattributes"}
    api.update_repo_settings(NAME, private=True, gated="manual")
    assert server.repos[NAME].private and server.repos[NAME].gated
    api.delete_repo(NAME)
    assert not server.repos


@pytest.mark.slow
def test_a_shipped_checkpoint_drafts_the_same_after_its_way_through_the_hub(server: Hub) -> None:
    before = drafterzoo.load("hass+pr")
    before.push_to_hub("alice/hass-pr")
    after = drafterzoo.load("hub:alice/hass-pr", before.target)
    prompts = ["Explain rainbows.", "Write a haiku about rain."]
    one, other = (drafterzoo.generate(drafter, prompts, max_new_tokens=48) for drafter in (before, after))
    assert one.texts == other.texts and one.tau == other.tau > 1.5
    assert one.accepted_per_depth == other.accepted_per_depth


# -- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [ALICE, "hf_wrong_secret", "hf_\0_secret", "hf_\N{SNOWMAN}_secret"])
def test_a_token_is_in_no_output(
    server: Hub,
    folder: Path,
    loading: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    at_once: None,
    token: str,
) -> None:
    server.add("bob/taken", {"config.json": CONFIG}, private=True)
    be(monkeypatch, None)
    Path(constants.HF_TOKEN_PATH).write_text(token, encoding="utf-8")  # where `hf auth login` keeps it
    if "\0" in token:
        with pytest.raises(Exception, match=r"Illegal header value.*_secret"):
            HfApi().model_info("bob/taken")  # what a library says of it shows it
    with pytest.raises(DrafterzooError) as caught:
        hub.pull("bob/taken")
    assert "_secret" not in "".join(traceback.format_exception(caught.value))
    caplog.set_level("INFO")
    server.cut_uploads = 1
    for words in (["push", folder, NAME], ["push", folder, "bob/taken"], ["pull", "bob/taken"], ["pull", "bob/none"]):
        run(*words)
    shown = capfd.readouterr()
    text = shown.out + shown.err + caplog.text
    assert "drafterzoo: hub:bob/taken: " in text and "drafterzoo: hub:bob/none: " in text, "something was said"
    assert token not in text and "_secret" not in text and "Bearer" not in text


# -- the command line ------------------------------------------------------------------------------------------------


def test_the_verbs(
    server: Hub, folder: Path, loading: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("push", folder, NAME, "--private", "--tag", "v1", "--json") == 0
    sent = json.loads(capsys.readouterr().out)
    assert sent["commit"] == server.repos[NAME].refs["refs/tags/v1"] and server.repos[NAME].private
    assert run("pull", f"hub:{NAME}@v1", "--json") == 0
    pulled = json.loads(capsys.readouterr().out)
    assert (pulled["repo_id"], pulled["revision"], pulled["files"]) == (NAME, "v1", sent["files"])
    assert run("pull", NAME, "--to", tmp_path / "copy") == 0
    shown = capsys.readouterr()
    assert shown.out.endswith(f"{tmp_path / 'copy'}\n") and f"load it with 'hub:{NAME}'" in shown.err
    assert run("push", f"dir:{folder}", NAME, "--dry-run") == 0
    shown = capsys.readouterr()
    assert "MB  model.safetensors" in shown.out and "nothing was sent" in shown.err
    assert run("show", f"hub:{NAME}(packed_dtype='float32')", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["config"]["drafter"]["packed_dtype"] == "float32" and facts["name"].startswith("hub:")


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        (["pull", "dir:here"], 2, "'dir:here' is no address on the Hub"),
        (["pull", "hub:alice/x@"], 2, "'hub:alice/x@' is no address on the Hub"),
        (["pull", "bad name"], 2, "not the name of a repository"),
        (["pull", "alice/nowhere"], 1, "no such repository"),
        (["pull"], 2, "see 'drafterzoo pull --help'"),
        (["push", "nowhere", NAME], 1, "nowhere: no such folder"),
        (["push", "FOLDER", "bad name"], 2, "not the name of a repository"),
        (["push", "FOLDER", NAME, "--create-pr", "--revision", "next"], 2, "takes no revision"),
        (["push", "FOLDER", NAME, "--results", "nowhere"], 2, "nowhere is not a folder"),
    ],
)
def test_mistakes_are_one_line_and_a_status(
    server: Hub,
    folder: Path,
    loading: None,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    status: int,
    error: str,
) -> None:
    assert run(*(folder if word == "FOLDER" else word for word in words)) == status
    shown = capsys.readouterr()
    assert error in shown.err and shown.err.startswith("drafterzoo: ") and shown.err.count("\n") == 1
    assert not shown.out and not server.repos


def test_the_hub_is_told_by_the_environment(server: Hub, tmp_path: Path) -> None:
    server.add(NAME, {"config.json": CONFIG, "model.safetensors": WEIGHTS}, private=True)
    told = {"HF_ENDPOINT": server.endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "drafterzoo", "pull", NAME, "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, **told, "HF_TOKEN": ALICE},
    )
    assert done.returncode == 0, done.stderr
    folder = Path(json.loads(done.stdout)["folder"])
    assert folder.is_relative_to(tmp_path / "home") and (folder / "model.safetensors").read_bytes() == WEIGHTS


def test_two_revisions_are_one_too_many() -> None:
    assert catalogue.on_hub("hub:a/b@v1", "v1") == ("a/b", "v1") == catalogue.on_hub("a/b", "v1")
    with pytest.raises(UsageError, match="names another revision than revision='v2'"):
        catalogue.on_hub("hub:a/b@v1", "v2")
