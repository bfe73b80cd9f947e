"""llguidance's errors rewritten for users: what is wrong with a grammar, and where."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

_LONGEST = 300
_TOO_LARGE = "the grammar is too large, or has too many alternatives at one place"
Words = str | Callable[[re.Match[str]], str]


def plainly(complaint: str) -> str:
    """One sentence, on one line."""
    text = complaint.replace("<non-verbose/>", "").strip()
    for pattern, words in _TABLE:
        if match := pattern.search(text):
            return _line(words if isinstance(words, str) else words(match))
    return _line(
        "the grammar cannot be used: " + (text.splitlines() or ["it is refused without a reason"])[0]
    )


def unplaced(words: str) -> str:
    """The same without a line and a column, which would be those of a text that the user does not have."""
    return re.sub(r"^the grammar, line \d+, column \d+: ", "the grammar: ", words)


def _line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _keys(match: re.Match[str]) -> str:
    keys = ", ".join(re.findall(r'"([^"]*)"', match[1]))
    return f"the schema has a key that cannot be enforced: {keys}; leave it out"


def _pattern(match: re.Match[str]) -> str:
    reason = re.sub(r"^look-around, including .* is not", "look-ahead and look-behind are not", match[2])
    return f"the pattern {match[1].strip()} cannot be used: {reason}"


def _placed(match: re.Match[str]) -> str:
    """An error with a line and a column. One inside of a pattern or a schema is reported without them."""
    reason = match[3].strip()
    if reason.startswith(("invalid regex", "failed to compile JSON schema")):
        inner = plainly(reason.partition(": ")[2] + "\n" + match[4])
        if not inner.startswith("the grammar cannot"):
            return inner
    reason = re.sub(r"^lexer error$", "this cannot be read", reason)
    reason = re.sub(r"^unknown name: \"?(.*?)\"?$", r"\1 is used and defined nowhere", reason)
    reason = re.sub(r"^unknown special token: \"(.*?)\"; .*", r"the model has no special token \1", reason)
    reason = re.sub(r"^Token range end too large: (\d+)", r"the model has no token \1", reason)
    reason = re.sub(r"^Unknown common regex: (\S+); .*", r"there is no \1 to import", reason)
    reason = re.sub(r"^duplicate (token|rule): \"?(.*?)\"?$", r"\2 is defined twice", reason)
    reason = re.sub(r"^range end must be >= start.*", "a repetition ends below its beginning", reason)
    return f"the grammar, line {match[1]}, column {match[2]}: {reason}"


def _table(rows: Sequence[tuple[str, Words]]) -> list[tuple[re.Pattern[str], Words]]:
    return [(re.compile(pattern, re.DOTALL), words) for pattern, words in rows]


# The first that fits.
_TABLE = _table(
    [
        (r"\A(?:at )?(\d+)\((\d+)\): ([^\n]*)\n?(.*)", _placed),
        (r"Unimplemented keys: (\[.*?\])", _keys),
        (r"Invalid type: (\S+)", lambda m: f"the schema has a type that does not exist: {m[1]}"),
        (r"regex parse error:\s*\n(.*?)\n[ ^]*\n(?:.*\n)?error: ([^\n]*)", _pattern),
        (r"lookarounds not supported yet;[^\n]*? in regex /([^\n]*)/", lambda m: (
            f"the pattern {m[1]} cannot be used: anchors and word boundaries in it are not supported")),
        (r"Unknown format: ([^\n]*)", lambda m: f"the schema has a format that is not known: {m[1]}"),
        (r"Unsatisfiable schema: anyOf is empty", "no text fits the schema: it has no alternatives"),
        (r"Unsatisfiable schema: ([^\n]*)", lambda m: f"no text fits the schema: {m[1]}"),
        (r"NoExtensionBias", "no text fits the grammar: what it describes has no end"),
        (r"invalid multiple of", "the schema: multipleOf must be above 0"),
        (r"Pointer '([^\n]*?)' does not exist", lambda m: (
            f"the schema refers to #{m[1]}, which is not there")),
        (r"Resource '([^\n]*?)' is not present", lambda m: (
            f"the schema refers to {m[1]}, and nothing is fetched: put it under $defs")),
        (r"oneOf constraints are not supported", (
            "the schema has a oneOf with alternatives that can hold at the same time: use anyOf")),
        (r"Expected (\w+) for '(\w+)', got ([^\n]*)", lambda m: (
            f"the schema: {m[2]} must be an {m[1]}, and is {m[3]}")),
        (r"\A(\$?\w+) must be (an? \w+)", lambda m: f"the schema: {m[1]} must be {m[2]}"),
        (r"patternProperty regexes ([^\n]*) are not disjoint", lambda m: (
            f"the schema: the patternProperties {m[1]} may fit the same name")),
        (r"recursion limit|nested too deep|too deep", "the schema is nested too deeply"),
        (r"too many expressions|too big|too large|too many|max is|limit|fuel", _TOO_LARGE),
        (r"Expected (\S+) at line (\d+)", lambda m: f"the grammar, line {m[2]}: {m[1]} is expected"),
        (r"Unexpected end of input at line (\d+)", lambda m: f"the grammar, line {m[1]}: it ends too early"),
        (r"([^\n]*?) at line (\d+), '", lambda m: f"the grammar, line {m[2]}: {m[1]}"),
        (r"Rule '(.*?)' not found", lambda m: f"the grammar: {m[1]} is used and defined nowhere"),
        (r"No 'root' rule found", "the grammar has no rule named start (Lark) or root (GBNF)"),
    ]
)  # fmt: skip
