"""Python functions as tools: the JSON schema of a function's signature, type hints and docstring."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union

from olivine.errors import RequestError

JSON_TYPES: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    list: {"type": "array"},
    tuple: {"type": "array"},
    dict: {"type": "object"},
    type(None): {"type": "null"},
    Any: {},
    inspect.Parameter.empty: {},
}
_HEADING = re.compile(r"(Args|Arguments|Parameters|Returns|Yields|Raises|Examples?|Notes?):\s*")
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_CHOICES = re.compile(r"\(choices:\s*(.*?)\)\s*$", re.IGNORECASE)


def declaration(function: Callable[..., Any]) -> dict[str, Any]:
    """A function as a tool: what `transformers.utils.get_json_schema` makes of it.

    Parameters without a default are required. A docstring of Google's form describes the function and, under
    `Args:`, its parameters; the values may be at a description's end, as `(choices: ["c", "f"])`. Neither a
    docstring nor type hints need be there.
    """
    name = getattr(function, "__name__", "")
    if not isinstance(name, str) or not name.isidentifier():
        raise RequestError(f"a tool must be a function with a name, and {_shown(function)} has none")
    try:
        signature = inspect.signature(function)
        hints = hints_of(function)
        description, parameters, returned = _documented(inspect.getdoc(function) or "")
        properties: dict[str, Any] = {}
        required = []
        for parameter in signature.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            schema = _schema(hints.get(parameter.name, parameter.empty))
            if parameter.name in parameters:
                schema |= _described(parameter.name, parameters[parameter.name])
            properties[parameter.name] = schema
            if parameter.default is parameter.empty:
                required.append(parameter.name)
        result = None
        if "return" in hints:
            result = _schema(hints["return"]) | ({"description": returned} if returned else {})
    except RequestError as error:
        raise RequestError(f"{name}: {error}") from None
    except Exception as error:  # a signature or hints that Python itself cannot read
        raise RequestError(f"{name}: its signature cannot be read: {error}") from None
    found: dict[str, Any] = {"name": name}
    if description:
        found["description"] = description
    found["parameters"] = {"type": "object", "properties": properties}
    if required:
        found["parameters"]["required"] = required
    if result is not None:
        found["return"] = result
    return {"type": "function", "function": found}


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    plain = inspect.isroutine(function) or inspect.isclass(function)
    return typing.get_type_hints(function if plain else type(function).__call__, include_extras=True)


def _schema(hint: Any, inside: tuple[Any, ...] = ()) -> dict[str, Any]:
    """The JSON schema of a type; `inside` are the classes around it."""
    if hint in inside:
        raise RequestError(f"{_shown(hint)} contains itself, which no schema here can say")
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        said = next((each for each in hint.__metadata__ if isinstance(each, str)), None)
        return _schema(args[0], inside) | ({"description": said} if said else {})
    if origin in (Union, types.UnionType):
        return _union(args, inside)
    if origin is Literal:
        return _values(args)
    if origin is tuple and args and args[-1] is not ...:
        return {"type": "array", "prefixItems": [_schema(each, inside) for each in args]}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        more = {"additionalProperties": _schema(args[1], inside)} if len(args) == 2 else {}
        return {"type": "object", **more}
    if isinstance(origin, type) and issubclass(origin, Sequence | set | frozenset):
        return {"type": "array", **({"items": _schema(args[0], inside)} if args else {})}
    if isinstance(hint, type):
        if issubclass(hint, enum.Enum):
            return _values([each.value for each in hint])
        if hasattr(hint, "model_json_schema"):  # pydantic's
            schema = dict(hint.model_json_schema())
            return _resolved(schema, schema.pop("$defs", {}))
        if dataclasses.is_dataclass(hint) or typing.is_typeddict(hint):
            return _fields(hint, (*inside, hint))
        hint = next((known for known in hint.__mro__ if known in JSON_TYPES), hint)
    if hint not in JSON_TYPES:
        raise RequestError(
            f"there is no JSON schema for {_shown(hint)}; use str, int, float, bool, list, dict, Literal, "
            "an Enum, a dataclass or a TypedDict"
        )
    return dict(JSON_TYPES[hint])


def _resolved(schema: Any, named: Mapping[str, Any], inside: tuple[str, ...] = ()) -> Any:
    """A schema with others in place of their names, which mean nothing in the schema of the parameters;
    `inside` are those around it."""
    if isinstance(schema, list):
        return [_resolved(each, named, inside) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _resolved(inner, named, inside) for key, inner in schema.items() if key != "$ref"}
    name = schema.get("$ref")
    if not isinstance(name, str):  # or it is a property of that name
        return found if name is None else {**found, "$ref": _resolved(name, named, inside)}
    if name in inside:
        raise RequestError(f"{name.rpartition('/')[2]} contains itself, which no schema here can say")
    target = named[name.removeprefix("#/$defs/")]
    return {**_resolved(target, named, (*inside, name)), **found}


def _union(args: Sequence[Any], inside: tuple[Any, ...]) -> dict[str, Any]:
    some = [_schema(each, inside) for each in args if each is not type(None)]
    if len(some) == 1:
        found = some[0]
    elif all(each.keys() == {"type"} for each in some):
        names = sorted({each["type"] for each in some})
        found = {"type": names if len(names) > 1 else names[0]}
    else:
        found = {"anyOf": some}
    if type(None) in args:
        found["nullable"] = True
    return found


def _values(values: Sequence[Any]) -> dict[str, Any]:
    """One of these."""
    kinds = list(dict.fromkeys(JSON_TYPES.get(type(value), {}).get("type") for value in values))
    if not kinds or None in kinds or "array" in kinds or "object" in kinds:
        raise RequestError(f"the values must be texts, numbers, True, False or None: {_shown(list(values))}")
    return {"type": kinds if len(kinds) > 1 else kinds[0], "enum": list(values)}


def _fields(kind: Any, inside: tuple[Any, ...]) -> dict[str, Any]:
    """The object that a dataclass or a TypedDict is."""
    hints, required = members_of(kind)
    found: dict[str, Any] = {
        "type": "object",
        "properties": {name: _schema(hint, inside) for name, hint in hints.items()},
    }
    return found | ({"required": required} if required else {})


def members_of(kind: Any) -> tuple[dict[str, Any], list[str]]:
    """The hints of a dataclass or a TypedDict by name, and the names that must be given."""
    hints = typing.get_type_hints(kind, include_extras=True)
    if not dataclasses.is_dataclass(kind):
        required = [name for name in hints if name in kind.__required_keys__]
        return {name: _unwrapped(hint) for name, hint in hints.items()}, required
    fields = [field for field in dataclasses.fields(kind) if field.init]
    absent = dataclasses.MISSING
    required = [field.name for field in fields if field.default is absent and field.default_factory is absent]
    return {field.name: hints[field.name] for field in fields}, required


def _unwrapped(hint: Any) -> Any:
    """What Required and NotRequired of a TypedDict hold, whichever module they come from."""
    name = getattr(typing.get_origin(hint), "_name", "")
    return typing.get_args(hint)[0] if name in ("Required", "NotRequired") else hint


def _described(name: str, text: str) -> dict[str, Any]:
    """What a parameter's description gives to its schema: the choices at its end are no part of the text."""
    choices = _CHOICES.search(text)
    if choices is None:
        return {"description": text}
    try:
        values = json.loads(choices[1])
    except ValueError:
        values = None
    if not isinstance(values, list):
        raise RequestError(
            f'{name}: its choices are no JSON list: {choices[1][:80]}; write them as (choices: ["a", "b"])'
        )
    said = text[: choices.start()].strip()
    return {"enum": [each.strip() if isinstance(each, str) else each for each in values], "description": said}


def _documented(text: str) -> tuple[str, dict[str, str], str]:
    """What a docstring says of the function, of its parameters and of its result."""
    sections: dict[str, list[str]] = {"": []}
    heading = ""
    for line in text.splitlines():
        if begins := _HEADING.fullmatch(line):
            heading = begins[1]
            sections[heading] = []
        else:
            sections[heading].append(line)
    parameters: dict[str, list[str]] = {}
    for heading in ("Args", "Arguments", "Parameters"):
        lines = [line for line in sections.get(heading, ()) if line.strip()]
        indents = [len(line) - len(line.lstrip()) for line in lines]
        name = ""
        for line, indent in zip(lines, indents, strict=True):
            entry = _ENTRY.fullmatch(line.strip()) if indent == min(indents) else None
            if entry:
                name = entry[1]
                parameters[name] = [entry[2]]
            elif name:
                parameters[name].append(line.strip())
    returned = "\n".join(sections.get("Returns", ()))
    return (
        "\n".join(sections[""]).strip(),
        {name: " ".join(filter(None, lines)) for name, lines in parameters.items()},
        inspect.cleandoc(returned),
    )


def _shown(value: Any) -> str:
    return repr(value)[:80]
