"""Drawing one round's draft tree: what was proposed, what the target accepted.

Pure: takes lists, returns a `rich.tree.Tree`. Knows nothing of tensors, tokenizers or the engine.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from rich.text import Text
from rich.tree import Tree


def visible(token: str) -> str:
    """A token's text with its blanks made visible, so that ' the' and 'the' look different."""
    shown = token.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")
    shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in shown)
    return shown or "(empty)"


def draw_tree(
    tokens: Sequence[str],
    parents: Sequence[int],
    *,
    valid: Sequence[bool] | None = None,
    accepted: Collection[int] = (),
    scores: Sequence[float] | None = None,
    root: str = "root",
    title: str = "",
) -> Tree:
    """Draw a tree of B nodes, parents before children.

    tokens: text of each node. parents: 0 for the root, i + 1 for node i. valid: False for padding, which is not drawn.
    accepted: indices on the verified path in the numbering of `parents`; drawn bold and green, with a tick. scores: log
    of each path's probability, shown as a percentage. root: text of the root token. title: words before the root.
    """
    label = Text(f"{title}  " if title else "", style="bold")
    label.append(visible(root), style="bold green")
    drawing = Tree(label, guide_style="dim")
    branches = {0: drawing}
    for index, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if valid is not None and not valid[index]:
            continue
        took = index + 1 in accepted
        line = Text(visible(token), style="bold green" if took else "")
        if scores is not None:
            line.append(f"  {math.exp(min(scores[index], 0.0)):.1%}", style="dim")
        if took:
            line.append("  ✓", style="bold green")
        branches[index + 1] = branches[parent].add(line, guide_style="green" if took else "dim")
    return drawing
