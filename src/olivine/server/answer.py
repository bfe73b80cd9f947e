"""Outputs of a model on their way to a client, streamed or whole.

An `Encoder` writes them in the words of one API. A client that closes the connection ends its request at
once, also where it does not stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from olivine.engine import Update, Usage
from olivine.server.endpoint import Call, id_headers, logger
from olivine.server.errors import ApiError, ClientGone, api_error
from olivine.server.log import record_of
from olivine.server.metrics import Recorder
from olivine.streaming import Mailbox, Source, Tell, in_thread

P = TypeVar("P")
R = TypeVar("R")
P_contra = TypeVar("P_contra", contravariant=True)
R_contra = TypeVar("R_contra", contravariant=True)
Submit = Callable[[Sequence[Tell]], Sequence[Source[P, R]]]

SSE = "text/event-stream"


class Encoder(Protocol[P_contra, R_contra]):
    """Writes outputs in the words of one API; one encoder for each request. What a stream sends is bytes of
    whole events, or nothing (b"")."""

    media_type: str  # of a stream
    ping: bytes

    def begin(self, usage: Usage) -> bytes:
        """What a stream begins with: the prompt is submitted, and none of it is read yet. How much of it was
        cached stands in `usage` when the first piece comes."""
        ...

    def piece(self, index: int, piece: P_contra) -> bytes:
        """A piece of the output with this index; its last piece has the result."""
        ...

    def end(self, results: Sequence[R_contra]) -> bytes:
        """What a stream ends with, after the last pieces of all outputs."""
        ...

    def error(self, error: ApiError) -> bytes:
        """What a stream ends with that fails."""
        ...

    def whole(self, results: Sequence[R_contra]) -> Mapping[str, Any]:
        """The response that is not streamed."""
        ...


class Outputs(Generic[P, R]):
    """The outputs of a request while they are made, for one task of the event loop."""

    def __init__(self, n: int, recorder: Recorder | None = None) -> None:
        self._arrived: deque[tuple[int, Update]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._gone = False
        self._streams: Sequence[Source[P, R]] = []
        self._n = n
        self._recorder = recorder

    async def submit(self, submit: Submit[P, R]) -> None:
        """Submits the requests: in a thread, because their prompt is encoded there."""
        mailbox = Mailbox.of_running_loop()
        listeners = [mailbox.listener(partial(self._put, i)) for i in range(self._n)]
        self._streams = await in_thread(lambda: submit(listeners), _abandon)

    @property
    def usage(self) -> Usage:
        """That of the first output, as the engine counts it."""
        return self._streams[0].ticket.usage

    @property
    def usages(self) -> list[Usage]:
        """Those of all outputs."""
        return [stream.ticket.usage for stream in self._streams]

    @property
    def results(self) -> list[R] | None:
        """All results, once the last pieces are there."""
        found = [stream.result for stream in self._streams]
        return None if any(each is None for each in found) else found  # type: ignore[return-value]

    def end_thought(self) -> None:
        """Ends the thoughts: the answers follow."""
        for stream in self._streams:
            stream.ticket.end_thought()

    def cancel(self) -> None:
        """Ends the outputs; what there is of them still comes."""
        for stream in self._streams:
            stream.ticket.cancel()

    async def pieces(self) -> list[tuple[int, P]]:
        """The pieces that have come since the last call, with the output that each belongs to; waits for one.
        None come where `wake` was called."""
        if not self._arrived and not self._gone:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._gone:
            raise ClientGone
        found = []
        while self._arrived:
            index, update = self._arrived.popleft()
            if update.error is not None:
                raise update.error
            stream = self._streams[index]
            if stream.result is None:  # the engine may be some tokens ahead of a stop string
                found.append((index, stream.feed(update)))
        if self._recorder is not None and found:
            self._recorder.tokens(found)
            if (results := self.results) is not None:
                self._recorder.end(results)  # type: ignore[arg-type]
        return found

    def wake(self) -> None:
        """Lets `pieces` return."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def leave(self) -> None:
        """The client is gone."""
        self._gone = True
        self.wake()

    def abandon(self) -> None:
        """Ends what still runs. A second time is fine."""
        _abandon(self._streams)

    def _put(self, index: int, update: Update) -> None:
        self._arrived.append((index, update))
        self.wake()


