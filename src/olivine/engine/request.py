"""What callers ask of the engine, and what they hear of it. Everything here is in token ids."""

from __future__ import annotations

import itertools
import math
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from olivine.backends import Sampling, TokenLogprobs
from olivine.backends.owner import Owner
from olivine.engine.constraint import Constraint
from olivine.errors import OlivineError

Job = Literal["generate", "embed", "score"]
# stop: a stop token came, or the caller found a stop string; length: max_tokens or the context is reached;
# repetition: the caller found the text to repeat itself only.
Finish = Literal["stop", "length", "cancelled", "timeout", "repetition"]


@dataclass(frozen=True)
class Request:
    """One sequence to run."""

    prompt: Sequence[int]
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None  # None: as many as the context holds
    min_tokens: int = 0
    stop: Sequence[int] = ()
    logprobs: int | None = None  # alternatives to report with each token; None: no log-probabilities
    # Which tokens of the prompt this engine generated before: such rows are computed as they were then, and
    # their pages can be used again. None: none were.
    generated: Sequence[bool] | None = None
    # embed: the prompt's hidden states are wanted, averaged or of the last token. score: log-probabilities of
    # the prompt's own tokens. Neither generates anything.
    job: Job = "generate"
    pooling: Literal["mean", "last"] = "mean"
    score_from: int = 1  # the first token whose log-probability is wanted
    constraint: Constraint | None = None  # what may be generated; it belongs to this request alone
    timeout: float | None = None  # seconds from the submission until it ends with what it has
    priority: int = 0  # who goes first, the lowest number before the others


@dataclass
class Timings:
    """Seconds: waiting, reading the prompt, generating."""

    queue: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0


@dataclass
class Usage:
    """Tokens: of the prompt, of those the ones that were cached, and generated ones."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    drafted: int = 0  # guessed by looking back
    accepted: int = 0  # of those, guessed right


@dataclass
class Update:
    """News of a request. The last one has `finish` or `error`."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prefilled: int = 0  # prompt tokens read so far
    finish: Finish | None = None
    error: OlivineError | None = None
    embedding: npt.NDArray[np.float32] | None = None


class Run:
    """A request under way. Only the engine's thread touches it, but for `cancel` and the mailbox."""

    _numbers = itertools.count()

    def __init__(self, request: Request, tell: Callable[[Update], None]) -> None:
        self.request = request
        self._tell = tell
        self.prompt_length = len(request.prompt)
        self.tokens: list[int] = list(request.prompt)
        self.kinds = bytearray(len(self.tokens))  # 1: computed as a generated row
        if request.generated is not None:
            self.kinds = bytearray(map(bool, request.generated))
        self.names: list[bytes] = []  # of the full pages
        self.done = 0  # tokens whose keys and values are in the cache
        self.slot = -1  # -1: it waits, or is over
        self.over = False
        self.cancelled: Finish | None = None
        self.rank = (request.priority, next(Run._numbers))  # who goes first, and who is preempted last
        self.arrived = time.perf_counter()
        self.deadline = math.inf if request.timeout is None else self.arrived + request.timeout
        self.admitted = 0.0
        self.first_token = 0.0
        self.usage = Usage(prompt=self.prompt_length)
        self.timings = Timings()
        self.pooled = np.zeros(0)  # embed: the sum so far
        self.reports: list[TokenLogprobs] = []  # score
        self.scored = request.score_from  # score: the next token to report
        self.memory: object | None = None  # speculation's

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def generated_count(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def pending(self) -> int:
        """Rows that have to run before the next token can be drawn."""
        return len(self.tokens) - self.done

    @property
    def decoding(self) -> bool:
        """Whether only the last, generated token is left to run."""
        return self.pending == 1 and self.generated_count > 0

    def cancel(self, reason: Finish = "cancelled") -> None:
        """Asks for the end, from any thread; the first reason counts."""
        self.cancelled = self.cancelled or reason

    def due(self, now: float) -> Finish | None:
        """Why it should end at this moment, if it should."""
        return self.cancelled or ("timeout" if self.deadline <= now else None)

    def tell(self, update: Update) -> None:
        """A listener that fails (its event loop is gone, say) wants no more, and is nobody else's problem."""
        try:
            self._tell(update)
        except Exception:
            self.cancel()

    def add(self, token: int) -> None:
        self.tokens.append(token)
        self.kinds.append(1)


class Ticket:
    """A request in the hands of its caller: iterate over its updates, or cancel it."""

    def __init__(self, cancel: Callable[[Finish], None]) -> None:
        self._mail: queue.SimpleQueue[Update] = queue.SimpleQueue()
        self._cancel = cancel
        self._owner = Owner()
        self._over = False
        self.usage = Usage()
        self.timings = Timings()

    def put(self, update: Update) -> None:
        self._mail.put(update)

    def cancel(self, reason: Finish = "cancelled") -> None:
        """Stops the request, from any thread; its last update has the reason. Cancelling twice is fine."""
        self._cancel(reason)

    def __iter__(self) -> Iterator[Update]:
        try:
            while not self._over:
                self._owner.check()
                update = self._mail.get()
                self._over = update.finish is not None or update.error is not None
                if update.error is not None:
                    raise update.error
                yield update
        finally:
            if not self._over:
                self.cancel()
