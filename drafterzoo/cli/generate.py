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

from drafterzoo.cli.console import Json, err, out, print_json
from drafterzoo.errors import UsageError

if TYPE_CHECKING:
    from rich.tree import Tree

    from drafterzoo.target import Target


def generate(
    prompt: str | None = None,
    /,
    *,
    drafter: Annotated[str, Parameter(alias="-d")] = "eagle3.1",
    target: Annotated[str | None, Parameter(alias="-t")] = None,
    budget: Annotated[str | None, Parameter(alias="-b")] = None,
    max_new_tokens: Annotated[int, Parameter(alias="-n")] = 256,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    verification: Literal["match", "rejection"] = "match",
    plain: Annotated[bool, Parameter(negative="")] = False,
    show_tree: Annotated[bool, Parameter(negative="")] = False,
    json: Json = False,
) -> None:
    """Answer a prompt, and draw the trees it was drafted with.

    Example: `drafterzoo generate "Explain rainbows." -d eagle3.1 --budget 8 --show-tree`

    Parameters
    ----------
    prompt
        What to ask, as one user turn; without it, it is read from standard input.
    drafter
        A name, a composition such as `hass+pr(m=3)`, `hub:org/name@revision` or `dir:path`.
    target
        The target's name or directory; without it, the one the drafter was trained for.
    budget
        What a round may spend: `8` (a tree of 8 nodes), `chain:4`, or `nodes=24,depth=6,grow=6,offer=6`.
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
    plain
        Decode without a drafter, through the same engine.
    show_tree
        Draw every round's tree, the accepted path marked.
    """
    import drafterzoo
    from drafterzoo.budget import Budget

    spend = Budget.parse(budget) if budget is not None else None
    asked = _piped() if prompt is None else prompt
    if not asked.strip():
        raise UsageError('the prompt is empty; for example: drafterzoo generate "Explain rainbows."')
    if plain:
        bound = drafterzoo.load_target(target) if target else drafterzoo.load_target()
    else:
        loaded = drafterzoo.load(drafter, target)
        bound = loaded.target
    events = drafterzoo.stream(
        "none" if plain else loaded,
        asked,
        target=bound,
        budget=spend,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        verification=verification,
    )
    answer = follow(events, bound, quiet=json, trees=show_tree)
    if json:
        settings = {
            "drafter": "none" if plain else drafter,
            "target": bound.name,
            "budget": budget,
            "max_new_tokens": max_new_tokens,
        }
        settings |= {
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "seed": seed,
            "verification": verification,
        }
        print_json({**settings, **answer.summary(trees=show_tree)})
    else:
        err().print(answer.remark(), style="dim")


def _piped() -> str:
    """The prompt from standard input; nothing when that is a terminal, where waiting for it would look like a hang."""
    return "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()


@attrs.define
class Answer:
    """What has come so far: the text, its tokens, the rounds that drafted, and how long it took."""

    text: str = ""
    tokens: list[int] = attrs.field(factory=list)
    rounds: list[dict[str, Any]] = attrs.field(factory=list)
    started: float = attrs.field(factory=time.perf_counter)
    seconds: float = 0.0

    @property
    def tau(self) -> float | None:
        """Tokens committed per round, the target's own token included."""
        return sum(r["committed"] for r in self.rounds) / len(self.rounds) if self.rounds else None

    def summary(self, *, trees: bool) -> dict[str, Any]:
        """A plain dict for `--json`; the trees only where asked for."""
        speed = len(self.tokens) / self.seconds if self.seconds else None
        facts = {"text": self.text, "tokens": self.tokens, "rounds": len(self.rounds), "tau": self.tau}
        facts |= {"seconds": self.seconds, "tokens_per_second": speed}
        return {**facts, "trees": self.rounds} if trees else facts

    def remark(self) -> str:
        """One line for people."""
        said = f"{len(self.tokens)} tokens in {self.seconds:.1f} s"
        if self.seconds:
            said += f", {len(self.tokens) / self.seconds:.1f} tokens/s"
        if self.tau is not None:
            said += (
                f"; {len(self.rounds)} rounds with drafts, {self.tau:.2f} tokens a round (the target's own included)"
            )
        return said


def follow(events: Iterable[Any], target: Target, *, quiet: bool, trees: bool) -> Answer:
    """Take the stream to its end, showing text or trees as they come unless `quiet`."""
    answer, root = Answer(), "root"
    for event in events:
        fresh = as_list(event.tokens)
        answer.text += event.text
        answer.tokens += fresh
        answer.seconds = time.perf_counter() - answer.started
        view = describe(event.round, fresh, target)
        if view:
            answer.rounds.append(view)
        if trees and view and not quiet:
            out().print(picture(view, len(answer.rounds), root))
        elif not trees and not quiet:
            sys.stdout.write(event.text)
            sys.stdout.flush()
        if fresh:
            root = target.decode(fresh[-1:])
    if not quiet:
        print(answer.text if trees else "")
    return answer


def describe(view: Any, fresh: Sequence[int], target: Target) -> dict[str, Any]:
    """One round's tree as plain lists, its tokens decoded; empty for a round that drafted nothing."""
    if view is None:
        return {}
    valid = [bool(v) for v in as_list(view.valid)]
    accepted = sorted(set(as_list(view.path)) - {0})
    return {
        "tokens": [target.decode([token]) if ok else "" for token, ok in zip(as_list(view.tokens), valid, strict=True)],
        "parents": as_list(view.parents),
        "scores": [float(s) if ok else None for s, ok in zip(as_list(view.scores), valid, strict=True)],
        "valid": valid,
        "accepted": accepted,
        "committed": len(fresh),
        "next": target.decode(list(fresh[-1:])),
    }


def picture(view: dict[str, Any], number: int, root: str) -> Tree:
    """The drawing of a described round."""
    from drafterzoo.cli.tree_view import draw_tree, visible

    drafted = sum(view["valid"])
    return draw_tree(
        view["tokens"],
        view["parents"],
        valid=view["valid"],
        accepted=view["accepted"],
        scores=[score or 0.0 for score in view["scores"]],
        root=root,
        title=f"round {number}: {len(view['accepted'])} of {drafted} accepted, then {visible(view['next'])}; root",
    )


def as_list(values: Any) -> list[Any]:
    """A tensor, array or sequence as a plain list."""
    return values.tolist() if hasattr(values, "tolist") else list(values)
