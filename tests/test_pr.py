"""Parallel Reconsideration: second passes as trained, merged and counted; its loss; its checkpoints; its refusals."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from drafterzoo import checkpoint, generate, load
from drafterzoo.budget import Budget
from drafterzoo.composition import create, restore, wrap
from drafterzoo.drafters.base import Drafter, UnrollBatch, Unrolling
from drafterzoo.engine.contract import Committed, Frontier, Offers
from drafterzoo.engine.sampling import Sampler, Sampling, Selector
from drafterzoo.engine.tree import Growth
from drafterzoo.errors import UsageError
from drafterzoo.evaluation.offline.run import evaluate
from drafterzoo.registry import DRAFTERS, parse_spec
from drafterzoo.target import Target
from drafterzoo.training.batches import pack
from drafterzoo.training.features import OnlineFeatures
from drafterzoo.training.objectives.base import TeacherHead, supervised
from drafterzoo.training.objectives.hass import Hass
from drafterzoo.training.objectives.pr import Reconsidering
from drafterzoo.training.objectives.ttt import TTT
from drafterzoo.training.rollouts import Rollouts
from drafterzoo.training.run import train
from drafterzoo.wrappers.pr import Reconsideration
from tests.tiny import tiny_rollouts, tiny_target

VOCAB = 64
RECURRENT = [name for name in DRAFTERS.names() if "recurrent" in DRAFTERS.get(name).capabilities]
QUERIES = ("soft_guess", "hard_guess", "feature", "learned", "token")
PROMPTS = [[5, 6, 7, 5, 6, 9, 5], [3], [11, 4] * 6]


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("llama")


@pytest.fixture
def rollouts(tmp_path: Path) -> Rollouts:
    return tiny_rollouts(tmp_path, VOCAB)


def drafter_of(target: Target, text: str, **options: Any) -> Any:
    spec = parse_spec(text)
    torch.manual_seed(0)
    debug = attrs.asdict(DRAFTERS.get(spec.base).debug_config(target), recurse=False)
    drafter = create(spec, target, {**debug, **options})
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.normal_(std=0.3) if parameter.dim() > 1 else parameter.uniform_(0.5, 1.5)
    drafter.borrow()
    return drafter.eval()


# -- the second pass -----------------------------------------------------------------------------------------------


def second_passes(drafter: Reconsideration, tokens: Tensor, features: Tensor, root: int, steps: int) -> list[Tensor]:
    """Logits [n, D] of what a chain along the text thinks of the node before, step by step from the second on."""
    n = len(tokens)
    state = drafter.open(drafter.target, n, tokens.shape[1], steps, drafter.rows_per_round(steps, 1))
    at = torch.arange(root).expand(n, root)
    valid, last = torch.ones_like(at, dtype=torch.bool), torch.full((n,), root - 1)
    drafter.observe(
        state, Committed(tokens[:, :root], tokens[:, 1 : root + 1], at, features[:, :root], valid, last, longest=root)
    )
    seen: list[Tensor] = []

    def record(logits: Tensor, frontier: Frontier, ids: Tensor | None = None) -> Offers:
        seen.append(logits)
        shape = (*logits.shape[:2], 1)
        return Offers(frontier.nodes, torch.zeros(shape, dtype=torch.int64), torch.zeros(shape))

    rows = [0]  # of the nodes along the text
    for step in range(steps):
        first = 0 if step == 0 else 2 * step - 1  # every step but the first has a row of second thoughts
        visible = torch.zeros(n, 1, first + 1, dtype=torch.bool)
        visible[..., [*rows, first]] = True
        frontier = Frontier(
            step,
            first,
            tokens=tokens[:, root + step, None],
            nodes=torch.full((n, 1), step - 1),
            positions=torch.full((n, 1), root + step),
            sources=torch.full((n, 1), rows[-1]),
            visible=visible,
            valid=torch.ones(n, 1, dtype=torch.bool),
        )
        drafter.expand(state, frontier, record)
        rows += [first] if step else []
    return [logits[:, 1] for logits in seen[1:]]


@pytest.mark.parametrize("options", [*(f"self_query={query!r}" for query in QUERIES), "update='blend'"])
@pytest.mark.parametrize("name", RECURRENT)
def test_second_thoughts_in_drafting_are_those_of_training(target: Target, name: str, options: str) -> None:
    drafter = drafter_of(target, f"{name}+pr(reconsider=1, {options})", num_layers=2)
    tokens = torch.randint(0, VOCAB, (2, 10), generator=torch.Generator().manual_seed(1))
    features = target.read(tokens, drafter.taps).features
    at = torch.arange(10).expand(2, 10)
    levels = drafter.unroll_levels(UnrollBatch(tokens, features, at, torch.zeros_like(at)), 4, Unrolling())
    for root in (1, 3, 5):
        for step, logits in enumerate(second_passes(drafter, tokens, features, root, 5)):
            want = drafter.logits(levels[step].second)[:, root - 1]
            torch.testing.assert_close(logits, want, rtol=1e-4, atol=1e-5 * float(want.detach().abs().max()))
    for j, plain in enumerate(drafter.unroll(UnrollBatch(tokens, features, at, torch.zeros_like(at)), 4)):
        assert torch.equal(levels[j].first, plain)


@pytest.mark.parametrize("name", RECURRENT)
def test_a_feature_in_a_token_s_place_begins_as_large_as_an_embedding(target: Target, name: str) -> None:
    """HASS reads features many times as large as embeddings, side by side and unnormed: its loss would begin at 30."""
    drafter = create(parse_spec(f"{name}+pr"), target, {"draft_vocab_size": VOCAB})
    assert isinstance(drafter, Reconsideration)
    embedded = drafter.base.embed(torch.arange(VOCAB))
    for size in (0.1, 1.0, 50.0):
        query = drafter.own_query(size * torch.randn(7, embedded.shape[-1]))
        torch.testing.assert_close(query.square().mean().sqrt(), embedded.square().mean().sqrt(), rtol=0.05, atol=0.0)


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 3}], ids=["greedy", "sampled"])
def test_without_rows_it_is_the_bare_drafter_bit_for_bit(target: Target, name: str, sampling: dict) -> None:
    bare = drafter_of(target, name)
    whole = wrap(bare, parse_spec(f"{name}+pr(reconsider=0)"))
    how = {"budget": Budget.tree(8), "max_new_tokens": 16, "keep_trees": True, **sampling}
    answers = [generate(one, PROMPTS, **how) for one in (bare, whole)]
    assert answers[0].tokens == answers[1].tokens
    work = [
        [(r.accepted, r.drafted, r.forwards, r.rows, r.tree) for r in rounds] for a in answers for rounds in a.rounds
    ]
    assert work[0][0][-1] is not None, "a tree to compare: tokens, parents, and scores to the last bit"
    assert work[: len(PROMPTS)] == work[len(PROMPTS) :]


@pytest.mark.parametrize("merge", ["best", "newest", "mean"])
@pytest.mark.parametrize("name", RECURRENT)
def test_a_second_pass_moves_a_tree_by_its_share(
    target: Target, name: str, merge: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No share leaves the bare drafter's trees, whichever way two equal chances are merged; all of it replaces."""
    trees: list[list[tuple[int, int]]] = []

    def cut(self: Growth, nodes: int, go: Any = Growth.cut) -> Any:
        tree = go(self, nodes)
        trees.append(sorted(zip(tree.tokens.flatten().tolist(), tree.depths.flatten().tolist(), strict=True)))
        return tree

    def trees_of(one: Any) -> list[list[tuple[int, int]]]:
        trees.clear()
        generate(one, PROMPTS, budget=Budget(nodes=12, depth=5, grow=3, offer=3), max_new_tokens=12)
        return list(trees)

    monkeypatch.setattr(Growth, "cut", cut)
    drafter = drafter_of(target, f"{name}+pr(reconsider=2, update='blend', merge={merge!r})")
    found = {}
    for share in (0.0, 1.0):
        with torch.no_grad():
            drafter.share.fill_(share)
        found[share] = trees_of(drafter)
    replacing = Reconsideration(drafter.base, attrs.evolve(drafter.config, update="replace")).eval()
    replacing.query_proj = drafter.query_proj
    assert found[0.0] == trees_of(drafter.base)
    assert found[1.0] == trees_of(replacing) != found[0.0]


