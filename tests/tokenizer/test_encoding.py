"""Long texts: encoded without blocking, bounded before they are encoded, and split as short ones are."""

from __future__ import annotations

import json
import random
from collections.abc import Collection
from types import SimpleNamespace

import pytest

from olivine.tokenizer import encoding, from_folder, from_gguf
from tokenizer import trained
from tokenizer.samples import byte_level_metadata, texts, write_folder


@pytest.fixture(params=["folder", "gguf", "model", "spm-gguf"])
def tokenizer(request, tmp_path):
    data = trained.byte_level_data("qwen2")
    if request.param == "folder":
        return from_folder(write_folder(tmp_path, json.dumps(data)))
    if request.param == "gguf":
        return from_gguf(byte_level_metadata(data, "qwen2"))
    proto = trained.sentencepiece(False)
    if request.param == "model":
        (tmp_path / "tokenizer.model").write_bytes(proto)
        return from_folder(tmp_path)
    return from_gguf(trained.sentencepiece_metadata(proto, False))


class Native:
    """Stands for the library's tokenizer, and knows how it was called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def encode(self, text: str, add_special_tokens: bool) -> SimpleNamespace:
        self.calls.append("encode")
        return SimpleNamespace(ids=[len(text)])

    def encode_batch_fast(self, texts: list[str], add_special_tokens: bool) -> list[SimpleNamespace]:
        self.calls.append("encode_batch_fast")
        return [SimpleNamespace(ids=[len(text)]) for text in texts]


def test_long_texts_let_go_of_the_interpreter_lock_and_huge_ones_of_memory(monkeypatch):
    """`encode` holds the lock for as long as it takes; encode_batch does not."""
    native = Native()
    monkeypatch.setattr(encoding.malloc, "return_freed", lambda: native.calls.append("memory"))
    for size in (5, encoding.LONG, encoding.HUGE):
        assert encoding.ids_of(native, "x" * size) == [size]
    assert native.calls == ["encode", "encode_batch_fast", "encode_batch_fast", "memory"]


def test_every_tokenizer_encodes_long_texts_that_way(tokenizer, monkeypatch):
    text = "".join(texts(60, 7))[: encoding.LONG - 1]
    short = tokenizer.encode(text), tokenizer.encode(text, parse_special=True)
    monkeypatch.setattr(encoding, "LONG", 1)
    batches = []
    monkeypatch.setattr(encoding, "_fork_without_its_threads", lambda: batches.append(1))
    assert (tokenizer.encode(text), tokenizer.encode(text, parse_special=True)) == short
    assert len(batches) >= 2


def test_no_text_has_fewer_tokens_than_its_size_says(tokenizer, monkeypatch):
    monkeypatch.setattr("olivine.tokenizer.tokenizer._LIKELY", 0)
    longest = max(range(tokenizer.vocab_size), key=lambda i: len(tokenizer.token_bytes(i)))
    name = tokenizer.token_bytes(longest).decode()
    decomposed = "\u212a\u03b9\u0308\u0301\u1112\u1161\u11ab"  # three characters when composed
    for text in (*texts(200, 3), 50 * name, 50 * decomposed, " " * 500, ""):
        for parse in (False, True):
            tokens = tokenizer.encode(text, add_special=False, parse_special=parse)
            assert tokenizer.fewest(text) <= len(tokens), text
    assert tokenizer.fewest(50 * name) == 50 or not name.isascii()
    assert tokenizer.fewest("x" * 10_000) >= 10_000 // len(name.encode())
    assert tokenizer.fewest("\ud800" * 10) >= 0


def test_short_texts_are_not_estimated(tokenizer):
    assert tokenizer.fewest("x" * 60_000) == 0
    assert "_longest" not in vars(tokenizer)


def place_by_place(tokenizer, text: str, literal: Collection[int]) -> list[int]:
    """What `encode_rendered` means: every place is looked at."""
    names = tokenizer.guarded_names
    sizes = sorted(map(len, names), reverse=True)
    ids: list[int] = []
    start = at = 0
    while at < len(text):
        found = next((text[at : at + n] for n in sizes if text[at : at + n] in names), None)
        if found is None or at in literal:
            at += 1
            continue
        ids += tokenizer.encode(text[start:at], add_special=False) if at > start else []
        ids.append(names[found])
        start = at = at + len(found)
    return ids + (tokenizer.encode(text[start:], add_special=False) if start < at else [])


def test_a_rendered_prompt_is_cut_at_the_special_tokens_that_are_not_text(tokenizer):
    rng = random.Random(5)
    names = list(tokenizer.guarded_names)
    prefix = tokenizer._prefix
    for _ in range(60):
        parts = rng.choices([*names, "<", "<|", "text ", "ü", "\n"], k=rng.randint(1, 12))
        text = "".join(parts)
        starts = [i for i in range(len(text)) if text.startswith(tuple(names), i)]
        literal = {i for i in starts if rng.random() < 0.5}
        if literal:
            found = tokenizer.encode_rendered(text, literal)
            meant = place_by_place(tokenizer, text, literal)
            assert found == (meant if meant[: len(prefix)] == prefix else prefix + meant), (text, literal)


@pytest.mark.parametrize("way", trained.SPACES_IN_FRONT)
def test_text_behind_other_text_begins_without_a_space_of_its_own(way, tmp_path):
    tokenizer = trained.with_a_space_in_front(way, tmp_path)
    pairs = [("the thing is", " hello"), ("the thing is hel", "lo"), ("x = ", "1"), ("x.", "."), ("a", "é\n")]
    for before, after in pairs:
        ids = [*tokenizer.encode(before), *tokenizer.encode_after(after)]
        assert tokenizer.decode(ids) == before + after
    assert [*tokenizer.encode("the thing is"), *tokenizer.encode_after(" hello")] == tokenizer.encode(
        "the thing is hello"
    )
    assert tokenizer.encode_after("") == []


def test_text_behind_other_text_is_encoded_alike_where_no_space_comes_in_front(tokenizer):
    for text in ("'s", "...", " hello", "e\u0301", "", *texts(50, 9)):
        assert tokenizer.encode_after(text) == tokenizer.encode(text, add_special=False)


@pytest.mark.parametrize("way", trained.SPACES_IN_FRONT)
def test_a_message_that_spells_a_special_token_leaves_the_rest_of_the_prompt_as_it_is(way, tmp_path):
    tokenizer = trained.with_a_space_in_front(way, tmp_path)
    begin, end = "<s>hello</s>the thing", "</s>it is</s> of </s>"
    (bos,) = tokenizer.encode("<s>", add_special=False, parse_special=True)
    ids = tokenizer.encode_rendered(f"{begin} <s>{end}", {len(begin) + 1})
    theirs = [tokenizer.encode(text, add_special=False, parse_special=True) for text in (begin, f"<s>{end}")]
    assert ids[: len(theirs[0])] == theirs[0]
    assert ids[-len(theirs[1]) + 1 :] == theirs[1][1:]
    assert ids.count(bos) == 1
    assert "<s>" in tokenizer.decode(ids)
    if way == "first":  # the library's own ids, once more
        transformers = pytest.importorskip("transformers")
        oracle = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
        assert oracle.encode(begin, add_special_tokens=False) == theirs[0]


def test_a_forged_token_leaves_the_white_space_alone_that_others_take(tmp_path):
    """Phi-3's markers take the white space behind them, wherever the text is cut."""
    trained.with_a_space_in_front("first", tmp_path)
    file = tmp_path / "tokenizer.json"
    data = json.loads(file.read_text())
    for entry in data["added_tokens"]:
        entry["rstrip"] = entry["content"] == "</s>"
    file.write_text(json.dumps(data))
    tokenizer = from_folder(tmp_path)
    begin, end = "<s>\nhello</s>\nthe thing</s>", "</s>\nit is</s>\n of"
    parsed = [tokenizer.encode(text, add_special=False, parse_special=True) for text in (begin, end)]
    assert not any(tokenizer.token_bytes(i) == b"\n" for i in parsed[1])
    ids = tokenizer.encode_rendered(f"{begin}so <s>{end}", {len(begin) + 3})
    assert ids[: len(parsed[0])] == parsed[0]
    assert ids[-len(parsed[1]) :] == parsed[1]
