"""Many requests of one call, under asyncio: no thread waits for them, and they end with their task."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import olivine
from olivine import LLM, DeadlineError, RequestError
from oracles import tiny
from oracles.waiting import eventually


@pytest.fixture
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = tiny.write("tiny-qwen3", "Q8_0", tmp_path_factory.mktemp("model"))
    with olivine.load(path, device="reference", context=64, sequences=2) as llm:
        yield llm


@pytest.fixture
def go(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Steps wait for it."""
    event, step = threading.Event(), llm.program.step

    def held(batch: Any, *, logits: bool = True) -> Any:
        assert event.wait(120)
        return step(batch, logits=logits)

    monkeypatch.setattr(llm.program, "step", held)
    return event


def under_way(llm: LLM) -> int:
    stats = llm.stats()
    return stats.running + stats.waiting


def all_free(llm: LLM) -> bool:
    return not under_way(llm) and all(pages.free == pages.total for pages in llm.stats().pages)


def test_embeddings_under_asyncio_are_those_of_embed(llm: LLM) -> None:
    texts = [f"text {i}" for i in range(100)]  # more than may be under way
    rows, usage = asyncio.run(llm.aembed(texts, return_usage=True, pooling="last"))
    expected, expected_usage = llm.embed(texts, return_usage=True, pooling="last")
    np.testing.assert_allclose(rows, expected, atol=1e-5)
    assert usage.prompt == expected_usage.prompt
    one = asyncio.run(llm.aembed("x", normalize=False))
    assert one.shape == rows[0].shape
    assert asyncio.run(llm.aembed([])).shape == (0, rows.shape[1])


def test_requests_that_wait_occupy_no_thread(llm: LLM, go: threading.Event) -> None:
    async def many() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        tasks = [asyncio.create_task(llm.aembed(f"text {i}")) for i in range(4)]
        tasks += [asyncio.create_task(llm.ascore("x", "y"))]
        tasks += [asyncio.create_task(llm.agenerate("Hi", max_tokens=1))]
        while under_way(llm) < len(tasks):
            await asyncio.sleep(0.001)
        go.set()
        await asyncio.gather(*tasks)

    asyncio.run(asyncio.wait_for(many(), 120))


def test_a_cancelled_task_ends_its_embeddings(llm: LLM, go: threading.Event) -> None:
    async def give_up() -> None:
        task = asyncio.create_task(llm.aembed(["x", "y", "z"]))
        while under_way(llm) < 3:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    go.set()
    eventually(lambda: all_free(llm))
    assert llm.stats().finished["cancelled"] >= 1  # the step that had begun gave the others their results


def test_one_that_fails_ends_the_others(llm: LLM, go: threading.Event) -> None:
    async def embed() -> None:
        task = asyncio.create_task(llm.aembed(["x"] * 5, timeout=0.01))
        while under_way(llm) < 5 and not task.done():
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)  # their time is up
        go.set()
        with pytest.raises(DeadlineError):
            await task

    asyncio.run(embed())
    eventually(lambda: all_free(llm))
    with pytest.raises(RequestError, match="empty"):
        asyncio.run(llm.aembed(["x", []]))
    eventually(lambda: all_free(llm))
