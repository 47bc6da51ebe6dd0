"""`generate` and `stream`: prompts in, texts, tokens and raw counters out.

Knows prompts' forms, the tokenizer and batches; nothing of how a tree is grown, verified or cached.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

from drafterzoo.budget import Budget
from drafterzoo.engine.decode import Emission, Round, Settings, check, decode
from drafterzoo.engine.sampling import Sampling
from drafterzoo.errors import UsageError
from drafterzoo.target.target import Target
from drafterzoo.throughput import kept
from drafterzoo.wording import quantity

if TYPE_CHECKING:
    from drafterzoo.drafters.base import Drafter

Prompt: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, Any]]

LARGEST_BATCH = 16  # when no batch_size is given


@attrs.frozen
class PerDepth:
    """Acceptance at depth d, in entry d-1.

    survival: share of all rounds that accepted at least d drafts; these add up to
    tau - 1. conditional: among rounds that accepted d-1 drafts and were not ended by a stop token there, the share that
    accepted the d-th too; None where there is no such round.
    """

    survival: list[float]
    conditional: list[float | None]


@attrs.frozen
class Generation:
    """Answers, one entry per prompt in every list.

    prompts: token ids as given to the target. tokens: new tokens only, a stop token included. rounds: raw counters of
    every target call after prefill. finished: "stop" or "length". prefill_s: this prompt's share of its batch's
    prefill seconds. requests: the keys of the noise streams.
    """

    prompts: list[list[int]]
    tokens: list[list[int]]
    rounds: list[list[Round]]
    finished: list[str]
    prefill_s: list[float]
    requests: list[int]
    target: Target = attrs.field(repr=False)

    @property
    def texts(self) -> list[str]:
        """The answers as text. Raises UsageError when the target has no tokenizer."""
        return [_text(self.target, tokens) for tokens in self.tokens]

    @property
    def tau(self) -> float:
        """Committed tokens per target call, the target's own token counted, cut at EOS, pooled over all rounds.

        1.0 is plain decoding. NaN when every answer ended with its first token, which comes from prefill.
        """
        pooled = [made.committed for rounds in self.rounds for made in rounds]
        return sum(pooled) / len(pooled) if pooled else float("nan")

    @property
    def tau_macro(self) -> float:
        """The mean over answers of each answer's own tau; answers without a round are left out."""
        each = [sum(made.committed for made in rounds) / len(rounds) for rounds in self.rounds if rounds]
        return sum(each) / len(each) if each else float("nan")

    @property
    def accepted_per_depth(self) -> PerDepth:
        """Acceptance by depth, in both senses that are in use."""
        made = [m for rounds in self.rounds for m in rounds]
        deepest = max((m.accepted for m in made), default=0)
        survival = [sum(m.accepted >= d for m in made) / len(made) for d in range(1, deepest + 1)]
        conditional: list[float | None] = []
        for d in range(1, deepest + 1):
            tried = [m.accepted >= d for m in made if m.accepted >= d - 1 and m.committed >= d]
            conditional.append(sum(tried) / len(tried) if tried else None)
        return PerDepth(survival, conditional)


@attrs.frozen
class Chunk:
    """What a stream yields: tokens of one request as they are committed, and the text they complete.

    round is None for the token that prefill gives. finished: None, "stop" or "length".
    """

    request: int
    text: str
    tokens: list[int]
    round: Round | None
    finished: str | None


def generate(
    drafter: Drafter | str | None,
    prompts: Prompt | Sequence[Prompt],
    *,
    target: Target | str | None = None,
    budget: Budget | str | None = None,
    max_new_tokens: int = 256,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    verification: Literal["match", "rejection"] = "match",
    coupled: bool = True,
    stop_token_ids: Sequence[int] | None = None,
    thinking: bool | None = None,
    batch_size: int | None = None,
    request_ids: Sequence[int | str] | None = None,
    keep_trees: bool = False,
) -> Generation:
    """Answer prompts by speculative decoding; the answers are the target's own, whatever the drafter.

    drafter: a loaded drafter, a spec or address for `load`, or "none" (with target=...) for plain decoding through the
    same engine. prompts: strings (one user turn each, chat template applied), message lists, or token-id lists (used
    exactly as given); one or many. budget: None takes the drafter's own. stop_token_ids: None takes the target's EOS
    ids. thinking: for templates that know it. batch_size: None takes all prompts at once, up to 16. request_ids: name
    the noise streams; None numbers the prompts, so that each is drawn for on its own. keep_trees: each Round keeps its
    tree.

    Raises UsageError in one sentence for what cannot be meant, before anything is decoded.
    """
    sampling = Sampling(temperature, top_p, top_k, seed, verification, coupled)
    job = _Job.prepare(
        drafter,
        prompts,
        target,
        budget,
        max_new_tokens,
        sampling,
        stop_token_ids,
        thinking,
        batch_size,
        request_ids,
        keep_trees,
    )
    n = len(job.prompts)
    tokens: list[list[int]] = [[] for _ in range(n)]
    rounds: list[list[Round]] = [[] for _ in range(n)]
    done = Generation(job.prompts, tokens, rounds, [""] * n, [0.0] * n, job.keys, job.target)
    for emission, batch in job.run():
        done.tokens[emission.request] += emission.tokens
        if emission.round is None:
            done.prefill_s[emission.request] = emission.seconds / batch
        else:
            done.rounds[emission.request].append(emission.round)
        if emission.finished:
            done.finished[emission.request] = emission.finished
    return done


