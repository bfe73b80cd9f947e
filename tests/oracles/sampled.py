"""Which cases of a large table run every day. `make test-all` runs all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def every(step: int, cases: Iterable[Any], start: int = 0) -> list[Any]:
    """All cases. Each `step`-th, from number `start` on, runs every day; the others are exhaustive."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if number % step == start else pytest.mark.exhaustive,
        )
        for number, case in enumerate(cases)
    ]
