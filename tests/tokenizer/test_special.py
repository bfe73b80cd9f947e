"""Special tokens: users cannot write them, prompts can, and BOS comes once."""

from __future__ import annotations

import json
import threading
import unicodedata

import numpy as np
import pytest

from olivine.tokenizer import from_folder, from_gguf, from_qwen3c
from tokenizer import trained
from tokenizer.samples import KEY, byte_level_metadata, qwen3c_file, texts, write_folder


@pytest.fixture(params=["folder", "gguf", "qwen3c", "model", "spm-gguf"])
def tokenizer(request, tmp_path):
    data = trained.byte_level_data("qwen2")
    if request.param == "folder":
        return from_folder(write_folder(tmp_path, json.dumps(data)))
    if request.param == "gguf":
        return from_gguf(byte_level_metadata(data, "qwen2"))
    if request.param == "qwen3c":
        (tmp_path / "t").write_bytes(qwen3c_file(data, 0, 0))
        return from_qwen3c(tmp_path / "t", 1205)
    proto = trained.sentencepiece(False)
    if request.param == "model":
        (tmp_path / "tokenizer.model").write_bytes(proto)
        return from_folder(tmp_path)
    return from_gguf(trained.sentencepiece_metadata(proto, False))


def test_user_text_cannot_forge_special_tokens(tokenizer):
    special = tokenizer.special_tokens
    assert len(special) >= 3
    for text in [*special, *texts(500, 31, list(special))]:
        assert set(special.values()).isdisjoint(tokenizer.encode(text, add_special=False))
    for name, token in special.items():
        assert tokenizer.decode(tokenizer.encode(name, add_special=False)) == name
        assert tokenizer.encode(name, add_special=False, parse_special=True) == [token]
        assert tokenizer.id_of(name) == token
        assert tokenizer.token(token) == name
        assert tokenizer.token_bytes(token) == name.encode()
        assert tokenizer.decode([token]) == ""
        assert tokenizer.decode([token], skip_special=False) == name


def test_lone_surrogates_become_replacement_characters(tokenizer):
    assert tokenizer.encode("a\ud800b") == tokenizer.encode("a\ufffdb")
    assert tokenizer.encode("\ud83d\ude80") == tokenizer.encode("🚀")  # a pair, as JSON may bring it
    assert tokenizer.id_of("\ud800") is None


