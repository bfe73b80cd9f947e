"""/v1/messages over HTTP: errors and headers, and thoughts with a budget."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import pytest

import olivine
from olivine.chat.template import ChatTemplate
from olivine.conversation import Conversations
from olivine.server.models import ServedModel
from olivine.server.settings import Settings
from oracles import tiny
from oracles.asking import named_events
from oracles.serving import serving

BODY: Any = {"max_tokens": 12, "messages": [{"role": "user", "content": "Hi"}], "seed": 1}


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "has the type 'audio'"),
        ({"temperature": -1}, "temperature"),
        ({"thinking": {"type": "deep"}}, "thinking.type is 'deep'"),
        ({"output_config": {"effort": "huge"}}, "think is 'huge'"),
        ({"tools": [{"input_schema": {}}]}, "tools[0] has no name"),
        ({"tool_choice": {"type": "any"}, "tools": [{"type": "bash_20250124"}]}, "there are no tools"),
        ({"tool_choice": {"type": "any"}}, "there are no tools"),
        ({"tool_choice": {"type": "tool", "name": "x"}, "tools": [{"name": "y"}]}, "not among the tools"),
        ({"output_config": {"format": {"type": "xml"}}}, "xml"),
        ({"stop_sequences": ["x"] * 1000}, "stop_sequences"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_is_said_in_anthropic_s_shape(
    url: str, fields: dict[str, Any], complaint: str, stream: bool
) -> None:
    response = httpx.post(f"{url}/v1/messages?beta=true", json={**BODY, "stream": stream, **fields})
    found = response.json()
    assert response.status_code == 400
    assert found["type"] == "error" and found["error"]["type"] == "invalid_request_error"
    assert complaint in found["error"]["message"]
    assert found["request_id"] == response.headers["request-id"]


def test_without_tokens_only_the_prompt_is_read(url: str) -> None:
    system = f"Without tokens {time.time_ns()} " + "a fox and a boat " * 10
    asked = {**BODY, "system": system, "max_tokens": 0}
    first = httpx.post(f"{url}/v1/messages", json=asked).json()
    assert (first["content"], first["stop_reason"]) == ([], "max_tokens")
    assert first["usage"]["output_tokens"] == 0 < first["usage"]["input_tokens"]
    events = named_events(httpx.post(f"{url}/v1/messages", json={**asked, "stream": True}).content)
    assert [each["type"] for each in events if each["type"] != "ping"] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    assert events[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 0
    then = httpx.post(f"{url}/v1/messages", json={**asked, "max_tokens": 2}).json()
    assert then["usage"]["cache_read_input_tokens"] > 0 and then["usage"]["output_tokens"] == 2


def test_unknown_fields_and_tools_are_told_in_one_header(url: str) -> None:
    tools = [{"type": "bash_20250124", "name": "bash"}]
    response = httpx.post(f"{url}/v1/messages", json={**BODY, "color": "red", "tools": tools})
    assert response.status_code == 200
    assert "color" in response.headers["warning"] and "bash_20250124" in response.headers["warning"]


def test_the_path_is_known_without_its_version(url: str) -> None:
    assert httpx.post(f"{url}/messages/count_tokens", json=BODY).json()["input_tokens"] > 0


def test_pings_come_while_the_prompt_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    mini = olivine.load("olivine-mini", device="cpu", threads=1)  # the server closes it
    go, generate = threading.Event(), mini.program.generate  # type: ignore[attr-defined]

    def held(*args: Any) -> Any:
        assert go.wait(20)
        return generate(*args)

    monkeypatch.setattr(mini.program, "generate", held)
    names = []
    with (
        serving([ServedModel("olivine-mini", mini)], Settings(ping=0.02)) as url,
        httpx.stream("POST", f"{url}/v1/messages", json={**BODY, "stream": True}) as response,
    ):
        for line in response.iter_lines():
            if line.startswith("event: "):
                names.append(line.removeprefix("event: "))
                go.set()
    assert names[0] == "ping"
    assert [name for name in names if name != "ping"][:2] == ["message_start", "content_block_start"]


TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}{% if enable_thinking %}<think>\n{% endif %}"


def test_a_thought_ends_where_its_budget_does(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tiny.write("tiny-qwen3", "Q8_0", tmp_path_factory.mktemp("model"))
    thinking = {"type": "enabled", "budget_tokens": 3}
    with olivine.load(path, device="cpu", threads=1, context=256) as llm:
        template = ChatTemplate(TEMPLATE, {}, llm.tokenizer.guarded_names)
        llm.__dict__["_conversations"] = Conversations(template, llm.tokenizer, llm.vocabulary)
        with serving([ServedModel("tiny", llm)]) as url:
            found = httpx.post(f"{url}/v1/messages", json={**BODY, "thinking": thinking}).json()
    # The tokens that close a thought count as its own.
    assert found["usage"]["output_tokens_details"]["thinking_tokens"] <= 6
