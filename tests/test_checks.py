"""Options of any type and size: what makes no sense is refused by name, and the rest becomes plain Python."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from olivine import checks
from olivine.checks import SAMPLING_CHECKS
from olivine.engine import Sampling
from olivine.errors import RequestError
from olivine.options import Options

HUGE = 10**5000  # whose digits Python refuses to print

NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
INTEGERS = ("top_k", "seed", "max_tokens", "min_tokens", "logprobs", "priority")


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


BAD: list[tuple[str, Any]] = [
    *((name, value) for name in NUMBERS for value in ("x", True, inf, -inf, nan, 1 + 0j, [1], HUGE, b"1")),
    *((name, value) for name in INTEGERS for value in (1.5, 1.0, "1", True, nan, HUGE, -HUGE, [1])),
    ("client", 5),
    ("client", None),
    ("client", b"me"),
    ("temperature", -0.1),
    ("temperature", np.float32(101)),
    ("top_p", 0),
    ("min_p", 1.1),
    ("repetition_penalty", 1e-300),
    ("repetition_penalty", 0),
    ("top_k", -1),
    ("top_k", 1 << 31),
    ("seed", -1),
    ("seed", 1 << 64),
    ("max_tokens", 0),
    ("max_tokens", -5),
    ("min_tokens", -1),
    ("min_tokens", None),
    ("logprobs", -1),
    ("stop", [1]),
    ("stop", 1),
    ("stop", b"x"),
    ("stop", [None]),
    ("stop_tokens", 5),
    ("stop_tokens", [1.5]),
    ("stop_tokens", ["5"]),
    ("stop_tokens", "5"),
    ("stop_tokens", b"5678"),
    ("stop_tokens", [1 << 40]),
    ("stop_tokens", None),
    ("ignore_eos", "yes"),
    ("ignore_eos", 1),
    ("parse_special", None),
    ("stop_on_repetition", "no"),
    ("logit_bias", [5]),
    ("logit_bias", {5: "a"}),
    ("logit_bias", {5: None}),
    ("logit_bias", {5: nan}),
    ("logit_bias", {5: inf}),
    ("logit_bias", {5: 1e30}),
    ("logit_bias", {"five": 1.0}),
    ("logit_bias", {"-5": 1.0}),
    ("logit_bias", {1.0: 1.0}),
    ("logit_bias", {True: 1.0}),
    ("sampling", {"temperature": 1.0}),
    ("constraint", "json"),
    ("timeout", 0),
    ("timeout", -1.0),
    ("timeout", inf),
    ("timeout", "5"),
    ("temperature", Unprintable()),
]

GOOD: list[tuple[str, Any, Any]] = [
    ("temperature", 1, 1.0),
    ("temperature", np.float32(0.5), 0.5),
    ("temperature", np.int64(1), 1.0),
    ("temperature", Fraction(1, 2), 0.5),
    ("temperature", None, None),
    ("top_k", np.int64(40), 40),
    ("top_k", np.uint8(40), 40),
    ("seed", np.uint64((1 << 64) - 1), (1 << 64) - 1),
    ("max_tokens", None, None),
    ("max_tokens", (1 << 63) - 1, (1 << 63) - 1),
    ("min_tokens", np.int32(3), 3),
    ("logprobs", 0, 0),
    ("logprobs", None, None),
    ("stop", None, ()),
    ("stop", "x", ("x",)),
    ("stop", ["x", "y"], ("x", "y")),
    ("stop_tokens", (np.int64(5), 6), [5, 6]),
    ("stop_tokens", np.array([5, 6]), [5, 6]),
    ("ignore_eos", np.bool_(True), True),
    ("logit_bias", {"50256": -100}, {50256: -100.0}),
    ("logit_bias", {np.int64(5): np.float32(2), 6: -inf}, {5: 2.0, 6: -inf}),
    ("logit_bias", {}, {}),
    ("timeout", 30, 30.0),
    ("priority", -1, -1),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=lambda value: checks.shown(value)[:20])
def test_what_makes_no_sense_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=rf"^{name}.* must be .*, and is ") as caught:
        Options.of({name: value}).adjusted(Sampling())
    assert (caught.value.code, caught.value.param) == ("invalid_value", name)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(("name", "value", "plain"), GOOD, ids=lambda value: checks.shown(value)[:20])
def test_what_makes_sense_becomes_plain_python(name: str, value: Any, plain: Any) -> None:
    options = Options.of({name: value})
    found = getattr(options, name)
    assert found == plain and type(found) is type(plain)
    options.adjusted(Sampling())


def test_every_option_has_a_check_and_bad_examples() -> None:
    tried = {name for name, _ in BAD}
    assert {each.name for each in fields(Options)} - tried == {"generated"}  # which goes with a prompt
    assert {each.name for each in fields(Sampling)} == set(SAMPLING_CHECKS)


def test_messages_say_what_may_be_and_what_is() -> None:
    for options, message in (
        ({"temperature": "x"}, "temperature must be a number, between 0 and 100, and is 'x'"),
        ({"top_k": 1.5}, "top_k must be an integer, 0 (off) or more, and is 1.5"),
        ({"seed": -1}, "seed must be between 0 and 2^64 - 1, and is -1"),
        (
            {"logit_bias": {5: "a"}},
            "logit_bias[5] must be a number, between -1e9 and 1e9, or -inf, and is 'a'",
        ),
        ({"stop": [1]}, "stop must be a string or a list of strings, and is [1]"),
        ({"top_k": HUGE}, "top_k must be at most 2147483647, and is a value of type int"),
        ({"top_k": 1 << 31}, "top_k must be at most 2147483647, and is 2147483648"),
        ({"timeout": inf}, "timeout must be at most 1e+09, and is inf"),
        ({"timeout": nan}, "timeout must be above 0, in seconds, and is nan"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1 (off), and is 1.5"),
        ({"stop": ["x" * 100, 1]}, f"stop must be a string or a list of strings, and is ['{'x' * 55}..."),
    ):
        with pytest.raises(RequestError) as caught:
            Options.of(options)
        assert str(caught.value) == message


def test_a_temperature_of_next_to_nothing_is_greedy() -> None:
    """1e-300 is 0 in float32, and what lies between divides by a number that some hardware takes for 0."""
    assert Sampling(temperature=1e-300).temperature == 0.0
    assert Sampling(temperature=1e-40).temperature == 0.0
    assert Sampling(temperature=0.01).temperature == 0.01


def test_flags_are_a_byte_each() -> None:
    assert checks.flags("generated", [True, False, np.bool_(True)]) == b"\x01\x00\x01"
    for bad in (5, None):
        with pytest.raises(RequestError, match="generated must be a list of True and False"):
            checks.flags("generated", bad)
