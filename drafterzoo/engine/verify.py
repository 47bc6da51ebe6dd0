"""Exact verification: which drafts are kept, and which token of its own the target adds.

Knows draft trees, logits and the sampler; nothing of drafters, budgets, caches or text. Two rules, both lossless.
`match` follows the target's own seed-exact choice from node to node. `rejection` is recursive rejection sampling along
the path (eagle.md 4.4), with exactly the q that was sampled. Both walk level by level on one row of logits per
request, so their cost does not grow with the tree.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import torch
from torch import Tensor

from drafterzoo.engine.contract import DraftTree, Verdict
from drafterzoo.engine.sampling import Sampler, process


def verify(logits: Tensor, tree: DraftTree, sampler: Sampler, depth: int) -> Verdict:
    """The verdict on a tree of at most `depth` levels, by the sampler's rule. logits [n, 1+B, V]: root and nodes."""
    if sampler.sampling.rejects:
        return rejection(logits, tree, sampler, depth).verdict
    return match(logits, tree, sampler, depth)


def match(logits: Tensor, tree: DraftTree, sampler: Sampler, depth: int) -> Verdict:
    """Walk while the target's own choice at a node is one of the node's children."""
    requests = torch.arange(len(logits), device=logits.device)
    return follow(tree, depth, lambda node, level: sampler.choose(logits[requests, node], sampler.roots + level + 1))


def follow(tree: DraftTree, depth: int, choice: Callable[[Tensor, int], Tensor]) -> Verdict:
    """Walk while `choice` is a child: the token [n] that follows the nodes [n] reached at a level (0: the root)."""
    n, device = len(tree.tokens), tree.tokens.device
    node = accepted = torch.zeros(n, dtype=torch.int64, device=device)
    walking = torch.ones(n, dtype=torch.bool, device=device)
    next_token = node
    path = [node]
    deepest = min(depth, tree.width)
    for level in range(deepest + 1):
        token = choice(node, level)
        next_token = torch.where(walking, token, next_token)
        if level == deepest:
            break
        child = (tree.tokens == token[:, None]) & (tree.parents == node[:, None]) & tree.valid
        walking = walking & child.any(dim=1)
        node = torch.where(walking, child.long().argmax(dim=1) + 1, node)
        accepted = accepted + walking
        path.append(node)
    path += [node] * (1 + depth - len(path))
    return Verdict(torch.stack(path, dim=1), accepted, next_token)


@attrs.frozen(eq=False)
class RejectionWalk:
    """A verdict of `rejection` with the chances it was drawn by, so that a test can add up all outcomes.

    tested [n, S] bool: which of the S possible tests were made; chance [n, S]: with which probability each accepts;
    residual [n, V]: what the next token was drawn from (not normalised).
    """

    verdict: Verdict
    tested: Tensor
    chance: Tensor
    residual: Tensor


def rejection(logits: Tensor, tree: DraftTree, sampler: Sampler, depth: int) -> RejectionWalk:
    """Recursive rejection sampling: the children of a node are tried in the order they were drawn.

    A child x is accepted with min(1, p(x)/q(x)); after a rejection p becomes the normalised positive part of p - q,
    and q loses x. With tree.q None the proposals are deterministic: q is one-hot at x, so x is accepted with p(x) and
    p loses x. Each test concerns another node, so there are at most B of them.
    """
    n, width = tree.tokens.shape
    requests = torch.arange(n, device=logits.device)
    first, following = _kinship(tree)
    uniforms = sampler.acceptance_uniforms(width)
    path = torch.zeros(n, 1 + depth, dtype=torch.int64, device=logits.device)
    node = accepted = path[:, 0]
    candidate = first[:, 0]
    p = process(logits[:, 0], sampler.sampling).exp()
    q = None if tree.q is None or not width else _drawn_from(tree, candidate).to(p.dtype)  # nothing may be drafted
    tested, chances = [], []
    for test in range(width):
        if logits.device.type == "cpu" and not bool((candidate > 0).any()):
            break  # asking is free there, and most walks are short
        trying = candidate > 0
        at = (candidate - 1).clamp(min=0)[:, None]
        token = tree.tokens.gather(1, at)
        chance = p.gather(1, token)[:, 0]
        if q is not None:
            chance = (chance / q.gather(1, token)[:, 0].clamp(min=torch.finfo(q.dtype).tiny)).clamp(max=1.0)
        taken = trying & (uniforms[:, test] < chance)
        refused = trying & ~taken
        tested.append(trying)
        chances.append(chance)
        node = torch.where(taken, candidate, node)
        accepted = accepted + taken
        path = torch.where(taken[:, None], path.scatter(1, accepted.clamp(max=depth)[:, None], node[:, None]), path)
        onward, aside = first[requests, candidate], following[requests, candidate]
        before, candidate = candidate, torch.where(taken, onward, torch.where(refused, aside, candidate.new_zeros(())))
        p, q = _after(p, q, token, taken, refused, logits, tree, node, sampler, (before, candidate))
    path = path.cummax(dim=1).values  # a child's index is above its parent's: later entries repeat the last accepted
    verdict = Verdict(path, accepted, sampler.residual_draw(p))
    return RejectionWalk(verdict, _columns(tested, n, p), _columns(chances, n, p), p)


