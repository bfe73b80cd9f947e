"""Python functions as tools, against transformers' get_json_schema."""

from __future__ import annotations

import enum
import functools
import json
import re
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, Optional, TypedDict, Union

import llguidance
import pydantic
import pytest
from transformers.utils import get_json_schema

from olivine.chat.arguments import arguments_for
from olivine.chat.functions import declaration
from olivine.chat.messages import tools_of
from olivine.chat.parsers import FORMATS
from olivine.chat.tool_grammar import calls_grammar
from olivine.errors import RequestError


def plain(city: str, days: int, exact: bool, share: float) -> str:
    """
    The weather of the next days.

    It is made up.

    Args:
        city: The city, such as
            "Köln"
        days: How many days: at most nine
        exact: Whether to be exact
        share: A number

    Returns:
        What the weather will be
    """
    return ""


def defaults(city: str, unit: Literal["c", "f"] = "c", days: Optional[int] = None) -> None:  # noqa: UP045
    """Finds it.

    Args:
        city: A city
        unit: A unit
        days: Days
    """


def nested(
    names: list[str],
    table: dict[str, list[int]],
    pair: tuple[int, str],
    some: Union[int, str],  # noqa: UP007
    more: int | list[str] | None,
    anything: Any,
    free: dict,  # type: ignore[type-arg]
    mixed: Literal[1, "a", None],
):
    """All kinds.

    Args:
        names: a
        table: b
        pair: c
        some: d
        more: e
        anything: f
        free: g
        mixed: h
    """


def chosen(
    unit: str,
    days: int,
    kind: Literal["a", "b"],
    more: list[str] | None,
    note: str,
    last: str,
) -> None:
    """Choices.

    Args:
        unit: The unit (choices: ["c", " f "])
        days: How many, at
            most (Choices: [1, 2, null])
        kind: (choices: ["a"])
        more: Some
            (choices: [["x"], []])
        note: With (choices: ["c"]) in the middle
        last: One of (these) things (choices:["(x)"])
    """


class Station:
    def read(self, sensor: str) -> float:
        """Reads a sensor.

        Args:
            sensor: Its name
        """
        return 0.0


@pytest.mark.parametrize("function", [plain, defaults, nested, chosen, Station().read])
def test_a_declaration_is_what_transformers_makes_of_the_function(function: Any) -> None:
    expected = get_json_schema(function)
    assert declaration(function) == expected
    assert json.dumps(declaration(function)) == json.dumps(expected)  # in the same order, too


class Unit(enum.Enum):
    CELSIUS = "c"
    KELVIN = "k"


@dataclass
class Place:
    name: str
    height: float = 0.0
    tags: list[str] = field(default_factory=list)


class Options(TypedDict, total=False):
    unit: Unit


class Box:
    """A class that no schema describes."""


def test_enums_dataclasses_and_typed_dicts() -> None:
    def find(place: Place, unit: Unit, options: Options, note: Annotated[str, "said aloud"] = "") -> None: ...

    parameters = declaration(find)["function"]["parameters"]
    assert parameters == {
        "type": "object",
        "properties": {
            "place": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "height": {"type": "number"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["name"],
            },
            "unit": {"type": "string", "enum": ["c", "k"]},
            "options": {
                "type": "object",
                "properties": {"unit": {"type": "string", "enum": ["c", "k"]}},
            },
            "note": {"type": "string", "description": "said aloud"},
        },
        "required": ["place", "unit", "options"],
    }


class City(pydantic.BaseModel):
    name: str
    unit: Unit = Unit.KELVIN


class Trip(pydantic.BaseModel):
    start: City
    stops: list[City] = []
    by: Literal["car", "foot"] = "car"


class Branch(pydantic.BaseModel):
    under: list[Branch] = []


def travel(trip: Trip, home: City | None = None) -> None: ...


def grow(branch: Branch) -> None: ...


def test_models_in_models_stand_where_they_are_used() -> None:
    """What `$ref` names would be looked for in the schema of the parameters, where it is not."""
    properties = declaration(travel)["function"]["parameters"]["properties"]
    text = json.dumps(properties)
    assert "$ref" not in text and "$defs" not in text
    city = properties["trip"]["properties"]["start"]
    assert city["title"] == "City" and city["properties"]["unit"]["enum"] == ["c", "k"]
    assert city["properties"]["unit"]["default"] == "k"
    assert properties["trip"]["properties"]["stops"]["items"] == city
    assert properties["home"] == {**city, "nullable": True}


