"""What a request may ask of an engine. Whatever passes can be in a step with others and harm none of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sized
from dataclasses import replace

from olivine import checks
from olivine.backends import Sampling
from olivine.checks import ABOVE_0, INT32, Check, integer, number, one_of, optional
from olivine.engine.request import Request
from olivine.errors import ContextError, RequestError

MAX_TOKENS = optional(integer("at least 1", 1, (1 << 63) - 1))
MIN_TOKENS = integer("0 or more", 0, INT32)
LOGPROBS = optional(integer("0 or more", 0, INT32))
TIMEOUT = optional(number("above 0, in seconds", ABOVE_0, 1e9))
PRIORITY = integer("between -2^31 and 2^31 - 1", -INT32 - 1, INT32)


def request_check(vocabulary: int, context: int) -> Callable[[Request], Request]:
    """A check for the requests to one engine: gives the request with plain Python values, or raises."""
    table: dict[str, Check] = {
        "job": one_of("generate", "embed", "score"),
        "prompt": checks.integers,
        "sampling": checks.of_type(Sampling, "a Sampling"),
        "max_tokens": MAX_TOKENS,
        "min_tokens": MIN_TOKENS,
        "stop": checks.integers,
        "logprobs": optional(integer(f"between 0 and {vocabulary}", 0, vocabulary)),
        "generated": optional(checks.flags),
        "pooling": one_of("mean", "last"),
        "score_from": integer("0 or more", 0, INT32),
        "timeout": TIMEOUT,
        "priority": PRIORITY,
    }

    def ids(what: str, tokens: Collection[int], param: str) -> None:
        if tokens and not 0 <= min(tokens) <= max(tokens) < vocabulary:
            bad = next(token for token in tokens if not 0 <= token < vocabulary)
            message = f"{what} must lie in 0..{vocabulary - 1}, and one is {bad}"
            raise RequestError(message, code="invalid_value", param=param)

    def check(request: Request) -> Request:
        room = context + (request.job != "generate")
        if isinstance(request.prompt, Sized) and len(request.prompt) >= room:
            raise ContextError(len(request.prompt), context)
        plain = replace(request, **{name: each(name, getattr(request, name)) for name, each in table.items()})
        size = len(plain.prompt)
        if not size:
            raise RequestError("the prompt is empty: give at least one token", param="prompt")
        if size >= room:
            raise ContextError(size, context)
        ids("token ids", plain.prompt, "prompt")
        ids("stop tokens", plain.stop, "stop_tokens")
        ids("the tokens of logit_bias", plain.sampling.logit_bias, "logit_bias")
        if plain.generated is not None and len(plain.generated) != size:
            raise RequestError("`generated` needs one entry a token of the prompt", param="generated")
        if plain.job == "score" and not 1 <= plain.score_from < size:
            raise RequestError("scoring needs at least one token before the first one that is scored")
        return plain

    return check