# No candidate is ever left out, so every row is forwarded.
WHOLE = Budget(Budget(1, 5, 3, 3, reconsider=2).capacity, depth=5, grow=3, offer=3, reconsider=2)


def test_its_rows_are_counted_and_bounded(target: Target) -> None:
    drafter = drafter_of(target, "eagle3.1+pr(reconsider=2)")
    (rounds,) = generate(drafter, PROMPTS[:1], budget=WHOLE, max_new_tokens=24).rounds
    assert rounds and all(
        r.forwards == 5 and r.drafted <= WHOLE.nodes for r in rounds[1:]
    )  # the prompt was read before
    # four steps of three grown and, but for the first, which has the root alone, two reconsidered rows, and what was
    # committed since the round before
    assert [r.rows - 4 * 3 - 1 - 3 * 2 for r in rounds[1:]] == [r.committed for r in rounds[:-1]]


def test_few_steps_reconsider_when_told_so(target: Target) -> None:
    extra = []
    for most in (0, 1, 3):
        drafter = drafter_of(target, f"eagle3.1+pr(reconsider=2, recon_steps_max={most})")
        (rounds,) = generate(drafter, PROMPTS[:1], budget=WHOLE, max_new_tokens=24).rounds
        extra.append({r.rows - 4 * 3 - before.committed for before, r in pairwise(rounds)})
    assert extra == [{0}, {1}, {5}]


