"""What one round may spend: the only knob that must be equal for two drafters to be compared.

Knows nothing of drafters, targets or tensors. Words are those of the design: nodes are draft nodes verified per
target call, the root excluded; depth counts draft steps, which is also the deepest a node can lie.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

import attrs

from drafterzoo.errors import UsageError, suggest

MOST = 4096  # of anything: the mask of a tree of n nodes has n*n entries
CHANCES = ("p_min", "c_min")
SCHEDULES = ("none", "prefix", "uniform")
EXPECTED = "a number from 0 to below 1; for example chain:6,p_min=0.1"  # as p_min
TYPED = "write for example chain:4, or 24 for a tree of 24 nodes, as in --budget chain:4 or --budget 24"


def _problem(name: str, value: object, least: int) -> str:
    """What is wrong with a field's value; empty where nothing is."""
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST:
        return ""
    bound = f"of at most {MOST}" if isinstance(value, int) and value > MOST else f"of at least {least}"
    return f"{name} is {value!r}, expected a whole number {bound}"


def _is_probability(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1


def _plainly(value: Any) -> Any:
    """A probability as a plain float, which prints as it is typed: numpy's are floats, too, and do not."""
    return float(value) if _is_probability(value) else value


def _probability(instance: object, attribute: attrs.Attribute, value: object) -> None:
    if not _is_probability(value):
        raise UsageError(f"budget: {attribute.name} is {value!r}, expected {EXPECTED}.")


def _schedule(instance: object, attribute: attrs.Attribute, value: object) -> None:
    if value not in SCHEDULES:
        raise UsageError(
            f"budget: schedule is {value!r}, expected one of {', '.join(SCHEDULES)}; for example "
            f"chain:7,schedule=prefix."
        )


def _at_least(minimum: int) -> Callable[[object, attrs.Attribute, object], None]:
    def check(instance: object, attribute: attrs.Attribute, value: object) -> None:
        if problem := _problem(attribute.name, value, minimum):
            raise UsageError(f"budget: {problem}; for example nodes=24, depth=6, grow=6, offer=6.")

    return check


@attrs.frozen(kw_only=False)
class Budget:
    """The spending limit of one round.

    nodes (B): draft nodes verified per target call, root excluded.
    depth (gamma): draft steps, and so the greatest number of drafts that one round can accept.
    grow (B_w): nodes forwarded per draft step after the first.
    offer (k): children offered per forwarded node.
    reconsider (m): rows that a wrapper may co-forward beside those of a step (methods.md 1.4); 0 leaves it to the
    wrapper. advance: nodes forwarded per step beside the `grow` best: of so many nodes of the step before, the best
    child that is not among these. It is the PR paper's control, which spends the rows of `reconsider` otherwise.
    p_min: nothing is grown below a node whose path (the product of the drafter's probabilities from the root) is less
    likely; 0 always grows. So an unsure draft ends early: fewer draft steps and fewer nodes, never more. llama.cpp's
    option of this name looks at the last token alone. c_min: nothing is offered below a node of which the drafter's own
    confidence head says that its children are less likely to be accepted. schedule: how far a chain is verified is
    chosen anew every round, by that head and by what a forward of the target costs here: "prefix" for each request,
    "uniform" for all of a batch (engine/schedule.py). Both need a drafter that has such a head.

    Raises UsageError when a field is out of range or the tree can never hold `nodes` nodes.
    """

    nodes: int = attrs.field(validator=_at_least(1))
    depth: int = attrs.field(validator=_at_least(1))
    grow: int = attrs.field(validator=_at_least(1))
    offer: int = attrs.field(validator=_at_least(1))
    reconsider: int = attrs.field(default=0, validator=_at_least(0))
    p_min: float = attrs.field(default=0.0, converter=_plainly, validator=_probability)
    advance: int = attrs.field(default=0, validator=_at_least(0), kw_only=True)
    c_min: float = attrs.field(default=0.0, converter=_plainly, validator=_probability, kw_only=True)
    schedule: Literal["none", "prefix", "uniform"] = attrs.field(default="none", validator=_schedule, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if self.schedule != "none" and not self.is_chain:
            raise UsageError(
                f"budget: schedule={self.schedule} is for chains, and this is a tree; write for example "
                f"chain:7,schedule={self.schedule}, or c_min=0.3 for a tree."
            )
        if self.nodes > self.capacity:
            raise UsageError(
                f"budget: {self.nodes} nodes can never be filled, since depth={self.depth}, grow={self.grow} and "
                f"offer={self.offer} offer {self.capacity} at most; lower nodes or raise depth, grow or offer."
            )

    @property
    def capacity(self) -> int:
        """The most candidates that the other fields can ever put before the final cut."""
        total = newest = self.offer
        forwarded = 1
        for _ in range(self.depth - 1):
            grown = min(self.grow, newest)
            grown += min(self.advance, newest - grown, forwarded)
            newest = (grown + min(self.reconsider, forwarded)) * self.offer
            total += newest
            forwarded = grown
        return total

    @property
    def is_chain(self) -> bool:
        """True when at most one child hangs under each node."""
        return self.offer == 1 and not self.reconsider and not self.advance

    @classmethod
    def chain(cls, n: int, p_min: float = 0.0) -> Budget:
        """A chain of n drafts: n nodes, n steps, one offer each."""
        return cls(nodes=n, depth=n, grow=1, offer=1, p_min=p_min)

    @classmethod
    def tree(cls, nodes: int, p_min: float = 0.0) -> Budget:
        """A tree of `nodes` nodes at the defaults: six wide; five levels up to 8 nodes, six to 32, eight above."""
        if not 1 <= nodes <= MOST:
            return cls.chain(nodes)  # refused there, with the same words as any other bad budget
        depth = min(nodes, 5 if nodes <= 8 else 6 if nodes <= 32 else 8)
        width = 6
        while width + (depth - 1) * width * width < nodes:
            width += 1
        return cls(nodes=nodes, depth=depth, grow=width, offer=width, p_min=p_min)

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read a budget as typed: `tree:8` (`8` for short), `chain:4`, or `nodes=24,depth=6,grow=6,offer=6`.

        Each may end in `,p_min=0.2`. Raises UsageError naming the part that cannot be read.
        """
        text = text.strip()
        if not text:
            raise UsageError(f"budget: it is empty; {TYPED}.")
        if len(text) > 200:
            raise UsageError(f"budget: cannot read {text[:40]!r}...; {TYPED}.")
        shape, comma, rest = (piece.strip() for piece in text.partition(","))
        kind, _, count = ("tree", "", shape) if _is_number(shape) else shape.partition(":")
        if kind not in ("chain", "tree") or not _is_number(count):
            return cls(**_typed_fields(text))
        _check_typed("nodes", int(count))
        made = cls.chain(int(count)) if kind == "chain" else cls.tree(int(count))
        return attrs.evolve(made, **_typed_numbers(rest, [*CHANCES, "schedule"])) if comma else made

    @property
    def brief(self) -> str:
        """As briefly as it can be typed, which is how tables print it: `tree:8` for a tree of the default shape.

        `str` gives the shape itself, which results keep: what the default shape is may change.
        """
        if self._plain == Budget.tree(self.nodes):
            return f"tree:{self.nodes}" + self._ending
        return str(self)

    def __str__(self) -> str:
        if self._plain == Budget.chain(self.nodes):
            return f"chain:{self.nodes}" + self._ending
        shape = f"nodes={self.nodes},depth={self.depth},grow={self.grow},offer={self.offer}"
        more = {"reconsider": self.reconsider, "advance": self.advance}
        return shape + "".join(f",{name}={value}" for name, value in more.items() if value) + self._ending

    @property
    def _ending(self) -> str:
        said = [f",{name}={value!r}" for name in CHANCES if (value := getattr(self, name))]
        return "".join(said) + (f",schedule={self.schedule}" if self.schedule != "none" else "")

    @property
    def _plain(self) -> Budget:
        """The shape alone, without what may end a draft early."""
        return attrs.evolve(self, p_min=0.0, c_min=0.0, schedule="none")

    @property
    def ends_early(self) -> bool:
        """Whether a draft may end before its budget is spent."""
        return self._plain != self


def _is_number(text: str) -> bool:
    """Whether this is a whole number in the digits of every keyboard: others look alike and are easily misread."""
    return text.isascii() and text.isdecimal()


def _is_fraction(text: str) -> bool:
    """Whether this is a number such as 0.25, 1e-3 or 2."""
    return re.fullmatch(r"[0-9]*\.?[0-9]+(e-?[0-9]+)?", text) is not None


def _check_typed(name: str, value: int) -> None:
    """Raise UsageError for a typed number out of range, saying what to type."""
    if problem := _problem(name, value, 0 if name in ("reconsider", "advance") else 1):
        raise UsageError(f"budget: {problem}; {TYPED}.")


def _typed_fields(text: str) -> dict[str, Any]:
    """The numbers of `nodes=24,depth=6,grow=6,offer=6`. Raises UsageError naming what cannot be read or lacks."""
    values = _typed_numbers(text, [field.name for field in attrs.fields(Budget)])
    missing = [name for name in ("nodes", "depth", "grow", "offer") if name not in values]
    if missing:
        raise UsageError(
            f"budget: {text!r} lacks {', '.join(missing)}; write all four, as in --budget "
            f"nodes=24,depth=6,grow=6,offer=6, or --budget 24 for a tree of 24 nodes."
        )
    return values


def _typed_numbers(text: str, fields: list[str]) -> dict[str, Any]:
    """The values of `depth=6,p_min=0.2`, of these fields only. Raises UsageError naming the part that is amiss."""
    values: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if equals and key not in fields:
            few = " or ".join(fields) + " can stand there"
            there = f"the fields are {', '.join(fields)}" if len(fields) > 3 else few
            if key in ("reconsider", "advance"):
                raise UsageError(
                    f"budget: {key} cannot stand behind a short form ({few}); write it in full, as in "
                    f"nodes=24,depth=6,grow=6,offer=6,{key}={value}."
                )
            raise UsageError(f"budget: unknown field {key!r}{suggest(key, fields)}; {there}.")
        if key in values:
            raise UsageError(f"budget: {key} is given twice in {text!r}; give it once.")
        values[key] = _typed_value(part, key, value, f" in {text!r}" if part != text else "")
    return values


def _typed_value(part: str, key: str, value: str, where: str) -> Any:
    """One value as typed. Raises UsageError."""
    if key == "schedule" and value in SCHEDULES:
        return value
    if key in CHANCES and (_is_number(value) or _is_fraction(value)):
        return float(value)
    if key not in (*CHANCES, "schedule") and _is_number(value):
        _check_typed(key, int(value))
        return int(value)
    wanted = {"schedule": f"expected one of {', '.join(SCHEDULES)}"}.get(key, TYPED)
    raise UsageError(f"budget: cannot read {part!r}{where}; {f'expected {EXPECTED}' if key in CHANCES else wanted}.")
