"""Prompt suites: which questions a benchmark asks, by name or from a file, checked, chosen from, and hashed.

Knows where files are looked for and how prompts are chosen; nothing of models, chat templates, drafters or results.
A line of a file is `{"turns": ["...", ...]}` or `{"prompt": "..."}`, with `id`, `category` (or `source`) and `split`
where the file has them; other keys are left alone.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from drafterzoo.errors import DataError, UsageError, suggest
from drafterzoo.evaluation import suite_hub, suite_rendering
from drafterzoo.evaluation.suite_checks import check_file, check_prompts, digest
from drafterzoo.evaluation.suite_declarations import SuiteFile as SuiteFile  # public here: what plug-ins register
from drafterzoo.evaluation.suite_rendering import Prompt as Prompt  # public here, beside the Suite it makes up
from drafterzoo.evaluation.suite_rows import SUFFIXES, read_rows
from drafterzoo.registry import SUITES
from drafterzoo.wording import quantity, verb

DATA_VARIABLE = "DRAFTERZOO_DATA"
DATA_FOLDERS = (Path("data"),)

STARTER = SuiteFile(
    Path(__file__).parent / "data" / "starter.jsonl",
    "prompts of seven kinds, written for this project",
    count=40,
    sha256="168e76173b6c32a9b7f36fc8d91e7ed79e83b91c32d3df0b77a90037718819ae",
    licence="Apache-2.0",
)


@attrs.frozen
class Suite:
    """The prompts of one run.

    sha256 is taken over the turns in order, so it is equal for equal questions, whatever the file is called, and
    differs when a limit or a category chose other prompts. source says where they came from, checked what was compared
    with the suite's declaration. turns: which a benchmark asks when it is not told, "first" or "all".
    """

    name: str
    prompts: tuple[Prompt, ...]
    sha256: str
    source: str
    turns: str = "first"
    checked: str = ""

    @property
    def categories(self) -> dict[str, int]:
        """Number of prompts per category, in order of first appearance."""
        counts: dict[str, int] = {}
        for prompt in self.prompts:
            counts[prompt.category] = counts.get(prompt.category, 0) + 1
        return counts

    def __len__(self) -> int:
        return len(self.prompts)

    def __iter__(self) -> Iterator[Prompt]:
        return iter(self.prompts)


@attrs.frozen
class _Place:
    """Where a suite's rows are. published: as their authors wrote them, to be rendered here."""

    name: str
    files: Sequence[Path]
    source: str
    declared: SuiteFile | None = None
    published: bool = False


def load_suite(
    name_or_path: str | Path,
    *,
    limit: int | None = None,
    seed: int = 0,
    category: str | Sequence[str] | None = None,
    split: str | None = None,
    data_dir: str | Path | None = None,
    check: bool = True,
) -> Suite:
    """Load a suite by name (`starter`, `gsm8k`), or a JSONL or Parquet file by path.

    limit: ask this many prompts, drawn by `seed` evenly over the categories and kept in file order.
    category: only these. split: only rows of this split; without it, rows marked `train` are left out, so that a
    training file can be used for its held-out rows. data_dir: where files of named suites lie, and nowhere else;
    without it the folder in $DRAFTERZOO_DATA, else `data` in the working directory, and then the Hub. check: compare a
    named suite with its declaration; False takes other counts and hashes as they are.

    Raises UsageError for an unknown suite, category or split, a path that leads nowhere or a bad limit; DataError for a
    named suite whose data are not here, naming the file expected; naming file and line, for a file that is not a suite;
    and with both numbers for one that is not the suite declared.
    """
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise UsageError(f"suite: limit is {limit!r}, expected at least 1; leave it out to ask every prompt.")
    place = _locate(name_or_path, data_dir)
    every = _read(place)
    checked = _checked(place, [prompt for prompt, _ in every]) if check else "not checked"
    rows = [row for row in every if (row[1] == split if split else row[1] != "train")]
    if not rows:
        wanted = (
            f"split {split!r}"
            if split
            else "a split other than 'train' (to measure on those all the same, give split='train')"
        )
        raise UsageError(f"suite {place.source}: no prompt has {wanted}.")
    prompts = _of_category([prompt for prompt, _ in rows], category, place.source)
    if limit is not None:
        prompts = _draw(prompts, limit, seed)
    turns = place.declared.turns if place.declared else "first"
    return Suite(place.name, tuple(prompts), digest(prompts), place.source, turns, checked)


