"""POST /api/pull: downloads a model, and serves it"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from olivine.errors import DownloadError
from olivine.hub import local
from olivine.hub.names import Name, nearest, parse
from olivine.server.answer import stream_headers
from olivine.server.endpoint import Call
from olivine.server.errors import ApiError, ClientGone, api_error, ollama_shape
from olivine.server.ollama.encoder import NDJSON, line
from olivine.server.served import ServedModel

if TYPE_CHECKING:
    from olivine.hub.remote import RemoteFile

BETWEEN = 0.2  # seconds between two lines about the same file
_STATUS = {"not_found": 404, "gated": 403, "rate_limited": 429, "disk_full": 507}


class _Gone(Exception):
    """The client is: the download stops, and what is there stays."""


async def pull(call: Call, text: str, stream: bool) -> Mapping[str, Any] | None:
    """Downloads a model that is not served yet; one of this disk is served at once."""
    name = _name(call, text)
    if not stream:
        await _pulled(call, name, asyncio.Queue())
        return {"status": "success"}
    await call.send({"type": "http.response.start", "status": 200, "headers": stream_headers(call, NDJSON)})
    lines: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
    lines.put_nowait({"status": "pulling manifest"})
    work = asyncio.ensure_future(_pulled(call, name, lines))
    while not (work.done() and lines.empty()):
        following = asyncio.ensure_future(lines.get())
        await asyncio.wait([work, following], return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            await call.send(
                {"type": "http.response.body", "body": line(following.result()), "more_body": True}
            )
        else:
            following.cancel()
    error = work.exception()
    if isinstance(error, ClientGone):
        raise error
    last = {"status": "success"} if error is None else ollama_shape(api_error(error, call.id))
    await call.send({"type": "http.response.body", "body": line(last)})
    return None


def _name(call: Call, text: str) -> Name:
    """A name that the hub or this disk may know, if this server may download."""
    if not call.server.settings.may_pull:
        raise ApiError(
            403,
            f"there is no model {text[:120]!r} here, and this server downloads none: start it with --pull",
            code="pull_not_allowed",
        )
    name = parse(text)
    if name is None or not (name.repo or local.locate(name)):
        near = nearest(text[:120])  # a body's length of it would take seconds to compare
        told = f"; nearest: {', '.join(near)}" if near else ""
        raise ApiError(404, f"there is no model {text[:120]!r}{told}", code="model_not_found", param="model")
    return name


async def _pulled(call: Call, name: Name, lines: asyncio.Queue[Mapping[str, Any]]) -> None:
    """Downloads and serves a model; one at a time. Stops when the client is gone."""
    loop, gone = asyncio.get_running_loop(), threading.Event()
    told: dict[tuple[str, str], float] = {}

    def report(file: RemoteFile, stage: str, done: int) -> None:
        if gone.is_set():
            raise _Gone
        now, key = time.monotonic(), (file.path, stage)
        if done < file.bytes and now - told.get(key, 0) < BETWEEN:
            return
        told[key] = now
        entry: dict[str, Any] = {"status": "verifying sha256 digest"}
        if stage == "download":
            total = {"total": file.bytes, "completed": done}
            entry = {"status": f"pulling {file.blob[:12]}", "digest": f"sha256:{file.blob}", **total}
        loop.call_soon_threadsafe(lines.put_nowait, entry)

    def work() -> None:
        from olivine.hub.download import pull as fetch

        if local.locate(name) is None:
            try:
                fetch(name, report)
            except DownloadError as error:
                raise ApiError(_STATUS.get(error.code, 502), str(error), code=error.code) from error

    async with call.server.pulls.taken(call):
        try:
            await call.unless_gone(asyncio.to_thread(work))
        finally:
            gone.set()
    found = await asyncio.to_thread(local.locate, name)
    if found is None:
        raise ApiError(500, f"{name.text} was downloaded and is not found", code="internal_error")
    shown = name.alias.name if name.alias and found.tag == name.alias.type else found.id
    call.server.models.add(ServedModel(shown, path=found.path, aliases=(name.text, found.id)))
