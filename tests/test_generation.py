"""The public way in: every form of prompt, streams that join to the text, true figures, mistakes in one sentence."""

from __future__ import annotations

import math

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from drafterzoo.budget import Budget
from drafterzoo.drafters.lookup import Lookup
from drafterzoo.engine.sampling import Sampling
from drafterzoo.errors import UsageError
from drafterzoo.generation import Generation, generate, stream
from drafterzoo.target import Target
from tests.oracle import Oracle, oracle_for, plainly
from tests.tiny import tiny_model, tiny_target

TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] + m['content'] }}{% endfor %}{% if add_generation_prompt %}a{% endif %}"
)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, so that random tokens are full of incomplete characters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bare = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=bare)
    wrapped.chat_template = TEMPLATE
    return wrapped


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(tiny_model(vocab=256, layers=1), byte_tokenizer(), name="tiny-bytes")


@pytest.fixture(scope="module")
def lookup(target: Target) -> Lookup:
    return Lookup.create(target)


def test_strings_messages_and_ids_are_the_same_prompt(target: Target, lookup: Lookup) -> None:
    ids = target.encode_chat([{"role": "user", "content": "hi"}])
    wanted = plainly(target, [ids], Sampling(), 12, stops=target.eos_token_ids)
    for prompt in (
        "hi",
        ["hi"],
        [{"role": "user", "content": "hi"}],
        [[{"role": "user", "content": "hi"}]],
        ids,
        [ids],
        tuple(ids),
    ):
        done = generate(lookup, prompt, max_new_tokens=12)
        assert done.prompts == [ids] and done.tokens == wanted
        assert done.texts == [target.decode(wanted[0])]


def test_plain_decoding_goes_through_the_same_door(target: Target, lookup: Lookup) -> None:
    plain = generate("none", ["hi", "you"], target=target, max_new_tokens=10)
    assert plain.tokens == generate(lookup, ["hi", "you"], max_new_tokens=10).tokens
    assert plain.tau == 1.0 and plain.accepted_per_depth.survival == []
    assert all(r.drafted == r.forwards == 0 for rounds in plain.rounds for r in rounds)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("batch_size", [None, 1, 2])
def test_a_stream_joins_to_the_text(target: Target, lookup: Lookup, temperature: float, batch_size: int | None) -> None:
    prompts = ["hi", "what is it?", "ü"]
    asked = {"max_new_tokens": 25, "temperature": temperature, "seed": 5, "stop_token_ids": ()}
    done = generate(lookup, prompts, **asked)
    texts, tokens, ends = [""] * 3, [[], [], []], [None] * 3
    for chunk in stream(lookup, prompts, batch_size=batch_size, **asked):
        texts[chunk.request] += chunk.text
        tokens[chunk.request] += chunk.tokens
        ends[chunk.request] = chunk.finished or ends[chunk.request]
    assert tokens == done.tokens and texts == done.texts and ends == done.finished == ["length"] * 3


def test_a_character_is_streamed_whole(target: Target) -> None:
    letters = "né€😀!"
    text = target.tokenizer.encode(letters)
    oracle = oracle_for(target, [[1, 2]], Sampling(), 4)
    from drafterzoo.generation import _Writer

    writer = _Writer(oracle.target)
    pieces = [writer.write([token], last=i == len(text) - 1) for i, token in enumerate(text)]
    assert "".join(pieces) == letters and all("\ufffd" not in piece for piece in pieces)
    unfinished = _Writer(oracle.target)
    assert unfinished.write(text[1:2], last=False) == ""
    assert unfinished.write([], last=True) == target.decode(text[1:2])


def test_a_request_draws_by_its_id_alone(target: Target, lookup: Lookup) -> None:
    asked = {"max_new_tokens": 12, "temperature": 1.0, "stop_token_ids": ()}
    pair = generate(lookup, ["hi", "hi"], request_ids=["a", 7], **asked)
    assert pair.tokens[0] != pair.tokens[1]
    assert generate(lookup, "hi", request_ids=[7], **asked).tokens == pair.tokens[1:]
    assert generate(lookup, "hi", request_ids=["a"], **asked).tokens == pair.tokens[:1]
    assert generate(lookup, "hi", request_ids=["a"], seed=1, **asked).tokens != pair.tokens[:1]


def test_figures_come_from_the_counters() -> None:
    target = tiny_target(layers=2)
    prompts = [[5, 6, 7], [9, 9]]
    oracle = oracle_for(target, prompts, Sampling(), 60, blunder=5)
    done = generate(oracle, prompts, budget="chain:4", max_new_tokens=30, stop_token_ids=())
    accepted = [[r.accepted for r in rounds] for rounds in done.rounds]
    pooled = [a for rounds in accepted for a in rounds]
    assert math.isclose(done.tau, sum(pooled) / len(pooled) + 1)
    assert math.isclose(done.tau_macro, sum(sum(a) / len(a) + 1 for a in accepted) / 2)
    depths = done.accepted_per_depth
    assert math.isclose(sum(depths.survival), done.tau - 1)
    product = 1.0
    for survival, conditional in zip(depths.survival, depths.conditional, strict=True):
        product *= conditional or 0.0
        assert math.isclose(product, survival)
    assert 1 < done.tau < 5


def test_an_answer_of_one_token_has_no_round() -> None:
    target = tiny_target(layers=2)
    done = generate("none", [1, 2], target=target, max_new_tokens=1)
    assert done.rounds == [[]] and math.isnan(done.tau) and math.isnan(done.tau_macro)


def test_the_drafters_own_budget_is_the_default(target: Target, lookup: Lookup) -> None:
    done = generate(lookup, [[1, 2, 1, 2, 1, 2]], max_new_tokens=20, stop_token_ids=())
    assert max(r.drafted for r in done.rounds[0]) <= lookup.budget.nodes == 4


def test_mistakes_are_one_sentence(target: Target, lookup: Lookup) -> None:
    other = tiny_target(layers=1)
    for said, call in {
        "needs target": lambda: generate("none", "hi"),
        "bound to tiny-bytes": lambda: generate(lookup, "hi", target=other),
        "prompt is empty": lambda: generate(lookup, " "),
        "no prompt": lambda: generate(lookup, []),
        "cannot read a prompt of type float": lambda: generate(lookup, [3.5]),
        "batch_size is 0": lambda: generate(lookup, "hi", batch_size=0),
        "request_ids": lambda: generate(lookup, "hi", request_ids=[1, 2]),
        "temperature is -1": lambda: generate(lookup, "hi", temperature=-1),
        "expected what load": lambda: generate(3, "hi"),  # type: ignore[arg-type]
        "max_new_tokens to at most": lambda: stream(lookup, "hi", max_new_tokens=600),
        "no tokenizer": lambda: generate("none", [1], target=other, max_new_tokens=1).texts,
    }.items():
        with pytest.raises(UsageError, match=said) as caught:
            call()
        assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


def test_a_named_drafter_is_loaded_for_the_target(target: Target) -> None:
    done = generate("lookup", "hi", target=target, budget=Budget.chain(2), max_new_tokens=8)
    assert isinstance(done, Generation) and len(done.tokens[0]) <= 8


def test_trees_are_kept_as_lists() -> None:
    target = tiny_target(layers=2)
    oracle: Oracle = oracle_for(target, [[5, 6]], Sampling(), 20)
    chunks = [c for c in stream(oracle, [5, 6], max_new_tokens=8, keep_trees=True, stop_token_ids=()) if c.round]
    assert all(c.round.tree.tokens[: len(c.round.tree.path) - 1][: len(c.tokens)] == c.tokens[:4] for c in chunks)
