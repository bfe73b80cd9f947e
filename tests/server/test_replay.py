"""Streams that are taken up again."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from olivine.llm import LLM
from olivine.server.errors import ApiError
from olivine.server.models import ServedModel
from olivine.server.replay import KeptStream, Streams
from olivine.server.settings import Settings
from oracles.gate import Gate
from oracles.serving import serving

ASK = {"X-Stream-Resume": "true"}
BODY = {
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "ignore_eos": True,
    "stream": True,
    "temperature": 0,
    "max_tokens": 150,
}


def events(lines: Iterator[str]) -> Iterator[tuple[int, str]]:
    """Numbers and data of events."""
    number = 0
    for line in lines:
        if line.startswith("id: "):
            number = int(line[4:])
        elif line.startswith("data: "):
            yield number, line[6:]


def text_of(data: list[str]) -> str:
    chunks = [json.loads(each) for each in data if each != "[DONE]"]
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)


def soon(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it does not become true")


@pytest.fixture(scope="module")
def whole(url: str) -> str:
    """The text of an undisturbed stream."""
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=BODY) as response:
        assert "x-stream-id" not in response.headers
        return text_of([data for number, data in events(response.iter_lines()) if not number])


def test_events_are_numbered_for_those_who_ask(url: str, whole: str) -> None:
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=BODY, headers=ASK) as response:
        assert len(response.headers["x-stream-id"]) >= 32
        found = list(events(response.iter_lines()))
    assert [number for number, _ in found] == list(range(1, len(found) + 1))
    assert found[-1][1] == "[DONE]" and text_of([data for _, data in found]) == whole


@pytest.mark.parametrize("read", [1, 2, 40])
def test_a_broken_stream_goes_on_where_it_was(mini: LLM, url: str, whole: str, read: int) -> None:
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=BODY, headers=ASK) as response:
        name = response.headers["x-stream-id"]
        found = list(itertools.islice(events(response.iter_lines()), read))
    for take in (3, 20, None):  # it breaks twice more
        last = {"Last-Event-ID": str(found[-1][0])}
        with httpx.stream("GET", f"{url}/v1/streams/{name}", headers=last) as response:
            assert response.status_code == 200 and response.headers["x-stream-id"] == name
            found += itertools.islice(events(response.iter_lines()), take)
    assert [number for number, _ in found] == list(range(1, len(found) + 1))
    assert found[-1][1] == "[DONE]" and text_of([data for _, data in found]) == whole
    again = httpx.get(f"{url}/v1/streams/{name}").text  # it is over, and still kept
    assert text_of([data for _, data in events(iter(again.splitlines()))]) == whole
    soon(lambda: mini.stats().running == 0)


def test_a_look_at_the_headers_takes_no_stream_from_its_reader(url: str, whole: str, gate: Gate) -> None:
    gate.close(after=1)
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=BODY, headers=ASK) as response:
        name = response.headers["x-stream-id"]
        head = httpx.head(f"{url}/v1/streams/{name}")
        assert (head.status_code, head.headers["x-stream-id"]) == (200, name)
        assert head.headers["content-type"].startswith("text/event-stream")
        assert httpx.head(f"{url}/v1/streams/none").status_code == 404
        gate.open()
        assert text_of([data for _, data in events(response.iter_lines())]) == whole


def test_without_the_header_a_client_that_is_gone_frees_its_slot(mini: LLM, url: str) -> None:
    with httpx.stream("POST", f"{url}/v1/chat/completions", json={**BODY, "max_tokens": 2000}) as response:
        lines = response.iter_lines()
        next(lines)
        assert mini.stats().running == 1
    soon(lambda: mini.stats().running == 0)


def test_a_client_that_does_not_come_back_frees_its_slot_after_a_while(mini: LLM) -> None:
    settings = Settings(resume_timeout=0.1)
    with serving([ServedModel("olivine-mini", mini)], settings) as url:
        body = {**BODY, "max_tokens": 2000, "n": 8}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, headers=ASK) as response:
            name = response.headers["x-stream-id"]
            lines = response.iter_lines()
            next(lines)
        soon(lambda: mini.stats().running == 0)
        soon(lambda: httpx.get(f"{url}/v1/streams/{name}").status_code == 404)


def test_a_stream_can_be_ended(mini: LLM, url: str) -> None:
    body = {**BODY, "max_tokens": 2000, "n": 8}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, headers=ASK) as response:
        name = response.headers["x-stream-id"]
        lines = response.iter_lines()
        next(lines)
        assert httpx.delete(f"{url}/v1/streams/{name}").json() == {"id": name, "deleted": True}
        list(lines)
    soon(lambda: mini.stats().running == 0)
    assert httpx.delete(f"{url}/v1/streams/{name}").status_code == 404


@pytest.mark.parametrize("last", ["x", "-1", "1" * 20, "9999", "²"])
def test_an_event_that_there_was_not_is_a_400(url: str, last: str) -> None:
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=BODY, headers=ASK) as response:
        name = response.headers["x-stream-id"]
        response.read()
    headers = {"Last-Event-ID": last.encode()}
    assert httpx.get(f"{url}/v1/streams/{name}", headers=headers).status_code == 400  # type: ignore[arg-type]


def test_only_the_client_that_began_a_stream_finds_it(mini: LLM) -> None:
    settings = Settings(api_keys=("one", "two"))
    with serving([ServedModel("olivine-mini", mini)], settings) as url:
        one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
        path = f"{url}/v1/chat/completions"
        with httpx.stream("POST", path, json=BODY, headers={**ASK, **one}) as response:
            name = response.headers["x-stream-id"]
            response.read()
        path = f"{url}/v1/streams/{name}"
        assert [httpx.get(path, headers=each).status_code for each in ({}, two, one)] == [401, 404, 200]


def test_what_is_no_stream_is_answered_as_ever(url: str) -> None:
    path = f"{url}/v1/chat/completions"
    whole = httpx.post(path, json={**BODY, "stream": False, "max_tokens": 2}, headers=ASK)
    assert whole.status_code == 200 and "x-stream-id" not in whole.headers
    assert httpx.post(path, json={**BODY, "temperature": -1}, headers=ASK).status_code == 400


# ---- bounds, without a server


class Reader:
    """A connection that takes what it is sent, and can break."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.broken = asyncio.Event()
        self.paused = asyncio.Event()
        self.paused.set()

    async def receive(self) -> dict[str, Any]:
        await self.broken.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.paused.wait()
        self.bodies.append(message.get("body", b""))


