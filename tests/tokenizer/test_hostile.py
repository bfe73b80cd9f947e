"""Broken and hostile files: one TokenizerError that says where, never a crash."""

from __future__ import annotations

import json
import random
import struct

import numpy as np
import pytest

from olivine.errors import TokenizerError
from olivine.tokenizer import from_folder, from_gguf, from_qwen3c
from olivine.tokenizer.bpe import LONGEST_MERGED_PIECE, merges_by_rank
from tokenizer import trained
from tokenizer.samples import KEY, byte_level_metadata, qwen3c_file, write_folder


def byte_level() -> dict:
    return byte_level_metadata(trained.byte_level_data("gpt-2"), "gpt-2")


def spm() -> dict:
    return trained.sentencepiece_metadata(trained.sentencepiece(True), True)


BROKEN = [
    (byte_level, "model", None),
    (byte_level, "model", "bert"),
    (byte_level, "model", 7),
    (byte_level, "model", ["gpt2"]),
    (byte_level, "pre", "no-such"),
    (byte_level, "pre", 3),
    (byte_level, "tokens", None),
    (byte_level, "tokens", []),
    (byte_level, "tokens", "abc"),
    (byte_level, "tokens", [1, 2, 3]),
    (byte_level, "tokens", ["a", b"b"]),
    (byte_level, "tokens", {"a": 1}),
    (byte_level, "token_type", [1, 2]),
    (byte_level, "token_type", "1111"),
    (byte_level, "token_type", ["1"] * 5000),
    (byte_level, "token_type", np.ones((5000, 2), np.int32)),
    (byte_level, "token_type", [1.5] * 5000),
    (byte_level, "token_type", [[1], [1, 2]]),
    (byte_level, "merges", ["ab"]),
    (byte_level, "merges", [" ab"]),
    (byte_level, "merges", ["ab "]),
    (byte_level, "merges", [""]),
    (byte_level, "merges", ["zzzz qqqq"]),
    (byte_level, "merges", ["h \udcff"]),
    (byte_level, "merges", [5]),
    (byte_level, "merges", 5),
    (byte_level, "bos_token_id", 99999),
    (byte_level, "bos_token_id", -5),
    (byte_level, "eos_token_id", "2"),
    (byte_level, "eos_token_id", 2.0),
    (byte_level, "eos_token_id", True),
    (byte_level, "eot_token_id", 10**30),
    (byte_level, "add_bos_token", 1),
    (byte_level, "add_bos_token", "yes"),
    (spm, "scores", None),
    (spm, "scores", [0.0]),
    (spm, "scores", [float("nan")] * 5000),
    (spm, "scores", ["x"] * 5000),
    (spm, "add_space_prefix", 0),
    (spm, "unknown_token_id", 5000),
]


@pytest.mark.parametrize(("make", "name", "value"), BROKEN)
def test_gguf_metadata_is_refused_by_key(make, name, value):
    metadata = make()
    metadata[KEY + name] = value
    if value is None:
        del metadata[KEY + name]
    with pytest.raises(TokenizerError, match=f"{KEY}{name}"):
        from_gguf(metadata)


def test_unknown_pre_tokenizer_lists_the_known_ones():
    with pytest.raises(TokenizerError, match=r"no-such.*gpt-2.*llama-bpe.*qwen2.*smollm"):
        from_gguf({**byte_level(), KEY + "pre": "no-such"})


def test_duplicates_keep_the_first_and_warn():
    metadata = byte_level()
    plain = from_gguf(metadata)
    there = plain.encode("hello")
    metadata[KEY + "tokens"] = metadata[KEY + "tokens"] + [plain.token(there[0])] * 2
    metadata[KEY + "token_type"] = [*metadata[KEY + "token_type"], 1, 1]
    tokenizer = from_gguf(metadata)
    assert tokenizer.encode("hello") == there
    assert "2 duplicates" in tokenizer.warnings[0]
    assert tokenizer.decode([tokenizer.vocab_size - 1]) == tokenizer.decode(there[:1])


