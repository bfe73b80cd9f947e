"""The hub on this machine, for these tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hub.stand_in import Hub, running


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The stand-in, with an empty cache and no token."""
    for name in (
        "HF_TOKEN",
        "HF_HUB_OFFLINE",
        "HUGGINGFACE_HUB_CACHE",
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    with running() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("no_proxy", "*")
        yield hub
