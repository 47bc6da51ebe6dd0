"""Pulling and pushing checkpoints: one folder in, one commit out.

Knows huggingface_hub; nothing of drafters' insides, of what a folder must hold (staging.py) or of what a card says
(cards.py). Tokens are huggingface_hub's own business: none is read, kept or shown.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from huggingface_hub import CommitOperationAdd, HfApi, constants, snapshot_download
from huggingface_hub.errors import RevisionNotFoundError

from drafterzoo.disk import writing
from drafterzoo.errors import CheckpointError, UsageError, suggest
from drafterzoo.hub_errors import hub_errors

if TYPE_CHECKING:
    from drafterzoo.cards import Usage
    from drafterzoo.drafters.base import Drafter
    from drafterzoo.target.target import Target

WANTED = ("*.json", "*.safetensors", "*.md")
PICKLED = "pytorch_model*.bin"  # taken where there is no safetensors file
BELOW = "*/*"  # what lies in folders is no part of a checkpoint


# -- pulling -------------------------------------------------------------------------------------------------------


def pull(repo_id: str, *, revision: str | None = None) -> Path:
    """Download a repository's checkpoint and return its folder in the Hub's cache; what is there is not fetched again.

    Raises CheckpointError saying what to do, UsageError for what is no repository's name.
    """
    with hub_errors(repo_id, revision):
        folder = Path(snapshot_download(repo_id, revision=revision, allow_patterns=[*WANTED], ignore_patterns=[BELOW]))
        if not any(folder.glob("*.safetensors")):  # at the very commit, whatever a branch names by now
            both = [*WANTED, PICKLED]
            snapshot_download(repo_id, revision=folder.name, allow_patterns=both, ignore_patterns=[BELOW])
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"hub:{repo_id}: has no config.json{f' at {revision}' if revision else ''}, so it holds no checkpoint; "
            f"check the name and the revision."
        )
    return folder


def pull_to(place: Path, repo_id: str, *, revision: str | None = None) -> Path:
    """Pull, and copy the checkpoint to a folder that is not there yet, whole or not at all.

    Raises what `pull` does, UsageError for a folder that holds something, DiskError for one that cannot be made.
    """
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UsageError(f"{place} is there already and holds something; name another folder, or take it away first.")
    folder = pull(repo_id, revision=revision)
    with writing(str(place), "free some space or name another folder with --to"):
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}.") as beside:
            copy = Path(beside) / place.name
            shutil.copytree(folder, copy)  # of what the cache's links lead to
            os.replace(copy, place)
    return place


# -- pushing -------------------------------------------------------------------------------------------------------


def _several(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(names)


@attrs.frozen
class Push:
    """How a checkpoint goes to the Hub.

    private: of a new repository; True is refused where there is a public one. revision: the branch, made if need be.
    create_pr: open a pull request instead, in a repository that is there. tag: a new name for the commit. message: the
    commit's. results: a folder of `bench` or `evaluate` for the card; licence: as the Hub spells it, for the card.
    servers: whose layouts go, too, each in a folder of its name (serving.SERVERS). dry_run: send nothing.
    """

    private: bool | None = None
    revision: str | None = None
    create_pr: bool = False
    tag: str | None = None
    message: str | None = None
    results: Path | None = attrs.field(default=None, converter=attrs.converters.optional(Path))
    licence: str | None = None
    servers: tuple[str, ...] = attrs.field(default=(), converter=_several)
    dry_run: bool = False

    def __attrs_post_init__(self) -> None:
        for name in ("revision", "tag"):
            if self.create_pr and getattr(self, name) is not None:
                raise UsageError(
                    f"push: a pull request is for the main branch and becomes a commit when it is merged, so it takes "
                    f"no {name}; leave out {name} or create_pr."
                )


@attrs.frozen
class Pushed:
    """What went, or would go: files with their bytes, what of the folder stays, and where it lies now.

    card: where it comes from. url, commit and pull_request are None where nothing was sent, or none was asked for.
    """

    repo_id: str
    files: dict[str, int]
    left_out: list[str]
    card: str
    url: str | None = None
    commit: str | None = None
    pull_request: str | None = None
    tag: str | None = None


def push_folder(folder: Path, repo_id: str, how: Push, target: Target | str | None = None) -> Pushed:
    """Upload a checkpoint's folder in one commit, making the repository and the branch if need be.

    Nothing is sent unless the folder loads back. A card is written where it has none. target: the checkpoint's target,
    as `load` takes it.
    """
    from drafterzoo.cards import write_card
    from drafterzoo.staging import CARD, loads_back, sizes, staged, staying

    with staged(folder) as place:
        kept = (place / CARD).exists()
        if kept and how.results is not None:
            raise UsageError(f"{folder / CARD} is kept as it is, so there is no place for results; take it away first.")
        drafter = loads_back(place, target)
        usage = [_served(drafter, server, place, repo_id) for server in how.servers]
        if not kept:
            write_card(place, drafter, repo_id, results=how.results, licence=how.licence, servers=usage)
        card = f"{folder / CARD}, as it is" if kept else "written from the config"
        ready = Pushed(repo_id, sizes(place), staying(folder), card)
        return ready if how.dry_run else _send(place, ready, how, drafter.spec)


def _served(drafter: Drafter, server: str, place: Path, repo_id: str) -> Usage:
    """Write a server's layout beside the native files; returns how to start that server, for the card."""
    from drafterzoo.cards import Usage, target_name
    from drafterzoo.serving import SERVERS, described, export

    export(drafter, server, place / server)
    name = repo_id.rpartition("/")[2]
    found = described(drafter, server, target_name(drafter.manifest()), f"{name}/{server}")
    fetched = f"hf download {repo_id} --include '{server}/*' --local-dir {name}"
    return Usage(SERVERS[server].name, f"{fetched}\n    {found.command}", " ".join(found.lost))