def test_children_attend_the_pass_that_offered_them(target: Target) -> None:
    """With kv="level1" the row of the second pass stands for the first's, as far down as the branch goes."""
    seen: dict[str, list[tuple[int, Tensor, Tensor]]] = {}
    for kv in ("level0", "level1"):
        drafter = drafter_of(target, f"eagle3.1+pr(reconsider=2, kv={kv!r})")
        rows, draft_rows = seen.setdefault(kv, []), drafter.base.draft_rows

        def noted(state: Any, first: int, *rest: Tensor, rows: Any = rows, go: Any = draft_rows) -> Any:
            rows.append((first, rest[0], rest[3].clone()))
            return go(state, first, *rest)

        drafter.base.draft_rows = noted
        text = generate(drafter, PROMPTS[:1], budget=WHOLE, max_new_tokens=2).tokens
        assert text == generate("none", PROMPTS[:1], target=target, max_new_tokens=2).tokens
    second = {first + i for first, read, _ in seen["level0"] for i in range(3, read.shape[1])}
    for kv, rounds in seen.items():
        attended = [set(v[0, i].nonzero().flatten().tolist()) for _, _, v in rounds for i in range(3)]
        others = [rows - {max(rows)} for rows in attended]
        assert any(rows & second for rows in others) == (kv == "level1")
        assert len({len(rows) for rows in others}) > 1


def test_a_gate_leaves_the_sure_alone(target: Target) -> None:
    """No node hesitates below the smallest chance, so the trees are the bare drafter's, and on a CPU cost no more."""
    drafter = drafter_of(target, "eagle3.1+pr(reconsider=2, gate=1e-9)")
    budget = Budget.tree(12)
    gated, bare = (generate(one, PROMPTS, budget=budget, max_new_tokens=16) for one in (drafter, drafter.base))
    for a, b in zip(gated.rounds, bare.rounds, strict=True):
        assert [(r.accepted, r.drafted) for r in a] == [(r.accepted, r.drafted) for r in b]
    assert [r.rows for r in gated.rounds[0]] == [r.rows for r in bare.rounds[0]]


