"""The `ollama` package against a running server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any

import jsonschema
import ollama
import pytest

from olivine import box
from olivine.llm import LLM, load
from olivine.server.models import ServedModel
from oracles import tiny
from oracles.serving import serving
from oracles.waiting import eventually

MODEL = "olivine-mini"
MESSAGES = [{"role": "user", "content": "Tell me a story about a fox."}]
OPTIONS = {"num_predict": 12, "seed": 7}


@pytest.fixture
def client(url: str) -> ollama.Client:
    return ollama.Client(url)


class Caller:
    """A model that calls a function whenever it may: a random one would not find the way to a call."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    def submit_chat(self, messages: Any, listeners: Sequence[Any], **options: Any) -> Any:
        if options.get("tools"):
            options["tool_choice"] = "required"
        return self._llm.submit_chat(messages, listeners, **options)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ollama.Client]:
    """A server of a small random model with Qwen3's template."""
    path = tiny.write("tiny-qwen3", "Q8_0", tmp_path_factory.mktemp("model"))
    with (
        load(path, device="cpu", threads=1, context=2048) as llm,
        serving([ServedModel("qwen", Caller(llm))]) as url,  # type: ignore[arg-type]
    ):
        yield ollama.Client(url)


def test_chat(client: ollama.Client, mini: LLM) -> None:
    expected = mini.chat(MESSAGES, max_tokens=12, seed=7)
    answer = client.chat(MODEL, MESSAGES, options=OPTIONS)
    assert (answer.message.role, answer.message.content) == ("assistant", expected.content)
    assert (answer.done, answer.done_reason, answer.eval_count) == (True, "length", 12)
    assert answer.prompt_eval_count == expected.usage.prompt and answer.total_duration
    assert answer.message.tool_calls is None and answer.message.thinking is None


def test_a_conversation_goes_on(client: ollama.Client) -> None:
    first = client.chat(MODEL, MESSAGES, options=OPTIONS)
    more = [*MESSAGES, first.message, {"role": "user", "content": "And then?"}]
    assert client.chat(MODEL, more, options=OPTIONS).message.content


def test_stream(client: ollama.Client, mini: LLM) -> None:
    *parts, last = client.chat(MODEL, MESSAGES, options=OPTIONS, stream=True)
    expected = mini.chat(MESSAGES, max_tokens=12, seed=7).content
    assert "".join(part.message.content or "" for part in parts) == expected
    assert not any(part.done for part in parts) and last.done and last.done_reason == "length"
    assert last.eval_duration and last.prompt_eval_duration


def test_asyncio(url: str, mini: LLM) -> None:
    async def story() -> str:
        parts = await ollama.AsyncClient(url).chat(MODEL, MESSAGES, options=OPTIONS, stream=True)
        return "".join([part.message.content or "" async for part in parts])

    assert asyncio.run(story()) == mini.chat(MESSAGES, max_tokens=12, seed=7).content


def test_generate(client: ollama.Client, mini: LLM) -> None:
    answer = client.generate(MODEL, MESSAGES[0]["content"], options=OPTIONS)
    assert answer.response == mini.chat(MESSAGES, max_tokens=12, seed=7).content
    parts = [*client.generate(MODEL, "Once upon a time", raw=True, options=OPTIONS, stream=True)]
    expected = mini.generate("Once upon a time", max_tokens=12, seed=7).text
    assert "".join(part.response or "" for part in parts) == expected


def test_stop_strings(client: ollama.Client) -> None:
    whole = client.chat(MODEL, MESSAGES, options=OPTIONS).message.content or ""
    word = whole.split()[3]
    cut = client.chat(MODEL, MESSAGES, options={**OPTIONS, "stop": [word]})
    assert cut.message.content == whole.partition(word)[0] and cut.done_reason == "stop"


def test_logprobs(client: ollama.Client) -> None:
    answer = client.chat(MODEL, MESSAGES, options=OPTIONS, logprobs=True, top_logprobs=3)
    assert answer.logprobs is not None and len(answer.logprobs) == 12
    assert all(len(each.top_logprobs or ()) == 3 and each.logprob <= 0 for each in answer.logprobs)
    parts = client.chat(MODEL, MESSAGES, options=OPTIONS, logprobs=True, stream=True)
    assert sum(len(part.logprobs or ()) for part in parts) == 12


SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["age"],
    "additionalProperties": False,
}


def test_a_format(client: ollama.Client) -> None:
    options = {"num_predict": 40, "seed": 7}
    texts = [
        client.chat(MODEL, MESSAGES, format=SCHEMA, options=options).message.content,
        client.generate(MODEL, "How old is the fox?", format=SCHEMA, options=options).response,
        client.generate(MODEL, "How old is the fox?", format=SCHEMA, raw=True, options=options).response,
    ]
    for text in texts:
        jsonschema.validate(json.loads(text or ""), SCHEMA)
    answer = client.chat(MODEL, MESSAGES, format="json", options=OPTIONS).message.content or ""
    assert answer.startswith("{")


def weather(city: str, days: int) -> str:
    """The weather of a city.

    Args:
        city: its name
        days: from now
    """
    return f"{city}: sun for {days} days"


