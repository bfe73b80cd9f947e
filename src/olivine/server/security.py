"""Who may use the server."""

from __future__ import annotations

import hmac

from starlette.requests import Request

from olivine.server.errors import ApiError


def key_of(request: Request) -> str:
    """The key that came with a request; "" if none did."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")


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
