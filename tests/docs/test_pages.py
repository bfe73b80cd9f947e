"""The pages of the documentation hold together: links lead somewhere, and every page can be reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from oracles.documents import PAGES, ROOT, anchors, links, name_of


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name_of(page)}: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{name_of(page)}: {link}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md" or not page.is_relative_to(ROOT):
            continue
        seen.add(page)
        waiting += [
            (page.parent / link.partition("#")[0]).resolve() for link in links(page) if "://" not in link
        ]
    assert set(PAGES) <= seen, [name_of(page) for page in set(PAGES) - seen]


def test_the_tree_of_the_readme_names_every_folder() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    tree = text[text.index("src/olivine/\n") :]
    parts = [path.name for path in (ROOT / "src" / "olivine").iterdir() if (path / "__init__.py").exists()]
    assert [name for name in parts if f"\n  {name}/" not in tree] == []
