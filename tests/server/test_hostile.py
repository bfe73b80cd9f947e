"""Hostile clients beside good ones: they are refused or cut off, and what the others get is what a quiet
server gives them, bit for bit."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import httpx
import pytest

from olivine.llm import LLM
from olivine.server.models import ServedModel
from olivine.server.settings import Settings
from oracles.serving import serving
from oracles.waiting import eventually

PATH = "/v1/chat/completions"
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
MESSAGES = [{"role": "user", "content": "Hi"}]
PROMPTS = ["A fox", "Once upon a time", "Lily and Tom", "The big red ball"]
CONNECTIONS = 100


@pytest.fixture(scope="module")
def narrow(mini: LLM) -> Iterator[str]:
    """A server with limits that a test can reach."""
    settings = Settings(max_body=1 << 20, body_timeout=0.5, keep_alive=5, max_connections=CONNECTIONS)
    with serving([ServedModel("olivine-mini", mini)], settings) as url:
        yield url


def connect(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), 120)


def until_closed(client: socket.socket) -> bytes:
    parts = []
    with suppress(ConnectionError):
        while part := client.recv(65536):
            parts.append(part)
    return b"".join(parts)


def refused(url: str, body: Any) -> None:
    """The status is a 4xx, or the connection is closed."""
    content = body if isinstance(body, bytes) else json.dumps(body)
    with suppress(httpx.TransportError):
        status = httpx.post(f"{url}{PATH}", content=content, timeout=240).status_code
        assert 400 <= status < 500, (status, content[:200])


def answered(url: str, body: dict[str, Any]) -> None:
    """It is odd, and may be right: anything but an error of the server."""
    request = {"messages": MESSAGES, "max_tokens": 2, **body}
    response = httpx.post(f"{url}{PATH}", json=request, timeout=240)
    assert response.status_code < 500, (response.text, json.dumps(body)[:200])


# ---- what hostile clients do


def huge_bodies(url: str) -> None:
    refused(url, b"{" + b" " * (2 << 20) + b"}")
    with connect(url) as client:
        client.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        with suppress(ConnectionError):
            for _ in range(40):
                client.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
        assert until_closed(client)[:12] in (b"", b"HTTP/1.1 413")


def strange_json(url: str) -> None:
    refused(url, b'{"a":' * 50_000)
    refused(url, b'{"messages": "\xff\xfe"}')
    refused(url, b'{"messages": [{"role": "user", "content": "\\udc00"}]}')
    refused(url, b"[" * 500_000)
    refused(url, {"messages": MESSAGES * 5000})
    refused(url, {"messages": MESSAGES, "stop": ["x"] * 5000})
    refused(url, {"messages": MESSAGES, "logprobs": True, "top_logprobs": 10**400})
    refused(url, {"messages": MESSAGES, "max_tokens": 10**400})
    refused(url, {"messages": MESSAGES, "n": 10**9})
    refused(url, {"messages": [{"role": "user", "content": "word " * 100_000}]})


def slow_senders(url: str) -> None:
    with connect(url) as body, connect(url) as head:
        body.sendall(HEAD + b"Content-Length: 1000\r\n\r\n{")
        head.sendall(HEAD)
        assert until_closed(body)[:12] in (b"", b"HTTP/1.1 408")


def half_closed_sockets(url: str) -> None:
    whole = json.dumps({"messages": MESSAGES, "stream": True, "ignore_eos": True}).encode()
    for sent in (
        HEAD,
        HEAD + b"Content-Length: 9\r\n\r\n{",
        HEAD + b"Content-Length: %d\r\n\r\n" % len(whole) + whole,
    ):
        with connect(url) as client:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            until_closed(client)


def no_http(url: str) -> None:
    for sent in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000, b"\x00" * 1000):
        with connect(url) as client, suppress(ConnectionError):
            client.sendall(sent)
            assert until_closed(client)[:10] in (b"", b"HTTP/1.1 4")


def schema_bombs(url: str) -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(60):
        deep = {"type": "object", "properties": {"a": deep, "b": deep}, "required": ["a", "b"]}
        if len(json.dumps(deep)) > 100_000:
            break
    schemas = [
        deep,
        {"type": "string", "pattern": "((a{1,1000}){1,1000}){1,1000}"},
        {"type": "string", "pattern": "(" * 5000},
        {"type": "array", "minItems": 10**9, "items": {"type": "integer"}},
        {"enum": [f"{i:x}" * 20 for i in range(20_000)]},
        {"$ref": "#"},
        {"$ref": "https://evil.example/schema.json"},
        {"allOf": [{"anyOf": [{"type": "object", "required": [str(i)]} for i in range(50)]}] * 50},
    ]
    for schema in schemas:
        wanted = {"type": "json_schema", "json_schema": {"name": "bomb", "schema": schema}}
        answered(url, {"response_format": wanted})


def template_bombs(url: str) -> None:
    for options in (
        {"messages": 5},
        {"bos_token": {"a": ["b"] * 1000}},
        {"namespace": None, "range": None, "raise_exception": 1, "strftime_now": 1},
        {"x": "{{ 9 ** 9 ** 9 }}" * 1000},
        {f"k{i}": i for i in range(20_000)},
        {"tools": "x" * 10_000, "loop": 1, "self": 1, "caller": 1, "super": 1},
    ):
        answered(url, {"chat_template_kwargs": options})
    answered(url, {"messages": [{"role": "{{ 9 ** 9 ** 9 }}", "content": "x"}]})
    answered(url, {"tools": [{"type": "function", "function": {"name": "x" * 5000, "parameters": {}}}] * 50})


def abandoned_streams(url: str) -> None:
    body = {"messages": MESSAGES, "stream": True, "ignore_eos": True, "n": 3}
    for headers in ({}, {"X-Stream-Resume": "true"}):
        with httpx.stream("POST", f"{url}{PATH}", json=body, headers=headers, timeout=240) as response:
            name = response.headers.get("x-stream-id")
            lines = response.iter_lines()
            with suppress(StopIteration, httpx.TransportError):
                next(lines)
        if name is not None:
            httpx.delete(f"{url}/v1/streams/{name}")


HOSTILE = [
    huge_bodies,
    strange_json,
    slow_senders,
    half_closed_sockets,
    no_http,
    schema_bombs,
    template_bombs,
    abandoned_streams,
]


# ---- what good clients get


class Late(Exception):
    """The body arrived too late, in the eyes of a server that waits for half a second."""


def good(url: str, prompt: str) -> list[tuple[str, float, list[float]]]:
    """Tokens and log-probabilities of a streamed answer."""
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 40,
        "ignore_eos": True,
        "stream": True,
        "temperature": 0.9,
        "seed": 7,
        "logprobs": True,
        "top_logprobs": 3,
    }
    found = []
    with httpx.stream("POST", f"{url}{PATH}", json=body, timeout=120) as response:
        if response.status_code == 408:
            raise Late
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    for each in (choice.get("logprobs") or {}).get("content", []):
                        top = [other["logprob"] for other in each["top_logprobs"]]
                        found.append((each["token"], each["logprob"], top))
    assert len(found) == 40
    return found


def patient(url: str, prompt: str) -> list[tuple[str, float, list[float]]]:
    """As clients do: again where there was no room for a connection, or the machine was busy."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        with suppress(Late, httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError):
            return good(url, prompt)
        time.sleep(0.05)
    raise AssertionError("there is no room")


