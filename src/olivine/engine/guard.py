"""What confines the failure of one sequence to its own request."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from olivine.engine.sequence import Sequence
from olivine.errors import OlivineError


class Guard:
    """A context manager that ends a sequence instead of raising. Several are made for each sequence in each
    step: it is a class, because a generator would take four times as long."""

    __slots__ = ("_fail", "_sequence")

    def __init__(self, fail: Callable[[Sequence, OlivineError], None], sequence: Sequence) -> None:
        self._fail, self._sequence = fail, sequence

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None:  # of any kind: a panic in a grammar's library is no Exception
            self._fail(self._sequence, olivine_error(error))
        return True


def olivine_error(error: BaseException) -> OlivineError:
    """The error as a caller hears of it. What is not one of ours is a defect of ours."""
    if isinstance(error, OlivineError):
        return error
    found = OlivineError(f"the engine failed: {type(error).__name__}: {error}")
    found.__cause__ = error  # with its traceback, for a report
    return found
