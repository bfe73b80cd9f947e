"""Asking a server of Olivine that runs: for `olivine ps` and `olivine stop`."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import Any

import click

from olivine.cli.clients import NO_KEY
from olivine.cli.options import Decorator, ServerUrl
from olivine.errors import OlivineError, RequestError
from olivine.server.settings import Settings

URL = f"http://{Settings.host}:{Settings.port}"
SECONDS = 30.0

_SERVER: list[Decorator] = [
    click.option("--url", type=ServerUrl(), envvar="OLIVINE_URL", show_envvar=True, default=URL,
                 show_default=True, help="The server."),
    click.option("--api-key", envvar="OLIVINE_API_KEY", show_envvar=True, default=NO_KEY,
                 help="The server's key."),
]  # fmt: skip


def server_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Which server."""
    for option in reversed(_SERVER):
        function = option(function)
    return function


def ask(url: str, key: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """What a server answers; an error in its own words."""
    url = url.rstrip("/")
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    try:
        request = urllib.request.Request(f"{url}{path}", data=data, headers=headers)
        with urllib.request.urlopen(request, timeout=SECONDS) as response:
            found = json.load(response)
    except urllib.error.HTTPError as error:
        raise RequestError(_told(url, error)) from None
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise OlivineError(
            f"there is no server at {url} ({reason}): olivine serve starts one, --url names another"
        ) from None
    if not isinstance(found, dict):
        raise OlivineError(f"{url} is no server of Olivine")
    return found


def loaded(url: str, key: str) -> list[dict[str, Any]]:
    """The models that a server has loaded, each with its name."""
    found = ask(url, key, "/api/ps").get("models", [])
    if not isinstance(found, list) or not all(isinstance(each, dict) and "name" in each for each in found):
        raise OlivineError(f"{url} is no server of Olivine")
    return found


def _told(url: str, error: urllib.error.HTTPError) -> str:
    if error.code in (401, 403):
        return f"the server at {url} wants a key: --api-key, or the variable OLIVINE_API_KEY"
    try:
        found = json.load(error)["error"]
        return str(found["message"] if isinstance(found, dict) else found)
    except (ValueError, KeyError, TypeError, OSError):
        return f"the server at {url} answers with status {error.code}"
