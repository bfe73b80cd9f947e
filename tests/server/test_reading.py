"""Bodies of requests that are wrong, too large or too slow."""

from __future__ import annotations

import gc
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from olivine.llm import LLM
from olivine.server import reading
from olivine.server.models import ServedModel
from olivine.server.reading import MOST_STRUCTURES, MOST_VALUES, json_of
from olivine.server.settings import Settings
from oracles.serving import serving

MESSAGES = b'"messages":[{"role":"user","content":"Hi"}],"max_tokens":1'


def post(url: str, content: Any, **headers: str) -> httpx.Response:
    return httpx.post(f"{url}/v1/chat/completions", content=content, headers=headers)


@pytest.fixture(scope="module")
def narrow(mini: LLM) -> Iterator[str]:
    """A server with small limits."""
    with serving([ServedModel("olivine-mini", mini)], Settings(max_body=4096)) as url:
        yield url


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"[]", "object"),
        (b"null", "object"),
        (b'"text"', "object"),
        (b"{", "no JSON"),
        (b"{} {}", "no JSON"),
        (b"\xff\xfe{}", "no JSON"),
        (b'{"model": "\xff"}', "no JSON"),
        (b'{"model": "\\ud800"}', "no JSON"),
        (b'{"temperature": NaN}', "no JSON"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, "recursion"),
        (b'{"a":' + b"[" * 100_000 + b"}", "recursion"),
        (b'{"seed": 1' + b"0" * 10_000 + b"}", "number"),
        (b"{" + MESSAGES + b',"seed": 1' + b"0" * 400 + b"}", "seed"),
        (b"{" + MESSAGES + b',"temperature": 1e400}', "temperature"),
        (b"{" + MESSAGES + b',"metadata": {"a": [{}, {"b": [1, -1e400]}]}}', "metadata"),
        (b"{" + MESSAGES + b',"max_tokens": -1' + b"0" * 400 + b"}", "max_tokens"),
        (b"{" + MESSAGES + b',"timeout": 1' + b"0" * 400 + b"}", "timeout"),
        (b"{" + MESSAGES + b',"logit_bias": {"1": 1' + b"0" * 400 + b"}}", "logit_bias"),
    ],
)
def test_what_is_no_request_is_a_400(url: str, content: bytes, told: str) -> None:
    response = post(url, content)
    assert response.status_code == 400
    assert told in response.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("field", ["metadata", "text", "reasoning", "instructions", "tools", "tool_choice"])
def test_a_number_that_a_response_could_not_repeat_is_a_400(url: str, field: str, stream: bool) -> None:
    value = "[1e400]" if field in ("tools", "instructions") else '{"a": 1e400}'
    body = f'{{"input": "Hi", "max_output_tokens": 1, "stream": {str(stream).lower()}, "{field}": {value}}}'
    response = httpx.post(f"{url}/v1/responses", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field
    assert "1.8e308" in response.json()["error"]["message"]


def test_what_is_odd_and_right_is_read(url: str) -> None:
    assert post(url, b'{"max_tokens": 5, ' + MESSAGES + b', "model": null}').status_code == 200
    assert post(url, b"{" + MESSAGES + b', "metadata": {"a": 1e308, "b": 1e-400}}').status_code == 200
    # As curl -d sends it.
    urlencoded = {"content-type": "application/x-www-form-urlencoded"}
    assert post(url, b"{" + MESSAGES + b"}", **urlencoded).status_code == 200


def test_forms_and_compressed_bodies_are_refused(url: str) -> None:
    assert post(url, b"{}", **{"content-type": "multipart/form-data; boundary=x"}).status_code == 415
    assert post(url, b"{}", **{"content-encoding": "gzip"}).status_code == 415


def test_a_body_that_is_too_large_is_refused_before_it_is_read(narrow: str) -> None:
    host, port = narrow.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 120) as client:
        client.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\n\r\n"
        )
        answer = b"".join(iter(lambda: client.recv(65536), b""))  # until the server closes
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 ") and b"4096 bytes" in body
    assert b"connection: close" in head


def test_a_body_without_a_length_is_read_up_to_the_limit(narrow: str) -> None:
    assert post(narrow, iter([b"{", MESSAGES, b"}"])).status_code == 200
    response = post(narrow, iter([b"{", b" " * 4096, b"}"]))
    assert response.status_code == 413 and response.json()["error"]["code"] == "request_too_large"


def test_a_body_that_does_not_arrive_is_a_408(mini: LLM) -> None:
    with serving([ServedModel("olivine-mini", mini)], Settings(body_timeout=0.2)) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), 120) as client:
            client.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"
            )
            answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 408 ") and b"0.2 seconds" in answer


@pytest.mark.parametrize(
    "many",
    [
        b"[" + b"[]," * MOST_STRUCTURES + b"0]",
        b"[" + b"{}," * MOST_STRUCTURES + b"0]",
        b"[" + b'"",' * MOST_STRUCTURES + b"0]",
        b'["' + rb'\\",",' * MOST_STRUCTURES + b'",0]',
        b"[" + b"0," * (MOST_VALUES + 1) + b"0]",
        b'{"model": ' * (MOST_STRUCTURES + 1),
    ],
    ids=["lists", "objects", "texts", "escapes", "numbers", "nested"],
)
def test_more_than_can_be_parsed_quickly(url: str, many: bytes) -> None:
    response = post(url, b'{"a":' + many + b"}")
    assert response.status_code == 413 and str(MOST_STRUCTURES) in response.json()["error"]["message"]


@pytest.mark.parametrize("text", ["[{,", '"', "\\", '\\"', '\\\\", "', "\n"])
def test_what_a_text_says_counts_as_one(text: str) -> None:
    given = {"a": text * (MOST_VALUES // 2)}
    assert json_of(json.dumps(given).encode()) == given


def test_others_go_on_while_a_long_body_is_parsed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the event loop's thread, only short ones are."""
    threads: list[str] = []

    def seen(content: bytes) -> dict[str, Any]:
        threads.append(threading.current_thread().name)
        return json_of(content)

    monkeypatch.setattr(reading, "json_of", seen)
    assert post(url, b"{" + MESSAGES + b"}").status_code == 200
    assert post(url, b"{" + MESSAGES + b', "user": "' + b"x" * (1 << 16) + b'"}').status_code == 200
    short, long = threads
    assert long.startswith("olivine-server") and not short.startswith("olivine-server")


def test_a_large_body_is_read(url: str) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "user": "x" * (3 << 20)}
    assert post(url, json.dumps(body)).status_code == 200
    assert gc.isenabled()
