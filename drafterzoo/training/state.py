"""What a run goes on from, `state.pt`: written whole, and read back only where it fits the run.

Knows tensors and the form of an optimiser's state; nothing of recipes, drafters or steps.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drafterzoo import checkpoint
from drafterzoo.errors import CheckpointError

STATE = "state.pt"  # written last: a `last` without it is half a save
_MOMENTS = {"step", "exp_avg", "exp_avg_sq"}
_OPTIONS = {"lr", "betas", "eps", "weight_decay"}


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Raises CheckpointError; an older state survives a failure."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    checkpoint.write_whole(path, buffer.getvalue())


def read_state(path: Path, like: Mapping[str, Any]) -> dict[str, Any]:
    """The state in `path`, on the CPU. like: what the run would write before its first step.

    Raises CheckpointError when it cannot be read, or is not of that form.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # junk makes the unpickler fail in any way there is
        raise damaged(path) from error
    if not _fits(state, like):
        raise damaged(path)
    return state


def damaged(path: Path) -> CheckpointError:
    """The error for a file that a run, in the folder of `path` or the one above, cannot go on from."""
    folder = path.parent.parent if path.name == STATE else path.parent
    return CheckpointError(
        f"{path}: damaged, so the run cannot go on; delete {folder}, or choose another folder with --out."
    )


def _fits(state: Any, like: Mapping[str, Any]) -> bool:
    """Whether a state is of this form. Taking it up would not tell, since tensors of other shapes are broadcast."""
    if not isinstance(state, dict) or state.keys() != like.keys():
        return False
    alike = all(_form(state[key]) == _form(like[key]) for key in like if key not in ("best", "optimizer"))
    return (
        alike
        and _is_best(state["best"])
        and _is_optimizer(state["optimizer"], like["parameters"])
        and all(_is_random(state[key]) for key in ("generator", "torch_rng"))
    )


def _form(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    return [_form(one) for one in value] if isinstance(value, list) else type(value)


def _is_best(best: Any) -> bool:
    if not isinstance(best, dict) or type(best.get("tau")) not in (int, float) or type(best.get("step")) is not int:
        return False
    measured = best.get("measured_with", {"budget": ""})  # older states do not say
    return isinstance(measured, dict) and isinstance(measured.get("budget"), str)


def _is_optimizer(state: Any, parameters: Sequence[Tensor]) -> bool:
    """Whether these are options and moments of an AdamW over `parameters`; those not yet stepped have no moments."""
    if not isinstance(state, dict) or not isinstance(state.get("state"), dict):
        return False
    groups = state.get("param_groups")
    if not isinstance(groups, list) or len(groups) != 1 or not isinstance(groups[0], dict):
        return False
    whole = groups[0].keys() >= _OPTIONS and groups[0].get("params") == list(range(len(parameters)))
    return whole and all(
        index in range(len(parameters))
        and isinstance(moments, dict)
        and moments.keys() == _MOMENTS
        and isinstance(moments["step"], Tensor)
        and all(_form(moments[key]) == _form(parameters[index]) for key in _MOMENTS - {"step"})
        for index, moments in state["state"].items()
    )


def _is_random(state: Tensor) -> bool:
    try:
        torch.Generator().set_state(state)
    except RuntimeError:
        return False
    return True
