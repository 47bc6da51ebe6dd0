"""`drafterzoo generate`: one prompt answered while you watch, with the trees it was drafted with.

Knows what `drafterzoo.stream` yields and how to lay it out; nothing of how a tree is grown or verified.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import attrs
from cyclopts import Parameter

from drafterzoo.cli.console import Json, err, out, print_json, use_threads
from drafterzoo.errors import UsageError
from drafterzoo.wording import quantity

if TYPE_CHECKING:
    from rich.tree import Tree

    from drafterzoo.engine.decode import TreeView
    from drafterzoo.generation import Chunk
    from drafterzoo.target import Target


def generate(
    prompt: str | None = None,
    /,
    *,
    drafter: Annotated[str, Parameter(alias="-d")] = "eagle3.1",
    target: Annotated[str | None, Parameter(alias="-t")] = None,
    budget: Annotated[str | None, Parameter(alias=["-b", "--nodes"])] = None,
    max_new_tokens: Annotated[int, Parameter(alias="-n")] = 256,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    verification: Literal["match", "rejection"] = "match",
    uncoupled: Annotated[bool, Parameter(negative="")] = False,
    plain: Annotated[bool, Parameter(negative="")] = False,
    show_tree: Annotated[bool, Parameter(negative="")] = False,
    threads: int | None = None,
    json: Json = False,
) -> None:
    """Answer a prompt, and draw the trees it was drafted with.

    Example: `drafterzoo generate "Explain rainbows." -d eagle3.1 --budget tree:8 --show-tree`

    Parameters
    ----------
    prompt
        What to ask, as one user turn; without it, it is read from standard input.
    drafter
        A name, `dir:path` or `hub:org/name@revision`, with options if need be (`lookup(max_ngram=4)`); `none` means
        --plain.
    target
        The target's name or directory; without it, the one the drafter was trained for.
    budget
        What a round may spend, typed as tables print it: `tree:8` (a tree of 8 nodes; `8` for short), `chain:4`, or all
        of it, `nodes=24,depth=6,grow=6,offer=6`. Behind each may stand `,p_min=0.1`: end a draft early where the
        drafter gives it less than this chance. Default: the drafter's own.
    max_new_tokens
        Stop after this many tokens at the latest.
    temperature
        0 takes the likeliest token; above 0 draws.
    top_p
        Draw from the likeliest tokens that together hold this probability.
    top_k
        Draw from this many likeliest tokens; 0 for all.
    seed
        The same seed gives the same text, whatever the drafter (with `match`).
    verification
        `match` follows the target's own choice; `rejection` accepts in distribution.
    uncoupled
        When sampling, let the drafter rank its children without the target's noise.
    plain
        Decode without a drafter, through the same engine.
    show_tree
        Draw every round's tree, the accepted path marked, and the answer below the last.
    threads
        CPU threads; changes speed alone.
    """
    import drafterzoo
    from drafterzoo.budget import Budget

    if threads is not None:
        use_threads(threads)
    plain = plain or drafter == "none"
    spend = Budget.parse(budget) if budget is not None else None
    asked = _piped() if prompt is None else prompt
    if not asked.strip():
        raise UsageError('the prompt is empty; for example: drafterzoo generate "Explain rainbows."')
    if plain:
        bound = drafterzoo.load_target(target) if target else drafterzoo.load_target()
    else:
        loaded = drafterzoo.load(drafter, target)
        bound, spend = loaded.target, spend or loaded.budget
    settings: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p}
    settings |= {"top_k": top_k, "seed": seed, "verification": verification, "coupled": not uncoupled}
    chunks = drafterzoo.stream(
        "none" if plain else loaded, asked, target=bound, budget=spend, keep_trees=show_tree, **settings
    )
    answer = follow(chunks, bound, quiet=json, trees=show_tree)
    if json:
        named = {"drafter": "none" if plain else drafter, "target": bound.name}
        print_json({**named, "budget": None if plain else str(spend), **settings, **answer.summary()})
    else:
        err().print(answer.remark(), style="dim", soft_wrap=True)


def _piped() -> str:
    """The prompt from standard input; nothing when that is a terminal, where waiting for it would look like a hang."""
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UsageError("standard input: not text in this terminal's encoding; give the prompt in UTF-8.") from error


@attrs.define
class Answer:
    """What has come so far: the text, its tokens, tokens committed by each round, trees if kept, the time taken."""

    text: str = ""
    tokens: list[int] = attrs.field(factory=list)
    committed: list[int] = attrs.field(factory=list)
    trees: list[dict[str, Any]] = attrs.field(factory=list)
    started: float = attrs.field(factory=time.perf_counter)
    seconds: float = 0.0

    @property
    def tau(self) -> float | None:
        """Tokens committed per target call, the target's own included; None before the first call after prefill."""
        return sum(self.committed) / len(self.committed) if self.committed else None

    def add(self, chunk: Chunk) -> None:
        """Take in what has just come."""
        self.text += chunk.text
        self.tokens += chunk.tokens
        self.seconds = time.perf_counter() - self.started
        if chunk.round is not None:
            self.committed.append(chunk.round.committed)

    def summary(self) -> dict[str, Any]:
        """A plain dict for `--json`; trees only where they were asked for."""
        speed = len(self.tokens) / self.seconds if self.seconds else None
        facts = {"text": self.text, "tokens": self.tokens, "rounds": len(self.committed), "tau": self.tau}
        facts |= {"seconds": self.seconds, "tokens_per_second": speed}
        return facts | ({"trees": self.trees} if self.trees else {})

    def remark(self) -> str:
        """One line for people."""
        speed = f", {len(self.tokens) / self.seconds:.1f} tokens/s" if self.seconds else ""
        said = f"{quantity(len(self.tokens), 'token')} in {self.seconds:.1f} s{speed}"
        if self.tau is None:
            return said
        calls = quantity(len(self.committed), "target call")
        return f"{said}; {calls} after prefill, {self.tau:.2f} tokens each"


