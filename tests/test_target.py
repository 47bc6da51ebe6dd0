"""The target's forwards: a tree read through the cache is every one of its paths read plainly."""

from __future__ import annotations

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from drafterzoo.errors import DataError, UsageError
from drafterzoo.target import Target
from drafterzoo.target import target as target_module
from tests.tiny import KINDS, WINDOW, tiny_target

PROMPTS = [list(range(5, 5 + 3 * WINDOW)), [3], [20, 21, 22, 23, 24, 25, 26, 27, 28, 29]]
PARENTS = [-1, 0, 0, 1, 2, 2, 3, 6]  # row 0 is the root
TOKENS = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8], [9, 8, 7, 6, 5, 4, 3, 2], [11, 12, 13, 14, 15, 16, 17, 18]])
TAPS = (0, 3, 8, 9)


def ancestors(parents: list[int], row: int) -> list[int]:
    """Rows from the root to `row`."""
    return [] if row < 0 else [*ancestors(parents, parents[row]), row]


def visible(parents: list[int], n: int) -> Tensor:
    mask = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for row in range(len(parents)):
        mask[row, ancestors(parents, row)] = True
    return mask.expand(n, -1, -1)


def depths(parents: list[int]) -> Tensor:
    return torch.tensor([len(ancestors(parents, row)) - 1 for row in range(len(parents))])


def verify(target: Target, cache, tokens: Tensor = TOKENS, parents: list[int] = PARENTS, taps=()):
    positions = cache.lengths[:, None] + depths(parents)
    return target.verify(cache, tokens, positions, visible(parents, len(tokens)), taps)


def plain_logits(target: Target, text: list[int]) -> Tensor:
    with torch.no_grad():
        return target.model(torch.tensor([text])).logits[0, -1]


def assert_paths_match(target: Target, logits: Tensor, texts, tokens: Tensor, parents: list[int], tolerance=5e-5):
    for request, text in enumerate(texts):
        for row in range(len(parents)):
            path = [int(tokens[request, r]) for r in ancestors(parents, row)]
            expected = plain_logits(target, text + path)
            torch.testing.assert_close(logits[request, row], expected, atol=tolerance, rtol=tolerance)


@pytest.fixture(scope="module", params=KINDS)
def target(request: pytest.FixtureRequest) -> Target:
    return tiny_target(request.param)


def test_prefill_and_tree_equal_plain_forwards_on_ragged_batches(target):
    cache = target.open_cache(3, capacity=40, scratch=8)
    reading = target.prefill(cache, PROMPTS, TAPS)
    assert cache.lengths.tolist() == [len(p) for p in PROMPTS]
    assert reading.logits.shape == (3, 1, target.vocab_size)
    for request, prompt in enumerate(PROMPTS):
        expected = plain_logits(target, prompt)
        torch.testing.assert_close(reading.logits[request, 0], expected, atol=5e-5, rtol=1e-5)
    assert_paths_match(target, verify(target, cache).logits, PROMPTS, TOKENS, PARENTS)
    assert cache.lengths.tolist() == [len(p) for p in PROMPTS], "verifying commits nothing"


def test_prompt_rows_carry_true_positions(target):
    cache = target.open_cache(3, capacity=40, scratch=8)
    reading = target.prefill(cache, PROMPTS, (0,))
    for request, prompt in enumerate(PROMPTS):
        row = reading.valid[request]
        assert reading.tokens[request][row].tolist() == prompt
        assert reading.positions[request][row].tolist() == list(range(len(prompt)))
        assert row[-1], "the last column is everybody's last token"


def test_commit_equals_a_fresh_prefill_of_the_accepted_text(target):
    cache = target.open_cache(3, capacity=40, scratch=8)
    target.prefill(cache, PROMPTS)
    verify(target, cache)
    # Paths 0-2-5, 0-1-3-6 and nothing at all (a finished request); entries past the end repeat the last.
    target.commit(cache, torch.tensor([[0, 2, 5, 5], [0, 1, 3, 6], [0, 0, 0, 0]]), torch.tensor([2, 3, -1]))
    texts = [PROMPTS[0] + [1, 3, 6], PROMPTS[1] + [9, 8, 6, 3], PROMPTS[2]]
    assert cache.lengths.tolist() == [len(t) for t in texts]
    after = verify(target, cache)
    fresh_cache = target.open_cache(3, capacity=40, scratch=8)
    target.prefill(fresh_cache, texts)
    fresh = verify(target, fresh_cache)
    torch.testing.assert_close(after.logits, fresh.logits, atol=5e-5, rtol=1e-5)
    assert_paths_match(target, after.logits, texts, TOKENS, PARENTS)