# -- how the tree takes them ---------------------------------------------------------------------------------------


def offers(nodes: list[int], tokens: list[list[int]], chances: list[list[float]]) -> Offers:
    return Offers(torch.tensor([nodes]), torch.tensor([tokens]), torch.tensor([chances]).log())


@pytest.mark.parametrize(
    ("merge", "children"),
    [
        ("best", {1: 0.5, 2: 0.4, 3: 0.1, 4: 0.2}),
        ("newest", {1: 0.3, 2: 0.4, 3: 0.1, 4: 0.2}),
        ("mean", {1: 0.4, 2: 0.3, 3: 0.05, 4: 0.1}),
    ],
)
def test_what_two_passes_say_of_a_child_is_merged(merge: str, children: dict[int, float]) -> None:
    """3 is not offered again: no likelier than the least that is. Who was not thought over keeps what it has."""
    growth = Growth(torch.tensor([9]), torch.tensor([0]), 16, Budget(12, 3, 2, 3))
    growth.frontier(0)
    growth.add(offers([-1], [[1, 2, 3]], [[0.5, 0.2, 0.1]]), 8)
    growth.frontier(1)
    second = offers(
        [0, 1, -1, -1], [[5, 6, 7]] * 2 + [[2, 1, 4], [3, 8, 9]], [[0.5, 0.3, 0.1]] * 2 + [[0.4, 0.3, 0.2]] * 2
    )
    unwanted = torch.tensor([[False, False, False, True]])[..., None]  # a row of padding offers nothing
    growth.add(attrs.evolve(second, scores=second.scores.masked_fill(unwanted, -torch.inf), merge=merge), 8)
    tree = growth.cut(12)
    nodes = list(zip(tree.tokens[0].tolist(), tree.scores[0].exp().tolist(), tree.parents[0].tolist(), strict=True))
    found = {token: chance for token, chance, parent in nodes[: int(tree.valid.sum())] if not parent}
    assert found == pytest.approx(children)
    below = {nodes[parent - 1][0]: chance for token, chance, parent in nodes if parent and token == 5}
    assert below == pytest.approx({1: children[1] / 2, 2: children[2] / 2})


def test_a_refined_offer_joins_its_siblings_or_betters_them() -> None:
    growth = Growth(torch.tensor([9]), torch.tensor([0]), 16, Budget(12, 3, 2, 3))
    growth.frontier(0)
    growth.add(offers([-1], [[1, 2, 3]], [[0.5, 0.2, 0.1]]), 8)
    assert growth.frontier(1).nodes.tolist() == [[0, 1]]
    # the root, thought over: 2 is likelier than it was, 1 less, and 4 is new; the children of 1 and 2 came with them
    growth.add(
        offers([0, 1, -1], [[5, 6, 7], [5, 6, 7], [2, 1, 4]], [[0.5, 0.3, 0.1], [0.5, 0.3, 0.1], [0.4, 0.3, 0.2]]), 8
    )
    tree = growth.cut(12)
    nodes = list(zip(tree.tokens[0].tolist(), tree.scores[0].exp().tolist(), tree.parents[0].tolist(), strict=True))
    children = {token: chance for token, chance, parent in nodes[: int(tree.valid.sum())] if not parent}
    assert children == pytest.approx({1: 0.5, 2: 0.4, 3: 0.1, 4: 0.2})
    below = {nodes[parent - 1][0]: chance for token, chance, parent in nodes if parent and token == 5}
    assert below == pytest.approx({1: 0.25, 2: 0.2}), "what hangs below a better score is better, too"
    assert int(tree.valid.sum()) == 4 + 6
    growth.budget = Budget(24, 3, 9, 3)
    frontier = growth.frontier(2)
    new = frontier.tokens[0].tolist().index(4)
    assert frontier.sources[0, new] == 3 and frontier.valid[0, new], "it grows on from the second pass's output"
    seen = frontier.visible[0, new].nonzero().flatten().tolist()
    assert seen == [0, 4 + new], "and attends the root's own row, not the second pass's"
    assert 2 not in frontier.tokens[0, frontier.valid[0]].tolist(), "what is merged is no offer"


