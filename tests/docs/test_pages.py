"""The pages of the documentation hold together: links lead somewhere, and every page can be reached."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from oracles.documents import DOCS, PAGES, ROOT, anchors, links, name_of


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


def test_the_site_has_every_page() -> None:
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(name_of(page)[5:] for page in PAGES if page.is_relative_to(DOCS))


@pytest.mark.exhaustive
def test_the_site_is_built_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    program = shutil.which("mkdocs", path=f"{ROOT / '.venv-docs' / 'bin'}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("needs mkdocs-material, which make site installs")
    command = [program, "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"<(script|img|iframe)[^>]+src=\"?(https?:)?//", text), page.name
        assert not re.search(r"<link[^>]+stylesheet[^>]+href=\"?(https?:)?//", text), page.name


def test_the_tree_of_the_readme_names_every_folder() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    tree = text[text.index("src/olivine/\n") :]
    parts = [path.name for path in (ROOT / "src" / "olivine").iterdir() if (path / "__init__.py").exists()]
    assert [name for name in parts if f"\n  {name}/" not in tree] == []
