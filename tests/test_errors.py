"""The error tree: codes for programs, numbers beside the message, and a way through a pickle."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from olivine import errors
from olivine.errors import CheckpointError, ContextError, ModelError, OlivineError, RequestError

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, OlivineError)]


def test_every_error_has_a_code_of_its_own_which_the_tree_names() -> None:
    assert len({kind.code for kind in KINDS}) == len(KINDS)
    for kind in KINDS:
        assert f"{kind.__name__} " in (errors.__doc__ or "") and f" {kind.code} " in (errors.__doc__ or "")


def test_a_prompt_that_is_too_long_says_by_how_much() -> None:
    error = ContextError(5000, 4096)
    assert isinstance(error, RequestError)
    assert (error.code, error.param) == ("context_length_exceeded", "prompt")
    assert (error.tokens, error.context) == (5000, 4096)
    assert str(error).startswith("the prompt has 5000 tokens and the context holds 4096: ")


@pytest.mark.parametrize(
    "error",
    [
        ContextError(5000, 4096),
        CheckpointError("model.gguf", "general.name", "is missing"),
        RequestError("no", code="invalid_value", param="top_k"),
        ModelError("NaN", code="invalid_logits"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_pass_from_process_to_process(error: OlivineError) -> None:
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is type(error) and str(other) == str(error)
        assert other.code == error.code and vars(other) == vars(error)