def _after(
    p: Tensor,
    q: Tensor | None,
    token: Tensor,
    taken: Tensor,
    refused: Tensor,
    logits: Tensor,
    tree: DraftTree,
    node: Tensor,
    sampler: Sampler,
    candidates: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor | None]:
    """(p, q) for the next test: fresh at the node that was accepted, the residual where a child was refused.

    candidates [n]: the child that was tested, and the one to test next. Its q is the residual where both were drawn
    together, and its own otherwise.
    """
    requests = torch.arange(len(p), device=p.device)
    fresh = process(logits[requests, node], sampler.sampling).exp()
    left = p.scatter(1, token, 0.0) if q is None else (p - q).clamp(min=0.0)
    mass = left.sum(dim=1, keepdim=True)
    # Without any residual mass p = q up to rounding, and a refusal had no chance: going on with p is as good.
    left = torch.where(mass > 0, left / mass.clamp(min=torch.finfo(p.dtype).tiny), p)
    p = torch.where(taken[:, None], fresh, torch.where(refused[:, None], left, p))
    if q is not None:
        rest = q.scatter(1, token, 0.0)
        rest = rest / rest.sum(dim=1, keepdim=True).clamp(min=torch.finfo(q.dtype).tiny)
        going_on = refused
        if tree.draws is not None:
            now, then = (tree.draws.gather(1, (one - 1).clamp(min=0)[:, None])[:, 0] for one in candidates)
            going_on = refused & (now == then)
        q = torch.where(going_on[:, None], rest, _drawn_from(tree, candidates[1]).to(q.dtype))
    return p, q


def _drawn_from(tree: DraftTree, candidate: Tensor) -> Tensor:
    """The distributions [n, V] that the nodes of indices [n] were drawn from; any where there is none (0)."""
    assert tree.q is not None, "asked for deterministic proposals"
    return tree.q[torch.arange(len(candidate), device=candidate.device), (candidate - 1).clamp(min=0)]


def _kinship(tree: DraftTree) -> tuple[Tensor, Tensor]:
    """(first child, next sibling) [n, 1+B] of every index; 0 for none. Siblings stand in the order of their offer."""
    n, width = tree.tokens.shape
    nodes = torch.arange(1, width + 1, device=tree.tokens.device)
    none = width + 1
    indices = torch.arange(width + 1, device=nodes.device)
    child = (tree.parents[:, None, :] == indices[:, None]) & tree.valid[:, None, :]  # [n, parent, node]
    first = torch.where(child, nodes, none).amin(dim=2) if width else nodes.new_full((n, 1), none)
    sibling = (tree.parents[:, None, :] == tree.parents[:, :, None]) & tree.valid[:, None, :] & tree.valid[:, :, None]
    later = sibling & (nodes > nodes[:, None])
    after = torch.where(later, nodes, none).amin(dim=2) if width else nodes.new_zeros(n, 0)
    after = torch.cat((nodes.new_full((n, 1), none), after), dim=1)
    return first.masked_fill(first == none, 0), after.masked_fill(after == none, 0)


def _columns(parts: list[Tensor], n: int, like: Tensor) -> Tensor:
    return torch.stack(parts, dim=1) if parts else like.new_zeros(n, 0)
