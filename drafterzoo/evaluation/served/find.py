"""Which server answers at an address: found by what only that server has, and never guessed.

Knows the addresses that tell servers apart; nothing of how they are asked for answers.
"""

from __future__ import annotations

from typing import Any

import attrs

from drafterzoo.errors import ServerError
from drafterzoo.evaluation.conditions import Settings
from drafterzoo.evaluation.served import sglang, vllm
from drafterzoo.evaluation.served.answers import About, Server
from drafterzoo.evaluation.served.chat import Chat
from drafterzoo.evaluation.served.wire import NotThere, Refused, Wire
from drafterzoo.parsing import kind
from drafterzoo.wording import listed


def find(url: str, model: str | None, settings: Settings) -> Server:
    """The server at an address, and the model that is asked there: the first that it lists, unless one is named.

    Raises UsageError for what is no address, ServerError where nothing answers, or nothing OpenAI-compatible.
    """
    wire = Wire.to(url)
    models = _models(wire)
    if model is None:
        model = models[0]["id"]
    elif model not in [one["id"] for one in models]:
        names = listed([one["id"] for one in models])
        raise ServerError(f"{wire.place} serves no model {model!r}; name one of its own with --target: {names}.")
    if (info := _info(wire)) is not None:
        return _sglang(wire, sglang.about(info, model), settings)
    version, metrics = _version(wire), _metrics(wire)
    if version is not None and ("vllm:" in metrics or models[0].get("owned_by") == "vllm"):
        return vllm.VLLM(wire, vllm.about(wire, model, version, metrics))
    return Chat(wire, About("OpenAI-compatible", None, model, None))


def _models(wire: Wire) -> list[dict[str, Any]]:
    """The models a server lists, at least one."""
    try:
        told = wire.read("/v1/models")
    except NotThere as error:
        raise ServerError(
            f"{wire.place} is no OpenAI-compatible server: it has no /v1/models; give the address that its chat "
            f"interface has, without /v1."
        ) from error
    models = told.get("data") if isinstance(told, dict) else None
    if not isinstance(models, list) or not all(
        isinstance(one, dict) and isinstance(one.get("id"), str) for one in models
    ):
        raise ServerError(
            f"{wire.place} is no OpenAI-compatible server: /v1/models holds {kind(told)} that lists no models."
        )
    if not models:
        raise ServerError(f"{wire.place} serves no model at all; start it with one.")
    return models


def _info(wire: Wire) -> dict[str, Any] | None:
    """What SGLang says of itself; None where this is another server. vLLM has an address of that name, too."""
    for path in sglang.INFO:
        try:
            told = wire.read(path)
        except NotThere:
            continue
        except ServerError:
            return None
        return told if isinstance(told, dict) and "model_path" in told else None
    return None


def _sglang(wire: Wire, about: About, settings: Settings) -> Server:
    """SGLang by its own interface; by OpenAI's, with no rounds told, where it cannot render a conversation."""
    try:
        sglang.prompt_ids(wire, about.model, [{"role": "user", "content": "?"}], settings)
    except (NotThere, Refused):  # an older version, whose /tokenize takes bare text
        return Chat(wire, attrs.evolve(about, told="") if about.speculates else about)
    return sglang.SGLang(wire, about)


def _version(wire: Wire) -> str | None:
    try:
        told = wire.read("/version")
    except ServerError:
        return None
    return str(told["version"]) if isinstance(told, dict) and "version" in told else None


def _metrics(wire: Wire) -> str:
    try:
        return wire.text(vllm.METRICS)
    except ServerError:
        return ""
