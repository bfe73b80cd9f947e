"""How byte-level models cut text before merging, by the name that GGUF's `tokenizer.ggml.pre` gives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = _WORDS % r"\p{N}"
LLAMA3 = _WORDS % r"\p{N}{1,3}"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@dataclass(frozen=True)
class Pre:
    """One way to pre-tokenize: each pattern in turn cuts what the ones before it left."""

    patterns: tuple[str, ...]
    nfc: bool = False  # the published tokenizer composes characters first
    ignore_merges: bool = False  # a pre-token that is itself in the vocabulary is taken whole
    add_bos: bool = False  # when the file does not say

    def normalizer(self) -> Any:
        """The library's normalizer, or None."""
        return normalizers.NFC() if self.nfc else None

    def pre_tokenizer(self) -> Any:
        """The library's pre-tokenizer; it ends in the byte alphabet."""
        cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence(
            [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )


_GPT2 = Pre((GPT2,))
_DIGITS = Pre((r"\p{N}", GPT2))
_QWEN2 = Pre((QWEN,), nfc=True)
_LLAMA3 = Pre((LLAMA3,), ignore_merges=True, add_bos=True)

PRE_TOKENIZERS: dict[str, Pre] = {
    # What llama.cpp does for files that name nothing better.
    "default": Pre((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "mpt": _GPT2,
    "olmo": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "command-r": _DIGITS,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
}
