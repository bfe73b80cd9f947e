"""The chat page, at `/`: files that are built from web/, and the headers that they are sent with."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import Response

from olivine.server.endpoint import Call, Endpoint
from olivine.server.errors import ApiError
from olivine.server.ollama.models import running

FILES = Path(__file__).parent / "files"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Nothing that a model writes can run or load: no inline script or style, no other origin, no frame, no form;
# and only DOMPurify can make HTML of a string. Pages of others cannot show this one in a frame.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",  # what the user attached
        "media-src blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types dompurify",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # kept, and asked for again with its ETag
}


@dataclass(frozen=True)
class PageFile:
    """A file of the page, as it is sent."""

    body: bytes
    packed: bytes  # gzip
    media_type: str
    etag: str


@cache
def page_file(name: str) -> PageFile | None:
    """A file of the build, by its path in it. Only those that were built are looked for."""
    if name not in _built():
        return None
    path = FILES / name
    body = path.read_bytes()
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    return PageFile(body, gzip.compress(body, mtime=0), TYPES[path.suffix], etag)


@cache
def _built() -> frozenset[str]:
    return frozenset(path.relative_to(FILES).as_posix() for path in FILES.rglob("*") if path.suffix in TYPES)


async def home(call: Call) -> Response:
    """The page for browsers. Ollama's clients look here whether the server is there."""
    if "text/html" not in call.request.headers.get("accept", ""):
        response = await running(call)
        response.headers["Vary"] = "Accept"
        return response
    return _respond("index.html", call.request.headers)


async def asset(call: Call) -> Response:
    return _respond(f"assets/{call.request.path_params['name']}", call.request.headers)


def _respond(name: str, headers: Headers) -> Response:
    found = page_file(name)
    if found is None:
        raise ApiError(404, f"the chat page has no file {name[:80]!r}", code="not_found")
    sent = {**HEADERS, "ETag": found.etag, "Vary": "Accept, Accept-Encoding"}
    if found.etag in headers.get("if-none-match", ""):
        return Response(status_code=304, headers=sent)
    packed = "gzip" in headers.get("accept-encoding", "")
    if packed:
        sent["Content-Encoding"] = "gzip"
    return Response(found.packed if packed else found.body, media_type=found.media_type, headers=sent)


ENDPOINTS = [
    Endpoint("GET", "/", home, "The chat page, or whether the server is there", public=True),
    Endpoint("GET", "/assets/{name}", asset, "Files of the chat page", public=True),
]
