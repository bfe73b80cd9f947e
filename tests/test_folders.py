"""Where Olivine keeps its files."""

from __future__ import annotations

import pwd
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
    monkeypatch.setenv(xdg, "elsewhere")  # the specification: to be ignored
    assert find() == Path("/home/someone") / home / "olivine"


def test_who_has_no_home_gets_no_folder_in_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: object) -> None:
        raise KeyError

    for variable in ("HOME", "XDG_STATE_HOME", "OLIVINE_STATE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert folders.state_folder() == Path("/.local/state/olivine")


def test_variables_of_our_own_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLIVINE_STATE", "/a")
    monkeypatch.setenv("OLIVINE_CACHE", "/b")
    assert (folders.state_folder(), folders.cache_folder()) == (Path("/a"), Path("/b"))
