"""Where Olivine keeps its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from olivine import folders


@pytest.mark.parametrize(
    ("find", "xdg", "home"),
    [
        (folders.config_folder, "XDG_CONFIG_HOME", ".config"),
        (folders.state_folder, "XDG_STATE_HOME", ".local/state"),
        (folders.cache_folder, "XDG_CACHE_HOME", ".cache"),
    ],
    ids=["config", "state", "cache"],
)
def test_the_folders_are_those_of_xdg(find, xdg: str, home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (xdg, "OLIVINE_STATE", "OLIVINE_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert find() == Path("/home/someone") / home / "olivine"
    monkeypatch.setenv(xdg, "/elsewhere")
    assert find() == Path("/elsewhere/olivine")


def test_variables_of_our_own_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLIVINE_STATE", "/a")
    monkeypatch.setenv("OLIVINE_CACHE", "/b")
    assert (folders.state_folder(), folders.cache_folder()) == (Path("/a"), Path("/b"))
