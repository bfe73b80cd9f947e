"""Errors of the package as HTTP has them."""

from __future__ import annotations

from olivine.errors import BusyError
from olivine.server.errors import api_error


def test_a_full_queue_is_a_429_that_says_when_to_try_again() -> None:
    error = api_error(BusyError("many wait", retry_after=6.2))
    assert (error.status, error.code, error.headers) == (429, "overloaded", {"Retry-After": "7"})
