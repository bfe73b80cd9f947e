"""A request under way: its tokens, how far they are computed, and where it stands."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from olivine.engine.checks import Deadline
from olivine.engine.media import text_of
from olivine.engine.request import Request
from olivine.engine.updates import Finish, Timings, Update, Usage

if TYPE_CHECKING:
    from olivine.engine.queue import Level


class Sequence:
    """What every job needs. Only the engine's thread touches it, except for `cancel` and `end_thought`."""

    _numbers = itertools.count()

    def __init__(self, request: Request, tell: Callable[[Update], None]) -> None:
        self.request = request
        self.job = request.job
        self._tell = tell
        self.prompt_length = len(request.prompt)
        self.tokens: list[int] = list(request.prompt)  # `SOFT` for each soft token
        self.media = request.media
        self.media_end = request.media[-1].end if request.media else 0
        self.prompt_text = text_of(request.prompt, request.media)  # without soft tokens
        self.kinds = bytearray(len(self.tokens))  # 1: a generated row, 0: a prompt row
        if request.generated is not None:
            self.kinds = bytearray(map(bool, request.generated))
        self.block_hashes: list[bytes] = []  # of the full pages
        self.computed = 0  # tokens whose keys and values are in the cache
        self.slot = -1  # its row of the page tables; -1: it waits, or is over
        self.over = False
        self.cancelled: Finish | None = None
        self.thought_ended = False  # whether the caller has asked for the end of its thought
        self.number = next(Sequence._numbers)  # by arrival
        self.level: Level | None = None  # its place in the queue's order, once it was there
        # Who goes first and who is preempted last: priority, tag (the queue gives it), number.
        self.rank = (request.priority, 0, self.number)
        self.arrived = time.perf_counter()
        self.deadline = Deadline.of(request.timeout, self.arrived).at
        self.admitted = 0.0
        self.first_token = 0.0
        self.usage = Usage(prompt=self.prompt_length)
        self.timings = Timings()

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def generated_count(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def pending(self) -> int:
        """Rows that have to run before the next token can be drawn."""
        return len(self.tokens) - self.computed

    @property
    def decoding(self) -> bool:
        """Whether only the last, generated token is left to run."""
        count = len(self.tokens)
        return count - self.computed == 1 and count > self.prompt_length

    def cancel(self, reason: Finish = "cancelled") -> None:
        """Asks for the end, from any thread; the first reason counts."""
        self.cancelled = self.cancelled or reason

    def end_thought(self) -> None:
        """Asks for the end of the thought, from any thread."""
        self.thought_ended = True

    def due(self, now: float) -> Finish | None:
        """Why it should end at this moment, if it should."""
        return self.cancelled or ("timeout" if self.deadline <= now else None)

    def tell(self, update: Update) -> None:
        """A listener that raises anything (its event loop is gone, say) loses its own request only."""
        try:
            self._tell(update)
        except BaseException:
            self.cancel()

    def add(self, tokens: list[int]) -> None:
        """Appends generated tokens."""
        self.tokens += tokens
        self.kinds += b"\1" * len(tokens)

    def time_tokens(self, now: float) -> None:
        """Tokens were drawn."""
        if not self.first_token:
            self.first_token = now
            self.timings.prefill = now - self.admitted
        self.timings.decode = now - self.first_token
