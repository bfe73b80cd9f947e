"""Tokenizers from the `tokenizer.ggml.*` metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, normalizers

from olivine.errors import TokenizerError, is_unicode
from olivine.tokenizer.bpe import (
    BYTE_PIECES,
    BYTE_TO_CHAR,
    LONGEST_MERGED_PIECE,
    SPACE,
    assemble,
    bpe_model,
    byte_level_bytes,
    library_errors,
    merges_by_rank,
    sentencepiece_bytes,
)
from olivine.tokenizer.lazy import Build, LazyEncoder
from olivine.tokenizer.names import ALWAYS_SPECIAL, is_guarded, looks_like_marker
from olivine.tokenizer.patterns import PRE_TOKENIZERS, Pre
from olivine.tokenizer.tokenizer import Tokenizer

KEY = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_NO_TOKEN = 0xFFFFFFFF  # some writers store "none" as -1 in a u32


def from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a GGUF file carries in its metadata."""
    model = _typed(metadata, "model", str)
    builders: dict[str, Callable[[_Source], Tokenizer]] = {
        "llama": _sentencepiece,
        "gpt2": _bpe,
        "whitespace": _bpe,
        "gemma4": _gemma4,
    }
    if model not in builders:
        what = "missing" if model is None else f"unknown tokenizer {model!r}"
        raise TokenizerError(f"{KEY}model: {what}; known are {', '.join(builders)}")
    return builders[model](_Source.read(metadata))


