"""benchmarks/peers.py: engines that answer, fail, die or are missing; the figures; and the layout written for peers."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from rich.console import Console

from drafterzoo.budget import Budget
from drafterzoo.drafters.base import UnrollBatch, Unrolling
from drafterzoo.generation import generate
from drafterzoo.registry import DRAFTERS
from tests.tiny import tiny_model, tiny_target

ROOT = Path(__file__).parents[1]
WORKERS = ROOT / "benchmarks" / "peer_workers"
VOCABULARY = 12
ENGINE = """
import sys
sys.path.insert(0, {workers!r})
from serving import Missing, serve

def load(job):
    if job["mood"] == "missing":
        raise Missing("it is not installed here")
    if job["mood"] == "broken":
        raise ValueError("bad weights\\nand more")
    print("chatter that is no answer")

    def plain(prompt, most):
        return [sum(prompt) % 7 + i for i in range(most)], most - 1

    def fast(prompt, most):
        if job["mood"] == "dies":
            sys.exit(3)
        if job["mood"] == "fails":
            raise RuntimeError("no memory")
        return plain(prompt, most)[0][: most - (job["mood"] == "short")], None

    return "engine 1", {{"plain": plain, "fast": fast}}

serve(load, {{"gap": lambda request: {{"gap": 1e-5 if request["mine"] % 2 else 1.0}}}})
"""


def imported(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Any:
    return imported(ROOT / "benchmarks" / "peers.py", monkeypatch)


@pytest.fixture
def start(peers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """start(name, mood) runs the toy engine in a process of its own."""
    (tmp_path / "engine.py").write_text(ENGINE.format(workers=str(WORKERS)))
    monkeypatch.setattr(peers, "WORKERS", tmp_path)
    begun = []

    def run(name: str, mood: str) -> Any:
        begun.append(peers.Worker(name, "engine.py", sys.executable, {"threads": 1, "mood": mood}))
        return begun[-1]

    yield run
    for worker in begun:
        worker.close()


def asked(**values: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"seed": 0, "repeats": 2, "max_new_tokens": 5, "out": None, **values})


def test_engines_answer_interleaved_and_their_figures_are_those_of_their_answers(
    peers: Any, start: Any, tmp_path: Path
) -> None:
    prompts = [[1, 2], [3], [4, 5, 6]]
    rows = [
        peers.Row(worker, name) for worker in (start("drafterzoo", ""), start("llama.cpp", "")) for name in worker.rows
    ]
    peers.measure(rows, prompts, asked(out=tmp_path / "answers.jsonl"))
    lines = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert len(lines) == 4 * 3 * 2
    blocks = [[line["row"] for line in lines[i : i + 4]] for i in range(0, 24, 4)]
    assert all(len(set(block)) == 4 for block in blocks) and len(set(map(tuple, blocks))) > 1
    plain, fast, apart, _ = peers.summarise(rows, prompts)
    assert plain["over_drafterzoo_plain"]["value"] == pytest.approx(1) and plain["tau"] == 1 and fast["tau"] is None
    assert plain["equal"] == fast["equal"] == {"texts": 3, "equal": 3, "ties": 0}
    assert (
        apart["over_drafterzoo_plain"] is None
        and apart["four_bit"]
        and apart["over_own_plain"]["value"] == pytest.approx(1)
    )
    seconds = sum(rows[1].seconds(number) for number in range(3))
    assert fast["tokens_per_second"] == pytest.approx(15 / seconds)
    console = Console(width=200)
    with console.capture() as drawn:
        console.print(peers.drawn(peers.summarise(rows, prompts), "conditions"))
    assert "3/3" in drawn.get() and drawn.get().count("engine 1") == 1


def test_a_difference_is_explained_by_its_gap(peers: Any, start: Any) -> None:
    own = start("drafterzoo", "")
    base, other = peers.Row(own, "plain"), peers.Row(own, "fast")
    base.answers = {(0, 0): {"tokens": [1, 2, 3]}, (1, 0): {"tokens": [1, 2]}, (2, 0): {"tokens": [4, 4]}}
    other.answers = {(0, 0): {"tokens": [1, 2, 9]}, (1, 0): {"tokens": [1]}, (2, 0): {"tokens": [5, 4]}}
    assert peers.equal_texts(other, base, [[0]] * 3) == {"texts": 3, "equal": 0, "ties": 1}


def test_what_cannot_run_or_fails_is_named_and_the_rest_goes_on(peers: Any, start: Any) -> None:
    assert start("a", "missing").missing == "it is not installed here"
    assert start("b", "broken").missing == "it failed to load: ValueError: bad weights"
    prompts = [[1], [2]]
    rows = [
        peers.Row(worker, name) for worker in (start("drafterzoo", "fails"), start("c", "dies")) for name in worker.rows
    ]
    peers.measure(rows, prompts, asked())
    assert rows[1].failed == "RuntimeError: no memory" and "ended with status 3" in rows[3].failed
    assert not rows[0].failed and [figure["row"] for figure in peers.summarise(rows[:2], prompts)] == ["plain"]


def test_peers_that_are_not_installed_say_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    hidden = {"economize", "llama_cpp", "transformers"}
    for name, word in (
        ("economize", "pip install economize"),
        ("llama", "llama-cpp-python"),
        ("transformers", "transformers"),
    ):
        worker = imported(WORKERS / f"{name}_rows.py", monkeypatch)
        with monkeypatch.context() as patch:
            patch.setattr(
                importlib.util, "find_spec", lambda name, *rest: None if name in hidden else find(name, *rest)
            )
            with pytest.raises(worker.Missing, match=word):
                worker.load({"gguf": None})


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A drafter of random weights on a tiny target, written for peers: (drafter, folder of the head)."""
    target = tiny_target(vocab=VOCABULARY)
    torch.manual_seed(0)
    drafter = DRAFTERS.get("eagle3.1").create(target, draft_vocab_size=8).eval()
    drafter.set_vocabulary(torch.arange(3, 11))
    for norm in (*drafter.fc_norm, drafter.norm):
        torch.nn.init.uniform_(norm.weight, 0.5, 2)  # so that a norm left out, or applied twice, shows
    imported(WORKERS / "drafterzoo_rows.py", monkeypatch).export_eagle3(drafter, tmp_path)
    return drafter, tmp_path


