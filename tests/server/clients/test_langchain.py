"""`langchain-openai` against a server on olivine-mini."""

from __future__ import annotations

from typing import Any, Literal

import openai
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from olivine.llm import LLM

MODEL = "olivine-mini"
QUESTION = "Tell me a story about a fox."


class Day(BaseModel):
    model_config = ConfigDict(extra="forbid")

    weather: Literal["rain", "sun"]
    degrees: int = Field(ge=0, le=40)


@tool
def forecast(weather: Literal["rain", "sun"]) -> str:
    """Tells the weather."""
    return weather


def chat(url: str, **options: Any) -> ChatOpenAI:
    given = {"max_tokens": 12, "seed": 7, "max_retries": 0, "timeout": 60, **options}
    return ChatOpenAI(base_url=f"{url}/v1", api_key=SecretStr("none"), model=MODEL, **given)


def test_an_answer_and_its_stream(url: str, mini: LLM) -> None:
    model = chat(url, stream_usage=True)
    expected = mini.chat(QUESTION, max_tokens=12, seed=7)
    got = model.invoke(QUESTION)
    assert got.content == expected.content
    assert got.response_metadata["finish_reason"] == "length"
    chunks = list(model.stream(QUESTION))
    assert "".join(str(chunk.content) for chunk in chunks) == expected.content
    assert any((chunk.usage_metadata or {}).get("output_tokens") == 12 for chunk in chunks)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_tool_goes_round(url: str, streaming: bool) -> None:
    """In a stream LangChain joins what deltas have, so a name must come once."""
    model = chat(url, max_tokens=150)
    bound = model.bind_tools([forecast], tool_choice="forecast", strict=True)  # nothing but its arguments
    got: Any = None
    if streaming:
        for chunk in bound.stream(QUESTION):
            got = chunk if got is None else got + chunk
    else:
        got = bound.invoke(QUESTION)
    (call,) = got.tool_calls
    assert call["name"] == "forecast"
    result = forecast.invoke(call["args"])
    history = [HumanMessage(QUESTION), got, ToolMessage(result, tool_call_id=call["id"])]
    assert chat(url).bind_tools([forecast], tool_choice="none").invoke(history).content


def test_structured_output(url: str) -> None:
    assert isinstance(chat(url, max_tokens=150).with_structured_output(Day).invoke(QUESTION), Day)


def test_embeddings_need_the_models_own_tokens(url: str, mini: LLM) -> None:
    given: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": "none", "model": MODEL, "max_retries": 0}
    right = OpenAIEmbeddings(**given, check_embedding_ctx_length=False)
    assert right.embed_query("a fox") == pytest.approx(mini.embed("a fox").tolist(), abs=1e-3)


def test_errors_have_their_classes(url: str) -> None:
    with pytest.raises(openai.BadRequestError, match="the context holds"):
        chat(url).invoke("fox " * 9000)
    with pytest.raises(openai.NotFoundError):
        ChatOpenAI(base_url=url, api_key=SecretStr("none"), model="gpt-9", max_retries=0).invoke("Hi")
