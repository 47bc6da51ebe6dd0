"""What every drafter with a network must hold: drafting is the training forward, checkpoints return byte for byte."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from drafterzoo import checkpoint
from drafterzoo.drafters.base import Drafter, UnrollBatch
from drafterzoo.drafters.eagle3 import Eagle3
from drafterzoo.drafters.eagle3_body import Eagle3Body
from drafterzoo.drafters.eagle31 import Eagle31
from drafterzoo.engine.contract import Committed, Frontier, Offers
from drafterzoo.errors import CheckpointError, UsageError
from drafterzoo.registry import DRAFTERS
from drafterzoo.target.packed import packing_works
from tests.tiny import tiny_target

FLAGS = [
    {},
    {"norm_output": True},
    {"fc_norm": True, "norm_output": True},
    {"norm_before_fc": True},
    {"norm_before_residual": True},
    {"qk_norm": True, "attention_bias": True, "num_layers": 2, "norm_output": True},
    {"taps": (0, 3, 8, 9), "head": "borrowed", "fc_norm": True},
    {"hidden_size": 48, "embedding": "own", "norm_output": True},
    {"draft_vocab_size": 64, "head": "borrowed"},
    {"sliding_window": 4, "num_layers": 2},
]


WITH_WEIGHTS = [name for name in DRAFTERS.names() if DRAFTERS.get(name).has_weights]


class Recorder:
    """Stands in for the engine's sampler: keeps the logits it is handed."""

    def __init__(self) -> None:
        self.logits: list[Tensor] = []

    def __call__(self, logits: Tensor, frontier: Frontier, vocabulary: Tensor | None = None) -> Offers:
        self.logits.append(logits)
        return Offers(
            frontier.nodes, torch.zeros(*logits.shape[:2], 1, dtype=torch.int64), logits.new_zeros(*logits.shape[:2], 1)
        )


def random_drafter(options: dict, seed: int = 0) -> Drafter:
    torch.manual_seed(seed)
    target = tiny_target("llama")
    config = attrs.evolve(Eagle3.debug_config(target), **options)
    drafter = Eagle3(config, target).eval()
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.normal_(std=0.3) if parameter.dim() > 1 else parameter.uniform_(0.5, 1.5)
    drafter.borrow()
    return drafter


def text(drafter: Drafter, n: int = 2, length: int = 9) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(0, drafter.target.vocab_size, (n, length), generator=torch.Generator().manual_seed(1))
    return tokens, drafter.target.read(tokens, drafter.taps).features


def draft_along(drafter: Drafter, tokens: Tensor, features: Tensor, root: int, steps: int) -> list[Tensor]:
    """Draft a chain that follows the text, with x_root as the root: the logits of every step [n, D]."""
    n = len(tokens)
    state = drafter.open(drafter.target, n, tokens.shape[1], steps, drafter.rows_per_round(steps, 1))
    at = torch.arange(root).expand(n, root)
    drafter.observe(
        state,
        Committed(
            tokens[:, :root],
            tokens[:, 1 : root + 1],
            at,
            features[:, :root],
            torch.ones_like(at, dtype=torch.bool),
            torch.full((n,), root - 1),
            longest=root,
        ),
    )
    recorder = Recorder()
    for step in range(steps):
        whole = torch.ones(n, 1, max(step, 0) + 1, dtype=torch.bool)
        here = torch.full((n, 1), root + step)
        frontier = Frontier(
            step,
            step,
            tokens=tokens[:, root + step, None],
            nodes=torch.full((n, 1), step - 1),
            positions=here,
            sources=torch.full((n, 1), max(step - 1, 0)),
            visible=whole,
            valid=torch.ones(n, 1, dtype=torch.bool),
        )
        drafter.expand(state, frontier, recorder)
    return [logits[:, 0] for logits in recorder.logits]


