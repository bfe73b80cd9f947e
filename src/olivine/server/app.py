"""The ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from olivine.server import anthropic, ollama, openai, replay, status, tokens
from olivine.server.endpoint import Endpoint, Server
from olivine.server.errors import ApiError, shape_of
from olivine.server.security import Gate

ENDPOINTS: list[Endpoint] = [
    *openai.ENDPOINTS,
    *anthropic.ENDPOINTS,
    *ollama.ENDPOINTS,
    *status.ENDPOINTS,
    *tokens.ENDPOINTS,
    Endpoint("GET", "/v1/streams/{id}", replay.resume, "The rest of a stream whose connection broke"),
    Endpoint("DELETE", "/v1/streams/{id}", replay.end, "Ends a stream that can be taken up again"),
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
        server.models.start()
        yield

    def not_found(request: Request, error: Exception) -> Response:
        """A path or a method that is not known."""
        assert isinstance(error, HTTPException)
        message = f"{request.method} {request.url.path}: {error.detail}"
        found = ApiError(error.status_code, message, code="not_found", headers=error.headers or {})
        server.metrics.count(request.method, "", found.status)
        return JSONResponse(shape_of(request.url.path)(found), found.status, found.headers)

    app = Starlette(routes=routes, exception_handlers={HTTPException: not_found}, lifespan=lifespan)
    return Gate(replay.Replay(app, server.streams), server.settings)
