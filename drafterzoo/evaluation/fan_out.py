"""Spreads the tables of a grid over a Ray cluster: one task per table, the same files as without.

Knows Ray and the names of tables; nothing of what a table measures. The grid's folder, and whatever files the recipe
names, must be visible to every node under the same path. A task whose worker dies is started again, and goes on where
the files end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from drafterzoo.errors import DrafterzooError, NotInstalledError, UsageError
from drafterzoo.evaluation.summary import PLAIN
from drafterzoo.progress import console
from drafterzoo.wording import quantity

Failures = list[dict[str, Any]]
RESTARTS = 2  # of a task whose worker died


def fan_out(
    work: Callable[[str], Failures], tables: Sequence[str], address: str, cpus: int, show_progress: bool
) -> Failures:
    """Call `work` with every table's name, somewhere in the cluster, and collect what failed.

    address: "local" for this machine alone, "auto" for the cluster it belongs to, or "host:port". cpus: per task; where
    the cluster has GPUs, each task gets one. Raises NotInstalledError without Ray, UsageError when there is no cluster,
    and what a task raised when the user can mend it.
    """
    try:
        import ray
    except ImportError as error:
        raise NotInstalledError("--ray needs the package ray; type: pip install 'drafterzoo[ray]'.") from error
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"--ray {address}: no cluster answers there ({reason[:160]}); type local, auto or host:port."
        ) from error
    try:
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=RESTARTS)(_in_the_same_place)
        waiting = {task.remote(work, os.getcwd(), name): name for name in tables}
        failures: Failures = []
        while waiting:
            (done,), _ = ray.wait(list(waiting), num_returns=1)
            name = waiting.pop(done)
            failures += _result(ray, done, name)
            if show_progress:
                console.print(f"{name} is done; {len(waiting)} of {quantity(len(tables), 'table')} left", markup=False)
        return failures
    finally:
        ray.shutdown()  # tasks under way end with it; the same command goes on from their files


def _in_the_same_place(work: Callable[[str], Failures], folder: str, name: str) -> Failures:
    """Relative paths of the recipe mean the same as for whoever typed the command."""
    with suppress(OSError):
        os.chdir(folder)
    return work(name)


def _result(ray: Any, reference: Any, name: str) -> Failures:
    """What a task returned. Raises what the user can mend; a worker that is lost for good is a failure of its table."""
    try:
        failures: Failures = ray.get(reference)
        return failures
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, DrafterzooError):
            raise error.cause from error
        raise
    except ray.exceptions.RayError as error:
        return [{"table": name, "cell": PLAIN, "reason": f"{type(error).__name__}: {' '.join(str(error).split())}"}]