def test_taps_equal_the_hidden_states_transformers_reports(target):
    cache = target.open_cache(3, capacity=40, scratch=8)
    layers = target.num_layers
    taps = (5, 0, layers, layers + 1)
    prompt = target.prefill(cache, PROMPTS, taps)
    tree = verify(target, cache, taps=taps)
    for request, text in enumerate(PROMPTS):
        path = ancestors(PARENTS, 7)
        whole = text + [int(TOKENS[request, r]) for r in path]
        residuals, expected = boundaries(target, whole)
        for place, tap in enumerate(taps):
            columns = slice(place * target.hidden_size, (place + 1) * target.hidden_size)
            want = residuals if tap == layers else expected[min(tap, layers)]
            torch.testing.assert_close(prompt.features[request, -1, columns], want[len(text) - 1], atol=5e-5, rtol=1e-5)
            torch.testing.assert_close(tree.features[request, 7, columns], want[-1], atol=5e-5, rtol=1e-5)


def boundaries(target: Target, text: list[int]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Input of the final norm, and `output_hidden_states` (whose last entry is final-normed), of a plain forward."""
    caught: list[Tensor] = []
    norm = target.model.get_decoder().norm
    hook = norm.register_forward_pre_hook(lambda module, args: caught.append(args[0]))
    with torch.no_grad():
        states = target.model(torch.tensor([text]), output_hidden_states=True).hidden_states
    hook.remove()
    return caught[0][0], tuple(state[0] for state in states)


def hooks(target: Target) -> int:
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in target.model.modules())


def test_hooks_are_gone_after_a_forward(target):
    before = hooks(target)
    cache = target.open_cache(1, 40, 8)
    target.prefill(cache, PROMPTS[:1], TAPS)
    assert hooks(target) == before


def test_what_lies_in_trash_padding_and_unused_rows_changes_nothing(target):
    clean, dirty = (target.open_cache(3, capacity=40, scratch=8) for _ in range(2))
    for pool in dirty._pools.values():
        pool.normal_(std=50)
    before, after = target.prefill(clean, PROMPTS, TAPS), target.prefill(dirty, PROMPTS, TAPS)
    assert torch.equal(before.logits, after.logits)
    valid = before.valid
    assert torch.equal(before.features[valid], after.features[valid])
    for pool in dirty._pools.values():
        pool[..., 40 + 8 :, :] = 1e4
    assert torch.equal(verify(target, clean).logits, verify(target, dirty).logits)


def test_batched_equals_single(target):
    cache = target.open_cache(3, 40, 8)
    target.prefill(cache, PROMPTS)
    together = verify(target, cache).logits
    for request, prompt in enumerate(PROMPTS):
        alone = target.open_cache(1, 40, 8)
        target.prefill(alone, [prompt])
        single = verify(target, alone, TOKENS[request : request + 1]).logits
        torch.testing.assert_close(single[0], together[request], atol=5e-5, rtol=1e-5)


def test_long_prompts_are_read_in_chunks(target, monkeypatch):
    whole, parts = (target.open_cache(3, 40, 8) for _ in range(2))
    expected = target.prefill(whole, PROMPTS, TAPS)
    monkeypatch.setattr(target_module, "PREFILL_ROWS", 7)
    chunked = target.prefill(parts, PROMPTS, TAPS)
    torch.testing.assert_close(chunked.logits, expected.logits, atol=5e-5, rtol=1e-5)
    valid = expected.valid
    torch.testing.assert_close(chunked.features[valid], expected.features[valid], atol=5e-5, rtol=1e-5)
    torch.testing.assert_close(verify(target, parts).logits, verify(target, whole).logits, atol=5e-5, rtol=1e-5)


def test_keep_compacts_and_reorders_requests(target):
    cache = target.open_cache(3, 40, 8)
    target.prefill(cache, PROMPTS)
    verify(target, cache)
    target.commit(cache, torch.tensor([[0, 1, 3]] * 3), torch.tensor([2, 1, 0]))
    texts = [PROMPTS[0] + [1, 2, 4], PROMPTS[1] + [9, 8], PROMPTS[2] + [11]]
    cache.keep(torch.tensor([2, 0]))
    assert cache.n == 2 and cache.lengths.tolist() == [len(texts[2]), len(texts[0])]
    tokens = TOKENS[[2, 0]]
    assert_paths_match(target, verify(target, cache, tokens).logits, [texts[2], texts[0]], tokens, PARENTS)
    target.commit(cache, torch.tensor([[0, 2], [0, 2]]), torch.tensor([1, 1]))
    cache.keep(torch.tensor([1]))
    text = [*texts[0], 1, 3]
    assert_paths_match(target, verify(target, cache, TOKENS[:1]).logits, [text], TOKENS[:1], PARENTS)


def test_reserve_grows_and_keeps_what_is_committed(target):
    cache = target.open_cache(3, 24, 8)
    target.prefill(cache, PROMPTS)
    cache.reserve(200)
    assert cache.capacity == 200 and cache.nbytes == target.cache_nbytes(3, 200, 8)
    assert_paths_match(target, verify(target, cache).logits, PROMPTS, TOKENS, PARENTS)


def test_reading_whole_texts_equals_transformers(target):
    tokens, valid = torch.zeros(4, 24, dtype=torch.int64), torch.zeros(4, 24, dtype=torch.bool)
    places = [(0, slice(0, 24)), (1, slice(0, 1)), (2, slice(0, 10)), (2, slice(14, 24))]  # right padding, left padding
    for row, (prompt, place) in enumerate(places):
        tokens[row, place], valid[row, place] = torch.tensor(PROMPTS[prompt]), True
    reading = target.read(tokens, TAPS, valid)
    unmasked = target.read(tokens[:1], TAPS)
    torch.testing.assert_close(unmasked.features, reading.features[:1], atol=5e-5, rtol=1e-5)
    for row, (prompt, place) in enumerate(places):
        _, states = boundaries(target, PROMPTS[prompt])
        torch.testing.assert_close(reading.hidden[row, place], states[-1], atol=5e-5, rtol=1e-5)
        torch.testing.assert_close(reading.features[row, place, :32], states[0], atol=5e-5, rtol=1e-5)
        assert reading.positions[row, place].tolist() == list(range(len(PROMPTS[prompt])))
    assert reading.logits is None and not reading.hidden.is_inference()


def test_head_is_the_models_own(target):
    reading = target.read(torch.tensor(PROMPTS[:1]))
    torch.testing.assert_close(
        target.head(reading.hidden)[0, -1], plain_logits(target, PROMPTS[0]), atol=5e-5, rtol=1e-5
    )
    state = reading.hidden[0, 0].clone().requires_grad_()
    target.head(state).sum().backward()
    assert state.grad is not None and target.head_weight().grad is None


@settings(max_examples=20, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(data=st.data())
def test_any_tree_equals_its_paths(data):
    # In float64, so that the tolerance leaves no room for a mistake; torch's grouped product of experts has none.
    target = tiny_target(data.draw(st.sampled_from(["llama", "qwen3", "gemma3"])), layers=3, dtype=torch.float64)
    rows = data.draw(st.integers(1, 9))
    parents = [-1] + [data.draw(st.integers(0, row - 1)) for row in range(1, rows)]
    prompts = data.draw(st.lists(st.lists(st.integers(0, 63), min_size=1, max_size=20), min_size=1, max_size=3))
    tokens = torch.tensor([[data.draw(st.integers(0, 63)) for _ in parents] for _ in prompts])
    cache = target.open_cache(len(prompts), 20, rows)
    target.prefill(cache, prompts)
    assert_paths_match(target, verify(target, cache, tokens, parents).logits, prompts, tokens, parents, 1e-11)


def test_decoding_row_by_row_equals_the_models_own_generation(target):
    prompt = PROMPTS[2]
    cache = target.open_cache(1, 60, 1)
    logits, text = target.prefill(cache, [prompt]).logits, list(prompt)
    alone, path = torch.ones(1, 1, 1, dtype=torch.bool), torch.zeros(1, 1, dtype=torch.int64)
    for _ in range(40):
        token = logits[:, -1].argmax(-1, keepdim=True)
        text.append(int(token))
        logits = target.verify(cache, token, cache.lengths[:, None], alone).logits
        target.commit(cache, path, torch.zeros(1, dtype=torch.int64))
    whole = torch.tensor([text])
    with torch.no_grad():
        expected = target.model(whole).logits[0, len(prompt) - 1 : -1].argmax(-1).tolist()
    assert text[len(prompt) :] == expected
    assert len(set(expected)) > 5, "a target that repeats itself would prove little"


def test_gemma2_soft_caps_in_scores_and_logits():
    from transformers import AutoModelForCausalLM, Gemma2Config

    from drafterzoo.target.attention import register

    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=64, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=64, sliding_window=8, attn_logit_softcapping=2.0, final_logit_softcapping=3.0,
        query_pre_attn_scalar=8, initializer_range=0.3,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = [model(torch.tensor([p])).logits[0, -1] for p in PROMPTS]
    model.set_attn_implementation(register())
    target = Target(model)
    cache = target.open_cache(3, 40, 8)
    logits = target.prefill(cache, PROMPTS).logits
    torch.testing.assert_close(logits[:, 0], torch.stack(expected), atol=5e-5, rtol=1e-5)
    assert_paths_match(target, verify(target, cache).logits, PROMPTS, TOKENS, PARENTS)
    hidden = target.read(torch.tensor(PROMPTS[:1])).hidden
    torch.testing.assert_close(target.head(hidden)[0, -1], expected[0], atol=5e-5, rtol=1e-5)
    assert not torch.allclose(hidden[0, -1] @ target.head_weight().T, expected[0], atol=1e-3), "the cap must matter"


def test_folded_attention_equals_the_stock_one(target):
    cache, stock_cache = (target.open_cache(3, 40, 8) for _ in range(2))
    target.prefill(cache, PROMPTS)
    folded = verify(target, cache).logits
    chosen = target.model.config._attn_implementation
    target.model.set_attn_implementation("sdpa")
    try:
        target.prefill(stock_cache, PROMPTS)
        torch.testing.assert_close(verify(target, stock_cache).logits, folded, atol=5e-5, rtol=1e-5)
    finally:
        target.model.set_attn_implementation(chosen)


def test_bytes_are_computed_as_they_are_measured(target):
    cache = target.open_cache(3, 41, 8)
    per_row = target.num_layers * 2 * 2 * 8 * 4  # layers, K and V, heads, dim, bytes
    assert cache.nbytes == target.cache_nbytes(3, 41, 8) == 3 * 56 * per_row


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ([[]], "empty"),
        ([[1] * 41], "do not fit"),
        ([[64]], "0 to 63"),
        ([[-1]], "0 to 63"),
        ([[1], [2]], "2 prompts for a cache of 1"),
    ],
)
def test_bad_prompts_are_refused_in_one_sentence(target, prompts, words):
    cache = target.open_cache(1, 40, 8)
    with pytest.raises((DataError, UsageError), match=words) as caught:
        target.prefill(cache, prompts)
    assert "\n" not in str(caught.value)


def test_capacity_errors_come_before_anything_is_written(target):
    with pytest.raises(UsageError, match="512 positions"):
        target.open_cache(1, 513, 8)
    with pytest.raises(UsageError, match="at least 1"):
        target.open_cache(1, 40, 0)
    with pytest.raises(UsageError, match="cannot be had"):
        target.open_cache(1 << 40, 512, 8)
    cache = target.open_cache(3, 24, 4)
    target.prefill(cache, PROMPTS)
    with pytest.raises(UsageError, match="do not fit"):
        verify(target, cache)
    with pytest.raises(UsageError, match="boundary 10"):
        target.read(torch.tensor([[1, 2]]), (10,))


def test_identity(target):
    print_ = target.fingerprint()
    assert print_["vocab_size"] == 64 and print_["hidden_size"] == 32 and print_["num_layers"] == 8
    assert print_["tokenizer"] is None and print_["name"] == target.name
    assert target.eos_token_ids == (2,) and target.max_positions == 512
    assert torch.equal(target.head_weight(torch.tensor([3, 1])), target.head_weight()[[3, 1]])


def test_generation_config_eos_list_wins():
    target = tiny_target(layers=2)
    target.model.generation_config.eos_token_id = [2, 7]
    assert target.eos_token_ids == (2, 7)


def test_embeddings_are_as_the_first_layer_sees_them():
    target = tiny_target("gemma3", layers=2)
    tokens = torch.tensor([PROMPTS[0]])
    torch.testing.assert_close(target.embed(tokens), target.read(tokens, (0,)).features)
    assert torch.equal(target.embedding_weight(), target.model.get_input_embeddings().weight)


def test_half_precision_runs():
    target = tiny_target(dtype=torch.bfloat16)
    cache = target.open_cache(3, 40, 8)
    target.prefill(cache, PROMPTS)
    logits = verify(target, cache).logits
    assert logits.dtype == torch.bfloat16 and logits.isfinite().all()
