"""An answer taken apart while it comes: content, reasoning, tool calls."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import olivine
from olivine import LLM
from olivine.backends import TokenLogprobs
from olivine.chat.parsers import FORMATS
from olivine.conversation import ChatRequest
from olivine.engine import Ticket, Update
from olivine.reply import ChatConsumer, Delta, Reply
from olivine.token_stream import TokenStream
from oracles import tiny

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln 🙂"}}\n</tool_call>'


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = tiny.write("tiny-qwen3", "Q8_0", tmp_path_factory.mktemp("model"))
    with olivine.load(path, device="cpu", threads=1, context=2048) as llm:
        yield llm


def reader(llm: LLM, request: ChatRequest, stop: list[str] | None = None) -> TokenStream[Delta, Reply]:
    consumer = ChatConsumer(llm.conversations, request, stop or ())
    return TokenStream(Ticket(lambda reason: None), llm.tokenizer, consumer)


def answer(
    llm: LLM, text: str, size: int, stop: list[str] | None = None, *, parallel: bool = True
) -> list[Delta]:
    """The deltas of an answer whose tokens come in updates of a size."""
    stream = reader(llm, llm.conversations.prepare("Hi", tools=TOOLS, parallel_tool_calls=parallel), stop)
    tokens = llm.tokenizer.encode(text, add_special=False)
    deltas = []
    for i in range(0, len(tokens), size):
        deltas.append(stream.feed(Update(tokens=tokens[i : i + size])))
        if stream.result is not None:
            return deltas
    return [*deltas, stream.feed(Update(finish="stop"))]


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_thoughts_text_and_calls_are_told_apart(llm: LLM, size: int) -> None:
    deltas = answer(llm, f"<think>\nhm 🙂\n</think>\n\nI see.\n{CALL}\n{CALL}", size)
    reply = deltas[-1].reply
    assert reply is not None
    assert (reply.reasoning, reply.content, reply.finish_reason) == ("hm 🙂", "I see.", "tool_calls")
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [
        ("weather", '{"city": "Köln 🙂"}')
    ] * 2
    assert reply.tool_calls[0].id != reply.tool_calls[1].id
    assert "".join(delta.content for delta in deltas) == "I see."
    assert {piece.index for delta in deltas for piece in delta.tool_calls} == {0, 1}
    assert 0 < reply.reasoning_tokens < len(reply.tokens)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_log_probabilities_say_which_tokens_are_of_a_thought(llm: LLM, size: int) -> None:
    request = llm.conversations.prepare("Hi")
    stream = TokenStream(
        Ticket(lambda reason: None), llm.tokenizer, ChatConsumer(llm.conversations, request), logprobs=True
    )
    thought = llm.tokenizer.encode("<think>\nhm 🙂\n</think>", add_special=False)
    tokens = [*thought, *llm.tokenizer.encode("\n\nI see.", add_special=False)]
    deltas = []
    for i in range(0, len(tokens), size):
        some = tokens[i : i + size]
        deltas.append(stream.feed(Update(tokens=some, logprobs=[TokenLogprobs(-0.5, [], [])] * len(some))))
    reply = stream.feed(Update(finish="stop")).reply
    assert reply is not None and reply.logprobs is not None
    assert [each.thought for each in reply.logprobs] == [i < len(thought) for i in range(len(tokens))]
    assert [each for delta in deltas for each in delta.logprobs or ()] == reply.logprobs


def test_an_answer_continues_a_thought(llm: LLM) -> None:
    question: dict[str, Any] = {"role": "user", "content": "Hi"}
    messages = [question, {"role": "assistant", "reasoning_content": "First", "content": ""}]
    assert llm.render(messages).endswith("<|im_start|>assistant\n<think>\nFirst")
    tokens = llm.tokenizer.encode(" I look.\n</think>\n\nYes", add_special=False)
    delta = reader(llm, llm.conversations.prepare(messages)).feed(Update(tokens=tokens))
    assert (delta.reasoning, delta.content) == (" I look.", "Yes")


@pytest.mark.parametrize("stop", ["\n", "\n\n", " a\n", "a\n\n"])
def test_white_space_ends_the_answer_with_its_token(llm: LLM, stop: str) -> None:
    """It is held back, for it may be layout, but no further token is needed."""
    stream = reader(llm, llm.conversations.prepare("Hi", tools=TOOLS), [stop])
    text = f"<think>{stop}</think>Has {stop}".replace("Has  ", "Has ")
    tokens = llm.tokenizer.encode_rendered(text)
    deltas = [stream.feed(Update(tokens=[token])) for token in tokens]
    assert [delta.reply for delta in deltas[:-1]] == [None] * (len(tokens) - 1)
    reply = deltas[-1].reply
    assert reply is not None and (reply.finish_reason, reply.stop_string) == ("stop", stop)
    assert reply.content == text.rpartition("</think>")[2].partition(stop)[0]
    assert "".join(delta.content for delta in deltas) == reply.content


@pytest.mark.parametrize("stop", ["\n\n", " \n", "see. \n", "see. \n\n"])
@pytest.mark.parametrize(
    ("format", "before", "call"),
    [
        ("hermes", "", CALL),
        ("hermes", "", '```json\n{"name": "weather", "arguments": {}}\n```'),
        ("json", "<think>hm</think>", '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'),
        ("mistral", "", '[TOOL_CALLS]weather[ARGS]{"city": "Rome"}'),
        ("granite-responding", "<response>", "</response>\n<|tool_call|>[]"),
    ],
)
def test_white_space_before_a_marker_ends_the_answer_however_it_comes(
    llm: LLM, format: str, before: str, call: str, stop: str
) -> None:
    """A token may have the white space and the beginning of the marker."""
    conversations: Any = SimpleNamespace(format=FORMATS[format], markers={}, marker_names={})
    request = llm.conversations.prepare("Hi", tools=TOOLS)
    text = f"{before}I see. \n\n{call}"
    cuts = [[text[:i], text[i:]] for i in range(len(text))]
    for pieces in [*cuts, list(text)]:
        consumer = ChatConsumer(conversations, request, [stop])
        assert any(map(consumer.feed, pieces)), pieces
        delta = consumer.piece([], None, 0, None)
        assert (delta.content, delta.tool_calls) == ("I see. \n\n".partition(stop)[0], []), pieces


@pytest.mark.parametrize("space", ["\n\n", " \n\n ", "x\n\n"])
def test_white_space_before_bare_calls_ends_the_answer_however_it_comes(llm: LLM, space: str) -> None:
    conversations: Any = SimpleNamespace(format=FORMATS["json"], markers={}, marker_names={})
    request = llm.conversations.prepare("Hi", tools=TOOLS)
    text = space + '{"name": "weather", "arguments": {"city": "Rome"}}'
    for pieces in [*([text[:i], text[i:]] for i in range(len(text))), list(text)]:
        consumer = ChatConsumer(conversations, request, ["\n\n"])
        assert any(map(consumer.feed, pieces)), pieces
        assert consumer.piece([], None, 0, None).content == space.partition("\n\n")[0]


def test_white_space_that_ends_nothing_is_still_layout(llm: LLM) -> None:
    deltas = answer(llm, f"I see.\n{CALL}", 1, stop=["\n\n", "\nx"])
    reply = deltas[-1].reply
    assert reply is not None and (reply.content, len(reply.tool_calls)) == ("I see.", 1)


@pytest.mark.parametrize("size", [1, 2, 1000])
def test_stop_strings_end_the_answer_and_not_the_thought(llm: LLM, size: int) -> None:
    deltas = answer(llm, "<think>one two three</think>one two three", size, stop=["two"])
    reply = deltas[-1].reply
    assert reply is not None
    assert (reply.reasoning, reply.content, reply.finish_reason) == ("one two three", "one ", "stop")
    assert reply.stop_string == "two"


@pytest.mark.parametrize("size", [1, 2, 1000])
def test_an_answer_ends_before_a_second_call_that_it_may_not_make(llm: LLM, size: int) -> None:
    deltas = answer(llm, f"{CALL}\n{CALL}\nand more", size, parallel=False)
    reply = deltas[-1].reply
    assert reply is not None
    assert ([call.name for call in reply.tool_calls], reply.content) == (["weather"], "")
    assert (reply.finish_reason, reply.stop_string) == ("tool_calls", None)


def test_a_stop_string_leaves_the_log_probabilities_of_what_came(llm: LLM) -> None:
    text = llm.chat("Hi", max_tokens=20, temperature=0, think=False).content
    reply = llm.chat("Hi", max_tokens=20, temperature=0, think=False, stop=text[5:8], logprobs=1)
    assert reply.finish_reason == "stop" and reply.logprobs is not None
    assert [each.token for each in reply.logprobs] == reply.tokens


def test_a_conversation_with_tools_goes_round(llm: LLM) -> None:
    reply = answer(llm, CALL, 1)[-1].reply
    assert reply is not None
    call = reply.tool_calls[0]
    messages = [
        {"role": "user", "content": "Hi"},
        reply.message,
        {"role": "tool", "tool_call_id": call.id, "content": "rain"},
    ]
    text = llm.conversations.prepare(messages, tools=TOOLS).prompt.text
    assert f"assistant\n{CALL}<|im_end|>\n<|im_start|>user\n<tool_response>\nrain\n</tool_response>" in text
