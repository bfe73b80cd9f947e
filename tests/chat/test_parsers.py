"""Parsers, fed with every sample cut in every way, and with noise."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest

from olivine.chat.parsers import (
    FORMATS,
    CallPiece,
    CallStart,
    Content,
    Event,
    Layout,
    Parser,
    Reasoning,
    format_of,
)

TOOLS = ("weather", "add", "get-time")
Q = '<|"|>'
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": [1, 2]}}\n</tool_call>'
WEATHER = ("weather", '{"city": "Köln", "days": [1, 2]}')
FENCED = '{\n  "name": "weather",\n  "arguments": {"city": "Köln", "days": [1, 2]}\n}'
GEMMA = f"<|tool_call>call:weather{{city:{Q}Köln{Q},days:[1,2]}}<tool_call|>"
BARE = '{"name": "add", "parameters": {"a": 1, "b": "}\\"{"}}'
ADD = ("add", '{"a": 1, "b": "}\\"{"}')
TIME = ("get-time", "{}")
PYTHON = 'weather(city="Köln", days=[1, 2])'
VALUES = '{"a": [-1.5e+3, 2E-7, true, false, null], "b": {"<tool_call>": "{\\"é\\"}"}}'
MISTRAL = '[TOOL_CALLS]weather[ARGS]{"city": "Köln", "days": [1, 2]}'
CODER = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n"
    "<parameter=days>\n[1, 2]\n</parameter>\n</function>\n</tool_call>"
)
LISTED = '{"name": "weather", "arguments": {"city": "Köln", "days": [1, 2]}, "id": "aB3dE6gH9"}'

# format, output → thoughts, answer, calls
SAMPLES = [
    ("hermes", "hello", "", "hello", []),
    ("olmo", FENCED, "", "", [WEATHER]),
    ("hermes", '<think>hm</think>\n{"name": "weather", ', "hm", '{"name": "weather", ', []),
    ("granite-responding", "<think>hm</think>\n<response>\nIt is 4.\n</response>\n", "hm", "It is 4.", []),
    ("granite-responding", "<response>never closed", "", "never closed", []),
    ("granite-responding", "a <response> b </response>", "", "a <response> b </response>", []),
    ("granite-responding", "<response></response>", "", "", []),
    ("granite-responding", f"<response><|tool_call|>[{FENCED}]</response>", "", "", [WEATHER]),
    ("qwen3-coder", CODER, "", "", [WEATHER]),
    ("qwen3-coder", f"Let me see.\n{CODER}\n{CODER} then", "", "Let me see.then", [WEATHER, WEATHER]),
    ("qwen3-coder", f"<think>hm</think>\n\n{CODER.replace('</function>', '')}", "hm", "", [WEATHER]),
    ("qwen3-coder", CODER.removesuffix("\n</tool_call>"), "", "", [WEATHER]),
    ("qwen3-coder", "<tool_call><function=get-time></function></tool_call>", "", "", [TIME]),
    (
        "qwen3-coder",
        "<tool_call><function=add><parameter=a>\n if x < 1:\n\t</a>\n\n</parameter></function></tool_call>",
        "",
        "",
        [("add", r'{"a": " if x < 1:\n\t</a>\n"}')],
    ),
    ("hermes", "  hello \n", "", "  hello \n", []),
    ("hermes", "<think>\nhm\n\n</think>\n\nyes\n", "hm", "yes\n", []),
    ("hermes", "<think>never closed", "never closed", "", []),
    ("hermes", "<think></think>yes", "", "yes", []),
    ("hermes", "a <think>b</think>", "", "a <think>b</think>", []),
    ("hermes", "<think>shall I <tool_call>?</think>" + CALL, "shall I <tool_call>?", "", [WEATHER]),
    ("hermes", CALL, "", "", [WEATHER]),
    ("hermes", '["no call"] ' + CALL, "", '["no call"]', [WEATHER]),
    ("json", f'{{"no": 1}}\n```json\n{BARE}\n```', "", '{"no": 1}', [ADD]),
    ("hermes", "Let me see.\n" + CALL + "\n" + CALL, "", "Let me see.", [WEATHER, WEATHER]),
    ("hermes", CALL + CALL, "", "", [WEATHER, WEATHER]),
    ("hermes", CALL.removesuffix("</tool_call>"), "", "", [WEATHER]),
    ("hermes", CALL.removesuffix("</tool_call>") + CALL, "", "", [WEATHER, WEATHER]),
    ("hermes", CALL + " then\nmore", "", "then\nmore", [WEATHER]),
    (
        "hermes",
        '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>',
        "",
        "",
        [("add", '{"a": 1}')],
    ),
    ("hermes", '<tool_call>{"name": "get-time"}</tool_call>', "", "", [TIME]),
    ("hermes", '<tool_call>{"name": "get-time", "arguments": null}</tool_call>', "", "", [TIME]),
    (
        "hermes",
        '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>',
        "",
        "",
        [("add", '{"a": 1}')],
    ),
    ("hermes", '<tool_call>{"id": 7, "name": "get-time", "arguments": {}}</tool_call>', "", "", [TIME]),
    (
        "hermes",
        '<tool_call>{"name":"add","arguments":{"a":"</tool_call>"}}</tool_call>',
        "",
        "",
        [("add", '{"a":"</tool_call>"}')],
    ),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1}} x', "", "x", [("add", '{"a": 1}')]),
    (
        "hermes",
        '<tool_call>{"name": "add", "arguments": {}, "x": 1}</tool_call>',
        "",
        ', "x": 1}</tool_call>',
        [("add", "{}")],
    ),
    (
        "hermes",
        '<tool_call>{"name": "add", "arguments": {"a": "x\n\ty\\n", \n "b": 1}}</tool_call>',
        "",
        "",
        [("add", '{"a": "x\\n\\ty\\n", \n "b": 1}')],
    ),
    ("hermes", f'<tool_call>{{"name": "add", "arguments": {VALUES}}}</tool_call>', "", "", [("add", VALUES)]),
    ("mistral", f"[TOOL_CALLS]add[ARGS]{VALUES}", "", "", [("add", VALUES)]),
    ("mistral", '[TOOL_CALLS]add[ARGS]{"a": "x\n"}', "", "", [("add", '{"a": "x\\n"}')]),
    ("gemma4", '<|tool_call>call:add{a:"x\n"}<tool_call|>', "", "", [("add", '{"a": "x\\n"}')]),
    ("hermes", "I write <tool_call> like this", "", "I write <tool_call> like this", []),
    ("hermes", "<tool_call>not json</tool_call> a", "", "<tool_call>not json</tool_call> a", []),
    (
        "hermes",
        '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
        "",
        '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
        [],
    ),
    ("hermes", "<tool_call>oops" + CALL, "", "<tool_call>oops", [WEATHER]),
    ("hermes", "a < b <tool_cal l> <think", "", "a < b <tool_cal l> <think", []),
    ("hermes", f"```json\n{FENCED}\n```", "", "", [WEATHER]),
    ("hermes", f"```\n{FENCED}\n```\n", "", "", [WEATHER]),
    ("hermes", f"```json\n{FENCED}", "", "", [WEATHER]),
    ("hermes", f"```json\n[{FENCED}, {FENCED}]\n```", "", "", [WEATHER, WEATHER]),
    ("hermes", f"```json\n{FENCED}\n{FENCED}\n```", "", "", [WEATHER, WEATHER]),
    ("hermes", f"I look:\n\n```json\n{FENCED}\n```\nWait.", "", "I look:Wait.", [WEATHER]),
    ("hermes", f"```json\n{FENCED}\n```\n\n```json\n{FENCED}\n```", "", "", [WEATHER, WEATHER]),
    ("hermes", f"```json\n{FENCED}\n```\n{CALL}", "", "", [WEATHER, WEATHER]),
    ("hermes", f"{CALL}\n```json\n{FENCED}\n```", "", "", [WEATHER, WEATHER]),
    ("hermes", f"<think>\nhm ```\n</think>\n```json\n{FENCED}\n```", "hm ```", "", [WEATHER]),
    ("hermes", FENCED, "", "", [WEATHER]),
    ("hermes", f"{FENCED}\n{CALL}", "", "", [WEATHER, WEATHER]),
    ("hermes", f"See {FENCED}", "", f"See {FENCED}", []),
    ("hermes", '```json\n{"name": "Tom", "age": 3}\n```', "", '```json\n{"name": "Tom", "age": 3}\n```', []),
    (
        "hermes",
        '```json\n{"name": "cat", "arguments": {}}\n```',
        "",
        '```json\n{"name": "cat", "arguments": {}}\n```',
        [],
    ),
    ("hermes", '```json\n{"name": "add", "x": 1}\n```', "", '```json\n{"name": "add", "x": 1}\n```', []),
    (
        "hermes",
        "```py\nx = {}\n```\nand ```json\n[1]\n``` a",
        "",
        "```py\nx = {}\n```\nand ```json\n[1]\n``` a",
        [],
    ),
    ("hermes", f"```py\nprint()\n```\n```json\n{FENCED}\n```", "", "```py\nprint()\n```", [WEATHER]),
    ("hermes", f"```json\n{{\n{CALL}", "", "```json\n{", [WEATHER]),
    ("hermes", "``", "", "``", []),
    ("hermes", "`````", "", "`````", []),
    ("hermes", "```json", "", "```json", []),
    ("gemma4", f"```json\n{FENCED}\n```", "", f"```json\n{FENCED}\n```", []),
    ("json", f"I call\n```json\n{BARE}\n```", "", "I call", [ADD]),
    ("gemma4", "hello", "", "hello", []),
    ("gemma4", "<|channel>thought\nhm\n<channel|>yes", "hm", "yes", []),
    ("gemma4", "<|channel>thought<channel|>yes", "", "yes", []),
    ("gemma4", "<|channel>thinking\nhm<channel|>yes", "thinking\nhm", "yes", []),
    ("gemma4", GEMMA, "", "", [WEATHER]),
    (
        "gemma4",
        f'a<|tool_call>call:add{{a:1,b:{Q}}}"{{{Q}}}<tool_call|><|tool_call>call:get-time{{}}<tool_call|>',
        "",
        "a",
        [ADD, TIME],
    ),
    (
        "gemma4",
        f'<|tool_call>call:add{{a:{{b:[{{}},[],true,None,-1.5e3,{Q}{Q}]}},{Q}c{Q}: "x\\"y"}}<tool_call|>',
        "",
        "",
        [("add", '{"a": {"b": [{}, [], true, null, -1.5e3, ""]}, "c": "x\\"y"}')],
    ),
    ("gemma4", "<|tool_call>call:add{a:bare words}<tool_call|>", "", "", [("add", '{"a": "bare words"}')]),
    ("gemma4", "<|tool_call>call:rm{a:1}<tool_call|> b", "", "<|tool_call>call:rm{a:1}<tool_call|> b", []),
    ("gemma4", "<|tool_call>nothing", "", "<|tool_call>nothing", []),
    ("gemma4", "<|tool_call>call:add", "", "<|tool_call>call:add", []),
    ("granite", f"<|tool_call|>[{FENCED}, {BARE}]", "", "", [WEATHER, ADD]),
    ("granite", f"<|tool_call|> [{FENCED}]\n", "", "", [WEATHER]),
    ("granite", f"Let me see.<|tool_call|>[{FENCED}", "", "Let me see.", [WEATHER]),
    ("granite", "<|tool_call|>none", "", "<|tool_call|>none", []),
    ("olmo", f"<function_calls>\n{PYTHON}\n</function_calls>", "", "", [WEATHER]),
    (
        "olmo",
        f"I look.\n<function_calls>{PYTHON}\nget-time()</function_calls>",
        "",
        "I look.",
        [WEATHER, TIME],
    ),
    ("olmo", f"<function_calls>\n{PYTHON}, {PYTHON}", "", "", [WEATHER, WEATHER]),
    (
        "olmo",
        """<function_calls>add(a={'x': (1, 2.5e3), "y": None}, b='it\\'s "it"', c=[True, false, null, -1])""",
        "",
        "",
        [
            (
                "add",
                """{"a": {"x": [1, 2.5e3], "y": null}, "b": "it's \\"it\\"", "c": [true, false, null, -1]}""",
            )
        ],
    ),
    (
        "olmo",
        '<function_calls>add(a="</function_calls>) \\"(\nline")</function_calls>.',
        "",
        ".",
        [("add", '{"a": "</function_calls>) \\"(\\nline"}')],
    ),
    (
        "olmo",
        "<function_calls>rm(a=1)</function_calls> b",
        "",
        "<function_calls>rm(a=1)</function_calls> b",
        [],
    ),
    ("olmo", "<function_calls>add(1)</function_calls>", "", "<function_calls>add(1)</function_calls>", []),
    ("olmo", "<function_calls>add(a=f(2))", "", "<function_calls>add(a=f(2))", []),
    ("olmo", "<function_calls>add(a=1", "", "<function_calls>add(a=1", []),
    ("olmo", "<function_calls>\n</function_calls>", "", "<function_calls>\n</function_calls>", []),
    (
        "olmo",
        f"<function_calls>{PYTHON} and\nmore</function_calls>",
        "",
        "and\nmore</function_calls>",
        [WEATHER],
    ),
    ("olmo", "<think>hm</think>\n\nyes", "hm", "yes", []),
    ("json", "hello {", "", "hello {", []),
    ("json", BARE, "", "", [ADD]),
    ("json", f"\n{BARE}\n", "", "", [ADD]),
    ("json", f"[{BARE}, {BARE}]", "", "", [ADD, ADD]),
    ("json", f"{BARE}; {BARE}", "", "", [ADD, ADD]),
    ("json", f"```json\n[{BARE}]\n```", "", "", [ADD]),
    ("json", f"```json\n{BARE}\n```\nDone.", "", "Done.", [ADD]),
    ("json", f"{BARE} Done.", "", "Done.", [ADD]),
    ("json", f"{BARE}]", "", "]", [ADD]),
    ("json", f"<think>hm</think>\n{BARE}", "hm", "", [ADD]),
    ("json", "<think>hm</think>\n\nyes", "hm", "yes", []),
    ("json", '{"name": "Bob", "age": 3}', "", '{"name": "Bob", "age": 3}', []),
    ("json", '{"name": "add"}', "", '{"name": "add"}', []),
    ("json", "[1, 2]", "", "[1, 2]", []),
    ("json", "```python\nprint()\n```", "", "```python\nprint()\n```", []),
    ("json", f"I call {BARE}", "", f"I call {BARE}", []),
    ("json", '{"parameters": {"a": 1}, "name": "add"}', "", "", [("add", '{"a": 1}')]),
    ("json", "[", "", "[", []),
    ("json", f'{BARE}, {{"name": "x"}}', "", ', {"name": "x"}', [ADD]),
    ("mistral", "hello [1]", "", "hello [1]", []),
    ("mistral", MISTRAL, "", "", [WEATHER]),
    ("mistral", f"Let me see. {MISTRAL}{MISTRAL}", "", "Let me see.", [WEATHER, WEATHER]),
    ("mistral", MISTRAL.replace("[ARGS]", "[CALL_ID]aB3dE6gH9[ARGS]"), "", "", [WEATHER]),
    ("mistral", MISTRAL.replace("[ARGS]", "aB3dE6gH9[ARGS]"), "", "", [WEATHER]),
    ("mistral", f"{MISTRAL} then", "", "then", [WEATHER]),
    ("mistral", "[TOOL_CALLS]get-time[ARGS]{}", "", "", [TIME]),
    ("mistral", "[TOOL_CALLS]get-time{}", "", "", [TIME]),
    (
        "mistral",
        '[TOOL_CALLS]add[ARGS]{"a": "[ARGS]{\\"", "b": {}}',
        "",
        "",
        [("add", '{"a": "[ARGS]{\\"", "b": {}}')],
    ),
    ("mistral", '[TOOL_CALLS]rm[ARGS]{"a": 1}', "", '[TOOL_CALLS]rm[ARGS]{"a": 1}', []),
    ("mistral", "[TOOL_CALLS]" + "so long a name " * 9, "", "[TOOL_CALLS]" + "so long a name " * 9, []),
    ("mistral", "[TOOL_CALLS]", "", "[TOOL_CALLS]", []),
    ("mistral", f"[TOOL_CALLS][{LISTED}]", "", "", [WEATHER]),
    ("mistral-thinking", f"[THINK]hm[/THINK]{MISTRAL}", "hm", "", [WEATHER]),
    ("mistral-list", f"[TOOL_CALLS][{LISTED}, {LISTED}]", "", "", [WEATHER, WEATHER]),
    ("mistral-list", f"[TOOL_CALLS] {LISTED}", "", "", [WEATHER]),
    ("mistral-list", f"I look. [TOOL_CALLS][{LISTED}] Done.", "", "I look.Done.", [WEATHER]),
    ("mistral-list", "[TOOL_CALLS][1]", "", "[TOOL_CALLS][1]", []),
    ("phi4", f"<|tool_call|>[{LISTED}]<|/tool_call|>", "", "", [WEATHER]),
    ("phi4", f"<|tool_call|>{LISTED}<|/tool_call|>", "", "", [WEATHER]),
    ("phi4", f"So: <|tool_call|>[{LISTED}, {LISTED}]<|/tool_call|>", "", "So:", [WEATHER, WEATHER]),
    ("phi4", "<|tool_call|>no<|/tool_call|> a", "", "<|tool_call|>no<|/tool_call|> a", []),
]