@pytest.mark.parametrize("name", FORMATS)
def test_calls_with_models_in_models_may_be_required(name: str) -> None:
    grammar = calls_grammar(FORMATS[name], tools_of([travel]), {})
    assert llguidance.LLMatcher.validate_grammar(grammar) == ""


def test_neither_hints_nor_a_docstring_need_be_there() -> None:
    def find(place, *rest, unit="c", **named): ...  # type: ignore[no-untyped-def]

    assert declaration(find)["function"] == {
        "name": "find",
        "parameters": {"type": "object", "properties": {"place": {}, "unit": {}}, "required": ["place"]},
    }


def test_functions_and_schemas_may_stand_side_by_side() -> None:
    other = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
    assert tools_of([plain, other]) == [declaration(plain), other]


def unknown(box: Box) -> None: ...


def unresolved(box: Missing) -> None: ...  # type: ignore[name-defined] # noqa: F821


@dataclass
class Tree:
    left: Tree | None


def endless(tree: Tree) -> None: ...


def odd(value: Literal[b"x"]) -> None: ...


def bare(unit: str) -> None:
    """Finds it.

    Args:
        unit: A unit (choices: c, f)
    """


def escaped(unit: str) -> None:
    r"""Finds it.

    Args:
        unit: A unit (choices: [\"c\", \"f\"])
    """


def no_list(unit: str) -> None:
    """Finds it.

    Args:
        unit: A unit (choices: "cf")
    """


class Nameless:
    __name__ = 5

    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("tool", "complaint"),
    [
        (unknown, r"tools\[0\]: unknown: there is no JSON schema for <class '.*Box'>; use str"),
        (unresolved, r"tools\[0\]: unresolved: its signature cannot be read: name 'Missing' is not defined"),
        (endless, r"endless: .*Tree'> contains itself"),
        (grow, r"grow: Branch contains itself"),
        (odd, r"odd: the values must be texts"),
        (bare, r"tools\[0\]: bare: unit: its choices are no JSON list: c, f; write them as \(choices: \["),
        (escaped, r"tools\[0\]: escaped: unit: its choices are no JSON list: \[.\"c"),
        (no_list, r"tools\[0\]: no_list: unit: its choices are no JSON list: \"cf\";"),
        (lambda x: x, r"must be a function with a name"),
        (functools.partial(plain, "x"), r"must be a function with a name"),
        (Nameless(), r"must be a function with a name"),
        ({"name": "f", "parameters": {"x": {1}}}, r"tools\[0\] is not JSON"),
        (5, r"tools\[0\] is neither an object nor a function"),
    ],
)
def test_what_is_no_tool_is_refused_by_its_place(tool: Any, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        tools_of([tool])


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(NamedTuple):
    x: int
    y: int = 0


class Id(str):
    """A text of its own kind."""


@dataclass
class Town(Place):
    unit: Unit = Unit.KELVIN
    near: list[Place] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a town has a name")


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (Any, {"a": [1]}, {"a": [1]}),
        (str, "a", "a"),
        (int, 2, 2),
        (int, 2.0, 2),
        (float, 2, 2.0),
        (bool, True, True),
        (None, None, None),
        (Id, "a", Id("a")),
        (Annotated[Unit, "a unit"], "k", Unit.KELVIN),
        (Unit, "c", Unit.CELSIUS),
        (Level, 2, Level.HIGH),
        (Literal["a", 1], 1, 1),
        (Literal[1, True], True, True),
        (Literal[1.5, None], None, None),
        (list, [1, "a"], [1, "a"]),
        (list[Unit], ["c"], [Unit.CELSIUS]),
        (Sequence[Unit], ["c"], [Unit.CELSIUS]),
        (tuple, [1], (1,)),
        (tuple[int, Unit], [1, "c"], (1, Unit.CELSIUS)),
        (tuple[Unit, ...], ["c", "k"], (Unit.CELSIUS, Unit.KELVIN)),
        (set[Unit], ["c", "c"], {Unit.CELSIUS}),
        (frozenset[int], [1, 2], frozenset({1, 2})),
        (deque[int], [1, 2], deque([1, 2])),
        (Point, [1, 2], Point(1, 2)),
        (dict, {"a": 1}, {"a": 1}),
        (dict[str, Place], {"a": {"name": "b"}}, {"a": Place("b")}),
        (dict[int, tuple[int, ...]], {"1": [2]}, {1: (2,)}),
        (dict[Unit, str], {"c": "k"}, {Unit.CELSIUS: "k"}),
        (Mapping[str, float], {"a": 1}, {"a": 1.0}),
        (OrderedDict[str, Unit], {"a": "c"}, OrderedDict(a=Unit.CELSIUS)),
        (Place, {"name": "a", "height": 2, "tags": ["b"]}, Place("a", 2.0, ["b"])),
        (
            Town,
            {"name": "a", "unit": "c", "near": [{"name": "b"}]},
            Town("a", unit=Unit.CELSIUS, near=[Place("b")]),
        ),
        (Options, {"unit": "c"}, {"unit": Unit.CELSIUS}),
        (City, {"name": "a", "unit": "c"}, City(name="a", unit=Unit.CELSIUS)),
        (list[City], [{"name": "a"}], [City(name="a")]),
        (Place | None, None, None),
        (Place | None, {"name": "a"}, Place("a")),
        (int | Place, {"name": "a"}, Place("a")),
        (int | Unit | str, "k", Unit.KELVIN),
        (int | Unit | str, "m", "m"),
        (Optional[list[Place]], [{"name": "a"}], [Place("a")]),  # noqa: UP045
    ],
)
def test_a_json_value_becomes_what_its_hint_says(hint: Any, value: Any, expected: Any) -> None:
    def take(value): ...  # type: ignore[no-untyped-def]

    take.__annotations__["value"] = hint
    declaration(take)
    positional, named = arguments_for(take, {"value": value})
    assert (positional, named) == ([], {"value": expected})
    # Within, too: 1, 1.0 and True are equal.
    assert repr(named["value"]) == repr(expected) and type(named["value"]) is type(expected)


