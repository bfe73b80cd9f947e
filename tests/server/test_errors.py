"""Errors of the package as HTTP has them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from olivine.errors import BusyError
from olivine.server.errors import api_error
from olivine.server.openai.completions import CompletionBody


def test_a_full_queue_is_a_429_that_says_when_to_try_again() -> None:
    error = api_error(BusyError("many wait", retry_after=6.2))
    assert (error.status, error.code, error.headers) == (429, "overloaded", {"Retry-After": "7"})


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"prompt": 5}, "prompt", "prompt: Input should be a valid string, or a valid list"),
        ({"prompt": "a", "stop": 5}, "stop", "stop: Input should be a valid string, or a valid list"),
        ({"prompt": "a", "seed": "x"}, "seed", "seed: Input should be a valid integer"),
        (
            {"prompt": "a", "stop_token_ids": [1, "x"]},
            "stop_token_ids.1",
            "stop_token_ids.1: Input should be a",
        ),
        ({}, "prompt", "prompt: Field required"),
    ],
)
def test_a_field_of_another_type_is_named_without_the_types_that_were_tried(
    body: dict[str, Any], param: str, said: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        CompletionBody.model_validate(body)
    error = api_error(caught.value)
    assert (error.status, error.param) == (400, param)
    assert error.message.startswith(said)
