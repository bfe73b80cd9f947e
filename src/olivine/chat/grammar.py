"""Structured output: from what a client asks for to what may be generated, by llguidance.

A `Grammar` is compiled once; each request gets a `GrammarState` of it, which says for every token what may
come next. Schemas that llguidance cannot keep exactly are refused with the reason. What comes from strangers
takes no long time: its size is limited, `checker.py` looks at it first, within seconds, and llguidance limits
what it spends on a mask. It is imported where it is used: most chats have no grammar.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from olivine.chat.annotations import without_annotations
from olivine.chat.checker import FUEL, Checker
from olivine.chat.complaints import plainly, unplaced
from olivine.chat.nesting import problem_of
from olivine.errors import RequestError
from olivine.tokenizer import Tokenizer

LARGEST = 1 << 19  # characters of a schema or a grammar
DEEPEST = 256  # lists and objects inside of each other in a schema; llguidance reads about half of that
WIDEST = 1000  # properties of an object: the time to compile them grows with their square
KEPT = 64  # compiled grammars, for those who ask for the same again
# JSON on one line, as Python writes it. Models that may write any amount of white space sometimes never stop.
LAYOUT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_JSON_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_FROM_GBNF = "// from GBNF"  # a comment in what was translated: places in it are not those of the user's text
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)
_KINDS = ("text", "json_object", "json_schema", "regex", "grammar", "lark", "gbnf", "choice")


@dataclass(frozen=True)
class Thought:
    """The tokens around a thought, which comes before what the grammar describes."""

    opens: int
    closes: int
    open: bool = False  # the prompt has opened one
    possible: bool = True  # whether the model may open one


class Grammars:
    """The grammars of one vocabulary. What llguidance needs to know of it is built when first used."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._native: Any = None
        self._checker = Checker()
        self._kept: dict[tuple[str, Thought | None], Grammar] = {}

    def close(self) -> None:
        """Ends the processes that look at grammars; one that comes later starts them again."""
        self._checker.close()

    def compile(self, source: str, thought: Thought | None = None) -> Grammar:
        """A grammar in llguidance's own form."""
        if len(source) > LARGEST:
            raise RequestError(f"the grammar has {len(source)} characters, and {LARGEST} is the most")
        with self._lock:
            grammar = self._kept.pop((source, thought), None)
        if grammar is None:
            native = self._built()
            stop = sorted(i for i in self._tokenizer.stop_ids if i < self._vocabulary)
            try:
                self._checker.check(source)
                grammar = Grammar(lambda: _matcher(native, source), self._vocabulary, stop, thought)
            except RequestError as error:
                if _FROM_GBNF not in source:
                    raise
                raise RequestError(unplaced(str(error))) from None
        with self._lock:
            self._kept[source, thought] = grammar  # at the end: the longest unused goes first
            if len(self._kept) > KEPT:
                self._kept.pop(next(iter(self._kept)))
        return grammar

    def _built(self) -> Any:
        from llguidance import LLTokenizer, TokenizerWrapper

        with self._lock:
            if self._native is None:
                self._checker.prepare()
                self._native = LLTokenizer(
                    TokenizerWrapper(_Vocabulary(self._tokenizer, self._vocabulary)),
                    eos_token=sorted(i for i in self._tokenizer.stop_ids if i < self._vocabulary) or None,
                )
            return self._native


