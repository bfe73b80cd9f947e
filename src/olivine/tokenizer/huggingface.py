"""Tokenizers from a Hugging Face folder."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Native

from olivine.errors import TokenizerError
from olivine.tokenizer.bpe import SPACE, assemble, byte_level_bytes, library_errors, sentencepiece_bytes
from olivine.tokenizer.encoding import ids_of
from olivine.tokenizer.names import ALWAYS_SPECIAL, is_guarded, looks_like_marker
from olivine.tokenizer.sentencepiece import (
    BYTE,
    CONTROL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    build_encoders,
    read_model,
)
from olivine.tokenizer.settings import LARGEST_ID, NAMES, Settings
from olivine.tokenizer.tokenizer import Tokenizer

_LARGEST_FILE = 512 << 20


def from_folder(path: str | PathLike[str]) -> Tokenizer:
    """The tokenizer of a Hugging Face folder: its tokenizer.json, or else its tokenizer.model."""
    folder = Path(path)
    settings = Settings.read(folder)
    for name, build in (("tokenizer.json", _from_json), ("tokenizer.model", _from_model)):
        file = folder / name
        if file.is_file():
            try:
                if file.stat().st_size > _LARGEST_FILE:
                    raise TokenizerError(f"{file}: larger than any tokenizer")
                data = file.read_bytes()
            except OSError as error:
                raise TokenizerError(f"{file}: {error.strerror or error}") from error
            return build(data, settings, str(file))
    told = ""
    if (folder / "tekken.json").is_file():
        told = "; tekken.json is Mistral's own form: download tokenizer.json from the same repository, too"
    raise TokenizerError(f"{folder}: neither tokenizer.json nor tokenizer.model is there{told}")


def _from_json(data: bytes, settings: Settings, where: str) -> Tokenizer:
    """tokenizer.json: read by the library, with its pipeline unchanged."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{where}: not UTF-8") from error
    warnings: list[str] = []
    with library_errors(where):
        base = Native.from_str(text)
    if not isinstance(base.model, models.BPE):
        raise TokenizerError(f"{where}: model: only BPE is supported, not {type(base.model).__name__}")
    byte_level, strip = _decoder_kind(base, where)
    added = _added_tokens(text, base, settings, where, warnings)
    named = _named_tokens(base, settings, added, warnings)
    special = {i for i, token in added.items() if token.special or token.content in ALWAYS_SPECIAL}
    flagged = [_flagged(added[i], i in special or is_guarded(added[i].content)) for i in sorted(added)]

    def natives() -> list[Any]:
        stages = {"normalizer": base.normalizer, "pre_tokenizer": base.pre_tokenizer}
        return [assemble(base.model, flagged, **stages, parse=parse) for parse in (True, False)]

    with library_errors(where):
        parsed, plain = natives()
        if not _ids_agree(parsed, added):
            base = _with_fixed_ids(text, added, where)
            parsed, plain = natives()
        prefix, suffix = _template(base)
        count = parsed.get_vocab_size()
        if None in map(parsed.id_to_token, range(count)):  # ids with holes
            count = max(parsed.get_vocab().values()) + 1
    if count > LARGEST_ID:  # all ids up to the largest one are looked at
        raise TokenizerError(f"{where}: {count - 1} is not a token id")
    size = max(count, settings.vocab_size)
    _drop_foreign_ids(named, size, warnings)
    literal = {
        i: token.content if byte_level or i in special else token.content.replace(SPACE, " ")
        for i, token in added.items()
    }
    return Tokenizer(
        kind="byte-level BPE" if byte_level else "SentencePiece BPE",
        vocab_size=size,
        plain=partial(ids_of, plain),
        parsed=partial(ids_of, parsed),
        piece_of=parsed.id_to_token,
        id_of=parsed.token_to_id,
        bytes_of_piece=byte_level_bytes if byte_level else sentencepiece_bytes,
        literal=literal,
        special=special,
        bos_id=named["bos_token"],
        eos_id=named["eos_token"],
        pad_id=named["pad_token"],
        unk_id=named["unk_token"],
        stop_ids=[i for i in settings.stop_ids if i < size],
        prefix=prefix,
        suffix=suffix,
        strip_leading_space=strip,
        warnings=warnings,
    )


