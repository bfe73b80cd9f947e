"""What an LLM does to the process that it lives in: locks, threads, memory, forks and files."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import olivine
from olivine import LLM, RequestError
from oracles import tiny

CONTEXT = 256


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write("tiny-qwen3", "Q8_0", tmp_path_factory.mktemp("models"))


@pytest.fixture
def llm(file: Path) -> Iterator[LLM]:
    with olivine.load(file, device="cpu", context=CONTEXT, threads=2) as llm:
        yield llm


# ---- long prompts

LONG = "A prompt without end. " * 20_000
ASKS: dict[str, Callable[[LLM], Any]] = {
    "generate": lambda llm: llm.generate(LONG),
    "generate_many": lambda llm: llm.generate_many(["short", LONG]),
    "stream": lambda llm: llm.stream(LONG),
    "chat": lambda llm: llm.chat(LONG),
    "chat with special tokens": lambda llm: llm.chat(LONG + "<|im_end|>"),
    "stream_chat": lambda llm: llm.stream_chat([{"role": "user", "content": LONG}]),
    "embed": lambda llm: llm.embed(LONG),
    "score": lambda llm: llm.score(LONG, "x"),
    "score's continuation": lambda llm: llm.score("x", LONG),
    "agenerate": lambda llm: asyncio.run(llm.agenerate(LONG)),
    "achat": lambda llm: asyncio.run(llm.achat(LONG)),
    "aembed": lambda llm: asyncio.run(llm.aembed(LONG)),
    "ascore": lambda llm: asyncio.run(llm.ascore("x", LONG)),
}


@pytest.mark.parametrize("ask", ASKS)
def test_a_prompt_that_cannot_fit_is_refused_before_it_is_encoded(
    llm: LLM, ask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = llm.tokenizer._plain

    def watched(text: str) -> list[int]:
        assert len(text) < 1000
        return encoder(text)

    monkeypatch.setattr(llm.tokenizer, "_plain", watched)
    monkeypatch.setattr(llm.tokenizer, "_parsed", watched)
    with pytest.raises(RequestError, match="context holds 256"):
        ASKS[ask](llm)


def test_a_tokenizer_itself_has_no_limit(llm: LLM) -> None:
    assert len(llm.tokenizer.encode(LONG)) > 20_000


@pytest.mark.parametrize("kind", ["astream", "astream_chat"])
def test_prompts_are_encoded_off_the_event_loop_and_cancelled_there(
    llm: LLM, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that is cancelled while its prompt is encoded leaves no request behind."""
    inside, go_on = threading.Event(), threading.Event()
    encode = llm.tokenizer._run
    llm.chat("x", max_tokens=1)

    def slow(text: str, parse: bool) -> list[int]:
        inside.set()
        assert go_on.wait(20)
        return encode(text, parse)

    async def read() -> None:
        async for _ in getattr(llm, kind)("a prompt", ignore_eos=True, max_tokens=200):
            raise AssertionError("nobody wanted this")

    async def main() -> None:
        task = asyncio.create_task(read())
        while not inside.is_set():  # the loop runs while the prompt is encoded
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()

    monkeypatch.setattr(llm.tokenizer, "_run", slow)
    cancelled = []
    cancel = llm._engine._cancel
    monkeypatch.setattr(llm._engine, "_cancel", lambda run: (cancelled.append(run), cancel(run)))
    asyncio.run(main())
    assert len(cancelled) == 1
