"""The log of requests."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from olivine.llm import LLM
from olivine.server.log import JsonFormatter, TextFormatter, configure, requests
from olivine.server.models import ServedModel
from olivine.server.settings import Settings
from oracles.serving import serving

SECRET = "a fox named Zephyr"
BODY = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 3, "ignore_eos": True}


class Lines(logging.Handler):
    """Keeps lines of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def fields(self) -> list[dict[str, Any]]:
        return [record.fields for record in self.records]  # type: ignore[attr-defined]


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, level = Lines(), requests.level
    requests.addHandler(handler)
    requests.setLevel(logging.INFO)
    yield handler
    requests.setLevel(level)
    requests.removeHandler(handler)


@pytest.mark.parametrize("stream", [False, True])
def test_a_line_for_a_request(mini: LLM, lines: Lines, stream: bool) -> None:
    with serving([ServedModel("olivine-mini", mini)]) as url:  # whose end writes the last line
        body = {**BODY, "stream": stream, "n": 2}
        response = httpx.post(f"{url}/v1/chat/completions?q=private", json=body)
    (found,) = lines.fields
    assert found["id"] == response.headers["x-request-id"]
    assert {**found, "id": 0, "seconds": 0, "first_byte": 0, "cached": 0} == {
        "id": 0,
        "client": "127.0.0.1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "seconds": 0,
        "first_byte": 0,
        "model": "olivine-mini",
        "prompt": found["prompt"],
        "cached": 0,
        "generated": 6,
    }
    assert found["prompt"] > 0 and 0 < found["first_byte"] <= found["seconds"]


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_prompts_are_logged_only_where_asked(mini: LLM, lines: Lines, formatter: logging.Formatter) -> None:
    model = ServedModel("olivine-mini", mini)
    for settings in (Settings(), Settings(log_prompts=True)):
        with serving([model], settings) as url:
            httpx.post(f"{url}/v1/chat/completions", json=BODY)
            httpx.post(f"{url}/v1/chat/completions", json={**BODY, "temperature": SECRET})
    shown = [SECRET in formatter.format(record) for record in lines.records]
    assert shown == [False, False, True, False]


def test_what_is_refused_is_logged_too(mini: LLM, lines: Lines) -> None:
    with serving([ServedModel("olivine-mini", mini)], Settings(api_keys=("key",))) as url:
        httpx.get(f"{url}/nothing")
        httpx.get(f"{url}/v1/models", headers={"host": "evil.example"})
        httpx.get(f"{url}/v1/models")
        httpx.get(f"{url}/v1/models", headers={"x-api-key": "key"})
    assert [each["status"] for each in lines.fields] == [404, 403, 401, 200]
    key = lines.fields[-1]["client"]
    assert key.startswith("key:") and len(key) == 20


@pytest.mark.parametrize(("given", "taken"), [("trace-7:a.b_c", True), ("a b", False), ("x" * 129, False)])
def test_an_id_of_the_client_is_taken_if_it_is_a_plain_word(url: str, given: str, taken: bool) -> None:
    headers = httpx.post(f"{url}/v1/chat/completions", json=BODY, headers={"X-Request-Id": given}).headers
    assert (headers["x-request-id"] == given) is taken and headers["request-id"] == headers["x-request-id"]


def test_a_line_is_one_line() -> None:
    record = logging.LogRecord("olivine", logging.INFO, "", 0, "request", None, None)
    record.fields = {"path": "/a\nb \x1b[2J", "status": 200, "body": {"a": "b\n"}}
    for formatter in (TextFormatter(), JsonFormatter()):
        text = formatter.format(record)
        assert text.isprintable() and "status" in text
    assert json.loads(JsonFormatter().format(record))["path"] == "/a\nb \x1b[2J"


def test_the_form_is_chosen() -> None:
    loggers = [logging.getLogger(name) for name in ("olivine.server", "uvicorn")]
    before = [(each.handlers, each.propagate) for each in loggers], requests.level
    try:
        for form, kind in (("json", JsonFormatter), ("text", TextFormatter), ("none", TextFormatter)):
            configure(replace(Settings(), log_format=form))
            assert isinstance(loggers[0].handlers[0].formatter, kind)
            assert requests.isEnabledFor(logging.INFO) is (form != "none")
            assert loggers[0].isEnabledFor(logging.WARNING)
    finally:
        for each, (handlers, propagate) in zip(loggers, before[0], strict=True):
            each.handlers, each.propagate = handlers, propagate
        requests.setLevel(before[1])
