"""The options of a generation, checked where they are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from olivine import checks
from olivine.checks import SAMPLING_CHECKS, from_kwargs, optional
from olivine.engine import Constraint, Sampling
from olivine.engine.checks import CLIENT, LOGPROBS, MAX_TOKENS, MIN_TOKENS, PRIORITY, TIMEOUT


class GenerateKwargs(TypedDict, total=False):
    """The keywords of `LLM.generate`, for type checkers and editors: the fields of `Options`."""

    sampling: Sampling | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    seed: int | None
    max_tokens: int | None
    min_tokens: int
    stop: str | Sequence[str] | None
    stop_tokens: Sequence[int]
    ignore_eos: bool
    stop_on_repetition: bool
    logprobs: int | None
    parse_special: bool
    generated: Sequence[bool] | None
    constraint: Callable[[], Constraint] | None
    timeout: float | None
    priority: int
    client: str


@dataclass(frozen=True)
class Options:
    """The options of `LLM.generate`, with their defaults."""

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
    client: str = ""

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """The options that were given by name; one that is not known is refused."""
        return from_kwargs(cls, given)

    @property
    def stop_strings(self) -> Sequence[str]:
        """`stop` as several strings, which the checks have made it."""
        return (self.stop,) if isinstance(self.stop, str) else self.stop or ()

    def new_constraint(self) -> Constraint | None:
        """The state of the grammar for one request."""
        if self.constraint is None:
            return None
        state = self.constraint()
        if not all(hasattr(state, name) for name in ("mask", "accept", "forced", "done")):
            raise checks.refused("constraint", _A_GRAMMAR, self.constraint)
        return state

    def adjusted(self, default: Sampling) -> Sampling:
        """How to sample: as the options say, and otherwise as `default` does."""
        given = {name: getattr(self, name) for name in _SAMPLING if getattr(self, name) is not None}
        base = self.sampling or default
        if self.logit_bias is not None:
            given["logit_bias"] = {**base.logit_bias, **self.logit_bias}
        return replace(base, **given)


_A_GRAMMAR = "a grammar, as `LLM.grammar` makes it"


def _grammar(name: str, value: Any) -> Any:
    if not callable(value):
        raise checks.refused(name, _A_GRAMMAR, value)
    return value


_SAMPLING = tuple(name for name in SAMPLING_CHECKS if name in Options.__annotations__)

# What each option may be; `generated` is checked together with the prompt, by the engine.
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
    "client": CLIENT,
}
