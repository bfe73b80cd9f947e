"""Streaming gives the same text as decoding at once, whole characters only."""

from __future__ import annotations

import random

import pytest

from olivine.errors import TokenizerError
from olivine.tokenizer import from_gguf
from tokenizer import trained
from tokenizer.samples import byte_level_metadata, texts

SAMPLES = texts(2000, 21, trained.SPECIAL)


@pytest.fixture(scope="module", params=["byte-level", "sentencepiece"])
def tokenizer(request):
    if request.param == "byte-level":
        return from_gguf(byte_level_metadata(trained.byte_level_data("gpt-2"), "gpt-2"))
    return from_gguf(trained.sentencepiece_metadata(trained.sentencepiece(False), False))


def test_joined_pushes_are_the_text(tokenizer):
    held_back = 0
    for text in SAMPLES:
        stream = tokenizer.stream()
        ids = tokenizer.encode(text, add_special=False)
        parts = [stream.push(i) for i in ids]
        assert "".join(parts) == text  # nothing is left for flush, and no U+FFFD that the text did not have
        assert stream.flush() == ""
        held_back += sum(not part for part in parts)
        done = 0
        for i, part in enumerate(parts):  # never behind by more than the unfinished character
            done += len(part.encode())
            seen = b"".join(map(tokenizer.token_bytes, ids[: i + 1]))
            assert seen[:done].decode() == "".join(parts[: i + 1])
            assert len(seen) - done < 4
    assert held_back > 1000  # the samples do cut characters


def test_any_ids_stream_as_they_decode(tokenizer):
    rng = random.Random(22)
    for _ in range(2000):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randint(0, 12))]
        for skip in (False, True):
            stream = tokenizer.stream(skip_special=skip)
            assert "".join(map(stream.push, ids)) + stream.flush() == tokenizer.decode(ids, skip_special=skip)


def test_an_unfinished_character_waits_and_flush_replaces_it(tokenizer):
    ids = tokenizer.encode("\U000e0101", add_special=False)
    waiting = [""] * (len(ids) - 1)
    assert len(waiting) >= 2
    stream = tokenizer.stream()
    assert [stream.push(i) for i in ids[:-1]] == waiting
    assert stream.flush() == "\ufffd"
    assert [stream.push(i) for i in ids] == [*waiting, "\U000e0101"]  # usable again
    stream.push(ids[0])
    assert stream.push(tokenizer.encode("a", add_special=False)[0]) == "\ufffda"


def test_special_tokens_are_hidden_or_shown(tokenizer):
    name = next(iter(tokenizer.special_tokens))
    token = tokenizer.special_tokens[name]
    assert tokenizer.stream().push(token) == ""
    assert tokenizer.stream(skip_special=False).push(token) == name


def test_ids_outside_the_vocabulary_are_refused(tokenizer):
    for bad in (-1, tokenizer.vocab_size, 2**40):
        for use in (
            tokenizer.token,
            tokenizer.token_bytes,
            tokenizer.stream().push,
            lambda i: tokenizer.decode([i]),
        ):
            with pytest.raises(TokenizerError, match="outside the vocabulary"):
                use(bad)
