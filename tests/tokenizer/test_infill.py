"""Fill-in-the-middle prompts."""

from __future__ import annotations

import pytest

from olivine import load
from olivine.tokenizer import Tokenizer, infill


def tokenizer(special: list[str], bos: bool = False, front: str = "") -> Tokenizer:
    """One byte a token, and these names; `front` is put in front of every text."""
    names = dict(enumerate(special, 256))
    return Tokenizer(
        kind="bytes",
        vocab_size=256 + len(special),
        plain=lambda text: list((front + text).encode()),
        parsed=lambda text: list(text.encode()),
        piece_of=lambda i: names.get(i) or chr(i),
        id_of=lambda text: next((i for i, name in names.items() if name == text), None),
        bytes_of_piece=lambda piece: piece.encode("latin-1"),
        literal=names,
        special=names,
        prefix=[256] if bos else [],
    )


@pytest.mark.parametrize(
    "names",
    [
        ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
        ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
        ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ],
)
def test_the_suffix_stands_before_the_middle(names: list[str]) -> None:
    found = infill(tokenizer(["<s>", *names, "<|file_sep|>"], bos=True), "ab", "c")
    assert found is not None
    assert found.tokens == [256, 257, *b"ab", 258, *b"c", 259]
    assert set(found.stop) == {257, 258, 259, 260}


def test_no_space_is_added_to_what_stands_behind_a_token() -> None:
    found = infill(tokenizer(["<fim_prefix>", "<fim_suffix>", "<fim_middle>"], front=" "), "ab", "c")
    assert found is not None and found.tokens == [256, *b"ab", 257, *b"c", 258]


def test_a_vocabulary_without_these_tokens_cannot() -> None:
    assert infill(tokenizer(["<|fim_prefix|>", "<|fim_suffix|>"]), "a", "b") is None
    with load("olivine-mini", device="cpu", threads=1, context=64) as llm:
        assert infill(llm.tokenizer, "a", "b") is None
