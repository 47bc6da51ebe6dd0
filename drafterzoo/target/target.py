"""The frozen model: prompt and tree forwards with taps, commits, teacher forwards, and its identity for checkpoints.

Knows the interface of transformers' causal LMs; knows nothing of drafters, budgets, sampling or where models come from
(`loading.py`). The model's own forward is used unpatched: positions and masks say all (machine.md 8).
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import attrs
import torch
from jinja2 import TemplateError
from torch import Tensor, nn
from transformers import PreTrainedModel

from drafterzoo.errors import DataError, UsageError
from drafterzoo.target.cache import FULL, SLIDING, CacheLayout, Mask, TargetCache
from drafterzoo.target.packed import PackedLinear
from drafterzoo.target.taps import find_decoder, join
from drafterzoo.wording import quantity

PREFILL_ROWS = 1024  # prompt rows per forward: bounds the mask to PREFILL_ROWS * P entries
UNBOUNDED = 1 << 30  # max_positions of a model that states none


@attrs.frozen(eq=False)
class Reading:
    """What a forward of the target found; `None` where the call does not give it.

    logits [n, Q, V]     of the model's own head ([n, 1, V], the last token's, after prefill)
    features [n, Q, T*H] the taps, concatenated in tap order ([n, Q, 0] without taps)
    hidden [n, T, H]     after the final norm (`read` only)
    tokens, positions [n, Q] int64 and valid [n, Q] bool describe the rows; padding is not valid
    """

    logits: Tensor | None
    features: Tensor
    hidden: Tensor | None
    tokens: Tensor
    positions: Tensor
    valid: Tensor


class Target:
    """A causal LM that answers, verifies and teaches, but never learns.

    Raises UsageError when the architecture cannot be tapped or rolled back.
    """

    def __init__(
        self, model: nn.Module, tokenizer: Any = None, *, name: str | None = None, revision: str | None = None
    ) -> None:
        config = _text_config(model)
        self.name: str = name or getattr(config, "name_or_path", "") or type(model).__name__
        self.revision = revision
        self.tokenizer = tokenizer
        self._config = config
        self._decoder = find_decoder(model, self.name)
        self._kinds, self._window = _attention_kinds(config, len(self._decoder.layers), self.name)
        self._cache_keyword = _cache_keyword(self._decoder.trunk, self.name)
        self.model = cast(PreTrainedModel, model.eval().requires_grad_(False))
        self._embedding = cast(nn.Embedding, self.model.get_input_embeddings())
        self._output = cast(nn.Linear | PackedLinear, self.model.get_output_embeddings())
        self._head = _head_alone(self.model)
        packed = [module for module in model.modules() if isinstance(module, PackedLinear)]
        self.packed = bool(packed)
        self.dense_rows = max((module.dense_rows for module in packed), default=0)  # target/packed.py
        self._layout: CacheLayout | None = None
        self._tokenizer_hash: str | None = None

    @property
    def device(self) -> torch.device:
        return self._embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.weight.dtype

    @property
    def vocab_size(self) -> int:
        """Width of the logits, vocabulary padding included."""
        out = getattr(self._output, "out_features", None)
        return int(out) if out is not None else self._config.vocab_size

    @property
    def hidden_size(self) -> int:
        return self._config.hidden_size

    @property
    def num_layers(self) -> int:
        return len(self._decoder.layers)

    @property
    def max_positions(self) -> int:
        """Positions the model was made for; UNBOUNDED when its config names no limit."""
        return getattr(self._config, "max_position_embeddings", None) or UNBOUNDED

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer: the generation config's, else the model config's, else the tokenizer's."""
        for holder in (getattr(self.model, "generation_config", None), self._config, self.tokenizer):
            ids = getattr(holder, "eos_token_id", None)
            if ids is not None:
                return tuple(ids) if isinstance(ids, list | tuple) else (int(ids),)
        return ()

    # ---------------------------------------------------------------- decoding

    def open_cache(self, n: int, capacity: int, scratch: int) -> TargetCache:
        """K/V memory for n requests of up to `capacity` committed tokens, and a tree of `scratch` rows (root included).

        Raises UsageError when the sizes make no sense, the model has fewer positions, or the memory cannot be had.
        """
        if n < 1 or capacity < 1 or scratch < 1:
            raise UsageError(
                f"cache: n={n}, capacity={capacity}, scratch={scratch}, expected at least 1 of each; "
                f"capacity is the prompt and all new tokens, scratch is 1 + nodes."
            )
        if capacity > self.max_positions:
            raise UsageError(
                f"cache: {capacity} tokens (prompt and new ones) were asked for, but {self.name} has "
                f"{self.max_positions} positions; shorten the prompt or lower max_new_tokens."
            )
        layout = self._cache_layout()
        try:
            return TargetCache(layout, n, capacity, scratch)
        except (RuntimeError, MemoryError) as error:  # torch reports an allocation that fails as RuntimeError
            size = layout.nbytes(n, capacity, scratch) / 1e9
            raise UsageError(
                f"cache: {size:.2f} GB for {quantity(n, 'request')} of {quantity(capacity, 'token')} cannot be had on "
                f"{layout.device}; "
                f"lower the batch or max_new_tokens."
            ) from error

    def cache_nbytes(self, n: int, capacity: int, scratch: int) -> int:
        """Bytes that `open_cache` with these sizes will hold."""
        return self._cache_layout().nbytes(n, capacity, scratch)

    @torch.inference_mode()
    def prefill(self, cache: TargetCache, prompts: Sequence[Sequence[int]], taps: Sequence[int] = ()) -> Reading:
        """Read whole prompts into an opened cache, whose former content is forgotten.

        Prompts are left-padded to [n, P], so that the last column is everybody's last token; cache rows are true
        positions. Returns a Reading with logits [n, 1, V] of the last token and features [n, P, T*H].
        Raises DataError for a prompt that is empty, too long for the cache, or holds an unknown token.
        """
        self._check_prompts(cache, prompts)
        self._decoder.check(taps, self.name)
        lengths = [len(prompt) for prompt in prompts]
        width = max(lengths)
        padded = [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        tokens = torch.tensor(padded, dtype=torch.int64).to(self.device)
        pads = torch.tensor([[width - length] for length in lengths]).to(self.device)
        columns = torch.arange(width, device=self.device)
        valid, positions = columns >= pads, (columns - pads).clamp(min=0)
        parts: list[Tensor] = []
        for start in range(0, width, PREFILL_ROWS):
            part = slice(start, min(start + PREFILL_ROWS, width))
            mask = cache.prepare_prompt(positions[:, part], valid[:, part], used=part.stop)
            logits, features = self._forward(cache, tokens[:, part], positions[:, part], mask, taps, keep=1)
            parts.append(features)
        cache.refill(lengths)
        features = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return Reading(logits, features, None, tokens, positions, valid)

    @torch.inference_mode()
    def verify(
        self, cache: TargetCache, tokens: Tensor, positions: Tensor, visible: Tensor, taps: Sequence[int] = ()
    ) -> Reading:
        """One forward over Q tree rows per request, the root first.

        tokens, positions [n, Q] int64 (position in the text); visible [n, Q, Q] bool: the rows of the tree each row
        attends besides all committed rows, itself included. Row i is written to cache row length + i; lengths stay.
        Returns a Reading with logits [n, Q, V] and features [n, Q, T*H]. Raises UsageError when the rows do not fit.
        """
        mask = cache.prepare_tree(positions, visible)
        # A node beyond the last position can be drafted but never committed: keep its lookup legal.
        clamped = positions.clamp(max=self.max_positions - 1)
        logits, features = self._forward(cache, tokens, clamped, mask, taps, keep=0)
        return Reading(logits, features, None, tokens, positions, torch.ones_like(tokens, dtype=torch.bool))

    @torch.inference_mode()
    def commit(self, cache: TargetCache, path: Tensor, accepted: Tensor) -> None:
        """Make tree rows path [n, A] (root first) the next committed rows; lengths grow by accepted [n] + 1.

        accepted = -1 commits nothing (a request that has finished but is still in the batch).
        """
        cache.commit(path, accepted)

    def _forward(
        self, cache: TargetCache, tokens: Tensor, positions: Tensor, mask: Mask, taps: Sequence[int], keep: int
    ) -> tuple[Tensor, Tensor]:
        """Logits of the last `keep` rows (0: all), and features."""
        with self._decoder.capture(taps) as seen:
            output = self.model(
                input_ids=tokens,
                position_ids=positions,
                attention_mask=mask,
                use_cache=True,
                logits_to_keep=keep,
                **{self._cache_keyword: cache.kv},
            )
        return output.logits, self._features(seen, taps, tokens)

    def _features(self, seen: Mapping[int, Tensor], taps: Sequence[int], tokens: Tensor) -> Tensor:
        if taps:
            return join(seen, taps)
        return torch.empty((*tokens.shape, 0), dtype=self.dtype, device=self.device)

    # ---------------------------------------------------------------- teaching

    @torch.no_grad()
    def read(self, tokens: Tensor, taps: Sequence[int] = (), valid: Tensor | None = None) -> Reading:
        """A forward over whole texts without a cache: features [n, T, T*H] and hidden [n, T, H], no logits.

        tokens [n, T] int64; valid [n, T] bool marks padding on either side (None: there is none). The tensors returned
        may enter autograd graphs.
        """
        self._decoder.check(taps, self.name)
        tokens = tokens.to(self.device)
        mask: Mask | None = None  # without padding the model's own causal mask is right, and cheaper
        if valid is None:
            valid = torch.ones_like(tokens, dtype=torch.bool)
            positions = torch.arange(tokens.shape[1], device=self.device).expand_as(tokens)
        else:
            valid = valid.to(self.device)
            positions = (valid.cumsum(dim=1) - 1).clamp(min=0)
            causal = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool, device=self.device).tril()
            mask = self._cache_layout().masks(causal & valid[:, None], positions, positions[:, None])
        last = self.num_layers + 1
        with self._decoder.capture((*taps, last)) as seen:
            self._decoder.trunk(
                input_ids=tokens,
                position_ids=positions,
                attention_mask=mask,
                use_cache=False,
            )
        return Reading(None, self._features(seen, taps, tokens), seen[last], tokens, positions, valid)

    @torch.no_grad()
    def read_rows(self, tokens: Tensor, positions: Tensor, allowed: Tensor, taps: Sequence[int]) -> Tensor:
        """Features [n, R, T*H] of rows that attend each other as `allowed` [n, R, R] says, in one forward, no cache.

        tokens, positions [n, R] int64: a text and branches off it, for example, each row at its place in the text.
        """
        self._decoder.check(taps, self.name)
        mask = self._cache_layout().masks(allowed, positions, positions[:, None])
        with self._decoder.capture(taps) as seen:
            self._decoder.trunk(input_ids=tokens, position_ids=positions, attention_mask=mask, use_cache=False)
        return self._features(seen, taps, tokens)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of final-normed states [..., H], by the model's own head, soft-cap and scaling included.

        Gradients flow to `hidden`, never to the head.
        """
        flat = hidden.reshape(1, -1, hidden.shape[-1])
        logits = self._head(inputs_embeds=flat, use_cache=False).logits
        return logits.view(*hidden.shape[:-1], logits.shape[-1])

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings [..., H] of tokens as the first layer receives them (scaled where the model scales them)."""
        return self._embedding(tokens)

    def embedding_weight(self) -> Tensor:
        """The embedding matrix [V, H], unscaled and not copied."""
        return self._embedding.weight

    def head_weight(self, rows: Tensor | None = None) -> Tensor:
        """The output head's weight [V, H] or its given rows [R, H], dense also where the head is packed."""
        weight = self._dense_head()
        return weight if rows is None else weight[rows.to(weight.device)]

    def layer_weights(self, index: int) -> dict[str, Tensor]:
        """The tensors of decoder layer `index` by their names within it, dense also where they are packed."""
        layer = self._decoder.layers[index]
        weights = dict(layer.state_dict())
        for name, module in layer.named_modules():
            if isinstance(module, PackedLinear):
                weights[f"{name}.weight"] = module.to_dense()
        return weights

    def _dense_head(self) -> Tensor:
        if not isinstance(self._output, PackedLinear):
            return self._output.weight
        return self.embedding_weight() if self._config_ties() else self._output.to_dense()

    def _config_ties(self) -> bool:
        return bool(getattr(self.model.config, "tie_word_embeddings", False))

    # ---------------------------------------------------------------- identity and text

    def fingerprint(self) -> dict[str, Any]:
        """What a checkpoint records of its target, and checks when it is bound to one."""
        return {
            "name": self.name,
            "revision": self.revision,
            "architecture": type(self.model).__name__,
            "hidden_size": self.hidden_size,
            "num_layers": self.num_layers,
            "vocab_size": self.vocab_size,
            "tokenizer": self._hash_tokenizer(),
        }

    def _hash_tokenizer(self) -> str | None:
        """sha256 over all (token, id) pairs: equal exactly when the same ids mean the same tokens."""
        if self._tokenizer_hash is None and self.tokenizer is not None:
            pairs = sorted(self.tokenizer.get_vocab().items(), key=lambda pair: (pair[1], pair[0]))
            self._tokenizer_hash = hashlib.sha256(json.dumps(pairs).encode()).hexdigest()
        return self._tokenizer_hash

    def encode_chat(self, messages: list[dict], *, thinking: bool | None = None) -> list[int]:
        """Token ids of a conversation, ready for the answer, by the model's chat template.

        thinking: passed on as `enable_thinking` for templates that know it; None leaves the template's default.
        Raises UsageError without tokenizer or template and for half characters, DataError for messages the template
        refuses.
        """
        tokenizer = self._need_tokenizer()
        _check_texts(messages)
        if not getattr(tokenizer, "chat_template", None):
            raise UsageError(
                f"target: {self.name} has no chat template, so a conversation cannot be put into tokens; "
                f"give prompts as token ids (a base model), or load the model's instruct version."
            )
        options = {} if thinking is None else {"enable_thinking": thinking}
        try:
            return list(
                tokenizer.apply_chat_template(
                    messages, add_generation_prompt=True, tokenize=True, return_dict=False, **options
                )
            )
        except (ValueError, TypeError, KeyError, TemplateError) as error:
            raise DataError(
                f"prompt: the chat template of {self.name} refuses the messages ({error}); expected a list of "
                f'{{"role": "user", "content": "..."}} with alternating roles.'
            ) from error

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return self._need_tokenizer().decode(list(ids), skip_special_tokens=True)

    def _need_tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise UsageError(
                f"target: {self.name} was loaded without a tokenizer; pass load_target(..., tokenizer=...), "
                f"or give and take token ids."
            )
        return self.tokenizer

    # ---------------------------------------------------------------- checks

    def _check_prompts(self, cache: TargetCache, prompts: Sequence[Sequence[int]]) -> None:
        if len(prompts) != cache.n:
            raise UsageError(
                f"prefill: {quantity(len(prompts), 'prompt')} for a cache of {quantity(cache.n, 'request')}; open one "
                f"of that size."
            )
        for number, prompt in enumerate(prompts):
            if not len(prompt):
                raise DataError(f"prompt {number}: it is empty, expected at least one token; leave it out.")
            if len(prompt) > cache.capacity:
                raise DataError(
                    f"prompt {number}: {quantity(len(prompt), 'token')} do not fit into a cache of {cache.capacity} "
                    f"({self.name} has {self.max_positions} positions); shorten it or open a larger cache."
                )
            if min(prompt) < 0 or max(prompt) >= self.vocab_size:
                raise DataError(
                    f"prompt {number}: token ids run from {min(prompt)} to {max(prompt)}, but {self.name} knows "
                    f"0 to {self.vocab_size - 1}; encode the prompt with this target's tokenizer."
                )

    def _cache_layout(self) -> CacheLayout:
        """What each layer stores, seen from a forward of one token: configs name it in too many ways to be trusted."""
        if self._layout is None:
            with torch.no_grad():
                token = torch.zeros((1, 1), dtype=torch.int64, device=self.device)
                output = self._decoder.trunk(input_ids=token, use_cache=True)
            stored = getattr(output, "cache", None) or getattr(output, "past_key_values", None)
            self._layout = _layout(stored, self._kinds, self._window, self.name)
        return self._layout