def chosen(suite: str | Path | Suite, limit: int | None, data_dir: str | Path | None, check: bool) -> Suite:
    """The suite a benchmark is to ask: loaded by name or file, or as it was made. Raises as `load_suite` does."""
    if not isinstance(suite, Suite):
        return load_suite(suite, limit=limit, data_dir=data_dir, check=check)
    if limit is not None:
        raise UsageError("bench: limit is for suites given by name or file; give load_suite(..., limit=...) instead.")
    return suite


def introduced(suite: Suite, turns: str) -> str:
    """A line that says what is asked, from where, and how far that was checked."""
    said = f"; {suite.checked}" if suite.checked else ""
    longer = sum(len(prompt.turns) > 1 for prompt in suite)
    if longer and turns == "first":
        said += f"; of {longer} the first turn alone (turns='all' asks every one)"
    return f"suite {suite.name}: {quantity(len(suite), 'prompt')} from {suite.source}{said}"


def is_file(suite: str) -> bool:
    """Whether a suite is asked for by its file and not by a name; the file need not be there."""
    return suite.endswith(SUFFIXES) or os.sep in suite


def at_hand(name: str, data_dir: str | Path | None = None) -> str | None:
    """Where a named suite's data would be read from without asking the network; None when it is not here."""
    suite = SUITES.get(name)
    place = _local(name, suite, _folders(data_dir))
    if place is not None:
        return place.source
    return "the Hub's cache" if data_dir is None and suite.hub and suite_hub.cached(suite.hub) else None


def wanted(name: str, data_dir: str | Path | None = None) -> str:
    """Of a named suite that is not at hand: which file is expected where, as the middle of a sentence."""
    return _wanted(name, SUITES.get(name), _folders(data_dir))


def _locate(name_or_path: str | Path, data_dir: str | Path | None) -> _Place:
    """The suite's name and its files, downloaded if need be."""
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or is_file(text):
        path = Path(os.path.expanduser(name_or_path))
        if not path.is_file():
            raise UsageError(
                f"suite file {path} does not exist or is no file; give a JSONL file or one of {', '.join(SUITES)}."
            )
        return _Place(path.stem, [path], str(path))
    folders = _folders(data_dir)
    if text not in SUITES:
        for folder in folders:  # any JSONL file of the data folder has a name as well: its own
            if (folder / f"{text}.jsonl").is_file():
                return _Place(text, [folder / f"{text}.jsonl"], str(folder / f"{text}.jsonl"))
    suite = SUITES.get(text)
    return _local(text, suite, folders) or _from_hub(text, suite, folders, data_dir)


def _local(name: str, suite: SuiteFile, folders: Sequence[Path]) -> _Place | None:
    """The suite's own file, or a folder of its name with the Hub's files, in the first data folder that has one."""
    if suite.path.is_absolute():
        source = f"built-in {name}" if suite == STARTER else str(suite.path)
        return _Place(name, [suite.path], source, suite) if suite.path.is_file() else None
    for folder in folders:
        for relative in suite.names:
            if (folder / relative).is_file():
                return _Place(name, [folder / relative], str(folder / relative), suite)
        files = [folder / name / file for file in suite.hub.files] if suite.hub else []
        if files and all(file.is_file() for file in files):
            return _Place(name, files, str(folder / name), suite, published=True)
    return None


def _from_hub(name: str, suite: SuiteFile, folders: Sequence[Path], data_dir: str | Path | None) -> _Place:
    """The suite's files on the Hub. Raises DataError: which file was expected, where, and why the Hub is no help."""
    why = ""
    if suite.hub is not None and data_dir is None:
        try:
            files = suite_hub.fetch(suite.hub)
            at = f"@{suite.hub.revision}" if suite.hub.revision else ""
            return _Place(name, files, f"hub:{suite.hub.id}{at}", suite, published=True)
        except suite_hub.NotFetched as reason:
            why = f", and the Hub ({suite.hub.id}) {reason}"
    note = f" ({suite.note})" if suite.note else ""
    get = f"get it from {suite.source} and " if suite.source and not suite.hub else ""
    raise DataError(
        f"suite {name!r} needs {_wanted(name, suite, folders)}{why}{note}; "
        f"{get}name its folder with --data-dir (data_dir=) or ${DATA_VARIABLE}."
    )


