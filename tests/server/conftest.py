"""One server on olivine-mini for all tests that need nothing else, and one on a small model that hears."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from olivine.llm import LLM, load
from olivine.server.models import ServedModel
from olivine.server.settings import Settings
from oracles.gate import Gate, gate_of
from oracles.serving import serving

# `make test-clients` runs the suites of clients on another model too, under the same name.
SERVED = os.environ.get("OLIVINE_TEST_SERVED", "olivine-mini")


@pytest.fixture(scope="session")
def mini() -> Iterator[LLM]:
    with load(SERVED, device="cpu", threads=1) as llm:
        yield llm


@pytest.fixture(scope="session")
def url(mini: LLM) -> Iterator[str]:
    """The URL of a server that serves olivine-mini."""
    with serving([ServedModel("olivine-mini", mini)]) as url:
        yield url


@pytest.fixture
def gate(mini: LLM, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Holds the engine of olivine-mini."""
    gate = gate_of(mini.program, monkeypatch)
    yield gate
    gate.open()


@pytest.fixture(scope="session")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A small random model that sees and hears."""
    from oracles import multimodal  # torch and transformers take a while

    folder = multimodal.write("gemma4-e2b", tmp_path_factory.mktemp("hearing"))
    with load(folder, device="cpu", threads=1, context=2000) as llm:
        yield llm


@pytest.fixture(scope="session")
def heard(hearing: LLM) -> Iterator[str]:
    """The URL of a server that serves it."""
    with serving([ServedModel("m", hearing)], Settings(max_body=1 << 20)) as url:
        yield url