@pytest.mark.parametrize(
    ("hint", "value", "complaint"),
    [
        (str, 5, "value must be of type string, not 5"),
        (int, "5", 'value must be of type integer, not "5"'),
        (int, 1.5, "value must be of type integer, not 1.5"),
        (int, True, "value must be of type integer, not true"),
        (float, True, "value must be of type number, not true"),
        pytest.param(float, 10**400, "value: int too large to convert to float", id="too large"),
        (bool, 1, "value must be of type boolean, not 1"),
        (str, None, "value must be of type string, not null"),
        (Unit, "CELSIUS", 'value must be one of ["c", "k"], not "CELSIUS"'),
        (Literal[1, "a"], True, 'value must be one of [1, "a"], not true'),
        (list[int], "a", 'value must be of type array, not "a"'),
        (list[tuple[int, Unit]], [[1, "c"], [1, "x"]], 'value[1][1] must be one of ["c", "k"], not "x"'),
        (tuple[int, int], [1], "value must have 2 items, not [1]"),
        (Point, [], "value: "),
        (set[list[int]], [[1]], "value: unhashable type: 'list'"),
        (dict[str, int], [], "value must be of type object, not []"),
        (dict[str, int], {"a": "b"}, "value['a'] must be of type integer, not \"b\""),
        (dict[int, int], {"a": 1}, 'value: a key must be of type integer, not "a"'),
        (Place, "Rome", 'value must be of type object, not "Rome"'),
        (Place, {"height": 1}, "value.name is missing"),
        (Place, {"name": "a", "high": 1}, "value has no high, but name, height, tags"),
        (Place, {"name": "a", "tags": [1]}, "value.tags[0] must be of type string, not 1"),
        (Town, {"name": ""}, "value: a town has a name"),
        (Options, {"unit": 1}, 'value.unit must be one of ["c", "k"], not 1'),
        (City, {}, "value: 1 validation error for City"),
        (Place | None, 5, "value must be of type object, not 5"),
        (
            int | list[int],
            "a",
            'value must be of type integer, not "a", or value must be of type array, not "a"',
        ),
    ],
)
def test_a_json_value_that_does_not_fit_is_refused_by_its_place(
    hint: Any, value: Any, complaint: str
) -> None:
    def take(value): ...  # type: ignore[no-untyped-def]

    take.__annotations__["value"] = hint
    with pytest.raises(RequestError, match="^" + re.escape(complaint)):
        arguments_for(take, {"value": value})


def test_arguments_by_position_and_by_name() -> None:
    def find(place: Place, near: int = 3, /, unit: Unit = Unit.KELVIN, *rest, tag: str = None, **more): ...  # type: ignore[no-untyped-def, assignment] # noqa: RUF013

    rome = {"name": "Rome"}
    assert arguments_for(find, {"place": rome}) == ([Place("Rome"), 3], {})
    given = {"unit": "c", "place": rome, "near": 5, "tag": None, "other": "c"}
    assert arguments_for(find, given) == (
        [Place("Rome"), 5],
        {"unit": Unit.CELSIUS, "tag": None, "other": "c"},
    )
    with pytest.raises(RequestError, match=r"^place is missing$"):
        arguments_for(find, {"near": 5})
