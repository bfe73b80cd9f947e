"""docs/reference and the man page are what the program itself says."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from oracles.documents import ROOT

sys.path.insert(0, str(ROOT / "tools"))
from reference import PAGES
from reference_pages import python


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_as_it_would_be_written_now(name: str) -> None:
    written = (ROOT / name).read_text(encoding="utf-8")
    assert written == PAGES[name](), "run make docs"


def test_the_man_page_is_good_roff() -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    page = ROOT / "src" / "olivine" / "cli" / "olivine.1"
    command = ["groff", "-man", "-ww", "-z", "-Tascii", str(page)]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_man_page_comes_with_the_package() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '"src/olivine/cli/olivine.1" = "share/man/man1/olivine.1"' in project


def test_every_public_name_has_its_place() -> None:
    import olivine

    text = python.page()
    for name in olivine.__all__:
        assert f"\n## {name}\n" in text or f"`olivine.{name}`" in text, name