class Grammar:
    """A compiled grammar: calling it gives the state of a fresh request."""

    def __init__(
        self, build: Callable[[], Any], vocabulary: int, stop: Sequence[int], thought: Thought | None
    ) -> None:
        self._build = build
        self._matcher = build()
        self._exhausted = False  # states share one lexer and its limit: one that reached it is built anew
        self._thought = thought
        self._words = -(-vocabulary // 32)
        self._free = np.full(self._words, -1, np.int32)  # anything but the end
        for token in stop:
            _clear(self._free, token)

    def __call__(self) -> GrammarState:
        if self._exhausted:
            self._matcher, self._exhausted = self._build(), False
        return GrammarState(self._matcher.deep_copy(), self._words, self._free, self._thought, self._exhaust)

    def _exhaust(self) -> None:
        self._exhausted = True


class GrammarState:
    """How far one request is in its grammar. The engine knows it as a `Constraint`."""

    def __init__(
        self,
        matcher: Any,
        words: int,
        free: npt.NDArray[np.int32],
        thought: Thought | None,
        failed: Callable[[], None],
    ) -> None:
        self._matcher = matcher
        self._failed = failed
        self._words = words
        self._free = free
        self._thought = thought
        self._thinking = thought is not None and thought.open
        self._may_think = thought is not None and thought.possible and not thought.open

    def mask(self) -> npt.NDArray[np.int32]:
        if self._thinking:
            return self._free
        found = np.frombuffer(self._matcher.compute_bitmask(), np.int32)
        self._check()
        mask = np.zeros(self._words, np.int32)
        size = min(self._words, found.size)
        mask[:size] = found[:size]
        if self._may_think and self._thought is not None:
            mask.view(np.uint32)[self._thought.opens >> 5] |= np.uint32(1 << (self._thought.opens & 31))
        return mask

    def accept(self, token: int) -> None:
        if self._thought is not None and (self._thinking or self._may_think):
            if self._thinking:
                self._thinking = token != self._thought.closes
                return
            self._may_think = False
            if token == self._thought.opens:
                self._thinking = True
                return
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            self._failed()
            _refuse(self._matcher)

    def forced(self) -> list[int]:
        if self._thinking or self._may_think:
            return []
        return list(self._matcher.compute_ff_tokens())

    @property
    def done(self) -> bool:
        return not self._thinking and not self._may_think and bool(self._matcher.is_stopped())


class _Vocabulary:
    """A tokenizer as llguidance wants to see it."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        known = min(vocabulary, tokenizer.vocab_size)
        self.tokens = [tokenizer.token_bytes(i) for i in range(known)] + [b""] * (vocabulary - known)
        self.special_token_ids = sorted(i for i in tokenizer.guarded_names.values() if i < vocabulary)
        self.bos_token_id = None
        self.eos_token_id = tokenizer.eos_id if tokenizer.eos_id is not None else 0
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        """Tokens that spell exactly this text, as far as there are any."""
        ids, data = self._tokenizer.encode_after(text), text.encode()
        if b"".join(self.tokens[i] for i in ids if i < len(self.tokens)) == data:
            return ids
        ids, at = [], 0  # a normalizer changes the text, or the vocabulary has another word for it
        while at < len(data):
            sizes = range(min(self._longest, len(data) - at), 0, -1)
            size = next((size for size in sizes if data[at : at + size] in self._ids), None)
            if size is None:
                break
            ids.append(self._ids[data[at : at + size]])
            at += size
        return ids

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        """The first of the tokens for each text."""
        special = {*self.special_token_ids, *self._tokenizer.stop_ids}
        ordinary = ((data, i) for i, data in enumerate(self.tokens) if data and i not in special)
        return dict(reversed([*ordinary]))

    @cached_property
    def _longest(self) -> int:
        """Bytes of the longest token."""
        return max(map(len, self._ids), default=0)


def response_grammar(wanted: Any) -> str | None:
    """llguidance's form of a `response_format`; None where any text will do.

    It is "json", or an object with a type: text, json_object, json_schema (with `schema`, or OpenAI's
    `json_schema.schema`), regex, grammar (Lark or GBNF) or choice; or a JSON schema as it is.
    """
    if wanted is None or wanted == "text":
        return None
    if wanted in ("json", "json_object"):
        wanted = {"type": "json_object"}
    if hasattr(wanted, "model_json_schema"):  # pydantic's
        wanted = wanted.model_json_schema()
    if not isinstance(wanted, Mapping):
        raise RequestError(f"response_format is not an object: {str(wanted)[:60]!r}")
    kind = wanted.get("type")
    if kind not in _KINDS:
        if isinstance(kind, str) and kind not in _JSON_TYPES:
            raise RequestError(
                f"response_format has the type {kind[:40]!r}; known: {', '.join(_KINDS)}, or a JSON schema "
                "as it is",
                param="response_format",
            )
        return json_grammar(wanted)
    match kind:
        case "text":
            return None
        case "json_object":
            return json_grammar(wanted.get("schema") or {"type": "object"})
        case "json_schema":
            inner = wanted.get("json_schema")
            schema = inner.get("schema") if isinstance(inner, Mapping) else wanted.get("schema")
            if schema is True:
                schema = {}
            if not isinstance(schema, Mapping):
                raise RequestError("response_format: json_schema needs a schema, which is an object")
            return json_grammar(schema)
        case "regex":
            from llguidance import LLMatcher

            pattern = _text(wanted, "regex", "pattern")
            if not pattern:
                raise RequestError("response_format: regex is empty: no text but the empty one would fit it")
            return str(LLMatcher.grammar_from_regex(pattern))
        case "choice":
            choices = wanted.get("choices", wanted.get("choice"))
            if (
                not isinstance(choices, Sequence)
                or isinstance(choices, str)
                or not choices
                or not all(isinstance(each, str) and each for each in choices)
            ):
                raise RequestError(
                    "response_format: choice needs `choices`, a list of texts that are not empty"
                )
            return lark_grammar(_sane("choice", "start: " + " | ".join(map(_quoted, choices))))
        case _:
            from llguidance.gbnf_to_lark import gbnf_to_lark, is_lark_syntax

            text = _text(wanted, "grammar", "lark", "gbnf", kind)
            if is_lark_syntax(text):
                return lark_grammar(text)
            try:
                return lark_grammar(f"{gbnf_to_lark(_unescaped(text))}\n{_FROM_GBNF}\n")
            except Exception as error:
                raise RequestError(plainly(str(error))) from None


def json_grammar(schema: Any) -> str:
    """The grammar of JSON under a schema."""
    from llguidance import LLMatcher

    if (problem := problem_of(schema, DEEPEST)) is not None:
        raise RequestError(f"the schema is {problem}")
    try:
        text = json.dumps(without_annotations(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"the schema is not JSON: {error}") from None
    if len(text) > LARGEST:
        raise RequestError(f"the schema has {len(text)} characters, and {LARGEST} is the most")
    if (most := _widest(schema)) > WIDEST:
        raise RequestError(f"the schema has an object with {most} properties, and {WIDEST} is the most")
    try:
        return str(LLMatcher.grammar_from_json_schema(text, overrides=LAYOUT))
    except ValueError as error:
        raise RequestError(plainly(str(error))) from None


def lark_grammar(text: str) -> str:
    from llguidance import LLMatcher

    return str(LLMatcher.grammar_from_lark(text))


def either(*sources: str) -> str:
    """The grammar of what one of several grammars, each in llguidance's form, describes."""
    parts: list[dict[str, Any]] = []
    for number, source in enumerate(sources):
        try:
            (part,) = json.loads(source)["grammars"]
        except ValueError:  # Lark as it is
            part = {"lark_grammar": source}
        parts.append({**part, "name": f"_{number}"})
    start = " | ".join(f"@_{number}" for number in range(len(sources)))
    return json.dumps({"grammars": [{"lark_grammar": f"start: {start}"}, *parts]})


def _unescaped(gbnf: str) -> str:
    """GBNF without the escapes that llguidance's translation makes other characters of: it drops the zeros at
    the beginning of \\u00e9, and leaves \\[ in a literal, where Lark knows none."""

    def one(match: re.Match[str]) -> str:
        code = int(match[1] or match[2], 16) if match[1] or match[2] else ord(match[0][-1])
        known = match[1] or match[2] or match[0][1] in "[]"
        if not known or code > 0x10FFFF or 0xD800 <= code < 0xE000:
            return match[0]
        return f"\\x{code:02x}" if code < 0x80 else chr(code)

    return _ESCAPE.sub(one, gbnf)


def _matcher(native: Any, source: str) -> Any:
    """llguidance's grammar, if it can be used: the first mask is computed to see."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(verbose_errors=False, initial_lexer_fuel=FUEL)
    matcher = LLMatcher(native, source, log_level=0, limits=limits)
    _refuse(matcher)
    for _ in range(2):  # the first may use up what all of them have together
        probe = matcher.deep_copy()
        probe.compute_bitmask()
        _refuse(probe)
    return matcher


def _widest(schema: Any) -> int:
    """The properties of the object in a schema that has the most."""
    most, left = 0, [schema]
    while left:
        match left.pop():
            case dict() as inner:
                properties = inner.get("properties")
                most = max(most, len(properties) if isinstance(properties, dict) else 0)
                left += inner.values()
            case list() as items:
                left += items
    return most


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7f")  # which Lark takes only so


def _text(wanted: Mapping[str, Any], *keys: str) -> str:
    found = next((wanted[key] for key in keys if isinstance(wanted.get(key), str)), None)
    if found is None:
        raise RequestError(f"response_format: {keys[0]} is missing")
    return _sane(keys[0], str(found))


def _sane(what: str, text: str) -> str:
    if len(text) > LARGEST:
        raise RequestError(f"the {what} has {len(text)} characters, and {LARGEST} is the most")
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise RequestError(f"the {what} has half a character in it (a lone surrogate)")
    return text


def _refuse(matcher: Any) -> None:
    if matcher.is_error():
        raise RequestError(plainly(str(matcher.get_error())))


def _clear(mask: npt.NDArray[np.int32], token: int) -> None:
    mask.view(np.uint32)[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)
