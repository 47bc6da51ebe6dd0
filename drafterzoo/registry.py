"""Names: which drafters, wrappers, formats and suites exist, and how a composition such as `hass+pr` is spelt.

Knows nothing of what the named things do. Importing this file imports no torch: entries and their base classes are
`"module:Object"` strings until somebody asks for them. Other packages add theirs through the entry-point groups
`drafterzoo.drafters`, `.wrappers`, `.formats` and `.suites`; one that cannot be used is listed with its reason.
"""

from __future__ import annotations

import ast
import fnmatch
import importlib
import inspect
import keyword
import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast, overload

import attrs

from drafterzoo.errors import UsageError, suggest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from drafterzoo.drafters.base import Drafter
    from drafterzoo.evaluation.suite_declarations import SuiteFile
    from drafterzoo.formats.base import Format
    from drafterzoo.wrappers.base import Wrapper

T = TypeVar("T")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def _resolve(target: str) -> Any:
    """Import what `"module:Object"` names."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _address(thing: object) -> str:
    """The `"module:Object"` string of a class or function; of anything else its class and identity."""
    if isinstance(thing, str):
        return thing
    if isinstance(thing, type) or inspect.isroutine(thing):
        return f"{thing.__module__}:{thing.__qualname__}"
    return f"{type(thing).__module__}:{type(thing).__qualname__} object at {id(thing):#x}"


@attrs.define
class _Entry:
    """One name's target, still a string or already the thing itself, and the package it came with."""

    target: Any
    package: str = ""
    checked: bool = False


class Registry(Generic[T]):
    """Things of one kind by name, imported when first asked for.

    kind: the word used in messages ("drafter"). base: the class, or its `"module:Class"` address, that every entry must
    be a subclass or an instance of; checked when an entry is looked up. group: the entry points that others use.
    """

    def __init__(self, kind: str, base: str | type, group: str) -> None:
        self.kind = kind
        self.group = group
        self._base = base
        self._entries: dict[str, _Entry] = {}
        self._broken: dict[str, str] = {}
        self._scanned = False
        self._frozen = False
        # Neither lock is held while `get` imports a module: it may itself register, in another thread that holds
        # Python's import lock.
        self._lock = threading.Lock()
        self._scan_lock = threading.RLock()

    @overload
    def register(self, name: str) -> Callable[[T], T]: ...
    @overload
    def register(self, name: str, target: str | T) -> T: ...
    def register(self, name: str, target: Any = None) -> Any:
        """Give `target` (an object, or a `"module:Object"` string) a name; without a target, a decorator.

        The same name for the same target is fine. Raises UsageError when the name is malformed or already means
        something else, and RuntimeError after `freeze()`.
        """
        if target is None:
            return lambda thing: self.register(name, thing)
        with self._lock:
            self._add(name, _Entry(target))
        return target

    def _add(self, name: str, entry: _Entry) -> None:
        if self._frozen:
            raise RuntimeError(f"the {self.kind} registry is frozen: {name!r} comes too late")
        if not NAME.fullmatch(name):
            raise UsageError(
                f"{self.kind} name {name!r} is not of the form 'eagle3.1': letters, digits, '.', '-', '_'."
            )
        if isinstance(entry.target, str) and ":" not in entry.target:
            raise UsageError(f"{self.kind} {name!r}: expected the address 'module:Object', found {entry.target!r}.")
        known = self._entries.get(name)
        if known is None:
            self._entries[name] = entry
        elif _address(known.target) != _address(entry.target):
            raise UsageError(
                f"{self.kind} {name!r} is {_address(known.target)} and cannot also be {_address(entry.target)}; "
                f"choose another name for one of them."
            )
        elif isinstance(known.target, str):
            known.target = entry.target

    def get(self, name: str) -> T:
        """Return what `name` means. Raises UsageError for an unknown or broken entry, with the nearest known names."""
        entry = self._find(name)
        try:
            return cast(T, self._load(name, entry))
        except (ImportError, AttributeError) as error:
            raise UsageError(
                f"{self.kind} {name!r} is {entry.target!r}, which cannot be imported "
                f"({type(error).__name__}: {error}); install what it needs, or register it by its right address."
            ) from error

    def _find(self, name: str) -> _Entry:
        if name not in self._entries:
            self._scan()
        entry = self._entries.get(name)
        if entry is None:
            self._unknown(name)
        return entry

    def _load(self, name: str, entry: _Entry) -> Any:
        if isinstance(entry.target, str):
            entry.target = _resolve(entry.target)
        if not entry.checked:
            base = _resolve(self._base) if isinstance(self._base, str) else self._base
            thing = entry.target
            if not _fits(thing, base):
                raise UsageError(
                    f"{self.kind} {name!r} is {_address(thing)}, which is no {_address(base)}; derive it from that."
                )
            entry.checked = True
        return entry.target

    def _unknown(self, name: str) -> NoReturn:
        if name in self._broken:
            raise UsageError(f"{self.kind} {name!r} comes from a plug-in that cannot be used: {self._broken[name]}.")
        known = sorted(self._entries)
        there_is = f"there is {', '.join(known)}" if known else "none is registered"
        raise UsageError(f"unknown {self.kind} {name!r}{suggest(name, known)}; {there_is}.")

    def names(self, glob: str | None = None) -> list[str]:
        """Return the usable names in order, plug-ins included; `glob`, a shell pattern, filters them."""
        self._scan()
        return sorted(name for name in list(self._entries) if glob is None or fnmatch.fnmatchcase(name, glob))

    def broken(self) -> dict[str, str]:
        """Return the plug-ins that cannot be used, each with its reason."""
        self._scan()
        return dict(self._broken)

    def origin(self, name: str) -> str:
        """Say where an entry comes from: its address, its file and line once imported, its package if a plug-in."""
        entry = self._find(name)
        said = _address(entry.target) + _place(entry.target)
        return f"{said}, from {entry.package}" if entry.package else said

    def _scan(self) -> None:
        """Read the entry points, once. Each is loaded here, so that a broken one is found now and recorded."""
        with self._scan_lock:
            if self._scanned:
                return
            self._scanned = True
            from importlib.metadata import entry_points  # 20 ms that a run without an unknown name never pays

            for point in entry_points(group=self.group):
                self._admit(point)

    def _admit(self, point: EntryPoint) -> None:
        package = f"{point.dist.name} {point.dist.version}" if point.dist else "an unnamed package"
        try:
            entry = _Entry(point.value.replace(" ", ""), package)
            self._load(point.name, entry)
            with self._lock:
                self._add(point.name, entry)
        except Exception as error:  # whatever a stranger's import may raise: recorded, shown, and nobody else's trouble
            name = f"{point.name} ({package})" if point.name in self._entries else point.name
            self._broken[name] = f"{package}: {type(error).__name__}: {str(error).rstrip('.')}"

    def freeze(self) -> None:
        """Allow no further registration. Plug-ins are read first, so that none is shut out."""
        self._scan()
        with self._lock:
            self._frozen = True

    def _clear(self) -> None:
        """Forget everything (for tests)."""
        with self._lock:
            self._entries.clear()
            self._broken.clear()
            self._scanned = self._frozen = False

    def __contains__(self, name: object) -> bool:
        if name not in self._entries:
            self._scan()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())