def test_the_least_sure_are_reconsidered(target: Target) -> None:
    drafter = drafter_of(target, "eagle3.1+pr(reconsider=2, gate=0.6)")
    confidence = torch.tensor([[0.9, 0.2, 0.5, 0.1], [0.7, 0.8, 0.59, 0.95]])
    valid = torch.tensor([[True, True, True, False], [True] * 4])
    nodes = torch.zeros(2, 4, dtype=torch.int64)
    batch = drafter._batch(
        Frontier(1, 1, *(nodes,) * 4, torch.zeros(2, 4, 5, dtype=torch.bool), valid),
        torch.zeros(2, 4, VOCAB),
        Offers(nodes, nodes[..., None], torch.zeros(2, 4, 1)),
    )
    step = attrs.evolve(batch.frontier, step=2, valid=torch.ones(2, 4, dtype=torch.bool))
    chosen, wanted = drafter._hesitant(attrs.evolve(batch, confidence=confidence), step)
    assert chosen[0].tolist() == [1, 2] and wanted[0].tolist() == [True, True]
    assert chosen[1, 0] == 2 and wanted[1].tolist() == [True, False]


@pytest.mark.parametrize("offer", [2, 6, 9])
def test_a_guess_read_off_the_offers_is_the_one_looked_up(target: Target, offer: int) -> None:
    """Greedy offers tell the likeliest tokens already; offers drawn, or fewer than a guess holds, do not."""
    drafter = drafter_of(target, "eagle3.1+pr(guess=6, self_query='soft_guess')")
    logits = torch.randn(2, 5, len(drafter.base.ids), generator=torch.Generator().manual_seed(4)) * 3
    rows = torch.zeros(2, 5, dtype=torch.int64)
    frontier = Frontier(1, 1, *(rows,) * 4, torch.zeros(2, 5, 6, dtype=torch.bool), torch.ones(2, 5, dtype=torch.bool))
    guessed, chances, confidence = drafter.guess(logits[:, :3])
    narrow = attrs.evolve(frontier, tokens=rows[:, :3])
    for sampling in (Sampling(), Sampling(temperature=0.7), Sampling(temperature=0.7, verification="rejection")):
        sampler = Sampler(sampling, torch.arange(2), target.vocab_size, 7)
        sampler.begin(torch.zeros(2, dtype=torch.int64))
        offers = Selector(sampler, offer)(logits, frontier, drafter.base.ids)
        assert offers.likeliest == (sampling.temperature == 0)
        batch = drafter._batch(narrow, logits, offers)
        assert batch.guess is not None and torch.equal(batch.guess[0], guessed)
        torch.testing.assert_close(batch.guess[1], chances)
        torch.testing.assert_close(batch.confidence, confidence)


