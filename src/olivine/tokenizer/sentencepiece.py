"""SentencePiece's `tokenizer.model`: a protobuf, read by hand, and a tokenizer made from it."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken, normalizers

from olivine.errors import TokenizerError
from olivine.tokenizer.bpe import SPACE, assemble, bpe_model, library_errors, merges_by_rank
from olivine.tokenizer.encoding import ids_of

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_BPE = 2


@dataclass
class SentencePieceModel:
    """The contents of the file, validated."""

    pieces: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    model_type: int = 1
    unk_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    pad_id: int = -1
    byte_fallback: bool = False
    space_is_suffix: bool = False
    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True


def read_model(data: bytes, where: str) -> SentencePieceModel:
    """Parses ModelProto: 1 pieces, 2 trainer, 3 normalizer; all other fields are skipped."""
    model = SentencePieceModel()
    for number, value in _fields(data, where):
        if number == 1:
            piece, score, kind = b"", 0.0, NORMAL
            for inner, item in _fields(_message(value, where), where):
                if inner == 1:
                    piece = _message(item, where)
                elif inner == 2:
                    score = _float(item, where)
                elif inner == 3:
                    kind = _integer(item, where)
            try:
                model.pieces.append(piece.decode())
            except UnicodeDecodeError as error:
                raise TokenizerError(f"{where}: piece {len(model.pieces)} is not UTF-8") from error
            if score != score or not NORMAL <= kind <= BYTE:
                raise TokenizerError(f"{where}: piece {len(model.pieces) - 1}: type {kind}, score {score}")
            model.scores.append(score)
            model.types.append(kind)
        elif number == 2:
            names = {3: "model_type", 40: "unk_id", 41: "bos_id", 42: "eos_id", 43: "pad_id"}
            for inner, item in _fields(_message(value, where), where):
                if inner in names:
                    setattr(model, names[inner], _integer(item, where))
                elif inner == 24:
                    model.space_is_suffix = bool(_integer(item, where))
                elif inner == 35:
                    model.byte_fallback = bool(_integer(item, where))
        elif number == 3:
            names = {3: "add_dummy_prefix", 4: "remove_extra_whitespaces", 5: "escape_whitespaces"}
            for inner, item in _fields(_message(value, where), where):
                if inner == 2:
                    model.charsmap = _message(item, where)
                elif inner in names:
                    setattr(model, names[inner], bool(_integer(item, where)))
    if not model.pieces:
        raise TokenizerError(f"{where}: no pieces")
    if model.model_type != _BPE:
        raise TokenizerError(f"{where}: model type {model.model_type}, where only BPE (2) is supported")
    if model.space_is_suffix or not model.escape_whitespaces:
        raise TokenizerError(f"{where}: spaces that are suffixes, or not escaped, are not supported")
    return model


def build_encoders(
    model: SentencePieceModel,
    vocabulary: dict[str, int],
    plain_added: Sequence[str],
    special: Mapping[str, int],
    where: str,
) -> tuple[FragmentEncoder, FragmentEncoder]:
    """The encoders without and with special tokens. `plain_added` are cut out of every text and never
    merged."""
    order = sorted(range(len(model.pieces)), key=lambda i: -model.scores[i])
    ranked = [
        piece
        for i in order
        if model.types[i] == NORMAL and vocabulary.get(piece := model.pieces[i]) == i and piece not in special
    ]
    unk = model.pieces[model.unk_id] if 0 <= model.unk_id < len(model.pieces) else None
    bpe = bpe_model(
        vocabulary,
        merges_by_rank(ranked, where),
        where,
        unk_token=unk if unk in vocabulary else None,
        byte_fallback=model.byte_fallback,
    )
    with library_errors(where):
        charsmap = normalizers.Precompiled(model.charsmap) if model.charsmap else None
        added = [AddedToken(text, normalized=False) for text in plain_added]
        native = assemble(bpe, added, parse=False)
    normalize = _Normalizer(model, charsmap, plain_added)
    return FragmentEncoder(native, normalize, {}), FragmentEncoder(native, normalize, special)


class _Normalizer:
    """SentencePiece's own normalization, in its order: character map, white space, dummy prefix, escaping."""

    def __init__(self, model: SentencePieceModel, charsmap: Any, protected: Sequence[str]) -> None:
        self._charsmap = charsmap
        self._trim = model.remove_extra_whitespaces
        self._prefix = SPACE if model.add_dummy_prefix else ""
        self._protected = _alternation(protected) if charsmap is not None else None

    def __call__(self, text: str) -> str:
        if self._charsmap is not None:
            # User-defined symbols come through unchanged: they are the odd entries of the split.
            parts = self._protected.split(text) if self._protected else [text]
            text = "".join(p if i % 2 else self._charsmap.normalize_str(p) for i, p in enumerate(parts))
        if self._trim:
            text = re.sub(" +", " ", text.lstrip(" "))
        text = text.replace(" ", SPACE)
        if self._trim:
            text = text.rstrip(SPACE)  # after escaping, so that a literal ▁ at the end goes as well
        return self._prefix + text if text else ""


class FragmentEncoder:
    """Encodes each fragment between special tokens as a text of its own, with its own dummy prefix."""

    def __init__(self, native: Any, normalize: _Normalizer, special: Mapping[str, int]) -> None:
        self._native = native
        self._normalize = normalize
        self._special = special
        self._cut = _alternation(special)

    def __call__(self, text: str) -> list[int]:
        ids: list[int] = []
        for i, part in enumerate(self._cut.split(text) if self._cut else [text]):
            if i % 2:
                ids.append(self._special[part])
            elif fragment := self._normalize(part):
                ids += ids_of(self._native, fragment)
        return ids


def _alternation(words: Mapping[str, int] | Sequence[str]) -> re.Pattern[str] | None:
    """A pattern that finds the longest of the words at the leftmost place; `split` keeps what it found."""
    if not words:
        return None
    return re.compile("(" + "|".join(map(re.escape, sorted(words, key=len, reverse=True))) + ")")


def _varint(data: bytes, offset: int, where: str) -> tuple[int, int]:
    """A varint of at most ten bytes, and the offset behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if offset >= len(data):
            break
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, offset
    raise TokenizerError(f"{where}: a number runs on at byte {offset}")


def _fields(data: bytes, where: str) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: integers for wire type 0, bytes for 1, 2 and 5."""
    offset = 0
    while offset < len(data):
        tag, offset = _varint(data, offset, where)
        wire = tag & 7
        if wire == 0:
            value, offset = _varint(data, offset, where)
            yield tag >> 3, value
            continue
        if wire == 2:
            length, offset = _varint(data, offset, where)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise TokenizerError(f"{where}: not a SentencePiece model (wire type {wire} at byte {offset})")
        if length > len(data) - offset:
            raise TokenizerError(f"{where}: a field of {length} bytes runs past the end")
        yield tag >> 3, data[offset : offset + length]
        offset += length


def _message(value: int | bytes, where: str) -> bytes:
    if isinstance(value, int):
        raise TokenizerError(f"{where}: a number where a message was expected")
    return value


def _integer(value: int | bytes, where: str) -> int:
    if not isinstance(value, int):
        raise TokenizerError(f"{where}: a message where a number was expected")
    return value - (1 << 64) if value >= 1 << 63 else value  # negative numbers are sign-extended to 64 bits


def _float(value: int | bytes, where: str) -> float:
    if isinstance(value, int) or len(value) != 4:
        raise TokenizerError(f"{where}: a score that is not a float")
    return float(struct.unpack("<f", value)[0])
