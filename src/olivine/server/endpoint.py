"""One endpoint: from an HTTP request to a handler, and from its result or error to a response."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from olivine.engine import Usage
from olivine.engine.checks import TIMEOUT, Deadline
from olivine.errors import DeadlineError
from olivine.perception import LISTENERS
from olivine.server.body import warning_of
from olivine.server.errors import ApiError, ClientGone, api_error, openai_shape
from olivine.server.log import GONE, new_id, record_of
from olivine.server.metrics import Metrics
from olivine.server.models import Models, ServedModel
from olivine.server.places import Places
from olivine.server.reading import Bodies
from olivine.server.replay import Streams
from olivine.server.running import Running
from olivine.server.security import address_of, check_key, client_of
from olivine.server.settings import Settings

logger = logging.getLogger("olivine.server")
T = TypeVar("T")
MEDIA_AT_ONCE = 4  # requests whose images, sounds and videos are decoded and encoded, each in a thread …
MOST_MEDIA = 1024  # … and those that wait for it
MOST_WAITING = 32  # transcriptions that wait for one of their places, and are held meanwhile
TIMEOUT_HEADER = "X-Request-Timeout"  # a header: seconds after which a request ends with what it has


def id_headers(request_id: str) -> dict[str, str]:
    """The headers with a request's id, under OpenAI's name and under Anthropic's."""
    return {"X-Request-Id": request_id, "Request-Id": request_id}


@dataclass
class Server:
    """What all requests share."""

    settings: Settings
    models: Models
    metrics: Metrics = field(default_factory=Metrics)
    running: Running = field(default_factory=Running)

    def __post_init__(self) -> None:
        self.bodies = Bodies(self.settings.max_body, self.settings.body_timeout)
        self.streams = Streams(self.settings.resume_timeout)
        self.transcriptions = Places(LISTENERS, MOST_WAITING)
        self.media = Places(MEDIA_AT_ONCE, MOST_MEDIA)
        self.pulls = Places(1, MOST_WAITING)


