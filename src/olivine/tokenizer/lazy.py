"""Short texts are encoded before the library has read the whole vocabulary.

A text can only become pieces that occur in it, by merges that make such pieces. The library takes 0.1 to 0.6
seconds to read a published vocabulary, and next to nothing to read what a short text can use of it. So the
first few short texts get a model each, made of just that. Their ids are the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from olivine.tokenizer.bpe import no_collection
from olivine.tokenizer.encoding import ids_of

# Makes the library's model of some pieces of the vocabulary, or of all of them (None).
Build = Callable[[Collection[str] | None], Any]

LARGE = 16_384  # pieces; smaller vocabularies are read at once
SHORT = 1000  # characters; finding the pieces of longer texts takes longer than reading all pieces
FEW = 3  # texts


class LazyEncoder:
    """A pair of native tokenizers: `parsed` knows special tokens, to `plain` they are text."""

    def __init__(
        self,
        vocabulary: Mapping[str, int],
        alphabet: Collection[str],
        always: Iterable[str],
        build: Build,
        assemble: Callable[[Any, bool], Any],
    ) -> None:
        """`alphabet` are the pieces that merging starts from, `always` those that no text has to spell.
        `assemble` makes a native tokenizer around a model, with or without parsing."""
        self._vocabulary = vocabulary
        self._always = frozenset(always)
        self._texts = 0
        self._lock = threading.Lock()
        # A text with a character that is missing from the alphabet would lose it below.
        lazy = len(vocabulary) >= LARGE and all(map(vocabulary.__contains__, alphabet))
        self._build = build if lazy else None  # None when all is read
        # Cuts texts into what merging starts from.
        self._cutter = build(self._always.union(alphabet) if lazy else None)
        self._parsed, self._plain = assemble(self._cutter, True), assemble(self._cutter, False)

    def parsed(self, text: str) -> list[int]:
        return self._ids(self._parsed, text)

    def plain(self, text: str) -> list[int]:
        return self._ids(self._plain, text)

    def _ids(self, native: Any, text: str) -> list[int]:
        if self._build is not None:
            with self._lock:
                if self._build is not None and len(text) <= SHORT and self._texts < FEW:
                    self._texts += 1
                    native.model = self._model_of(native, text, self._build)
                    return ids_of(native, text)
                self._read_all()
        return ids_of(native, text)

    def _model_of(self, native: Any, text: str, build: Build) -> Any:
        """The model of the pieces that occur in a text, as the library normalizes it."""
        native.model = self._cutter
        seen = "".join(native.encode(text, add_special_tokens=False).tokens)
        return build(self._always.union(filter(seen.__contains__, self._vocabulary)))

    def _read_all(self) -> None:
        if self._build is not None:
            with no_collection():
                self._parsed.model = self._plain.model = self._build(None)
            self._build = self._cutter = None