# format, output whose last call does not have arguments that parse → the answer, the calls before it
BROKEN = [
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1', None, []),
    ("hermes", '<tool_call>\n{"name": "add", "arguments": {"a": Rome}}\n</tool_call>', None, []),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call> b', None, []),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": "\\\n"}}</tool_call>', None, []),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": [1}]}}</tool_call>', None, []),
    (
        "hermes",
        f'So: {CALL}\n<tool_call>{{"name": "add", "arguments": {{"a" 1}}}}</tool_call>',
        'So:<tool_call>{"name": "add", "arguments": {"a" 1}}</tool_call>',
        [WEATHER],
    ),
    (
        "hermes",
        f'<tool_call>{{"name": "add", "arguments": {{a: 1}}}}</tool_call>\n{CALL}',
        '<tool_call>{"name": "add", "arguments": {a: 1}}</tool_call>',
        [WEATHER],
    ),
    ("hermes", '```json\n{"name": "add", "arguments": {"a": 1,}}\n```', None, []),
    ("json", '{"name": "add", "parameters": {"a": 1 + 1}}', None, []),
    ("json", f'[{BARE}, {{"name": "add", "parameters": {{"a": x}}}}]', None, [ADD]),
    ("granite", f'<|tool_call|>[{FENCED}, {{"name": "add", "arguments": {{"a"}}}}]', None, [WEATHER]),
    ("gemma4", f'<|tool_call>call:add{{a:{Q}line\n"two"\\{Q}', None, []),
    ("gemma4", "<|tool_call>call:add{a:1]}<tool_call|>c", None, []),
    ("gemma4", "<|tool_call>call:add{a:1,}<tool_call|>", None, []),
    ("gemma4", f"{GEMMA}<|tool_call>call:add{{a:{Q}b{Q}{Q}c{Q}}}<tool_call|>", None, [WEATHER]),
    ("mistral", '[TOOL_CALLS]add[ARGS]{"a": 1', None, []),
    ("mistral", '[TOOL_CALLS]add[ARGS]{"a": x}', None, []),
    ("mistral", f'{MISTRAL}[TOOL_CALLS]add[ARGS]{{"a": x}} y', '[TOOL_CALLS]add[ARGS]{"a": x} y', [WEATHER]),
    ("olmo", "<function_calls>add(a=Rome)</function_calls>", None, []),
    ("qwen3-coder", CODER.replace("weather", "other"), None, []),
    ("qwen3-coder", CODER.replace("days", "city"), None, []),
    ("qwen3-coder", CODER.replace("</parameter>\n</function>", ""), None, []),
    ("qwen3-coder", f"<tool_call>weather</tool_call>{CODER}", "<tool_call>weather</tool_call>", [WEATHER]),
]


