"""The Python API: many threads, asyncio, and the end."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import olivine
from olivine import LLM, BusyError, OlivineError, RequestError
from oracles.llms import PROMPT, all_free, gate, the_sequence
from oracles.waiting import eventually


def test_many_threads_get_what_each_would_get_alone(llm: LLM) -> None:
    prompts = [PROMPT[: 3 * i + 2] for i in range(12)]

    def text(i: int) -> Any:
        if i % 4 == 3:
            return llm.score(prompts[i], " more").logprob
        return llm.generate(prompts[i], temperature=1.0, seed=i, max_tokens=16).tokens

    alone = [text(i) for i in range(12)]
    with ThreadPoolExecutor(12) as threads:
        together = list(threads.map(text, range(12)))
    for one, other in zip(alone, together, strict=True):
        assert other == (pytest.approx(one, abs=1e-4) if isinstance(one, float) else one)


def test_all_threads_share_the_conversations(fresh: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are the first to ask, all at once."""
    barrier, opened = threading.Barrier(4), []

    def open_slowly(*given: Any) -> Any:
        opened.append(given)
        time.sleep(0.1)  # the others are here by now
        return object()

    def found(_: int) -> Any:
        barrier.wait()
        return fresh.conversations

    monkeypatch.setattr("olivine.conversation.open_conversations", open_slowly)
    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(found, range(4)))) == len(opened) == 1
    del fresh.__dict__["_conversations"]


def test_asyncio_streams_generates_embeds_and_scores(llm: LLM) -> None:
    async def everything() -> tuple[Any, ...]:
        async def streamed() -> list[Any]:
            return [piece async for piece in llm.astream(PROMPT, seed=4, temperature=1.0, max_tokens=10)]

        return await asyncio.gather(
            streamed(),
            llm.agenerate("x", max_tokens=5),
            llm.aembed("x"),
            llm.ascore("x", "y"),
        )

    pieces, completion, embedding, score = asyncio.run(everything())
    whole = llm.generate(PROMPT, seed=4, temperature=1.0, max_tokens=10)
    assert "".join(map(str, pieces)) == whole.text
    assert pieces[-1].completion.tokens == whole.tokens
    assert completion.tokens == llm.generate("x", max_tokens=5).tokens
    assert embedding == pytest.approx(llm.embed("x"), abs=1e-5)
    assert score.logprob == pytest.approx(llm.score("x", "y").logprob, abs=1e-5)


def test_cancelling_an_async_task_frees_everything(fresh: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    go = gate(fresh, monkeypatch)

    async def give_up() -> None:
        task = asyncio.create_task(fresh.agenerate("x", max_tokens=None, ignore_eos=True))
        while not fresh._engine._scheduler.running:
            await asyncio.sleep(0.001)
        run = the_sequence(fresh)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert run.cancelled

    asyncio.run(give_up())
    go.set()
    eventually(lambda: all_free(fresh))


def test_async_errors_are_raised_where_they_are_awaited(llm: LLM) -> None:
    with pytest.raises(RequestError, match="empty"):
        asyncio.run(llm.agenerate([]))
    with pytest.raises(TypeError, match="no option 'tokens'"):
        asyncio.run(llm.agenerate("x", tokens=3))


def test_an_event_loop_that_is_gone_harms_nobody(fresh: LLM) -> None:
    """Its stream was never closed; the engine finds nobody to tell, and goes on with the others."""
    loop = asyncio.new_event_loop()
    pieces = fresh.astream("x", max_tokens=None, ignore_eos=True)
    loop.run_until_complete(anext(pieces))  # type: ignore[arg-type]
    loop.close()
    assert len(fresh.generate("y", max_tokens=20, ignore_eos=True).tokens) == 20
    eventually(lambda: all_free(fresh))
    del pieces


def test_closing_while_somebody_waits_is_a_clear_error_there(
    fresh: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = gate(fresh, monkeypatch)
    heard: list[BaseException] = []

    def wait() -> None:
        try:
            fresh.generate("x", max_tokens=200)
        except BaseException as error:
            heard.append(error)

    waiting = [threading.Thread(target=wait, daemon=True) for _ in range(3)]
    for thread in waiting:
        thread.start()
    eventually(lambda: bool(fresh._engine._scheduler.running))
    closing = threading.Thread(target=fresh.close)
    closing.start()
    eventually(lambda: fresh._engine._inbox.closed)
    go.set()
    for thread in (closing, *waiting):
        thread.join(timeout=240)
    assert len(heard) == 3
    for error in heard:
        assert isinstance(error, OlivineError) and "closed" in str(error)
    with pytest.raises(OlivineError, match="closed"):
        fresh.generate("x")
    fresh.close()


def test_a_context_manager_ends_its_thread(files: dict[str, Path]) -> None:
    with olivine.load(files["tiny-qwen3"], device="reference", context=64) as llm:
        llm.generate("x", max_tokens=1)
        thread = llm._engine._inbox.thread
        assert thread is not None and thread.is_alive()
    assert not thread.is_alive()
    with pytest.raises(OlivineError, match="closed"):
        llm.embed("x")


def test_a_full_queue_is_a_busy_error(fresh: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh._engine._queue = 2
    go = gate(fresh, monkeypatch)
    streams = [fresh.stream("x", max_tokens=1)]
    eventually(lambda: bool(fresh._engine._scheduler.running))
    streams += [fresh.stream("y", max_tokens=1) for _ in range(2)]
    with pytest.raises(BusyError, match="2 requests are waiting already"):
        fresh.stream("z", max_tokens=1)
    go.set()
    assert all(list(stream)[-1].completion is not None for stream in streams)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "there is no device 'tpu'; known: auto, cpu, cuda, reference"),
        ({"threads": 0, "device": "cpu"}, "threads must lie in"),
        ({"sequences": 0}, "sequences must lie in"),
        ({"queue": 0}, "queue must be at least 1, and is 0"),
        ({"queue_per_client": 0.5}, "queue_per_client must be an integer, at least 1, and is 0.5"),
        ({"context": -1}, "context must be 0 \\(the model's own\\) or more, and is -1"),
        ({"kv_bytes": 1000}, "a context of 512 tokens takes 1 MB of KV cache and the budget is 0 MB"),
    ],
)
def test_models_that_cannot_be_opened_as_asked(
    files: dict[str, Path], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OlivineError, match=message):
        olivine.load(files["tiny-qwen3"], **options)