def test_tokens_that_are_not_utf8_are_kept_as_bytes():
    metadata = spm()
    metadata[KEY + "tokens"][700] = "\udcff\udcfe"
    tokenizer = from_gguf(metadata)
    assert tokenizer.token_bytes(700) == b"\xff\xfe"
    assert "not valid UTF-8" in tokenizer.warnings[0]
    assert tokenizer.decode(tokenizer.encode("hello there")) == "hello there"


def test_missing_byte_tokens_become_unknown():
    metadata = spm()
    metadata[KEY + "tokens"] = [t if t != "<0xF3>" else "<gone>" for t in metadata[KEY + "tokens"]]
    tokenizer = from_gguf(metadata)
    assert tokenizer.encode("\U000e0101", add_special=False)[-1] == tokenizer.unk_id
    assert tokenizer.decode(tokenizer.encode("a\u0378")) == "a\u0378"  # other bytes still work


def test_merges_are_cut_at_the_first_space_that_is_not_the_first_character():
    metadata = {KEY + "model": "gemma4", KEY + "tokens": ["<u>", "<e>", "<b>", "<k>", " ", "x", " x", "xx"]}
    metadata |= {KEY + "token_type": [3, 3, 3, 2, 1, 1, 1, 1], KEY + "merges": ["  x", "x x"]}
    assert from_gguf(metadata).encode("xx", add_special=False) == [7]


def test_absent_special_ids_are_none():
    metadata = {**byte_level(), KEY + "bos_token_id": np.uint32(0xFFFFFFFF)}
    tokenizer = from_gguf(metadata)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.unk_id) == (None,) * 4


def test_random_metadata_never_escapes_the_error_tree():
    rng = random.Random(41)
    values = [
        None,
        "",
        "x",
        -1,
        0,
        3,
        2**40,
        1.5,
        True,
        [],
        ["a"],
        [""],
        [1],
        [1.0],
        {},
        np.zeros(3),
        ["a b"],
        b"x",
    ]
    for _ in range(300):
        metadata = rng.choice((byte_level, spm))()
        for key in rng.sample(sorted(metadata), 2):
            metadata[key] = rng.choice(values)
        try:
            tokenizer = from_gguf(metadata)
        except TokenizerError:
            continue
        tokenizer.decode(tokenizer.encode("hello <s> world \U000e0101", parse_special=True))


def test_long_pieces_cost_nothing():
    long = "a" * 1_000_000
    merges = merges_by_rank(["a", "aa", long, long + "b", "x" * (LONGEST_MERGED_PIECE + 1)], "here")
    assert merges == [("a", "a")]


def test_merges_are_all_splits_in_rank_order():
    pieces = ["ab", "a", "b", "c", "abc", "bc", "zz"]
    assert merges_by_rank(pieces, "here") == [("a", "b"), ("ab", "c"), ("a", "bc"), ("b", "c")]
    rng = random.Random(42)
    words = list({"".join(rng.choices("abç🚀", k=rng.randint(1, 6))) for _ in range(800)})
    known = set(words)
    expected = [
        (w[:k], w[k:]) for w in words for k in range(len(w) - 1, 0, -1) if w[:k] in known and w[k:] in known
    ]
    assert len(expected) > 500
    assert merges_by_rank(words, "here") == expected


# tokenizer.model


def model_folder(tmp_path, data: bytes):
    (tmp_path / "tokenizer.model").write_bytes(data)
    return tmp_path


