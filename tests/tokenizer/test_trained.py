"""Every source against the library that trained it, on small tokenizers made here."""

from __future__ import annotations

import json
import re
import struct
import time
import unicodedata

import pytest
from tokenizers import Tokenizer as Native

from olivine.tokenizer import from_folder, from_gguf, from_qwen3c
from oracles import sampled
from tokenizer import trained
from tokenizer.samples import KEY, byte_level_metadata, disagreements, qwen3c_file, texts, write_folder

COUNT = 2000


def native(pre: str, *, parse: bool) -> Native:
    tokenizer = Native.from_str(trained.byte_level(pre))
    tokenizer.encode_special_tokens = not parse
    return tokenizer


def check_byte_level(tokenizer, pre: str) -> None:
    samples = texts(COUNT, 11, trained.SPECIAL + trained.SHOWN)
    for parse in (False, True):
        oracle = native(pre, parse=parse)
        assert not disagreements(
            lambda t, p=parse: tokenizer.encode(t, add_special=False, parse_special=p),
            lambda t, o=oracle: o.encode(t, add_special_tokens=False).ids,
            samples,
        )
    oracle = native(pre, parse=True)
    ids = [oracle.encode(t, add_special_tokens=False).ids for t in samples]
    ids += [i[n:] for n, i in enumerate(ids[:500]) if n < len(i)]  # starts inside characters
    for skip in (False, True):
        assert not disagreements(
            lambda i, s=skip: tokenizer.decode(i, skip_special=s),
            lambda i, s=skip: oracle.decode(i, skip_special_tokens=s),
            ids,
        )
    assert tokenizer.kind == "byte-level BPE"
    assert set(tokenizer.special_tokens) == set(trained.SPECIAL)
    assert {tokenizer.id_of(name) for name in ("<|endoftext|>", "<|im_end|>")} == tokenizer.stop_ids


@pytest.mark.parametrize("pre", list(trained.PRE))
def test_byte_level_folder(pre, tmp_path):
    check_byte_level(from_folder(write_folder(tmp_path, trained.byte_level(pre))), pre)


@pytest.mark.parametrize("pre", list(trained.PRE))
def test_byte_level_gguf(pre):
    data = trained.byte_level_data(pre)
    tokenizer = from_gguf(byte_level_metadata(data, pre, padded_to=1300))
    check_byte_level(tokenizer, pre)
    assert tokenizer.vocab_size == 1300
    assert tokenizer.decode([1299]) == ""


@pytest.mark.parametrize("source", ["folder", "gguf"])
def test_llama3_takes_a_known_pre_token_whole(source, tmp_path):
    """Also one that no merge builds, which is what `ignore_merges` is for."""
    data = trained.byte_level_data("llama-bpe")
    words = ["Ġtoken", "Ġpeople", "Ġthe"]
    data["model"]["merges"] = [m for m in data["model"]["merges"] if "".join(m) not in words]
    if source == "folder":
        tokenizer = from_folder(write_folder(tmp_path, json.dumps(data)))
    else:
        tokenizer = from_gguf(byte_level_metadata(data, "llama-bpe"))
    for word in words:
        assert tokenizer.encode(word.replace("Ġ", " "), add_special=False) == [data["model"]["vocab"][word]]


def test_qwen3c_fill_in_the_middle_tokens_are_ordinary(tmp_path):
    """As Qwen's published files have them, whatever they look like."""
    data = qwen3c_file(trained.byte_level_data("qwen2"), 0, 0)
    for name in (b"<|fim_prefix|>", b"<|new|>"):
        data += struct.pack("<fI", -1e6, len(name)) + name
    (tmp_path / "t").write_bytes(data)
    tokenizer = from_qwen3c(tmp_path / "t", 1300)
    assert tokenizer.encode("<|fim_prefix|>") == [1205]
    assert tokenizer.decode([1205]) == "<|fim_prefix|>"
    assert 1206 not in tokenizer.encode("<|new|>")
    assert tokenizer.special_tokens["<|new|>"] == 1206


def test_qwen3c(tmp_path):
    data = trained.byte_level_data("qwen2")
    bos, eos = (
        next(e["id"] for e in data["added_tokens"] if e["content"] == n) for n in trained.SPECIAL[::2]
    )
    file = tmp_path / "q.tokenizer"
    file.write_bytes(qwen3c_file(data, bos, eos))
    tokenizer = from_qwen3c(file, 1300)
    check_byte_level(tokenizer, "qwen2")
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (bos, eos, 1300)
    assert tokenizer.encode("hello") == tokenizer.encode("hello", add_special=False)
    assert tokenizer.decode([1299]) == ""


