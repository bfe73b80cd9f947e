"""A response on its way from a replica to a client: what is held back, and its end where the replica dies."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("ray.serve", reason="replicas need Ray: pip install 'olivine[cluster]'")

from olivine.ray.ingress import _NAMED, Relayed
from olivine.ray.router import PrefixRouter


def relayed(
    path: str, messages: list[Any], *, last: bool = False, fail: bool = False
) -> tuple[Relayed, list[Any]]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def run() -> Relayed:
        found = Relayed(path, send, last=last)
        for each in messages:
            await found.put(each)
        if fail:
            await found.fail()
        return found

    return asyncio.run(run()), sent


def start(media_type: str, status: int = 200) -> dict[str, Any]:
    return {
        "type": "http.response.start",
        "status": status,
        "headers": [(b"content-type", media_type.encode())],
    }


def body(text: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text, "more_body": more}


def test_nothing_is_sent_before_there_is_a_body() -> None:
    stream = start("text/event-stream; charset=utf-8")
    found, sent = relayed("/v1/chat/completions", [stream])
    assert not found.begun and sent == []
    found, sent = relayed("/v1/chat/completions", [stream, body(b"data: 1\n\n")])
    assert found.begun and len(sent) == 2 and not found.complete


def test_a_response_that_is_no_stream_is_sent_when_it_is_complete() -> None:
    parts = [start("application/json"), body(b"{"), body(b"}", more=False)]
    found, sent = relayed("/v1/models", parts[:2])
    assert not found.begun and sent == []
    found, sent = relayed("/v1/models", parts)
    assert found.complete and sent == parts


@pytest.mark.parametrize("code", ["rank_failed", "engine_failed", "closed"])
def test_a_broken_replicas_error_is_for_another_one_to_answer(code: str) -> None:
    error = body(json.dumps({"error": {"code": code}}).encode(), more=False)
    found, sent = relayed("/v1/completions", [start("application/json", 503), error])
    assert found.elsewhere and sent == []
    found, sent = relayed("/v1/completions", [start("application/json", 503), error], last=True)
    assert not found.elsewhere and len(sent) == 2
    busy = body(b'{"error":{"code":"overloaded"}}', more=False)
    assert not relayed("/v1/completions", [start("application/json", 503), busy])[0].elsewhere


@pytest.mark.parametrize(
    "path, media_type, begins",
    [
        ("/v1/chat/completions", "text/event-stream", b'data: {"error":{"message":"the replica'),
        ("/v1/messages", "text/event-stream", b'event: error\ndata: {"type":"error"'),
        ("/v1/responses", "text/event-stream", b'event: error\ndata: {"type":"error","code"'),
        ("/api/chat", "application/x-ndjson", b'{"error":"the replica'),
    ],
)
def test_a_stream_without_its_replica_ends_in_the_words_of_its_api(
    path: str, media_type: str, begins: bytes
) -> None:
    _, sent = relayed(path, [start(media_type), body(b"x")], fail=True)
    assert sent[-1]["body"].startswith(begins) and not sent[-1].get("more_body")


@pytest.mark.parametrize(
    "path, name",
    [
        ("/v1/streams/abc", "abc"),
        ("/chat/completions/chatcmpl-1/cancel", "chatcmpl-1"),
        ("/v1/chat/completions/chatcmpl-1/end_thinking", "chatcmpl-1"),
        ("/v1/responses/resp_1/cancel", "resp_1"),
        ("/v1/chat/completions", None),
        ("/v1/models/a", None),
    ],
)
def test_paths_that_name_an_answer(path: str, name: str | None) -> None:
    found = _NAMED.fullmatch(path)
    assert (found and found[1]) == name


def test_the_router_is_one_that_serve_can_make() -> None:
    assert not getattr(PrefixRouter, "__abstractmethods__", None)
