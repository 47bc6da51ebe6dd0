"""SGLang: its own /generate, whose every event says how many tokens there are, and whose last what was drafted.

Knows SGLang's /server_info, /tokenize and /generate; nothing of how anything is measured. The conversation is rendered
by the server, with its own chat template (/tokenize), and its ids are handed to /generate, since SGLang's chat
interface streams no ids. Its budgets count the root (field.md 5d), a round without a draft does not exist, and
`spec_verify_ct` counts rounds.
"""

from __future__ import annotations

from typing import Any

import attrs

from drafterzoo.budget import Budget
from drafterzoo.errors import ServerError, UsageError
from drafterzoo.evaluation.conditions import Settings
from drafterzoo.evaluation.interleaving import Messages
from drafterzoo.evaluation.served.answers import About, Answer, Tally
from drafterzoo.evaluation.served.chat import Collected, template_options
from drafterzoo.evaluation.served.wire import Wire

INFO = ("/server_info", "/get_server_info")  # the older name last


@attrs.frozen
class SGLang:
    """An SGLang server."""

    wire: Wire
    about: About

    @property
    def place(self) -> str:
        return self.wire.place

    def ask(self, messages: Messages, settings: Settings, max_new_tokens: int) -> Answer:
        """The answer to a conversation. Raises ServerError."""
        body = {
            "input_ids": prompt_ids(self.wire, self.about.model, messages, settings),
            "sampling_params": {
                "max_new_tokens": max_new_tokens,
                "temperature": settings.temperature,
                "top_p": settings.top_p,
                "top_k": settings.top_k or -1,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                **({"sampling_seed": settings.seed} if settings.temperature else {}),
            },
            "stream": True,
        }
        found = Collected()  # rendering is not part of prefill
        try:
            for event in self.wire.stream("/generate", body):
                _take(event, found)
        except (AttributeError, KeyError, TypeError) as error:
            raise ServerError(
                f"{self.place}: the stream of /generate is not SGLang's ({type(error).__name__}: {error}); another "
                f"version of SGLang may do."
            ) from error
        return found.answer(self.place)

    def counted(self) -> Tally | None:
        return None  # each answer says what was counted for it


def prompt_ids(wire: Wire, model: str, messages: Messages, settings: Settings) -> list[int]:
    """The conversation as the server's own chat template renders it. Raises ServerError where it does not do that."""
    asked = {"model": model, "messages": messages, "add_generation_prompt": True, **template_options(settings)}
    told = wire.read("/tokenize", asked)
    ids = told.get("tokens") if isinstance(told, dict) else None
    if not isinstance(ids, list) or not ids or not all(type(token) is int for token in ids):
        raise ServerError(f"{wire.place}: /tokenize gave no ids of a conversation; a newer SGLang does.")
    return ids


def _take(event: dict[str, Any], found: Collected) -> None:
    """Add an event to the answer: all words and ids so far, or the new ones alone, as the server is set."""
    meta, ids = event["meta_info"], event.get("output_ids") or []
    new = meta["completion_tokens"] - (found.length or 0)
    if new:
        found.arrived()
        found.sizes.append(new)
        found.ids = ids if len(ids) == meta["completion_tokens"] else [*found.ids, *ids]
        found.without_ids = found.without_ids or len(found.ids) != meta["completion_tokens"]
    text = event.get("text") or ""
    found.content = text if text.startswith(found.content) else found.content + text
    found.length, found.prompt_tokens = meta["completion_tokens"], meta["prompt_tokens"]
    if meta.get("finish_reason"):
        found.finish = meta["finish_reason"]["type"]
        found.tally = _tally(meta)


def _tally(meta: dict[str, Any]) -> Tally | None:
    """What was drafted for an answer, by the names of this version or of older ones."""
    if "spec_verify_ct" not in meta:
        return None
    accepted = meta.get("spec_num_correct_drafts", meta.get("spec_accept_token_num"))
    if accepted is None:
        return None
    histogram = meta.get("spec_correct_drafts_histogram")
    return Tally(
        meta["spec_verify_ct"],
        accepted,
        meta.get("spec_num_proposed_drafts", meta.get("spec_draft_token_num")),
        tuple(histogram) if histogram else None,
    )


def about(info: dict[str, Any], model: str) -> About:
    """What an SGLang server says of itself."""
    version, dtype = info.get("version"), info.get("dtype")
    method = info.get("speculative_algorithm")
    if not method:
        return About("SGLang", version, model, False, dtype=dtype, told="it drafts nothing: one token a round")
    return About(
        "SGLang",
        version,
        model,
        True,
        _budget(info),
        method,
        info.get("speculative_draft_model_path"),
        dtype,
        told="the stream, equal to what the server counts for each answer",
    )


def _budget(info: dict[str, Any]) -> str:
    """What a round may draft, the root left out; empty where the server's numbers do not say."""
    steps, width, tokens = (info.get(f"speculative_{name}") for name in ("num_steps", "eagle_topk", "num_draft_tokens"))
    if not isinstance(tokens, int) or tokens < 2:
        return ""
    try:
        if isinstance(width, int) and width > 1 and isinstance(steps, int):
            return str(Budget(nodes=tokens - 1, depth=steps, grow=width, offer=width))
        return str(Budget.chain(tokens - 1))
    except UsageError:
        return ""