def check_drafts_as_trained(drafter: Drafter, passes: int = 4) -> None:
    """Invariant 4: step by step along a text, with caches, equals the parallel training forward."""
    tokens, features = text(drafter)
    n, length = tokens.shape
    at = torch.arange(length).expand(n, length)
    batch = UnrollBatch(tokens, features, at, torch.zeros_like(at))
    unrolled = [drafter.logits(h) for h in drafter.unroll(batch, passes)]
    for root in (1, 3, length - passes):
        for step, logits in enumerate(draft_along(drafter, tokens, features, root, passes)):
            want = unrolled[step][:, root - 1]
            # of the largest logit: sums are rounded at its scale, and in another order with other threads
            torch.testing.assert_close(logits, want, rtol=1e-5, atol=1e-5 * float(want.detach().abs().max()))


@pytest.mark.parametrize("name", WITH_WEIGHTS)
def test_every_registered_drafter_drafts_as_it_was_trained(name: str) -> None:
    torch.manual_seed(0)
    target = tiny_target("llama")
    cls = DRAFTERS.get(name)
    check_drafts_as_trained(cls(cls.debug_config(target), target).eval())


@pytest.mark.parametrize("options", FLAGS, ids=lambda o: ",".join(f"{k}={v}" for k, v in o.items()) or "plain")
def test_drafting_equals_the_training_forward_with_every_flag(options: dict) -> None:
    check_drafts_as_trained(random_drafter(options))


def test_documents_packed_into_one_row_do_not_see_each_other() -> None:
    drafter = random_drafter({"fc_norm": True, "norm_output": True})
    tokens, features = text(drafter)
    length = tokens.shape[1]
    apart = UnrollBatch(
        tokens, features, torch.arange(length).expand(2, length), torch.zeros(2, length, dtype=torch.int64)
    )
    packed = UnrollBatch(
        tokens.reshape(1, -1),
        features.reshape(1, 2 * length, -1),
        torch.arange(length).repeat(2)[None],
        torch.arange(2).repeat_interleave(length)[None],
    )
    for step, (a, b) in enumerate(zip(drafter.unroll(apart, 3), drafter.unroll(packed, 3), strict=True)):
        known = length - 1 - step  # later rows read past the end of their document and carry no loss
        torch.testing.assert_close(a[:, :known], b.view(2, length, -1)[:, :known], rtol=0, atol=1e-5)


@pytest.mark.parametrize("layers", [1, 2])
def test_wanted_rows_alone_are_the_same_rows(layers: int) -> None:
    drafter = random_drafter({"fc_norm": True, "norm_output": True, "num_layers": layers})
    tokens, features = text(drafter)
    at = torch.arange(tokens.shape[1]).expand_as(tokens)
    batch = UnrollBatch(tokens, features, at, torch.zeros_like(at))
    queries = torch.tensor([[2, 3, 6], [0, 4, 5]])
    for a, b in zip(drafter.unroll(batch, 3), drafter.unroll(attrs.evolve(batch, queries=queries), 3), strict=True):
        torch.testing.assert_close(a[torch.arange(2)[:, None], queries], b, rtol=0, atol=1e-5)


def test_gradients_reach_every_trained_parameter_and_no_borrowed_one() -> None:
    drafter = random_drafter({"fc_norm": True, "norm_output": True, "head": "borrowed"})
    tokens, features = text(drafter)
    at = torch.arange(tokens.shape[1]).expand_as(tokens)
    read = drafter.unroll(UnrollBatch(tokens, features, at, torch.zeros_like(at)), 2)
    sum(drafter.logits(h).square().sum() for h in read).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in drafter.parameters())
    assert not {"lm_head.weight", "embed_tokens.weight"} & drafter.state_dict().keys()
    assert drafter.head_matrix().grad is None and not drafter.target.embedding_weight().requires_grad