def _check_texts(messages: list[dict]) -> None:
    """Raise UsageError for a text that is none: bytes that were not UTF-8 reach Python as lone surrogates."""
    for message in messages:
        content = message.get("content")
        if not isinstance(content, str):
            continue  # the template judges what is no text
        try:
            content.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"prompt: character {error.start + 1} is {content[error.start]!a}, half of a character; "
                f"give the prompt in UTF-8."
            ) from error


def _text_config(model: nn.Module) -> Any:
    config = getattr(model, "config", None)
    if config is None or not callable(getattr(model, "get_output_embeddings", None)):
        raise UsageError(
            f"target: {type(model).__name__} is not a Hugging Face causal LM; load one with "
            f"transformers.AutoModelForCausalLM, or give load_target its name."
        )
    return config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config


def _attention_kinds(config: Any, layers: int, name: str) -> tuple[tuple[str, ...], int | None]:
    """FULL or SLIDING for each layer, and the window. Raises UsageError for layers that keep other state than K/V."""
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    kinds = getattr(config, "layer_types", None) or [FULL if window is None else SLIDING] * layers
    strange = sorted(set(kinds) - {FULL, SLIDING})
    if strange:
        raise _stateful(name, f"layers of kind {strange[0]!r}")
    return tuple(kinds[:layers]), window


