"""Small random models with real tokenizers, on both backends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import olivine
from olivine import LLM
from oracles import tiny
from oracles.llms import CONTEXT


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {shape: tiny.write(shape, "Q8_0", folder) for shape in ("tiny-qwen3", "tiny-gemma3")}


@pytest.fixture(scope="module", params=[("tiny-qwen3", "reference"), ("tiny-gemma3", "cpu")], ids=str)
def llm(request: pytest.FixtureRequest, files: dict[str, Path]) -> Iterator[LLM]:
    shape, device = request.param
    with olivine.load(files[shape], device=device, context=CONTEXT, threads=1) as llm:
        yield llm


@pytest.fixture
def fresh(files: dict[str, Path]) -> Iterator[LLM]:
    """One that a test may close or break."""
    with olivine.load(files["tiny-qwen3"], device="reference", context=CONTEXT) as llm:
        yield llm
