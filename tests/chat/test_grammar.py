"""Structured output: everything that comes out fits what was asked for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import regex

import olivine
from chat.schemas import is_short, schemas
from olivine import LLM, RequestError
from olivine.chat.grammar import Grammar, Grammars, Thought, json_grammar, response_grammar
from olivine.tokenizer import from_folder
from oracles import real_models, tiny
from tokenizer import trained
from tokenizer.samples import write_folder

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 9},
        "age": {"type": "integer", "maximum": 120, "minimum": 0},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = tiny.write("tiny-qwen3", "Q8_0", tmp_path_factory.mktemp("models"))
    with olivine.load(path, device="cpu", threads=1, context=1024) as llm:
        yield llm


def outputs(llm: LLM, wanted: list[dict[str, Any]], prompt: str, **options: Any) -> list[olivine.Completion]:
    async def all_of_them() -> list[olivine.Completion]:
        tasks = [
            llm.agenerate(prompt, constraint=llm.grammar(each), seed=i, **options)
            for i, each in enumerate(wanted)
        ]
        return await asyncio.gather(*tasks)

    return asyncio.run(all_of_them())


def check(llm: LLM, wanted: list[dict[str, Any]], found: list[olivine.Completion], most: int) -> int:
    """Validates what is complete; what is not must have run into the limit, and is completed first."""
    complete = 0
    for schema, completion in zip(wanted, found, strict=True):
        text = completion.text
        if completion.finish_reason == "stop":
            complete += 1
        else:
            assert completion.usage.completion == most
            text = completed(llm, schema, completion.tokens)
        jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
    return complete


def completed(llm: LLM, schema: dict[str, Any], tokens: Sequence[int]) -> str:
    """The text of these tokens with an end that comes soon: what closes is preferred, the rest is chance."""
    state, tokens, rng = llm.grammar(schema)(), list(tokens), np.random.default_rng(0)
    for token in tokens:
        state.accept(token)
    closing = [llm.tokenizer.encode(text, add_special=False)[0] for text in ("}", "]", '"', "null")]
    for _ in range(2000):
        mask = state.mask()
        if state.done or any(allows(mask, token) for token in llm.tokenizer.stop_ids):
            return llm.tokenizer.decode(tokens)
        preferred = [i for i in closing if allows(mask, i)]
        any_of = preferred[:1] or [i for i in range(llm.vocabulary) if allows(mask, i)]
        tokens.append(int(rng.choice(any_of)))
        state.accept(tokens[-1])
    raise AssertionError(f"no end in sight: {llm.tokenizer.decode(tokens)[-200:]!r}")


@pytest.mark.parametrize("count", [60, pytest.param(230, marks=pytest.mark.exhaustive)])
def test_random_weights_under_many_schemas(llm: LLM, count: int) -> None:
    wanted = schemas(count)
    found = outputs(llm, wanted, "Hi", temperature=1.0, max_tokens=600)
    assert check(llm, wanted, found, 600) >= count * 225 // 230
    texts = {completion.text for completion in found}
    assert len(texts) > count * 15 // 23
    assert any(not text.isascii() for text in texts)
    assert max(map(len, texts)) > 100


@pytest.mark.parametrize(("count", "most"), [(4, 32), pytest.param(60, 480, marks=pytest.mark.exhaustive)])
def test_a_real_model_under_many_schemas(count: int, most: int) -> None:
    with olivine.load(real_models.SMOLLM2.path(), device="cpu", context=512) as llm:
        wanted = schemas(count, seed=7)
        found = outputs(llm, wanted, "Some JSON:\n", temperature=0.7, max_tokens=most)
        assert check(llm, wanted, found, most) >= count * 2 // 5
        for schema, completion in zip(wanted, found, strict=True):
            assert completion.finish_reason == "stop" or not is_short(schema)


def test_the_reference_backend_obeys_too(tmp_path: Path) -> None:
    with olivine.load(tiny.write("tiny-qwen3", "Q8_0", tmp_path), device="reference", context=256) as llm:
        wanted = schemas(12, seed=3)
        found = outputs(llm, wanted, "Hi", temperature=1.0, max_tokens=200)
        assert check(llm, wanted, found, 200) >= 8


@pytest.mark.parametrize("pattern", ["[a-c]{2,4}x?", "(the|a) [0-9]+!", "a*b*", "[^a-z]{3}"])
def test_masks_allow_what_python_says_may_follow(llm: LLM, pattern: str) -> None:
    """Every token of the vocabulary, along random walks; the oracle is a partial match."""
    tokenizer, rng = llm.tokenizer, np.random.default_rng(0)
    special = set(tokenizer.guarded_names.values()) | set(tokenizer.stop_ids)
    tokens = {i: tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)}
    texts = {i: data.decode() for i, data in tokens.items() if data and i not in special and data.isascii()}
    for _ in range(3):
        state, text = llm.grammar({"type": "regex", "regex": pattern})(), ""
        for _ in range(6):
            mask = state.mask()
            allowed = {i for i in range(llm.vocabulary) if mask[i >> 5] >> (i & 31) & 1}
            expected = {i for i, t in texts.items() if regex.fullmatch(pattern, text + t, partial=True)}
            assert {i for i in allowed if i in texts} == expected
            may_end = bool(regex.fullmatch(pattern, text))
            assert allowed.isdisjoint(special) or (allowed & special == tokenizer.stop_ids and may_end)
            assert may_end <= (not allowed.isdisjoint(special))
            if not expected:
                break
            token = int(rng.choice(sorted(expected)))
            state.accept(token)
            text += texts[token]


# The last ones: what a space in front, NFC, and a space that is ▁ make another text of.
CHOICES = ["hello world", " lead", "a  b", "{", "cafe\u0301", "\u212bngstrom", "▁a", "日本 😀", "<s>"]


@pytest.mark.parametrize("way", [*trained.SPACES_IN_FRONT, "NFC"])
def test_what_must_come_is_spelled_byte_by_byte_as_the_grammar_has_it(way: str, tmp_path: Path) -> None:
    if way == "NFC":
        tokenizer = from_folder(write_folder(tmp_path, trained.byte_level("qwen2")))
    else:
        tokenizer = trained.with_a_space_in_front(way, tmp_path)
    grammars = Grammars(tokenizer, tokenizer.vocab_size)
    for choice in CHOICES:
        state = grammars.compile(response_grammar({"type": "choice", "choices": [choice]}) or "")()
        forced = list(state.forced())
        assert b"".join(map(tokenizer.token_bytes, forced)) == choice.encode()
        for token in forced:
            state.accept(token)
        assert state.done
    state = grammars.compile(response_grammar({"type": "choice", "choices": ["hello a", "hello b"]}) or "")()
    assert b"hello".startswith(b"".join(map(tokenizer.token_bytes, state.forced())))


def test_forced_tokens_are_what_must_come(llm: LLM) -> None:
    state = llm.grammar({"type": "choice", "choices": ["yes, of course", "no"]})()
    state.accept(llm.tokenizer.encode("y", add_special=False)[0])
    forced = state.forced()
    assert llm.tokenizer.decode(forced) == "es, of course"
    for token in forced:
        state.accept(token)
    assert state.done


@pytest.mark.parametrize("logprobs", [None, 1])
def test_a_text_ends_where_its_grammar_does_even_if_stop_tokens_are_ignored(
    llm: LLM, logprobs: int | None
) -> None:
    """A stop token that is no special one would be shown, and be no part of the grammar."""
    wanted = {"type": "choice", "choices": ["yes", "yes sir", "no"]}
    ends = llm.tokenizer.stop_ids
    options: Any = {"ignore_eos": True, "logprobs": logprobs, "max_tokens": 30}
    options["logit_bias"] = dict.fromkeys(ends, 100.0)
    for seed in range(4):
        completion = llm.generate("Hi", constraint=llm.grammar(wanted), seed=seed, **options)
        assert (completion.text in ("yes", "no"), completion.finish_reason) == (True, "stop")
        reply = llm.chat("Hi", response_format=wanted, seed=seed, **options)
        assert reply.content in ("yes", "no")
        assert ends.isdisjoint([*completion.tokens, *reply.tokens])


@pytest.mark.parametrize(
    ("wanted", "pattern"),
    [
        ({"type": "regex", "regex": "[0-9]{4}"}, r"\d{4}"),
        ({"type": "choice", "choices": ["ja", "nein"]}, "ja|nein"),
        ({"type": "grammar", "grammar": "start: /[ab]{3}/"}, "[ab]{3}"),
        ({"type": "grammar", "grammar": 'root ::= "x" [0-9] [0-9]'}, r"x\d\d"),
        (
            {"type": "grammar", "grammar": r'root ::= "\u00e9\u0022\U0001f600\[" [\u0041-\u005A\u002d]'},
            'é"😀\\[[A-Z-]',
        ),
        ({"type": "grammar", "grammar": r'root ::= "\\u00e9"'}, r"\\u00e9"),
    ],
)
def test_other_grammars(llm: LLM, wanted: dict[str, Any], pattern: str) -> None:
    for seed in range(5):
        completion = llm.generate("Hi", constraint=llm.grammar(wanted), temperature=1.0, seed=seed)
        assert completion.finish_reason == "stop"
        assert regex.fullmatch(pattern, completion.text)


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-ahead"),
        ({"$ref": "#/nope"}, "nope"),
        ({"type": "strange"}, "strange"),
        ({"enum": [str(i) for i in range(100_000)]}, "is the most"),
        ({"const": "x" * (1 << 20)}, "is the most"),
        ({"type": "regex", "regex": "("}, r"^the pattern \( cannot be used: unclosed group$"),
        ({"type": "regex"}, "regex is missing"),
        ({"type": "grammar", "grammar": "start: ("}, "^the grammar, line 1, column 9: "),
        ({"type": "grammar", "grammar": r'root ::= "\u12"'}, r"\\u12"),
        ({"type": "json_schema"}, "needs a schema"),
        ({"type": "choice", "choices": 5}, "list of texts"),
        ({"type": "choice", "choices": "ab"}, "list of texts"),
        ({"type": "choice", "choices": []}, "texts that are not empty"),
        ({"type": "choice", "choices": ["a", ""]}, "texts that are not empty"),
        ({"type": "regex", "regex": ""}, "regex is empty"),
        (5, "not an object"),
        ({"type": "regex", "regex": "(a{1000}){1000}"}, "the grammar is too large"),
        ({"anyOf": [{"allOf": [{"not": {}}]}]}, "cannot be enforced: not"),
        ({"properties": {f"k{i}": {} for i in range(1001)}}, "1001 properties, and 1000 is the most"),
        (deep(300), "nested too deeply"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_the_reason(llm: LLM, wanted: Any, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        llm.grammar(wanted)


@pytest.mark.parametrize(
    "wanted",
    [
        {"type": "regex", "regex": ".{1,100000}x"},
        {"type": "regex", "regex": "(.*)x(.){25}y"},
        {"type": "regex", "regex": r"(\p{L}|\p{N}){1,3000}\p{Lu}"},
        {"type": "string", "minLength": 1_000_000, "maxLength": 1_000_001},
        {"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000},
        {"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(900)}},
        {"enum": [f"v{i}" for i in range(40_000)]},
        {"type": "integer", "multipleOf": 99991},
        {"type": "choice", "choices": ["a" * i for i in range(1, 900)]},
        {"type": "grammar", "grammar": 'start: s\ns: "a" | s s | s s s'},
        {"type": "grammar", "grammar": 'root ::= ("a" | "b" [a-z]{1,500}){1,500}'},
    ],
    ids=str,
)
def test_what_is_large_is_compiled_or_refused_and_its_outputs_end(llm: LLM, wanted: Any) -> None:
    """In a while: pytest's own limit of time would show otherwise."""
    try:
        llm.generate("Hi", constraint=llm.grammar(wanted), temperature=1.0, seed=1, max_tokens=20)
    except RequestError as error:
        assert "grammar" in str(error)


