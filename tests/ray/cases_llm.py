"""Olivine behind Ray Serve LLM's interface for engines, against the model asked directly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from io import BytesIO
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from ray.llm._internal.serve.core.configs.openai_api_models import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    CompletionRequest,
    CompletionResponse,
    DetokenizeRequest,
    EmbeddingCompletionRequest,
    ErrorResponse,
    ScoreRequest,
    TokenizeChatRequest,
    TokenizeCompletionRequest,
    TranscriptionRequest,
)
from ray.llm._internal.serve.core.protocol import RawRequestInfo
from ray.serve.llm import LLMConfig
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartParser

import olivine
from olivine.errors import RequestError
from olivine.ray.llm import OlivineEngine, OlivineServer, _form

if TYPE_CHECKING:
    from oracles.ray_cluster import RayCluster

LONG = 240.0
MESSAGES = [{"role": "user", "content": "Tell me about a fox who had a boat"}]
ASKED: dict[str, Any] = {"model": "mini", "messages": MESSAGES, "max_tokens": 12, "temperature": 0}


def configuration(**options: Any) -> Any:
    fields = {"engine_kwargs": {"threads": 1, "context": 512}, **options}
    source = {"model_id": "mini", "model_source": "olivine-mini"}
    return LLMConfig(model_loading_config=source, server_cls=OlivineServer, **fields)


class Engine:
    """An engine and its event loop, for tests that wait."""

    def __init__(self, config: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.engine = OlivineEngine(config)
        self.wait(self.engine.start())

    def wait(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, LONG))

    def all(self, generator: AsyncGenerator[Any, None]) -> list[Any]:
        async def read() -> list[Any]:
            return [each async for each in generator]

        found: list[Any] = self.wait(read())
        return found

    def one(self, generator: AsyncGenerator[Any, None]) -> Any:
        (found,) = self.all(generator)
        return found


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    found = Engine(configuration())
    yield found
    found.wait(found.engine.shutdown())


@pytest.fixture(scope="module")
def llm() -> Iterator[olivine.LLM]:
    with olivine.load("olivine-mini", context=512, threads=1) as found:
        yield found


def test_a_chat_is_the_models_own_answer(engine: Engine, llm: olivine.LLM) -> None:
    found = engine.one(engine.engine.chat(ChatCompletionRequest(**ASKED), RawRequestInfo()))
    wanted = llm.chat(MESSAGES, max_tokens=12, temperature=0)
    assert isinstance(found, ChatCompletionResponse)
    assert found.choices[0]["message"]["content"] == wanted.content
    assert found.usage["completion_tokens"] == 12 and found.model == "mini"


def test_a_stream_is_of_events_and_ends(engine: Engine, llm: olivine.LLM) -> None:
    events = engine.all(engine.engine.chat(ChatCompletionRequest(**ASKED, stream=True)))
    assert all(each.startswith("data: ") and each.endswith("\n\n") for each in events)
    *parts, last = [each.removeprefix("data: ").strip() for each in events]
    assert last == "[DONE]" and len(parts) > 3
    deltas = [json.loads(each)["choices"][0]["delta"].get("content") or "" for each in parts]
    assert "".join(deltas) == llm.chat(MESSAGES, max_tokens=12, temperature=0).content


def test_what_a_client_did_not_give_is_the_models_default(engine: Engine) -> None:
    """vLLM's classes have defaults of their own, as here a temperature of 1."""
    asked = {name: value for name, value in ASKED.items() if name != "temperature"}
    found = [
        engine.one(engine.engine.chat(ChatCompletionRequest(**given, seed=1)))
        for given in (asked, {**asked, "temperature": None}, {**asked, "temperature": 1.9})
    ]
    first, default, other = (each.choices[0]["message"]["content"] for each in found)
    assert first == default != other


def test_a_completion(engine: Engine, llm: olivine.LLM) -> None:
    request = CompletionRequest(model="mini", prompt="Once upon", max_tokens=9, temperature=0)
    found = engine.one(engine.engine.completions(request))
    assert isinstance(found, CompletionResponse)
    assert found.choices[0]["text"] == llm.generate("Once upon", max_tokens=9, temperature=0).text


