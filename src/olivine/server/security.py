"""Who may use the server: API keys, and which web pages.

A browser lets any page send requests to a server on the same machine. Two headers tell that one did: Origin,
the page's own address; and Host, the name under which the page reached the server (a name of its own, if it
lets that name point to this machine: DNS rebinding). Pages have no way to change either.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from ipaddress import ip_address

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from olivine.server.errors import ApiError, shape_of
from olivine.server.settings import Settings

# Names of this machine that nobody else can point to another one.
_LOCAL_NAMES = {"localhost", "host.docker.internal", "host.containers.internal"}
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([^/@?#\s]+)")
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[^:/@?#\[\]\s]+)(?::([0-9]*))?")
_DEFAULT_PORTS = {"http": "80", "https": "443"}
_METHODS = "GET, POST, DELETE, OPTIONS"
_EXPOSED = "X-Request-Id, Request-Id, X-Stream-Id, Retry-After, Warning"  # headers that pages may read
_PREFLIGHT_SECONDS = "600"
ANY = "*"


def key_of(request: Request) -> str:
    """The key that came with a request; "" if none did."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")


def client_of(request: Request) -> str:
    """Whose request it says it is: the API key that came with it, or the address that it came from."""
    if key := key_of(request):
        return f"key:{hashlib.sha256(key.encode()).hexdigest()[:32]}"
    return address_of(request)


def address_of(request: Request) -> str:
    return request.client.host if request.client else ""


def check_key(request: Request, keys: tuple[str, ...]) -> None:
    """Refuses a request without one of the keys, where there are any. The time that it takes says nothing
    about how much of a key was right."""
    if not keys:
        return
    given = key_of(request)
    matches = [hmac.compare_digest(given.encode(), key.encode()) for key in keys]
    if not any(matches):
        what = "the API key is wrong" if given else "an API key is needed"
        raise ApiError(
            401,
            f"{what}: send Authorization: Bearer KEY, or X-Api-Key: KEY",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )


class Gate:
    """Refuses requests under names that are not the server's, and those of web pages that are not permitted.
    Answers the questions that browsers ask first (CORS)."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._hosts = {name.lower().rstrip(".") for name in (settings.host, *settings.allowed_hosts)}
        self._origins = {origin.lower() for origin in settings.cors}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        try:
            self._check_host(headers)
            permitted = origin is not None and self._check_origin(origin, headers.get("host", ""))
        except ApiError as error:
            await JSONResponse(shape_of(scope["path"])(error), error.status)(scope, receive, send)
            return
        if not permitted or origin is None:
            await self._app(scope, receive, send)
        elif scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await self._preflight(origin, headers)(scope, receive, send)
        else:
            await self._app(scope, receive, self._with_cors(origin, send))

    def _check_host(self, headers: Headers) -> None:
        """Without a Host header (HTTP/1.0) it is no browser."""
        for given in headers.getlist("host"):
            found = _AUTHORITY.fullmatch(given.lower())
            name = found[1].rstrip(".") if found else ""
            if not name:
                raise ApiError(400, "the header Host is no host name", code="invalid_host")
            local = name in _LOCAL_NAMES or name.endswith(".localhost") or _is_address(name)
            if not (local or name in self._hosts or ANY in self._hosts):
                message = (
                    f"this server is not known as {name[:120]!r}: start it with --allowed-host {name[:120]}"
                )
                raise ApiError(403, message, code="host_not_allowed")

    def _check_origin(self, origin: str, host: str) -> bool:
        """Whether the page needs CORS headers: it is another than the server's own, and permitted."""
        if _same(origin.lower(), host.lower()):
            return False
        if origin.lower() in self._origins or ANY in self._origins:
            return True
        shown = origin[:120]
        message = f"web pages of {shown!r} may not use this server: permit them with --cors {shown}"
        raise ApiError(403, message, code="origin_not_allowed")

    def _allowed(self, origin: str) -> dict[str, str]:
        """There are no cookies: no page is allowed to send credentials of the browser."""
        return {"Access-Control-Allow-Origin": ANY if ANY in self._origins else origin, "Vary": "Origin"}

    def _preflight(self, origin: str, headers: Headers) -> Response:
        allowed = {
            **self._allowed(origin),
            "Access-Control-Allow-Methods": _METHODS,
            "Access-Control-Allow-Headers": headers.get("access-control-request-headers", ""),
            "Access-Control-Max-Age": _PREFLIGHT_SECONDS,
        }
        if headers.get("access-control-request-private-network") == "true":
            allowed["Access-Control-Allow-Private-Network"] = "true"
        return Response(status_code=204, headers=allowed)

    def _with_cors(self, origin: str, send: Send) -> Send:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update({**self._allowed(origin), "Access-Control-Expose-Headers": _EXPOSED})
            await send(message)

        return sending


def _is_address(name: str) -> bool:
    """An address is no name that somebody could point elsewhere."""
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _same(origin: str, host: str) -> bool:
    """Whether a page came from this host. Behind a proxy its scheme may be another than ours."""
    found = _ORIGIN.fullmatch(origin)
    if found is None or found[1] not in _DEFAULT_PORTS:
        return False
    default = f":{_DEFAULT_PORTS[found[1]]}"
    return found[2].removesuffix(default) == host.removesuffix(default)


def is_origin(text: str) -> bool:
    """Whether this is an origin as browsers send them: no path, no slash at the end."""
    return text in (ANY, "null") or _ORIGIN.fullmatch(text.lower()) is not None


def warnings_of(settings: Settings, addresses: Sequence[str]) -> list[str]:
    """What an operator should know who starts a server with these settings, on these addresses."""
    if settings.api_keys:
        return []
    found = []
    if not all(ip_address(each.partition("%")[0]).is_loopback for each in addresses):
        found.append(
            f"everyone who can reach {settings.host} can use this server: give it a key (--api-key KEY)"
        )
    if ANY in settings.cors:
        found.append("every web page can use this server: name the pages (--cors ORIGIN), or give it a key")
    return found
