"""Reads the bodies of requests: JSON and forms of bounded size, in bounded time and memory."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from math import isinf
from typing import Any, TypeVar

from pydantic_core import from_json
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from olivine.server.errors import ApiError

# What one body may have. Nothing else runs in this process while the parser does, which takes some 0.1 s for
# either number: a text, a list or an object costs it as much as several numbers.
MOST_VALUES = 1 << 20
MOST_STRUCTURES = 1 << 17  # lists, objects, and texts with the names of fields among them
MOST_AT_ONCE = 32  # bodies of the longest kind that may be on their way at the same time
_SHORT = 1 << 14  # bytes of a body that takes no thread
_LARGE = 1 << 20  # bytes of a body for which the garbage collector pauses
MOST_FILES, MOST_FIELDS = 4, 64  # of a form
_FORM_PART = 1 << 16  # bytes of a form that are parsed at once
_NEVER_JSON = ("multipart/", "image/", "audio/", "video/")
T = TypeVar("T")


class _FormParser(MultiPartParser):
    spool_max_size = 1 << 62  # no files on disk: the whole body is no longer than `max_body`


class Bodies:
    """Reads the bodies of all requests of a server."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most  # bytes of one body
        self._seconds = seconds
        self._held = 0  # bytes of all bodies that are on their way

    async def raw(self, request: Request) -> bytes:
        """The body of a request, whatever it is."""
        self._check_length(request)
        return await self._read(request)

    async def json(self, request: Request, use: Callable[[dict[str, Any]], T]) -> T:
        """What is made of the body of a request, which has to be a JSON object."""
        self._check(request)
        return await unhurried(await self._read(request), lambda content: use(json_of(content)))

    async def form(self, request: Request, use: Callable[[dict[str, Any]], T]) -> T:
        """What is made of the fields of a form: texts, the content of a file as bytes, and lists where a name
        ends with []."""
        media_type = request.headers.get("content-type", "").lower()
        if not media_type.startswith("multipart/form-data"):
            message = f"the body must be multipart/form-data, not {media_type[:60] or 'without a type'}"
            raise _closing(415, message, "invalid_form")
        self._check(request, json=False)
        content = await self._read(request)

        async def parts() -> AsyncGenerator[bytes, None]:
            for start in range(0, len(content), _FORM_PART):
                yield content[start : start + _FORM_PART]
                await asyncio.sleep(0)  # for others

        parser = _FormParser(request.headers, parts(), max_files=MOST_FILES, max_fields=MOST_FIELDS)
        try:
            form = await parser.parse()
        except (MultiPartException, ValueError) as error:
            raise ApiError(400, f"the body is no form: {error}", code="invalid_form") from None
        found: dict[str, Any] = {}
        for name, value in form.multi_items():
            plain = value if isinstance(value, str) else await value.read()
            if name.endswith("[]"):
                found.setdefault(name.removesuffix("[]"), []).append(plain)
            else:
                found[name] = plain
        return use(found)

    def _check(self, request: Request, json: bool = True) -> None:
        """Refuses by the headers what would be refused later."""
        self._check_length(request)
        headers = request.headers
        media_type = headers.get("content-type", "").lower()
        if json and media_type.startswith(_NEVER_JSON):
            raise _closing(415, f"the body must be application/json, not {media_type[:60]}", "invalid_json")
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise _closing(415, "the body must not be compressed", "invalid_json")

    def _check_length(self, request: Request) -> None:
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self._most:
            raise self._too_large()

    async def _read(self, request: Request) -> bytes:
        parts: list[bytes] = []
        try:
            await asyncio.wait_for(self._collect(request, parts), self._seconds)
        except asyncio.TimeoutError:
            message = f"the body did not arrive within {self._seconds:g} seconds"
            raise _closing(408, message, "request_timeout") from None
        finally:
            self._held -= sum(map(len, parts))
        return b"".join(parts)

    async def _collect(self, request: Request, parts: list[bytes]) -> None:
        size = 0
        async for part in request.stream():
            parts.append(part)
            size += len(part)
            self._held += len(part)
            if size > self._most:
                raise self._too_large()
            if self._held > MOST_AT_ONCE * self._most:
                message = "too many long requests arrive at the same time; try again later"
                raise _closing(503, message, "overloaded", {"Retry-After": "1"})

    def _too_large(self) -> ApiError:
        return _closing(413, f"the body is longer than {self._most} bytes", "request_too_large")


async def unhurried(content: bytes, use: Callable[[bytes], T]) -> T:
    """What is made of a body: of a long one in a thread, so that others go on meanwhile."""
    if len(content) <= _SHORT:
        return use(content)

    def using() -> T:
        with _without_gc(len(content)):
            return use(content)

    return await asyncio.to_thread(using)


def json_of(content: bytes) -> dict[str, Any]:
    """The JSON object that a body is."""
    if not content.strip():
        raise ApiError(400, "the body is empty: send a JSON object", code="invalid_json")
    if len(content) > MOST_STRUCTURES:
        _check_size(content)
    try:
        found = from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"the body is no JSON: {error}", code="invalid_json") from None
    if not isinstance(found, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    for name, value in found.items():
        if _has_infinity(value):
            message = f"{name[:60]}: a number is beyond 1.8e308, the largest that there is here"
            raise ApiError(400, message, code="invalid_value", param=name[:60])
    return found


def _check_size(content: bytes) -> None:
    """Refuses more than can be parsed quickly. What texts say does not count: each is between two quotes."""
    plain = content.replace(rb"\\", b"").replace(rb"\"", b"")
    structures, values = plain.count(b'"') // 2, 0
    if structures <= MOST_STRUCTURES:
        outside = b"".join(plain.split(b'"')[::2])
        structures += outside.count(b"[") + outside.count(b"{")
        values = outside.count(b",")
    if structures > MOST_STRUCTURES or values > MOST_VALUES:
        message = (
            f"the body has more than {MOST_VALUES} values, or more than {MOST_STRUCTURES} texts, lists and "
            "objects"
        )
        raise ApiError(413, message, code="request_too_large")


def _has_infinity(value: Any) -> bool:
    """Whether a number is infinite, as 1e400 is: JSON has no word for it that an answer could repeat."""
    waiting: list[Any] = [[value]]
    while waiting:
        inside = waiting.pop()
        for each in inside.values() if isinstance(inside, dict) else inside:
            kind = type(each)
            if kind is float:
                if isinf(each):
                    return True
            elif kind is dict or kind is list:
                waiting.append(each)
    return False


def _closing(status: int, message: str, code: str, headers: dict[str, str] | None = None) -> ApiError:
    """An error after which the rest of the body is not read."""
    return ApiError(status, message, code=code, headers={"Connection": "close", **(headers or {})})


@contextmanager
def _without_gc(size: int) -> Iterator[None]:
    """The collector would run again and again while a large body is parsed: that takes four times as long."""
    pausing = size > _LARGE and gc.isenabled()
    if pausing:
        gc.disable()
    try:
        yield
    finally:
        if pausing:
            gc.enable()
