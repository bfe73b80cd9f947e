"""Embeddings over HTTP."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import numpy as np
import pytest

from olivine.llm import LLM, load
from olivine.server.models import ServedModel
from oracles.serving import serving


def post(url: str, **fields: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/embeddings", json=fields, timeout=240)


def rows_of(url: str, **fields: Any) -> Any:
    response = post(url, **fields)
    assert response.status_code == 200, response.text
    data = response.json()["data"]
    assert [each["index"] for each in data] == list(range(len(data)))
    return np.array([each["embedding"] for each in data], np.float32)


def test_embeddings_are_those_of_the_library(url: str, mini: LLM) -> None:
    texts = ["a fox", "a boat on the sea"]
    expected = mini.embed(texts)
    ids = [mini.tokenizer.encode(text) for text in texts]
    for given in (texts, ids):
        assert np.allclose(rows_of(url, input=given), expected, atol=1e-3)
    for one in (texts[0], ids[0]):
        assert np.allclose(rows_of(url, input=one), expected[:1], atol=1e-3)
    response = post(url, input=texts).json()
    assert response["object"] == "list" and response["model"] == "olivine-mini"
    tokens = sum(map(len, ids))
    assert response["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


def test_base64_is_little_endian_float32(url: str) -> None:
    plain = rows_of(url, input="a fox", encoding_format="float")
    (packed,) = post(url, input="a fox", encoding_format="base64").json()["data"]
    assert np.allclose(np.frombuffer(base64.b64decode(packed["embedding"]), "<f4"), plain[0], atol=1e-6)


def test_fewer_dimensions_are_cut_and_have_length_one(url: str) -> None:
    whole, cut = rows_of(url, input="a fox"), rows_of(url, input="a fox", dimensions=8)
    assert cut.shape == (1, 8)
    assert np.allclose(cut, whole[:, :8] / np.linalg.norm(whole[:, :8]), atol=1e-3)


def test_more_inputs_than_are_in_the_queue_at_once(url: str) -> None:
    rows = rows_of(url, input=["a", "b"] * 70)
    assert rows.shape[0] == 140
    assert np.allclose(rows[::2], rows[0], atol=1e-3)
    assert not np.allclose(rows[0], rows[1], atol=1e-3)


def test_a_short_queue_holds_few_inputs_at_once_and_no_more_outputs_than_fit() -> None:
    options: Any = {"device": "cpu", "threads": 1, "context": 64, "queue": 4, "queue_per_client": 3}
    with load("olivine-mini", **options) as llm, serving([ServedModel("mini", llm)]) as url:
        assert rows_of(url, input=["a"] * 10).shape[0] == 10
        for path, fields in (
            ("chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "n": 4}),
            ("completions", {"prompt": ["a", "b"], "n": 2}),
        ):
            answer = httpx.post(f"{url}/v1/{path}", json={"max_tokens": 1, **fields})
            assert answer.status_code == 400, answer.text
            assert "4 outputs, and 3 requests" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"input": []}, "input", "empty list"),
        ({"input": ["a"] * 2049}, "input", "2048 is the most"),
        ({"input": "a", "dimensions": 10**6}, "dimensions", "must be between 1 and"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "'float' or 'base64'"),
        ({"input": [[10**7]]}, "input", "check_embedding_ctx_length=False"),
        ({"input": [10**7]}, "input", "check_embedding_ctx_length=False"),
        ({"input": "fox " * 20_000}, "messages", "the context holds"),
    ],
)
def test_what_cannot_be_embedded_is_refused_in_words(
    url: str, fields: dict[str, Any], param: str, said: str
) -> None:
    response = post(url, **fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert said in error["message"]
    assert error["param"] == param
