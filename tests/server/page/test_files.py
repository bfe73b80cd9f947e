"""The chat page: how it is sent, and that the committed build is the one of web/."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from olivine.llm import LLM
from olivine.server.models import ServedModel
from olivine.server.page import FILES, POLICY
from olivine.server.settings import Settings
from oracles.serving import serving

WEB = Path(__file__).parents[3] / "web"
SOURCES = ("index.html", "package-lock.json", "package.json", "tsconfig.json", "vite.config.ts")
MOST_BYTES = 200_000  # of the whole page, with gzip
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def built() -> list[Path]:
    return sorted(path for path in FILES.rglob("*") if path.is_file())


def test_browsers_get_the_page(url: str) -> None:
    response = httpx.get(f"{url}/", headers=BROWSER)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.content == (FILES / "index.html").read_bytes()


@pytest.mark.parametrize("accept", ["*/*", "application/json", ""])
def test_clients_of_ollama_get_its_sentence(url: str, accept: str) -> None:
    for method in ("GET", "HEAD"):
        response = httpx.request(method, f"{url}/", headers={"accept": accept})
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/plain")
    assert httpx.get(f"{url}/", headers={"accept": accept}).text.startswith("Ollama is running")


def test_every_file_of_the_page_is_there_with_its_type(url: str) -> None:
    types = {
        ".js": "text/javascript; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".svg": "image/svg+xml",
    }
    assets = [path for path in built() if path.parent.name == "assets"]
    assert assets
    with httpx.Client(base_url=url) as client:
        for path in assets:
            response = client.get(f"/assets/{path.name}")
            assert response.status_code == 200
            assert response.headers["content-type"] == types[path.suffix]
            assert response.headers["content-encoding"] == "gzip"
            assert response.content == path.read_bytes()
            plain = client.get(f"/assets/{path.name}", headers={"accept-encoding": "identity"})
            assert "content-encoding" not in plain.headers and plain.content == path.read_bytes()


def test_a_file_that_did_not_change_is_not_sent_again(url: str) -> None:
    etag = httpx.get(f"{url}/assets/index.js").headers["etag"]
    again = httpx.get(f"{url}/assets/index.js", headers={"if-none-match": etag})
    assert again.status_code == 304 and again.content == b""


def test_the_policy_permits_nothing_inline_and_no_other_origin(url: str) -> None:
    for path in ("/", "/assets/index.js"):
        response = httpx.get(f"{url}{path}", headers=BROWSER)
        assert response.headers["content-security-policy"] == POLICY
        assert response.headers["x-content-type-options"] == "nosniff"
    assert "unsafe" not in POLICY and "://" not in POLICY and "*" not in POLICY
    assert "default-src 'none'" in POLICY and "frame-ancestors 'none'" in POLICY
    html = (FILES / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=", html)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", html))


@pytest.mark.parametrize(
    "name", ["manifest.json", "..%2f__init__.py", "%2e%2e/%2e%2e/__init__.py", "no.js", ""]
)
def test_nothing_but_the_page_is_sent(url: str, name: str) -> None:
    assert httpx.get(f"{url}/assets/{name}").status_code == 404


def test_the_page_is_there_without_a_key_and_its_data_is_not(mini: LLM) -> None:
    with serving([ServedModel("olivine-mini", mini)], Settings(api_keys=("secret",))) as url:
        assert httpx.get(f"{url}/", headers=BROWSER).status_code == 200
        assert httpx.get(f"{url}/assets/index.js").status_code == 200
        assert httpx.get(f"{url}/v1/models").status_code == 401


def test_the_page_is_small() -> None:
    size = sum(len(gzip.compress(path.read_bytes())) for path in built())
    assert 50_000 < size <= MOST_BYTES


def test_the_page_names_no_other_origin() -> None:
    """But for namespaces, and for documents that messages of its libraries point to."""
    names = ("http://www.w3.org/", "https://github.com/highlightjs/", "https://github.com/markedjs/")
    for path in built():
        if path.name == "licenses.md":
            continue  # not sent
        found = re.findall(r"(?:https?|wss?)://[^\s\"'`)<>\\]+", path.read_text())
        assert not [each for each in found if not each.startswith(names)], path.name


def test_all_words_are_in_one_file() -> None:
    """No component has a word of its own, so that a translation of words.ts is one of the page."""
    for path in (WEB / "src" / "components").glob("*.tsx"):
        text = path.read_text()
        assert not re.findall(r'(?:aria-label|title|placeholder|alt)="[^"]*[A-Za-z]{2}', text), path.name
        assert not re.findall(r"[\w\"}]>\s*[A-Z]?[a-z]{2,}[^<>{}();=]*[<{]", text), path.name


def source_files() -> Iterator[Path]:
    yield from (WEB / name for name in SOURCES)
    for folder in ("public", "src", "tools"):
        yield from (path for path in (WEB / folder).rglob("*") if path.is_file())


def test_the_build_is_that_of_the_sources() -> None:
    """`npm run build` in web/ writes the hash of the sources; after a change they differ."""
    digest = hashlib.sha256()
    for name, path in sorted((path.relative_to(WEB).as_posix(), path) for path in source_files()):
        digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    recorded = json.loads((FILES / "manifest.json").read_text())["sources"]
    assert recorded == digest.hexdigest(), "web/ has changed: run `make page` and commit the build"


def test_the_lock_names_no_host() -> None:
    lock = json.loads((WEB / "package-lock.json").read_text())
    assert lock["packages"] and not [name for name, each in lock["packages"].items() if "resolved" in each]


needs_node = pytest.mark.skipif(
    shutil.which("node") is None or not (WEB / "node_modules").is_dir(),
    reason="needs Node and web/node_modules",
)


@needs_node
def test_a_new_build_is_the_committed_one(tmp_path: Path) -> None:
    vite = WEB / "node_modules" / "vite" / "bin" / "vite.js"
    command = ["node", str(vite), "build", "--outDir", str(tmp_path), "--emptyOutDir", "--logLevel", "error"]
    subprocess.run(command, cwd=WEB, check=True, env={**os.environ, "NODE_ENV": "production"})
    for path in built():
        if path.name != "manifest.json":
            assert (tmp_path / path.relative_to(FILES)).read_bytes() == path.read_bytes(), path.name


@needs_node
def test_the_tests_of_the_page_pass() -> None:
    vitest = WEB / "node_modules" / "vitest" / "vitest.mjs"
    result = subprocess.run(["node", str(vitest), "run"], cwd=WEB, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-4000:]