def test_a_grammar_that_one_request_wore_out_serves_the_next() -> None:
    """States of a grammar share a lexer, which may grow to a limit; then a fresh one is compiled."""
    built = []

    class Matcher:
        def __init__(self) -> None:
            built.append(self)
            self.left = 3

        def deep_copy(self) -> Matcher:
            return self

        def compute_bitmask(self) -> bytes:
            self.left -= 1
            return b"\xff" * 4

        def is_error(self) -> bool:
            return self.left < 0

        def get_error(self) -> str:
            return "too many expressions"

    grammar = Grammar(Matcher, 32, [], None)
    for _ in range(2):
        state = grammar()
        for _ in range(3):
            state.mask()
        with pytest.raises(RequestError, match="the grammar is too large"):
            state.mask()
    assert len(built) == 2
    grammar().mask()


def test_the_same_grammar_is_compiled_once(llm: LLM) -> None:
    again = [llm.grammar({"type": "regex", "regex": f"[ab]{{{i}}}"}) for i in (3, 4, 3)]
    assert again[0] is again[2] is not again[1]


def test_spellings_of_a_response_format() -> None:
    plain = response_grammar(PERSON)
    assert plain == json_grammar(PERSON)
    assert response_grammar({"type": "json_schema", "schema": PERSON}) == plain
    assert response_grammar({"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}) == plain
    assert (
        response_grammar("json")
        == response_grammar({"type": "json_object"})
        == json_grammar({"type": "object"})
    )
    assert response_grammar(None) is response_grammar({"type": "text"}) is response_grammar("text") is None


def allows(mask: np.ndarray, token: int) -> bool:
    return bool(mask[token >> 5] >> (token & 31) & 1)


def test_a_thought_comes_before_the_grammar(llm: LLM) -> None:
    tokenizer = llm.tokenizer
    opens, closes = tokenizer.id_of("<think>"), tokenizer.id_of("</think>")
    assert opens is not None and closes is not None
    grammars = Grammars(tokenizer, llm.vocabulary)
    (letter,) = tokenizer.encode("q", add_special=False)
    brace = tokenizer.encode("{", add_special=False)[0]
    end = min(tokenizer.stop_ids)

    state = grammars.compile(json_grammar(PERSON), Thought(opens, closes))()
    assert allows(state.mask(), opens) and allows(state.mask(), brace) and not allows(state.mask(), letter)
    assert not state.forced()
    state.accept(opens)
    assert allows(state.mask(), letter) and allows(state.mask(), closes) and not allows(state.mask(), end)
    state.accept(letter)
    state.accept(closes)
    assert (
        allows(state.mask(), brace) and not allows(state.mask(), letter) and not allows(state.mask(), opens)
    )

    state = grammars.compile(json_grammar(PERSON), Thought(opens, closes))()
    state.accept(brace)
    assert not allows(state.mask(), opens)

    state = grammars.compile(json_grammar(PERSON), Thought(opens, closes, open=True))()
    assert allows(state.mask(), letter) and not state.done
    state = grammars.compile(json_grammar(PERSON), Thought(opens, closes, possible=False))()
    assert not allows(state.mask(), opens) and allows(state.mask(), brace)


def test_rows_that_no_token_uses_are_never_allowed(llm: LLM) -> None:
    grammars = Grammars(llm.tokenizer, llm.vocabulary + 100)
    mask = grammars.compile(json_grammar({}))().mask()
    assert mask.size * 32 >= llm.vocabulary + 100
    unused = [
        i for i in range(llm.vocabulary + 100) if i >= llm.vocabulary or not llm.tokenizer.token_bytes(i)
    ]
    assert not any(allows(mask, i) for i in unused)


# ---- in the engine


def test_log_probabilities_are_there_for_every_token(llm: LLM) -> None:
    completion = llm.generate(
        "Hi", constraint=llm.grammar(PERSON), logprobs=2, max_tokens=100, temperature=1.0
    )
    assert completion.logprobs is not None
    assert len(completion.logprobs) == len(completion.tokens) == completion.usage.completion


def test_others_are_not_disturbed(llm: LLM) -> None:
    alone = llm.generate("Once upon", max_tokens=40, temperature=1.0, seed=5, ignore_eos=True)

    async def together() -> olivine.Completion:
        free = llm.agenerate("Once upon", max_tokens=40, temperature=1.0, seed=5, ignore_eos=True)
        bound = [llm.agenerate("Hi", constraint=llm.grammar(PERSON), temperature=1.0) for _ in range(3)]
        return (await asyncio.gather(free, *bound))[0]

    assert asyncio.run(together()).tokens == alone.tokens


def test_a_seed_means_the_same_alone_and_in_company(llm: LLM) -> None:
    wanted = schemas(12, seed=9)
    together = outputs(llm, wanted, "Hi there", temperature=1.0, max_tokens=200)
    for i, (schema, found) in enumerate(zip(wanted, together, strict=True)):
        options: dict[str, Any] = {"temperature": 1.0, "max_tokens": 200, "seed": i}
        assert llm.generate("Hi there", constraint=llm.grammar(schema), **options).tokens == found.tokens


def test_the_limit_of_tokens_holds_for_forced_ones(llm: LLM) -> None:
    wanted = llm.grammar({"type": "choice", "choices": ["abcdefghijklmnopqrstuvwxyz"]})
    for most in (1, 2, 5):
        completion = llm.generate("Hi", constraint=wanted, max_tokens=most)
        assert (completion.usage.completion, completion.finish_reason) == (most, "length")
    whole = llm.generate("Hi", constraint=wanted, max_tokens=50)
    assert (whole.text, whole.finish_reason) == ("abcdefghijklmnopqrstuvwxyz", "stop")


class Failing:
    """A constraint that fails at a chosen place."""

    done = False

    def __init__(self, place: str) -> None:
        self.place = place

    def mask(self) -> None:
        self._at("mask")

    def accept(self, token: int) -> None:
        self._at("accept")

    def forced(self) -> list[int]:
        self._at("forced")
        return []

    def _at(self, place: str) -> None:
        if place == self.place:
            raise RequestError(f"{place} fails")


@pytest.mark.parametrize("place", ["mask", "accept", "forced"])
def test_a_constraint_that_fails_ends_its_own_request(llm: LLM, place: str) -> None:
    async def together() -> Any:
        bad = llm.agenerate("Hi", constraint=lambda: Failing(place))
        return await asyncio.gather(bad, llm.agenerate("Hi", max_tokens=8), return_exceptions=True)

    failed, fine = asyncio.run(together())
    assert isinstance(failed, RequestError) and str(failed) == f"{place} fails"
    assert fine.usage.completion
    assert llm._engine.free_pages == llm.program.page_counts
