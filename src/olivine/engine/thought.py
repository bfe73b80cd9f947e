"""The thought that an answer may begin with: how long it may be, and how it is ended from outside."""

from __future__ import annotations

from dataclasses import dataclass

NO_LIMIT = 1 << 31


@dataclass(frozen=True)
class ThoughtTokens:
    """The tokens around a thought. It is open where the prompt ends, or the first token opens it."""

    opens: int
    closes: int
    closing: tuple[int, ...]  # what ends it where the model does not: `closes`, and what stands around it
    open: bool = False  # the prompt has opened it
    budget: int | None = None  # tokens that it may have; None: any number


class ThoughtMeter:
    """Where the thought of one answer is."""

    def __init__(self, tokens: ThoughtTokens) -> None:
        self._tokens = tokens
        self._fresh = not tokens.open  # no token has come that could open it
        self._thinking = tokens.open
        self._left = NO_LIMIT if tokens.budget is None else tokens.budget

    @property
    def room(self) -> int:
        """How many tokens may be drawn before the next look."""
        return max(1, self._left) if self._thinking else 1 if self._fresh else NO_LIMIT

    def feed(self, tokens: list[int]) -> None:
        """Tokens were drawn."""
        if self._fresh and tokens:
            self._fresh = False
            self._thinking = tokens[0] == self._tokens.opens
            tokens = tokens[1:]
        if self._thinking:
            self._thinking = self._tokens.closes not in tokens
            self._left -= len(tokens)

    def closing(self, asked: bool) -> tuple[int, ...]:
        """The tokens that must come next if its budget is spent or its end was `asked` for: given once."""
        if not self._thinking or (self._left > 0 and not asked):
            return ()
        self._thinking = False
        return self._tokens.closing
