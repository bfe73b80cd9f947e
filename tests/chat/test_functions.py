"""Python functions as tools, against transformers' get_json_schema."""

from __future__ import annotations

import enum
import functools
import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Optional, TypedDict, Union

import llguidance
import pydantic
import pytest
from transformers.utils import get_json_schema

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


class Station:
    def read(self, sensor: str) -> float:
        """Reads a sensor.

        Args:
            sensor: Its name
        """
        return 0.0


@pytest.mark.parametrize("function", [plain, defaults, nested, Station().read])
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