@pytest.mark.parametrize("source", ["folder", "gguf"])
def test_gemma4(source, tmp_path):
    text = trained.gemma4()
    names = trained.GEMMA4_SPECIAL + trained.GEMMA4_SHOWN
    if source == "folder":
        tokenizer = from_folder(write_folder(tmp_path, text))
    else:
        tokenizer = from_gguf(trained.gemma4_metadata())
    samples = texts(COUNT, 16, names)
    for parse in (False, True):
        oracle = Native.from_str(text)
        oracle.encode_special_tokens = not parse
        assert not disagreements(
            lambda t, p=parse: tokenizer.encode(t, add_special=False, parse_special=p),
            lambda t, o=oracle: o.encode(t, add_special_tokens=False).ids,
            samples,
        )
    ids = [oracle.encode(t, add_special_tokens=False).ids for t in samples]
    assert any(tokenizer.id_of("<0xF3>") in i for i in ids)
    assert not disagreements(
        lambda i: tokenizer.decode(i, skip_special=False),
        lambda i: oracle.decode(i, skip_special_tokens=False),
        ids,
    )
    assert tokenizer.encode("hi")[0] == tokenizer.id_of("<bos>")
    assert tokenizer.stop_ids == {tokenizer.id_of("<eos>"), tokenizer.id_of("<turn|>")}
    assert set(tokenizer.special_tokens) == set(names)
    for name in trained.GEMMA4_SHOWN:  # hidden where the file calls them special, never for users to write
        assert tokenizer.decode([tokenizer.id_of(name)]) == (name if source == "gguf" else "")
        assert tokenizer.id_of(name) not in tokenizer.encode(f"a{name}b")


def test_tool_markers_are_guarded_where_tokenizer_json_calls_them_ordinary(tmp_path):
    data = json.loads(trained.gemma4())
    for entry in data["added_tokens"]:
        entry["special"] = False
    tokenizer = from_folder(write_folder(tmp_path, json.dumps(data)))
    oracle = Native.from_str(trained.gemma4())
    oracle.encode_special_tokens = True
    for name in [*trained.GEMMA4_SHOWN, "<|turn>", "<turn|>"]:
        assert tokenizer.encode(f"a{name}b") == oracle.encode(f"a{name}b").ids
        assert tokenizer.encode(name, add_special=False, parse_special=True) == [tokenizer.id_of(name)]
        assert tokenizer.decode([tokenizer.id_of(name)]) == ("" if "turn" in name else name)


def test_families_cut_text_differently():
    """Guards the comparisons above: the pre-tokenizers are not all the same on these texts."""
    samples = texts(300, 12)
    cuts = {
        pre: [native(pre, parse=False).pre_tokenizer.pre_tokenize_str(t) for t in samples]
        for pre in trained.PRE
    }
    assert all(cuts[a] != cuts[b] for a in cuts for b in cuts if a < b)


def library_of(proto: bytes):
    spm = pytest.importorskip("sentencepiece")
    return spm.SentencePieceProcessor(model_proto=proto)


def sentencepiece_texts() -> list[str]:
    return texts(COUNT, 13, [*trained.USER_DEFINED[:2], "▁", "▁▁", "\n", "é"])


@pytest.mark.parametrize(
    ("dummy_prefix", "options"),
    [
        (False, {}),
        (True, {}),
        (True, {"bytes_": False}),
        (True, {"trim": True}),
        (True, {"rule": "nmt_nfkc", "trim": True}),
        (False, {"rule": "nfkc", "trim": False}),
    ],
)
def test_tokenizer_model(dummy_prefix, options, tmp_path):
    proto = trained.sentencepiece(dummy_prefix, **options)
    library = library_of(proto)
    (tmp_path / "tokenizer.model").write_bytes(proto)
    tokenizer = from_folder(tmp_path)
    samples = sentencepiece_texts()
    if "rule" in options:
        # The `tokenizers` library applies a character map to graphemes, SentencePiece to the longest match,
        # so combining sequences differ. None of the supported families has a character map, and a warning
        # says so.
        assert "character map" in tokenizer.warnings[0]
        samples = [t for t in samples if not any(unicodedata.combining(c) or "ᄀ" <= c <= "ᇿ" for c in t)]
    else:
        assert tokenizer.warnings == []
    assert not disagreements(lambda t: tokenizer.encode(t, add_special=False), library.encode, samples)
    ids = [library.encode(t) for t in samples]
    if options.get("bytes_", True):
        assert not disagreements(tokenizer.decode, library.decode, ids)
    assert tokenizer.encode("a") == [1, *library.encode("a")]
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.pad_id) == (1, 2, 0, None)
    assert tokenizer.kind == "SentencePiece BPE"
    assert tokenizer.vocab_size == len(library)


