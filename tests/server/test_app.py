"""Paths: those that are known, in the spellings that clients use, and those that are not."""

from __future__ import annotations

import httpx
import pytest


@pytest.mark.parametrize("path", ["/v1/models/", "/models/", "//v1/models", "/v1/models"])
def test_slashes_around_a_path_mean_nothing(url: str, path: str) -> None:
    answer = httpx.get(url + path)
    assert answer.status_code == 200 and answer.json()["object"] == "list"


@pytest.mark.parametrize("path", ["health", "props", "metrics", "models"])
def test_paths_are_known_with_and_without_v1(url: str, path: str) -> None:
    assert httpx.get(f"{url}/{path}").status_code == httpx.get(f"{url}/v1/{path}").status_code == 200


def test_a_body_is_read_also_where_its_path_ends_with_a_slash(url: str) -> None:
    answer = httpx.post(f"{url}/v1/chat/completions/", json={"messages": []})
    assert answer.status_code == 400 and "at least one message" in answer.text


@pytest.mark.parametrize("path", ["/v1/messages/nothing", "/v2/models", "/api/nothing", "/api"])
def test_an_unknown_path_is_told_in_the_shape_of_its_api(url: str, path: str) -> None:
    answer = httpx.get(url + path)
    assert answer.status_code == 404 and answer.headers["request-id"] == answer.headers["x-request-id"]
    error = answer.json()["error"]
    if path.startswith("/api"):
        assert error.startswith(f"there is no {path} here")
    elif "messages" in path:
        assert error["type"] == "not_found_error"
        assert answer.json()["request_id"] == answer.headers["request-id"]
    else:
        assert error["code"] == "not_found" and error["message"].startswith("there is no /v2/models here")


def test_a_method_that_a_path_does_not_have_is_named(url: str) -> None:
    answer = httpx.get(f"{url}/v1/chat/completions")
    assert answer.status_code == 405 and answer.headers["allow"] == "POST"
    error = answer.json()["error"]
    assert error["code"] == "method_not_allowed"
    assert error["message"] == "/v1/chat/completions takes POST, and not GET"


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("POST", "/completion", 501, "/v1/completions"),
        ("POST", "/infill", 501, "suffix"),
        ("POST", "/v1/rerank", 501, "/v1/embeddings"),
        ("POST", "/v1/audio/speech", 501, "text"),
        ("GET", "/v1/responses/resp_1", 404, "keeps no responses"),
        ("DELETE", "/v1/responses/resp_1", 404, "keeps no responses"),
    ],
)
def test_what_other_servers_have_is_refused_in_words(
    url: str, method: str, path: str, status: int, words: str
) -> None:
    answer = httpx.request(method, url + path)
    assert answer.status_code == status and words in answer.json()["error"]["message"]
    assert answer.headers["x-should-retry"] == "false"