@dataclass
class _Source:
    """The validated arrays, and what all tokenizer models share."""

    metadata: Mapping[str, Any]
    tokens: list[str]
    types: npt.NDArray[np.int64]
    vocabulary: dict[str, int]  # tokens for the library: no duplicates, no padding, valid Unicode
    warnings: list[str]

    @classmethod
    def read(cls, metadata: Mapping[str, Any]) -> _Source:
        tokens = _strings(metadata, "tokens")
        if not tokens:
            raise TokenizerError(f"{KEY}tokens: missing or empty")
        warnings: list[str] = []
        types = _numbers(metadata, "token_type", "iu", len(tokens))
        if types is None:
            warnings.append(f"{KEY}token_type is missing: every token counts as normal")
            types = np.ones(len(tokens), np.int64)
        types = types.astype(np.int64)

        vocabulary = dict(zip(tokens, range(len(tokens)), strict=True))
        if count := len(tokens) - len(vocabulary):
            vocabulary = dict(zip(reversed(tokens), range(len(tokens) - 1, -1, -1), strict=True))
            warnings.append(f"{KEY}tokens: {count} duplicates; the first of each is used")
        for i in np.flatnonzero(types == UNUSED).tolist():
            if vocabulary.get(tokens[i]) == i:
                del vocabulary[tokens[i]]
        vocabulary.pop("", None)
        try:
            "".join(tokens).encode()
        except UnicodeEncodeError:
            broken = [text for text in vocabulary if not is_unicode(text)]
            for text in broken:
                del vocabulary[text]
            warnings.append(f"{KEY}tokens: {len(broken)} are not valid UTF-8; no text is encoded to them")
        return cls(metadata, tokens, types, vocabulary, warnings)

    def special_id(self, name: str, default: int | None = None) -> int | None:
        """The id stored under a `…_token_id` key."""
        value = _typed(self.metadata, name, int)
        if value is None:
            return default if default is not None and default < len(self.tokens) else None
        if value in (_NO_TOKEN, -1):
            return None
        if not 0 <= value < len(self.tokens):
            raise TokenizerError(f"{KEY}{name}: {value} is outside the vocabulary of {len(self.tokens)}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = _typed(self.metadata, name, bool)
        return default if value is None else value

    def text(self, name: str, default: str) -> str:
        value = _typed(self.metadata, name, str)
        return default if value is None else value

    def part(self, pieces: Collection[str] | None) -> dict[str, int]:
        """The vocabulary, or these pieces of it."""
        known = self.vocabulary
        return known if pieces is None else {piece: known[piece] for piece in pieces if piece in known}

    def characters(self) -> list[str]:
        return [piece for piece in self.vocabulary if len(piece) == 1]

    def warn_of_long_pieces(self) -> None:
        lengths = np.fromiter(map(len, self.tokens), np.int64, len(self.tokens))
        if lengths[self.types == NORMAL].max(initial=0) > LONGEST_MERGED_PIECE:
            self.warnings.append(
                f"{KEY}tokens: pieces longer than {LONGEST_MERGED_PIECE} characters are never used"
            )

    def scores(self) -> npt.NDArray[np.float64]:
        scores = _numbers(self.metadata, "scores", "f", len(self.tokens))
        if scores is None:
            raise TokenizerError(f"{KEY}scores: missing, and a SentencePiece model merges by them")
        if np.isnan(scores).any():
            raise TokenizerError(f"{KEY}scores: not a number at token {int(np.isnan(scores).argmax())}")
        return scores.astype(np.float64)

    def merging_model(self, **options: Any) -> Build:
        """The library's model with the file's merge list, of which the used part is checked."""
        lines = _strings(self.metadata, "merges")
        made = self._made(lines)

        def build(pieces: Collection[str] | None) -> Any:
            vocabulary, where = self.part(pieces), f"{KEY}merges"
            numbers: Iterable[int] = range(len(lines))
            if pieces is not None:
                numbers = compress(numbers, map(pieces.__contains__, made))
            elif (pairs := _pairs(lines)) is not None:
                # The library refuses merges of unknown tokens, but does not say which.
                with suppress(TokenizerError):
                    return bpe_model(vocabulary, pairs, where, **options)
            return bpe_model(vocabulary, [self._merge(i, lines[i]) for i in numbers], where, **options)

        return build

    def _made(self, lines: list[str]) -> list[str]:
        """The token that each merge produces."""
        text = "\0".join(lines)
        if text.count(" ") != len(lines) or text.count("\0") != len(lines) - 1:
            return ["".join(self._merge(number, line)) for number, line in enumerate(lines)]
        text = text.replace(" ", "")
        # In most files the tokens are in the order of their merges.
        start = self.vocabulary.get(text.partition("\0")[0], 0)
        likely = self.tokens[start : start + len(lines)]
        return likely if "\0".join(likely) == text else text.split("\0")

    def _merge(self, number: int, line: str) -> tuple[str, str]:
        """Left and right of a merge, separated by the first space that is not the first character."""
        cut = line.find(" ", 1)
        if cut < 0 or cut + 1 == len(line):
            raise TokenizerError(
                f"{KEY}merges: entry {number} has no space between two tokens: {line[:80]!r}"
            )
        left, right = line[:cut], line[cut + 1 :]
        if not (left in self.vocabulary and right in self.vocabulary and left + right in self.vocabulary):
            raise TokenizerError(f"{KEY}merges: entry {number} is not made of tokens: {line[:80]!r}")
        return left, right

    def _strips(self, text: str) -> bool:
        """Whether a special token takes the white space behind it: GGUF does not say, but those of Phi 3
        do."""
        phi3 = (self.metadata.get("general.architecture"), self.metadata.get(f"{KEY}model"))
        return phi3 == ("phi3", "llama") and text not in ("<unk>", "<s>", "<|endoftext|>")

    def tokenizer(
        self,
        build: Build,
        alphabet: Collection[str],
        kind: str,
        bytes_of_piece: Callable[[str], bytes],
        *,
        normalizer: Any = None,
        pre_tokenizer: Any = None,
        defaults: tuple[int | None, int | None, int | None] = (None, None, None),
        add_bos: bool,
        always_bos: bool = False,
        strip_leading_space: bool = False,
    ) -> Tokenizer:
        """Everything after the model: special tokens, the two native tokenizers, the class."""
        tokens, types = self.tokens, self.types.copy()
        bos, eos, unk = (
            self.special_id(f"{name}_token_id", default)
            for name, default in zip(("bos", "eos", "unknown"), defaults, strict=True)
        )
        pad = self.special_id("padding_token_id")
        ends = [self.special_id(f"{name}_token_id") for name in ("eot", "eom")]
        for i in (bos, eos, unk, pad, *ends):
            if i is not None and types[i] == NORMAL and looks_like_marker(tokens[i]):
                types[i] = CONTROL
        for name in ALWAYS_SPECIAL & self.vocabulary.keys():
            types[self.vocabulary[name]] = CONTROL

        marked = np.flatnonzero((types == CONTROL) | (types == USER_DEFINED) | (types == UNKNOWN)).tolist()
        literal = {i: tokens[i] for i in marked if tokens[i]}
        special = [i for i in literal if types[i] != USER_DEFINED]
        hidden = frozenset(special)
        added = [
            AddedToken(
                text,
                special=i in hidden or is_guarded(text),
                normalized=False,
                rstrip=i in hidden and self._strips(text),
            )
            for i, text in literal.items()
            if self.vocabulary.get(text) == i
        ]
        always = [*(token.content for token in added), *BYTE_PIECES, *([] if unk is None else [tokens[unk]])]

        def native(model: Any, parse: bool) -> Any:
            with library_errors(f"{KEY}tokens"):
                return assemble(model, added, normalizer=normalizer, pre_tokenizer=pre_tokenizer, parse=parse)

        encoder = LazyEncoder(self.vocabulary, alphabet, always, build, native)
        unused = frozenset(np.flatnonzero(types == UNUSED).tolist())
        begins = always_bos or self.flag("add_bos_token", add_bos)
        if begins and bos is None:
            self.warnings.append(f"{KEY}add_bos_token is set, but there is no BOS token")
        return Tokenizer(
            kind=kind,
            vocab_size=len(tokens),
            plain=encoder.plain,
            parsed=encoder.parsed,
            piece_of=lambda i: tokens[i] if i < len(tokens) and i not in unused else None,
            id_of=self.vocabulary.get,
            bytes_of_piece=bytes_of_piece,
            literal=literal,
            special=special,
            bos_id=bos,
            eos_id=eos,
            pad_id=pad,
            unk_id=unk,
            stop_ids=[i for i in ends if i is not None],
            prefix=[bos] if bos is not None and begins else [],
            suffix=[eos] if eos is not None and self.flag("add_eos_token", False) else [],
            strip_leading_space=strip_leading_space,
            warnings=self.warnings,
        )


def _sentencepiece(source: _Source) -> Tokenizer:
    """`llama`: pieces with scores. Spaces are cut and escaped after the user-defined tokens, which the file
    stores with real spaces, have been found in the raw text."""
    unk = source.special_id("unknown_token_id", 0)
    unk_token = source.tokens[unk] if unk is not None else None
    scores = source.scores()
    source.warn_of_long_pieces()

    def build(pieces: Collection[str] | None) -> Any:
        vocabulary = source.part(pieces)
        ids = np.array(sorted(vocabulary.values()), np.int64)
        ids = ids[source.types[ids] == NORMAL]
        ranked = ids[np.argsort(-scores[ids], kind="stable")]  # stable, so that equal scores go by id
        return bpe_model(
            vocabulary,
            merges_by_rank([source.tokens[i] for i in ranked.tolist()], f"{KEY}tokens"),
            f"{KEY}tokens",
            unk_token=unk_token if unk_token in source.vocabulary else None,
            byte_fallback=True,
        )

    escape = normalizers.Replace(" ", SPACE)
    prefix = source.flag("add_space_prefix", True)
    return source.tokenizer(
        build,
        source.characters(),
        "SentencePiece BPE",
        sentencepiece_bytes,
        normalizer=normalizers.Sequence([normalizers.Prepend(SPACE), escape]) if prefix else escape,
        defaults=(1, 2, 0),
        add_bos=True,
        strip_leading_space=prefix,
    )


def _bpe(source: _Source) -> Tokenizer:
    """`gpt2`: a merge list. The pre-tokenizer's name says whether tokens are in the byte alphabet."""
    name = source.text("pre", "default")
    pre = PRE_TOKENIZERS.get(name)
    if pre is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise TokenizerError(f"{KEY}pre: unknown pre-tokenizer {name[:80]!r}; known are {known}")
    if not pre.byte_level:
        return _characters(source, pre, unknown=None)
    return source.tokenizer(
        source.merging_model(ignore_merges=pre.ignore_merges),
        BYTE_TO_CHAR,
        "byte-level BPE",
        byte_level_bytes,
        normalizer=pre.normalizer(),
        pre_tokenizer=pre.pre_tokenizer(),
        add_bos=pre.add_bos,
    )


def _characters(source: _Source, pre: Pre, unknown: int | None, **options: Any) -> Tokenizer:
    """A SentencePiece vocabulary with a merge list instead of scores. `unknown` is the id of <unk> where the
    file stores none."""
    unk = source.special_id("unknown_token_id", unknown)
    unk_token = source.tokens[unk] if unk is not None else None
    build = source.merging_model(
        unk_token=unk_token if unk_token in source.vocabulary else None, byte_fallback=True
    )
    return source.tokenizer(
        build,
        source.characters(),
        "SentencePiece BPE",
        sentencepiece_bytes,
        normalizer=pre.normalizer(),
        pre_tokenizer=pre.pre_tokenizer(),
        **{"add_bos": pre.add_bos, **options},
    )


def _gemma4(source: _Source) -> Tokenizer:
    """`gemma4`: some files turn BOS off, but the model needs it."""
    return _characters(source, PRE_TOKENIZERS["gemma4"], unknown=3, defaults=(2, 1, 3), always_bos=True)


def _pairs(lines: list[str]) -> list[tuple[str, str]] | None:
    """Left and right of every merge, all at once; None unless every line has exactly one space."""
    text = "\0".join(lines)
    codes = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
    marks = codes[(codes == ord(" ")) | (codes == 0)]
    if len(marks) != 2 * len(lines) - 1 or not marks[::2].all() or marks[1::2].any():
        return None
    halves = iter(text.replace("\0", " ").split(" "))
    return list(zip(halves, halves, strict=True))


def _typed(metadata: Mapping[str, Any], name: str, kind: type) -> Any:
    """A scalar of the wanted type, or None when the key is missing."""
    value = metadata.get(KEY + name)
    if value is None:
        return None
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) is not kind:
        raise TokenizerError(f"{KEY}{name}: {kind.__name__} wanted, {type(value).__name__} found")
    return value


def _strings(metadata: Mapping[str, Any], name: str) -> list[str]:
    """A list of strings, empty when the key is missing."""
    value = metadata.get(KEY + name, [])
    if not isinstance(value, (list, tuple)) or not set(map(type, value)) <= {str}:
        raise TokenizerError(f"{KEY}{name}: a list of strings wanted")
    return list(value)


def _numbers(metadata: Mapping[str, Any], name: str, kinds: str, count: int) -> npt.NDArray[Any] | None:
    """The first `count` numbers of an array, or None when the key is missing. `kinds` are NumPy's kind
    letters."""
    value = metadata.get(KEY + name)
    if value is None:
        return None
    if not isinstance(value, (list, tuple, np.ndarray)):
        raise TokenizerError(f"{KEY}{name}: a list of numbers wanted, {type(value).__name__} found")
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise TokenizerError(f"{KEY}{name}: a list of numbers wanted") from error
    if array.ndim != 1 or (array.size and array.dtype.kind not in kinds):
        raise TokenizerError(
            f"{KEY}{name}: a list of numbers wanted, {array.dtype} of shape {array.shape} found"
        )
    if array.size < count:
        raise TokenizerError(f"{KEY}{name}: {array.size} entries for {count} tokens")
    return array[:count]
