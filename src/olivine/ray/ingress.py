"""The deployment that clients reach, behind Ray's proxies: it sends each request to a replica.

Ray's proxies hand on requests before their bodies are read, so that no router there knows a prompt. Here the
body is read, its prefix is hashed, and the replica's response is passed on as it comes. A replica that dies
before its response began has answered nobody: the request goes to another one.
"""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from olivine.ray.exposition import merged
from olivine.ray.prefix import prefixes_of
from olivine.ray.replica import SCOPE, Forwarded, Whole
from olivine.server.errors import ApiError, anthropic_shape, shape_of
from olivine.server.events import dumps, named_event
from olivine.server.reading import Bodies, unhurried
from olivine.server.security import check_key
from olivine.server.settings import Settings

logger = logging.getLogger("ray.serve")
ATTEMPTS = 3  # replicas that a request is sent to, one after the other
RETRY_AFTER = {"Retry-After": "1"}
# Paths that name an answer or a stream: only the replica that makes it knows it.
_NAMED = re.compile(r"(?:/v1)?/(?:streams|chat/completions|responses)/([^/]+)(?:/(?:cancel|end_thinking))?")
# Errors of a replica after which another one can answer.
_ELSEWHERE = (b'"rank_failed"', b'"engine_failed"', b'"closed"', b'"shutting_down"')
_STREAMS = ("text/event-stream", "application/x-ndjson")


class Failed(Exception):
    """A replica did not answer; another one may."""

    def __init__(self, replica: str, why: str) -> None:
        super().__init__(why)
        self.replica = replica


class Ingress:
    """Sends requests to replicas."""

    def __init__(self, replicas: Any, settings: Settings) -> None:
        self._replicas = replicas
        self._answer = replicas.options(method_name="answer", stream=True)
        self._settings = settings
        self._bodies = Bodies(settings.max_body, settings.body_timeout)

    async def __call__(self, request: Request) -> Response:
        return _Relay(self)

    async def relay(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        path = "/" + scope["path"].strip("/")
        try:
            request = await self._read(scope, receive)
            if path in ("/metrics", "/v1/metrics"):
                await (await self._metrics(request))(scope, receive, send)
                return
            if (named := _NAMED.fullmatch(path)) is not None:
                request = replace(request, replica=await self._holder(named[1]))
            await self._relay(request, path, send)
        except ClientDisconnect:
            pass
        except ApiError as error:
            await JSONResponse(shape_of(path)(error), error.status, error.headers)(scope, receive, send)

    async def _read(self, scope: Scope, receive: Receive) -> Forwarded:
        request = Request(scope, receive)
        body = await self._bodies.raw(request)
        plain = {name: scope[name] for name in SCOPE if name in scope}
        try:
            check_key(request, self._settings.api_keys)
        except ApiError:  # the replica says so; nothing is learned from it
            return Forwarded(plain, body)
        return Forwarded(plain, body, await unhurried(body, prefixes_of))

    async def _relay(self, request: Forwarded, path: str, send: Send) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            response = Relayed(path, send, last=attempt == ATTEMPTS)
            try:
                await self._attempt(request, response)
                return
            except Failed as failed:
                logger.warning("%s: replica %s failed: %s", path, failed.replica or "?", failed)
                if response.begun:
                    await response.fail()
                    return
                request = replace(request, avoid=(*request.avoid, failed.replica))
        message = f"{ATTEMPTS} replicas failed to answer; try again"
        raise ApiError(503, message, code="replica_failed", headers=RETRY_AFTER)

    async def _attempt(self, request: Forwarded, response: Relayed) -> None:
        """Sends a request to one replica, and its response to the client."""
        generator, replica = self._answer.remote(request), ""
        try:
            try:
                replica = await asyncio.wait_for(anext(generator), max(1.0, self._settings.load_wait))
            except asyncio.TimeoutError:
                message = "no replica had room for the request in time; try again later"
                raise ApiError(503, message, code="overloaded", headers=RETRY_AFTER) from None
            async for messages in generator:
                for message in messages:
                    await response.put(message)
                    if response.elsewhere:
                        raise Failed(replica, f"status {response.status}")
            if not response.complete:
                raise Failed(replica, "its response has no end")
        except (RayError, RayServeException) as error:
            raise Failed(replica, f"{type(error).__name__}") from error
        finally:
            if not response.complete:
                with suppress(Exception):
                    generator.cancel()

    async def _holder(self, name: str) -> str:
        """The replica that makes an answer or keeps a stream; "" if none does."""
        with suppress(RayError, RayServeException):
            return max(await self._replicas.broadcast("holds", name).results_async(), default="")
        return ""

    async def _metrics(self, request: Forwarded) -> Response:
        """Those of all replicas, in the text format."""
        headers = [(name, value) for name, value in request.scope["headers"] if name != b"accept"]
        request = replace(request, scope={**request.scope, "headers": headers})
        try:
            found: list[Whole] = await self._replicas.broadcast("whole", request).results_async()
        except (RayError, RayServeException):
            message = "no replica answers; try again"
            raise ApiError(503, message, code="replica_failed", headers=RETRY_AFTER) from None
        for each in found:
            if each.status != 200:
                return Response(each.body, each.status, Headers(raw=each.headers))
        pages = {each.replica: each.body.decode() for each in found}
        return Response(merged(pages), media_type="text/plain; version=0.0.4")


class Relayed:
    """A response on its way to the client. Nothing is sent before there is a part of its body; of one that
    is no stream, before it is complete."""

    def __init__(self, path: str, send: Send, *, last: bool) -> None:
        self.status = 0
        self.begun = False  # the client has something of it
        self.complete = False
        self.elsewhere = False  # the error of a replica that another one may not have
        self._path, self._send, self._last = path, send, last
        self._held: list[Message] = []
        self._media_type = ""

    async def put(self, message: Message) -> None:
        """The next message of the replica."""
        self._held.append(message)
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._media_type = Headers(raw=message["headers"]).get("content-type", "").partition(";")[0]
            return
        self.complete = not message.get("more_body", False)
        if not self._media_type.startswith(_STREAMS):
            if not self.complete:
                return
            body = b"".join(each.get("body", b"") for each in self._held[1:])
            self.elsewhere = (
                not self._last
                and self.status in (500, 503)
                and any(code in body.replace(b": ", b":") for code in _ELSEWHERE)
            )
            if self.elsewhere:
                return
        self.begun = True
        held, self._held = self._held, []
        for each in held:
            await self._send(each)

    async def fail(self) -> None:
        """Ends a stream whose replica is gone with an error, in the words of its API."""
        message = "the replica that made this answer is gone; try again"
        error = ApiError(503, message, code="replica_failed")
        shape = shape_of(self._path)
        found = shape(error)
        if self._media_type == "application/x-ndjson":
            body = dumps(found).encode() + b"\n"
        elif shape is anthropic_shape:
            body = named_event(found)
        elif self._path.endswith("/responses"):
            body = named_event({"type": "error", "code": error.code, "message": message, "param": None})
        else:
            body = b"data: %b\n\n" % dumps(found).encode()
        await self._send({"type": "http.response.body", "body": body})


class _Relay(Response):
    """A response that the ingress sends itself."""

    def __init__(self, ingress: Ingress) -> None:
        self._ingress = ingress
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._ingress.relay(scope, receive, send)
