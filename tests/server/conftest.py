"""One server on olivine-mini for all tests that need nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from olivine.llm import LLM, load
from olivine.server.models import ServedModel
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
