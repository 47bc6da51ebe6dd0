"""HTTP with a server: JSON asked and answered, and answers that come as a stream; every mishap in one sentence.

Knows HTTP and server-sent events, by the standard library; nothing of what is asked or answered. A key is taken from
OPENAI_API_KEY, as by OpenAI's own clients, sent as a bearer token and never put into a message.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import attrs

from drafterzoo.errors import ServerError, UsageError
from drafterzoo.parsing import kind, parse_json

KEY = "OPENAI_API_KEY"
SECONDS = 600.0  # that a server may say nothing: the prefill of a long prompt behind others
DONE = "[DONE]"
_QUOTED = 300  # characters of what a server says that go into a message


class NotThere(ServerError):
    """The server has no such address."""


class Refused(ServerError):
    """The server does not take what it was asked."""


@attrs.frozen
class Wire:
    """A server by the root of its addresses. place: what it is called, `host:port`."""

    root: str
    place: str

    @classmethod
    def to(cls, url: str) -> Wire:
        """The server at an address as people type it, with or without the `/v1` of OpenAI's clients.

        Raises UsageError for what is no such address.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise UsageError(f"bench: {url!r} is no address ({error}); type one like http://localhost:8000.") from error
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or parts.username:
            raise UsageError(
                f"bench: {url!r} is no address of a server; type one like http://localhost:8000, without a name or key."
            )
        path = parts.path.rstrip("/").removesuffix("/v1")
        place = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "") + path
        return cls(urlunsplit((parts.scheme, parts.netloc, path, "", "")), place)

    def text(self, path: str) -> str:
        """What stands at an address. Raises NotThere where nothing does, ServerError for everything else."""
        with self._mishaps(), self._open(path) as response:
            content: bytes = response.read()
        return content.decode("utf-8", "replace")

    def read(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON at an address, posted to if there is a body. Raises as `text` does."""
        with self._mishaps(), self._open(path, body) as response:
            content = response.read()
        return self._json(content, f"{path} answered with")

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of an answer as they come, each a JSON object, up to the last.

        Raises ServerError where the server reports an error in the middle, or the stream ends before it is done.
        """
        with self._mishaps(), self._open(path, body) as response:
            for line in response:
                if not line.startswith(b"data:"):
                    continue
                said = line[len(b"data:") :].strip()
                if said == DONE.encode():
                    return
                event = self._json(said, "its stream holds")
                if not isinstance(event, dict):
                    raise ServerError(f"{self.place}: its stream holds {kind(event)} where an object was expected.")
                if event.get("error"):
                    raise ServerError(f"{self.place} gave up in the middle of an answer: {_complaint(event)}.")
                yield event
        raise ServerError(
            f"{self.place}: the stream of an answer ended before it was done; look at the server's log, then run the "
            f"benchmark again."
        )

    def _open(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        headers = {"Accept": "*/*", "User-Agent": "drafterzoo"}
        if key := os.environ.get(KEY):
            headers["Authorization"] = f"Bearer {key}"
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        return urllib.request.urlopen(urllib.request.Request(self.root + path, data, headers), timeout=SECONDS)

    @contextmanager
    def _mishaps(self) -> Iterator[None]:
        """Whatever may go wrong on the way, as a ServerError."""
        try:
            yield
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error) from error
        except TimeoutError as error:
            raise ServerError(
                f"{self.place} said nothing for {SECONDS:g} s; see whether it is still at work, and lower the batch "
                f"size or max_new_tokens if it is."
            ) from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise ServerError(f"{self.place} did not take a connection within {SECONDS:g} s.") from error
            raise ServerError(
                f"{self.place} cannot be reached ({_reason(error.reason)}); start the server, or mend the address."
            ) from error
        except (OSError, HTTPException) as error:
            raise ServerError(
                f"{self.place} broke off the connection in the middle of an answer ({_reason(error)}); look at the "
                f"server's log, then run the benchmark again."
            ) from error

    def _refusal(self, error: urllib.error.HTTPError) -> ServerError:
        """The error for a status that is no success."""
        try:
            said = _complaint(json.loads(error.read()))
        except (OSError, HTTPException, ValueError):
            said = ""
        why = f"{error.code} {error.reason}" + (f": {said}" if said else "")
        if error.code in (401, 403):
            what = f"is not the one it wants; set another in {KEY}" if os.environ.get(KEY) else f"is missing; set {KEY}"
            return ServerError(f"{self.place} asks for a key, which {what} ({error.code} {error.reason}).")
        if error.code == 404:
            return NotThere(f"{self.place} answers {why}.")
        if error.code in (400, 422):
            return Refused(f"{self.place} does not take the request ({why}); change or leave out what it names.")
        return ServerError(f"{self.place} failed ({why}); look at the server's log.")

    def _json(self, content: bytes, where: str) -> Any:
        try:
            return parse_json(content.decode())
        except ValueError as error:
            start = content[:60].decode("utf-8", "replace")
            raise ServerError(
                f"{self.place}: {where} {start!r}, which is not JSON; give the address of an OpenAI-compatible server."
            ) from error


def _complaint(said: Any) -> str:
    """What a server says is wrong: OpenAI's `error.message`, a bare `message`, or FastAPI's `detail`."""
    if isinstance(said, dict):
        inner = said.get("error", said)
        said = inner.get("message") or inner.get("detail") or inner if isinstance(inner, dict) else inner
    text = " ".join((said if isinstance(said, str) else json.dumps(said)).split()).rstrip(".")
    key = os.environ.get(KEY)
    return (text.replace(key, "...") if key else text)[:_QUOTED]


def _reason(error: object) -> str:
    return getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
