"""`olivine serve --ray` where the application does not start."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from olivine.errors import OlivineError
from olivine.ray import run as running
from olivine.ray.config import Config

ray = pytest.importorskip("ray", reason="replicas need Ray: pip install 'olivine[cluster]'")
serve = pytest.importorskip("ray.serve")


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A cluster that was there before, and what was ended of it."""
    found: list[str] = []
    monkeypatch.setattr(running, "_join", lambda ray, address, check: False)
    monkeypatch.setattr(ray, "shutdown", lambda: found.append("ray"))
    monkeypatch.setattr(serve, "shutdown", lambda: found.append("serve"))
    return found


def start(monkeypatch: pytest.MonkeyPatch, told: Any) -> None:
    monkeypatch.setattr(serve, "start", told)
    running.run(
        Config.of({"model": "olivine-mini"}), None, lambda: None, lambda: pytest.fail("it is not ready")
    )


def test_an_error_of_ray_is_told_in_words(monkeypatch: pytest.MonkeyPatch, ended: list[str]) -> None:
    def dies(**options: Any) -> None:
        raise ray.exceptions.RayActorError()

    with pytest.raises(OlivineError, match="the replicas could not be started: The actor"):
        start(monkeypatch, dies)
    assert ended == ["ray"]


def test_proxies_that_are_late_are_told_in_words(monkeypatch: pytest.MonkeyPatch, ended: list[str]) -> None:
    def late(**options: Any) -> None:
        raise TimeoutError("HTTP proxies not available after 60s.")

    with pytest.raises(OlivineError, match="could not be started: HTTP proxies not available"):
        start(monkeypatch, late)
    assert ended == ["ray"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, ended: list[str], number: signal.Signals
) -> None:
    start(monkeypatch, lambda **options: os.kill(os.getpid(), number))
    assert ended == ["ray"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
