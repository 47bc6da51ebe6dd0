"""Any server that speaks OpenAI's chat interface: its answers, word by word, and no count of what it drafted.

Knows that interface; nothing of one server's additions to it, which `extras`, `_tally` and `counted` are for.
"""

from __future__ import annotations

import time
from typing import Any

import attrs

from drafterzoo.errors import ServerError
from drafterzoo.evaluation.conditions import Settings
from drafterzoo.evaluation.interleaving import Messages
from drafterzoo.evaluation.served.answers import About, Answer, Tally
from drafterzoo.evaluation.served.wire import NotThere, Wire

COMPLETIONS = "/v1/chat/completions"


@attrs.define
class Collected:
    """An answer while it comes. first, last: when its first and its newest words were there."""

    began: float = attrs.field(factory=time.perf_counter)
    first: float | None = None
    last: float = 0.0
    thought: str = ""
    content: str = ""
    ids: list[int] = attrs.field(factory=list)
    without_ids: bool = False
    sizes: list[int] = attrs.field(factory=list)
    prompt_tokens: int | None = None
    length: int | None = None
    finish: str | None = None
    tally: Tally | None = None

    def arrived(self) -> None:
        self.last = time.perf_counter()
        self.first = self.last if self.first is None else self.first

    def answer(self, place: str) -> Answer:
        """All of it. Raises ServerError where the server left something out that is needed."""
        ids = tuple(self.ids) if self.ids and not self.without_ids else None
        length = len(ids) if ids is not None else self.length
        if self.finish is None or not length or self.first is None:
            missing = "how it ended" if self.finish is None else "a token, or how many there were"
            raise ServerError(
                f"{place}: an answer came without {missing} (finish_reason, usage); only servers that report both can "
                f"be measured."
            )
        return Answer(
            text=self.thought + self.content,
            content=self.content,
            ids=ids,
            length=length,
            sizes=tuple(self.sizes) if ids is not None else (),
            prompt_tokens=self.prompt_tokens or 0,
            stopped=self.finish != "length",
            began=self.began,
            first=self.first,
            last=self.last,
            tally=self.tally,
        )


@attrs.frozen
class Chat:
    """A server behind OpenAI's chat interface."""

    wire: Wire
    about: About

    @property
    def place(self) -> str:
        return self.wire.place

    def ask(self, messages: Messages, settings: Settings, max_new_tokens: int) -> Answer:
        """The answer to a conversation, with the server's own chat template. Raises ServerError."""
        body: dict[str, Any] = {
            "model": self.about.model,
            "messages": messages,
            "max_tokens": max_new_tokens,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "seed": settings.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.extras(settings),
        }
        found = Collected()
        try:
            for event in self.wire.stream(COMPLETIONS, body):
                self._take(event, found)
        except NotThere as error:
            raise ServerError(
                f"{str(error).rstrip('.')}; name one of the models it lists under /v1/models with --target."
            ) from error
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, ServerError):
                raise
            raise ServerError(
                f"{self.place}: its stream is not OpenAI's ({type(error).__name__}: {error}); only OpenAI-compatible "
                f"servers can be measured."
            ) from error
        return found.answer(self.place)

    def extras(self, settings: Settings) -> dict[str, Any]:
        """What else is asked: only what differs from the interface's defaults, since OpenAI's has neither key."""
        more: dict[str, Any] = {"top_k": settings.top_k} if settings.top_k else {}
        return more if settings.thinking is None else {**more, **template_options(settings)}

    def counted(self) -> Tally | None:
        return None

    def _take(self, event: dict[str, Any], found: Collected) -> None:
        """Add an event of the stream to the answer."""
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            content = delta.get("content") or ""
            thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
            tokens = choice.get("token_ids")
            if content or thought or tokens:
                found.arrived()
                found.content += content
                found.thought += thought
                found.without_ids = found.without_ids or tokens is None
                found.ids += tokens or ()
                found.sizes.append(len(tokens or ()))
            found.finish = choice.get("finish_reason") or found.finish
        if usage := event.get("usage"):
            found.prompt_tokens, found.length = usage["prompt_tokens"], usage["completion_tokens"]
        found.tally = self._tally(event) or found.tally

    def _tally(self, event: dict[str, Any]) -> Tally | None:
        """What an event says was drafted for the answer."""
        return None


def template_options(settings: Settings) -> dict[str, Any]:
    """How a chat template is told whether to think, by servers that pass options on to it."""
    return {} if settings.thinking is None else {"chat_template_kwargs": {"enable_thinking": settings.thinking}}