# -- training ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("balance", ["hesitant", "hinge", "keep"])
@pytest.mark.parametrize("beta", [0.0, 0.7])
@pytest.mark.parametrize(("name", "base"), [("eagle3.1", TTT(passes=(3,))), ("hass", Hass())])
def test_the_loss_is_the_plain_formula(
    target: Target, rollouts: Rollouts, name: str, base: Any, balance: str, beta: float
) -> None:
    drafter = drafter_of(target, f"{name}+pr(alpha=0.5, beta={beta}, balance={balance!r})", draft_vocab_size=VOCAB)
    source = OnlineFeatures(target, rollouts, drafter.taps, 512)
    batch = pack([source.document(i) for i in (0, 1, 2)])
    head = TeacherHead.of(drafter)
    total, notes = Reconsidering(base).loss(drafter, batch, 2, head)
    assert [note.level for note in notes] == [0, 0, 1, 1]
    levels = drafter.unroll_levels(batch, 2, base.unrolling(batch))
    judges = base.judges(batch, 2, head)
    want = base.judged(drafter, batch, [one.first for one in levels], judges)[0]
    want = want + 0.5 * base.judged(drafter, batch, [one.second for one in levels], judges)[0]
    for step, one in enumerate(levels):
        rows = supervised(batch, step)
        feature = batch.hidden[0, batch.queries[0, rows[1]] + 1 + step]
        p = (feature @ target.head_weight(None).T).softmax(-1)
        log_q, again = (drafter.logits(h[rows]).log_softmax(-1) for h in (one.first, one.second))
        loss, before = -(p * again).sum(-1), -(p * log_q).sum(-1)
        worse = (loss > before).float()
        if name == "hass":
            top = torch.zeros_like(p).scatter(-1, p.topk(10).indices, 1.0)
            loss = -(p * (0.1 + top) * again).sum(-1)
            loss = loss + functional.smooth_l1_loss(one.second[rows], feature, reduction="none").mean(-1)
        confidence = log_q.exp().amax(-1)
        assert torch.allclose(notes[step].sure, confidence, atol=1e-5)
        sure = confidence >= 0.5
        if balance == "hesitant":
            doubt = 1 - confidence
            term = (doubt * loss).sum() / doubt.sum()
        elif balance == "hinge":
            term = (loss * worse).mean()
        else:
            q = log_q.detach()
            term = ((q.exp() * (q - again)).sum(-1) * sure).sum() / sure.sum().clamp(min=1)
        want = want + beta * base.pass_weight(step) * term
    torch.testing.assert_close(total, want, rtol=1e-4, atol=1e-5)
    grads = torch.autograd.grad(total, list(drafter.parameters()), retain_graph=True)
    assert all(torch.isfinite(g).all() for g in grads) and all(g.abs().sum() > 0 for g in grads)


def test_stopping_the_gradient_spares_the_first_pass(target: Target) -> None:
    at = torch.arange(8)[None]
    tokens = torch.randint(0, VOCAB, (1, 8), generator=torch.Generator().manual_seed(1))
    moved = []
    for stop in (False, True):
        drafter = drafter_of(target, f"eagle3.1+pr(stop_gradient={stop})")
        features = target.read(tokens, drafter.taps).features
        (one,) = drafter.unroll_levels(UnrollBatch(tokens, features, at, torch.zeros_like(at)), 1, Unrolling())
        one.second.square().sum().backward()
        moved.append(drafter.base.layers[0].mlp.down_proj.weight.grad.clone())
    assert not torch.allclose(moved[0], moved[1])