def test_embeddings(engine: Engine, llm: olivine.LLM) -> None:
    found = engine.one(engine.engine.embeddings(EmbeddingCompletionRequest(model="mini", input="a fox")))
    assert found.data[0]["embedding"] == pytest.approx(llm.embed("a fox").tolist(), abs=1e-6)


def test_tokens_and_their_text(engine: Engine, llm: olivine.LLM) -> None:
    ask, text = engine.engine.tokenize, "Once upon a time"
    found = engine.one(ask(TokenizeCompletionRequest(prompt=text)))
    assert found.tokens == llm.tokenizer.encode(text, add_special=True)
    assert (found.count, found.max_model_len, found.token_strs) == (len(found.tokens), 512, None)
    plain = TokenizeCompletionRequest(prompt=text, add_special_tokens=False, return_token_strs=True)
    found = engine.one(ask(plain))
    assert found.tokens == llm.tokenizer.encode(text, add_special=False) and "".join(found.token_strs) == text
    found = engine.one(ask(TokenizeChatRequest(messages=MESSAGES, add_generation_prompt=True)))
    assert found.tokens == llm.tokenizer.encode(llm.render(MESSAGES), add_special=False, parse_special=True)
    back = engine.one(engine.engine.detokenize(DetokenizeRequest(tokens=found.tokens)))
    assert back.prompt == llm.render(MESSAGES)
    found = engine.one(ask(TokenizeChatRequest(messages=MESSAGES, add_generation_prompt=False)))
    assert found.error.code == 400 and found.error.param == "add_generation_prompt"


