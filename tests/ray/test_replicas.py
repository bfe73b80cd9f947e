"""Replicas on a Ray cluster: cases_replicas.py, in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from oracles.cases import run_cases


@pytest.mark.timeout(2000)
@pytest.mark.parametrize(
    "which", ["not exhaustive", pytest.param("exhaustive", marks=pytest.mark.exhaustive)]
)
def test_replicas(which: str) -> None:
    run_cases(Path(__file__).with_name("cases_replicas.py"), which)