@pytest.mark.parametrize(
    "spec", ["eagle3.1+pr", "hass+pr(self_query='learned', reconsider=2)", "eagle3+pr(self_query='feature')"]
)
def test_a_run_learns_resumes_and_loads(
    target: Target, rollouts: Rollouts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str
) -> None:
    monkeypatch.setattr("drafterzoo.training.run.load_target", lambda *args, **options: target)
    monkeypatch.setattr("drafterzoo.training.trainer.LEARNT_NOTHING", 0.0)
    bare = parse_spec(spec).base
    objective = {"name": "hass", "passes": [2]} if bare == "hass" else {"name": "ttt", "passes": [2]}
    recipe: dict[str, Any] = {
        "spec": bare,
        "data": {"rollouts": str(rollouts.path), "features": "online", "pack": 40},
        "drafter": {"intermediate_size": 48},
        "objective": objective,
        "optimizer": {"lr": 3e-3},
        "run": {"epochs": 2.0, "log_every": 1, "fit_coupling": 8},
        "evaluate": {"every": 1000, "prompts": 1, "max_new_tokens": 3},
    }
    train(recipe, out=tmp_path / "bare", quiet=True)
    begun = {**recipe, "spec": spec, "init": {"from_checkpoint": str(tmp_path / "bare" / "best")}}
    begun["run"] = {**recipe["run"], "epochs": 6.0, "storage": "float16"}
    result = train(begun, out=tmp_path / "whole", quiet=True)
    lines = [line for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines() if '"loss_again"' in line]
    assert '"agree_again"' in lines[0]
    first, last = (float(line.split('"loss_again": [')[1].split(",")[0].rstrip("]")) for line in (lines[0], lines[-1]))
    assert last < first
    assert train(begun, out=tmp_path / "whole", quiet=True).already and result.summary["finished"]

    drafter = load(f"dir:{tmp_path / 'whole' / 'best'}", target=target)
    assert isinstance(drafter, Reconsideration) and drafter.spec == f"{bare}+pr"
    assert drafter.config == Reconsideration.default_config(target, **parse_spec(spec).wrappers[0][1])
    drafter.save_pretrained(tmp_path / "again")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "whole" / "best" / name).read_bytes()
    text = generate(drafter, PROMPTS, max_new_tokens=12, budget=Budget.tree(8)).tokens
    assert text == generate("none", PROMPTS, target=target, max_new_tokens=12).tokens


