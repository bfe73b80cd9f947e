"""What callers ask of the engine, and the ticket they hold. Everything here is in token ids."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any

from olivine import checks
from olivine.backends.owner import Owner
from olivine.checks import optional
from olivine.engine.checks import CLIENT, PRIORITY, TIMEOUT, Deadline, token_ids
from olivine.engine.jobs import Job
from olivine.engine.media import MediaBlock, checked_media, marked, text_of
from olivine.engine.updates import Finish, Timings, Update, Usage
from olivine.errors import ContextError, RequestError

_CHECKS = {
    "prompt": checks.integers,
    "job": checks.of_type(Job, "a job: a Generate, a Score or an Embed"),
    "generated": optional(checks.flags),
    "timeout": TIMEOUT,
    "priority": PRIORITY,
    "client": CLIENT,
}


@dataclass(frozen=True)
class Request:
    """One sequence to run, and what for."""

    prompt: Sequence[int]
    job: Job[Any]  # Generate(…), Score(…) or Embed(…), with their own options
    # Which tokens of the prompt this engine generated before: such rows are computed as they were then, and
    # their pages can be used again. None: none were. A program with one kind of rows needs no such marks.
    generated: Sequence[bool] | None = None
    timeout: float | Deadline | None = None  # seconds from the submission until it ends with what it has
    priority: int = 0  # who goes first, the lowest number before the others
    client: str = ""  # whose it is: of equal priority, clients take turns
    # Images and sounds: their embeddings stand in for the prompt's tokens at their positions.
    media: Sequence[MediaBlock] = ()

    def checked(self, vocabulary: int, context: int, width: int = 0) -> Request:
        """The request with plain Python values and a job of its own, or an error that names the field.

        `width` is that of the embeddings which media blocks must have."""
        # Before anything is copied: a prompt may be very long.
        if isinstance(self.prompt, Sized) and len(self.prompt) > context:
            raise ContextError(len(self.prompt), context)
        plain = replace(self, **{name: check(name, getattr(self, name)) for name, check in _CHECKS.items()})
        prompt = list(plain.prompt)
        if not prompt:
            raise RequestError("the prompt is empty: give at least one token", param="prompt")
        if len(prompt) + plain.job.new_tokens > context:
            raise ContextError(len(prompt), context)
        media = checked_media(plain.media, width, len(prompt))
        token_ids("token ids", text_of(prompt, media), "prompt", vocabulary)
        prompt = marked(prompt, media)
        if plain.generated is not None:
            if len(plain.generated) != len(prompt):
                raise RequestError("`generated` needs one entry a token of the prompt", param="generated")
            if any(any(plain.generated[block.start : block.end]) for block in media):
                raise RequestError("soft tokens of media are not generated", param="generated")
        return replace(plain, prompt=prompt, job=plain.job.checked(prompt, vocabulary), media=media)


class Ticket:
    """A request in the hands of its caller: iterate over its updates, or cancel it."""

    def __init__(
        self, cancel: Callable[[Finish], None], end_thought: Callable[[], None] = lambda: None
    ) -> None:
        self._updates: queue.SimpleQueue[Update] = queue.SimpleQueue()
        self._cancel = cancel
        self._end_thought = end_thought
        self._owner = Owner()
        self._over = False
        self.usage = Usage()
        self.timings = Timings()

    def put(self, update: Update) -> None:
        self._updates.put(update)

    def cancel(self, reason: Finish = "cancelled") -> None:
        """Stops the request, from any thread; its last update has the reason. Cancelling twice is fine."""
        self._cancel(reason)

    def end_thought(self) -> None:
        """Lets the answer follow now, from any thread: the thought that runs ends after the step that runs,
        and one that has not begun ends when it begins. Otherwise nothing happens."""
        self._end_thought()

    def __iter__(self) -> Iterator[Update]:
        try:
            while not self._over:
                self._owner.check()
                update = self._updates.get()
                self._over = update.finish is not None or update.error is not None
                if update.error is not None:
                    raise update.error
                yield update
        finally:
            if not self._over:
                self.cancel()