def stream(
    drafter: Drafter | str | None,
    prompts: Prompt | Sequence[Prompt],
    *,
    target: Target | str | None = None,
    budget: Budget | str | None = None,
    max_new_tokens: int = 256,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    verification: Literal["match", "rejection"] = "match",
    coupled: bool = True,
    stop_token_ids: Sequence[int] | None = None,
    thinking: bool | None = None,
    batch_size: int | None = None,
    request_ids: Sequence[int | str] | None = None,
    keep_trees: bool = False,
) -> Iterator[Chunk]:
    """Yield tokens and text as they are committed; the arguments are those of `generate`, and so are the errors.

    A chunk's text never ends inside a character: bytes that are not yet complete come with a later chunk. All chunks of
    a request joined are the text that `generate` gives.
    """
    sampling = Sampling(temperature, top_p, top_k, seed, verification, coupled)
    job = _Job.prepare(
        drafter,
        prompts,
        target,
        budget,
        max_new_tokens,
        sampling,
        stop_token_ids,
        thinking,
        batch_size,
        request_ids,
        keep_trees,
    )
    return job.stream()  # a plain function up to here, so that a mistake is reported when it is made


@attrs.frozen
class _Job:
    """What `generate` and `stream` were asked to do, checked and resolved."""

    drafter: Drafter | None
    target: Target
    prompts: list[list[int]]
    settings: Settings
    keys: list[int]
    batch_size: int

    @classmethod
    def prepare(
        cls,
        drafter: Drafter | str | None,
        prompts: Prompt | Sequence[Prompt],
        target: Target | str | None,
        budget: Budget | str | None,
        max_new_tokens: int,
        sampling: Sampling,
        stop_token_ids: Sequence[int] | None,
        thinking: bool | None,
        batch_size: int | None,
        request_ids: Sequence[int | str] | None,
        keep_trees: bool,
    ) -> _Job:
        several = _several(prompts)
        bound, target = _bind(drafter, target)
        if budget is not None and not isinstance(budget, Budget):
            budget = Budget.parse(str(budget))
        if bound is not None and budget is None:
            budget = bound.budget
        encoded = [_encode(prompt, target, thinking) for prompt in several]
        check(target, encoded, max_new_tokens)
        size = min(LARGEST_BATCH, len(encoded)) if batch_size is None else batch_size
        if not isinstance(size, int) or size < 1:
            raise UsageError(f"generate: batch_size is {batch_size!r}, expected a whole number of at least 1.")
        stops = target.eos_token_ids if stop_token_ids is None else _stops(stop_token_ids)
        known = kept(target) if budget is not None and budget.schedule != "none" else None
        settings = Settings(budget, sampling, max_new_tokens, stops, keep_trees, known)
        return cls(bound, target, encoded, settings, _keys(request_ids, len(encoded)), size)

    def run(self) -> Iterator[tuple[Emission, int]]:
        """Emissions numbered by prompt, and how many prompts shared their batch."""
        for start in range(0, len(self.prompts), self.batch_size):
            part = slice(start, start + self.batch_size)
            prompts = self.prompts[part]
            for emission in decode(self.drafter, self.target, prompts, self.settings, self.keys[part]):
                yield attrs.evolve(emission, request=start + emission.request), len(prompts)

    def stream(self) -> Iterator[Chunk]:
        writers = [_Writer(self.target) for _ in self.prompts]
        for emission, _ in self.run():
            text = writers[emission.request].write(emission.tokens, last=emission.finished is not None)
            yield Chunk(emission.request, text, emission.tokens, emission.round, emission.finished)


