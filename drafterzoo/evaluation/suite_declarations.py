"""What a suite is: where its rows lie, how a row becomes a prompt, how many there are, and under which licence.

Knows the keys of a suite's TOML file; reads no prompt and asks no network. The suites that come with drafterzoo lie in
`data/suites`, one file each, and are attributes of this module by their names, so that the registry can address them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any, Literal

import attrs

from drafterzoo.errors import DataError, suggest
from drafterzoo.parsing import parse_toml

SHIPPED = Path(__file__).parent / "data" / "suites"


# What TOML may hold under each key.
_WORDS: dict[type, str] = {str: "a text", int: "a whole number", list: "a list of texts", dict: "a table"}


@attrs.frozen
class HubFiles:
    """The files of a data set on the Hub that hold a suite's rows: JSONL or Parquet, in this order.

    revision is left out where no commit is recorded; the newest is read then. sha256: of files, by path.
    """

    id: str
    files: tuple[str, ...]
    config: str | None = None
    split: str | None = None
    revision: str | None = None
    sha256: Mapping[str, str] = attrs.Factory(dict)


@attrs.frozen
class SuiteFile:
    """A suite known by name: what other packages register under `drafterzoo.suites`. Only the first two must be given.

    path: its file of rendered prompts, JSONL lines `{"turns": [...]}` or `{"prompt": "..."}`. A relative one is looked
    for in the data folder (see `load_suite`), then under `other_names`; an absolute one is taken as it is.
    hub: where else its rows are, as published. They are rendered: `field` names the one that holds the text, or the
    list of turns; else `template` (`string.Template`: `$question`) is filled, and each text of `when_present` is
    appended where the row has the field it is named after. id_field and category_field name those of a row.
    where: only rows that hold these values belong to the suite; a list allows any of its values. categories: what a
    category of the rows is called here.
    count and sha256: of all prompts, hashed as `Suite.sha256` is. file_sha256: of the file at `path`, or its beginning.
    turns: whether a benchmark asks "first" turns or "all" when it is not told. note: what else a user should know.
    """

    path: Path = attrs.field(converter=Path)
    description: str
    other_names: tuple[str, ...] = ()
    hub: HubFiles | None = None
    field: str | None = None
    template: str | None = None
    when_present: Mapping[str, str] = attrs.Factory(dict)
    id_field: str | None = None
    category_field: str | None = None
    where: Mapping[str, str | Sequence[str]] = attrs.Factory(dict)
    categories: Mapping[str, str] = attrs.Factory(dict)
    count: int | None = None
    sha256: str | None = None
    file_sha256: str | None = None
    licence: str = ""
    source: str = ""
    turns: Literal["first", "all"] = "first"
    note: str = ""

    @property
    def fields(self) -> list[str]:
        """The fields of a published row that rendering reads."""
        templates = [self.template or "", *self.when_present.values()]
        named = [name for text in templates for name in Template(text).get_identifiers()]
        keys = (self.field, *named, *self.when_present, self.id_field, self.category_field, *self.where)
        return list(dict.fromkeys(key for key in keys if key))

    @property
    def names(self) -> list[Path]:
        """Where the rendered prompts may lie, the likeliest first."""
        return [self.path, *map(Path, self.other_names)]


_KINDS: dict[type, dict[str, type]] = {
    SuiteFile: {
        "path": str, "description": str, "other_names": list, "field": str, "template": str, "when_present": dict,
        "id_field": str, "category_field": str, "where": dict, "categories": dict, "count": int, "sha256": str,
        "file_sha256": str, "licence": str, "source": str, "turns": str, "note": str,
    },
    HubFiles: {"id": str, "files": list, "config": str, "split": str, "revision": str, "sha256": dict},
}  # fmt: skip


def read_declaration(path: str | Path) -> SuiteFile:
    """Read a suite's TOML file: the keys are those of SuiteFile, with the table [hub].

    Raises DataError naming the file and the key that is unknown, missing or of the wrong kind.
    """
    file = Path(path)
    try:
        values = parse_toml(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"suite {file}: cannot be read as TOML ({error}).") from error
    hub = values.pop("hub", None)
    if hub is not None and not isinstance(hub, dict):
        raise DataError(f"suite {file}: 'hub' is {hub!r}, expected a table [hub].")
    read: SuiteFile = _build(SuiteFile, values, str(file))
    if hub is None:
        return read
    if (read.field is None) == (read.template is None):
        raise DataError(f"suite {file}: rows of [hub] need either 'field' or 'template' to become prompts.")
    return attrs.evolve(read, hub=_build(HubFiles, hub, f"{file} [hub]"))


def _build(cls: type, values: Mapping[str, Any], where: str) -> Any:
    kinds = _KINDS[cls]
    for key, value in values.items():
        if key not in kinds:
            raise DataError(
                f"suite {where}: unknown key {key!r}{suggest(key, kinds)}; the keys are {', '.join(kinds)}."
            )
        if type(value) is not kinds[key] or (key == "turns" and value not in ("first", "all")):
            expected = "'first' or 'all'" if key == "turns" else _WORDS[kinds[key]]
            raise DataError(f"suite {where}: {key} is {value!r}, expected {expected}.")
    for field in attrs.fields(cls):
        if field.default is attrs.NOTHING and field.name not in values:
            raise DataError(f"suite {where}: key {field.name!r} is missing; expected {_WORDS[kinds[field.name]]}.")
    return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})


def shipped_names() -> list[str]:
    """The suites that come with drafterzoo as declarations."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def __getattr__(name: str) -> SuiteFile:
    if not (SHIPPED / f"{name}.toml").is_file():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return read_declaration(SHIPPED / f"{name}.toml")