@pytest.mark.parametrize("name", WITH_WEIGHTS)
@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
def test_save_load_save_is_byte_equal(name: str, stored: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    target, cls = tiny_target("llama"), DRAFTERS.get(name)
    drafter = cls(cls.debug_config(target), target)
    if isinstance(drafter, Eagle3Body):
        drafter.set_vocabulary(torch.randperm(target.vocab_size)[: drafter.config.draft_vocab_size])
    drafter.storage_dtype = stored
    drafter.save_pretrained(tmp_path / "a")
    again = cls.from_checkpoint(checkpoint.read(tmp_path / "a"), target)
    again.save_pretrained(tmp_path / "b")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert again.config == drafter.config and again.spec == drafter.spec and again.budget == drafter.budget
    kinds = {value.dtype for value in load_file(tmp_path / "a" / "model.safetensors").values()}
    assert stored in kinds and kinds <= {stored, torch.int64, torch.bool}, "maps keep their own kind"
    if isinstance(drafter, Eagle3Body):
        assert torch.equal(again.vocabulary, drafter.vocabulary)


@pytest.mark.parametrize(("packed_dtype", "near"), [("float32", 1e-5), ("bfloat16", 0.1), ("float16", 1e-2)])
def test_packed_layers_draft_and_save_the_same(tmp_path: Path, packed_dtype: str, near: float) -> None:
    if not packing_works(getattr(torch, packed_dtype)):
        pytest.skip(f"this build of torch cannot pack linear layers in {packed_dtype}")
    drafter = random_drafter({"head": "borrowed", "fc_norm": True, "norm_output": True, "packed_dtype": packed_dtype})
    tokens, features = text(drafter)
    before = draft_along(drafter, tokens, features, 3, 4)
    drafter.save_pretrained(tmp_path / "dense")
    matrix = drafter.head_matrix()
    drafter.pack()
    assert not any(isinstance(m, torch.nn.Linear) for m in drafter.modules())
    assert drafter.packed == getattr(torch, packed_dtype)
    for a, b in zip(before, draft_along(drafter, tokens, features, 3, 4), strict=True):
        torch.testing.assert_close(a, b, rtol=near, atol=near)
    drafter.save_pretrained(tmp_path / "packed")
    assert torch.equal(drafter.head_matrix(), matrix)
    dense, packed = ((tmp_path / k / "model.safetensors").read_bytes() for k in ("dense", "packed"))
    assert dense == packed


@pytest.mark.parametrize(
    ("native", "kernel", "chosen"), [(True, True, "bfloat16"), (False, True, "float16"), (False, False, "float32")]
)
def test_packed_layers_multiply_in_what_is_quickest_here(
    monkeypatch: pytest.MonkeyPatch, native: bool, kernel: bool, chosen: str
) -> None:
    if not packing_works(torch.bfloat16) or not packing_works(torch.float16):
        pytest.skip("this build of torch packs no bfloat16 or float16")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native, raising=False)
    monkeypatch.setattr("drafterzoo.target.packed.packing_works", lambda dtype: kernel or dtype != torch.float16)
    drafter = random_drafter({"head": "borrowed"})
    assert drafter.packed is None
    drafter.pack()
    assert drafter.packed == getattr(torch, chosen)


def test_a_packed_dtype_that_this_machine_cannot_multiply_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drafterzoo.drafters.base.packing_works", lambda dtype=torch.float32: dtype == torch.float32)
    with pytest.raises(UsageError, match=r"cannot multiply packed layers in bfloat16; load it with packed_dtype='fl"):
        random_drafter({"packed_dtype": "bfloat16"}).pack()


def edited(folder: Path, **changes: Tensor | None) -> Path:
    tensors = load_file(folder / "model.safetensors")
    for key, value in changes.items():
        key = key.replace("__", ".")
        if value is None:
            del tensors[key]
        else:
            tensors[key] = value
    save_file(tensors, folder / "model.safetensors")
    return folder


def saved(tmp_path: Path) -> Path:
    drafter = random_drafter({})
    drafter.set_vocabulary(torch.arange(1, 64)[: drafter.config.draft_vocab_size])
    return drafter.save_pretrained(tmp_path / "checkpoint")


