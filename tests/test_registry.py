"""The registry: names, lazy targets, plug-ins that work and plug-ins that do not; and the spec grammar."""

from __future__ import annotations

import importlib.metadata
import json
import keyword
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafterzoo.errors import UsageError
from drafterzoo.registry import BUILT_IN, DRAFTERS, FORMATS, SUITES, WRAPPERS, Registry, Spec, parse_spec, split_options


class Animal:
    pass


class Cat(Animal):
    pass


class Dog(Animal):
    pass


class Stone:
    pass


@runtime_checkable
class Named(Protocol):
    name: str


@pytest.fixture
def zoo(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry[Any]]:
    """A registry of animals whose entry-point group is empty, and this file importable as `menagerie`."""
    module = types.ModuleType("menagerie")
    for thing in (Animal, Cat, Dog, Stone):
        monkeypatch.setattr(thing, "__module__", "menagerie")
        setattr(module, thing.__name__, thing)
    monkeypatch.setitem(sys.modules, "menagerie", module)
    yield Registry("animal", "menagerie:Animal", "drafterzoo.test_animals")


def install(monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    """Pretend a package `zoo-more 1.2` with these entry points is installed."""

    class Dist:
        name, version = "zoo-more", "1.2"

    found = []
    for name, value in points.items():
        point = importlib.metadata.EntryPoint(name.replace("_", "-"), value, "drafterzoo.test_animals")
        vars(point)["dist"] = Dist()
        found.append(point)
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: found if group == "drafterzoo.test_animals" else []
    )


def test_objects_strings_and_decorators_register(zoo: Registry[Any]) -> None:
    zoo.register("cat", Cat)
    zoo.register("dog", "menagerie:Dog")
    assert zoo.register("animal")(Animal) is Animal
    assert zoo.get("cat") is Cat and zoo.get("dog") is Dog and zoo.get("animal") is Animal
    assert zoo.names() == ["animal", "cat", "dog"] and list(zoo) == zoo.names()
    assert zoo.names("?at") == ["cat"] and zoo.names("x*") == []
    assert "cat" in zoo and "cow" not in zoo


def test_instances_register_too(zoo: Registry[Any]) -> None:
    tom = Cat()
    zoo.register("tom", tom)
    assert zoo.get("tom") is tom
    zoo.register("tom", tom)
    with pytest.raises(UsageError, match="cannot also be menagerie:Cat object"):
        zoo.register("tom", Cat())


def test_a_string_is_imported_only_when_asked_for(zoo: Registry[Any]) -> None:
    zoo.register("ghost", "no.such.module:Ghost")
    assert zoo.names() == ["ghost"] and zoo.origin("ghost") == "no.such.module:Ghost"
    with pytest.raises(UsageError, match=r"'no\.such\.module:Ghost', which cannot be imported \(ModuleNotFoundError"):
        zoo.get("ghost")


def test_the_same_target_twice_is_fine_and_another_is_not(zoo: Registry[Any]) -> None:
    zoo.register("cat", "menagerie:Cat")
    zoo.register("cat", "menagerie:Cat")
    zoo.register("cat", Cat)
    assert zoo.get("cat") is Cat
    zoo.register("cat", "menagerie:Cat")
    with pytest.raises(UsageError, match=r"'cat' is menagerie:Cat and cannot also be menagerie:Dog"):
        zoo.register("cat", Dog)


def test_an_unknown_name_is_answered_with_the_nearest_and_all(zoo: Registry[Any]) -> None:
    with pytest.raises(UsageError, match=r"unknown animal 'cat'; none is registered\."):
        zoo.get("cat")
    zoo.register("dog", Dog)
    zoo.register("cat", Cat)
    with pytest.raises(UsageError, match=r"unknown animal 'dogg' \(did you mean 'dog'\?\); there is cat, dog\."):
        zoo.get("dogg")
    with pytest.raises(UsageError, match="unknown animal 'qqq'; there is cat, dog"):
        zoo.origin("qqq")


def test_the_base_class_is_checked_at_lookup(zoo: Registry[Any]) -> None:
    zoo.register("stone", "menagerie:Stone")
    with pytest.raises(UsageError, match="'stone' is menagerie:Stone, which is no menagerie:Animal"):
        zoo.get("stone")


def test_a_protocol_with_data_members_takes_instances(zoo: Registry[Any]) -> None:
    named: Registry[Any] = Registry("named thing", Named, "drafterzoo.test_none")
    cat = Cat()
    cat.name = "tom"  # type: ignore[attr-defined]
    named.register("tom", cat)
    named.register("cat", Cat)
    assert named.get("tom") is cat
    with pytest.raises(UsageError, match=r"'cat' is menagerie:Cat, which is no .*Named"):
        named.get("cat")


