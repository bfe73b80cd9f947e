"""Every name that GGUF's `tokenizer.ggml.pre` may have, against the published pre-tokenizers."""

from __future__ import annotations

import functools
import json
import random

import pytest
from tokenizers import Tokenizer as Native

from olivine.convert.vocabulary import PROBE, from_hugging_face
from olivine.errors import TokenizerError
from olivine.tokenizer import from_folder, from_gguf
from olivine.tokenizer.patterns import PRE_TOKENIZERS
from tokenizer import published_patterns, trained
from tokenizer.samples import KEY, byte_level_metadata, disagreements, texts, write_folder

# All names that llama.cpp had in August 2026.
# fmt: off
NAMES = {
    "default", "minicpm5", "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0",
    "lfm2", "jina-v5-nano", "deepseek-llm", "deepseek-coder", "deepseek-v3", "youtu", "falcon", "mpt",
    "starcoder", "gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0",
    "mellum", "modern-bert", "jais-2", "gemma4", "granite-embed-multi-311m", "sarvam-moe", "jina-v1-en",
    "jina-v2-code", "roberta-bpe", "whitespace", "refact", "command-r", "qwen2", "deepseek-r1-qwen",
    "kormo", "f2llmv2", "qwen35", "stablelm2", "olmo", "dbrx", "smaug-bpe", "poro-chat", "glm4",
    "chatglm-bpe", "viking", "jais", "tekken", "smollm", "codeshell", "bloom", "gpt3-finnish", "exaone",
    "exaone4", "exaone-moe", "chameleon", "minerva-7b", "megrez", "gpt-4o", "llama4", "kanana2", "talkie",
    "granite-embed-multi-97m", "tiny_aya", "cohere2moe", "superbpe", "trillion", "granite-docling",
    "bailingmoe", "bailingmoe2", "llada-moe", "seed-coder", "hunyuan", "hunyuan-dense", "joyai-llm",
    "kimi-k2", "grok-2", "afmoe", "laguna", "minimax-m2", "solar-open", "mellum2",
}
# fmt: on
OF_CHARACTERS = {"gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace"}
NASTY = [
    PROBE,
    "HelloWorld iPhone XMLHttpRequest ÀÉîõ ΑΒγ ǅungla ʰaʰ e\u0301a\u0308 ﷺ don'T I'LLgo 's'S 'ſ they'Re it’s",
    "1 12 123 1234 12345 123456 1234567x1234567 12,345.678 ١٢٣٤ ½²³ⅧⅨ 3\u20e3 1234\u0301",
    "   a    b\n\n\n c \r\n\r\n \t\td  \n  e\u00a0\u00a0f\u2003\u3000g\u2028h\x85i\x0b\x0c  ",
    "漢字かなカナㄅㄆ한국어ㄱㄴ 日本語テスト。、「引用」！？：；，…—“”‘’〜 ･ﾟｱ 豈 𠀀𠀁 ｈｉ！",
    "कखि ขํ้ ไทย မြန်မာ ខ្មែរ ລາວ বাংলা العربية۔ تجربة، नमस्ते। ኢትዮጵያ ꦗꦮ ꆈꌠ",
    "<sentinel:12> IMGIMGABCDZ https://a.b/c?d=e&f=g //** x+=1; a<=b $x `q` ~|~ ^_^ ///\n\n/",
    "a" + " " * 700 + "b" + " " * 513 + "\n" + "\t" * 70 + "x" * 40 + "=" * 70,
]


@functools.cache
def samples() -> list[str]:
    return [*NASTY, *texts(300, 31)]


def test_every_name_is_known():
    assert len(NAMES) == 87
    assert set(PRE_TOKENIZERS) == NAMES
    assert {*published_patterns.STEPS, *OF_CHARACTERS} == NAMES


def published(name: str, **model) -> str:
    """A tokenizer.json with a small vocabulary and this pre-tokenizer."""
    data = trained.byte_level_data("gpt-2")
    pre = PRE_TOKENIZERS[name]
    data["pre_tokenizer"] = published_patterns.as_json(name)
    data["normalizer"] = {"type": "NFC"} if pre.nfc else None
    data["model"] |= {"ignore_merges": pre.ignore_merges, **model}
    return json.dumps(data)


@pytest.mark.parametrize("name", list(published_patterns.STEPS))
def test_text_is_cut_as_the_published_pre_tokenizer_cuts_it(name):
    theirs = Native.from_str(published(name)).pre_tokenizer
    ours = PRE_TOKENIZERS[name].pre_tokenizer()
    assert not disagreements(
        lambda text: [piece for piece, _ in ours.pre_tokenize_str(text)],
        lambda text: [piece for piece, _ in theirs.pre_tokenize_str(text)],
        samples(),
    )


# Their published patterns look at the rest of a number at each of its digits.
OF_THREES = ("superbpe", "tiny_aya", "afmoe")


@pytest.mark.parametrize("name", OF_THREES)
def test_numbers_are_cut_into_threes_as_published_whatever_stands_around_them(name):
    theirs = Native.from_str(published(name)).pre_tokenizer
    ours = PRE_TOKENIZERS[name].pre_tokenizer()
    rng = random.Random(3)
    letters = ("11111234½Ⅷ٣a_ .\n\u0301\u200dé中'-", "1½", "11111a .")
    assert not disagreements(
        lambda text: [piece for piece, _ in ours.pre_tokenize_str(text)],
        lambda text: [piece for piece, _ in theirs.pre_tokenize_str(text)],
        ["".join(rng.choices(rng.choice(letters), k=rng.randint(1, 30))) for _ in range(3000)],
    )


