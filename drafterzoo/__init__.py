"""drafterzoo: every drafter of speculative decoding in one tree engine, verified exactly, compared at equal budgets.

The public surface, and nothing else. Names load on first use, so that `import drafterzoo` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "Budget": "drafterzoo.budget",
    "Drafter": "drafterzoo.drafters.base",
    "Generation": "drafterzoo.generation",
    "Target": "drafterzoo.target.target",
    "bench": "drafterzoo.evaluation.runner",
    "evaluate": "drafterzoo.evaluation.offline.run",
    "generate": "drafterzoo.generation",
    "grid": "drafterzoo.evaluation.grid",
    "list_checkpoints": "drafterzoo.catalogue",
    "list_drafters": "drafterzoo.registry",
    "list_wrappers": "drafterzoo.registry",
    "load": "drafterzoo.catalogue",
    "load_target": "drafterzoo.target",
    "register_drafter": "drafterzoo.registry",
    "register_format": "drafterzoo.registry",
    "register_suite": "drafterzoo.registry",
    "register_wrapper": "drafterzoo.registry",
    "report": "drafterzoo.evaluation.report.write",
    "stream": "drafterzoo.generation",
    "train": "drafterzoo.training.run",
}

__all__ = ["__version__", *sorted(_PUBLIC)]

if TYPE_CHECKING:
    from drafterzoo.budget import Budget as Budget
    from drafterzoo.catalogue import list_checkpoints as list_checkpoints
    from drafterzoo.catalogue import load as load
    from drafterzoo.drafters.base import Drafter as Drafter
    from drafterzoo.evaluation.grid import grid as grid
    from drafterzoo.evaluation.offline.run import evaluate as evaluate
    from drafterzoo.evaluation.report.write import report as report
    from drafterzoo.evaluation.runner import bench as bench
    from drafterzoo.generation import Generation as Generation
    from drafterzoo.generation import generate as generate
    from drafterzoo.generation import stream as stream
    from drafterzoo.registry import list_drafters as list_drafters
    from drafterzoo.registry import list_wrappers as list_wrappers
    from drafterzoo.registry import register_drafter as register_drafter
    from drafterzoo.registry import register_format as register_format
    from drafterzoo.registry import register_suite as register_suite
    from drafterzoo.registry import register_wrapper as register_wrapper
    from drafterzoo.target import load_target as load_target
    from drafterzoo.target.target import Target as Target
    from drafterzoo.training.run import train as train


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'drafterzoo' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return __all__