def _send(place: Path, ready: Pushed, how: Push, spec: str) -> Pushed:
    api, repo_id = HfApi(), ready.repo_id
    with hub_errors(repo_id, how.revision):
        parent = _parent(api, repo_id, how)
        commit = api.create_commit(
            repo_id,
            [CommitOperationAdd(path, place / path) for path in ready.files],
            commit_message=how.message or f"{spec} checkpoint",
            revision=how.revision,
            parent_commit=parent,
            create_pr=how.create_pr,
        )
        if how.tag is not None:
            api.create_tag(repo_id, tag=how.tag, revision=commit.oid)
    return attrs.evolve(ready, url=str(commit.commit_url), commit=commit.oid, pull_request=commit.pr_url, tag=how.tag)


def _parent(api: HfApi, repo_id: str, how: Push) -> str:
    """The commit that this one is to follow, and no other: whoever pushes meanwhile is not overwritten.

    Makes the repository and the branch where there is none.
    """
    if not how.create_pr:
        api.create_repo(repo_id, private=how.private, exist_ok=True)
    main = api.model_info(repo_id)
    if how.private and not main.private:
        raise UsageError(f"hub:{repo_id} is public already; make it private there, or push to another repository.")
    if how.tag is not None and how.tag in [tag.name for tag in api.list_repo_refs(repo_id).tags]:
        raise UsageError(f"hub:{repo_id} has a tag {how.tag!r} already; choose another, or delete it there.")
    head = main
    if how.revision not in (None, constants.DEFAULT_REVISION):
        try:
            head = api.model_info(repo_id, revision=how.revision)
        except RevisionNotFoundError:
            api.create_branch(repo_id, branch=str(how.revision))
    return str(head.sha)


def push(drafter: Drafter, repo_id: str, **options: Any) -> Pushed:
    """Upload a drafter's native checkpoint. options: fields of Push. Raises UsageError for one that it has not."""
    known = [field.name for field in attrs.fields(Push)]
    for name in options:
        if name not in known:
            raise UsageError(f"push: no option {name!r}{suggest(name, known)}; the options are {', '.join(known)}.")
    how = Push(**options)
    with tempfile.TemporaryDirectory() as folder:
        return push_folder(drafter.save_pretrained(folder), repo_id, how, drafter.target)