SHORT = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 6},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize("stream", [False, True])
def test_tools_there_and_back(qwen: ollama.Client, stream: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": "How is the weather in Köln?"}]
    body = {"model": "qwen", "messages": messages, "tools": [SHORT], "think": False}
    options = {"num_predict": 600, "seed": 3, "temperature": 0.5}
    # The package's own type of a tool drops maxLength, without which a random model finds no end.
    parts = [
        ollama.ChatResponse(**json.loads(line))
        for line in qwen._client.post(
            "/api/chat", json={**body, "options": options, "stream": stream}
        ).text.splitlines()
    ]
    calls = [call for part in parts for call in part.message.tool_calls or ()]
    assert calls and parts[-1].done_reason == "stop"
    for call in calls:
        assert call.function.name == "weather"
        assert isinstance(call.function.arguments["city"], str)
        assert isinstance(call.function.arguments["days"], int)
    messages += [
        ollama.Message(role="assistant", tool_calls=calls),
        ollama.Message(role="tool", tool_name="weather", content=weather(**calls[0].function.arguments)),
    ]
    assert qwen.chat("qwen", messages, options={"num_predict": 4}).eval_count


def test_python_functions_are_tools(qwen: ollama.Client) -> None:
    messages = [{"role": "user", "content": "How is the weather in Köln?"}]
    answer = qwen.chat("qwen", messages, tools=[weather], options={"num_predict": 8}, think=False)
    assert answer.done_reason == "length" and not answer.message.tool_calls


def test_thinking_on_and_off(qwen: ollama.Client) -> None:
    why = {"role": "user", "content": "Why?"}
    begun = [why, ollama.Message(role="assistant", thinking="Well,")]  # or the random model would not begin
    options = {"num_predict": 12, "seed": 3}
    thought = qwen.chat("qwen", begun, think=True, options=options).message
    assert thought.thinking and not thought.content
    parts = [*qwen.chat("qwen", begun, think="high", options=options, stream=True)]
    assert "".join(part.message.thinking or "" for part in parts) == thought.thinking
    plain = qwen.chat("qwen", [why], think=False, options=options).message
    assert plain.content and plain.thinking is None
    assert qwen.generate("qwen", "Why?", think=True, options=options).eval_count
    assert qwen.show("qwen").capabilities == ["completion", "tools", "thinking"]


def test_embeddings(client: ollama.Client, mini: LLM) -> None:
    texts = ["a fox", "a boat"]
    found = client.embed(MODEL, texts)
    rows = mini.embed(texts)
    assert [[*row] for row in found.embeddings] == [pytest.approx(row, abs=1e-6) for row in rows.tolist()]
    assert found.prompt_eval_count == sum(len(mini.tokenizer.encode(text)) for text in texts)
    assert len(client.embed(MODEL, "a fox").embeddings) == 1
    raw = client.embeddings(MODEL, "a fox").embedding
    assert [*raw] == pytest.approx(mini.embed("a fox", normalize=False).tolist(), abs=1e-4)


def test_which_models_there_are(client: ollama.Client, mini: LLM) -> None:
    if mini.checkpoint.path != box.FILE:
        pytest.skip("its facts are those of olivine-mini")
    (model,) = client.list().models
    assert model.model == MODEL and model.size == 15_275_456 and model.details
    assert (model.details.format, model.details.family) == ("gguf", "gemma4")
    assert (model.details.parameter_size, model.details.quantization_level) == ("14.02M", "Q8_0")
    (running,) = client.ps().models
    assert (running.name, running.context_length, running.size_vram) == (MODEL, 2048, 0)
    assert running.digest == model.digest and running.expires_at
    shown = client.show(MODEL)
    assert shown.modelinfo and shown.modelinfo["gemma4.context_length"] == 2048
    assert shown.capabilities == ["completion"] and shown.parameters == "num_ctx 2048"
    assert shown.template and "<|turn>" in shown.template


def test_names_may_have_a_tag(client: ollama.Client) -> None:
    name = f"{MODEL}:latest"
    assert client.chat(name, MESSAGES, options={"num_predict": 1}).model == name
    assert client.pull(MODEL).status == "success"
    assert [part.status for part in client.pull(MODEL, stream=True)][-1] == "success"


@pytest.mark.parametrize("stream", [False, True])
def test_errors(client: ollama.Client, stream: bool) -> None:
    with pytest.raises(ollama.ResponseError) as error:
        found = client.chat("llama3", MESSAGES, stream=stream)
        _ = [*found] if stream else None
    assert error.value.status_code == 404
    assert error.value.error == "there is no model 'llama3'; nearest: olivine-mini"
    with pytest.raises(ollama.ResponseError, match="text only"):
        client.chat(MODEL, [{"role": "user", "content": "What is this?", "images": [b"an image"]}])
    with pytest.raises(ollama.ResponseError, match="deleted over HTTP"):
        client.delete(MODEL)


def test_leaving_a_stream_ends_its_request(client: ollama.Client, mini: LLM) -> None:
    for part in client.chat(MODEL, MESSAGES, options={"num_predict": -1}, stream=True):
        if part.message.content:
            break
    eventually(lambda: mini.stats().running == 0)
