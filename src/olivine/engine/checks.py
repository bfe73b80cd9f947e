"""Types and ranges of a request's fields. What passes can be in a step with others and harms none of them."""

from __future__ import annotations

from collections.abc import Collection

from olivine.checks import ABOVE_0, INT32, integer, number, of_type, optional
from olivine.errors import RequestError

MAX_TOKENS = optional(integer("at least 1", 1, (1 << 63) - 1))
MIN_TOKENS = integer("0 or more", 0, INT32)
LOGPROBS = optional(integer("0 or more", 0, INT32))
TIMEOUT = optional(number("above 0, in seconds", ABOVE_0, 1e9))
CLIENT = of_type(str, "a string")
PRIORITY = integer("between -2^31 and 2^31 - 1", -INT32 - 1, INT32)


def token_ids(what: str, tokens: Collection[int], param: str, vocabulary: int) -> None:
    """Raises if one of them is no token of the vocabulary."""
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocabulary:
        bad = next(token for token in tokens if not 0 <= token < vocabulary)
        message = f"{what} must lie in 0..{vocabulary - 1}, and one is {bad}"
        raise RequestError(message, code="invalid_value", param=param)