def _fits(thing: object, base: type) -> bool:
    """Whether thing is a subclass or an instance of base. Of a protocol with data members, only instances are."""
    if not isinstance(thing, type):
        return isinstance(thing, base)
    try:
        return issubclass(thing, base)
    except TypeError:
        return False


def _place(thing: Any) -> str:
    """` (file:line)` of a class or function that is imported, or nothing where Python cannot tell."""
    try:
        return f" ({inspect.getsourcefile(thing)}:{inspect.getsourcelines(thing)[1]})"
    except (OSError, TypeError):
        return ""


DRAFTERS: Registry[type[Drafter]] = Registry("drafter", "drafterzoo.drafters.base:Drafter", "drafterzoo.drafters")
WRAPPERS: Registry[type[Wrapper]] = Registry("wrapper", "drafterzoo.wrappers.base:Wrapper", "drafterzoo.wrappers")
FORMATS: Registry[Format] = Registry("format", "drafterzoo.formats.base:Format", "drafterzoo.formats")
SUITES: Registry[SuiteFile] = Registry(
    "suite", "drafterzoo.evaluation.suite_declarations:SuiteFile", "drafterzoo.suites"
)

BUILT_IN: dict[str, str] = {
    "dflash": "drafterzoo.drafters.dflash:DFlash",
    "dfly": "drafterzoo.drafters.dfly:DFly",
    "dspark": "drafterzoo.drafters.dspark:DSpark",
    "eagle2": "drafterzoo.drafters.eagle2:Eagle2",
    "eagle3": "drafterzoo.drafters.eagle3:Eagle3",
    "eagle3.1": "drafterzoo.drafters.eagle31:Eagle31",
    "hass": "drafterzoo.drafters.hass:Hass",
    "lookup": "drafterzoo.drafters.lookup:Lookup",
}
BUILT_IN_SUITES: dict[str, str] = {
    "starter": "drafterzoo.evaluation.suites:STARTER",
    **{  # one file, one suite; read when the suite is asked for
        file.stem: f"drafterzoo.evaluation.suite_declarations:{file.stem}"
        for file in (Path(__file__).parent / "evaluation" / "data" / "suites").glob("*.toml")
    },
}
BUILT_IN_WRAPPERS: dict[str, str] = {
    "carryover": "drafterzoo.wrappers.carryover:Carryover",
    "pr": "drafterzoo.wrappers.pr:Reconsideration",
}
BUILT_IN_FORMATS: dict[str, str] = {
    "angelslim-eagle3": "drafterzoo.formats.angelslim_eagle3:LAYOUT",
    "angelspec-dfly": "drafterzoo.formats.angelspec_dfly:LAYOUT",
    "deepspec-dflash": "drafterzoo.formats.deepspec_dspark:DFLASH",
    "deepspec-dspark": "drafterzoo.formats.deepspec_dspark:DSPARK",
    "safeailab-eagle2": "drafterzoo.formats.safeailab_eagle2:LAYOUT",
    "safeailab-eagle3": "drafterzoo.formats.safeailab_eagle3:LAYOUT",
    "specforge-dspark": "drafterzoo.formats.specforge_dspark:LAYOUT",
    "specforge-eagle3": "drafterzoo.formats.specforge_eagle3:LAYOUT",
    "speculators-dflash": "drafterzoo.formats.speculators_dflash:LAYOUT",
    "speculators-dspark": "drafterzoo.formats.speculators_dspark:LAYOUT",
    "speculators-eagle3": "drafterzoo.formats.speculators_eagle3:LAYOUT",
    "torchspec-eagle3": "drafterzoo.formats.torchspec_eagle3:LAYOUT",
    "zlab-dflash": "drafterzoo.formats.zlab_dflash:LAYOUT",
}
for _name, _target in BUILT_IN.items():
    DRAFTERS.register(_name, _target)
