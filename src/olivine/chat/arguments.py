"""The arguments of a tool call, made of JSON as the Python function's type hints have them: the other side of
`functions.py`, which declares them."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union

from olivine.chat.functions import JSON_TYPES, hints_of, members_of
from olivine.errors import RequestError


def arguments_for(function: Callable[..., Any], given: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments to call a declared function with, from JSON: those by position, and those by name.

    Values become what the hints say; one that does not fit is a `RequestError` that says where. Arguments
    that the function does not have stay, for Python to refuse them.
    """
    hints = hints_of(function)
    positional: list[Any] = []
    named = dict(given)
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        # Hints often leave out the None of the default.
        if name in named and not (named[name] is None and parameter.default is None):
            named[name] = _built(hints.get(name, Any), named[name], name)
        if parameter.kind is parameter.POSITIONAL_ONLY:
            if name not in named and parameter.default is parameter.empty:
                raise RequestError(f"{name} is missing")
            positional.append(named.pop(name, parameter.default))
    return positional, named


def _built(hint: Any, value: Any, where: str) -> Any:
    """A JSON value as a type has it, for all that `_schema` knows; `where` it is in the arguments."""
    try:
        return _converted(hint, value, where)
    except RequestError:
        raise
    except Exception as error:  # a class refuses what it is made of
        raise RequestError(f"{where}: {error}") from None


def _converted(hint: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    kind = origin or hint
    if origin is typing.Annotated:
        return _built(args[0], value, where)
    if origin in (Union, types.UnionType):
        return _first(args, value, where)
    if origin is Literal:
        return _among(args, value, where)
    if kind in (Any, inspect.Parameter.empty):
        return value
    if issubclass(kind, enum.Enum):
        return kind(_among([each.value for each in kind], value, where))
    if hasattr(kind, "model_validate_json"):  # pydantic's
        return kind.model_validate_json(json.dumps(value))
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        return _object(kind, value, where)
    if issubclass(kind, str | int | float | None):
        return _plain(kind, value, where)
    if issubclass(kind, Mapping):
        if not isinstance(value, dict):
            raise _misfit(where, "be of type object", value)
        made: Any = {} if inspect.isabstract(kind) else kind()
        of_keys, of_values = args if len(args) == 2 else (Any, Any)
        for key, inner in value.items():
            made[_key(of_keys, key, f"{where}: a key")] = _built(of_values, inner, f"{where}[{key!r}]")
        return made
    if not isinstance(value, list):
        raise _misfit(where, "be of type array", value)
    if origin is tuple and args and args[-1] is not ...:
        if len(value) != len(args):
            raise _misfit(where, f"have {len(args)} items", value)
    else:
        args = (args[0] if args else Any,) * len(value)
    items = [_built(each, value[i], f"{where}[{i}]") for i, each in enumerate(args)]
    if hasattr(kind, "_make"):  # a named tuple
        return kind(*items)
    return items if inspect.isabstract(kind) else kind(items)


def _plain(kind: Any, value: Any, where: str) -> Any:
    """A text, a number, True, False or None; JSON does not tell 1 from 1.0."""
    base = next(known for known in kind.__mro__ if known in JSON_TYPES)
    whole = type(value) is int or (type(value) is float and value.is_integer())
    if type(value) is not base and not (whole and base in (int, float)):
        raise _misfit(where, f"be of type {JSON_TYPES[base]['type']}", value)
    return value if value is None else kind(value)


def _first(args: Sequence[Any], value: Any, where: str) -> Any:
    """A value as the first type of a union that it fits."""
    if value is None and type(None) in args:
        return None
    complaints = []
    for each in args:
        if each is not type(None):
            try:
                return _built(each, value, where)
            except RequestError as error:
                complaints.append(str(error))
    raise RequestError(", or ".join(complaints))


def _among(values: Sequence[Any], value: Any, where: str) -> Any:
    """The one of the values that JSON has given."""
    for each in values:
        if each == value and isinstance(each, bool) == isinstance(value, bool):  # True == 1
            return each
    raise _misfit(where, f"be one of {json.dumps(list(values), ensure_ascii=False)}", value)


def _object(kind: Any, value: Any, where: str) -> Any:
    """A dataclass or a TypedDict of its fields."""
    if not isinstance(value, dict):
        raise _misfit(where, "be of type object", value)
    hints, required = members_of(kind)
    for name in value:
        if name not in hints:
            raise RequestError(f"{where} has no {name}, but {', '.join(hints)}")
    for name in required:
        if name not in value:
            raise RequestError(f"{where}.{name} is missing")
    return kind(**{name: _built(hints[name], inner, f"{where}.{name}") for name, inner in value.items()})


def _key(hint: Any, text: str, where: str) -> Any:
    """A key of a dict, which JSON has as a text even if it is a number."""
    try:
        return _built(hint, text, where)
    except RequestError:
        with contextlib.suppress(ValueError, RequestError):
            return _built(hint, json.loads(text), where)
        raise


def _misfit(where: str, need: str, value: Any) -> RequestError:
    return RequestError(f"{where} must {need}, not {json.dumps(value, ensure_ascii=False)[:80]}")
