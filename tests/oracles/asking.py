"""Requests to one endpoint of a server, and what encoders write, for tests of both."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx

from olivine.chat.messages import Message
from olivine.engine import Timings, Usage
from olivine.reply import Reply


@dataclass(frozen=True)
class Asking:
    """Asks an endpoint; `body` has the fields that a test does not give itself."""

    path: str
    body: dict[str, Any]

    def post(self, url: str, **fields: Any) -> httpx.Response:
        return httpx.post(url + self.path, json={**self.body, **fields}, timeout=240)

    def answered(self, url: str, **fields: Any) -> dict[str, Any]:
        response = self.post(url, **fields)
        assert response.status_code == 200, response.text
        return dict(response.json())

    def refused(self, url: str, **fields: Any) -> dict[str, Any]:
        response = self.post(url, **fields)
        assert response.status_code == 400, response.text
        return dict(response.json()["error"])

    def chunks(self, url: str, **fields: Any) -> list[dict[str, Any]]:
        """The chunks of a stream, without the last line."""
        body = {**self.body, "stream": True, **fields}
        with httpx.stream("POST", url + self.path, json=body, timeout=240) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            lines = [line for line in response.iter_lines() if line]
        assert lines.pop() == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines]


def reply(content: str = "", reasoning: str | None = None, calls: Any = (), **more: Any) -> Reply:
    """A finished answer for an encoder."""
    message = Message("assistant", content, reasoning, list(calls))
    given = {"finish_reason": "stop", "usage": Usage(10, 4, 6), "seed": 0, "tokens": [], **more}
    return Reply(message, timings=Timings(), **given)


def named_events(data: bytes) -> list[dict[str, Any]]:
    """The events of a stream; the name of each is the type of its data."""
    found = []
    for event in data.decode().split("\n\n")[:-1]:
        name, body = event.split("\n")
        found.append(json.loads(body.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found
