"""The budget: what can be asked for, how it is typed, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafterzoo.budget import Budget
from drafterzoo.errors import UsageError

small = st.integers(1, 9)


@st.composite
def budgets(draw: st.DrawFn) -> Budget:
    depth, grow, offer = draw(small), draw(small), draw(small)
    reconsider, advance = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    most = Budget(1, depth, grow, offer, reconsider, advance=advance).capacity
    p_min = draw(st.sampled_from([0.0, 0.25]) | st.floats(0, 1, exclude_max=True))
    return Budget(draw(st.integers(1, most)), depth, grow, offer, reconsider, p_min, advance=advance)


def offered(budget: Budget) -> int:
    """Candidates counted by playing the steps through: every grown or reconsidered node offers children.

    The best case of `advance`: those left hang under as many parents as there are.
    """
    total = new = budget.offer
    grown = 1
    for _ in range(1, budget.depth):
        again = min(budget.reconsider, grown)
        parents, grown = grown, min(budget.grow, new)
        grown += min(budget.advance, parents, new - grown)
        new = (grown + again) * budget.offer
        total += new
    return total


@given(budgets())
def test_a_budget_survives_being_written_and_read(budget: Budget) -> None:
    assert Budget.parse(str(budget)) == budget


@given(budgets())
def test_the_capacity_is_what_the_steps_can_offer(budget: Budget) -> None:
    assert budget.capacity == offered(budget) >= budget.nodes


@given(small, small, small, st.integers(0, 4))
def test_more_nodes_than_can_ever_be_offered_are_refused(depth: int, grow: int, offer: int, reconsider: int) -> None:
    most = Budget(1, depth, grow, offer, reconsider).capacity
    Budget(most, depth, grow, offer, reconsider)
    with pytest.raises(UsageError, match=f"{most + 1} nodes can never be filled.*offer {most} at most"):
        Budget(most + 1, depth, grow, offer, reconsider)


@given(st.integers(1, 64))
def test_a_chain_is_one_wide_and_n_deep(n: int) -> None:
    chain = Budget.chain(n)
    assert (chain.nodes, chain.depth, chain.grow, chain.offer, chain.reconsider) == (n, n, 1, 1, 0)
    assert chain.is_chain and chain.capacity == n and str(chain) == f"chain:{n}"


@given(st.integers(1, 400))
def test_a_tree_of_any_size_can_be_filled(nodes: int) -> None:
    tree = Budget.tree(nodes)
    assert tree.nodes == nodes <= tree.capacity
    assert 1 <= tree.depth <= 8 and not tree.is_chain


@given(budgets())
def test_what_tables_print_can_be_typed(budget: Budget) -> None:
    assert Budget.parse(budget.brief) == budget
    assert Budget.tree(budget.nodes).brief == f"tree:{budget.nodes}" and Budget.chain(4).brief == "chain:4"
    assert Budget.tree(8, 0.1).brief == "tree:8,p_min=0.1" and Budget.chain(6, 0.25).brief == "chain:6,p_min=0.25"


def test_budgets_are_typed_in_three_ways() -> None:
    assert Budget.parse("chain:4") == Budget.chain(4)
    assert Budget.parse(" 24 ") == Budget.parse("tree:24") == Budget.tree(24)
    assert Budget.parse("nodes=24, depth=6, grow=6, offer=5, reconsider=2") == Budget(24, 6, 6, 5, 2)


def test_each_may_end_in_a_least_probability() -> None:
    assert Budget.parse("chain:6, p_min=.25") == Budget.chain(6, 0.25) == attrs.evolve(Budget.chain(6), p_min=0.25)
    assert Budget.parse("8,p_min=1e-3") == Budget.parse("tree:8,p_min=0.001") == Budget.tree(8, 0.001)
    assert Budget.parse("nodes=6,depth=4,p_min=0.1,grow=2,offer=3") == Budget(6, 4, 2, 3, p_min=0.1)
    assert Budget.chain(6, 0.25).is_chain and Budget.chain(6) != Budget.chain(6, 0.25)
    assert Budget.parse("8 ,p_min=0.1") == Budget.parse(" tree:8 , p_min = 0.1 ") == Budget.tree(8, 0.1)
    assert str(Budget.chain(6, 0)) == str(Budget.parse("chain:6,p_min=0")) == "chain:6"


def test_a_least_probability_is_a_plain_number_whatever_gave_it() -> None:
    swept = Budget.chain(6, np.linspace(0, 0.5, 3)[1])
    assert str(swept) == "chain:6,p_min=0.25" and Budget.parse(str(swept)) == swept
    assert type(swept.p_min) is type(Budget.chain(6, 0).p_min) is float


REFUSED = {
    "0": "nodes is 0, expected a whole number of at least 1",
    "chain:0": "nodes is 0",
    "": "it is empty",
    " ": "it is empty",
    "\N{FULLWIDTH DIGIT FOUR}": "cannot read '\N{FULLWIDTH DIGIT FOUR}'",
    "chain:\N{ARABIC-INDIC DIGIT FOUR}": "cannot read 'chain:\N{ARABIC-INDIC DIGIT FOUR}'",
    "nodes=\N{DEVANAGARI DIGIT FOUR},depth=1,grow=4,offer=4": "cannot read 'nodes=",
    "many": "cannot read 'many'",
    "-3": "cannot read '-3'",
    "chain:x": "cannot read 'chain:x'",
    "nodes=24": "lacks depth, grow, offer",
    "node=24,depth=6,grow=6,offer=6": "unknown field 'node' (did you mean 'nodes'?)",
    "nodes=24,depth=0,grow=6,offer=6": "depth is 0",
    "nodes=24,depth=6,grow=6,six": "cannot read 'six' in 'nodes=24,depth=6,grow=6,six'",
    "nodes=500,depth=2,grow=2,offer=2": "500 nodes can never be filled",
    "chain:6,p_min=1": "p_min is 1.0, expected a number from 0 to below 1",
    "chain:6,p_min=20%": "cannot read 'p_min=20%'; expected a number from 0 to below 1; for example chain:6,p_min=0.1",
    "chain:6,p_min=nan": "cannot read 'p_min=nan'",
    "8,p_min=-0.1": "cannot read 'p_min=-0.1'",
    "8,": "cannot read ''",
    "8,p_min=0.1,p_min=0.2": "p_min is given twice",
    "8,p-min=0.1": "unknown field 'p-min' (did you mean 'p_min'?)",
    "24,advance=3": "advance cannot stand behind a short form (p_min or c_min or schedule can stand there); write it "
    "in full, as in nodes=24,depth=6,grow=6,offer=6,advance=3.",
    "chain:6,depth=3": "unknown field 'depth'; p_min or c_min or schedule can stand there",
    "nodes=24,depth=6.5,grow=6,offer=6": "cannot read 'depth=6.5'",
}


@pytest.mark.parametrize(("text", "why"), REFUSED.items())
def test_what_cannot_be_a_budget_is_refused_in_one_sentence(text: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        Budget.parse(text)
    said = str(caught.value)
    assert said.startswith("budget: ") and why in said and said.endswith(".") and "\n" not in said
    assert "Budget(" not in said and " in ''" not in said


@pytest.mark.parametrize(
    "text", ["", "0", "chain:0", "many", "4096000", "nodes=24", "nodes=0,depth=1,grow=1,offer=1", "9" * 300]
)
def test_what_is_typed_wrongly_is_answered_with_what_to_type(text: str) -> None:
    with pytest.raises(UsageError, match="--budget 24"):
        Budget.parse(text)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "4", None])
def test_fields_are_whole_numbers(value: object) -> None:
    with pytest.raises(UsageError, match="depth is"):
        Budget(nodes=1, depth=value, grow=1, offer=1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="reconsider is -1"):
        Budget(nodes=1, depth=1, grow=1, offer=1, reconsider=-1)


@pytest.mark.parametrize("value", [1, -1, math.nan, True, "4", None])
def test_a_least_probability_is_a_number_below_one(value: Any) -> None:
    with pytest.raises(UsageError, match="p_min is"):
        Budget(nodes=1, depth=1, grow=1, offer=1, p_min=value)