def _stateful(name: str, what: str) -> UsageError:
    return UsageError(
        f"target: {name} has {what}, whose state cannot be rolled back to an accepted path; "
        f"use a model in which every layer is (sliding-window) attention with its own K/V."
    )


def _layout(stored: Any, kinds: tuple[str, ...], window: int | None, name: str) -> CacheLayout:
    layers = getattr(stored, "layers", None) or []
    pairs = [(getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in layers]
    good = [(k, v) for k, v in pairs if isinstance(k, Tensor) and isinstance(v, Tensor) and k.dim() == v.dim() == 4]
    if len(good) != len(kinds) or any(k.shape[1] != v.shape[1] for k, v in good):
        memories = quantity(len(good), "plain K/V memory", "plain K/V memories")
        raise _stateful(name, f"{quantity(len(kinds), 'layer')} but {memories}")
    if len({k.device for k, _ in good}) > 1:
        raise UsageError(f"target: {name} is spread over several devices; load it on one with device=...")
    return CacheLayout(
        heads=tuple(k.shape[1] for k, _ in good),
        key_dims=tuple(k.shape[3] for k, _ in good),
        value_dims=tuple(v.shape[3] for _, v in good),
        kinds=kinds,
        window=window,
        dtype=good[0][0].dtype,
        device=good[0][0].device,
    )


def _cache_keyword(trunk: nn.Module, name: str) -> str:
    """The keyword for a cache in this version of transformers. Raises UsageError when positions cannot be given."""
    known = inspect.signature(trunk.forward).parameters
    if "position_ids" not in known:
        raise UsageError(
            f"target: {name} takes no position_ids, so a tree cannot be placed in the text; use a model with rotary "
            f"or learned positions such as Llama, Qwen3, Gemma-3 or Mixtral."
        )
    return "cache" if "cache" in known else "past_key_values"


class _Passage(nn.Module):
    """Stands where the decoder was, and returns what it is given."""

    def forward(self, inputs_embeds: Tensor, **kwargs: Any) -> _Passed:
        return _Passed(inputs_embeds)


class _Passed:
    """A decoder's output with hidden states only: whatever else a head asks for (router logits, caches) is None."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


def _head_alone(model: nn.Module) -> nn.Module:
    """The causal LM without its decoder: a shallow copy sharing every weight, so that its own code makes the logits.

    Soft-caps, scalings and whatever an architecture does around its head are then the model's own.
    """
    shell = copy.copy(model)
    shell._modules = dict(model._modules)
    name = next(child for child in model._modules if model._modules[child] is getattr(model, "base_model", None))
    shell._modules[name] = _Passage()
    return shell
