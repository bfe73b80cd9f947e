"""Texts without paths, and sizes."""

from __future__ import annotations

import pytest

from olivine.doctor.section import size, without_home, without_paths


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("/home/alice/lib/libolivine.so: cannot open", "…/libolivine.so: cannot open"),
        ("in /home/alice, or /home/bob/x.toml, line 3", "in ~, or …/x.toml, line 3"),
        ("(/srv/projects/secret/model.gguf)", "(…/model.gguf)"),
        ("~/.config/olivine/config.toml", "…/config.toml"),
        (r"C:\Users\alice\olivine.dll is missing", r"…/olivine.dll is missing"),
        ("Debian GNU/Linux 12, 1/2 of it, 21.5 GB/s", "Debian GNU/Linux 12, 1/2 of it, 21.5 GB/s"),
        ("see https://pytorch.org/get-started/locally", "see https://pytorch.org/get-started/locally"),
    ],
)
def test_paths_are_cut(text: str, cleaned: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    assert without_paths(text) == cleaned


def test_home_is_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    assert without_home("/home/alice/x and /home/alice2/x") == "~/x and /home/alice2/x"
    monkeypatch.setenv("HOME", "/")
    assert without_home("/x/y") == "/x/y"


@pytest.mark.parametrize(
    ("n", "told"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2e6, "2.0 MB"), (3.2e12, "3200.0 GB")]
)
def test_sizes(n: float, told: str) -> None:
    assert size(n) == told
