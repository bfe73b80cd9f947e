"""The interface of a grammar: which tokens may come next in a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from olivine.backends.base import Int32


class Constraint(Protocol):
    """The state of one request's grammar. Once it is submitted, only the engine calls it, one call
    at a time: `mask` in a thread of its own while a step runs, everything else between two steps.

    An exception from any of these ends the request, and no other one.
    """

    def mask(self) -> Int32 | None:
        """A bit for each token that may come next, stop tokens included; None where all may."""
        ...

    def accept(self, token: int) -> None:
        """The token came."""
        ...

    def forced(self) -> Sequence[int]:
        """Tokens that must come next, whatever the logits; they are then accepted one by one."""
        ...

    @property
    def done(self) -> bool:
        """Whether only the end may come next."""
        ...
