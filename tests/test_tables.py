"""Tables as text: what takes no width when it says nothing, and that nothing is lost by it."""

from __future__ import annotations

from drafterzoo.evaluation.tables import NOTHING, Grid

ROWS = (
    ("starter:chat", "plain", NOTHING, "1"),
    ("starter:chat", "eagle3.1", "nodes=24,depth=8,grow=6,offer=6", "2"),
    ("starter:maths", "plain", NOTHING, "3"),
    ("starter:maths", "eagle3.1", "nodes=24,depth=8,grow=6,offer=6", "4"),
)
WIDE = Grid("t", "Said.", ("suite", "drafter", "budget", "figure"), ROWS, labels=3)


def test_a_narrow_table_says_once_what_every_row_says() -> None:
    narrow = WIDE.narrow()
    assert narrow.columns == ("suite starter:", "drafter", "figure") and narrow.labels == 2
    assert narrow.rows == (
        ("chat", "plain", "1"),
        ("chat", "eagle3.1", "2"),
        ("maths", "plain", "3"),
        ("maths", "eagle3.1", "4"),
    )
    assert narrow.caption == "Said. In all rows: budget nodes=24,depth=8,grow=6,offer=6."
    assert WIDE.markdown().count("nodes=24") == 2, "a card has room for all of it"


def test_a_narrow_table_keeps_what_differs_and_its_first_column() -> None:
    rows = (("eagle3.1", "chain:4", "1"), ("eagle3.1", "chain:6", "2"))
    grid = Grid("t", "Said.", ("drafter", "budget", "figure"), rows)
    assert (
        grid.narrow().rows == (("eagle3.1", "4", "1"), ("eagle3.1", "6", "2"))
        and grid.narrow().columns[1] == "budget chain:"
    )
    mixed = Grid(
        "t", "Said.", ("drafter", "budget", "figure"), (("lookup", "tree:8", "1"), ("eagle3.1", "chain:4", "2"))
    )
    assert mixed.narrow() == mixed
