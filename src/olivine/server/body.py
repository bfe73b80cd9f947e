"""Bodies of requests: what those of all APIs have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from olivine.server.errors import ApiError

# How much one request may ask for; what is beyond is refused.
MOST_MESSAGES = 4096
MOST_PARTS = 1 << 14  # of all messages together: contents, calls, results
MOST_TOOLS = 4096
MOST_BIASES = 4096  # tokens in a logit_bias
MOST_OUTPUTS = 128  # prompts × n
MOST_STOPS = 64
LONGEST_STOP = 1024  # characters
MOST_STOP_TOKENS = 4096
MOST_LOGPROBS = 20  # alternatives of a token

_SHOWN = 16  # names in a warning
K = TypeVar("K")
V = TypeVar("V")


class _FirstError:
    """Ends the check of a list or an object at its first bad element: pydantic would keep an error for each,
    which are gigabytes for a body of some megabytes."""

    # `Field(fail_fast=True)` says the same, but before pydantic 2.14 not of objects.
    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return {**handler(source), "fail_fast": True}


# What fields of bodies are in place of list and dict.
ListOf = Annotated[list[V], _FirstError()]
DictOf = Annotated[dict[K, V], _FirstError()]


class Body(BaseModel):
    """A request's body. A field that is null counts as not given; one that is not known is ignored, and named
    in a warning, unless it is in `IGNORED`: fields whose absence changes no answer."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())
    IGNORED: ClassVar[frozenset[str]] = frozenset()


def warning_of(body: Any) -> dict[str, str]:
    """The header that names the fields of a body that are not known, if there are any."""
    extra = (body.model_extra or {}) if isinstance(body, Body) else {}
    unknown = sorted(name for name, value in extra.items() if value is not None and name not in body.IGNORED)
    if not unknown:
        return {}
    names = ", ".join(_printable(name) for name in unknown[:_SHOWN])
    more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
    return {"Warning": f'299 olivine "ignored, because they are not known: {names}{more}"'}


def _printable(name: str) -> str:
    """A field's name as a header may show it."""
    return "".join(
        char if char.isascii() and char.isprintable() and char != '"' else "?" for char in name[:60]
    )


def at_most(param: str, count: int, most: int, what: str) -> None:
    """Refuses more of something than one request may have."""
    if count > most:
        message = f"{param}: {count} {what}, and {most} is the most in one request"
        raise ApiError(400, message, code="invalid_value", param=param)


def check_messages(param: str, messages: Sequence[Any], what: str = "messages", beside: Any = None) -> None:
    """Refuses more messages, or parts in them and in a content `beside` them, than a request may have."""
    at_most(param, len(messages), MOST_MESSAGES, what)
    parts, level = 0, [*messages, {"content": beside}]
    while level and parts <= MOST_PARTS:  # results have parts of their own
        lists = [value for each in level if isinstance(each, dict) for value in each.values()]
        level = []
        for inner in filter(lambda value: isinstance(value, list), lists):
            parts += len(inner)
            level += inner if parts <= MOST_PARTS else ()
    at_most(param, parts, MOST_PARTS, f"parts of {what}")


def check_tools(tools: Sequence[Any] | None) -> None:
    """Refuses more tools, those in namespaces too, than a request may have."""
    count = len(tools or ())
    if count <= MOST_TOOLS:
        inner = [tool.get("tools") for tool in tools or () if isinstance(tool, dict)]
        count += sum(len(each) for each in inner if isinstance(each, list))
    at_most("tools", count, MOST_TOOLS, "tools")


def check_stops(stop: Any, param: str = "stop") -> None:
    """Refuses more or longer stop strings than a request may have."""
    stops = [stop] if isinstance(stop, str) else stop or ()
    at_most(param, len(stops), MOST_STOPS, "stop strings")
    at_most(param, max(map(len, stops), default=0), LONGEST_STOP, "characters in a stop string")


def library_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a request that were given, in the ranges of `LLM`. The APIs have a top_p of 0, which leaves
    the likeliest token alone, and negative seeds, of which -1 is llama.cpp's word for a random one."""
    found = {name: value for name, value in given.items() if value is not None}
    if found.get("top_p") == 0:
        del found["top_p"]
        found["top_k"] = 1
    if found.get("seed") == -1:
        del found["seed"]
    elif -(1 << 63) <= found.get("seed", 0) < 0:
        found["seed"] += 1 << 64
    return found
