"""The ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from olivine.server import anthropic, ollama, openai, status, tokens
from olivine.server.endpoint import Endpoint, Server
from olivine.server.errors import ApiError, ollama_shape, openai_shape

ENDPOINTS: list[Endpoint] = [
    *openai.ENDPOINTS,
    *anthropic.ENDPOINTS,
    *ollama.ENDPOINTS,
    *status.ENDPOINTS,
    *tokens.ENDPOINTS,
]


def create_app(server: Server) -> Starlette:
    """The application. Paths under /v1 are also known without it."""
    routes = []
    for endpoint in ENDPOINTS:
        app = endpoint.app(server)
        paths = {endpoint.path, endpoint.path.removeprefix("/v1")}
        routes += [Route(path, app, methods=[endpoint.method]) for path in sorted(paths)]

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
        shape = ollama_shape if request.url.path.startswith("/api/") else openai_shape
        return JSONResponse(shape(found), found.status, found.headers)

    return Starlette(routes=routes, exception_handlers={HTTPException: not_found}, lifespan=lifespan)
