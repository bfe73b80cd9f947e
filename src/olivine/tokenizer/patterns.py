"""Pre-tokenizers of BPE models, by their names in GGUF's `tokenizer.ggml.pre`.

The names are those of llama.cpp. The patterns are those of the published tokenizers, even if llama.cpp, whose
regex engine has fewer character classes, uses simpler ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers

from olivine.tokenizer.bpe import SPACE


@dataclass(frozen=True)
class Pre:
    """A pre-tokenizer: each pattern splits the pieces that the patterns before it left."""

    patterns: tuple[str, ...]
    after_bytes: tuple[str, ...] = ()  # patterns that split the text after it is in the byte alphabet
    nfc: bool = False  # NFC normalization comes first
    ignore_merges: bool = False  # a pre-token that is itself in the vocabulary is taken whole
    add_bos: bool = False  # if the file does not say
    byte_level: bool = True  # else the vocabulary is of characters, with byte fallback to <0xXX>
    escape_spaces: bool = False  # SentencePiece's way: a space is ▁

    def normalizer(self) -> Any:
        """The library's normalizer, or None."""
        if self.escape_spaces:
            return normalizers.Replace(" ", SPACE)
        return normalizers.NFC() if self.nfc else None

    def pre_tokenizer(self) -> Any:
        """The library's pre-tokenizer, or None if texts are not split."""
        cuts = [*_splits(self.patterns)]
        if self.byte_level:
            cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        cuts += _splits(self.after_bytes)
        return pre_tokenizers.Sequence(cuts) if cuts else None


def _splits(patterns: Iterable[str]) -> Iterator[Any]:
    return (pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns)


# ---- the patterns; their parts are letters, digits, marks and blanks

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LEAD = r"[^\r\n\p{L}\p{N}]?"  # one character that may precede a word
_MARKS = r" ?[^\s\p{L}\p{N}]+"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(digits: str, *, letters: str = r"\p{L}+", marks: str = _MARKS + r"[\r\n]*") -> str:
    """Words of any case, as in cl100k."""
    return f"{_CONTRACTION}|{_LEAD}{letters}|{digits}|{marks}|{_BLANKS}"


def _cased(
    digits: str, *, contraction: str = f"{_CONTRACTION}?", ends: str = r"[\r\n/]*", but: str = ""
) -> str:
    """Words that end before a capital after a small letter, as in o200k."""
    upper = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]"
    lower = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]"
    words = f"{_LEAD}{upper}*{lower}+{contraction}|{_LEAD}{upper}+{lower}*{contraction}"
    return f"{words}|{digits}|{_MARKS}{ends}|{_BLANKS}"


QWEN = _words(r"\p{N}")
LLAMA3 = _words(r"\p{N}{1,3}")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_O200K = _cased(r"\p{N}{1,3}")
_QWEN35 = _words(r"\p{N}", letters=r"[\p{L}\p{M}]+", marks=r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*")
_KIMI = r"[\p{Han}]+|" + _cased(r"\p{N}{1,3}", ends=r"[\r\n]*", but=r"&&[^\p{Han}]")
_JAIS2 = "|".join(
    [
        LLAMA3.removesuffix(r"|\s+(?!\S)|\s+"),
        *(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2")),
        r"\s{1}",
    ]
)
_EXAONE_MOE = (
    rf"{_CONTRACTION}|{_LEAD}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}|{_MARKS}[\r\n/]?"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_PUNCTUATION = r"[\p{P}$+<=>^`|~]+"
_THREE_DIGITS = r"[0-9][0-9][0-9]"
_BY_LINE = r"[^\n]+|[\n]+"

# Letters of the scripts that have capitals, for DeepSeek's first models.
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"
    "\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b"
    "\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b"
    "\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)
_MARKS_OF_BOTH_WIDTHS = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"
_EAST_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_HAN_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_YOUTU_SCRIPTS = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c"
    f"\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|{_HAN_AND_KANA}"
)
_AFMOE_SCRIPTS = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BLANKS}"
)

# Digits in threes from the right. The published patterns look at the rest of a number at each of its digits,
# which takes quadratic time on a long one. These look where it begins; other matches begin where one ends.
# Published as \p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N})).
_AFMOE_DIGITS = r"(?<!\p{N})\p{N}{1,3}(?=(?>(?:\p{N}{3})*)(?!\p{N}))|\p{N}{3}"
# Published as \d{1,3}(?=(?:\d{3})*\b): a number before a letter is no match, but part of the text around it.
_COHERE_DIGITS = r"(?<=\d)\d{3}|\d{1,3}(?=(?>(?:\d{3})*)\b)|(?>(?:\D+|(?>\d+)\B)+)"
# Published as (?=(\d{3})+(?!\d)), a place to cut at. The matches here are what is between two of them: three
# digits with all that follows, numbers of one or two digits too, up to the next place.
_TO_NEXT_THREE = r"\D*(?>(?:\d{1,2}(?!\d)\D*)*)(?:\d{1,2}(?=(?>(?:\d{3})+)(?!\d)))?"
_SUPERBPE_DIGITS = rf"\A(?!(?>(?:\d{{3}})+)(?!\d)){_TO_NEXT_THREE}|\d{{3}}(?:(?!\d){_TO_NEXT_THREE})?"

# ---- what names share

