"""Connections that send no request, or a strange one."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace
from unittest.mock import Mock

import httpx

from olivine.llm import LLM
from olivine.server.connections import MOST_HEAD, UNREAD, Connections
from olivine.server.models import ServedModel
from olivine.server.settings import Settings
from oracles.gate import Gate
from oracles.serving import serving
from oracles.waiting import eventually

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
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=LONG, timeout=240) as response:
            lines = response.iter_lines()  # one that is dropped closes the response
            next(lines)
            with connected(url) as client:
                head, _, body = until_closed(client).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ") and b"retry-after" in head
        assert json.loads(body)["error"]["code"] == "too_many_connections"


def unread(url: str, stack: ExitStack) -> socket.socket:
    """A client that asks for more than the network holds, and reads nothing of it."""
    client = stack.enter_context(connected(url))
    body = json.dumps({"content": "a b c d " * 120_000, "with_pieces": True}).encode()
    head = f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    client.sendall(head.encode() + body)
    assert client.recv(12) == b"HTTP/1.1 200"
    return client


def test_clients_that_do_not_read_lock_nobody_out(mini: LLM) -> None:
    settings = Settings(max_connections=2, keep_alive=0.2)
    with serving([ServedModel("olivine-mini", mini)], settings) as url, ExitStack() as stack:
        for _ in range(2):
            unread(url, stack)
        time.sleep(1)  # long enough for both to be closed, but for what nobody reads
        assert httpx.get(f"{url}/health").status_code == 200


def test_a_connection_that_is_not_read_from_ends() -> None:
    """By a clock, and by how many bytes wait to be read."""
    clock, unread, done = [0.0], [0], []
    transport = SimpleNamespace(
        get_write_buffer_size=lambda: unread[0],
        abort=lambda: done.append("aborted"),
        close=lambda: done.append("closed"),
    )
    loop = SimpleNamespace(time=lambda: clock[0])
    one = Mock(transport=transport, loop=loop, is_idle=True)
    all = Connections(most=2, seconds=5)
    assert all.opened(one)
    unread[0] = 1000
    clock[0] = 6
    all.close_idle(before=1)
    assert done == ["closed"]
    for _ in range(5):  # something is read now and then
        clock[0] += UNREAD - 1
        unread[0] -= 100
        all.close_unread(clock[0])
        assert done == ["closed"]
    clock[0] += UNREAD + 1
    all.close_unread(clock[0])
    assert done == ["closed", "aborted"]


def test_the_close_of_a_client_with_pipelined_requests_is_heard(mini: LLM, gate: Gate) -> None:
    body = json.dumps({"prompt": "Once", "max_tokens": 2000, "ignore_eos": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    nothing = REQUEST + b"\r\n"

    def cancelled() -> int:
        return mini.stats().finished["cancelled"]

    with serving([ServedModel("olivine-mini", mini)]) as url:
        for others in (1, 100):  # more than may wait: the server closes the connection
            before = cancelled()
            gate.close(after=2)
            with connected(url) as client:
                client.sendall(head.encode() + body)
                eventually(lambda: mini.stats().running == 1)
                client.sendall(nothing * others)
                assert others == 1 or until_closed(client) == b""
            time.sleep(0.2)
            gate.open()
            eventually(lambda: not mini.stats().running)
            assert cancelled() == before + 1
        with connected(url) as client:  # all are answered, in their order
            client.sendall(nothing * 2 + REQUEST + b"Connection: close\r\n\r\n")
            assert until_closed(client).count(b"HTTP/1.1 404 ") == 3