def test_each_hostile_client_alone(narrow: str, mini: LLM) -> None:
    for hostile in HOSTILE:
        hostile(narrow)
    assert patient(narrow, PROMPTS[0])


def test_hostile_clients_change_nothing_for_the_others(narrow: str, mini: LLM) -> None:
    quiet = [patient(narrow, prompt) for prompt in PROMPTS]
    over = threading.Event()

    def again(hostile: Callable[[str], None]) -> int:
        times = 0
        while not (over.is_set() and times):
            hostile(narrow)
            times += 1
        return times

    with ExitStack() as idle, ThreadPoolExecutor(len(HOSTILE) + len(PROMPTS)) as pool:
        for _ in range(3 * CONNECTIONS):
            idle.enter_context(connect(narrow))
        attacks = [pool.submit(again, hostile) for hostile in HOSTILE]
        try:
            for _ in range(2):
                assert list(pool.map(lambda prompt: patient(narrow, prompt), PROMPTS)) == quiet
        finally:
            over.set()
        assert all(attack.result() for attack in attacks)
    eventually(lambda: mini.stats().running == 0)
    assert [patient(narrow, prompt) for prompt in PROMPTS] == quiet


IDLE = """
import resource, socket, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
connections = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(10_000)]
print("open", flush=True)
sys.stdin.read()
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("most", [10_100, 1000])
def test_ten_thousand_idle_connections(mini: LLM, most: int) -> None:
    resource = pytest.importorskip("resource")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < 10_500:
        pytest.skip(f"this system lets a program open {hard} files only")
    with serving([ServedModel("olivine-mini", mini)], Settings(max_connections=most)) as url:
        quiet = good(url, PROMPTS[0])
        line = [sys.executable, "-c", IDLE, url.rpartition(":")[2]]
        with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as clients:
            assert clients.stdout is not None and clients.stdout.readline() == "open\n"
            assert good(url, PROMPTS[0]) == quiet
            clients.communicate()
