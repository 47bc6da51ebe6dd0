"""Benchmark recipes: the arguments of `drafterzoo.bench` in a TOML file, every key checked.

Knows the arguments' names; nothing of what they do.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from drafterzoo.errors import UsageError, suggest
from drafterzoo.parsing import parse_toml, reason, wanted

KINDS: dict[str, tuple[type, ...]] = {
    "drafters": (str, list),
    "suite": (str,),
    "budget": (str, int, list),
    "max_new_tokens": (int,),
    "temperature": (float, int),
    "top_p": (float, int),
    "top_k": (int,),
    "seed": (int,),
    "verification": (str,),
    "coupled": (bool,),
    "turns": (str,),
    "thinking": (bool,),
    "system": (str,),
    "batch_size": (int,),
    "warmup": (int,),
    "repeats": (int,),
    "limit": (int,),
    "exclude": (list,),
    "target": (str,),
    "data_dir": (str,),
    "check_suite": (bool,),
    "out": (str,),
}


def read_bench_recipe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The arguments of `drafterzoo.bench` that a recipe sets.

    Raises UsageError, naming the file, for a file that cannot be read, an unknown key (with the nearest), or a value of
    the wrong kind.
    """
    file = Path(path)
    try:
        values = parse_toml(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f'{file}: not TOML ({error}); write lines such as suite = "starter".') from error
    except (OSError, ValueError) as error:
        raise UsageError(f"recipe {file} cannot be read ({reason(error)}); give the path of a TOML file.") from error
    for key, value in values.items():
        if key not in KINDS:
            raise UsageError(f"{file}: unknown key {key!r}{suggest(key, KINDS)}; the keys are {', '.join(KINDS)}.")
        if not isinstance(value, KINDS[key]) or (isinstance(value, bool) and bool not in KINDS[key]):
            kinds = [of for of in KINDS[key] if of is not int or float not in KINDS[key]]
            expected = " or ".join(map(wanted, kinds))
            raise UsageError(f"{file}: {key} is {value!r}, expected {expected}.")
    return values
