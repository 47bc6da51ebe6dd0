"""`drafterzoo convert`: a checkpoint of any layout, written in ours or in another.

Knows how options are typed; layouts are in formats/.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from drafterzoo.cli.console import Json, err, print_json


def convert(
    drafter: str,
    output: Path,
    /,
    *,
    layout: Annotated[str, Parameter(alias="-l")] = "native",
    target: Annotated[str | None, Parameter(alias="-t")] = None,
    format: str | None = None,
    aux_convention: Literal["auto", "boundary", "layer_output"] | None = None,
    json: Json = False,
) -> None:
    """Write a checkpoint in another layout: somebody else's in ours, ours in somebody else's.

    Example: `drafterzoo convert hub:org/name mine --target Qwen/Qwen3-8B`, or
    `drafterzoo convert eagle3.1 theirs --layout specforge-eagle3`

    `drafterzoo list formats` says which layouts there are. What is written is read back before it stands.

    Parameters
    ----------
    drafter
        A name, `dir:path` or `hub:org/name@revision`, in a layout that is recognised by its files.
    output
        A new folder.
    layout
        The layout to write.
    target
        The target's name or folder; without it, the one a checkpoint of ours was trained for.
    format
        The layout to read, where the files leave it open.
    aux_convention
        What layer ids in the config say: the boundary itself, or the layer whose output is read. Default: what the
        layout says, and where that is nothing, whichever agrees with the target.
    """
    import drafterzoo
    from drafterzoo.composition import innermost
    from drafterzoo.formats.writing import write_layout

    typed: dict[str, Any] = {"format": format, "aux_convention": aux_convention}
    how = {key: value for key, value in typed.items() if value is not None}
    loaded = drafterzoo.load(drafter, target, **how)
    write_layout(loaded, output, layout)
    origin = innermost(loaded).origin
    came = "native" if origin is None else origin.format
    if json:
        print_json({"drafter": loaded.spec, "from": came, "to": layout, "folder": str(output)})
        return
    err().print(f"{loaded.spec}: {came} -> {layout}", soft_wrap=True)
    print(output)