def test_the_layout_for_peers_holds_every_weight_once(exported: Any) -> None:
    from safetensors.torch import load_file

    drafter, folder = exported
    head, norms = load_file(folder / "model.safetensors"), load_file(folder / "norms.safetensors")
    assert set(norms) == {f"fc_norm.{i}.weight" for i in range(3)}
    own = {key.replace("layers.0.", "midlayer.") for key in drafter.tensors()}
    assert set(head) | set(norms) == own | {"lm_head.weight"}
    assert torch.equal(head["lm_head.weight"], drafter.head_matrix())
    assert torch.equal(torch.arange(8) + head["d2t"], drafter.vocabulary) and int(head["t2d"].sum()) == 8
    config = json.loads((folder / "config.json").read_text())
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == list(drafter.taps)


@pytest.mark.parity
def test_economize_drafts_the_same_chains_with_these_weights(
    exported: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    heads = pytest.importorskip("economize.techniques.eagle3.technique")
    drafter, folder = exported
    tiny_model(vocab=VOCABULARY).save_pretrained(tmp_path / "target")
    worker = imported(WORKERS / "economize_rows.py", monkeypatch)
    job = {"folder": str(tmp_path / "target"), "head": str(folder), "dtype": "float32", "threads": 1, "nodes": 4}
    _, rows = worker.load({**job, "stops": [VOCABULARY]})
    plain, chain = rows.values()
    drafts: list[int] = []
    score = heads.Eagle3Technique.draft_logits

    def watched(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = score(self, hidden)
        drafts.append(int(logits.argmax()))
        return logits

    monkeypatch.setattr(heads.Eagle3Technique, "draft_logits", watched)
    for prompt in ([3, 9, 4, 9], [5, 6, 7, 8, 3, 10]):
        drafts.clear()
        tokens, calls = chain(prompt, 100)
        options: dict[str, Any] = {"max_new_tokens": 100, "stop_token_ids": [VOCABULARY], "keep_trees": True}
        mine = generate(drafter, prompt, budget=Budget.chain(4), **options)
        assert tokens == plain(prompt, 100)[0] == mine.tokens[0] and calls == len(mine.rounds[0])
        own = [token for made in mine.rounds[0] if made.tree for token in made.tree.tokens]
        assert len(set(own)) > 2, "drafts that do not vary would prove little"
        assert drafts[:300] == own[:300]  # towards the end, economize drafts no further than it may answer


@pytest.fixture
def block_exported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A DFlash of random weights on a tiny target, written for transformers: (drafter, folders of head and target)."""
    pytest.importorskip("transformers.models.muse_glimmer_assistant", reason="this transformers has no DFlash")
    target = tiny_target(vocab=VOCABULARY, layers=4)
    torch.manual_seed(0)
    options = {"taps": (1, 3), "num_layers": 2, "block_size": 5, "mask_token_id": 2, "draft_vocab_size": VOCABULARY}
    drafter = DRAFTERS.get("dflash").create(target, **options).eval()
    for name, weight in drafter.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(weight, 0.5, 2)  # so that a norm left out, or applied twice, shows
    head = tmp_path / "head"
    head.mkdir()
    imported(WORKERS / "drafterzoo_rows.py", monkeypatch).export_dflash(drafter, head)
    tiny_model(vocab=VOCABULARY, layers=4).save_pretrained(tmp_path / "target")
    return drafter, head, tmp_path / "target"


def test_transformers_block_is_ours_with_these_weights(block_exported: Any) -> None:
    from transformers import AutoModel

    drafter, head, _ = block_exported
    theirs = AutoModel.from_pretrained(head).eval()
    tokens = torch.randint(3, VOCABULARY, (1, 12), generator=torch.Generator().manual_seed(1))
    features = drafter.target.read(tokens, drafter.taps).features
    at = torch.arange(12)[None]
    count, size = 8, drafter.config.block_size  # context rows before the anchor
    slots = torch.full((1, size), drafter.config.mask_token_id)
    slots[0, 0] = tokens[0, count]
    with torch.no_grad():
        found = theirs(
            noise_embeds=drafter.embed(slots),
            context_hidden_states=features[:, :count],
            position_ids=torch.arange(count + size)[None],
        ).last_hidden_state[:, 1:]
        batch = UnrollBatch(tokens, features, at, torch.zeros_like(at), queries=torch.tensor([[count - 1]]))
        ours = drafter.block_rows(batch, size - 1, Unrolling())[:, 0]
    torch.testing.assert_close(ours, found, rtol=1e-4, atol=1e-5)


def test_transformers_drafts_the_same_blocks_and_gives_the_same_text(
    block_exported: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.generation import candidate_generator

    drafter, head, folder = block_exported
    worker = imported(WORKERS / "transformers_rows.py", monkeypatch)
    job = {
        "folder": str(folder),
        "head": str(head),
        "dtype": "float32",
        "threads": 1,
        "nodes": 4,
        "stops": [VOCABULARY],
    }
    _, rows = worker.load(job)
    plain, _, block = rows.values()
    seen: list[list[int]] = []
    propose = candidate_generator.DFlashTokenCandidateGenerator.get_candidates

    def watched(self: Any, input_ids: torch.Tensor, *rest: Any, **more: Any) -> Any:
        found = propose(self, input_ids, *rest, **more)
        if found[1] is not None:
            seen.append(found[0][0, input_ids.shape[1] :].tolist())
        return found

    monkeypatch.setattr(candidate_generator.DFlashTokenCandidateGenerator, "get_candidates", watched)
    for prompt in ([3, 9, 4, 9], [5, 6, 7, 8, 3, 10]):
        seen.clear()
        tokens, _ = block(prompt, 60)
        options: dict[str, Any] = {"max_new_tokens": 60, "stop_token_ids": [VOCABULARY], "keep_trees": True}
        mine = generate(drafter, prompt, budget=Budget.chain(4), **options)
        assert tokens == plain(prompt, 60)[0] == mine.tokens[0]
        own = [made.tree.tokens for made in mine.rounds[0] if made.tree]
        assert len({tuple(one) for one in own}) > 2, "drafts that do not vary would prove little"
        rounds = min(len(seen), len(own)) - 2  # near the end either drafts no further than it may answer
        assert rounds > 10 and [one[:4] for one in seen[:rounds]] == own[:rounds]


def test_what_transformers_cannot_be_is_not_written_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = tiny_target(vocab=VOCABULARY, layers=4)
    worker = imported(WORKERS / "drafterzoo_rows.py", monkeypatch)
    for options in ({"qk_norm": False}, {"layout": "anchor_first"}, {"mask_token_id": None}, {"causal": True}):
        whole = {"taps": (1, 3), "num_layers": 1, "block_size": 5, "mask_token_id": 2, **options}
        with pytest.raises(ValueError, match="query and key norms"):
            worker.export_dflash(DRAFTERS.get("dflash").create(target, **whole), tmp_path)
    assert not list(tmp_path.iterdir())