def test_who_makes_events_that_nobody_reads_waits_when_they_are_too_many() -> None:
    async def main() -> None:
        stream = KeptStream("", [], 100, 60)
        event = b"data: " + b"x" * 34 + b"\n\n"
        await stream.put(event, True)
        await stream.put(event, True)
        waiting = asyncio.create_task(stream.put(event, True))
        await asyncio.sleep(0)
        assert not waiting.done()
        reader = Reader()
        reading = asyncio.create_task(stream.send(reader.receive, reader.send, 0))
        await waiting
        await stream.put(event, False)
        await reading
        assert b"".join(reader.bodies).count(b"data:") == 4
        stream.check(4)
        with pytest.raises(ApiError, match="no longer kept"):
            stream.check(0)

    asyncio.run(main())


def test_a_new_connection_takes_over_from_one_that_hangs() -> None:
    async def main() -> None:
        stream = KeptStream("", [], 1 << 20, 60)
        await stream.put(b"data: 1\n\n", True)
        first, second = Reader(), Reader()
        hanging = asyncio.create_task(stream.send(first.receive, first.send, 0))
        while not b"".join(first.bodies):
            await asyncio.sleep(0)
        reading = asyncio.create_task(stream.send(second.receive, second.send, 0))
        await hanging
        for event in (b"data: 2\n\n", b": ping\n\n"):
            await stream.put(event, True)
            for _ in range(10):
                await asyncio.sleep(0)
        await stream.put(b"data: 3\n\n", False)
        await reading
        assert b"".join(first.bodies) == b"id: 1\ndata: 1\n\n"
        expected = b"id: 1\ndata: 1\n\nid: 2\ndata: 2\n\n: ping\n\nid: 3\ndata: 3\n\n"
        assert b"".join(second.bodies) == expected

    asyncio.run(main())


def test_the_number_of_streams_is_bounded() -> None:
    async def main() -> None:
        streams = Streams(60, most=2)
        first, second = streams.keep("", []), streams.keep("", [])
        assert first is not None and second is not None and first.id != second.id
        assert streams.keep("", []) is None
        second.finish()
        assert streams.keep("", []) is not None and len(streams) == 2
        first.end()
        assert len(streams) == 1 and second.gone.is_set()

    asyncio.run(main())