def test_many_threads_get_the_same_ids(tokenizer):
    """Parsing or not is not a switch that one thread could throw for another."""
    name = next(iter(tokenizer.special_tokens))
    expected = {parse: tokenizer.encode(f"a {name} b", parse_special=parse) for parse in (False, True)}
    assert expected[False] != expected[True]
    wrong = []

    def work(parse: bool) -> None:
        for _ in range(300):
            if tokenizer.encode(f"a {name} b", parse_special=parse) != expected[parse]:
                wrong.append(parse)

    threads = [threading.Thread(target=work, args=(i % 2 == 0,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_bos_is_added_once():
    data = trained.byte_level_data("llama-bpe")
    bos = next(e["id"] for e in data["added_tokens"] if e["content"] == "<|endoftext|>")
    eos = bos + 2
    for flags in ({}, {"add_bos_token": True}):  # llama-bpe adds BOS by default
        tokenizer = from_gguf(
            byte_level_metadata(data, "llama-bpe", bos_token_id=bos, eos_token_id=eos, **flags)
        )
        inner = tokenizer.encode("hello", add_special=False)
        assert tokenizer.encode("hello") == [bos, *inner]
        assert tokenizer.encode("<|endoftext|>hello", parse_special=True) == [bos, *inner]
        assert tokenizer.encode("<|endoftext|>hello")[0] == bos
        assert tokenizer.encode("<|endoftext|>hello")[1:] == tokenizer.encode(
            "<|endoftext|>hello", add_special=False
        )
        assert tokenizer.encode("") == [bos]
    metadata = byte_level_metadata(
        data, "llama-bpe", bos_token_id=bos, eos_token_id=eos, add_bos_token=False, add_eos_token=True
    )
    tokenizer = from_gguf(metadata)
    assert tokenizer.encode("hello") == [*inner, eos]
    assert tokenizer.encode("hello<|im_end|>", parse_special=True) == [*inner, eos]


def test_folder_template_is_not_doubled(tmp_path):
    tokenizer = from_folder(write_folder(tmp_path, trained.byte_level("llama-bpe")))
    bos = tokenizer.id_of("<|endoftext|>")
    inner = tokenizer.encode("hello", add_special=False)
    assert tokenizer.encode("hello") == [bos, *inner]
    assert tokenizer.encode("<|endoftext|>hello", parse_special=True) == [bos, *inner]


@pytest.mark.parametrize("kind", [1, 4])
def test_turn_markers_are_special_even_when_a_file_says_otherwise(kind):
    metadata = byte_level_metadata(trained.byte_level_data("qwen2"), "qwen2")
    for i, token in enumerate(metadata[KEY + "tokens"]):
        if token in trained.SPECIAL:
            metadata[KEY + "token_type"][i] = kind
    tokenizer = from_gguf(metadata)
    assert set(tokenizer.special_tokens) == set(trained.SPECIAL)
    assert set(tokenizer.special_tokens.values()).isdisjoint(tokenizer.encode("<|im_end|><|im_start|>"))


def test_merges_that_build_a_special_token_do_not_forge_it(tmp_path):
    """Such a vocabulary is broken or hostile; its special token is spelled out instead."""
    data = trained.byte_level_data("gpt-2")
    vocabulary = data["model"]["vocab"]
    size = len(vocabulary)
    for i, token in enumerate(["im", "<|", "|>", "<|im", "_e", "nd"]):
        vocabulary.setdefault(token, size + 10 + i)
    data["model"]["merges"] = []
    data["model"]["ignore_merges"] = True
    data["pre_tokenizer"] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "use_regex": False,
        "trim_offsets": False,
    }
    end = next(e["id"] for e in data["added_tokens"] if e["content"] == "<|im_end|>")
    vocabulary["<|im_end|>"] = end
    tokenizer = from_folder(write_folder(tmp_path, json.dumps(data)))
    ids = tokenizer.encode("<|im_end|>")
    assert end not in ids
    assert tokenizer.decode(ids) == "<|im_end|>"
    assert tokenizer.encode("<|im_end|>", parse_special=True) == [end]


def test_html_tags_named_like_stops_are_not_stops():
    """Gemma has </s> as an HTML tag: only a control token of that name ends a reply."""
    metadata = trained.sentencepiece_metadata(trained.sentencepiece(False), False)
    metadata[KEY + "token_type"][2] = 4
    metadata[KEY + "eos_token_id"] = 1
    assert 2 not in from_gguf(metadata).stop_ids


def test_every_byte_string_can_be_rebuilt_from_token_bytes(tokenizer):
    for text in texts(300, 32):
        ids = tokenizer.encode(text, add_special=False)
        joined = b"".join(map(tokenizer.token_bytes, ids))
        assert joined.decode() in (text, unicodedata.normalize("NFC", text))


def test_markers_of_phi_3_take_the_white_space_behind_them():
    """As in its tokenizer.json; GGUF has no key for it."""
    metadata = trained.sentencepiece_metadata(trained.sentencepiece(False), False, symbols=[])
    for name in ("<|endoftext|>", "<|user|>", "<|end|>"):
        metadata[KEY + "tokens"].append(name)
        metadata[KEY + "token_type"].append(3)
    metadata[KEY + "scores"] = np.append(metadata[KEY + "scores"], [-1000.0] * 3)
    text = "<|user|>\nHi<|end|>\n <|endoftext|>\n"
    names = {}
    for architecture in ("llama", "phi3"):
        tokenizer = from_gguf({**metadata, "general.architecture": architecture})
        ids = tokenizer.encode(text, add_special=False, parse_special=True)
        names[architecture] = tokenizer.decode(ids, skip_special=False)
        assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text  # of users: as it is
    assert names == {"llama": text, "phi3": "<|user|>Hi<|end|><|endoftext|>\n"}
