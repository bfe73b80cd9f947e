"""Types and ranges of a request's fields. What passes can be in a step with others and harms none of them."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from olivine.checks import ABOVE_0, INT32, integer, number, of_type, optional
from olivine.errors import RequestError

MAX_TOKENS = optional(integer("at least 1", 1, (1 << 63) - 1))
MIN_TOKENS = integer("0 or more", 0, INT32)
LOGPROBS = optional(integer("0 or more", 0, INT32))
CLIENT = of_type(str, "a string")
PRIORITY = integer("between -2^31 and 2^31 - 1", -INT32 - 1, INT32)
_SECONDS = optional(number("above 0, in seconds", ABOVE_0, 1e9))


@dataclass(frozen=True)
class Deadline:
    """The moment at which a request ends, by `time.perf_counter`. In place of a timeout, it is for requests
    that have waited before they are submitted, and for several that have one end."""

    at: float = math.inf

    @classmethod
    def of(cls, timeout: float | Deadline | None, begin: float) -> Deadline:
        """That of a timeout; seconds count from `begin`."""
        if isinstance(timeout, Deadline):
            return timeout
        return cls() if timeout is None else cls(begin + timeout)


def TIMEOUT(name: str, value: Any) -> Any:
    """Seconds, a deadline, or None."""
    return value if isinstance(value, Deadline) else _SECONDS(name, value)


def token_ids(what: str, tokens: Collection[int], param: str, vocabulary: int) -> None:
    """Raises if one of them is no token of the vocabulary."""
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocabulary:
        bad = next(token for token in tokens if not 0 <= token < vocabulary)
        message = f"{what} must lie in 0..{vocabulary - 1}, and one is {bad}"
        raise RequestError(message, code="invalid_value", param=param)