D = 48  # draft vocabulary of the debug size


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fc__weight": None}, ["fc.weight", "missing", "[32, 96]"]),
        ({"surplus__weight": torch.zeros(1)}, ["surplus.weight", "not used"]),
        ({"fc__weight": torch.zeros(32, 64)}, ["fc.weight", "[32, 64]", "[32, 96]"]),
        ({"norm__weight": torch.full((32,), float("nan"))}, ["norm.weight", "not finite"]),
        ({"d2t": torch.zeros(D, dtype=torch.int64)}, ["d2t is all zeros", "offsets"]),
        ({"d2t": torch.arange(1, D + 1)}, ["absolute ids"]),
        ({"t2d": torch.zeros(64, dtype=torch.bool)}, ["t2d marks 0 ids", str(D)]),
        ({"t2d": torch.arange(64) < D}, ["different ids"]),
        ({"d2t": torch.ones(D)}, ["d2t", "torch.float32"]),
    ],
    ids=lambda v: ",".join(v) if isinstance(v, dict) else "",
)
def test_a_damaged_checkpoint_is_refused_in_a_sentence(changes: dict, words: list[str], tmp_path: Path) -> None:
    folder = edited(saved(tmp_path), **changes)
    with pytest.raises(CheckpointError) as caught:
        Eagle3.from_checkpoint(checkpoint.read(folder), tiny_target("llama"))
    message = str(caught.value)
    assert all(word in message for word in [*words, "model.safetensors"]), message
    assert "\n" not in message


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: truncated or damaged"):
        checkpoint.read(folder)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('"draft_vocab_size": "48"', "draft_vocab_size' is '48', expected a whole number"),
        ('"draft_vocab_sise": 48', "unknown key 'draft_vocab_sise' (did you mean 'draft_vocab_size'?)"),
    ],
)
def test_a_wrong_config_key_is_named(line: str, words: str, tmp_path: Path) -> None:
    folder = saved(tmp_path)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"draft_vocab_size": 48', line))
    with pytest.raises(CheckpointError) as caught:
        Eagle3.from_checkpoint(checkpoint.read(folder), tiny_target("llama"))
    assert words in str(caught.value) and "config.json" in str(caught.value)


def test_a_checkpoint_of_another_target_is_refused(tmp_path: Path) -> None:
    native = checkpoint.read(saved(tmp_path))
    with pytest.raises(CheckpointError, match=r"vocab_size 64, but .* has 80"):
        Eagle3.from_checkpoint(native, tiny_target("llama", vocab=80))


def test_a_failed_save_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tmp_path)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        random_drafter({}, seed=3).save_pretrained(folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_options_and_sizes_are_checked() -> None:
    target = tiny_target("llama")
    with pytest.raises(UsageError, match=r"no option 'tap' \(did you mean 'taps'\?\)"):
        Eagle3.create(target, tap=(1, 2))
    with pytest.raises(UsageError, match="fc_norm and norm_before_fc exclude"):
        Eagle31.create(target, norm_before_fc=True)
    with pytest.raises(UsageError, match="embedding='own'"):
        Eagle3.create(target, hidden_size=64)
    for repeated in ((0, 0, 0), (2, 4, 2)):
        with pytest.raises(UsageError, match=r"taps=\[.*\] name a boundary more than once; name each once"):
            Eagle3.create(target, taps=repeated)
    with pytest.raises(UsageError, match="at least 7 layers"):
        Eagle3.create(tiny_target("llama", layers=4))
    with pytest.raises(UsageError, match="48 different ids"):
        random_drafter({}).set_vocabulary(torch.arange(47))


def test_the_usual_taps_and_the_flags_of_3_1() -> None:
    target = tiny_target("llama")
    assert Eagle3.create(target).taps == (2, 4, 5)
    config = Eagle31.create(target).config
    assert config.fc_norm and config.norm_output and not config.norm_before_fc
