"""A key that config.json lacks, or has as null: it means what the published configuration class says, or the
model is refused."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from transformers.utils import logging

from olivine import models
from olivine.errors import ModelError
from olivine.models.fields import Fields
from oracles import published

# What we make of these where they are missing is not always what the published class does, but then the
# shapes of tensors do not fit, and the model is refused.
_TOLD_BY_TENSORS = ("num_key_value_heads", "head_dim")


def ours(config: dict[str, Any]) -> Any:
    return models.find(config["model_type"], "hf").from_hf(Fields(config))


def variants(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The configuration without each of its keys, and with null for it; and `rope_parameters` without each
    of its keys."""
    for key in config:
        if key not in ("model_type", *_TOLD_BY_TENSORS):
            yield f"no {key}", {other: value for other, value in config.items() if other != key}
            yield f"{key} null", {**config, key: None}
    rope = config["rope_parameters"]
    told = rope.get("full_attention", rope)
    for key in told:
        rest = {other: value for other, value in told.items() if other != key}
        changed = {
            **config,
            "rope_parameters": {**rope, "full_attention": rest} if told is not rope else rest,
        }
        yield f"no {key} in rope_parameters", changed
        if key == "rope_theta":
            yield "rope_theta beside rope_parameters", {**changed, "rope_theta": 123.0}


@pytest.mark.parametrize("name", [case.name for case in published.CASES])
def test_a_key_that_is_missing_or_null_means_what_the_published_class_says(name: str) -> None:
    case = published.case(name)
    whole = case.config(**{**published.COMMON, **case.options}).to_dict()
    logging.set_verbosity_error()
    compared = []
    for what, config in variants(whole):
        try:
            found = ours(config)
        except ModelError:
            continue
        try:
            read = case.config(**copy.deepcopy(config))  # it fills in `rope_parameters` in place
        except Exception:  # the published class refuses it, in one way or another
            continue
        assert found == ours(read.to_dict()), what
        compared.append(what)
    assert "no tie_word_embeddings" in compared and len(compared) > 20
