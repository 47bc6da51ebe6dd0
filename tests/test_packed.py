"""Packed linear layers give the product of the plain ones, and give their weight back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from drafterzoo.errors import UsageError
from drafterzoo.evaluation.conditions import target_conditions
from drafterzoo.registry import DRAFTERS
from drafterzoo.target import load_target, packed
from drafterzoo.target.packed import PackedLinear, can_pack, pack_linears, packing_works, quickest_dense_rows
from tests.tiny import KINDS, tiny_model, tiny_target

PROMPTS = [list(range(5, 29)), [3], [20, 21, 22, 23]]

needs_float16 = pytest.mark.skipif(not packing_works(torch.float16), reason="this build of torch has no fbgemm")
needs_packing = pytest.mark.skipif(not packing_works(), reason="this build of torch has no oneDNN packing")


@needs_packing
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 8, 50])
def test_product_and_weight_are_those_of_the_dense_layer(bias, rows):
    torch.manual_seed(rows)
    linear = nn.Linear(48, 37, bias=bias)
    layer = PackedLinear(linear)
    x = torch.randn(2, rows, 48)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), linear(x), atol=1e-5, rtol=1e-5)
    assert torch.equal(layer.to_dense(), linear.weight)
    assert not any(p.numel() == 48 * 37 for p in layer.parameters()), "the dense weight must be gone"


@pytest.mark.skipif(not packing_works(torch.bfloat16), reason="this build of torch packs no bfloat16")
@pytest.mark.parametrize("rows", [1, 8, 50])
def test_bfloat16_rounds_the_product_and_gives_the_weight_back(rows):
    torch.manual_seed(rows)
    linear = nn.Linear(48, 37)
    layer = PackedLinear(linear, torch.bfloat16)
    x = torch.randn(2, rows, 48)
    with torch.no_grad():
        exact, near = linear(x), layer(x)
        assert near.dtype == torch.float32 and 0 < float((near - exact).norm() / exact.norm()) < 0.01
    assert torch.equal(layer.to_dense(), linear.weight)


@needs_float16
@pytest.mark.parametrize("width", [48, 64, 7, 130])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 9, 50])
def test_float16_multiplies_rounded_weights_in_float32_and_gives_the_weight_back(width, bias, rows):
    torch.manual_seed(width)
    linear = nn.Linear(width, 37, bias=bias)
    layer = PackedLinear(linear, torch.float16)
    x = torch.randn(2, rows, width)
    with torch.no_grad():
        assert torch.equal(layer.to_dense(), linear.weight)
        linear.weight.copy_(linear.weight.half())
        torch.testing.assert_close(layer(x), linear(x), atol=1e-5, rtol=1e-5)
        stored = PackedLinear(linear, torch.float16)
    assert torch.equal(stored.to_dense(), linear.weight) and stored._dense is None, (
        "nothing was lost, so nothing is kept"
    )


@needs_float16
def test_a_drafter_of_such_weights_is_packed_in_float32_unless_float16_was_asked_for(monkeypatch):
    monkeypatch.setattr("drafterzoo.drafters.base.quickest_dtype", lambda: torch.float16)
    target = tiny_target()
    for asked, chosen in (("auto", torch.float32), ("float32", torch.float32)):
        drafter = DRAFTERS.get("eagle3.1").create(target, taps=(2, 4, 6), packed_dtype=asked)
        drafter.layers[0].mlp.up_proj.weight.data[0, 0] = 7e4
        drafter.pack()
        assert drafter.packed == chosen


@needs_float16
def test_a_weight_beyond_float16_is_refused():
    linear = nn.Linear(8, 6)
    linear.weight.data[2, 3] = 7e4
    with pytest.raises(
        UsageError, match=r"a weight of 7e\+04 cannot be .* ends at 65504; load it with packed_dtype='fl"
    ):
        PackedLinear(linear, torch.float16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
def test_any_input_is_multiplied_and_comes_out_as_it_went_in(dtype, kind):
    if not packing_works(dtype):
        pytest.skip("this build of torch has not the operators")
    torch.manual_seed(0)
    linear = nn.Linear(70, 37)
    layer = PackedLinear(linear, dtype)
    several = (torch.randn(0, 70), torch.randn(2, 0, 70), torch.randn(70), torch.randn(2, 3, 4, 70))
    views = (torch.randn(70, 5, 2).permute(2, 1, 0), torch.randn(4, 140)[:, ::2], torch.randn(1, 70).expand(5, 70))
    with torch.no_grad():
        for x in (*several, *views):
            x = x.to(kind)
            y = layer(x)
            assert y.dtype == kind and y.shape == (*x.shape[:-1], 37)
            torch.testing.assert_close(y.float(), linear(x.float()), atol=0.04, rtol=0.04)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_bias_is_kept_as_it_was(monkeypatch, dtype):
    """Operators of plain torch stand in, since many a CPU has none for bfloat16."""
    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", lambda weight, rows: weight)
    monkeypatch.setattr(
        torch.ops.mkldnn, "_linear_pointwise", lambda x, weight, bias, *_: nn.functional.linear(x, weight, bias)
    )
    monkeypatch.setattr(torch.ops.quantized, "linear_prepack_fp16", lambda weight, bias: weight)
    monkeypatch.setattr(torch.ops.quantized, "linear_dynamic_fp16", nn.functional.linear)
    torch.manual_seed(0)
    linear = nn.Linear(48, 37)
    layer = PackedLinear(linear, dtype)
    assert torch.equal(layer.state_dict()["bias"], linear.bias)
    x = torch.randn(5, 48)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), linear(x), atol=0.05, rtol=0.05)


@needs_packing
def test_autocast_reaches_packed_layers():
    linear = nn.Linear(48, 37, bias=False)
    x = torch.randn(4, 48)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(PackedLinear(linear)(x), linear(x))
        assert PackedLinear(linear)(x).dtype == torch.bfloat16


@needs_packing
def test_gradients_flow_to_the_input():
    linear = nn.Linear(6, 5)
    x = torch.randn(3, 6, requires_grad=True)
    expected = torch.autograd.grad(linear(x).sum(), x)[0]
    torch.testing.assert_close(torch.autograd.grad(PackedLinear(linear)(x).sum(), x)[0], expected)


@needs_packing
@pytest.mark.parametrize("kind", KINDS)
def test_packed_target_equals_plain(kind):
    plain, fast = tiny_target(kind), tiny_target(kind, packed=True)
    assert fast.packed and not plain.packed
    logits = []
    for target in (plain, fast):
        cache = target.open_cache(3, 40, 4)
        first = target.prefill(cache, PROMPTS).logits
        tree = torch.ones(3, 4, 4, dtype=torch.bool).tril()
        positions = cache.lengths[:, None] + torch.arange(4)
        rest = target.verify(cache, torch.arange(12).view(3, 4), positions, tree).logits
        logits.append(torch.cat([first, rest], dim=1))
    torch.testing.assert_close(logits[1], logits[0], atol=1e-4, rtol=0)
    assert torch.equal(logits[1].argmax(-1), logits[0].argmax(-1))
    assert torch.equal(fast.head_weight(), plain.head_weight())
    rows = torch.tensor([5, 0, 63])
    assert torch.equal(fast.head_weight(rows), plain.head_weight(rows))
    assert torch.equal(fast.embedding_weight(), plain.embedding_weight())


@needs_packing
def test_a_tied_head_stays_the_embedding():
    target = tiny_target(packed=True, tie_word_embeddings=True)
    assert target.head_weight() is target.embedding_weight()
    assert target.vocab_size == 64
    hidden = target.read(torch.tensor(PROMPTS[:1])).hidden
    torch.testing.assert_close(target.head(hidden), hidden @ target.embedding_weight().T, atol=1e-5, rtol=1e-5)


def test_only_plain_float32_linears_are_packed():
    class Adapted(nn.Linear):
        """A linear layer that does more than its name says."""

    assert can_pack(nn.Linear(4, 4))
    assert not can_pack(Adapted(4, 4)) and not can_pack(nn.Linear(4, 4).bfloat16()) and not can_pack(nn.Embedding(4, 4))


@needs_packing
def test_a_module_handed_in_is_packed_on_request_only():
    assert not load_target(tiny_model()).packed
    assert load_target(tiny_model(), packed=True).packed


def test_without_the_operators_layers_stay_plain(monkeypatch, tmp_path):
    def missing(linear: nn.Linear, dtype: torch.dtype = torch.float32) -> None:
        raise AttributeError("no such operator")

    packing_works.cache_clear()
    monkeypatch.setattr(packed, "PackedLinear", missing)
    try:
        assert not packing_works()
        tiny_model().save_pretrained(tmp_path)
        assert not load_target(tmp_path).packed
        with pytest.raises(UsageError, match="cannot be packed"):
            load_target(tiny_model(), packed=True)
    finally:
        packing_works.cache_clear()


@needs_packing
def test_packing_counts_its_layers():
    model = tiny_model(layers=2)
    assert pack_linears(model) == 2 * 7 + 1 and pack_linears(model) == 0


@needs_packing
@pytest.mark.parametrize("bias", [False, True])
def test_few_rows_go_through_the_dense_weight_where_that_is_asked_for(bias):
    torch.manual_seed(0)
    linear = nn.Linear(48, 37, bias=bias)
    layer, wholly_packed = PackedLinear(linear, dense_rows=2), PackedLinear(linear)
    x = torch.randn(5, 48)
    with torch.no_grad():
        for few in (x[0], x[:1], x[:2], x[None, :2], x[:0]):
            assert torch.equal(layer(few), linear(few))
        for many in (x[:3], x[None], x[:4].view(2, 2, 48)):
            assert torch.equal(layer(many), wholly_packed(many))
        assert torch.equal(layer(x[:1].double()), linear.double()(x[:1].double()))
    assert torch.equal(layer.to_dense(), linear.weight.float())
    if packing_works(torch.float16):
        assert PackedLinear(nn.Linear(64, 8), torch.float16, dense_rows=2).dense_rows == 0


@needs_packing
@pytest.mark.parametrize(("vendor", "rows"), [("GenuineIntel", 2), ("AuthenticAMD", 0), ("", 0)])
def test_the_maker_of_the_cpu_decides_and_the_conditions_tell(monkeypatch, tmp_path, vendor, rows):
    monkeypatch.setattr(packed, "cpu_vendor", lambda: vendor)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    quickest_dense_rows.cache_clear()
    try:
        tiny_model().save_pretrained(tmp_path)
        target = load_target(tmp_path)
        assert target.packed and target.dense_rows == rows
        assert target_conditions(target)["dense_rows"] == rows
        assert torch.equal(target.head_weight(), load_target(tmp_path, packed=False).head_weight())
    finally:
        quickest_dense_rows.cache_clear()