def _wanted(name: str, suite: SuiteFile, folders: Sequence[Path]) -> str:
    """Which file a suite that is not here would have, and where it was looked for."""
    absolute = suite.path.is_absolute()
    looked = str(suite.path.parent) if absolute else " and ".join(str(folder / suite.path.parent) for folder in folders)
    published = f" or {name}/{suite.hub.files[0]} as on the Hub" if suite.hub else ""
    return f"the file {suite.path.name}{published}, which is not in {looked}"


def _folders(data_dir: str | Path | None) -> Sequence[Path]:
    if data_dir is not None:
        folder = Path(os.path.expanduser(data_dir))
        if not folder.is_dir():
            raise UsageError(
                f"data folder {folder} does not exist; give the folder that holds gsm8k.jsonl and the like."
            )
        return (folder,)
    named = os.environ.get(DATA_VARIABLE)
    return (Path(os.path.expanduser(named)),) if named else DATA_FOLDERS


def _read(place: _Place) -> list[tuple[Prompt, str | None]]:
    """The prompts of a suite, each with its split."""
    rows: list[tuple[Prompt, str | None]] = []
    seen: dict[str, str] = {}
    declared, met = place.declared, 0
    for path in place.files:
        for row in read_rows(path, declared.fields if declared and place.published else ()):
            met += 1
            if not suite_rendering.belongs(row, declared):
                continue
            if declared and place.published:
                prompt = suite_rendering.published(row, declared, f"{place.name}-{len(rows) + 1}")
            else:
                prompt = suite_rendering.rendered(row, declared, f"{place.name}-{row.number}")
            if prompt.id in seen:
                raise DataError(f"{row.where}: id {prompt.id!r} is already that of {seen[prompt.id]}; ids must differ.")
            seen[prompt.id] = row.place
            rows.append((prompt, suite_rendering.split_of(row)))
    if not rows and met:
        rows_met = verb(met, "the one row", f"none of the {met} rows")
        belong = verb(met, "does not belong", "belong")
        raise DataError(f"suite {place.name!r}: {rows_met} of {place.source} {belong} to it; get it anew.")
    if not rows:
        raise DataError(
            f'suite file {place.files[0]} is empty; write one JSON object per line, such as {{"prompt": "..."}}.'
        )
    return rows


def _checked(place: _Place, prompts: list[Prompt]) -> str:
    """What was compared with the declaration, in a few words. Raises DataError for what differs."""
    declared = place.declared
    if declared is None:
        return ""
    if check_prompts(place.name, declared, prompts, place.source):
        return "sha256 as recorded"
    if place.published and declared.hub is not None:
        known = suite_hub.check_files(place.name, declared.hub, list(place.files))
    else:
        known = check_file(place.name, declared, suite_hub.file_sha256(place.files[0]), place.source)
    return "sha256 of the file as recorded" if known else "hash not recorded"


def _of_category(prompts: list[Prompt], category: str | Sequence[str] | None, source: str) -> list[Prompt]:
    if category is None:
        return prompts
    wanted = [category] if isinstance(category, str) else list(category)
    known = sorted({prompt.category for prompt in prompts})
    for name in wanted:
        if name not in known:
            raise UsageError(
                f"suite {source}: unknown category {name!r}{suggest(name, known)}; there is {', '.join(known)}."
            )
    return [prompt for prompt in prompts if prompt.category in wanted]


def _draw(prompts: list[Prompt], limit: int, seed: int) -> list[Prompt]:
    """`limit` prompts, taken in turn from each category's shuffled ones; a smaller limit draws a subset of a larger."""
    order = random.Random(seed)
    piles: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        piles.setdefault(prompt.category, []).append(index)
    for pile in piles.values():
        order.shuffle(pile)
    ranked = sorted(
        (place, number, index) for number, pile in enumerate(piles.values()) for place, index in enumerate(pile)
    )
    return [prompts[index] for index in sorted(index for _, _, index in ranked[:limit])]