def test_tokenizer_model_parses_special_tokens_as_separate_texts(tmp_path):
    """What follows a special token is a fragment of its own, with its own dummy prefix."""
    proto = trained.sentencepiece(True)
    library = library_of(proto)
    (tmp_path / "tokenizer.model").write_bytes(proto)
    tokenizer = from_folder(tmp_path)
    special = {name: library.piece_to_id(name) for name in ("<s>", "</s>", "<ctrl>", "<end_of_turn>")}
    cut = re.compile("(" + "|".join(special) + ")")

    def expected(text: str) -> list[int]:
        parts = cut.split(text)
        return [i for part in parts for i in ([special[part]] if part in special else library.encode(part))]

    samples = texts(COUNT, 14, [*special, "<tag>"])
    assert not disagreements(
        lambda t: tokenizer.encode(t, add_special=False, parse_special=True), expected, samples
    )
    assert not disagreements(lambda t: tokenizer.encode(t, add_special=False), library.encode, samples)


def test_turn_markers_are_special_though_the_model_calls_them_user_defined(tmp_path):
    """Gemma's own tokenizer.model does."""
    symbols = ("<start_of_turn>", "<tag>")
    proto = trained.sentencepiece(False, symbols=symbols)
    library = library_of(proto)
    (tmp_path / "tokenizer.model").write_bytes(proto)
    tokenizer = from_folder(tmp_path)
    turn, tag = map(library.piece_to_id, symbols)
    assert library.encode("a<start_of_turn><tag>")[1:] == [turn, tag]
    assert tokenizer.encode("a<start_of_turn><tag>", add_special=False, parse_special=True)[1:] == [turn, tag]
    ids = tokenizer.encode("a<start_of_turn><tag>")
    assert tag in ids
    assert turn not in ids
    assert tokenizer.decode([turn, tag]) == "<tag>"
    assert tokenizer.decode(ids) == "a<start_of_turn><tag>"


@pytest.mark.parametrize("kind", [2, 3, 5, 6])
def test_only_normal_pieces_are_merged(kind):
    """A piece of another type is as good as absent, as a result and as a step."""
    metadata = trained.sentencepiece_metadata(trained.sentencepiece(False), False)
    tokens = metadata[KEY + "tokens"]
    step = tokens.index("ab")
    absent = {**metadata, KEY + "tokens": [t if i != step else "\ue000gone" for i, t in enumerate(tokens)]}
    other = {
        **metadata,
        KEY + "token_type": [t if i != step else kind for i, t in enumerate(metadata[KEY + "token_type"])],
    }
    reference, tokenizer = from_gguf(absent), from_gguf(other)
    samples = texts(300, 17)
    assert not disagreements(tokenizer.encode, reference.encode, samples)
    assert len(disagreements(from_gguf(metadata).encode, reference.encode, samples)) == 5


def test_sentencepiece_defaults():
    """A GGUF without special ids and flags: BOS 1 is added, EOS 2, unknown 0, a space goes in front."""
    metadata = trained.sentencepiece_metadata(trained.sentencepiece(True), True)
    kept = {k: v for k, v in metadata.items() if not k.endswith("_token_id") and not k.endswith("prefix")}
    tokenizer = from_gguf(kept)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.pad_id) == (1, 2, 0, None)
    assert tokenizer.encode("the") == from_gguf(metadata).encode("the")


@pytest.mark.parametrize("dummy_prefix", [False, True])
def test_sentencepiece_gguf(dummy_prefix):
    """A GGUF cuts raw text at user-defined tokens first, and every fragment gets the prefix."""
    # With a prefix, "▁▁" could also come from the prefix and a space: the library takes it, a raw cut cannot.
    symbols = trained.USER_DEFINED if not dummy_prefix else [s for s in trained.USER_DEFINED if "▁" not in s]
    proto = trained.sentencepiece(dummy_prefix, symbols=tuple(symbols))
    library = library_of(proto)
    tokenizer = from_gguf(trained.sentencepiece_metadata(proto, dummy_prefix, symbols))
    raw = {p.replace("▁", " "): library.piece_to_id(p) for p in symbols}
    cut = re.compile("(" + "|".join(sorted(map(re.escape, raw), key=len, reverse=True)) + ")")

    def expected(text: str) -> list[int]:
        return [i for part in cut.split(text) for i in ([raw[part]] if part in raw else library.encode(part))]

    samples = texts(COUNT, 15, ["<tag>", "</tag>", "\n", "é", "<s>", "<ctrl>"])
    assert not disagreements(lambda t: tokenizer.encode(t, add_special=False), expected, samples)
    if not dummy_prefix:
        assert not disagreements(lambda t: tokenizer.encode(t, add_special=False), library.encode, samples)
        assert [tokenizer.decode(expected(t)) for t in samples] == samples
    assert tokenizer.encode("a") == [1, *expected("a")]
    assert tokenizer.stop_ids == {2, library.piece_to_id("<end_of_turn>")}