def test_cut_and_flipped_sentencepiece_files(tmp_path):
    """Every outcome is a tokenizer that works or a TokenizerError."""
    good = trained.sentencepiece(True)
    rng = random.Random(43)
    refused = 0
    for _ in range(150):
        data = bytearray(good)
        if rng.random() < 0.5:
            del data[rng.randrange(len(data)) :]
        else:
            for _ in range(rng.randint(1, 6)):
                data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            tokenizer = from_folder(model_folder(tmp_path, bytes(data)))
            tokenizer.decode(tokenizer.encode("hello <s> there", parse_special=True))
        except TokenizerError as error:
            assert "tokenizer.model" in str(error) or "encoding" in str(error)
            refused += 1
    assert refused > 50


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "no pieces"),
        (b"\xff" * 9, "runs on"),  # a number that does not end
        (b"\x80" * 10 + b"\x01\x00", "runs on"),  # a number of eleven bytes
        (b"\x0a\xff\xff\xff\xff\x0f", "past the end"),
        (b"\x0a\x02\x0a\x05", "past the end"),  # inside a piece
        (b"\x0a\x04\x15\x00\x00\x00", "past the end"),  # a float of three bytes
        (b"\x0b", "wire type 3"),
        (b"\x08\x01", "a number where a message"),
        (b"\x0a\x03\x0a\x01\xff", "piece 0 is not UTF-8"),
        (b"\x0a\x05\x0a\x01a\x18\x09", "type 9"),
        (b"\x0a\x03\x0a\x01a", "model type 1"),  # unigram, the default
        (b"\x0a\x03\x0a\x01a\x12\x02\x18\x04", "model type 4"),
        (b"\x0a\x08\x0a\x01a\x15\x00\x00\xc0\x7f", "score nan"),
        (b"\x0a\x05\x0a\x01a\x10\x00", "not a float"),
    ],
)
def test_broken_sentencepiece_files(data, problem, tmp_path):
    with pytest.raises(TokenizerError, match=rf"tokenizer\.model: .*{problem}"):
        from_folder(model_folder(tmp_path, data))


# Hugging Face folders


def test_empty_folder_says_what_is_missing(tmp_path):
    with pytest.raises(TokenizerError, match=r"neither tokenizer\.json nor tokenizer\.model"):
        from_folder(tmp_path)


def test_a_folder_with_mistrals_own_tokenizer_says_what_to_download(tmp_path):
    (tmp_path / "tekken.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"tekken\.json is Mistral's own form: download tokenizer\.json"):
        from_folder(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "{" * 10000,
        '{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}, "added_tokens": []}',
        '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}, "added_tokens": []}',
        '{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}, "added_tokens": []}',
        '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "added_tokens": [{"id": 0}]}',
    ],
)
def test_broken_tokenizer_json(text, tmp_path):
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        from_folder(write_folder(tmp_path, text))


def test_one_id_beyond_all_others_is_refused_and_not_counted_up_to(tmp_path):
    data = trained.byte_level_data("gpt-2")
    data["model"]["vocab"]["zzqq"] = 4_000_000_000
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: 4000000000 is not a token id"):
        from_folder(write_folder(tmp_path, json.dumps(data)))


def test_an_added_token_with_an_id_beyond_all_others_is_left_out(tmp_path):
    data = trained.byte_level_data("gpt-2")
    data["added_tokens"].append({**data["added_tokens"][-1], "id": 4_000_000_000, "content": "<|far|>"})
    tokenizer = from_folder(write_folder(tmp_path, json.dumps(data)))
    assert "added_tokens: 4000000000 of '<|far|>' is not a token id" in tokenizer.warnings
    assert tokenizer.id_of("<|far|>") is None and tokenizer.vocab_size < 10_000
    tokenizer.fit(tokenizer.vocab_size)


def test_added_token_on_a_taken_id_is_refused(tmp_path):
    data = trained.byte_level_data("gpt-2")
    data["added_tokens"][-1]["id"] = 5
    with pytest.raises(TokenizerError, match="added_tokens"):
        from_folder(write_folder(tmp_path, json.dumps(data)))


