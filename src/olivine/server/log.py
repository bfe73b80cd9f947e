"""One line in the log for each request: who, what, how it ended, how much and how long. Never what was said,
unless the operator asked for that."""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from olivine.server.security import client_of
from olivine.server.settings import Settings

if TYPE_CHECKING:
    from olivine.server.endpoint import Call

requests = logging.getLogger("olivine.server.requests")
kernels = logging.getLogger("olivine.server.kernels")  # those of a GPU, for which a load may wait long
GONE = 499  # the status under which a client counts that did not wait for its response
_RECORD = "olivine.record"  # in the scope of a request
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


@dataclass
class Record:
    """What is known of a request."""

    id: str
    given_id: bool  # by the client
    began: float = field(default_factory=time.perf_counter)
    status: int = GONE
    first: float | None = None  # seconds to the response's beginning
    call: Call | None = None  # once an endpoint has it

    def fields(self, scope: Scope) -> dict[str, Any]:
        """The fields of its line in the log."""
        client, call = client_of(Request(scope)), self.call
        found = {
            "id": self.id,
            "client": client[:20] if client.startswith("key:") else client,
            "method": scope["method"],
            "path": scope["path"],
            "status": self.status,
            "seconds": round(time.perf_counter() - self.began, 4),
            "first_byte": None if self.first is None else round(self.first, 4),
        }
        if call is not None and call.served is not None:
            found["model"] = call.served.name
        if call is not None and call.usages:  # of all outputs
            found["prompt"] = sum(usage.prompt for usage in call.usages)
            found["cached"] = sum(usage.cached for usage in call.usages)
            found["generated"] = sum(usage.completion for usage in call.usages)
        if call is not None and call.server.settings.log_prompts and call.body is not None:
            found["body"] = call.body.model_dump(exclude_unset=True)
        return {name: value for name, value in found.items() if value is not None}


def new_id() -> str:
    """An id for a request."""
    return f"req_{secrets.token_hex(12)}"


def record_of(scope: Scope) -> Record:
    """The record of a request; its id is the client's own if that is a plain word."""
    found = scope.get(_RECORD)
    if not isinstance(found, Record):
        given = Headers(scope=scope).get("x-request-id", "")
        sane = _ID.fullmatch(given) is not None
        found = scope[_RECORD] = Record(given if sane else new_id(), sane)
    return found


class RequestLog:
    """Writes the lines."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not requests.isEnabledFor(logging.INFO):
            await self._app(scope, receive, send)
            return
        record = record_of(scope)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                record.first = time.perf_counter() - record.began
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            requests.info("request", extra={"fields": record.fields(scope)})


class TextFormatter(logging.Formatter):
    """Lines for people: a request's fields as name=value."""

    def __init__(self) -> None:
        super().__init__("{asctime} {levelname} {message}", style="{")

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] | None = getattr(record, "fields", None)
        if fields is None:
            return super().format(record)
        shown = " ".join(f"{name}={_word(value)}" for name, value in fields.items())
        return f"{self.formatTime(record)} {shown}"


class JsonFormatter(logging.Formatter):
    """Lines for programs: a JSON object each."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", None) or {"message": record.getMessage()}
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {"time": f"{stamp}.{int(record.msecs):03}Z", "level": record.levelname.lower(), **fields}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _word(value: Any) -> str:
    """A value on one line, without spaces or characters that a terminal acts on."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    plain = text.isascii() and text.isprintable() and " " not in text and '"' not in text
    return text if plain else json.dumps(text)


def configure(settings: Settings) -> None:
    """Lets the server's loggers, and uvicorn's, write to the standard error stream."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    for name in ("olivine.server", "uvicorn"):
        logging.getLogger(name).handlers = [handler]
        logging.getLogger(name).propagate = False
    for each in (requests, kernels):
        each.setLevel(logging.WARNING if settings.log_format == "none" else logging.INFO)
