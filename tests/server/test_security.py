"""Who may use the server: names, web pages, what the operator is told."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from olivine.llm import LLM
from olivine.server.models import ServedModel
from olivine.server.security import is_origin, warnings_of
from olivine.server.settings import Settings
from oracles.serving import serving

BODY = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
PAGE = "https://page.example"


def post(url: str, **headers: str) -> httpx.Response:
    return httpx.post(f"{url}/v1/chat/completions", json=BODY, headers=headers)


@pytest.fixture(scope="module")
def permitting(mini: LLM) -> Iterator[str]:
    """A server that permits a page, and has a name."""
    settings = Settings(cors=(PAGE, "null"), allowed_hosts=("Models.Example",))
    with serving([ServedModel("olivine-mini", mini)], settings) as url:
        yield url


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8080", "a.localhost.", "127.0.0.1", "[::1]:80", "192.168.1.7:1"]
)
def test_names_and_addresses_of_this_machine_are_known(url: str, host: str) -> None:
    assert post(url, host=host).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil"]
)
def test_another_name_is_refused_in_words(url: str, host: str) -> None:
    response = post(url, host=host)
    assert response.status_code == 403
    name = host.partition(":")[0]
    assert f"--allowed-host {name}" in response.json()["error"]["message"]


@pytest.mark.parametrize("host", ["a b", "", "user@localhost", "[::1", "localhost:x"])
def test_what_is_no_name_is_refused(url: str, host: str) -> None:
    assert post(url, host=host).status_code == 400


def test_a_name_can_be_allowed(permitting: str) -> None:
    assert post(permitting, host="models.example:8080").status_code == 200
    assert post(permitting, host="other.example").status_code == 403


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/no/such/path"])
@pytest.mark.parametrize("origin", [PAGE, "null", "http://localhost:3000", "https://127.0.0.1.evil", "x"])
def test_pages_elsewhere_cannot_use_the_server(url: str, origin: str, path: str) -> None:
    response = httpx.post(f"{url}{path}", json=BODY, headers={"origin": origin})
    assert response.status_code == 403
    assert f"--cors {origin}" in response.json()["error"]["message"]
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_the_servers_own_pages_can(url: str) -> None:
    for origin in (url, url.upper().replace("HTTP:", "http:")):
        response = post(url, origin=origin)
        assert response.status_code == 200 and "access-control-allow-origin" not in response.headers
    host = url.removeprefix("http://")
    assert post(url, host="localhost", origin="https://localhost:443").status_code == 200
    assert post(url, host="localhost", origin=f"http://{host}").status_code == 403


def test_a_permitted_page_may_read_the_answer(permitting: str) -> None:
    for origin in (PAGE, "null"):
        headers = post(permitting, origin=origin).headers
        assert headers["access-control-allow-origin"] == origin and headers["vary"] == "Origin"
        assert "X-Request-Id" in headers["access-control-expose-headers"]
        assert "access-control-allow-credentials" not in headers
    assert post(permitting, origin="https://other.example").status_code == 403


def preflight(url: str, origin: str) -> httpx.Response:
    asked = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
        "access-control-request-private-network": "true",
    }
    return httpx.options(f"{url}/v1/chat/completions", headers=asked)


def test_browsers_ask_first(url: str, permitting: str) -> None:
    assert preflight(url, PAGE).status_code == 403
    response = preflight(permitting, PAGE)
    assert response.status_code == 204
    assert response.headers["access-control-allow-origin"] == PAGE
    assert response.headers["access-control-allow-headers"] == "authorization,content-type"
    assert "POST" in response.headers["access-control-allow-methods"]
    assert response.headers["access-control-allow-private-network"] == "true"


def test_all_pages_without_credentials(mini: LLM) -> None:
    settings = Settings(cors=("*",), api_keys=("key",))
    with serving([ServedModel("olivine-mini", mini)], settings) as url:
        assert preflight(url, PAGE).status_code == 204  # browsers send no key with it
        refused = post(url, origin=PAGE)
        response = post(url, origin=PAGE, authorization="Bearer key")
    assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == "*"
    assert response.status_code == 200 and response.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in response.headers


@pytest.mark.parametrize(
    ("settings", "addresses", "told"),
    [
        ({}, ["127.0.0.1", "::1"], []),
        ({"host": "0.0.0.0"}, ["0.0.0.0"], ["--api-key"]),
        ({"host": "box"}, ["127.0.0.1", "fe80::1%eth0"], ["--api-key"]),
        ({"host": "0.0.0.0", "api_keys": ("key",)}, ["0.0.0.0"], []),
        ({"cors": ("*",)}, ["127.0.0.1"], ["--cors"]),
    ],
)
def test_what_is_open_to_others_is_said(
    settings: dict[str, Any], addresses: list[str], told: list[str]
) -> None:
    found = warnings_of(Settings(**settings), addresses)
    assert len(found) == len(told) and all(word in line for word, line in zip(told, found, strict=True))


def test_what_an_origin_is() -> None:
    assert all(map(is_origin, ["*", "null", "http://a", "HTTPS://a.b:1", "app://obsidian.md", "tauri://x"]))
    assert not any(map(is_origin, ["", "a", "http://a/", "http://a/b", "http://a b", "http://u@a"]))


def test_no_endpoint_fetches_what_a_request_points_to(url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as trap:
        there = f"http://127.0.0.1:{trap.getsockname()[1]}/image.png"
        image = {"type": "image_url", "image_url": {"url": there}}
        source = {"type": "url", "url": there}
        posted: list[tuple[str, dict[str, Any]]] = [
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": [image]}]}),
            ("/apply-template", {"messages": [{"role": "user", "content": [image]}]}),
            (
                "/v1/messages",
                {
                    "max_tokens": 1,
                    "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}],
                },
            ),
            (
                "/v1/messages",
                {
                    "max_tokens": 1,
                    "messages": [{"role": "user", "content": [{"type": "document", "source": source}]}],
                },
            ),
            (
                "/v1/responses",
                {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": there}]}]},
            ),
            (
                "/v1/responses",
                {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": there}]}]},
            ),
            ("/api/chat", {"model": "olivine-mini", "messages": [{"role": "user", "images": [there]}]}),
            ("/api/generate", {"model": "olivine-mini", "prompt": "x", "images": [there]}),
        ]
        for path, body in posted:
            response = httpx.post(f"{url}{path}", json=body)
            assert response.status_code == 400 and "error" in response.json(), path
        trap.setblocking(False)
        with pytest.raises(BlockingIOError):
            trap.accept()