def _abandon(streams: Sequence[Source[Any, Any]]) -> None:
    for stream in streams:
        stream.abandon()


async def answer(
    call: Call,
    submit: Submit[P, R],
    encoder: Encoder[P, R],
    *,
    n: int = 1,
    stream: bool = False,
    media: bool = False,
) -> Mapping[str, Any] | None:
    """Answers a request with `n` outputs: gives the whole response, or sends it as a stream. One with `media`
    takes long to be submitted: they are decoded and encoded."""
    recorder = None if call.served is None else call.server.metrics.recorder(call.served, call.arrived, n)
    if not stream:
        return encoder.whole(await results_of(call, submit, n=n, recorder=recorder, media=media))
    async with _submitted(call, submit, n, recorder, media) as outputs:
        # Not an id that the client chose, which could be another's too.
        own = None if record_of(call.request.scope).given_id else call.id
        ids = tuple(each for each in (own, getattr(encoder, "id", None)) if each)
        with call.server.running.entry(ids, call.client, outputs):
            await _stream(call, outputs, encoder)
    return None


async def results_of(
    call: Call, submit: Submit[P, R], *, n: int = 1, recorder: Recorder | None = None, media: bool = False
) -> list[R]:
    """The results of `n` outputs, once all are there."""
    async with _submitted(call, submit, n, recorder, media) as outputs:
        while (results := outputs.results) is None:
            await outputs.pieces()
        return results


@asynccontextmanager
async def _submitted(
    call: Call, submit: Submit[P, R], n: int, recorder: Recorder | None, media: bool
) -> AsyncIterator[Outputs[P, R]]:
    """`n` outputs, which end where the client leaves."""
    if call.served is not None and n > (most := call.served.llm.most_waiting):
        message = f"{n} outputs, and {most} requests of a client may wait on this server: ask for fewer"
        raise ApiError(400, message, code="invalid_value", param="n")
    outputs: Outputs[P, R] = Outputs(n, recorder)
    place = AsyncExitStack()
    if media:  # threads are for all requests: those with media may have a few
        await place.enter_async_context(call.server.media.taken(call))
    watcher = asyncio.create_task(_watch(call, outputs))
    try:
        async with place:
            await outputs.submit(submit)
        yield outputs
    finally:
        watcher.cancel()
        outputs.abandon()
        call.usages += outputs.usages


async def _stream(call: Call, outputs: Outputs[P, R], encoder: Encoder[P, R]) -> None:
    """Sends the headers at once, then events as they come, and pings while there are none."""
    send, interval = call.send, call.server.settings.ping
    await send(
        {"type": "http.response.start", "status": 200, "headers": stream_headers(call, encoder.media_type)}
    )
    await _send(call, encoder.begin(outputs.usage))
    ticker = asyncio.create_task(_tick(outputs, interval))
    quiet = False  # no event was sent since the last tick
    try:
        while (results := outputs.results) is None:
            pieces = await outputs.pieces()
            events = b"".join([encoder.piece(index, piece) for index, piece in pieces])
            if not pieces:
                events, quiet = (encoder.ping if quiet else b""), True
            if events:
                quiet = False
                await _send(call, events)
        last = encoder.end(results)
    except ClientGone:
        raise
    except (Exception, asyncio.CancelledError) as error:
        found = api_error(error, call.id)
        if found.status == 500:
            logger.exception("a stream failed")
        last = encoder.error(found)
    finally:
        ticker.cancel()
    await send({"type": "http.response.body", "body": last})


async def _tick(outputs: Outputs[Any, Any], interval: float) -> None:
    while True:
        await asyncio.sleep(interval / 2)
        outputs.wake()


async def _send(call: Call, events: bytes) -> None:
    if events:
        await call.send({"type": "http.response.body", "body": events, "more_body": True})


def stream_headers(call: Call, media_type: str) -> list[tuple[bytes, bytes]]:
    headers = {
        "content-type": f"{media_type}; charset=utf-8",
        "cache-control": "no-cache",
        "x-accel-buffering": "no",  # nginx would keep events back
        **id_headers(call.id),
        **call.headers,
    }
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


async def _watch(call: Call, outputs: Outputs[Any, Any]) -> None:
    """Waits for the client to close the connection."""
    with suppress(asyncio.CancelledError):
        while (await call.receive())["type"] != "http.disconnect":
            pass
        outputs.leave()
