"""The one tokenizer class."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Protocol

from olivine.errors import TokenizerError
from olivine.tokenizer.bpe import library_errors, utf8
from olivine.tokenizer.names import END_NAMES, GUARDED_BUT_SHOWN
from olivine.tokenizer.stream import StreamDecoder

_LIKELY = 1 << 16  # bytes: encoding a shorter text is faster than finding the longest token
# What can stand before a text and merges with next to nothing. A character map may take the first one away.
_GUARDS = ("\x02", ".")


class Encoder(Protocol):
    """Text to ids, without BOS or EOS."""

    def __call__(self, text: str) -> list[int]: ...


class Tokenizer:
    """Text to token ids and back. Made by `from_folder`, `from_gguf` or `from_qwen3c`; thread-safe.

    Text with lone surrogates, which is not Unicode, is encoded with U+FFFD in their place.

    Attributes: `kind` says in words what it is; `vocab_size` counts all rows of the model's vocabulary,
    padding rows included; `bos_id`, `eos_id`, `pad_id`, `unk_id` are ids or None; `stop_ids` are the ids that
    end a reply; `special_tokens` maps the tokens that only `parse_special` makes to their ids; `warnings`
    lists what was odd in the files but not an error.
    """

    def __init__(
        self,
        *,
        kind: str,
        vocab_size: int,
        plain: Encoder,
        parsed: Encoder,
        piece_of: Callable[[int], str | None],
        id_of: Callable[[str], int | None],
        bytes_of_piece: Callable[[str], bytes],
        literal: Mapping[int, str],
        special: Iterable[int],
        bos_id: int | None = None,
        eos_id: int | None = None,
        pad_id: int | None = None,
        unk_id: int | None = None,
        stop_ids: Iterable[int] = (),
        prefix: Sequence[int] = (),
        suffix: Sequence[int] = (),
        strip_leading_space: bool = False,
        warnings: Iterable[str] = (),
    ) -> None:
        """`literal` are the tokens whose text is exactly what they say; `special` is a subset of it that
        decoding hides and that plain text cannot spell. `prefix` and `suffix` are what `add_special` adds."""
        self.kind = kind
        self.vocab_size = vocab_size
        self.bos_id = bos_id
        self.eos_id = eos_id
        self.pad_id = pad_id
        self.unk_id = unk_id
        self.warnings = list(warnings)
        self._plain = plain
        self._parsed = parsed
        self._piece_of = piece_of
        self._id_of = id_of
        self._bytes_of_piece = bytes_of_piece
        self._literal = dict(literal)
        self._hidden = frozenset(special)
        # Plain text may become unk_id; every other guarded id in its result would be a forgery.
        guarded = self._hidden | {i for i, text in self._literal.items() if text in GUARDED_BUT_SHOWN}
        self._guarded = guarded - {unk_id}
        self.special_tokens = {self._literal[i]: i for i in sorted(guarded, reverse=True)}
        self.special_tokens = dict(sorted(self.special_tokens.items(), key=lambda item: item[1]))
        self.stop_ids = frozenset(stop_ids) | {i for t, i in self.special_tokens.items() if t in END_NAMES}
        if eos_id is not None:
            self.stop_ids |= {eos_id}
        self._prefix = list(prefix)
        self._suffix = list(suffix)
        self._strip_leading_space = strip_leading_space
        self._bytes: dict[int, bytes] = {}

    def __repr__(self) -> str:
        return f"Tokenizer({self.kind}, {self.vocab_size} tokens)"

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text.

        `add_special` adds BOS and EOS where the model's own files say so; one that the text already has,
        because `parse_special` found it there, is not added again. `parse_special` turns special tokens that
        the text spells into their ids: for rendered prompts, never for what a user typed.
        """
        ids = self._whole(text, parse_special)
        if not add_special:
            return ids
        prefix, suffix = self._prefix, self._suffix
        if prefix and not (parse_special and ids[: len(prefix)] == prefix):
            ids = prefix + ids
        if suffix and not (parse_special and ids[-len(suffix) :] == suffix):
            ids = ids + suffix
        return ids

    def encode_after(self, text: str) -> list[int]:
        """Token ids of a text that other text stands before: without the space that some tokenizers put in
        front of a text."""
        if self._guard is not None:
            guard, before = self._guard
            ids = self._whole(guard + text, False)
            if ids[: len(before)] == before:
                return ids[len(before) :]
        return self._whole(text, False)

    @cached_property
    def _guard(self) -> tuple[str, list[int]] | None:
        """A text to stand before another one, and its ids; None if no space comes in front of a text."""
        for guard in _GUARDS:
            before = self._whole(guard, False)
            spelled = b"".join(map(self.token_bytes, before)).decode("utf-8", "replace")
            if spelled == guard:
                return None
            if spelled == " " + guard:
                return guard, before
        return None

    @cached_property
    def begins_once(self) -> bool:
        """Whether only the first of the texts between special tokens gets a space in front."""
        if self._guard is None:
            return False
        guard, before = self._guard
        parsed = (self._whole(name + guard, True) for name in self.special_tokens)
        return next((ids[1:] != before for ids in parsed if ids[:1] and ids[0] in self._guarded), False)

    def fit(self, rows: int) -> None:
        """Refuses an embedding of so many rows if ordinary text could need more. Rows behind the last token
        are padding.

        Added tokens beyond it are in published files (Gemma 3 1B has one for images). A prompt with one of
        them is refused; as stop tokens they are dropped, because the model cannot generate them."""
        beyond = [i for i in range(rows, self.vocab_size) if i not in self._literal and self._piece_of(i)]
        beyond += [i for i in (*self._prefix, *self._suffix) if i >= rows]
        if beyond:
            raise TokenizerError(
                f"the tokenizer is not this model's: token {beyond[0]} ({self._piece_of(beyond[0])!r}) "
                f"has no row in the embedding of {rows}"
            )
        if rows > self.vocab_size:
            self.warnings.append(
                f"the embedding has {rows} rows for {self.vocab_size} tokens; the rest is padding"
            )
            self.vocab_size = rows
        if lost := sorted(i for i in self.stop_ids if i >= rows):
            self.stop_ids = frozenset(i for i in self.stop_ids if i < rows)
            named = ", ".join(f"{i} ({self._piece_of(i)!r})" for i in lost)
            self.warnings.append(f"{named} ends replies, but has no row in the embedding of {rows}")

    @property
    def guarded_names(self) -> Mapping[str, int]:
        """Every token that only `parse_special` makes, and the unknown one."""
        if self.unk_id is None or self.unk_id not in self._hidden:
            return self.special_tokens
        return {**self.special_tokens, self._literal[self.unk_id]: self.unk_id}

    def encode_rendered(self, text: str, literal: Collection[int] = ()) -> list[int]:
        """Token ids of a rendered prompt: special tokens count, but for those that begin at a place in
        `literal`. BOS is added where the model's files say so, unless it is there; EOS never is."""
        names = self.guarded_names
        sizes = sorted({len(name) for name in names if name}, reverse=True)

        def special_at(place: int) -> str | None:
            return next((text[place : place + n] for n in sizes if text[place : place + n] in names), None)

        forged = sorted(place for place in literal if special_at(place))
        parts: list[tuple[int, int]] = []  # between special tokens
        start = 0
        if forged:
            firsts = "".join(map(re.escape, sorted({name[0] for name in names if name})))
            for match in re.finditer(f"[{firsts}]", text):
                place = match.start()
                name = special_at(place) if place >= start and place not in literal else None
                if name is not None:
                    parts.append((start, place))
                    start = place + len(name)
            parts.append((start, len(text)))
        ids: list[int] = []
        done = 0
        for start, end in parts:
            if bisect_left(forged, start) == bisect_left(forged, end):
                continue  # all that no forged token is in is read as it would be without one
            if done < start:
                ids += self._whole(text[done:start], True)
            behind = start > 0 and self.begins_once
            ids += self.encode_after(text[start:end]) if behind else self._whole(text[start:end], False)
            done = end
        if done < len(text) or not text:
            ids += self._whole(text[done:], True)
        return ids if ids[: len(self._prefix)] == self._prefix else self._prefix + ids

    def fewest(self, text: str) -> int:
        """A lower bound of the tokens of a text, from its size and the longest token of the vocabulary.
        Composing characters (NFC) shortens text by less than a factor of four."""
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass")) // 4
        return 0 if size < _LIKELY else size // self._longest

    @cached_property
    def _longest(self) -> int:
        """Bytes of the longest token."""
        pieces = filter(None, map(self._piece_of, range(self.vocab_size)))
        texts = map(utf8, self._literal.values())
        return max(1, *map(len, texts), *(len(self._bytes_of_piece(piece)) for piece in pieces))

    def _whole(self, text: str, parse_special: bool) -> list[int]:
        try:
            return self._run(text, parse_special)
        except UnicodeEncodeError:
            return self._run(
                text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), parse_special
            )

    def _run(self, text: str, parse_special: bool) -> list[int]:
        if not text.isascii():
            text.encode()  # the library's error for lone surrogates is only a TypeError
        with library_errors("encoding"):
            if parse_special:
                return self._parsed(text)
            ids = self._plain(text)
        if self._guarded.isdisjoint(ids):
            return ids
        # The merges built a special token from plain text: encode it character by character instead.
        return [i for token in ids for i in (self._spelled(token) if token in self._guarded else (token,))]

    def _spelled(self, token_id: int) -> list[int]:
        ids = [i for char in self._literal[token_id] for i in self._plain(char)]
        return [i for i in ids if i not in self._guarded]

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of token ids, without the special ones if `skip_special`; broken UTF-8 becomes U+FFFD."""
        shown = self._shown_bytes if skip_special else self.token_bytes
        text = b"".join([shown(i) for i in ids]).decode("utf-8", "replace")
        if self._strip_leading_space and text.startswith(" "):
            return text[1:]
        return text

    def stream(self, *, skip_special: bool = True) -> StreamDecoder:
        """A decoder for tokens that arrive one by one."""
        return StreamDecoder(self._shown_bytes if skip_special else self.token_bytes)

    def token_bytes(self, token_id: int) -> bytes:
        """The raw bytes that a token stands for: not always whole characters, empty for unused padding ids.
        A special token stands for its name."""
        known = self._bytes.get(token_id)
        if known is not None:
            return known
        literal = self._literal.get(token_id)
        data = utf8(literal) if literal is not None else self._bytes_of_piece(self.token(token_id))
        self._bytes[token_id] = data
        return data

    def _shown_bytes(self, token_id: int) -> bytes:
        return b"" if token_id in self._hidden else self.token_bytes(token_id)

    def token(self, token_id: int) -> str:
        """The piece as the vocabulary spells it, empty for unused padding ids."""
        if not 0 <= token_id < self.vocab_size:
            raise TokenizerError(f"token id {token_id} is outside the vocabulary of {self.vocab_size}")
        return self._piece_of(int(token_id)) or ""

    def id_of(self, token: str) -> int | None:
        """The id of a piece as the vocabulary spells it, or None."""
        try:
            return self._id_of(token)
        except (TypeError, UnicodeEncodeError):
            return None
