"""Versions and extras."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from olivine.doctor import versions

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_the_extras_are_those_of_the_package() -> None:
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    for name, (packages, _) in versions.EXTRAS.items():
        assert [re.split(r"[<>=;\[ ]", each)[0] for each in extras[name]] == [*packages]


def test_a_missing_extra_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"numpy": "2.0", "pillow": "11.0", "av": "14.0"}
    monkeypatch.setattr(versions, "version", there.get)
    lines = dict(versions.versions().lines)
    assert lines["[serve]"] == "not installed; for olivine serve: pip install 'olivine[serve]'"
    assert lines["[media]"] == (
        "pillow 11.0, av 14.0; soundfile, soxr missing, for images, sounds and videos: "
        "pip install 'olivine[media]'"
    )
    assert lines["packages"].startswith("numpy 2.0, tokenizers missing")


def test_the_system_is_named(tmp_path: Path) -> None:
    (tmp_path / "os-release").write_text('NAME=x\nPRETTY_NAME="Debian 12"\n')
    assert versions.system(tmp_path / "os-release").startswith("Debian 12, ")
    assert versions.system(tmp_path / "none")
