"""Broken and hostile media in Python: what another thread streams is what it streams alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, cycle
from typing import Any

import pytest

from media.mutants import mutants
from media.test_hostile import bombs
from olivine.errors import MediaError
from olivine.llm import LLM, load
from oracles import multimodal

OPTIONS: Any = {"max_tokens": 60, "ignore_eos": True, "temperature": 0.9, "seed": 7, "logprobs": 1}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = multimodal.write("gemma4-e2b", tmp_path_factory.mktemp("hearing"))
    with load(folder, device="cpu", threads=1, context=1200) as llm:
        yield llm


def streamed(llm: LLM) -> list[tuple[int, float]]:
    pieces = list(llm.stream("once", **OPTIONS))
    return [(each.token, each.logprob) for piece in pieces for each in piece.logprobs or ()]


def test_hostile_media_change_nothing_for_others(llm: LLM) -> None:
    quiet = streamed(llm)
    assert len(quiet) == 60
    over = threading.Event()

    def look(kind: str, files: Iterator[bytes]) -> int:
        refused = 0
        for content in files:
            try:
                llm.chat(
                    [{"role": "user", "content": [{"type": kind, kind: content}, "what?"]}], max_tokens=1
                )
            except MediaError as error:
                assert error.code == f"invalid_{kind}"
                refused += 1
            if over.is_set() and refused:
                break
        return refused

    def listen(files: Iterator[bytes]) -> int:
        refused = 0
        for content in files:
            try:
                llm.transcribe(content, max_tokens=1)
            except MediaError:
                refused += 1
            if over.is_set() and refused:
                break
        return refused

    def endless(kind: Any, seed: int) -> Iterator[bytes]:
        return (content for i in count() for _, content in mutants(kind, 50, seed + i))

    with ThreadPoolExecutor(4) as pool:
        attacks = [
            pool.submit(look, "image", endless("image", 1)),
            pool.submit(look, "image", cycle(bombs().values())),
            pool.submit(look, "audio", endless("audio", 2)),
            pool.submit(listen, endless("audio", 3)),
        ]
        try:
            for _ in range(3):
                assert streamed(llm) == quiet
        finally:
            over.set()
        assert all(each.result() for each in attacks)
    assert streamed(llm) == quiet
