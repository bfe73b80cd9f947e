"""Required calls: whatever a grammar lets through is read back as calls that fit their declarations."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from olivine.chat.grammar import Grammars, either, json_grammar
from olivine.chat.messages import tools_of
from olivine.chat.parsers import FORMATS, CallPiece, CallStart, Parser
from olivine.chat.tool_grammar import MOST, calls_grammar
from olivine.tokenizer import Tokenizer, from_gguf
from oracles import sampled
from tokenizer import trained

TOOLS = tools_of(
    [
        {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "maxLength": 12},
                    "Unit": {"type": "string", "enum": ["C", "°F"]},
                    "days": {"type": "integer"},
                    "exact": {"type": "boolean"},
                    "at": {
                        "type": "object",
                        "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}},
                        "required": ["lon"],
                        "additionalProperties": False,
                    },
                    "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 3},
                },
                "required": ["city", "days"],
                "additionalProperties": False,
            },
        },
        {"name": "clock", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}},
        {"name": "free", "parameters": {"type": "object", "properties": {"x": {}}, "required": ["x"]}},
    ]
)
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}


# What ends a value, where no byte does.
PIECES = {"qwen3-coder": ("\n</parameter>\n",)}


def tokenizer(markers: tuple[str, ...], pieces: tuple[str, ...] = ()) -> Tokenizer:
    """Single bytes and these pieces, and the markers as tokens."""
    tokens = ["<unk>", "<eos>", *markers, "▁", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    kinds = [2, 3, *[4] * len(markers), 1, *[6] * 256, *[1] * len(pieces)]
    return from_gguf(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.scores": [0.0] * len(tokens),
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 1,
            "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.ggml.add_bos_token": False,
            "tokenizer.ggml.add_space_prefix": False,
        }
    )


def walk(state: Any, words: Tokenizer, closing: set[int], rng: random.Random) -> list[int] | None:
    """Tokens that the grammar allows, in a hurry to close what is open; None if that takes too long."""
    found: list[int] = []
    for _ in range(900):
        forced = state.forced()
        for token in forced:
            state.accept(token)
        found += forced
        if state.done:
            return found
        mask = state.mask()
        allowed = [i for i in range(words.vocab_size) if mask[i >> 5] >> (i & 31) & 1]
        if 1 in allowed and rng.random() < 0.7:
            return found
        allowed = [i for i in allowed if i != 1]
        soon = [i for i in allowed if i in closing]
        token = rng.choice(soon) if soon and rng.random() < 0.5 else rng.choice(allowed)
        state.accept(token)
        found.append(token)
    return None


@pytest.mark.parametrize(
    ("name", "as_tokens"),
    sampled.every(
        2, ((name, turn == (number % 2)) for number, name in enumerate(FORMATS) for turn in range(2))
    ),
)
@pytest.mark.parametrize("count", [30, pytest.param(400, marks=pytest.mark.exhaustive)])
def test_what_the_grammar_allows_is_read_as_calls(name: str, as_tokens: bool, count: int) -> None:
    format = FORMATS[name]
    words = tokenizer(format.markers if as_tokens else (), PIECES.get(name, ()))
    markers = {marker: i for marker in format.markers if as_tokens and (i := words.id_of(marker)) is not None}
    grammar = Grammars(words, words.vocab_size).compile(calls_grammar(format, TOOLS, markers))
    ends = (b'"', b"}", b"]", b",", b'<|"|>', *(piece.encode() for piece in PIECES.get(name, ())))
    closing = {i for i in range(words.vocab_size) if words.token_bytes(i) in ends}
    rng = random.Random(f"{name}{as_tokens}")
    names = {i: marker for marker, i in markers.items()}
    seen: set[str] = set()
    several = complete = 0
    for _ in range(count):
        tokens = walk(grammar(), words, closing, rng)
        if tokens is None:
            continue
        parser, decoder = Parser(format, SCHEMAS, markers), words.stream()
        events = []
        for token in tokens:
            events += parser.mark(names[token]) if token in names else parser.feed(decoder.push(token))
        events += parser.end()
        calls: list[list[str]] = []
        for event in events:
            if isinstance(event, CallStart):
                calls.append([event.name, ""])
            else:
                assert isinstance(event, CallPiece), (event, words.decode(tokens))
                calls[-1][1] += event.text
        assert calls
        for called, arguments in calls:
            loose = name in ("gemma4", "qwen3-coder")
            schema = _loose(SCHEMAS[called]) if loose else SCHEMAS[called]
            jsonschema.validate(json.loads(arguments), schema)
            seen.add(called)
        several += len(calls) > 1
        complete += 1
    assert seen == SCHEMAS.keys()
    assert several and complete > count / 2


def _loose(schema: Any) -> Any:
    """The notations of Gemma and Qwen3-Coder keep names, types and what is required, but not lengths."""
    if isinstance(schema, dict):
        return {key: _loose(item) for key, item in schema.items() if key not in ("maxLength", "maxItems")}
    return schema


@pytest.mark.parametrize("way", trained.SPACES_IN_FRONT)
def test_calls_may_be_required_where_a_space_comes_in_front_of_a_text(way: str, tmp_path: Path) -> None:
    format = FORMATS["hermes"]
    words = trained.with_a_space_in_front(way, tmp_path)
    grammar = Grammars(words, words.vocab_size).compile(calls_grammar(format, TOOLS[1:2], {}, several=False))
    state, forced = grammar(), []
    while not state.done:
        forced = [*state.forced()]
        for token in forced or words.encode_after("}"):
            state.accept(token)
    assert forced


@pytest.mark.parametrize("name", FORMATS)
def test_schemas_that_are_no_objects_are_no_failures(name: str) -> None:
    """JSON Schema has true and false for "anything" and "nothing"."""
    for properties in ({"x": True, "y": False, "z": {"type": "integer"}}, True, ["x"]):
        tools = [{"function": {"name": "f", "parameters": {"type": "object", "properties": properties}}}]
        assert "f" in calls_grammar(FORMATS[name], tools, {})


def test_one_call_where_several_are_not_wanted() -> None:
    format = FORMATS["hermes"]
    words = tokenizer(format.markers)
    markers = {marker: i for marker in format.markers if (i := words.id_of(marker)) is not None}
    grammar = Grammars(words, words.vocab_size).compile(
        calls_grammar(format, TOOLS[1:2], markers, several=False)
    )
    state = grammar()
    for token in words.encode_rendered('<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'):
        state.accept(token)
    assert state.done


@pytest.mark.parametrize("as_tokens", [True, False])
@pytest.mark.parametrize("name", FORMATS)
def test_a_form_of_the_answer_stands_beside_the_calls(name: str, as_tokens: bool) -> None:
    format = FORMATS[name]
    words = tokenizer(format.markers if as_tokens else ())
    markers = {marker: i for marker in format.markers if as_tokens and (i := words.id_of(marker)) is not None}
    calls = calls_grammar(format, TOOLS[1:2], markers)
    form = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
    grammar = Grammars(words, words.vocab_size).compile(either(json_grammar(form), calls))
    call = Grammars(words, words.vocab_size).compile(calls)()
    state, begun = grammar(), {i for i in range(words.vocab_size) if call.mask()[i >> 5] >> (i & 31) & 1}
    (opening,) = words.encode_rendered("[")
    allowed = {i for i in range(words.vocab_size) if state.mask()[i >> 5] >> (i & 31) & 1}
    assert allowed == begun | {opening}
    for token in words.encode_rendered("[1, 20]"):
        state.accept(token)
    assert state.done


@pytest.mark.parametrize("name", FORMATS)
def test_required_calls_come_to_an_end(name: str) -> None:
    """Even if the model never wants to stop."""
    format = FORMATS[name]
    words = tokenizer(format.markers)
    clock = [tool for tool in TOOLS if tool["function"]["name"] == "clock"]
    for several, most in ((True, MOST), (False, 1)):
        markers = {marker: i + 2 for i, marker in enumerate(format.markers)}
        state = Grammars(words, words.vocab_size).compile(calls_grammar(format, clock, markers, several))()
        found: list[int] = []
        while not state.done:
            mask = state.mask()
            allowed = [i for i in range(words.vocab_size) if mask[i >> 5] >> (i & 31) & 1 and i != 1]
            if not allowed:
                break
            byte = words.id_of("<0x5B>")  # a list, where that is possible
            going_on = [i for i in allowed if i not in markers.values()] or allowed
            token = byte if byte in allowed and not found else going_on[0]
            state.accept(token)
            found.append(token)
        text = b"".join(words.token_bytes(token) for token in found).decode()
        assert text.count("clock") == most
