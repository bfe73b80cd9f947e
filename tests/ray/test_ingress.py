"""A response on its way from a replica to a client: what is held back, and its end where the replica dies."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

pytest.importorskip("ray.serve", reason="replicas need Ray: pip install 'olivine[cluster]'")

from ray.exceptions import RayActorError

from olivine.ray.ingress import _NAMED, Ingress, Relayed
from olivine.ray.replica import Forwarded
from olivine.ray.router import PrefixRouter
from olivine.server.errors import ApiError
from olivine.server.settings import Settings


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


# ---- requests that are sent again


class Responses:
    """Replicas that answer one after the other: each with messages, or with an error after some of them."""

    def __init__(self, *answers: list[Any]) -> None:
        self._answers = [*answers]
        self.requests: list[Forwarded] = []
        self.cancelled = 0

    def options(self, **options: Any) -> Responses:
        return self

    def remote(self, request: Forwarded) -> Any:
        self.requests.append(request)
        return _Generator(self, self._answers.pop(0))


class _Generator:
    def __init__(self, responses: Responses, parts: list[Any]) -> None:
        self._responses, self._parts = responses, [f"replica {len(responses.requests)}", *parts]

    def __aiter__(self) -> _Generator:
        return self

    async def __anext__(self) -> Any:
        if not self._parts:
            raise StopAsyncIteration
        if isinstance(found := self._parts.pop(0), Exception):
            raise found
        return found

    def cancel(self) -> None:
        self._responses.cancelled += 1


PATH = "/v1/completions"
WHOLE = [[start("application/json"), body(b"{}", more=False)]]
BEGUN = [[start("text/event-stream"), body(b"data: 1\n\n")]]
DIED = RayActorError()


def answered(responses: Responses) -> list[Any]:
    """What a client is sent."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(Ingress(responses, Settings())._relay(Forwarded({}, b""), PATH, send))
    return sent


def test_a_request_whose_replica_died_goes_to_another_one() -> None:
    responses = Responses([DIED], [DIED], WHOLE)
    assert answered(responses) == WHOLE[0]
    assert [each.avoid for each in responses.requests] == [(), ("replica 1",), ("replica 1", "replica 2")]
    assert responses.cancelled == 2


def test_a_replica_whose_engine_failed_is_not_the_last_word() -> None:
    error = body(b'{"error": {"code": "engine_failed"}}', more=False)
    responses = Responses([[start("application/json", 500), error]], WHOLE)
    assert answered(responses) == WHOLE[0]
    assert len(responses.requests) == 2


def test_after_three_replicas_the_client_is_told_to_try_again() -> None:
    responses = Responses([DIED], [DIED], [DIED], WHOLE)
    with pytest.raises(ApiError) as caught:
        answered(responses)
    assert caught.value.status == 503 and caught.value.headers["Retry-After"]
    assert caught.value.code == "replica_failed" and len(responses.requests) == 3


def test_a_stream_that_has_begun_is_not_begun_again() -> None:
    """The client would have the beginning twice."""
    responses = Responses([*BEGUN, DIED], WHOLE)
    sent = answered(responses)
    assert sent[:2] == BEGUN[0] and b"replica_failed" in sent[2]["body"] and not sent[2].get("more_body")
    assert len(responses.requests) == 1


def test_a_response_without_an_end_is_one_that_failed() -> None:
    responses = Responses([[start("application/json"), body(b"{")]], WHOLE)
    assert answered(responses) == WHOLE[0]


# ---- the router


class Running(NamedTuple):
    """A replica, as Serve's router has it."""

    replica_id: Any


class Id(NamedTuple):
    unique_id: str


def router(loads: dict[str, int]) -> tuple[PrefixRouter, list[Any]]:
    found: Any = object.__new__(PrefixRouter)
    found.initialize_state()
    found._replica_queue_len_cache = {Id(name): load for name, load in loads.items()}
    return found, [Running(Id(name)) for name in loads]


def chosen(of: tuple[PrefixRouter, list[Any]], **request: Any) -> list[list[str]]:
    pending: Any = SimpleNamespace(args=(Forwarded({}, b"", **request),), routing_context=SimpleNamespace())
    found = asyncio.run(of[0].choose_replicas(of[1], pending))
    return [sorted(each.replica_id.unique_id for each in rank) for rank in found]


@pytest.fixture(autouse=True)
def queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        PrefixRouter, "replica_queue_len_cache", property(lambda self: self._replica_queue_len_cache)
    )


def test_a_prompt_goes_where_its_prefix_went() -> None:
    of = router({"a": 1, "b": 0})
    assert chosen(of, prefixes=(b"1", b"2")) == [["a", "b"]]
    pending: Any = SimpleNamespace(args=(Forwarded({}, b"", (b"1", b"2")),))
    of[0].on_request_routed(pending, Id("a"), None)  # type: ignore[arg-type]
    assert chosen(of, prefixes=(b"1", b"3")) == [["a"], ["a", "b"]]
    assert chosen(of, prefixes=(b"3",)) == [["a", "b"]]
    assert chosen(of, prefixes=(b"1",), avoid=("a",)) == [["b"]]
    assert chosen(of, avoid=("a", "b")) == [["a", "b"]]  # better than none
    assert chosen(of, replica="b") == [["b"]]
    assert chosen(of, replica="gone") == [["a", "b"]]


def test_a_prompt_leaves_a_replica_that_is_too_busy() -> None:
    of = router({"a": 8, "b": 0})
    pending: Any = SimpleNamespace(args=(Forwarded({}, b"", (b"1",)),))
    of[0].on_request_routed(pending, Id("a"), None)  # type: ignore[arg-type]
    assert chosen(of, prefixes=(b"1",)) == [["a", "b"]]


def test_the_router_is_one_that_serve_can_make() -> None:
    assert not getattr(PrefixRouter, "__abstractmethods__", None)