@pytest.mark.parametrize(
    ("stem", "content"),
    [
        ("tokenizer_config", []),
        ("tokenizer_config", {"eos_token": 5}),
        ("tokenizer_config", {"eos_token": {"text": "x"}}),
        ("tokenizer_config", {"eos_token": "\ud800"}),
        ("tokenizer_config", {"added_tokens_decoder": {"x": {"content": "a"}}}),
        ("tokenizer_config", {"added_tokens_decoder": {"9" * 5000: {"content": "a"}}}),
        ("tokenizer_config", {"added_tokens_decoder": {"7": "a"}}),
        ("tokenizer_config", {"added_tokens_decoder": {"7": {"content": "a", "special": "yes"}}}),
        ("tokenizer_config", {"added_tokens_decoder": 5}),
        ("tokenizer_config", {"additional_special_tokens": "abc"}),
        ("special_tokens_map", {"bos_token": []}),
        ("generation_config", {"eos_token_id": "2"}),
        ("generation_config", {"eos_token_id": [1, -1]}),
        ("generation_config", {"eos_token_id": True}),
        ("config", {"vocab_size": 10**12}),
        ("config", {"text_config": {"eos_token_id": 1.5}}),
        ("added_tokens", {"<x>": "5"}),
    ],
)
def test_broken_settings_name_their_file(stem, content, tmp_path):
    with pytest.raises(TokenizerError, match=rf"{stem}\.json"):
        from_folder(write_folder(tmp_path, trained.byte_level("gpt-2"), **{stem: content}))


def test_ids_that_the_vocabulary_does_not_have_are_dropped(tmp_path):
    settings = {"generation_config": {"eos_token_id": [5000, 3], "bos_token_id": 6000}}
    tokenizer = from_folder(write_folder(tmp_path, trained.byte_level("gpt-2"), **settings))
    assert (tokenizer.eos_id, tokenizer.bos_id) == (None, None)
    assert 3 in tokenizer.stop_ids
    assert max(tokenizer.stop_ids) < tokenizer.vocab_size
    assert len(tokenizer.warnings) == 2


# qwen3.c


def test_broken_qwen3c_files(tmp_path):
    good = qwen3c_file(trained.byte_level_data("qwen2"), 1200, 1202)
    file = tmp_path / "x.tokenizer"

    def refused(data: bytes, match: str, vocab_size: int = 1300) -> None:
        file.write_bytes(data)
        with pytest.raises(TokenizerError, match=match) as caught:
            from_qwen3c(file, vocab_size)
        assert "x.tokenizer" in str(caught.value)

    refused(b"", "header")
    refused(good[:11], "header")
    refused(good[:12], "no tokens|outside")
    refused(good[:-1], "token 1204")
    refused(good + b"\0\0\0", "cut short")
    refused(good + struct.pack("<fI", 0, 2**32 - 1), "token 1205")
    refused(good, "more tokens", vocab_size=1204)
    refused(struct.pack("<III", 1, 0, 0) + good[12:], "of 1 allowed")
    refused(good[:4] + struct.pack("<II", 9999, 0) + good[12:], "BOS id")
    refused(good[:8] + struct.pack("<I", 9999) + good[12:], "EOS id")
    refused(good + struct.pack("<fI", -1e6, 2) + b"\xff\xfe", "not text")
    with pytest.raises(TokenizerError, match=r"absent\.tokenizer"):
        from_qwen3c(tmp_path / "absent.tokenizer", 10)


def test_repeated_qwen3c_tokens_keep_the_first(tmp_path):
    good = qwen3c_file(trained.byte_level_data("qwen2"), 1200, 1202)
    (tmp_path / "t").write_bytes(good + struct.pack("<fI", -1.0, 1) + b"a")
    tokenizer = from_qwen3c(tmp_path / "t", 1300)
    assert "repeats" in tokenizer.warnings[0]
    assert tokenizer.encode("a") == [tokenizer.id_of("a")] != [1205]
    assert tokenizer.decode([1205]) == "a"
