"""A small Hub for tests: the HTTP interface that huggingface_hub's client speaks, in memory, on loopback.

What it answers, and where a client is easily misled, stands in machine.md 6. Knows access by token and how a request is
read and answered; what it holds is in hub_state.py. Nothing of checkpoints.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.hub_state import DATE, TOKENS, Blob, Commit, Hub, Refused, Repo


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body go in one piece: two would cost 40 ms
    hub: Hub

    def create(self, **_: str) -> Any:
        said = self.sent()
        user = self.must_be_somebody()
        owner = said.get("organization") or user
        name = f"{owner}/{said['name']}"
        url = f"{self.hub.endpoint}/{name}"
        if name in self.hub.repos:
            return 409, {"error": "You already created this model repo", "url": url}
        if owner != user:
            raise Refused(403, message="You don't have the rights to create a model under this namespace")
        private = said.get("private") or said.get("visibility") == "private"
        self.hub.add(name, {".gitattributes": b"*.safetensors filter=lfs\n"}, private=bool(private))
        return {"url": url}

    def delete(self, **_: str) -> Any:
        said = self.sent()
        del self.hub.repos[f"{said.get('organization') or self.must_be_somebody()}/{said['name']}"]
        return {}

    def validate(self, **_: str) -> Any:
        return {"errors": [], "warnings": []}

    def who(self, **_: str) -> Any:
        return {"type": "user", "name": self.must_be_somebody(), "orgs": []}

    def listed(self, **_: str) -> Any:
        author = self.query.get("author", "")
        return [self.info(name, "main") for name, repo in self.hub.repos.items() if repo.owner == author]

    def info(self, repo: str, revision: str = "main") -> Any:
        held, commit = self.reachable(repo, revision)
        about = {"id": repo, "modelId": repo, "private": held.private, "gated": held.gated, "lastModified": DATE}
        return {**about, "sha": commit.oid, "siblings": [{"rfilename": path} for path in commit.files]}

    def tree(self, repo: str, revision: str, path: str = "") -> Any:
        _, commit = self.reachable(repo, revision)
        return [self.entry(name, blob) for name, blob in commit.files.items() if name.startswith(path)]

    def paths_info(self, repo: str, revision: str) -> Any:
        _, commit = self.reachable(repo, revision)
        asked = parse_qs(self.body.decode())["paths"]  # the one form among all this JSON
        return [self.entry(path, blob) for path, blob in commit.files.items() if path in asked]

    @staticmethod
    def entry(path: str, blob: Blob) -> dict[str, Any]:
        size = len(blob.data)
        lfs = {"lfs": {"oid": blob.oid, "size": size, "pointerSize": 134}} if blob.lfs else {}
        return {"type": "file", "path": path, "size": size, "oid": blob.oid, **lfs}

    def refs(self, repo: str) -> Any:
        held, _ = self.reachable(repo)
        return {"branches": held.named("heads"), "tags": held.named("tags"), "converts": []}

    def commits(self, repo: str, revision: str) -> Any:
        held, commit = self.reachable(repo, revision)
        found: list[dict[str, Any]] = []
        at: Commit | None = commit
        while at is not None:
            found.append({"id": at.oid, "title": at.title, "message": "", "authors": [], "date": DATE})
            at = held.commits.get(at.parent or "")
        return found

    def preupload(self, repo: str, revision: str) -> Any:
        _, commit = self.writable(repo, revision)
        self.hub.before_commit()
        files = []
        for file in self.sent()["files"]:
            mode = "lfs" if self.hub.large(file["path"], file["size"]) else "regular"
            present = commit.files.get(file["path"])
            oid = {"oid": present.oid} if present else {}
            files.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, **oid})
        return {"files": files}

    def batch(self, repo: str) -> Any:
        self.must_be_somebody()  # whoever opens a pull request may upload
        self.reachable(repo)
        objects = []
        for wanted in self.sent()["objects"]:
            upload = {"actions": {"upload": {"href": f"{self.hub.storage}/{wanted['oid']}"}}}
            objects.append({**wanted, **({} if wanted["oid"] in self.hub.objects else upload)})
        return {"transfer": "basic", "objects": objects}

    def commit(self, repo: str, revision: str) -> Any:
        lines = [json.loads(line) for line in self.body.splitlines() if line.strip()]
        held, parent = self.writable(repo, revision)
        header = next(line["value"] for line in lines if line["key"] == "header")
        pull_request = self.query.get("create_pr") == "1"
        with self.hub.lock:
            if not pull_request and header.get("parentCommit") not in (None, held.refs[self.ref_of(held, revision)]):
                raise Refused(412, message="A commit has happened since. Please refresh and try again.")
            files = dict(parent.files)
            for line in lines:
                self.change(files, line["key"], line["value"])
            number = len(held.named("pr")) + 1
            ref = f"refs/pr/{number}" if pull_request else self.ref_of(held, revision)
            made = held.commit(ref, header["summary"], files, parent.oid)
        where = {"pullRequestUrl": f"{self.hub.endpoint}/{repo}/discussions/{number}"} if pull_request else {}
        return {"commitOid": made.oid, "commitUrl": f"{self.hub.endpoint}/{repo}/commit/{made.oid}", **where}

    def change(self, files: dict[str, Blob], key: str, value: dict[str, Any]) -> None:
        if key == "file":
            files[value["path"]] = Blob(base64.b64decode(value["content"]), lfs=False)
        elif key == "lfsFile":
            if value["oid"] not in self.hub.objects:
                raise Refused(400, message=f"the object of {value['path']} was not uploaded")
            files[value["path"]] = Blob(self.hub.objects[value["oid"]], lfs=True)
        elif key == "deletedFile":
            del files[value["path"]]
        elif key == "deletedFolder":
            for path in [path for path in files if path.startswith(value["path"])]:
                del files[path]

    def tag(self, repo: str, revision: str) -> Any:
        held, commit = self.writable(repo, revision)
        return self.point(held, f"refs/tags/{self.sent()['tag']}", commit.oid)

    def branch(self, repo: str, name: str) -> Any:
        held, _ = self.writable(repo)
        start = held.find(self.sent().get("startingPoint", "main"))
        if start is None:
            raise Refused(404, "RevisionNotFound")
        return self.point(held, f"refs/heads/{name}", start.oid)

    @staticmethod
    def point(held: Repo, ref: str, oid: str) -> Any:
        if ref in held.refs:
            raise Refused(409, message=f"{ref} exists already")
        held.refs[ref] = oid
        return {}

    def settings(self, repo: str) -> Any:
        held, _ = self.writable(repo)
        said = self.sent()
        held.private = said.get("private", said.get("visibility", "private" if held.private else "") == "private")
        held.gated = bool(said.get("gated", held.gated))
        return {}

    def resolve(self, repo: str, revision: str, path: str) -> Any:
        held, commit = self.reachable(repo, revision)
        if held.gated and self.user != held.owner:
            raise Refused(403 if self.user else 401, "GatedRepo", "Access to this model is restricted")
        blob = commit.files.get(path)
        if blob is None:
            raise Refused(404, "EntryNotFound")
        headers = {"X-Repo-Commit": commit.oid, "ETag": f'"{blob.oid}"'}
        if not blob.lfs:
            return self.give(blob.data, headers)
        self.hub.objects[blob.oid] = blob.data
        linked = {"X-Linked-Etag": f'"{blob.oid}"', "X-Linked-Size": str(len(blob.data))}
        return self.answer(302, b"", {**headers, **linked, "Location": f"{self.hub.storage}/{blob.oid}"})

    def stored(self, oid: str) -> Any:
        self.hub.tokens_at_storage += filter(None, [self.headers.get("Authorization")])
        return self.give(self.hub.objects[oid], {"ETag": f'"{oid}"'})

    def store(self, oid: str) -> Any:
        assert hashlib.sha256(self.body).hexdigest() == oid, "what is stored is what was announced"
        self.hub.objects[oid] = self.body
        return {}

    # -- who asks, and for what ----------------------------------------------------------------------------------------

    @property
    def user(self) -> str | None:
        """Who asks; None for nobody. A token that nobody has is refused, whatever is asked for."""
        said = self.headers.get("Authorization")
        if said is None:
            return None
        if (user := TOKENS.get(said.removeprefix("Bearer "))) is None:
            raise Refused(401, message="Invalid credentials in Authorization header")
        return user

    def must_be_somebody(self) -> str:
        if self.user is None:
            raise Refused(401, message="Invalid username or password.")
        return self.user

    def reachable(self, repo: str, revision: str = "main") -> tuple[Repo, Commit]:
        user = self.user  # a wrong token is refused first
        held = self.hub.repos.get(repo)
        if held is None or (held.private and user != held.owner):
            raise Refused(404 if user else 401, "RepoNotFound", "Repository not found")
        commit = held.find(revision)
        if commit is None:
            raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return held, commit

    def writable(self, repo: str, revision: str = "main") -> tuple[Repo, Commit]:
        self.must_be_somebody()
        held, commit = self.reachable(repo, revision)
        if self.user != held.owner and self.query.get("create_pr") != "1":
            raise Refused(403, message="You do not have write access to this repository")
        return held, commit

    @staticmethod
    def ref_of(held: Repo, revision: str) -> str:
        return revision if revision in held.refs else f"refs/heads/{revision}"

    def sent(self) -> dict[str, Any]:
        return json.loads(self.body or b"{}")

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def read_body(self) -> bytes:
        """The body, by its length or in chunks; cut short where an upload is to break off."""
        if self.headers.get("Transfer-Encoding") == "chunked":
            chunks = []
            while size := int(self.rfile.readline(), 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)
        length = int(self.headers.get("Content-Length", 0))
        if self.command == "PUT" and self.hub.cut_uploads:
            self.hub.cut_uploads -= 1
            self.rfile.read(length // 2)
            raise ConnectionError
        return self.rfile.read(length)

    def give(self, data: bytes, headers: dict[str, str]) -> None:
        """A file, or what is left of it from where the client says; half of it where a download is to break off."""
        begins = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(begins[1]) if begins else 0
        if begins:
            headers = {**headers, "Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
        cut = self.command == "GET" and self.hub.cut_downloads > 0
        self.hub.cut_downloads -= cut
        self.answer(206 if begins else 200, data[start:], headers, cut=cut)

    def answer(self, status: int, data: bytes, headers: dict[str, str], *, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else data[: len(data) // 2] if cut else data)
        self.wfile.flush()
        if cut:
            raise ConnectionError

    def do(self) -> None:
        parts = urlsplit(self.path)
        path = parts.path
        self.query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        try:
            self.body = self.read_body()
            self.hub.requests.append((self.command, unquote(path)))
            status, said = 200, self.answered(path)
            if isinstance(said, tuple):
                status, said = said
            if said is not None:
                self.answer(status, json.dumps(said).encode(), {"Content-Type": "application/json"})
        except Refused as refused:
            headers = {"X-Error-Code": refused.code, "X-Error-Message": refused.message}
            data = json.dumps({"error": refused.message}).encode()
            self.answer(refused.status, data, {key: value for key, value in headers.items() if value})
        except ConnectionError:  # broken off on purpose
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def answered(self, path: str) -> Any:
        for method, pattern, handle in ROUTES:
            found = re.fullmatch(pattern, path)
            if found and self.command in method:
                return handle(self, **{key: unquote(value) for key, value in found.groupdict().items() if value})
        raise Refused(404, message=f"no such endpoint: {self.command} {path}")

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


MODEL = "/api/models/(?P<repo>[^/]+/[^/]+)"
REVISION = "(?P<revision>[^/]+)"
ROUTES: list[tuple[tuple[str, ...], str, Callable[..., Any]]] = [
    (("POST",), "/api/repos/create", Handler.create),
    (("DELETE",), "/api/repos/delete", Handler.delete),
    (("POST",), "/api/validate-yaml", Handler.validate),
    (("GET",), "/api/whoami-v2", Handler.who),
    (("GET",), "/api/models", Handler.listed),
    (("GET",), MODEL, Handler.info),
    (("GET",), f"{MODEL}/revision/{REVISION}", Handler.info),
    (("GET",), f"{MODEL}/tree/{REVISION}(/(?P<path>.+))?", Handler.tree),
    (("POST",), f"{MODEL}/paths-info/{REVISION}", Handler.paths_info),
    (("GET",), f"{MODEL}/refs", Handler.refs),
    (("GET",), f"{MODEL}/commits/{REVISION}", Handler.commits),
    (("POST",), f"{MODEL}/preupload/{REVISION}", Handler.preupload),
    (("POST",), f"{MODEL}/commit/{REVISION}", Handler.commit),
    (("POST",), f"{MODEL}/tag/{REVISION}", Handler.tag),
    (("POST",), f"{MODEL}/branch/(?P<name>[^/]+)", Handler.branch),
    (("PUT",), f"{MODEL}/settings", Handler.settings),
    (("POST",), r"/(?P<repo>[^/]+/[^/]+)\.git/info/lfs/objects/batch", Handler.batch),
    (("GET",), "/storage/(?P<oid>[0-9a-f]{64})", Handler.stored),
    (("PUT",), "/storage/(?P<oid>[0-9a-f]{64})", Handler.store),
    (("GET", "HEAD"), f"/(?P<repo>[^/]+/[^/]+)/resolve/{REVISION}/(?P<path>.+)", Handler.resolve),
]


@contextmanager
def serving() -> Iterator[Hub]:
    """A Hub that answers until the block is left."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("_Handler", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
