"""llama2.c's tokenizer, as far as stories need it."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

BEGIN = 1  # begins a story, and so ends the one before


class Pieces:
    """llama2.c's vocabulary: pieces that are merged, best score first."""

    def __init__(self, pieces: list[str], scores: list[float]) -> None:
        self.pieces, self.scores = pieces, scores
        self.ids = {piece: i for i, piece in reversed(list(enumerate(pieces)))}
        self._known: dict[str, list[int]] = {}

    @classmethod
    def read_llama2c(cls, path: Path) -> Pieces:
        data, at, pieces, scores = path.read_bytes(), 4, [], []
        while at < len(data):
            score, length = struct.unpack_from("<fi", data, at)
            pieces.append(data[at + 8 : at + 8 + length].decode("utf-8", "replace"))
            scores.append(score)
            at += 8 + length
        return cls(pieces, scores)

    @classmethod
    def read(cls, folder: Path) -> Pieces:
        """As stories15m.save wrote them."""
        return cls(**json.loads((folder / "stories15m.json").read_text()))

    def encode(self, text: str) -> list[int]:
        return [i for word in text.split() for i in self._word(f" {word}")]

    def _word(self, text: str) -> list[int]:
        """Openings are made of few words, so each is merged once."""
        if text not in self._known:
            self._known[text] = self._merged(list(text))
        return self._known[text]

    def _merged(self, symbols: list[str]) -> list[int]:
        while True:
            pairs = [a + b for a, b in pairwise(symbols)]
            best = max(
                range(len(pairs)),
                key=lambda i: self.scores[self.ids[pairs[i]]] if pairs[i] in self.ids else -1e10,
                default=-1,
            )
            if best < 0 or pairs[best] not in self.ids:
                return [self.ids[symbol] for symbol in symbols]
            symbols[best : best + 2] = [pairs[best]]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join([self.pieces[i] for i in ids]).strip()
