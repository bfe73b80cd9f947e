"""The ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from olivine.server import anthropic, ollama, openai, openapi, page, replay, status, tokens
from olivine.server.endpoint import Endpoint, Server, id_headers
from olivine.server.errors import shape_of
from olivine.server.log import RequestLog, record_of
from olivine.server.security import Gate
from olivine.server.unknown import unknown

THREADS = 32  # for what takes a while: encoding prompts, decoding media, loading models
ENDPOINTS: list[Endpoint] = [
    *openai.ENDPOINTS,
    *anthropic.ENDPOINTS,
    *ollama.ENDPOINTS,
    *status.ENDPOINTS,
    *tokens.ENDPOINTS,
    Endpoint("GET", "/openapi.json", openapi.openapi, "This description"),
    Endpoint("GET", "/v1/streams/{id}", replay.resume, "The rest of a stream whose connection broke"),
    Endpoint("DELETE", "/v1/streams/{id}", replay.end, "Ends a stream that can be taken up again"),
    *page.ENDPOINTS,
]


def create_app(server: Server) -> ASGIApp:
    """The application. Paths under /v1 are also known without it."""
    routes = []
    for endpoint in ENDPOINTS:
        answers = endpoint.app(server)
        paths = {endpoint.path, endpoint.path.removeprefix("/v1")}
        routes += [Route(path, answers, methods=[endpoint.method]) for path in sorted(paths)]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        # More threads than media and transcriptions may take: what others submit never waits for a decoder.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, "olivine-server"))
        server.models.start()
        yield

    def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.url.path
        found = unknown(request.method, path, error)
        found.request_id = record_of(request.scope).id
        server.metrics.count(request.method, "", found.status)
        headers = found.headers | id_headers(found.request_id)
        return JSONResponse(shape_of(path)(found), found.status, headers)

    app = Starlette(routes=routes, exception_handlers={HTTPException: refuse}, lifespan=lifespan)
    return RequestLog(Gate(replay.Replay(_without_slashes(app), server.streams), server.settings))


def _without_slashes(app: ASGIApp) -> ASGIApp:
    """Slashes around a path mean nothing: base URLs of clients end with one, or do not."""

    async def routed(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": "/" + scope["path"].strip("/")}
        await app(scope, receive, send)

    return routed
