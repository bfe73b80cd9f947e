"""/tokenize, /detokenize and /apply-template."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from olivine.llm import LLM

TEXT = "Füchse 🙂 laufen"


def post(url: str, path: str, **fields: Any) -> Any:
    response = httpx.post(f"{url}{path}", json=fields)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("version", ["", "/v1"])
def test_tokens_go_there_and_back(url: str, mini: LLM, version: str) -> None:
    tokens = post(url, f"{version}/tokenize", content=TEXT)["tokens"]
    assert tokens == mini.tokenizer.encode(TEXT, add_special=False)
    assert post(url, f"{version}/detokenize", tokens=tokens) == {"content": TEXT}


def test_special_tokens_are_parsed_unless_told_otherwise(url: str, mini: LLM) -> None:
    name, token = next(iter(mini.tokenizer.special_tokens.items()))
    assert post(url, "/tokenize", content=name)["tokens"] == [token]
    assert post(url, "/tokenize", content=name, parse_special=False)["tokens"] != [token]
    assert post(url, "/detokenize", tokens=[token]) == {"content": name}
    added = post(url, "/tokenize", content="Hi", add_special=True)["tokens"]
    assert added == mini.tokenizer.encode("Hi")


def test_pieces_are_text_or_bytes(url: str, mini: LLM) -> None:
    pieces = post(url, "/tokenize", content=TEXT, with_pieces=True)["tokens"]
    data = b"".join(
        each["piece"].encode() if isinstance(each["piece"], str) else bytes(each["piece"]) for each in pieces
    )
    assert data.decode().strip() == TEXT
    assert [each["id"] for each in pieces] == mini.tokenizer.encode(TEXT, add_special=False)


def test_a_template_is_applied(url: str, mini: LLM) -> None:
    messages: list[Any] = [{"role": "user", "content": "Hi"}]
    assert post(url, "/apply-template", messages=messages) == {"prompt": mini.render(messages)}
    begun = [*messages, {"role": "assistant", "content": "So"}]
    assert post(url, "/apply-template", messages=begun)["prompt"].endswith("So")


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"content": 5}),
        ("/tokenize", {"content": "x" * ((1 << 22) + 1)}),
        ("/detokenize", {"tokens": [10**9]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": "x"}),
        ("/apply-template", {"messages": []}),
        ("/apply-template", {"messages": [{"role": "robot"}]}),
    ],
)
def test_what_makes_no_sense_is_a_400(url: str, path: str, fields: dict[str, Any]) -> None:
    response = httpx.post(f"{url}{path}", json=fields)
    assert response.status_code == 400
    assert response.json()["error"]["message"]