_GPT2 = Pre((GPT2,))
_NEOX = Pre((GPT2,), nfc=True)
_DIGITS = Pre((r"\p{N}", GPT2))
_QWEN2 = Pre((QWEN,), nfc=True)
_SINGLE_DIGITS = Pre((QWEN,))
_CL100K = Pre((LLAMA3,))
_LLAMA3 = Pre((LLAMA3,), ignore_merges=True, add_bos=True)
_GPT4O = Pre((_O200K,))
_DEEPSEEK_V3 = Pre((r"\p{N}{1,3}", _HAN_AND_KANA, _DEEPSEEK3))
_COHERE = Pre((_COHERE_DIGITS, _O200K))
_CHARACTERS = Pre((), byte_level=False, escape_spaces=True)

# The converter searches for a name in this order, so the most specific ones come first.
PRE_TOKENIZERS: dict[str, Pre] = {
    "qwen2": _QWEN2,
    "llama-bpe": _LLAMA3,
    "smollm": _DIGITS,
    "gpt-2": _GPT2,
    "tekken": Pre((_cased(r"\p{N}", contraction=""),), ignore_merges=True, add_bos=True),
    "gpt-4o": _GPT4O,
    "deepseek-v3": _DEEPSEEK_V3,
    "deepseek-llm": Pre(
        (
            r"[\r\n]",
            rf"\s?[{_CASED_LETTERS}]+",
            rf"\s?[{_MARKS_OF_BOTH_WIDTHS}]+",
            r"(?<!\s)\s+$",  # published as \s+$, which takes quadratic time on a long run of spaces
            _EAST_ASIAN,
            r"\p{N}",
        )
    ),
    "deepseek-coder": Pre((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, r"\p{N}")),
    "command-r": Pre((r"\p{N}", GPT2), nfc=True),
    "mpt": _NEOX,
    "dbrx": _CL100K,
    "stablelm2": _SINGLE_DIGITS,
    "qwen35": Pre((_QWEN35,), nfc=True),
    "falcon": Pre((_PUNCTUATION, GPT2), after_bytes=(r"\p{N}+", _THREE_DIGITS)),
    "bloom": Pre((_BLOOM,)),
    "viking": Pre((_BLOOM, r"\p{N}")),
    "seed-coder": Pre((_words(r"\p{N}{1}", marks=r" ?[^\s\p{L}\p{N}\r\n]+"),)),
    "kimi-k2": Pre((_KIMI,)),
    "superbpe": Pre((r"\p{N}+", _SUPERBPE_DIGITS)),
    "tiny_aya": _COHERE,
    "afmoe": Pre((_AFMOE_DIGITS, _AFMOE_SCRIPTS, _DEEPSEEK3)),
    "laguna": Pre((_BY_LINE, QWEN)),
    "exaone-moe": Pre((_EXAONE_MOE,)),
    "minicpm5": Pre((r"\p{N}{1,3}", _words(r"\p{N}+")), ignore_merges=True),
    "jais-2": Pre((_JAIS2,)),
    "youtu": Pre((_YOUTU_SCRIPTS, _cased(r"\p{N}")), ignore_merges=True),
    "granite-embed-multi-97m": Pre((_O200K,), ignore_merges=True),
    "chameleon": Pre(
        (
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT2,
        ),
        add_bos=True,
    ),
    # llama.cpp's default.
    "default": Pre((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", _THREE_DIGITS)),
    # Other names for the above.
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "falcon-h1": _LLAMA3,
    "pixtral": _LLAMA3,
    "midm-2.0": _LLAMA3,
    "lfm2": _LLAMA3,
    "jina-v5-nano": _LLAMA3,
    "deepseek-r1-qwen": _QWEN2,
    "f2llmv2": _QWEN2,
    "kormo": _SINGLE_DIGITS,
    "megrez": _SINGLE_DIGITS,
    "hunyuan": _SINGLE_DIGITS,
    "solar-open": _SINGLE_DIGITS,
    "grok-2": _SINGLE_DIGITS,
    "bailingmoe": _SINGLE_DIGITS,  # published with possessive quantifiers, which change nothing
    "bailingmoe2": _SINGLE_DIGITS,
    "llada-moe": _SINGLE_DIGITS,
    "smaug-bpe": _CL100K,
    "chatglm-bpe": _CL100K,
    "glm4": _CL100K,
    "phi-2": _GPT2,
    "jina-es": _GPT2,
    "jina-de": _GPT2,
    "jina-v1-en": _GPT2,
    "jina-v2-es": _GPT2,
    "jina-v2-de": _GPT2,
    "jina-v2-code": _GPT2,
    "roberta-bpe": _GPT2,
    "gigachat": _GPT2,
    "a.x-4.0": _GPT2,
    "mellum": _GPT2,
    "exaone4": _GPT2,
    "jais": _GPT2,
    "trillion": _GPT2,
    "granite-docling": _GPT2,
    "olmo": _NEOX,
    "modern-bert": _NEOX,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "codeshell": _DIGITS,
    "exaone": _DIGITS,
    "minerva-7b": _DIGITS,
    "mellum2": _DIGITS,
    "poro-chat": Pre((_BLOOM,)),
    "gpt3-finnish": Pre((_BLOOM,)),
    "llama4": _GPT4O,
    "kanana2": _GPT4O,
    "talkie": _GPT4O,
    "minimax-m2": _GPT4O,
    "cohere2moe": _COHERE,
    "hunyuan-dense": _DEEPSEEK_V3,
    "joyai-llm": _DEEPSEEK_V3,
    # Vocabularies of characters.
    "gemma4": _CHARACTERS,
    "granite-embed-multi-311m": _CHARACTERS,
    "sarvam-moe": _CHARACTERS,
    "whitespace": Pre((r"\S+",), byte_level=False),
}