for _name, _target in BUILT_IN_WRAPPERS.items():
    WRAPPERS.register(_name, _target)
for _name, _target in BUILT_IN_SUITES.items():
    SUITES.register(_name, _target)
for _name, _target in BUILT_IN_FORMATS.items():
    FORMATS.register(_name, _target)

register_drafter = DRAFTERS.register
register_wrapper = WRAPPERS.register
register_format = FORMATS.register
register_suite = SUITES.register


def list_drafters(glob: str | None = None) -> list[str]:
    """Names of the drafters that can be used, plug-ins included; `glob` filters them (`eagle*`)."""
    return DRAFTERS.names(glob)


def list_wrappers(glob: str | None = None) -> list[str]:
    """Names of the wrappers that can be used, plug-ins included; `glob` filters them."""
    return WRAPPERS.names(glob)


# The spec grammar:   spec = part ("+" part)*    part = name [ "(" key "=" literal ("," key "=" literal)* ")" ]


def _check_name(instance: object, attribute: attrs.Attribute[str], value: str) -> None:
    if not NAME.fullmatch(value):
        raise UsageError(
            f"spec: {value!r} is no name; a name is made of letters, digits, '.', '-' and '_', as in 'eagle3.1'."
        )


def _check_options(options: Mapping[str, Any]) -> None:
    for key, value in options.items():
        if not key.isidentifier() or keyword.iskeyword(key):
            raise UsageError(f"spec: {key!r} is no option's name; write name(option=value).")
        try:
            plain = ast.literal_eval(repr(value)) == value
        except (ValueError, SyntaxError):
            plain = False
        if not plain:
            if isinstance(value, float) and not math.isfinite(value):
                raise UsageError(f"spec: {_no_number(key, str(value))}.")
            raise UsageError(
                f"spec: option {key}={value!r} is no plain value; use numbers, quoted text, True, False, None or lists."
            )


def _render(name: str, options: Mapping[str, Any]) -> str:
    return name + (f"({', '.join(f'{key}={value!r}' for key, value in options.items())})" if options else "")


@attrs.frozen
class Spec:
    """A composition: a base drafter, then wrappers from the inside out, each with its options.

    `str()` gives the canonical text, which `parse_spec` reads back to an equal Spec.
    """

    base: str = attrs.field(validator=_check_name)
    options: dict[str, Any] = attrs.field(factory=dict)
    wrappers: tuple[tuple[str, dict[str, Any]], ...] = ()

    def __attrs_post_init__(self) -> None:
        _check_options(self.options)
        for name, options in self.wrappers:
            _check_name(self, attrs.fields(Spec).base, name)
            _check_options(options)

    def __str__(self) -> str:
        return "+".join(_render(name, options) for name, options in ((self.base, self.options), *self.wrappers))


