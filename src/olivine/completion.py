"""What can be asked of a generation, what it gives back, and how tokens become text on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from olivine import checks
from olivine.backends import TokenLogprobs
from olivine.backends.base import SAMPLING_CHECKS
from olivine.checks import optional
from olivine.engine import Constraint, Finish, Sampling, Ticket, Timings, Update, Usage
from olivine.engine.checks import LOGPROBS, MAX_TOKENS, MIN_TOKENS, PRIORITY, TIMEOUT
from olivine.repetition import Repetition
from olivine.tokenizer import Tokenizer


@dataclass(frozen=True)
class Options:
    """The options of `LLM.generate`."""

    sampling: Sampling | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    max_tokens: int | None = 256
    min_tokens: int = 0
    stop: str | Sequence[str] | None = ()
    stop_tokens: Sequence[int] = ()
    ignore_eos: bool = False
    stop_on_repetition: bool = False
    logprobs: int | None = None
    parse_special: bool = False
    generated: Sequence[bool] | None = None
    constraint: Callable[[], Constraint] | None = None
    timeout: float | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """The options that were given by name; one that is not known is refused."""
        known = [each.name for each in fields(cls)]
        for name in given:
            if name not in known:
                raise TypeError(f"there is no option {name!r}; known: {', '.join(known)}")
        return cls(**given)

    def adjusted(self, default: Sampling) -> Sampling:
        """How to sample: as the options say, and otherwise as `default` does."""
        told = {name: getattr(self, name) for name in _SAMPLING if getattr(self, name) is not None}
        base = self.sampling or default
        if self.logit_bias is not None:
            told["logit_bias"] = {**base.logit_bias, **self.logit_bias}
        return replace(base, **told)


def _grammar(name: str, value: Any) -> Any:
    if not callable(value):
        raise checks.refused(name, "a grammar, as `LLM.grammar` makes it", value)
    return value


_SAMPLING = tuple(name for name in SAMPLING_CHECKS if name in Options.__annotations__)

# What each option may be; `generated` goes with a prompt, and is checked where that is.
_CHECKS: dict[str, checks.Check] = {
    "sampling": optional(checks.of_type(Sampling, "a Sampling")),
    **{name: optional(SAMPLING_CHECKS[name]) for name in _SAMPLING},
    "max_tokens": MAX_TOKENS,
    "min_tokens": MIN_TOKENS,
    "stop": checks.strings,
    "stop_tokens": checks.integers,
    "ignore_eos": checks.flag,
    "stop_on_repetition": checks.flag,
    "logprobs": LOGPROBS,
    "parse_special": checks.flag,
    "constraint": optional(_grammar),
    "timeout": TIMEOUT,
    "priority": PRIORITY,
}


@dataclass(frozen=True)
class Alternative:
    """A token that might have come, and its natural log-probability."""

    token: int
    text: str
    logprob: float


@dataclass(frozen=True)
class TokenLogprob(Alternative):
    """A token that came, and the likeliest ones in its place."""

    top: tuple[Alternative, ...] = ()


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


@dataclass(frozen=True)
class Score:
    """Log-likelihood of a text after another. `greedy`: whether every token was the likeliest."""

    logprob: float
    tokens: list[int]
    logprobs: list[float]
    greedy: bool
    usage: Usage = field(default_factory=Usage)

    def __repr__(self) -> str:
        return f"Score({self.logprob:.4f}, tokens={len(self.tokens)}, greedy={self.greedy})"


def shortened(text: str, most: int = 60) -> str:
    """A text for a `repr`, in quotes: its beginning if it is long."""
    return repr(text if len(text) <= most else text[: most - 1] + "…")


class StopStrings:
    """Text that ends where a stop string is complete. What may yet become one is held back."""

    def __init__(self, stop: str | Sequence[str]) -> None:
        self._stop = [text for text in ((stop,) if isinstance(stop, str) else stop) if text]
        self.held = ""

    def cut(self) -> bool:
        """Whether a stop string is there: what follows it, and itself, go.

        Of several, the one that is complete first: it does not matter how the text is cut into tokens.
        """
        found = [(at + len(text), at) for text in self._stop if (at := self.held.find(text)) >= 0]
        if found:
            self.held = self.held[: min(found)[1]]
        return bool(found)

    def ready(self, final: bool) -> str:
        """The text that is decided; with `final`, all of it."""
        size = len(self.held) if final else len(self.held) - self._undecided()
        text, self.held = self.held[:size], self.held[size:]
        return text

    def _undecided(self) -> int:
        """How much of the held text's end may yet become a stop string."""
        longest = 0
        for text in self._stop:
            for size in range(min(len(text) - 1, len(self.held)), longest, -1):
                if self.held.endswith(text[:size]):
                    longest = size
                    break
        return longest


class Text:
    """Turns one request's updates into pieces, and ends it at a stop string."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        ticket: Ticket,
        stop: Sequence[str],
        seed: int,
        logprobs: bool,
        stop_on_repetition: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._ticket = ticket
        self._decoder = tokenizer.stream()
        self._stops = StopStrings(stop)
        self._repetition = Repetition() if stop_on_repetition else None
        self.seed = seed
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] | None = [] if logprobs else None

    def feed(self, update: Update) -> Piece:
        """The piece that an update makes; the last one has the completion."""
        tokens: list[int] = []
        stopped = False
        for token in update.tokens:
            tokens.append(token)
            self._stops.held += self._decoder.push(token)
            if stopped := self._stops.cut():
                break
        reports = None
        if self._logprobs is not None:
            pairs = zip(tokens, update.logprobs, strict=False)
            reports = [self._report(token, report) for token, report in pairs]
            self._logprobs += reports
        self._tokens += tokens
        reason: Finish | None = "stop" if stopped else update.finish
        if reason is None and self._repetition is not None and self._repetition.feed(tokens):
            self._ticket.cancel("repetition")
            reason = "repetition"
        if reason is not None and not stopped:
            self._stops.held += self._decoder.flush()
            stopped = self._stops.cut()
        text = self._stops.ready(final=reason is not None)
        self._text.append(text)
        completion = None
        if reason is not None:
            if stopped:
                self._ticket.cancel("stop")
                reason = "stop"
            completion = Completion(
                "".join(self._text),
                self._tokens,
                reason,
                # The engine may be some tokens ahead of a stop string, and its figures still move.
                replace(self._ticket.usage, completion=len(self._tokens)),
                replace(self._ticket.timings),
                self.seed,
                self._logprobs,
            )
        return Piece(text, tokens, reports, update.prefilled, completion)

    def _report(self, token: int, report: TokenLogprobs) -> TokenLogprob:
        top = tuple(Alternative(other, self._spell(other), logprob) for other, logprob in report.top)
        return TokenLogprob(token, self._spell(token), report.logprob, top)

    def _spell(self, token: int) -> str:
        return self._tokenizer.token_bytes(token).decode("utf-8", "replace")