def test_leading_space_is_stripped_once_and_never_in_a_stream():
    proto = trained.sentencepiece(True)
    tokenizer = from_gguf(trained.sentencepiece_metadata(proto, True))
    for text in ("hello there", " hello", "  hello", "naive x"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == library_of(proto).decode(ids) == text
        stream = tokenizer.stream()
        assert "".join(map(stream.push, ids)) + stream.flush() == " " + text


def test_bos_as_transformers_adds_it(tmp_path):
    transformers = pytest.importorskip("transformers")
    names = {
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    for pre, config in [
        ("llama-bpe", names),
        ("qwen2", names),
        ("qwen2", {**names, "add_bos_token": True}),
        ("qwen2", {**names, "add_bos_token": True, "add_eos_token": True}),
        ("llama-bpe", {**names, "add_bos_token": False}),
    ]:
        folder = write_folder(tmp_path, trained.byte_level(pre), tokenizer_config=config)
        oracle = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        tokenizer = from_folder(folder)
        assert tokenizer.encode("Hello there") == oracle.encode("Hello there"), (pre, config)
        assert (tokenizer.bos_id, tokenizer.eos_id) == (oracle.bos_token_id, oracle.eos_token_id)


def test_added_tokens_with_gaps_keep_the_ids_of_the_file(tmp_path):
    data = trained.byte_level_data("qwen2")
    data["added_tokens"][-1]["id"] += 10
    tokenizer = from_folder(write_folder(tmp_path, json.dumps(data)))
    wanted = data["added_tokens"][-1]["id"]
    assert tokenizer.encode("</think>") == [wanted]
    assert tokenizer.vocab_size == wanted + 1
    assert tokenizer.decode([wanted - 5, wanted]) == "</think>"
    assert tokenizer.encode("<think>") == [data["added_tokens"][-2]["id"]]


def test_added_tokens_decoder_applies(tmp_path):
    data = trained.byte_level_data("qwen2")
    top = data["added_tokens"][-1]["id"]
    decoder = {
        str(top + 1): {"content": "<new>", "special": True},
        str(top): {"content": "</think>", "special": True, "normalized": False},
    }
    config = {"added_tokens_decoder": decoder, "eos_token": {"content": "<new>"}}
    tokenizer = from_folder(
        write_folder(
            tmp_path, json.dumps(data), tokenizer_config=config, generation_config={"eos_token_id": [7, 8]}
        )
    )
    assert tokenizer.eos_id == top + 1
    assert {7, 8, top + 1} < tokenizer.stop_ids
    assert tokenizer.encode("<new></think>", parse_special=True) == [top + 1, top]
    assert {top, top + 1}.isdisjoint(tokenizer.encode("<new></think>"))
    assert tokenizer.decode([top + 1, top]) == ""


def test_tokens_that_the_settings_name_become_special(tmp_path):
    config = {"eos_token": "<think>", "additional_special_tokens": ["</think>"]}
    tokenizer = from_folder(write_folder(tmp_path, trained.byte_level("qwen2"), tokenizer_config=config))
    plain = from_folder(write_folder(tmp_path / "plain", trained.byte_level("qwen2")))
    assert len(plain.encode("<think></think>")) == 2
    assert tokenizer.decode(plain.encode("<think></think>")) == ""
    assert len(tokenizer.encode("<think></think>")) > 4
    assert tokenizer.eos_id == tokenizer.special_tokens["<think>"]


LONG_UNITS = ["a", " ", "<", "\n", "ab", "e\u0301", "\U000e0101", "word "]


@pytest.mark.parametrize("source", ["folder", "gguf", "qwen3c", "model", "spm-gguf"])
@pytest.mark.parametrize("unit", sampled.every(3, LONG_UNITS))
def test_long_texts_take_linear_time(source, unit, tmp_path):
    """Eight times the text may take 24 times as long, which noise allows for and 64 times does not."""
    if source == "folder":
        tokenizer = from_folder(write_folder(tmp_path, trained.byte_level("qwen2")))
    elif source == "gguf":
        tokenizer = from_gguf(byte_level_metadata(trained.byte_level_data("llama-bpe"), "llama-bpe"))
    elif source == "qwen3c":
        (tmp_path / "t").write_bytes(qwen3c_file(trained.byte_level_data("qwen2"), 0, 0))
        tokenizer = from_qwen3c(tmp_path / "t", 1300)
    elif source == "model":
        (tmp_path / "tokenizer.model").write_bytes(trained.sentencepiece(True))
        tokenizer = from_folder(tmp_path)
    else:
        tokenizer = from_gguf(trained.sentencepiece_metadata(trained.sentencepiece(False), False))

    def seconds(length: int) -> float:
        text = (unit * length)[:length]
        times = []
        for _ in range(2):
            started = time.process_time()
            tokenizer.encode(text)
            times.append(time.process_time() - started)
        return min(times)

    assert seconds(160_000) < 24 * max(seconds(20_000), 0.01)
