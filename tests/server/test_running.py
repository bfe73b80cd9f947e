"""Ending a running answer, or its thought, from another connection."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

import olivine
from olivine import Reply
from olivine.chat.template import ChatTemplate
from olivine.conversation import Conversations
from olivine.llm import LLM
from olivine.server.models import ServedModel
from olivine.server.settings import Settings
from oracles import tiny
from oracles.serving import serving
from oracles.waiting import eventually

TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}<think>\n"
BODY = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 60, "ignore_eos": True, "seed": 1}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = tiny.write("tiny-qwen3", "Q8_0", tmp_path_factory.mktemp("model"))
    with olivine.load(path, device="cpu", threads=1, context=256) as llm:
        template = ChatTemplate(TEMPLATE, {}, llm.tokenizer.guarded_names)
        llm.__dict__["_conversations"] = Conversations(template, llm.tokenizer, llm.vocabulary)
        yield llm


@pytest.fixture(scope="module")
def free(llm: LLM) -> Reply:
    """The answer that nobody ends: a thought."""
    reply = llm.chat("Hi", max_tokens=60, ignore_eos=True, seed=1)
    assert reply.reasoning and not reply.content
    return reply


@pytest.fixture
def go(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The third step waits for it."""
    event, steps, generate = threading.Event(), [], llm.program.generate  # type: ignore[attr-defined]

    def held(*args: Any) -> Any:
        steps.append(None)
        assert len(steps) != 3 or event.wait(20)
        return generate(*args)

    monkeypatch.setattr(llm.program, "generate", held)
    return event


@contextmanager
def streaming(
    url: str, seen: dict[str, str] | None = None, **options: Any
) -> Iterator[Iterator[dict[str, Any]]]:
    with httpx.stream(
        "POST", f"{url}/v1/chat/completions", json={**BODY, "stream": True}, **options
    ) as response:
        assert response.status_code == 200
        for name in seen or ():
            seen[name] = response.headers[name]  # type: ignore[index]
        lines = (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {"))
        yield (json.loads(line) for line in lines)


def texts(chunks: list[dict[str, Any]]) -> tuple[str, str]:
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    thought = "".join(delta.get("reasoning_content") or "" for delta in deltas)
    return thought, "".join(delta.get("content") or "" for delta in deltas)


def test_a_thought_is_ended_and_the_answer_follows(free: Reply, llm: LLM, go: threading.Event) -> None:
    with serving([ServedModel("thinker", llm)]) as url, streaming(url) as chunks:
        first = next(chunks)
        ended = httpx.post(f"{url}/v1/chat/completions/{first['id']}/end_thinking")
        assert (ended.status_code, ended.json()) == (200, {"id": first["id"]})
        go.set()
        thought, content = texts([first, *chunks])
        assert content and (free.reasoning or "").startswith(thought)
        eventually(lambda: httpx.post(f"{url}/chat/completions/{first['id']}/cancel").status_code == 404)


def test_an_answer_is_cancelled_and_ends_with_what_it_has(llm: LLM, go: threading.Event) -> None:
    """By the id of the request, which every API has in a header."""
    name = {"X-Request-Id": ""}
    with serving([ServedModel("thinker", llm)]) as url, streaming(url, seen=name) as chunks:
        next(chunks)
        assert httpx.post(f"{url}/v1/chat/completions/{name['X-Request-Id']}/cancel").status_code == 200
        go.set()
        rest = list(chunks)
    assert rest[-1]["choices"][0]["finish_reason"] == "stop"
    assert llm.stats().finished["cancelled"] >= 1


def test_unknown_ids_and_other_clients_find_nothing(llm: LLM, go: threading.Event) -> None:
    keys = {name: {"Authorization": f"Bearer {name}"} for name in ("mine", "yours")}
    settings = Settings(api_keys=tuple(keys))
    with (
        serving([ServedModel("thinker", llm)], settings) as url,
        streaming(url, headers=keys["mine"]) as chunks,
    ):
        first = next(chunks)
        for path, key in (("chatcmpl-0", "mine"), (first["id"], "yours")):
            for action in ("end_thinking", "cancel"):
                response = httpx.post(f"{url}/v1/chat/completions/{path}/{action}", headers=keys[key])
                assert response.status_code == 404
                assert f"no answer '{path}' is running" in response.json()["error"]["message"]
        go.set()
        assert texts([first, *chunks])[1] == ""  # nobody has ended its thought


def test_a_budget_can_be_given_in_the_words_of_several_clients(llm: LLM, go: threading.Event) -> None:
    go.set()
    with serving([ServedModel("thinker", llm)]) as url:
        for budget in ({"thinking_budget": 4}, {"thinking": {"budget_tokens": 4}}, {"reasoning_budget": 4}):
            reply = httpx.post(f"{url}/v1/chat/completions", json={**BODY, **budget}).json()
            message = reply["choices"][0]["message"]
            assert message["content"] and message["reasoning_content"]
            assert 4 <= reply["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 6
        refused = httpx.post(f"{url}/v1/chat/completions", json={**BODY, "thinking_budget": -5})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "thinking_budget"