def _added_tokens(
    text: str, base: Any, settings: Settings, where: str, warnings: list[str]
) -> dict[int, AddedToken]:
    """Added tokens by the id that the files give them. tokenizer_config.json wins over tokenizer.json."""
    added: dict[int, AddedToken] = base.get_added_tokens_decoder()
    # The library gives added tokens the next free ids and ignores the ones in the file, so those are read
    # here. The list stands on its own in the text: a vocabulary entry of the same name is not followed by a
    # bracket.
    if match := re.search(r'"added_tokens"\s*:\s*(?=\[)', text):
        try:
            listed, _ = json.JSONDecoder().raw_decode(text, match.end())
            ids = {entry["content"]: entry["id"] for entry in reversed(listed)}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise TokenizerError(f"{where}: added_tokens: not a list of tokens") from error
        added = {ids.get(token.content, i): token for i, token in added.items()}
    known = {token.content: i for i, token in added.items()}
    for i, token in settings.added.items():
        here = known.get(token.content, base.token_to_id(token.content))
        if here not in (None, i):
            warnings.append(f"added_tokens_decoder: {token.content!r} is {here}, not {i}")
        elif i in added and added[i].content != token.content:
            warnings.append(f"added_tokens_decoder: {i} is {added[i].content!r}, not {token.content!r}")
        else:
            added[i] = token
    for i in [i for i in added if type(i) is int and i >= LARGEST_ID]:  # no embedding has a row for it
        warnings.append(f"added_tokens: {i} of {added.pop(i).content!r} is not a token id")
    return added


def _ids_agree(native: Any, added: Mapping[int, AddedToken]) -> bool:
    return all(native.token_to_id(token.content) == i for i, token in added.items())


def _with_fixed_ids(text: str, added: Mapping[int, AddedToken], where: str) -> Any:
    """Reads tokenizer.json again with its added tokens in the vocabulary, where ids are free to choose."""
    data = json.loads(text)
    vocabulary = data["model"]["vocab"]
    taken = set(vocabulary.values())
    for i, token in added.items():
        if vocabulary.get(token.content) != i and i in taken:
            raise TokenizerError(f"{where}: added_tokens: id {i} of {token.content!r} is already in use")
        vocabulary[token.content] = i
    with library_errors(where):
        return Native.from_str(json.dumps({**data, "added_tokens": []}))


def _named_tokens(
    base: Any, settings: Settings, added: dict[int, AddedToken], warnings: list[str]
) -> dict[str, int | None]:
    """The ids of BOS, EOS, PAD and UNK. What a file names as one of them, or as extra, becomes special."""
    named: dict[str, int | None] = {}
    by_text = {token.content: i for i, token in added.items()}

    def id_of(text: str) -> int | None:
        return by_text[text] if text in by_text else base.token_to_id(text)

    for key in NAMES:
        text = settings.named.get(key)
        token_id = id_of(text) if text is not None else None
        if text is not None and token_id is None:
            warnings.append(f"{key}: {text!r} is not in the vocabulary")
        named[key] = token_id if token_id is not None else settings.ids.get(key)
    for text in {*settings.named.values(), *settings.extra_special}:
        token_id = id_of(text)
        if text in by_text:
            added[by_text[text]] = _flagged(added[by_text[text]], True)
        elif token_id is not None and looks_like_marker(text):
            added[token_id] = AddedToken(text, special=True, normalized=False)
    return named


def _drop_foreign_ids(named: dict[str, int | None], size: int, warnings: list[str]) -> None:
    """config.json may be another model's: ids outside of the vocabulary are ignored."""
    for key, token_id in named.items():
        if token_id is not None and token_id >= size:
            warnings.append(f"{key}: {token_id} is outside the vocabulary of {size}")
            named[key] = None


def _flagged(token: AddedToken, special: bool) -> AddedToken:
    return AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=special,
    )


def _decoder_kind(base: Any, where: str) -> tuple[bool, bool]:
    """Whether pieces are in the byte alphabet, and whether decoding drops one leading space."""
    if base.decoder is None:
        return not base.model.byte_fallback, False
    steps = json.loads(base.decoder.__getstate__())
    steps = steps["decoders"] if steps["type"] == "Sequence" else [steps]
    kinds = {step["type"]: step for step in steps}
    if "ByteLevel" in kinds:
        return True, False
    if "Metaspace" in kinds:
        return False, kinds["Metaspace"].get("prepend_scheme") != "never"
    if "ByteFallback" in kinds or "Replace" in kinds:
        return False, kinds.get("Strip", {}).get("start", 0) > 0
    raise TokenizerError(f"{where}: decoder: {', '.join(kinds)} is not supported")


