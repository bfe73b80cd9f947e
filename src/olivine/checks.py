"""Types and ranges of what callers give: each option has a check, which runs before anything is done with it.

A check takes an option's name and its value, and gives the value back as plain Python (NumPy's scalars become
int and float) or raises a `RequestError` that names the option, what it may be, and what it is.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from math import inf
from numbers import Integral, Real
from typing import Any, TypeVar

from olivine.errors import RequestError

Check = Callable[[str, Any], Any]
T = TypeVar("T")

INT32 = (1 << 31) - 1
ABOVE_0 = 5e-324  # the smallest number above 0


def from_kwargs(kind: type[T], given: Mapping[str, Any]) -> T:
    """A dataclass of options from keyword arguments; a name that is no field is a TypeError."""
    refuse_unknown(given, [each.name for each in fields(kind)])  # type: ignore[arg-type]
    return kind(**given)


def refuse_unknown(given: Iterable[str], known: Collection[str]) -> None:
    """Raises a TypeError for an option that is not known, as Python does for unexpected arguments."""
    for name in given:
        if name not in known:
            raise TypeError(f"there is no option {name!r}; known: {', '.join(known)}")


def refused(name: str, wanted: str, value: Any) -> RequestError:
    """The error of an option that is not what it must be."""
    message = f"{name} must be {wanted}, and is {shown(value)}"
    return RequestError(message, code="invalid_value", param=name.partition("[")[0])


def shown(value: Any) -> str:
    """A value in an error message: never long, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # of an int with thousands of digits, say
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def number(wanted: str, low: float, high: float) -> Check:
    """A number from `low` to `high`; `wanted` says so in words."""

    def check(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise refused(name, f"a number, {wanted}", value)
        if not (value >= low and value <= high):  # type: ignore[operator]  # NaN is neither
            raise refused(name, _bound(wanted, f"{high:g}", value > high), value)  # type: ignore[operator]
        return float(value)

    return check


def integer(wanted: str, low: int, high: int) -> Check:
    """An integer from `low` to `high`; `wanted` says so in words."""

    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise refused(name, f"an integer, {wanted}", value)
        if not low <= (found := int(value)) <= high:
            raise refused(name, _bound(wanted, str(high), found > high), value)
        return found

    return check


def _bound(wanted: str, high: str, is_above: bool) -> str:
    """What a number must be: where it is above an upper bound of which the words say nothing, that."""
    return f"at most {high}" if is_above and high not in wanted else wanted


def optional(check: Check) -> Check:
    """What the check takes, or None."""
    return lambda name, value: None if value is None else check(name, value)


def flag(name: str, value: Any) -> bool:
    """True or False, NumPy's too."""
    numpy = sys.modules.get("numpy")  # who has one of its values has imported it
    if not isinstance(value, bool if numpy is None else bool | numpy.bool_):
        raise refused(name, "True or False", value)
    return bool(value)


def one_of(*known: str) -> Check:
    """One of these words."""

    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in known:
            raise refused(name, " or ".join(map(repr, known)), value)
        return value

    return check


def of_type(kind: type | tuple[type, ...], wanted: str) -> Check:
    """An object of a class, or of one of several."""

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise refused(name, wanted, value)
        return value

    return check


def strings(name: str, value: Any) -> tuple[str, ...]:
    """A string or several; None: none."""
    if value is None:
        return ()
    found = (value,) if isinstance(value, str) else value
    if not isinstance(found, Collection) or not all(isinstance(each, str) for each in found):
        raise refused(name, "a string or a list of strings", value)
    return tuple(found)


def integers(name: str, value: Any) -> list[int]:
    """Any number of integers, in 32 bits: in one pass, since a prompt may be long."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray | Mapping):
        try:
            return array("i", value).tolist()
        except (TypeError, OverflowError, ValueError):
            pass
    raise refused(name, "a list of token ids, which are integers", value)


def flags(name: str, value: Any) -> bytes:
    """Any number of truth values, a byte each."""
    try:
        return bytes(map(bool, value))
    except (TypeError, ValueError):
        raise refused(name, "a list of True and False", value) from None


def biases(wanted: str, most: float) -> Check:
    """Token ids and a number each, from -most to most, or -inf. Ids may be strings, as JSON has them."""
    bounded = number(wanted, -most, most)

    def check(name: str, value: Any) -> dict[int, float]:
        if not isinstance(value, Mapping):
            raise refused(name, "a mapping from token ids to numbers", value)
        found: dict[int, float] = {}
        for token, bias in value.items():
            if isinstance(token, str) and token.isascii() and token.isdigit() and len(token) < 11:
                token = int(token)
            if not isinstance(token, Integral) or isinstance(token, bool):
                raise refused(f"{name}[…]", "named by token ids", token)
            forbidden = isinstance(bias, Real) and bias == -inf
            found[int(token)] = -inf if forbidden else bounded(f"{name}[{token}]", bias)
        return found

    return check


# What each field of `Sampling` may be; commands look here before they import NumPy. Whatever passes keeps the
# logits finite.
SAMPLING_CHECKS: dict[str, Check] = {
    "temperature": number("between 0 and 100", 0, 100),
    "top_k": integer("0 (off) or more", 0, INT32),
    "top_p": number("above 0 and at most 1 (off)", ABOVE_0, 1),
    "min_p": number("between 0 (off) and 1", 0, 1),
    "repetition_penalty": number("between 0.01 and 100 (1 is off)", 0.01, 100),
    "presence_penalty": number("between -100 and 100", -100, 100),
    "frequency_penalty": number("between -100 and 100", -100, 100),
    "repeat_last_n": optional(integer("0 or more", 0, INT32)),
    "logit_bias": biases("between -1e9 and 1e9, or -inf", 1e9),
    "seed": integer("between 0 and 2^64 - 1", 0, (1 << 64) - 1),
}
