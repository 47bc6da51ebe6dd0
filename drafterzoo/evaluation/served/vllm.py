"""vLLM: ids with every event of a stream, and counters of all that was drafted since it was started.

Knows vLLM's additions to OpenAI's interface (`return_token_ids`; `metrics.speculative_decoding` of an answer, which it
has with --per-request-spec-decode-metrics), its /metrics, /version and, in development mode, /server_info; nothing of
how anything is measured. Its counters are not cut at EOS (vllm-project/vllm issue 56101), and a step without a draft is
in none of them.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from drafterzoo.budget import Budget
from drafterzoo.errors import ServerError
from drafterzoo.evaluation.conditions import Settings
from drafterzoo.evaluation.interleaving import Messages
from drafterzoo.evaluation.served.answers import About, Answer, Tally
from drafterzoo.evaluation.served.chat import Chat, template_options
from drafterzoo.evaluation.served.wire import Wire

METRICS = "/metrics"
_LINE = re.compile(r"vllm:spec_decode_num_(\w+?)(?:_total)?(?:\{(.*)\})? (\S+)")
_POSITION = re.compile(r'position="(\d+)"')
_DRAFTED = re.compile(r"SpeculativeConfig\((.*?)\)")
_DTYPE = re.compile(r"\bdtype=torch\.(\w+)")


class VLLM(Chat):
    """A vLLM server."""

    def ask(self, messages: Messages, settings: Settings, max_new_tokens: int) -> Answer:
        answer = super().ask(messages, settings, max_new_tokens)
        if answer.ids is None:
            raise ServerError(f"{self.place} streams no token ids (return_token_ids), which a newer vLLM does.")
        return answer

    def extras(self, settings: Settings) -> dict[str, Any]:
        """Ids, and the sampling as asked and no other: a model's generation_config.json would fill what is left out."""
        return {
            "top_k": settings.top_k or -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "return_token_ids": True,
            **template_options(settings),
        }

    def counted(self) -> Tally | None:
        return counters(self.wire.text(METRICS), self.place) if self.about.speculates else None

    def _tally(self, event: dict[str, Any]) -> Tally | None:
        told = (event.get("metrics") or {}).get("speculative_decoding")
        if not told:
            return None
        each = None
        if told.get("per_step_accepted") is not None:
            each = tuple(zip(told["per_step_accepted"], told["per_step_drafted"], strict=True))
        return Tally(
            told["num_spec_steps"],
            told["num_accepted_draft_tokens"],
            told["num_draft_tokens"],
            tuple(told["acceptance_histogram"]),
            each,
        )


def counters(metrics: str, place: str) -> Tally | None:
    """What /metrics says was drafted, over all engines; None where the server counts no drafts."""
    sums: dict[str, int] = {}
    by_position: dict[int, int] = {}
    for line in metrics.splitlines():
        if found := _LINE.fullmatch(line):
            name, labels, value = found[1], found[2] or "", _number(found[3], place)
            if name == "accepted_tokens_per_pos" and (position := _POSITION.search(labels)):
                by_position[int(position[1])] = by_position.get(int(position[1]), 0) + value
            else:
                sums[name] = sums.get(name, 0) + value
    if "drafts" not in sums or not by_position:
        return None
    reached = [sums["drafts"], *(by_position[position] for position in sorted(by_position)), 0]
    histogram = tuple(at_least - more for at_least, more in pairwise(reached))
    return Tally(sums["drafts"], sums.get("accepted_tokens", 0), sums.get("draft_tokens", 0), histogram)


def _number(text: str, place: str) -> int:
    try:
        return int(float(text))
    except (ValueError, OverflowError) as error:
        raise ServerError(f"{place}: {METRICS} counts {text!r}, expected a number.") from error


def about(wire: Wire, model: str, version: str | None, metrics: str) -> About:
    """What a vLLM server says of itself."""
    if "vllm:" not in metrics:  # started without statistics
        return About("vLLM", version, model, None)
    tally = counters(metrics, wire.place)
    if tally is None:
        return About("vLLM", version, model, False, told="no drafts are counted: one token a round")
    depth = len(tally.histogram or ()) - 1
    said = _config(wire)
    return About(
        "vLLM",
        version,
        model,
        True,
        str(Budget.chain(depth)),
        said.get("method"),
        said.get("model"),
        said.get("dtype"),
        told="the stream, equal to the server's counters",
    )


def _config(wire: Wire) -> dict[str, str]:
    """Method, drafter and dtype, which only a server in development mode tells; else nothing."""
    try:
        told = wire.read("/server_info")
    except ServerError:
        return {}
    config = str(told.get("vllm_config", "")) if isinstance(told, dict) else ""
    drafted, dtype = _DRAFTED.search(config), _DTYPE.search(config)
    pairs = re.findall(r"(method|model)='([^']*)'", drafted[1]) if drafted else []
    return dict(pairs) | ({"dtype": dtype[1]} if dtype else {})
