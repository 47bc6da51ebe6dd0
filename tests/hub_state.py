"""What the small Hub of hub_server.py holds: repositories, commits, refs, LFS objects, and how it is to misbehave.

Knows git's and LFS's names for content; nothing of HTTP.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable

import attrs

TOKENS = {"hf_alice_secret": "alice", "hf_bob_secret": "bob"}
LARGE = 4096  # bytes: what is larger, and every safetensors or bin file, is kept as an LFS object
DATE = "2026-01-01T00:00:00.000Z"


@attrs.frozen
class Blob:
    """A file's content. Its oid is what the Hub shows of it: git's own sha1, or the sha256 of an LFS object."""

    data: bytes
    lfs: bool

    @property
    def oid(self) -> str:
        if self.lfs:
            return hashlib.sha256(self.data).hexdigest()
        return hashlib.sha1(f"blob {len(self.data)}\0".encode() + self.data).hexdigest()


@attrs.frozen
class Commit:
    oid: str
    parent: str | None
    title: str
    files: dict[str, Blob]


@attrs.define
class Repo:
    owner: str
    private: bool = False
    gated: bool = False
    commits: dict[str, Commit] = attrs.Factory(dict)
    refs: dict[str, str] = attrs.Factory(dict)  # refs/heads/main, refs/tags/v1, refs/pr/1 -> oid

    def commit(self, ref: str, title: str, files: dict[str, Blob], parent: str | None) -> Commit:
        said = json.dumps([ref, title, parent, len(self.commits), {path: b.oid for path, b in files.items()}])
        made = Commit(hashlib.sha1(said.encode()).hexdigest(), parent, title, files)
        self.commits[made.oid] = made
        self.refs[ref] = made.oid
        return made

    def find(self, revision: str) -> Commit | None:
        for ref in (f"refs/heads/{revision}", f"refs/tags/{revision}", revision):
            if ref in self.refs:
                return self.commits[self.refs[ref]]
        return self.commits.get(revision)

    def named(self, kind: str) -> list[dict[str, str]]:
        """The refs of a kind as the Hub lists them."""
        prefix = f"refs/{kind}/"
        return [
            {"name": ref.removeprefix(prefix), "ref": ref, "targetCommit": oid}
            for ref, oid in self.refs.items()
            if ref.startswith(prefix)
        ]


class Refused(Exception):
    """An answer other than 200: its status, the Hub's code for it, and a message."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        self.status, self.code, self.message = status, code, message


@attrs.define
class Hub:
    """The state of the server, which tests read and set.

    requests: all of them so far. cut_downloads, cut_uploads: so many are still to break off in their middle.
    before_commit: runs when a client asks what to upload; by then it knows the commit that it goes on from.
    tokens_at_storage: those sent to where LFS objects lie, which is another host and needs none.
    """

    port: int = 0
    repos: dict[str, Repo] = attrs.Factory(dict)
    objects: dict[str, bytes] = attrs.Factory(dict)
    requests: list[tuple[str, str]] = attrs.Factory(list)
    tokens_at_storage: list[str] = attrs.Factory(list)
    cut_downloads: int = 0
    cut_uploads: int = 0
    before_commit: Callable[[], object] = lambda: None
    lock: threading.RLock = attrs.Factory(threading.RLock)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage(self) -> str:
        return f"http://localhost:{self.port}/storage"  # another name: the client treats it as another host

    def files(self, repo: str, revision: str = "main") -> dict[str, bytes]:
        commit = self.repos[repo].find(revision)
        assert commit is not None, f"{repo} has no {revision}"
        return {path: blob.data for path, blob in commit.files.items()}

    def add(self, name: str, files: dict[str, bytes], **about: bool) -> Repo:
        """A repository with one commit that holds these files."""
        repo = self.repos[name] = Repo(name.split("/")[0], **about)
        blobs = {path: Blob(data, self.large(path, len(data))) for path, data in files.items()}
        repo.commit("refs/heads/main", "initial commit", blobs, None)
        return repo

    @staticmethod
    def large(path: str, size: int) -> bool:
        return size > LARGE or path.endswith((".safetensors", ".bin"))
