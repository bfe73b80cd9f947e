"""A model made for one text gives the ids that the model of the whole vocabulary gives."""

from __future__ import annotations

import threading

import pytest

from olivine.errors import TokenizerError
from olivine.tokenizer import from_gguf, lazy
from tokenizer import trained
from tokenizer.samples import KEY, MARKS, byte_level_metadata, disagreements, texts

NEVER = 1 << 30


@pytest.fixture(params=[*trained.PRE, "spm", "spm-prefix", "spm-untyped", "gemma4"])
def metadata(request) -> dict:
    if request.param in trained.PRE:
        return byte_level_metadata(trained.byte_level_data(request.param), request.param, padded_to=1300)
    if request.param == "gemma4":
        return trained.gemma4_metadata()
    prefix = request.param == "spm-prefix"
    metadata = trained.sentencepiece_metadata(trained.sentencepiece(prefix), prefix)
    if request.param == "spm-untyped":
        del metadata[KEY + "token_type"]
    return metadata


@pytest.fixture
def always_lazy(monkeypatch):
    monkeypatch.setattr(lazy, "LARGE", 0)
    monkeypatch.setattr(lazy, "FEW", NEVER)


def count_models(monkeypatch) -> list[bool]:
    """Filled with whether each model that is built is the whole one."""
    built: list[bool] = []
    init = lazy.LazyEncoder.__init__

    def counting(self, vocabulary, alphabet, always, build, assemble):
        def counted(pieces):
            built.append(pieces is None)
            return build(pieces)

        init(self, vocabulary, alphabet, always, counted, assemble)

    monkeypatch.setattr(lazy.LazyEncoder, "__init__", counting)
    return built


def test_ids_are_those_of_the_whole_vocabulary(metadata, monkeypatch, always_lazy):
    built = count_models(monkeypatch)
    tokenizer = from_gguf(metadata)
    monkeypatch.setattr(lazy, "LARGE", NEVER)
    whole = from_gguf(metadata)
    assert built == [False, True]
    names = [*whole.special_tokens, "<tag>", "<think>", "<|channel>"]
    after_names = [f"{name}{mark}{mark}a ab" for name in names for mark in MARKS]
    samples = [text for text in texts(200, 51, names) if len(text) <= lazy.SHORT] + after_names
    for parse in (False, True):
        assert not disagreements(
            lambda t, p=parse: tokenizer.encode(t, parse_special=p),
            lambda t, p=parse: whole.encode(t, parse_special=p),
            samples,
        )
    assert len(built) > 2 * len(samples)
    assert not any(built[2:])


def test_the_whole_vocabulary_is_read_once_it_is_worth_it(monkeypatch):
    monkeypatch.setattr(lazy, "LARGE", 0)
    metadata = byte_level_metadata(trained.byte_level_data("qwen2"), "qwen2")
    built = count_models(monkeypatch)
    tokenizer = from_gguf(metadata)
    for _ in range(lazy.FEW + 3):
        tokenizer.encode("one of a few texts")
    assert built == [False] * (1 + lazy.FEW) + [True]
    built.clear()
    tokenizer = from_gguf(metadata)
    expected = tokenizer.encode("long " * lazy.SHORT)
    assert built == [False, True]
    assert tokenizer.encode("long " * lazy.SHORT, parse_special=True) == expected
    assert len(built) == 2


def test_threads_that_come_before_the_vocabulary_is_read(metadata, monkeypatch):
    monkeypatch.setattr(lazy, "LARGE", 0)
    whole = from_gguf(metadata)
    samples = ["short text", "another: 12 ships", "long " * lazy.SHORT]
    expected = [whole.encode(text) for text in samples]
    for _ in range(5):
        tokenizer = from_gguf(metadata)
        found: list[list[list[int]]] = []
        start = threading.Barrier(4)

        def encode(tokenizer=tokenizer, found=found, start=start) -> None:
            start.wait()
            found.append([tokenizer.encode(text) for text in samples])

        threads = [threading.Thread(target=encode) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [expected] * 4


def test_a_wrong_merge_is_named_when_a_text_needs_it(always_lazy):
    metadata = byte_level_metadata(trained.byte_level_data("gpt-2"), "gpt-2")
    metadata[KEY + "merges"] = [*metadata[KEY + "merges"], "wq zx"]
    number = len(metadata[KEY + "merges"]) - 1
    tokenizer = from_gguf(metadata)
    assert tokenizer.decode(tokenizer.encode("a text")) == "a text"
    with pytest.raises(TokenizerError, match=f"merges: entry {number} is not made of tokens: 'wq zx'"):
        tokenizer.encode("long " * lazy.SHORT)


def test_a_missing_character_of_the_alphabet_makes_nothing_lazy(monkeypatch, always_lazy):
    """Llama 3 takes a known pre-token whole, even one with a byte that has no token of its own."""
    data = trained.byte_level_data("llama-bpe")
    metadata = byte_level_metadata(data, "llama-bpe")
    tokens = metadata[KEY + "tokens"] = list(metadata[KEY + "tokens"])
    tokens[tokens.index("~")] = "\N{SNOWMAN}"
    built = count_models(monkeypatch)
    from_gguf(metadata)
    assert built == [True]