def read(events: Sequence[Event]) -> tuple[str, str, list[tuple[str, str]]]:
    thoughts, answer, calls = "", "", []
    for event in events:
        match event:
            case Content(text):
                answer += text
            case Reasoning(text):
                thoughts += text
            case CallStart(name):
                calls.append((name, ""))
            case CallPiece(text):
                calls[-1] = (calls[-1][0], calls[-1][1] + text)
    return thoughts, answer, calls


def spaced(events: Sequence[Event]) -> str:
    """The answer with the white space that is left out of it."""
    return "".join(event.text for event in events if isinstance(event, Content | Layout))


def run(
    name: str,
    pieces: Sequence[str],
    tools: Sequence[str] = TOOLS,
    tokens: Sequence[str] = (),
    constrained: bool = False,
) -> list[Event]:
    parser = Parser(FORMATS[name], tools, tokens, constrained=constrained)
    events = []
    for piece in pieces:
        events += parser.mark(piece) if piece in tokens else parser.feed(piece)
    return events + parser.end()


def cuts(text: str) -> Iterator[list[str]]:
    """In two at every place, in three at many, at random places, and character by character."""
    for i in range(len(text) + 1):
        yield [text[:i], text[i:]]
    step = max(1, len(text) // 24)
    for i in range(0, len(text), step):
        for j in range(i, len(text), step):
            yield [text[:i], text[i:j], text[j:]]
    rng = random.Random(text)
    for _ in range(50):
        places = [0, *sorted(rng.choices(range(len(text) + 1), k=rng.randint(2, 12))), len(text)]
        yield [text[i:j] for i, j in pairwise(places)]
    yield list(text)


@pytest.mark.parametrize(("name", "output", "thoughts", "answer", "calls"), SAMPLES)
def test_samples_in_every_cut(
    name: str, output: str, thoughts: str, answer: str, calls: list[tuple[str, str]]
) -> None:
    for pieces in cuts(output):
        assert read(run(name, pieces)) == (thoughts, answer, calls), pieces


@pytest.mark.parametrize(("name", "output", "answer", "calls"), BROKEN)
def test_a_call_whose_arguments_do_not_parse_is_text(
    name: str, output: str, answer: str | None, calls: list[tuple[str, str]]
) -> None:
    for pieces in cuts(output):
        found = run(name, pieces)
        if answer is None and not calls:
            assert read(found) == ("", output, []), pieces
        else:
            assert read(found)[2] == calls, pieces
            assert answer is None or read(found)[1] == answer, pieces
            assert_nothing_lost(name, output, found)
    markers = FORMATS[name].markers
    pieces = [p for p in re.split("(" + "|".join(map(re.escape, markers)) + ")", output) if p]
    marked = read(run(name, pieces, tokens=markers))
    assert (marked[1] if answer is None and not calls else output) == output and marked[2] == calls


@pytest.mark.parametrize(("name", "output", "thoughts", "answer", "calls"), SAMPLES)
def test_samples_with_marker_tokens(
    name: str, output: str, thoughts: str, answer: str, calls: list[tuple[str, str]]
) -> None:
    """Markers that are tokens mean the same, but for thoughts, which may then begin anywhere."""
    markers = FORMATS[name].markers
    if output.startswith(("a <think>", "a < b")):
        return
    pieces = [p for p in re.split("(" + "|".join(map(re.escape, markers)) + ")", output) if p]
    assert read(run(name, pieces, tokens=markers)) == (thoughts, answer, calls)
    single = [c for p in pieces for c in ([p] if p in markers else p)]
    assert read(run(name, single, tokens=markers)) == (thoughts, answer, calls)


@pytest.mark.parametrize(("name", "output"), [(s[0], s[1]) for s in SAMPLES])
def test_spelled_markers_are_text_where_markers_are_tokens(name: str, output: str) -> None:
    if name == "json" or (name in ("hermes", "olmo") and FENCED in output):
        return  # these calls need no markers
    for pieces in ([output], list(output)):
        events = []
        parser = Parser(FORMATS[name], TOOLS, FORMATS[name].markers)
        for piece in pieces:
            events += parser.feed(piece)
        assert read(events + parser.end()) == ("", output, [])


@pytest.mark.parametrize(("name", "output", "thoughts"), [(s[0], s[1], s[2]) for s in SAMPLES])
def test_without_tools_nothing_is_a_call(name: str, output: str, thoughts: str) -> None:
    assert read(run(name, [output], tools=()))[2] == []


def test_under_a_grammar_arguments_come_while_they_are_made() -> None:
    for name, output in (("hermes", CALL), ("gemma4", GEMMA), ("json", BARE), ("mistral", MISTRAL)):
        parser = Parser(FORMATS[name], TOOLS, constrained=True)
        steps = [parser.feed(char) for char in output]
        events = [event for step in steps for event in step]
        assert isinstance(events[0], CallStart)
        assert all(isinstance(event, CallPiece) for event in events[1:])
        assert len(events) > 10
        assert read(events) == read(run(name, [output]))
    for output, cut in (
        ('<tool_call>{"name": "add", "arguments": {"a": 1', '{"a": 1'),
        ('[TOOL_CALLS]add[ARGS]{"a": 1', '{"a": 1'),
        (f'<|tool_call>call:add{{a:{Q}line\n"two"\\{Q}', '{"a": "line\\n\\"two\\"\\\\"'),
    ):
        name = {"<tool": "hermes", "[TOOL": "mistral", "<|too": "gemma4"}[output[:5]]
        assert read(run(name, [output], constrained=True)) == ("", "", [("add", cut)])


@pytest.mark.parametrize(
    ("name", "begun"),
    [
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": '),
        ("hermes", '<tool_call>{"arguments": {"a": "'),
        ("hermes", '```json\n{"name": "add", "arguments": {"a": "'),
        ("mistral", '[TOOL_CALLS]add[ARGS]{"a": '),
        ("gemma4", "<|tool_call>call:add{a:"),
        ("olmo", '<function_calls>add(a="'),
        ("qwen3-coder", "<tool_call><function=add><parameter=a>"),
    ],
)
def test_calls_that_are_never_closed_do_not_wait_for_each_other(name: str, begun: str) -> None:
    """Each would be read again with all those behind it."""
    parser, made = Parser(FORMATS[name], TOOLS), ""
    for count in range(20):
        made += read(parser.feed(begun))[1]
        assert len(made) >= len(begun) * (count - 2)


@pytest.mark.parametrize("name", FORMATS)
def test_text_and_thoughts_come_while_they_are_made(name: str) -> None:
    """Only white space is held back, for it may be layout, and what may yet be a marker."""
    text = "An answer: {x} <b> [1] and so on. " * 3
    for opening, kind in (
        ("", Content),
        (FORMATS[name].thought[0] + FORMATS[name].channel + "\n", Reasoning),
    ):
        parser = Parser(FORMATS[name], TOOLS)
        parser.feed(opening)
        made = ""
        for at, char in enumerate(text):
            made += "".join(event.text for event in parser.feed(char) if isinstance(event, kind))
            if char.isalnum():
                assert made == text[: at + 1]


def test_a_thought_that_the_prompt_opened() -> None:
    for pieces in cuts("\nhm\n</think>\n\nyes"):
        parser = Parser(FORMATS["hermes"], thinking=True)
        events = [event for piece in pieces for event in parser.feed(piece)]
        assert read(events + parser.end()) == ("hm", "yes", [])


def test_gemma_4s_slips_are_forgiven() -> None:
    markers = FORMATS["gemma4"].markers
    doubled = ["<|channel>", "<|channel>", "thought\nhm", "<channel|>", "yes", "<channel|>", " more"]
    assert read(run("gemma4", doubled, tokens=markers)) == ("hm", "yes more", [])
    twice = ["<|channel>", "thought\na", "<channel|>", "b", "<|channel>", "thought\nc", "<channel|>", "d"]
    assert read(run("gemma4", twice, tokens=markers)) == ("ac", "bd", [])


BITS = [
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<|tool_call>",
    "<tool_call|>",
    "<|channel>",
    "<channel|>",
    "thought\n",
    Q,
    "call:add",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "add",
    "<|tool_call|>",
    "<|/tool_call|>",
    "call:",
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    '"',
    "\\",
    "name",
    '"name"',
    '"add"',
    "a",
    " ",
    "\n",
    '"arguments"',
    '"parameters"',
    '{"name": "add", "arguments": {',
    "```json",
    "```",
    "null",
    "1",
    "é",
    "<",
    "|",
]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.exhaustive)])
def test_noise_is_read_the_same_in_any_cut_and_nothing_is_lost(name: str, tokens: bool, count: int) -> None:
    rng = random.Random(f"{name}{tokens}{count}")
    markers = FORMATS[name].markers if tokens else ()
    for _ in range(count):
        bits = [rng.choice(BITS) for _ in range(rng.randint(1, 14))]
        whole = run(name, bits, tokens=markers)
        output = "".join(bits)
        for _ in range(4):
            pieces: list[str] = []
            if tokens:
                pieces = [c for bit in bits for c in ([bit] if bit in markers or rng.random() < 0.5 else bit)]
            else:
                at = 0
                while at < len(output):
                    size = rng.randint(1, 6)
                    pieces.append(output[at : at + size])
                    at += size
            found = run(name, pieces, tokens=markers)
            assert read(found) == read(whole), (bits, pieces)
            assert spaced(found) == spaced(whole), (bits, pieces)
        assert_nothing_lost(name, output, whole)
        assert all(isinstance(json.loads(arguments), dict) for _, arguments in read(whole)[2])