@pytest.mark.parametrize("query", ["learned", "feature"])
def test_what_a_wrapper_owns_is_saved_under_its_name(target: Target, tmp_path: Path, query: str) -> None:
    drafter = drafter_of(target, f"eagle3.1+pr(self_query={query!r})")
    drafter.save_pretrained(tmp_path)
    saved = checkpoint.read(tmp_path)
    own = {key.removeprefix("wrappers.pr.") for key in saved.tensors if key.startswith("wrappers.pr.")}
    assert own == {"query" if query == "learned" else "query_proj.weight", "share"}
    assert saved.config["wrappers"][0]["self_query"] == query
    again = restore(saved, target)
    for key, value in drafter.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key
    packed = restore(saved, target)
    packed.pack()
    packed.save_pretrained(tmp_path / "packed")
    assert (tmp_path / "packed" / "model.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()


def test_options_behind_an_address_reach_the_part_that_has_them(target: Target, tmp_path: Path) -> None:
    drafter_of(target, "eagle3.1+pr").save_pretrained(tmp_path)
    drafter = load(f"dir:{tmp_path}(reconsider=0, packed_dtype='float32')", target=target)
    assert (drafter.config.reconsider, drafter.base.config.packed_dtype) == (0, "float32")
    with pytest.raises(UsageError, match="no option 'reconsidr'"):
        load(f"dir:{tmp_path}(reconsidr=0)", target=target)


# -- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("pr", "'pr' is a wrapper and stands behind a drafter, as in 'eagle3.1+pr'."),
        ("pr+hass", "'pr' is a wrapper and stands behind a drafter"),
        ("eagle3.1+hass", "'hass' is a drafter and stands first, before any wrapper."),
        ("lookup+pr", "'pr' cannot wrap 'lookup', which is not recurrent; `drafterzoo show pr` says"),
        ("hass+pr+pr", "'pr' cannot wrap 'hass+pr', which has it already; name a wrapper once."),
        ("lookup+pq", "unknown wrapper 'pq'; there is carryover, pr."),
    ],
)
def test_what_does_not_fit_is_refused(target: Target, spec: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        load(spec, target=target)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("hass+pr(m=3)", "pr: no option 'm'"),
        ("hass+pr(reconsider=-1)", "reconsider=-1, expected a whole number from 0 to 256."),
        ("hass+pr(gate=0)", "gate=0.0, expected a chance above 0, at most 1."),
        ("hass+pr(beta=-1.0)", "beta=-1.0, expected a weight from 0 to a million."),
        ("hass+pr(self_query='own')", "self_query"),
    ],
)
def test_what_cannot_be_made_is_refused(target: Target, spec: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        drafter_of(target, spec)
    assert words in str(refused.value)


def test_a_bare_drafter_is_what_it_was(target: Target) -> None:
    drafter: Drafter = drafter_of(target, "eagle3.1")
    assert not isinstance(drafter, Reconsideration) and drafter.manifest()["wrappers"] == []


# -- the controls --------------------------------------------------------------------------------------------------


def test_to_advance_is_to_forward_the_best_child_left_of_other_nodes() -> None:
    growth = Growth(torch.tensor([9]), torch.tensor([0]), 16, Budget(12, 3, 2, 3, advance=2))
    growth.frontier(0)
    growth.add(offers([-1], [[1, 2, 3]], [[0.5, 0.3, 0.2]]), 8)
    first = growth.frontier(1)
    assert first.tokens.tolist() == [[1, 2, 3]], "one more of one parent is all there is"
    growth.add(offers([0, 1, 2], [[11, 12], [21, 22], [31, 32]], [[0.6, 0.3], [0.9, 0.05], [0.5, 0.4]]), 8)
    # paths: 11 0.30, 21 0.27, 12 0.15, 31 0.10, 32 0.08, 22 0.015
    then = growth.frontier(2)
    assert then.tokens.tolist() == [[11, 21, 12, 31]] and then.valid.all()


@pytest.mark.parametrize("name", ["eagle3.1", "eagle3.1+pr(reconsider=2)"])
def test_whatever_is_forwarded_the_text_is_the_targets(target: Target, name: str) -> None:
    drafter = drafter_of(target, name)
    wanted = generate("none", PROMPTS, target=target, max_new_tokens=20).tokens
    for budget in ("nodes=16,depth=4,grow=2,offer=3,advance=3", "nodes=16,depth=4,grow=5,offer=3"):
        answer = generate(drafter, PROMPTS, budget=Budget.parse(budget), max_new_tokens=20)
        assert answer.tokens == wanted


def test_the_budget_bounds_second_thoughts(target: Target) -> None:
    drafter = drafter_of(target, "eagle3.1+pr(reconsider=3)")
    rows = []
    for most in (0, 1, 5):
        budget = Budget(nodes=30, depth=4, grow=3, offer=3, reconsider=most)
        (rounds,) = generate(drafter, PROMPTS[:1], budget=budget, max_new_tokens=20).rounds
        rows.append({r.rows - 3 * 3 - before.committed for before, r in pairwise(rounds)})
    assert rows == [{7}, {3}, {7}], "the root alone, then two times three; 0 leaves it to the wrapper"


@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_rounds_are_counted_as_decoding_makes_them_or_not_at_all(target: Target, tmp_path: Path, rule: str) -> None:
    path = tmp_path / "r.jsonl"
    lines = []
    for prompt, answer in zip(PROMPTS, generate("none", PROMPTS, target=target, max_new_tokens=20).tokens, strict=True):
        lines.append(json.dumps({"prompt_ids": prompt, "response_ids": answer[:16], "ahead_ids": answer[16:]}))
    path.write_text("\n".join(lines) + "\n")
    drafter = drafter_of(target, "eagle3.1+pr(reconsider=2)")
    how: dict[str, Any] = {"budget": Budget.chain(3), "rule": rule, "out": tmp_path / "out"}
    if rule == "rejection":
        with pytest.raises(UsageError, match="offers more than one child of a node"):
            evaluate(drafter, path, **how)
        return
    counted = evaluate(drafter, path, **how).summary["rows"][0]
    decoded = generate(drafter, PROMPTS, budget=Budget.chain(3), max_new_tokens=16)
    assert counted["rounds"] == sum(map(len, decoded.rounds))
