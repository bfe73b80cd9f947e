"""Whose request it is, and how long it may take."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from olivine.engine.checks import Deadline
from olivine.errors import DeadlineError
from olivine.llm import LLM
from olivine.server.endpoint import Call, Server
from olivine.server.errors import ApiError
from olivine.server.models import Models, ServedModel
from olivine.server.settings import Settings
from oracles.serving import serving


def call(headers: dict[str, str], settings: Settings | None = None) -> Call:
    scope = {
        "type": "http",
        "client": ("10.0.0.7", 1234),
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
    }
    unused: Any = None
    return Call(Server(settings or Settings(), Models([])), Request(scope), None, unused, unused)


def test_a_client_is_known_by_its_key_and_else_by_its_address() -> None:
    """Without keys to check anybody could make some up, and have a queue for each."""

    def client(headers: dict[str, str]) -> str:
        assert call(headers).client == "10.0.0.7"
        return call(headers, Settings(api_keys=("sk-one", "sk-two"))).client

    assert client({}) == client({"Authorization": "Basic abc"}) == "10.0.0.7"
    bearer = client({"Authorization": "Bearer sk-one"})
    assert bearer == client({"authorization": "bearer  sk-one "}) == client({"x-api-key": "sk-one"})
    assert bearer != client({"Authorization": "Bearer sk-two"})
    assert "sk-one" not in bearer and bearer.startswith("key:")


@pytest.mark.parametrize(
    ("body", "header", "most", "expected"),
    [
        (None, None, None, None),
        (5.0, None, None, 5.0),
        (None, "2.5", None, 2.5),
        (5.0, "2.5", None, 2.5),
        (1.0, "2.5", None, 1.0),
        (None, None, 30.0, 30.0),
        (99.0, "1e3", 30.0, 30.0),
    ],
)
def test_the_earliest_deadline_counts(
    body: float | None, header: str | None, most: float | None, expected: float | None
) -> None:
    made = call({} if header is None else {"X-Request-Timeout": header}, Settings(max_timeout=most))
    limited = made.limited({"temperature": 0, "timeout": body})
    deadline = Deadline.of(expected, made.arrived)
    assert limited == {"temperature": 0, "client": "10.0.0.7", "timeout": deadline}
    assert made.deadline == deadline


def test_only_the_operator_lets_requests_go_before_others() -> None:
    for priority in (0, 7):
        assert call({}).limited({"priority": priority})["priority"] == priority
    with pytest.raises(ApiError, match=r"priority is -1: .* --priorities") as refused:
        call({}).limited({"priority": -1})
    assert refused.value.status == 400 and refused.value.param == "priority"
    assert call({}, Settings(priorities=True)).limited({"priority": -1})["priority"] == -1


@pytest.mark.parametrize("given", ["0", "-1", "soon", "nan", "inf", ""])
def test_a_header_that_is_no_time_is_refused(given: str) -> None:
    with pytest.raises(ApiError, match="X-Request-Timeout must be a number of seconds") as refused:
        call({"X-Request-Timeout": given}).limited({})
    assert (refused.value.status, refused.value.code) == (400, "invalid_value")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 1, "echo": True, "logprobs": 0}),
        ("/v1/embeddings", {"input": ["a", "b"]}),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 1}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}),
    ],
)
def test_what_an_endpoint_runs_has_the_client_and_the_deadline(
    path: str, body: dict[str, Any], mini: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    submit = mini._engine.submit

    def noted(request: Any, *rest: Any) -> Any:
        left = request.timeout.at - time.perf_counter()
        seen.append((request.client, 100 if left <= 100 else 500 if left <= 500 else left))
        return submit(request, *rest)

    monkeypatch.setattr(mini._engine, "submit", noted)
    with serving([ServedModel("olivine-mini", mini)], Settings(max_timeout=500.0)) as url:
        for headers in ({}, {"X-Request-Timeout": "100"}):
            assert httpx.post(url + path, json=body, headers=headers).status_code == 200
        bad = httpx.post(url + path, json=body, headers={"X-Request-Timeout": "never"})
    assert {*seen} == {("127.0.0.1", 500), ("127.0.0.1", 100)}
    assert bad.status_code == 400 and "X-Request-Timeout" in bad.json()["error"]["message"]


def test_a_result_that_is_no_json_is_a_500_in_the_api_s_shape(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("olivine.server.status.BUILD", float("inf"))
    response = httpx.get(f"{url}/props")
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert response.headers["x-request-id"]


def test_a_timeout_does_not_begin_again_in_the_engine(mini: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came before it, a model's load or the decoding of media, is part of it."""
    # Called when the deadline is set, and the model is there.
    monkeypatch.setattr("olivine.server.openai.chat.has_media", lambda messages: time.sleep(0.3))
    with serving([ServedModel("olivine-mini", mini)]) as url:
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "timeout": 0.2}
        response = httpx.post(f"{url}/v1/chat/completions", json=body)
    assert response.json()["choices"][0]["finish_reason"] == "length"
    assert response.json()["usage"]["completion_tokens"] == 0


def test_a_timeout_holds_for_the_wait_before_the_engine_too() -> None:
    """For a model that is loaded, or a place."""

    async def waits(made: Call) -> None:
        async def receive() -> Any:
            await asyncio.Event().wait()

        made.receive = receive
        task = asyncio.ensure_future(asyncio.Event().wait())
        with pytest.raises(DeadlineError, match="waited until its timeout was over"):
            await made.unless_gone(task)  # type: ignore[arg-type]
        with suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()

    for headers, settings in (({"X-Request-Timeout": "0.05"}, Settings()), ({}, Settings(max_timeout=0.05))):
        made = call(headers, settings)
        made.limited({})
        asyncio.run(waits(made))
