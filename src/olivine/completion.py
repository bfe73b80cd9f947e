"""A completion of a text, whole or in pieces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from olivine.engine import Finish, Timings, Usage
from olivine.matching import StopStrings
from olivine.token_stream import Alternative, Finished, TokenLogprob

__all__ = ["Alternative", "Completion", "Piece", "TextConsumer", "TokenLogprob", "shortened"]


@dataclass(frozen=True)
class Completion:
    """A finished generation. With the seed, the same text can be had again."""

    text: str
    tokens: list[int]
    finish_reason: Finish
    usage: Usage
    timings: Timings
    seed: int
    logprobs: list[TokenLogprob] | None = None

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return (
            f"Completion({shortened(self.text)}, finish_reason={self.finish_reason!r}, "
            f"tokens={len(self.tokens)}, seed={self.seed})"
        )


@dataclass(frozen=True)
class Piece:
    """A bit of text as it is made. The last one carries the completion; while the prompt is read, only
    `prefilled` moves."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    prefilled: int = 0  # prompt tokens read so far
    completion: Completion | None = None

    def __str__(self) -> str:
        return self.text


def shortened(text: str, most: int = 60) -> str:
    """A text for a `repr`, in quotes: its beginning if it is long."""
    return repr(text if len(text) <= most else text[: most - 1] + "…")


class TextConsumer:
    """Plain text: everything that is generated, up to a stop string."""

    markers: Mapping[int, str] = {}

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._stops = StopStrings(stop)
        self.feed: Callable[[str], bool] = self._stops.add
        self._text: list[str] = []
        self.result: Completion | None = None

    def mark(self, text: str, name: str) -> bool:
        return self.feed(text + name)

    def end(self, text: str) -> bool:
        return self.feed(text)

    def piece(
        self,
        tokens: list[int],
        logprobs: list[TokenLogprob] | None,
        prefilled: int,
        finished: Finished | None,
    ) -> Piece:
        text = self._stops.take(final=finished is not None)
        self._text.append(text)
        if finished is not None:
            self.result = Completion(
                "".join(self._text),
                finished.tokens,
                finished.reason,
                finished.usage,
                finished.timings,
                finished.seed,
                finished.logprobs,
            )
        return Piece(text, tokens, logprobs, prefilled, self.result)

    def leave(self, tokens: Sequence[int]) -> None:
        pass
