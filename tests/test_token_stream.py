"""One stream of tokens for every consumer: decoded once, ended once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import olivine
from olivine import LLM
from olivine.completion import TextConsumer
from olivine.engine import Ticket, Update
from olivine.reply import ChatConsumer
from olivine.token_stream import TokenStream
from oracles import tiny


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = tiny.write("tiny-qwen3", "Q8_0", tmp_path_factory.mktemp("model"))
    with olivine.load(path, device="reference", context=256) as llm:
        yield llm


def consumers(llm: LLM) -> list[Any]:
    return [TextConsumer(), ChatConsumer(llm.conversations, llm.conversations.prepare("Hi"))]


def test_each_token_is_decoded_once(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = llm.tokenizer.encode("Hello wörld 🙂, and so on", add_special=False)
    decoded: list[int] = []
    shown = llm.tokenizer._shown_bytes
    monkeypatch.setattr(llm.tokenizer, "_shown_bytes", lambda token: (decoded.append(token), shown(token))[1])
    for consumer in consumers(llm):
        decoded.clear()
        stream: TokenStream[Any, Any] = TokenStream(Ticket(lambda reason: None), llm.tokenizer, consumer)
        stream.feed(Update(tokens=tokens[:4]))
        stream.feed(Update(tokens=tokens[4:], finish="length"))
        assert decoded == tokens
        assert str(stream.result) == "Hello wörld 🙂, and so on"


def test_the_consumer_is_left_once_with_what_was_generated(llm: LLM) -> None:
    tokens = llm.tokenizer.encode("one two three", add_special=False)
    for consumer in consumers(llm):
        for finish, abandoned in (("length", 0), ("length", 2), (None, 1), (None, 2)):
            left: list[list[int]] = []
            consumer.leave = lambda generated, left=left: left.append(list(generated))
            cancelled: list[str] = []
            stream: TokenStream[Any, Any] = TokenStream(Ticket(cancelled.append), llm.tokenizer, consumer)
            stream.feed(Update(tokens=tokens, finish=finish))  # type: ignore[arg-type]
            for _ in range(abandoned):
                stream.abandon()
            assert left == [tokens] and len(cancelled) == abandoned


def test_a_repetition_ends_the_stream_with_its_reason(llm: LLM) -> None:
    token = llm.tokenizer.encode("z", add_special=False)
    for consumer in consumers(llm):
        cancelled: list[str] = []
        ticket = Ticket(cancelled.append)
        stream: TokenStream[Any, Any] = TokenStream(
            ticket, llm.tokenizer, consumer, seed=3, stop_on_repetition=True
        )
        for _ in range(20):
            stream.feed(Update(tokens=token * 32))
            if stream.result is not None:
                break
        assert cancelled == ["repetition"]
        assert (stream.result.finish_reason, stream.result.seed) == ("repetition", 3)
        assert stream.result.usage.completion == len(stream.result.tokens) < 400


@pytest.mark.parametrize("size", [1, 7, 33, 500])
def test_where_a_repetition_ends_does_not_depend_on_how_tokens_arrive(llm: LLM, size: int) -> None:
    """How many come at once depends on the clock: a seed would not give the same text."""
    tokens = [*range(20, 60), *llm.tokenizer.encode("z", add_special=False) * 460]
    for consumer in consumers(llm):
        stream: TokenStream[Any, Any] = TokenStream(
            Ticket(lambda reason: None), llm.tokenizer, consumer, stop_on_repetition=True
        )
        for at in range(0, len(tokens), size):
            last = at + size >= len(tokens)
            stream.feed(Update(tokens=tokens[at : at + size], finish="length" if last else None))
            if stream.result is not None:
                break
        assert stream.result.finish_reason == "repetition" and stream.result.tokens == tokens[:320]