@pytest.mark.parametrize(
    ("given", "code", "word"),
    [
        ({"temperature": -3}, 400, "temperature"),
        ({"model": "another"}, 404, "another"),
        ({"max_tokens": "x"}, 400, "max"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_error_is_told(engine: Engine, given: dict[str, Any], code: int, word: str, stream: bool) -> None:
    found = engine.one(engine.engine.chat(ChatCompletionRequest(**{**ASKED, **given}, stream=stream)))
    assert isinstance(found, ErrorResponse)
    assert found.error.code == code and word in found.error.message


def test_what_no_model_here_can_do_is_told(engine: Engine) -> None:
    sound = UploadFile(BytesIO(b"RIFF" + bytes(60)), filename="a.wav")
    found = engine.one(engine.engine.transcriptions(TranscriptionRequest(model="mini", file=sound)))
    assert found.error.code == 400 and "hear" in found.error.message
    found = engine.one(engine.engine.score(ScoreRequest()))
    assert found.error.code == 400 and "score" in found.error.message
    long = TokenizeCompletionRequest(prompt="x" * (1 << 22) + "x")
    assert engine.one(engine.engine.tokenize(long)).error.code == 400
    assert engine.one(engine.engine.detokenize(DetokenizeRequest(tokens=[1 << 30]))).error.code == 400
    with pytest.raises(RequestError, match="LoRA"):
        engine.wait(engine.engine.resolve_lora(None))
    for unknown in (engine.engine.sleep, engine.engine.pause):
        with pytest.raises(NotImplementedError):
            engine.wait(unknown())


def test_a_form_is_read_as_it_was_written(engine: Engine) -> None:
    file = bytes(range(256)) + b"\r\n--"
    body, kind = _form({"language": "de", "temperature": 0.5, "timestamp_granularities": ["segment"]}, file)

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    form = engine.wait(MultiPartParser(Headers({"content-type": kind}), stream()).parse())
    assert engine.wait(form["file"].read()) == file
    assert {name: form[name] for name in form if name != "file"} == {
        "language": "de",
        "temperature": "0.5",
        "timestamp_granularities[]": "segment",
    }


def test_health_and_the_prefix_cache(engine: Engine) -> None:
    engine.wait(engine.engine.check_health())
    assert engine.engine.routing_stats() == {}
    long = {**ASKED, "messages": [{"role": "user", "content": "a fox and a boat " * 20}]}

    def cached() -> int:
        found = engine.one(engine.engine.chat(ChatCompletionRequest(**long)))
        return int(found.usage["prompt_tokens_details"]["cached_tokens"])

    assert cached() == 0 < cached()
    engine.wait(engine.engine.reset_prefix_cache())
    assert cached() == 0 < cached()


def test_a_client_that_leaves_ends_its_answer(engine: Engine) -> None:
    stats = engine.engine._hosted.model.llm.stats

    async def leave() -> None:
        asked = ChatCompletionRequest(**{**ASKED, "max_tokens": 400}, ignore_eos=True, stream=True)
        async with aclosing(engine.engine.chat(asked)) as events:
            await anext(events)
            assert stats().running == 1
        while stats().running:
            await asyncio.sleep(0.01)

    engine.wait(leave())


def test_keys_of_clients_are_checked() -> None:
    engine = Engine(configuration(engine_kwargs={"threads": 1, "context": 512, "api_keys": ["secret"]}))
    try:
        request = ChatCompletionRequest(**ASKED)
        assert engine.one(engine.engine.chat(request, RawRequestInfo())).error.code == 401
        known = RawRequestInfo(headers={"Authorization": "Bearer secret"})
        assert isinstance(engine.one(engine.engine.chat(request, known)), ChatCompletionResponse)
    finally:
        engine.wait(engine.engine.shutdown())


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"engine_kwargs": {"contxt": 3}}, "contxt"),
        ({"engine_kwargs": {"replicas": 2}}, "num_replicas"),
        ({"lora_config": {}}, "adapters"),
        ({"placement_group_config": {"bundles": [{"CPU": 1}]}}, "engine_kwargs say"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises((RequestError, TypeError), match=word):
        OlivineServer.get_deployment_options(configuration(**options))


def test_options_of_the_deployment() -> None:
    kwargs = {"threads": 2, "tensor_parallel": 2, "sequences": 4, "queue": 10}
    given = {"num_replicas": 3, "ray_actor_options": {"resources": {"fast": 1}}}
    found = OlivineServer.get_deployment_options(
        configuration(engine_kwargs=kwargs, deployment_config=given, runtime_env={"env_vars": {"A": "1"}})
    )
    assert found["num_replicas"] == 3 and found["max_ongoing_requests"] > 14
    assert found["placement_group_bundles"] == [{"CPU": 2.0}] * 2
    actor = found["ray_actor_options"]
    assert (actor["num_cpus"], actor["resources"]) == (2.0, {"fast": 1})
    assert actor["runtime_env"] == {"env_vars": {"A": "1"}}
    found = OlivineServer.get_deployment_options(configuration(accelerator_type="H100"))
    assert found["ray_actor_options"]["accelerator_type"] == "H100"


@pytest.mark.exhaustive
def test_through_ray_serve_llm(cluster: RayCluster, llm: olivine.LLM) -> None:
    """`build_openai_app` with its own ingress."""
    import fastapi
    from ray import serve
    from ray.serve.llm import build_openai_app

    pytest.importorskip("pyarrow.json", reason="Ray Serve LLM needs pyarrow: pip install pyarrow")
    if tuple(map(int, fastapi.__version__.split(".")[:2])) >= (0, 137):
        pytest.skip(
            "the ingress of Ray 2.60 loses its routes with FastAPI 0.137: pip install 'fastapi<0.137'"
        )
    one = {"autoscaling_config": {"min_replicas": 1, "max_replicas": 1}}
    ingress = {**one, "ray_actor_options": {"num_cpus": 0}}
    app = {"llm_configs": [configuration(deployment_config=one)], "ingress_deployment_config": ingress}
    serve.run(build_openai_app(app), name="llm", route_prefix="/")

    def post(path: str, **body: Any) -> httpx.Response:
        return httpx.post(cluster.url + path, json={"model": "mini", **body}, timeout=LONG)

    wanted = llm.chat(MESSAGES, max_tokens=12, temperature=0).content
    found = post("/v1/chat/completions", **ASKED).json()
    assert found["choices"][0]["message"]["content"] == wanted
    streamed = post("/v1/chat/completions", **ASKED, stream=True).text
    events = [each.removeprefix("data: ") for each in streamed.split("\n\n") if each]
    assert events.pop() == "[DONE]"
    assert "".join(json.loads(each)["choices"][0]["delta"].get("content") or "" for each in events) == wanted
    assert post("/v1/chat/completions", **{**ASKED, "temperature": -3}).status_code == 400
    assert post("/tokenize", prompt="Once").json()["tokens"] == llm.tokenizer.encode("Once", add_special=True)
    assert len(post("/v1/embeddings", input="a fox").json()["data"]) == 1
    assert httpx.get(f"{cluster.url}/v1/models", timeout=LONG).json()["data"][0]["id"] == "mini"