class _Writer:
    """Text of one answer, bit by bit. Without a tokenizer there is none."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._tokens: list[int] = []
        self._written = ""
        self._decoder: Any = None
        self._backend = getattr(target.tokenizer, "backend_tokenizer", None)
        if self._backend is not None:
            from tokenizers.decoders import DecodeStream

            self._decoder = DecodeStream(skip_special_tokens=True)

    def write(self, tokens: Sequence[int], *, last: bool) -> str:
        """The text that these tokens complete; with `last`, all that is left."""
        if self._target.tokenizer is None:
            return ""
        self._tokens += tokens
        if self._decoder is not None:
            pieces = (self._decoder.step(self._backend, token) for token in tokens)
            text = "".join(piece for piece in pieces if piece)
        else:  # a tokenizer without a fast backend: decode all, and hold back what is not a whole character
            whole = self._target.decode(self._tokens)
            text = "" if whole.endswith("\ufffd") else whole.removeprefix(self._written)
        self._written += text
        if not last:
            return text
        whole = self._target.decode(self._tokens)
        return text + (whole[len(self._written) :] if whole.startswith(self._written) else "")


def _text(target: Target, tokens: list[int]) -> str:
    if target.tokenizer is None:
        raise UsageError(f"generate: {target.name} has no tokenizer, so there is no text; read .tokens instead.")
    return target.decode(tokens)


def _bind(drafter: Drafter | str | None, target: Target | str | None) -> tuple[Drafter | None, Target]:
    """The drafter, loaded if it was named, and the target it runs on. Raises UsageError when the two do not fit."""
    from drafterzoo.drafters.base import Drafter

    if isinstance(target, str):
        from drafterzoo.target.loading import load_target

        target = load_target(target)
    if drafter is None or drafter == "none":
        if target is None:
            raise UsageError(
                "generate: drafter 'none' decodes plainly and needs target=..., as in target=load_target()."
            )
        return None, target
    if isinstance(drafter, str):
        from drafterzoo.catalogue import load

        drafter = load(drafter, target)
    if not isinstance(drafter, Drafter):
        raise UsageError(
            f"generate: the drafter is a {type(drafter).__name__}, expected what load() returns, a name such as "
            f"'eagle3.1', or 'none'."
        )
    if target is not None and target is not drafter.target:
        raise UsageError(
            f"generate: {drafter.spec!r} is bound to {drafter.target.name}, not to the given target {target.name}; "
            f"leave target out, or load the drafter with target=..."
        )
    return drafter, drafter.target


def _several(prompts: Any) -> list[Any]:
    """A list of prompts, whichever of the accepted forms was given. Raises UsageError for anything else."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, Mapping):  # iterating over it would take its keys for prompts
        raise UsageError(
            "generate: the prompt is a single message; put it into a list, as in [{'role': 'user', 'content': '...'}]."
        )
    prompts = _plain(prompts)
    try:
        listed = list(prompts)
    except TypeError:
        listed = [prompts]
    if listed and all(_whole(item) for item in listed):
        return [listed]
    if listed and all(isinstance(item, Mapping) for item in listed):
        return [listed]
    return listed


def _plain(value: Any) -> Any:
    """Token ids in an array or a tensor as plain numbers, anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def _whole(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _encode(prompt: Any, target: Target, thinking: bool | None) -> list[int]:
    prompt = _plain(prompt)
    if isinstance(prompt, str):
        if not prompt.strip():
            raise UsageError("generate: a prompt is empty; give it some text.")
        return target.encode_chat([{"role": "user", "content": prompt}], thinking=thinking)
    listed = list(prompt) if isinstance(prompt, Sequence) or hasattr(prompt, "__iter__") else None
    if listed is not None and all(_whole(item) for item in listed):
        return listed
    if listed is not None and all(isinstance(item, Mapping) for item in listed):
        return target.encode_chat([dict(message) for message in listed], thinking=thinking)
    raise UsageError(
        f"generate: cannot read a prompt of type {type(prompt).__name__}; give a string, a list of "
        f"{{'role': ..., 'content': ...}} messages, or a list of token ids."
    )


def _stops(ids: Any) -> tuple[int, ...]:
    """Stop tokens as given. Raises UsageError for what is no list of token ids."""
    listed = tuple(ids) if isinstance(ids, Iterable) else (None,)
    if all(_whole(token) for token in listed):
        return listed
    raise UsageError(f"generate: stop_token_ids is {ids!r}, expected a list of token ids; for example [2].")


def _keys(request_ids: Sequence[int | str] | None, n: int) -> list[int]:
    """One int64 per prompt: numbers as they are, text by its hash."""
    if request_ids is None:
        return list(range(n))
    if isinstance(request_ids, str) or not isinstance(request_ids, Sequence):
        raise UsageError(f"generate: request_ids is {request_ids!r}, expected a list of one number or text a prompt.")
    if len(request_ids) != n:
        raise UsageError(f"generate: request_ids names {len(request_ids)} for {quantity(n, 'prompt')}; give one each.")
    return [_key(name) for name in request_ids]


def _key(name: int | str) -> int:
    if _whole(name):
        return (int(name) + 2**63) % 2**64 - 2**63
    return int.from_bytes(hashlib.sha256(str(name).encode(errors="surrogatepass")).digest()[:8], "big", signed=True)