def parse_spec(text: str) -> Spec:
    """Read `"hass+pr(self_query='token', reconsider=3)"`.

    Raises UsageError, with the column counted from 1, where the text leaves the grammar.
    """
    parts: list[tuple[str, dict[str, Any]]] = []
    at = 0
    while True:
        at = _skip_blanks(text, at)
        name = NAME.match(text, at)
        if name is None:
            wanted = "a wrapper's name after '+'" if parts else "a drafter's name"
            _refuse(text, at, f"expected {wanted}, as in 'hass+pr(reconsider=3)'")
        at = _skip_blanks(text, name.end())
        options: dict[str, Any] = {}
        if text[at : at + 1] == "(":
            end = _closing(text, at)
            options = _parse_options(text, at, end)
            at = _skip_blanks(text, end)
        parts.append((name.group(), options))
        if at == len(text):
            return Spec(*parts[0], wrappers=tuple(parts[1:]))
        if text[at] != "+":
            _refuse(text, at, f"expected '+', '(' or the end, found {text[at]!r}")
        at += 1


def split_options(text: str) -> tuple[str, dict[str, Any]]:
    """An address and the options in brackets at its end, as in `"dir:runs/best(packed_dtype='float32')"`.

    Brackets that hold no `option=value` are part of the address. Raises UsageError, with the column counted from 1, for
    options that cannot be read.
    """
    for bracket in re.finditer(r"\(", text if text.endswith(")") else ""):
        start = bracket.start()
        if _closes_at_end(text, start):
            if "=" not in text[start:]:
                break
            options = _parse_options(text, start, len(text))
            _check_options(options)
            return text[:start].rstrip(), options
    return text, {}


def _closes_at_end(text: str, start: int) -> bool:
    """Whether the bracket at `start` is closed by the last character."""
    try:
        return _closing(text, start) == len(text)
    except UsageError:
        return False


def _refuse(text: str, at: int, why: str) -> NoReturn:
    raise UsageError(f"spec {text!r}, column {at + 1}: {why}.")


def _skip_blanks(text: str, at: int) -> int:
    while text[at : at + 1] == " ":
        at += 1
    return at


_NO_NUMBERS = ("nan", "inf", "infinity")
_TOKEN = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^'\"]")


def _closing(text: str, start: int) -> int:
    """Index just after the bracket that closes the one at `start`, text in quotes left out of account."""
    depth, at = 0, start
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            _refuse(text, at, "this quote is never closed")
        depth += (token.group() in "([{") - (token.group() in ")]}")
        at = token.end()
        if depth == 0:
            return at
    _refuse(text, start, "this '(' is never closed")


def _no_number(option: str, value: str) -> str:
    """What is said of nan and the infinities."""
    return f"{option}={value}: nan and infinity are no numbers that an option can take; give a finite one"


def _as_literal(option: str, value: ast.expr) -> str:
    """What to type instead of a word without quotes, or of an expression."""
    word = value.id if isinstance(value, ast.Name) else "text"
    if word.capitalize() in ("True", "False", "None"):
        return f"write {option}={word.capitalize()}"
    return f"put text in quotes, as in {option}={word!r}"


def _characters(options: str, column: int) -> int:
    """How many characters the first `column` bytes of `_` + options are: Python's parser counts bytes."""
    return len(f"_{options}".encode()[:column].decode())


def _parse_options(text: str, start: int, end: int) -> dict[str, Any]:
    """The options in `text[start:end]`, brackets included."""
    try:
        call = ast.parse(f"_{text[start:end]}", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        column = start + (getattr(error, "offset", None) or 2) - 2
        _refuse(
            text,
            max(column, start),
            f"cannot read these options ({getattr(error, 'msg', error)}); write (option=value, ...)",
        )
    if not isinstance(call, ast.Call):
        _refuse(text, start, "cannot read these options; write (option=value, ...)")
    if call.args:
        _refuse(
            text,
            start - 1 + _characters(text[start:end], call.args[0].col_offset),
            "a value without a name; write option=value",
        )
    options: dict[str, Any] = {}
    for given in call.keywords:
        at = start - 1 + _characters(text[start:end], given.value.col_offset)
        if given.arg is None:
            _refuse(text, at, "'**' has no meaning here; write option=value")
        if given.arg in options:
            _refuse(text, at, f"{given.arg} is given twice")
        try:
            options[given.arg] = ast.literal_eval(given.value)
        except (ValueError, TypeError, SyntaxError):
            if any(isinstance(part, ast.Name) and part.id.lower() in _NO_NUMBERS for part in ast.walk(given.value)):
                _refuse(text, at, _no_number(given.arg, ast.unparse(given.value)))
            _refuse(text, at, f"the value of {given.arg} is no literal; {_as_literal(given.arg, given.value)}")
    return options