@dataclass
class Call:
    """A request on its way to a handler. `body` is an instance of the endpoint's `body`."""

    server: Server
    request: Request
    body: Any
    receive: Receive
    send: Send
    id: str = field(default_factory=new_id)
    headers: dict[str, str] = field(default_factory=dict)  # of the response
    arrived: float = field(default_factory=time.perf_counter)
    served: ServedModel | None = None  # the model that was last lent to it
    usages: list[Usage] = field(default_factory=list)  # of its outputs
    deadline: Deadline = field(default_factory=Deadline)

    @property
    def client(self) -> str:
        """Whose request it is, for the engine's queue: without keys to check, anybody could make some up."""
        return (client_of if self.server.settings.api_keys else address_of)(self.request)

    def limited(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options of a generation or of embeddings, with the client and the earliest deadline: that of the
        body, of the header, or of the server. A priority that goes before other clients is the operator's
        to permit."""
        if (priority := options.get("priority") or 0) < 0 and not self.server.settings.priorities:
            message = (
                f"priority is {priority}: below 0, requests go before those of other clients, which only a "
                "server with --priorities lets them do"
            )
            raise ApiError(400, message, code="invalid_value", param="priority")
        limits = (options.get("timeout"), self._header_timeout, self.server.settings.max_timeout)
        timeout = TIMEOUT("timeout", min((each for each in limits if each is not None), default=None))
        # The time in which a body arrives, a model is loaded and media are decoded is part of it.
        self.deadline = Deadline.of(timeout, self.arrived)
        return {**options, "client": self.client, "timeout": self.deadline}

    @property
    def _header_timeout(self) -> float | None:
        given = self.request.headers.get(TIMEOUT_HEADER)
        if given is None:
            return None
        with suppress(ValueError):
            if 0 < (seconds := float(given)) <= 1e9:
                return seconds
        raise ApiError(
            400,
            f"{TIMEOUT_HEADER} must be a number of seconds, above 0",
            code="invalid_value",
            param=TIMEOUT_HEADER,
        )

    @asynccontextmanager
    async def model(self, name: str | None, *, keep_alive: float | None = None) -> AsyncIterator[ServedModel]:
        """`Models.use` for this request. A client that closes the connection no longer waits for a load."""
        async with AsyncExitStack() as stack:
            models = self.server.models
            ready = models.ready(name)
            lent = stack.enter_async_context(models.use(name, keep_alive=keep_alive))
            self.served = await (lent if ready else self.unless_gone(lent))
            yield self.served

    async def unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        """Does something for a client, until that closes the connection, or until the deadline."""
        left = None if self.deadline == Deadline() else max(0.0, self.deadline.at - time.perf_counter())
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(self.gone())
        try:
            await asyncio.wait((task, gone), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                if gone.done():
                    raise ClientGone
                raise DeadlineError("the request waited until its timeout was over")
            return task.result()
        finally:
            task.cancel()
            gone.cancel()

    async def gone(self) -> None:
        """Waits for the client to close the connection."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def warn(self, text: str) -> None:
        """Tells the client of something that it may not expect, in a header."""
        plain = "".join(char if " " <= char <= "~" and char != '"' else "?" for char in text)
        earlier = [self.headers["Warning"]] if "Warning" in self.headers else []
        self.headers["Warning"] = ", ".join([*earlier, f'299 olivine "{plain[:500]}"'])


# A handler gives JSON, a response, or None if it has sent one itself.
Handler = Callable[[Call], Awaitable[Mapping[str, Any] | Response | None]]
Shape = Callable[[ApiError], dict[str, Any]]


@dataclass(frozen=True)
class Endpoint:
    """A path and what answers there."""

    method: str
    path: str
    handle: Handler
    summary: str
    body: type[BaseModel] | None = None
    shape: Shape = openai_shape  # of errors
    public: bool = False  # answers without an API key
    form: bool = False  # the body is multipart/form-data, and not JSON

    def app(self, server: Server) -> EndpointApp:
        return EndpointApp(self, server)


class EndpointApp:
    """An endpoint as an ASGI application. (A class, so that Starlette does not take it for a handler.)"""

    def __init__(self, endpoint: Endpoint, server: Server) -> None:
        self._endpoint = endpoint
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def sending(message: Any) -> None:
            nonlocal started
            if not started:
                started = True
                server.metrics.count(endpoint.method, endpoint.path, message["status"])
            await send(message)

        async def sending_head(message: Any) -> None:
            """What HEAD gets of a stream, which may have no end."""
            await sending(message)
            await sending({"type": "http.response.body", "body": b""})
            raise ClientGone

        endpoint, server = self._endpoint, self._server
        record = record_of(scope)
        sends = sending_head if scope["method"] == "HEAD" else sending
        call = record.call = Call(server, Request(scope, receive), None, receive, sends, record.id)
        try:
            if not endpoint.public:
                check_key(call.request, server.settings.api_keys)
            if endpoint.body is not None:
                read = server.bodies.form if endpoint.form else server.bodies.json
                call.body, call.headers = await read(call.request, partial(_checked, endpoint.body))
            result = await endpoint.handle(call)
            if isinstance(result, Mapping):
                result = JSONResponse(result)
        except (ClientGone, ClientDisconnect):
            if not started:
                server.metrics.count(endpoint.method, endpoint.path, GONE)
            return
        except (Exception, asyncio.CancelledError) as error:
            found = api_error(error, call.id)
            if found.status == 500:
                logger.exception("%s %s failed", endpoint.method, endpoint.path)
            if started:  # too late for a status; streams report their errors themselves
                return
            result = JSONResponse(endpoint.shape(found), found.status, found.headers)
        if result is None:
            return
        result.headers.update(id_headers(call.id) | call.headers)
        await result(scope, receive, sending)


def _checked(model: type[BaseModel], given: dict[str, Any]) -> tuple[BaseModel, dict[str, str]]:
    """A body, and the headers that go with what it has."""
    body = model.model_validate(given)
    return body, warning_of(body)