# A second; more than half an hour if the time grew with the square of the length.
@pytest.mark.timeout(120)
@pytest.mark.parametrize("after", ["", "a", "½"])
@pytest.mark.parametrize("name", OF_THREES)
def test_long_numbers_take_linear_time(name, after):
    pieces = PRE_TOKENIZERS[name].pre_tokenizer().pre_tokenize_str("1" * 400_000 + after)
    assert len(pieces) >= 400_000 // 3


# The first name of each way.
WAYS = list({pre: name for name, pre in reversed(PRE_TOKENIZERS.items()) if pre.byte_level}.values())


@pytest.mark.parametrize("name", WAYS)
def test_what_is_written_has_a_name_for_it_and_reads_alike(name, tmp_path):
    source = published(name)
    folder = write_folder(tmp_path, source)
    metadata = from_hugging_face(folder, from_folder(folder).vocab_size)
    written = PRE_TOKENIZERS[metadata[f"{KEY}pre"]]
    assert (
        written.nfc == PRE_TOKENIZERS[name].nfc
        and written.ignore_merges == PRE_TOKENIZERS[name].ignore_merges
    )
    for stored in (metadata[f"{KEY}pre"], name):
        read = from_gguf({**metadata, f"{KEY}pre": stored})
        theirs = Native.from_str(source)
        assert not disagreements(
            lambda text, t=read: t.encode(text, add_special=False),
            lambda text, t=theirs: t.encode(text, add_special_tokens=False).ids,
            samples()[:60],
        )


@pytest.mark.parametrize(
    "name", ["tekken", "deepseek-v3", "gpt-4o", "qwen2", "llama-bpe", "smollm", "gpt-2", "command-r", "dbrx"]
)
def test_the_name_that_others_write_is_the_one_written(name, tmp_path):
    folder = write_folder(tmp_path, published(name))
    assert from_hugging_face(folder, from_folder(folder).vocab_size)[f"{KEY}pre"] == name


def test_the_probe_tells_all_ways_apart():
    ways = {(pre.patterns, pre.after_bytes) for pre in PRE_TOKENIZERS.values() if pre.byte_level}
    cuts = {
        tuple(pre.pre_tokenizer().pre_tokenize_str(PROBE))
        for pre in PRE_TOKENIZERS.values()
        if pre.byte_level
    }
    assert len(ways) == len(cuts) == 25


def test_bos_is_added_where_the_name_says_so_and_the_file_nothing():
    data = trained.byte_level_data("gpt-2")
    bos = data["added_tokens"][0]["id"]
    for name, begins in (("tekken", True), ("llama-bpe", True), ("gpt-4o", False), ("deepseek-v3", False)):
        metadata = byte_level_metadata(data, name, bos_token_id=bos)
        assert from_gguf(metadata).encode("x")[:1] == ([bos] if begins else [data["model"]["vocab"]["x"]])
        assert from_gguf({**metadata, f"{KEY}add_bos_token": not begins}).encode("x")[:1] != (
            [bos] if begins else [data["model"]["vocab"]["x"]]
        )


def test_ignore_merges_may_differ_only_where_merges_make_every_token(tmp_path):
    """GGUF has no key for it: the name says it. Llama 3's way without it has a name, tekken's has none."""
    folder = write_folder(tmp_path, published("tekken", ignore_merges=False))
    rows = from_folder(folder).vocab_size
    assert from_hugging_face(folder, rows)[f"{KEY}pre"] == "tekken"
    data = json.loads(published("tekken", ignore_merges=False))
    data["model"]["merges"] = [m for m in data["model"]["merges"] if "".join(m) != "Ġthe"]
    write_folder(tmp_path, json.dumps(data))
    with pytest.raises(TokenizerError, match=r"ignore_merges: .*\(tekken\) only with it on"):
        from_hugging_face(folder, rows)


def test_a_way_without_a_name_is_refused(tmp_path):
    data = json.loads(published("gpt-2"))
    data["pre_tokenizer"]["pretokenizers"][0] = {
        "type": "Split",
        "pattern": {"Regex": r"\p{N}{1,4}|\D+"},
        "behavior": "Isolated",
        "invert": False,
    }
    folder = write_folder(tmp_path, json.dumps(data))
    with pytest.raises(TokenizerError, match="GGUF readers know no name for this way to cut text"):
        from_hugging_face(folder, from_folder(folder).vocab_size)


@pytest.mark.parametrize("name", ["gemma4", "granite-embed-multi-311m", "sarvam-moe"])
def test_vocabularies_of_characters_under_the_model_name_of_the_others(name):
    """`gpt2` with one of these names is what `gemma4` is, with BOS only where the file says so."""
    metadata = trained.gemma4_metadata()
    gemma4 = from_gguf(metadata)
    read = from_gguf({**metadata, f"{KEY}model": "gpt2", f"{KEY}pre": name})
    assert read.kind == "SentencePiece BPE"
    assert not disagreements(
        lambda text: read.encode(text, add_special=False),
        lambda text: gemma4.encode(text, add_special=False),
        samples()[:60],
    )


def test_whitespace_keeps_words_and_loses_spaces():
    tokens = ["<unk>", "a", "b", "ab", "é", "ba"]
    metadata = {
        f"{KEY}model": "whitespace",
        f"{KEY}pre": "whitespace",
        f"{KEY}tokens": tokens,
        f"{KEY}token_type": [2, 1, 1, 1, 1, 1],
        f"{KEY}merges": ["a b", "b a"],
    }
    read = from_gguf(metadata)
    assert read.encode("ab  ab\naé") == [3, 3, 1, 4]
