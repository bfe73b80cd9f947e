"""Connections that send no request, or a strange one."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import httpx

from olivine.llm import LLM
from olivine.server.connections import MOST_HEAD
from olivine.server.models import ServedModel
from olivine.server.settings import Settings
from oracles.gate import Gate
from oracles.serving import serving

LONG = {"messages": [{"role": "user", "content": "Hi"}], "ignore_eos": True, "stream": True, "temperature": 0}
REQUEST = b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n"


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 120) as client:
        yield client


def until_closed(client: socket.socket) -> bytes:
    try:
        return b"".join(iter(lambda: client.recv(65536), b""))
    except ConnectionResetError:
        return b""


def is_open(client: socket.socket) -> bool:
    client.sendall(REQUEST + b"\r\n")
    try:
        return client.recv(65536).startswith(b"HTTP/1.1 404")
    except ConnectionError:
        return False


def test_headers_have_a_limit(url: str) -> None:
    with connected(url) as client:
        client.sendall(REQUEST + b"X-Long: " + b"x" * (MOST_HEAD + 1))
        assert until_closed(client).startswith(b"HTTP/1.1 431 ")
    with connected(url) as client:
        client.sendall(b"GET /" + b"x" * (MOST_HEAD + 1))
        assert until_closed(client).startswith(b"HTTP/1.1 431 ")
    assert httpx.get(f"{url}/nothing", headers={"x-long": "x" * 20_000}).status_code == 404


def test_what_is_no_http_is_refused(url: str) -> None:
    for sent in (
        b"\x16\x03\x01\x02\x00\x01",
        b"HELLO\r\n\r\n",
        b"GET * HTTP/9\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
    ):
        with connected(url) as client:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            assert until_closed(client)[:12] in (b"", b"HTTP/1.1 400", b"HTTP/1.1 404")


def test_a_connection_without_a_request_is_closed(mini: LLM) -> None:
    settings = Settings(keep_alive=0.5)
    with serving([ServedModel("olivine-mini", mini)], settings) as url, ExitStack() as stack:
        silent, slow = (stack.enter_context(connected(url)) for _ in range(2))
        slow.sendall(REQUEST)  # and never the end of it
        # Where the machine stalls, one may be closed before its request is there.
        connections = (stack.enter_context(connected(url)) for _ in range(20))
        again = next(each for each in connections if is_open(each))
        again.sendall(REQUEST)
        assert [until_closed(each) for each in (silent, slow, again)] == [b"", b"", b""]


def test_a_stream_is_not_an_idle_connection(mini: LLM, gate: Gate) -> None:
    settings = Settings(keep_alive=0.2)
    body = {**LONG, "max_tokens": 40}
    with serving([ServedModel("olivine-mini", mini)], settings) as url, ExitStack() as stack:
        for _ in range(20):
            gate.open()  # for a request of an attempt that failed
            gate.close(after=2)
            # Where the machine stalls, one may be closed before its request is there.
            with suppress(httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                stream = httpx.stream("POST", f"{url}/v1/chat/completions", json=body)
                response = stack.enter_context(stream)
                break
        else:
            raise AssertionError("no connection lasted until its request was there")
        with connected(url) as idle:
            assert until_closed(idle) == b""
        gate.open()
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"


def test_beyond_the_limit_the_connection_that_is_idle_for_longest_is_closed(mini: LLM) -> None:
    settings = Settings(max_connections=3)
    with serving([ServedModel("olivine-mini", mini)], settings) as url, ExitStack() as stack:
        first, second, third = (stack.enter_context(connected(url)) for _ in range(3))
        assert is_open(first)  # now the second is idle for longest
        fourth = stack.enter_context(connected(url))
        assert is_open(fourth)
        assert until_closed(second) == b""
        assert is_open(third) and is_open(first)


def test_where_all_connections_are_busy_one_more_is_refused_in_words(mini: LLM) -> None:
    settings = Settings(max_connections=1)
    with serving([ServedModel("olivine-mini", mini)], settings) as url:
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=LONG, timeout=60) as response:
            lines = response.iter_lines()  # one that is dropped closes the response
            next(lines)
            with connected(url) as client:
                head, _, body = until_closed(client).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ") and b"retry-after" in head
        assert json.loads(body)["error"]["code"] == "too_many_connections"
