"""What may be submitted: anything else is refused by name before it runs."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from olivine.engine import Embed, Engine, Generate, Request, Sampling, Score
from olivine.errors import RequestError
from oracles.pages import PagesProgram


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine(PagesProgram(16), 40)  # type: ignore[arg-type]
    yield engine
    engine.close()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request([], Generate()), "empty"),
        (Request([1] * 40, Generate()), "40 tokens and the context holds 40"),
        (Request([1] * 41, Embed()), "41 tokens and the context holds 40"),
        (Request(range(10**9), Generate()), "1000000000 tokens and the context holds 40"),
        (Request([1], Generate(max_tokens=0)), "at least 1"),
        (Request([1, 2], Generate(), generated=[True]), "one entry a token"),
        (Request([1], Score()), "at least one token before"),
        # Found in a step, these would end the requests of others as well.
        (Request([1, 50], Generate()), "token ids must lie in 0..49, and one is 50"),
        (Request([1], Generate(stop=[-1])), "stop tokens must lie in"),
        (Request([1], Generate(Sampling(logit_bias={50: 1.0}))), "logit_bias must lie in"),
        (Request([1], Generate(logprobs=51)), "logprobs must be between 0 and 50, and is 51"),
    ],
)
def test_requests_that_cannot_be_run_are_refused(engine: Engine, request_: Request, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        engine.submit(request_)


@pytest.mark.parametrize(
    ("kind", "bad", "message"),
    [
        (Request, {"prompt": [1.5]}, "prompt must be a list of token ids"),
        (Request, {"prompt": "abc"}, "prompt must be a list of token ids"),
        (Request, {"prompt": None}, "prompt must be a list of token ids"),
        (Request, {"prompt": [1 << 40]}, "prompt must be a list of token ids"),
        (Generate, {"sampling": None}, "sampling must be a Sampling"),
        (Generate, {"max_tokens": 1.5}, "max_tokens must be an integer, at least 1, and is 1.5"),
        (Generate, {"min_tokens": "1"}, "min_tokens must be an integer"),
        (Generate, {"stop": 5}, "stop must be a list of token ids"),
        (Generate, {"logprobs": True}, "logprobs must be an integer, between 0 and 50, and is True"),
        (Request, {"generated": 5}, "generated must be a list of True and False"),
        (Request, {"job": "sing"}, "job must be a job: a Generate, a Score or an Embed, and is 'sing'"),
        (Embed, {"pooling": 1}, "pooling must be 'mean' or 'last'"),
        (Score, {"first": "1"}, "first must be an integer"),
        (Request, {"timeout": 0}, "timeout must be above 0"),
        (Request, {"priority": 0.5}, "priority must be an integer"),
    ],
)
def test_a_field_of_another_type_is_refused_by_name(
    engine: Engine, kind: type, bad: dict[str, Any], message: str
) -> None:
    fields: dict[str, Any] = {"prompt": [1, 2], "job": Generate()}
    fields.update(bad if kind is Request else {"job": kind(**bad)})
    with pytest.raises(RequestError, match=message) as caught:
        engine.submit(Request(**fields))
    assert (caught.value.code, caught.value.param) == ("invalid_value", next(iter(bad)))


def test_a_stop_token_counts_once_and_is_converted_once() -> None:
    job = Generate(stop=[7, 3, 7] * 1000).checked([1], 50)
    assert job.stop == array("i", [7, 3])
    one, other = (np.ascontiguousarray(job.stop, np.int32) for _ in range(2))  # as draws do
    assert np.shares_memory(one, other)
