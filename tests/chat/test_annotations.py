"""Formats that are annotations, in the schemas of answers and of tools."""

from __future__ import annotations

from typing import Any

import pytest

from chat.test_tool_grammar import tokenizer
from olivine.chat.annotations import without_annotations
from olivine.chat.grammar import Grammars, response_grammar
from olivine.chat.parsers import FORMATS
from olivine.chat.tool_grammar import calls_grammar
from olivine.errors import RequestError


@pytest.mark.parametrize("format", ["path", "binary", "password", "byte"])
def test_formats_of_openapi_and_pydantic_are_no_reason_to_refuse(format: str) -> None:
    words = tokenizer(())
    grammars = Grammars(words, words.vocab_size)
    schema = {"type": "object", "properties": {"x": {"type": "string", "format": format}}}
    grammars.compile(response_grammar({"type": "json_schema", "schema": schema}) or "")
    tools = [{"function": {"name": "f", "parameters": schema}}]
    grammars.compile(calls_grammar(FORMATS["json"], tools, {}))


def test_a_format_that_says_what_is_in_a_text_is_kept_or_refused() -> None:
    words = tokenizer(())
    with pytest.raises(RequestError, match="iri"):
        Grammars(words, words.vocab_size).compile(response_grammar({"type": "string", "format": "iri"}) or "")


def test_values_and_names_stay() -> None:
    schema: dict[str, Any] = {
        "properties": {"format": {"const": {"format": "path"}}},
        "anyOf": [{"enum": [{"format": "path"}]}, {"format": "date"}],
        "default": {"format": "path"},
    }
    assert without_annotations(schema) == schema
    assert without_annotations({"anyOf": [{"type": "string", "format": "path"}]}) == {
        "anyOf": [{"type": "string"}]
    }


def test_every_byte_may_be_a_choice() -> None:
    words = tokenizer(())
    choices = [chr(code) for code in range(1, 256)]
    Grammars(words, words.vocab_size).compile(response_grammar({"type": "choice", "choices": choices}) or "")
