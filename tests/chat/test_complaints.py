"""What is wrong with schemas, patterns and grammars is said in our words: nothing of llguidance's insides."""

from __future__ import annotations

import re
from typing import Any

import pytest

from chat.test_tool_grammar import tokenizer
from olivine.chat.complaints import plainly
from olivine.chat.grammar import Grammars, response_grammar
from olivine.errors import RequestError

# Words of llguidance, of its parts and of Rust.
INSIDES = re.compile(
    r"llguidance|lexer|non-verbose|Unimplemented|Unsatisfiable|NoExtension|parse error|coerce|retriev"
    r"|registry|\brow\b|Some\(|::|\n|⟦|≺|Parser|initial"
)


def pattern(text: str) -> dict[str, str]:
    return {"type": "regex", "regex": text}


def lark(text: str) -> dict[str, str]:
    return {"type": "grammar", "grammar": text}


CASES: list[tuple[Any, str]] = [
    ({"type": "xml"}, "response_format has the type 'xml'; known: text, json_object, json_schema, regex, "
     "grammar, lark, gbnf, choice, or a JSON schema as it is"),
    ({"type": "array", "contains": {}},
     "the schema has a key that cannot be enforced: contains; leave it out"),
    ({"if": {}, "then": {}}, "the schema has a key that cannot be enforced: if, then; leave it out"),
    ({"properties": {"a": {"type": "nope"}}}, "the schema has a type that does not exist: nope"),
    ({"type": "object", "properties": 5}, "the schema: properties must be an object"),
    ({"enum": 5}, "the schema: enum must be an array"),
    ({"enum": []}, "no text fits the schema: it has no alternatives"),
    ({"type": "object", "required": "x"}, 'the schema: required must be an array, and is "x"'),
    ({"type": "string", "pattern": "(?=a)b"},
     "the pattern (?=a)b cannot be used: look-ahead and look-behind are not supported"),
    ({"type": "string", "format": "nonsense"}, "the schema has a format that is not known: nonsense"),
    ({"type": "string", "minLength": 5, "maxLength": 2},
     "no text fits the schema: minLength (5) is greater than maxLength (2)"),
    ({"type": "integer", "multipleOf": 0}, "the schema: multipleOf must be above 0"),
    ({"$ref": "#/nowhere"}, "the schema refers to #/nowhere, which is not there"),
    ({"$ref": "http://x.y/z"},
     "the schema refers to http://x.y/z, and nothing is fetched: put it under $defs"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
     "no text fits the grammar: what it describes has no end"),
    ({"oneOf": [{"type": "string"}, {"type": "string"}]},
     "the schema has a oneOf with alternatives that can hold at the same time: use anyOf"),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "no text fits the schema: incompatible types"),
    ({"patternProperties": {"a": {"type": "string"}, "b": {"type": "integer"}}},
     "the schema: the patternProperties /a/ and /b/ may fit the same name"),
    (pattern("("), "the pattern ( cannot be used: unclosed group"),
    (pattern("x(?<=a)b"),
     "the pattern x(?<=a)b cannot be used: look-ahead and look-behind are not supported"),
    (pattern("\\1(a)"), "the pattern \\1(a) cannot be used: backreferences are not supported"),
    (pattern("a\\b"),
     "the pattern a\\b cannot be used: anchors and word boundaries in it are not supported"),
    (pattern("(a{1000}){1000}"), "the grammar is too large, or has too many alternatives at one place"),
    (lark("start: foo"), "the grammar, line 1, column 8: foo is used and defined nowhere"),
    (lark('start: "a" |\n  % bad'), "the grammar, line 2, column 4: this cannot be read"),
    (lark("start: /(/"), "the pattern ( cannot be used: unclosed group"),
    (lark("start: start"), "no text fits the grammar: what it describes has no end"),
    (lark('start: %json {"type": "nope"}'), "the schema has a type that does not exist: nope"),
    (lark("start: <[999999]>"), "the grammar, line 1, column 8: the model has no token 999999"),
    (lark("%import common.NOPE\nstart: NOPE"),
     "the grammar, line 1, column 1: there is no common.NOPE to import"),
    (lark('A: "a"\nA: "b"\nstart: A'), "the grammar, line 2, column 4: A is defined twice"),
    (lark('start: A{3,1}\nA: "a"'), "the grammar, line 1, column 8: a repetition ends below its beginning"),
    (lark("root ::= foo"), "the grammar: foo is used and defined nowhere"),
    (lark("root ::= [a]{3,1}"), "the grammar: a repetition ends below its beginning"),
    (lark('root ::= "a\n'), "the grammar, line 2: it ends too early"),
    (lark('foo: "a"'), "the grammar, line 1: ::= is expected"),
    (lark(""), "the grammar has no rule named start (Lark) or root (GBNF)"),
]  # fmt: skip


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    words = tokenizer(())
    return Grammars(words, words.vocab_size)


@pytest.mark.parametrize(("wanted", "words"), CASES, ids=lambda each: str(each)[:40])
def test_complaints_in_plain_words(grammars: Grammars, wanted: Any, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        source = response_grammar(wanted)
        assert source is not None
        grammars.compile(source)
    assert str(caught.value) == words
    assert not INSIDES.search(words.replace("::=", ""))


def test_a_complaint_that_is_not_known_is_one_line() -> None:
    assert plainly("odd thing\n<non-verbose/>\nat src/x.rs") == "the grammar cannot be used: odd thing"
    assert plainly("") == "the grammar cannot be used: it is refused without a reason"
    assert len(plainly("x" * 5000)) == 300
