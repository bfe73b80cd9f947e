"""Prompts: from text or token ids to token ids that the model has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from olivine.checks import integers
from olivine.errors import ContextError, RequestError
from olivine.tokenizer import Tokenizer

Prompt = str | Sequence[int]


class PromptEncoder:
    """Encodes prompts for one model, and refuses those that it cannot read."""

    def __init__(self, tokenizer: Tokenizer, context: int, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._context = context
        self._vocabulary = vocabulary

    def encode(self, prompt: Prompt, *, parse_special: bool = False) -> list[int]:
        """The token ids of a prompt; `parse_special` is about text."""
        return self._ids(prompt, partial(self._tokenizer.encode, parse_special=parse_special))

    def encode_after(self, before: Sequence[int], prompt: Prompt) -> list[int]:
        """The token ids of what stands behind these tokens; if they have no text, it begins here."""
        known = self._tokenizer.vocab_size  # another id is refused with the request
        if isinstance(prompt, str) and self._tokenizer.decode(i for i in before if 0 <= i < known):
            return self._ids(prompt, self._tokenizer.encode_after)
        return self._ids(prompt, partial(self._tokenizer.encode, add_special=False))

    def _ids(self, prompt: Prompt, encode: Callable[[str], list[int]]) -> list[int]:
        if isinstance(prompt, str):
            self.refuse_long(prompt)
            tokens = encode(prompt)
        else:
            tokens = integers("prompt", prompt)
        self._refuse_missing(tokens)
        return tokens

    def refuse_long(self, text: str) -> None:
        """Raises where a text cannot fit by its size alone: encoding it could take seconds."""
        fewest = self._tokenizer.fewest(text)
        if fewest > self._context:
            raise ContextError(fewest, self._context, least=True)

    def _refuse_missing(self, tokens: Sequence[int]) -> None:
        """Raises for a token of the tokenizer that has no row in the model's embedding."""
        rows, known = self._vocabulary, self._tokenizer.vocab_size
        if rows < known and tokens and max(tokens) >= rows:
            token = next(token for token in tokens if token >= rows)
            message = f"token ids must lie in 0..{rows - 1}, and one is {token}"
            if token < known:
                message += f": {self._tokenizer.token(token)!r}, which has no row in the model's embedding"
            raise RequestError(message, code="invalid_value", param="prompt")