def _template(base: Any) -> tuple[list[int], list[int]]:
    """What the post-processor puts before and after a text. Like transformers, tokenizer_config.json's
    add_bos_token and add_eos_token are not asked: they describe the slow tokenizer."""
    base.no_truncation()
    base.no_padding()
    for probe in ("a", "0", " ", ""):
        inner = base.encode(probe, add_special_tokens=False).ids
        if inner or not probe:
            break
    whole = base.encode(probe, add_special_tokens=True).ids
    at = next((i for i in range(len(whole)) if whole[i : i + len(inner)] == inner), len(whole))
    return (whole[:at], whole[at + len(inner) :]) if inner else (whole, [])


def _from_model(data: bytes, settings: Settings, where: str) -> Tokenizer:
    """tokenizer.model: SentencePiece's own file."""
    model = read_model(data, where)
    warnings: list[str] = []
    if model.charsmap:
        # SentencePiece uses the longest match, the library graphemes. No supported family has such a map.
        warnings.append(f"{where}: its character map may treat combining marks differently")
    pieces = dict(enumerate(model.pieces))
    kinds = dict(enumerate(model.types))
    for i, token in settings.added.items():
        if i not in pieces:
            pieces[i] = token.content
            kinds[i] = CONTROL if token.special else USER_DEFINED
        elif pieces[i] != token.content:
            warnings.append(f"added_tokens_decoder: {i} is {pieces[i]!r}, not {token.content!r}")
        elif token.special:
            kinds[i] = CONTROL
    vocabulary: dict[str, int] = {}
    for i, piece in pieces.items():
        if piece and kinds[i] != UNUSED and vocabulary.setdefault(piece, i) != i:
            warnings.append(f"{where}: piece {i} repeats piece {vocabulary[piece]}")

    named: dict[str, int | None] = {}
    for key, own in zip(NAMES, (model.bos_id, model.eos_id, model.pad_id, model.unk_id), strict=True):
        text = settings.named.get(key)
        token_id = vocabulary.get(text) if text is not None else None
        named[key] = token_id if token_id is not None else (own if own in pieces else settings.ids.get(key))
    for text in {*settings.named.values(), *settings.extra_special, *ALWAYS_SPECIAL}:
        i = vocabulary.get(text, -1)
        if i >= 0 and kinds[i] != BYTE and (kinds[i] == USER_DEFINED or looks_like_marker(text)):
            kinds[i] = CONTROL
    special = {text: i for text, i in vocabulary.items() if kinds[i] in (CONTROL, UNKNOWN)}
    shown = [text for text, i in vocabulary.items() if kinds[i] == USER_DEFINED]
    guarded = {**special, **{text: vocabulary[text] for text in shown if is_guarded(text)}}
    plain, parsed = build_encoders(
        model, vocabulary, [text for text in shown if text not in guarded], guarded, where
    )
    size = max(max(pieces) + 1, settings.vocab_size)
    _drop_foreign_ids(named, size, warnings)
    bos, eos = named["bos_token"], named["eos_token"]
    unused = frozenset(i for i, kind in kinds.items() if kind == UNUSED)
    return Tokenizer(
        kind="SentencePiece BPE",
        vocab_size=size,
        plain=plain,
        parsed=parsed,
        piece_of=lambda i: None if i in unused else pieces.get(i),
        id_of=vocabulary.get,
        bytes_of_piece=sentencepiece_bytes,
        literal={
            **{vocabulary[t]: t.replace(SPACE, " ") for t in shown},
            **{i: t for t, i in special.items()},
        },
        special=special.values(),
        bos_id=bos,
        eos_id=eos,
        pad_id=named["pad_token"],
        unk_id=named["unk_token"],
        stop_ids=[i for i in settings.stop_ids if i < size],
        prefix=[bos] if bos is not None and settings.add_bos is not False else [],
        suffix=[eos] if eos is not None and settings.add_eos else [],
        strip_leading_space=model.add_dummy_prefix,
        warnings=warnings,
    )
