"""`drafterzoo train`: run a training recipe, or go on with an interrupted one.

Knows how options are typed; nothing of how anything is trained.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import attrs
from cyclopts import Parameter

from drafterzoo.cli.console import Json, print_json
from drafterzoo.errors import UsageError

if TYPE_CHECKING:
    from drafterzoo.training.recipe import Recipe

INTERRUPTED = 130  # a script must not go on with half a run as if it were whole


def train(
    recipe: Path,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
    epochs: float | None = None,
    documents: int | None = None,
    seed: int | None = None,
    precision: Literal["float32", "bfloat16"] | None = None,
    threads: int | None = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    json: Json = False,
) -> int:
    """Train a drafter from a recipe.

    Example: `drafterzoo train recipes/train/eagle3.1-smollm2.toml --out runs/eagle3.1`

    `drafterzoo train first-steps` shows the whole loop in a few minutes. A recipe names the rollouts to train on,
    answers of the target itself. The larger ones of drafterzoo look for smollm2-rollouts.jsonl in the folder that the
    variable DRAFTERZOO_DATA names; where it is missing, the target makes it first, which takes hours on a CPU
    (`drafterzoo rollout` does the same beforehand).

    Ctrl-C saves and exits with status 130; the same command goes on from there, bit for bit, also after a kill -9, and
    does nothing when all is done. The folder's `best` is a checkpoint: `drafterzoo bench -d dir:runs/eagle3.1/best`.

    Parameters
    ----------
    recipe
        A TOML file; those that come with drafterzoo lie in recipes/train/, and their bare names are understood.
    output
        The run's folder. Default: runs/<the recipe's name>.
    epochs
        Train this long instead of what the recipe says.
    documents
        Train on so many of the rollouts, evenly over the file, instead of what the recipe says.
    seed
        Use this seed instead of the recipe's.
    precision
        Multiply matrices in this, both those of the target and of the drafter, instead of what the recipe says:
        float32 is the faster one on a CPU without bfloat16.
    threads
        CPU threads; changes speed alone.
    dry_run
        Check every key, count parameters, memory, tokens and steps, and train nothing. A target that is not on this
        machine is read from the recipe's [target.sizes].
    """
    from drafterzoo.resources import find_recipe
    from drafterzoo.training.recipe import read_recipe
    from drafterzoo.training.run import train as run

    made = _changed(
        read_recipe(find_recipe(recipe, "train")),
        data={"documents": documents, "precision": precision},
        run={"epochs": epochs, "seed": seed, "precision": precision, "threads": threads},
    )
    if dry_run:
        from drafterzoo.training.plan import plan, told

        facts = plan(made)
        if json:
            print_json(facts)
        else:
            print("\n".join(told(facts)))
        return 0
    result = run(made, out=output)
    status = 0 if result.summary["finished"] else INTERRUPTED
    if json:
        print_json(result.summary)
        return status
    summary, best = result.summary, result.summary["best"]
    if result.already:
        tau = f", tau {best['tau']:.3f} at step {best['step']}" if best["step"] >= 0 else ""
        print(
            f"{result.directory}: already finished at step {summary['step']}; its best is "
            f"'dir:{result.directory / 'best'}'{tau}; for another run give another --out, or delete this folder."
        )
        return status
    state = "finished" if summary["finished"] else "stopped; the same command goes on from here"
    print(f"{result.directory}: {state} at step {summary['step']} of {summary['of']}")
    if best["step"] >= 0:
        print(f"best tau {best['tau']:.3f} at step {best['step']}: load it with 'dir:{result.directory / 'best'}'")
    elif summary["finished"]:
        print(f"no tau was measured, since nothing was held out; the last step is 'dir:{result.directory / 'best'}'")
    return status


def _changed(recipe: Recipe, **sections: dict[str, Any]) -> Recipe:
    """The recipe with what was typed in place of what it says; None was not typed. Raises UsageError, by the option."""
    for name, typed in sections.items():
        section = getattr(recipe, name)
        for key, value in typed.items():
            if value is None:
                continue
            try:
                section = attrs.evolve(section, **{key: value})
            except UsageError as error:
                raise UsageError(f"--{error}") from None
        recipe = attrs.evolve(recipe, **{name: section})
    return recipe
