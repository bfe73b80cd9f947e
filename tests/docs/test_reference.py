"""docs/reference is what the program itself says."""

from __future__ import annotations

import sys

import pytest

from oracles.documents import ROOT

sys.path.insert(0, str(ROOT / "tools"))
from reference_pages import commands, http, python

PAGES = {"commands.md": commands.page, "python.md": python.page, "http.md": http.page}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_as_it_would_be_written_now(name: str) -> None:
    written = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert written == PAGES[name](), "run make docs"


def test_every_public_name_has_its_place() -> None:
    import olivine

    text = python.page()
    for name in olivine.__all__:
        assert f"\n## {name}\n" in text or f"`olivine.{name}`" in text, name