def follow(chunks: Iterable[Chunk], target: Target, *, quiet: bool, trees: bool) -> Answer:
    """Take the stream to its end, showing text or trees as they come unless `quiet`."""
    answer, root = Answer(), ""
    try:
        for chunk in chunks:
            answer.add(chunk)
            tree = chunk.round.tree if chunk.round else None
            if tree is not None and chunk.round is not None:
                answer.trees.append(describe(tree, root, chunk.tokens[chunk.round.accepted :], target))
                if not quiet:
                    if len(answer.trees) == 1:
                        out().print("✓ accepted; %: the drafter's own chance of the path down to a node", style="dim")
                    out().print(picture(answer.trees[-1], len(answer.trees)))
            if not quiet and not trees:
                sys.stdout.write(chunk.text)
                sys.stdout.flush()
            if chunk.tokens:
                root = _token(chunk.tokens[-1], target)
    finally:  # cut short, too: what is said next begins on a line of its own
        if not quiet:
            print(f"\n{answer.text}" if trees else "")
    return answer


def describe(tree: TreeView, root: str, after: Sequence[int], target: Target) -> dict[str, Any]:
    """One round's tree with its tokens decoded. after: what was committed behind the accepted drafts."""
    return {
        "root": root,
        "tokens": [_token(token, target) if ok else "" for token, ok in zip(tree.tokens, tree.valid, strict=True)],
        "parents": tree.parents,
        "scores": [score if ok else None for score, ok in zip(tree.scores, tree.valid, strict=True)],
        "valid": tree.valid,
        "accepted": sorted(set(tree.path) - {0}),
        "then": [_token(token, target) for token in after],
    }


def picture(tree: dict[str, Any], number: int) -> Tree:
    """The drawing of a described round."""
    from drafterzoo.cli.tree_view import draw_tree, visible

    drafts = f"{len(tree['accepted'])} of {sum(tree['valid'])} accepted" if any(tree["valid"]) else "no drafts"
    then = "".join(f", then {visible(token)}" for token in tree["then"])
    return draw_tree(
        tree["tokens"],
        tree["parents"],
        valid=tree["valid"],
        accepted=tree["accepted"],
        scores=[score or 0.0 for score in tree["scores"]],
        root=tree["root"],
        title=f"round {number}: {drafts}{then}; root",
    )


def _token(token: int, target: Target) -> str:
    """A single token as text, special tokens included; without a tokenizer, its number."""
    return str(token) if target.tokenizer is None else str(target.tokenizer.decode([token]))