def assert_nothing_lost(name: str, output: str, events: list[Event]) -> None:
    """Every letter comes out somewhere, in order, but for markers and the words of the call's own form."""
    form = [
        *FORMATS[name].markers,
        "call:",
        "thought",
        "name",
        "arguments",
        "parameters",
        "<function=",
        "<parameter=",
        "</parameter>",
        "</function>",
        "null",
        "```json",
        "```tool_call",
        "```tool_code",
        "```",
    ]
    kept = re.sub("|".join(map(re.escape, sorted(form, key=len, reverse=True))), "", output)
    letters = [c for c in kept if c.isalnum() or c == "é"]
    found = "".join(event.name if isinstance(event, CallStart) else event.text for event in events)
    rest = iter(found)
    assert all(letter in rest for letter in letters), (output, found)


def test_calls_survive_a_round_trip_through_gemma_4s_notation() -> None:
    """Random arguments, written by the built-in template, read back."""
    from chat.conversations import value
    from olivine.chat import builtin
    from olivine.chat.template import ChatTemplate

    template = ChatTemplate(builtin.source("gemma4"))
    rng = random.Random(5)
    for _ in range(300):
        arguments = {f"k{i}": value(rng) for i in range(rng.randint(0, 4))}
        call = {"id": "1", "function": {"name": "add", "arguments": arguments}}
        said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        text = template.render(said, add_generation_prompt=False)
        text = text[text.index("<|tool_call>") : text.rindex("<tool_call|>") + len("<tool_call|>")]
        _, answer, calls = read(run("gemma4", list(text)))
        assert answer == ""
        assert [(name, json.loads(found)) for name, found in calls] == [("add", arguments)]


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "5", "5"),
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, "five", "five"),
        ({"type": "number"}, "5", 5),
        ({"type": "boolean"}, "True", True),
        ({"type": ["string", "null"]}, "None", None),
        ({"type": "string"}, "null", "null"),
        ({"type": "object"}, '{"a": [1]}', {"a": [1]}),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "5", 5),
        ({"$ref": "#/$defs/Word"}, "5", "5"),
        ({"enum": ["5", "6"]}, "5", "5"),
        ({}, "5", 5),
        ({}, "Köln", "Köln"),
        ({"type": "number"}, "NaN", "NaN"),
        (True, "a", "a"),
        ({"$ref": "#/$defs/Loop"}, "a", "a"),
    ],
)
def test_qwen3_coders_values_are_what_the_schema_says(schema: object, text: str, value: object) -> None:
    definitions = {"Word": {"type": "string"}, "Loop": {"$ref": "#/$defs/Loop"}}
    tools = {"f": {"type": "object", "properties": {"x": schema}, "$defs": definitions}}
    parser = Parser(FORMATS["qwen3-coder"], tools)
    call = f"<tool_call><function=f><parameter=x>\n{text}\n</parameter></function></tool_call>"
    ((_, arguments),) = read(parser.feed(call) + parser.end())[2]
    assert json.loads(arguments) == {"x": value}


def test_formats_are_known_by_their_templates() -> None:
    from olivine.chat import builtin

    names = [format_of(builtin.source(name)).name for name in ("gemma4", "qwen3", "gemma3", "chatml")]
    assert names == ["gemma4", "hermes", "json", "json"]
    assert format_of("[TOOL_CALLS][{{ call }}]").name == "mistral-list"
    named = format_of("[THINK]…[/THINK][TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}")
    assert (named.name, named.thought) == ("mistral-thinking", ("[THINK]", "[/THINK]"))
    assert format_of("{% if xml_tools %}<tool_call>{% endif %}").name == "smollm3"
    coder = "<tool_call>\n<function={{ call.name }}>\n<parameter={{ key }}>"
    assert format_of(coder).name == "qwen3-coder"
    assert format_of("<|tool|>{{ message['tools'] }}<|/tool|>").name == "phi4"
    granite = (
        "<|start_of_role|>system<|end_of_role|>… respond only with <|tool_call|> followed by a JSON list"
    )
    assert format_of(granite).name == "granite"
    assert format_of(f"{granite} <response></response>").name == "granite-responding"
    assert (
        format_of("… Output any function calls within <function_calls></function_calls> XML tags.").name
        == "olmo"
    )
