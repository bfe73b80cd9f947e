"""What fits this machine, and how fast it may be."""

from __future__ import annotations

import pytest

from olivine import machine
from olivine.hub import fit
from olivine.hub.aliases import aliases


def test_the_speed_follows_from_the_bandwidth_which_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(machine, "bandwidth", lambda: calls.append(1) or 1e10)
    fit._bandwidth.cache_clear()
    found = [fit.fit(weights, 1000, free=10**9) for weights in (10**9, 10**8)]
    assert [each.speed for each in found] == [7.5, 75.0] and len(calls) == 1
    assert [each.fits for each in found] == [False, True]
    assert fit.fit(10**9, 0, active=0.1, free=10**9).speed == 75.0, "experts that a token does not take"
    assert fit.fit(10**9, 0, "cuda", free=10**9).speed is None
    fit._bandwidth.cache_clear()


def test_what_fits_is_the_largest_first() -> None:
    names = [each.name for each in fit.fitting(1_500_000_000, 4096)]
    assert names[0] == "qwen2.5:1.5b" and "gemma3:4b" not in names
    assert [aliases()[name].bytes for name in names] == sorted(
        (aliases()[n].bytes for n in names), reverse=True
    )
    assert fit.fitting(1000, 4096) == []