@pytest.mark.parametrize("name", ["", "a b", "a+b", "-a", "a(b)", "é", "a/b"])
def test_malformed_names_and_addresses_are_refused(zoo: Registry[Any], name: str) -> None:
    with pytest.raises(UsageError, match="not of the form"):
        zoo.register(name, Cat)
    with pytest.raises(UsageError, match="expected the address 'module:Object'"):
        zoo.register("cat", "menagerie.Cat")


def test_plug_ins_are_found_on_the_first_miss(zoo: Registry[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    zoo.register("dog", Dog)
    install(monkeypatch, cat="menagerie:Cat", dog="menagerie:Dog")
    assert zoo.get("dog") is Dog
    assert not zoo._scanned, "a name that is known costs no scan"
    assert zoo.get("cat") is Cat
    assert zoo.names() == ["cat", "dog"] and zoo.broken() == {}
    assert zoo.origin("cat").startswith("menagerie:Cat") and zoo.origin("cat").endswith("from zoo-more 1.2")


def test_broken_plug_ins_are_listed_with_their_reason_and_never_raised(
    zoo: Registry[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo.register("dog", Dog)
    points = {
        "ghost": "no.such.module:Ghost",
        "stone": "menagerie:Stone",
        "dog": "menagerie:Cat",
        "cow": "menagerie:Cow",
    }
    install(monkeypatch, cat="menagerie:Cat", **points)
    assert zoo.names() == ["cat", "dog"] and zoo.get("dog") is Dog
    broken = zoo.broken()
    assert set(broken) == {"ghost", "stone", "cow", "dog (zoo-more 1.2)"}
    assert "ModuleNotFoundError: No module named 'no'" in broken["ghost"]
    assert "which is no menagerie:Animal" in broken["stone"]
    assert "cannot also be menagerie:Cat" in broken["dog (zoo-more 1.2)"]
    with pytest.raises(
        UsageError, match=r"'ghost' comes from a plug-in that cannot be used: zoo-more 1\.2: ModuleNotFound"
    ):
        zoo.get("ghost")


def test_freezing_reads_plug_ins_first_and_shuts_the_door(zoo: Registry[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, cat="menagerie:Cat")
    zoo.freeze()
    assert zoo.names() == ["cat"]
    with pytest.raises(RuntimeError, match="frozen"):
        zoo.register("dog", Dog)
    zoo._clear()
    zoo.register("dog", Dog)
    assert zoo.get("dog") is Dog


def test_origin_gives_file_and_line_of_what_is_imported() -> None:
    own: Registry[Any] = Registry("suite", object, "drafterzoo.test_none")
    own.register("reader", parse_spec)
    assert "registry.py:" in own.origin("reader")


def test_the_built_in_tables_resolve_to_what_they_name() -> None:
    assert set(BUILT_IN) <= set(DRAFTERS.names())
    assert {"starter", "gsm8k", "humaneval", "mbpp", "mt-bench"} <= set(SUITES.names())
    for name in SUITES.names():
        assert SUITES.get(name).description
    assert [r.group.rpartition(".")[2] for r in (DRAFTERS, WRAPPERS, FORMATS, SUITES)] == [
        "drafters",
        "wrappers",
        "formats",
        "suites",
    ]


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_built_in_drafter_is_a_drafter_of_that_name(name: str) -> None:
    assert DRAFTERS.get(name).name == name


def test_importing_the_registry_imports_nothing_heavy() -> None:
    code = (
        "import sys, drafterzoo.registry as r; r.DRAFTERS.names(); print('torch' in sys.modules, 'rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"


# -- the spec grammar ------------------------------------------------------------------------------------------------

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True)
atoms = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6)
)
literals = st.recursive(atoms, lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner), max_leaves=5)
keys = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True).filter(lambda key: not keyword.iskeyword(key))
options = st.dictionaries(keys, literals, max_size=3)


@given(names, options, st.lists(st.tuples(names, options), max_size=3))
def test_a_spec_survives_being_written_and_read(
    base: str, own: dict[str, Any], wrappers: list[tuple[str, Any]]
) -> None:
    spec = Spec(base, own, tuple(wrappers))
    assert parse_spec(str(spec)) == spec
    assert str(parse_spec(str(spec))) == str(spec)


@given(st.text(alphabet="ab+(),='\"[1 \\é\n", max_size=14))
def test_any_text_is_read_or_refused_with_a_column(text: str) -> None:
    try:
        spec = parse_spec(text)
    except UsageError as error:
        column = int(str(error).rpartition(", column ")[2].partition(":")[0])
        assert 1 <= column <= len(text) + 1
    else:
        assert parse_spec(str(spec)) == spec


def test_a_spec_is_read_in_full() -> None:
    spec = parse_spec("hass+pr(self_query='token', m=3)+carryover")
    assert spec == Spec("hass", {}, (("pr", {"self_query": "token", "m": 3}), ("carryover", {})))
    assert parse_spec(" eagle3.1 ( taps=(2, 15, 27) ) + pr ") == Spec("eagle3.1", {"taps": (2, 15, 27)}, (("pr", {}),))
    assert parse_spec("a(x='+)(', y=\"it's\", z=-1.5e-3)").options == {"x": "+)(", "y": "it's", "z": -1.5e-3}
    assert str(parse_spec("a( )+b( x = 1 )")) == "a+b(x=1)"


WRONG = {
    "": (1, "expected a drafter's name"),
    "+pr": (1, "expected a drafter's name"),
    "hass+": (6, "expected a wrapper's name after '+'"),
    "hass pr": (6, "expected '+', '(' or the end, found 'p'"),
    "hass(m=3": (5, "this '(' is never closed"),
    "hass(m=3))": (10, "found ')'"),
    "hass(m='3)": (8, "this quote is never closed"),
    "hass(3)": (6, "a value without a name"),
    "hass(m=token)": (8, "the value of m is no literal; put text in quotes, as in m='token'"),
    "pr(kv=level1)": (7, "the value of kv is no literal; put text in quotes, as in kv='level1'"),
    "hass(fc_bias=false)": (14, "the value of fc_bias is no literal; write fc_bias=False"),
    "hass(m=none)": (8, "the value of m is no literal; write m=None"),
    "hass(m=1+x)": (8, "the value of m is no literal; put text in quotes, as in m='text'"),
    "hass(m=__import__('os'))": (8, "the value of m is no literal"),
    "hass(a='é', m=x)": (15, "the value of m is no literal"),
    "hass(m=1, m=2)": (13, "m is given twice"),
    "hass(**{'m': 1})": (8, "'**' has no meaning here"),
    "lookup(max_ngram=nan)": (18, "max_ngram=nan: nan and infinity are no numbers that an option can take"),
    "hass(m=(1, -inf))": (8, "m=(1, -inf): nan and infinity are no numbers"),
    "hass(m=)": (8, "cannot read these options"),
    "org/name": (4, "found '/'"),
}


@pytest.mark.parametrize(("text", "column", "why"), [(text, *rest) for text, rest in WRONG.items()])
def test_a_wrong_spec_is_refused_in_one_sentence_with_its_column(text: str, column: int, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_spec(text)
    said = str(caught.value)
    assert (
        said.startswith(f"spec {text!r}, column {column}: ") and why in said and said.endswith(".") and "\n" not in said
    )


@pytest.mark.parametrize("value", [float("inf"), float("nan"), object(), {"a": {1: float("nan")}}, int])
def test_a_spec_holds_only_what_can_be_written(value: object) -> None:
    with pytest.raises(UsageError, match=r"is no plain value|are no numbers that an option can take"):
        Spec("hass", {"m": value})
    with pytest.raises(UsageError, match="is no name"):
        Spec("hass+pr")
    with pytest.raises(UsageError, match="is no option's name"):
        Spec("hass", {}, (("pr", {"a b": 1}),))


@pytest.mark.parametrize("name", DRAFTERS.names())
def test_what_a_drafter_is_reads_back_from_a_file_as_it_was_written(name: str) -> None:
    from drafterzoo.evaluation.conditions import drafter_conditions
    from tests.tiny import tiny_target

    cls = DRAFTERS.get(name)
    conditions = drafter_conditions(cls(cls.debug_config(target := tiny_target("llama")), target))
    assert json.loads(json.dumps(conditions)) == conditions, "a run that goes on compares what it reads with this"


ADDRESSES = {
    "dir:runs/best": ("dir:runs/best", {}),
    "dir:runs/best(packed_dtype='float32')": ("dir:runs/best", {"packed_dtype": "float32"}),
    "dir:a (old)/best (x=1, y='):(')": ("dir:a (old)/best", {"x": 1, "y": "):("}),
    "dir:a(b/best(x=1)": ("dir:a(b/best", {"x": 1}),
    "dir:it's/best(x=1)": ("dir:it's/best", {"x": 1}),
    "dir:best(x=1)(y=2)": ("dir:best(x=1)", {"y": 2}),
    "dir:best (copy)": ("dir:best (copy)", {}),
    "dir:best()": ("dir:best()", {}),
    "dir:best)": ("dir:best)", {}),
    "hub:org/name@v1(x=(1, 2))": ("hub:org/name@v1", {"x": (1, 2)}),
}


@pytest.mark.parametrize(("text", "parts"), ADDRESSES.items())
def test_options_are_taken_from_the_end_of_an_address(text: str, parts: tuple[str, dict[str, Any]]) -> None:
    assert split_options(text) == parts


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("dir:best(x=token)", "column 12: the value of x is no literal"),
        ("dir:best(x=nan)", "column 12: x=nan: nan and infinity are no numbers"),
        ("dir:best(2, x=1)", "a value without a name"),
        ("dir:best(x=1e999)", "x=inf: nan and infinity are no numbers"),
    ],
)
def test_options_behind_an_address_are_refused_as_in_a_spec(text: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        split_options(text)
    assert why in str(caught.value) and "\n" not in str(caught.value)
