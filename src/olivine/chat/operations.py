"""What filters and methods of templates cost before they run, if that is more than to read what they are
given: their results can be far larger, or they take far longer."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2 import pass_environment
from jinja2.filters import make_attrgetter

from olivine.chat.meter import CONTAINERS, MOST, WIDEST, LimitError, Meter, width

_WIDTH = re.compile(r"\d{5}")
_GIVEN_WIDTH = re.compile(r"\*|\{[^{}]*\{")  # by a value
_DIGIT = re.compile(r"\d")
_SLOW = 1 << 16  # characters for what takes the square of their number
_DIGITS = 4096  # of a number in a text
_PATH = 256  # characters of "a.b.c"
_LINES = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
SIZED = (str, *CONTAINERS)

# ---- methods of texts: what they are given and their further arguments


def replaced(meter: Meter, text: str, old: Any = "", new: Any = "", *_: Any) -> None:
    meter.text(len(text) + text.count(str(old)) * width(str(new)))


def formatted(meter: Meter, text: str, *values: Any) -> None:
    """`{}` and `%s`: every field may hold all values, or be padded."""
    if _WIDTH.search(text):
        raise LimitError("the chat template pads texts by far too much")
    padding = WIDEST if _GIVEN_WIDTH.search(text) else 9999 if _DIGIT.search(text) else 0
    fields = text.count("{") + text.count("%")
    meter.text(len(text) + fields * (padding + sum(meter.weigh(value) for value in values)))


def refuse_given_widths(text: str) -> None:
    """Of `{:{width}}`. What a field of the format gives may come from a text, a list or an attribute."""
    try:
        specs = [spec for _, _, spec, _ in string.Formatter().parse(text)]
    except ValueError:
        return  # formatting fails
    if any("{" in (spec or "") for spec in specs):
        raise LimitError("the chat template pads a text by a width that is a value")


def translated(meter: Meter, text: str, table: Any = None, *_: Any) -> None:
    entries = table.values() if isinstance(table, Mapping) else ()
    meter.text(width(text) * max([1, *(len(each) for each in entries if isinstance(each, str))]))


def expanded(meter: Meter, text: str, size: Any = 8, *_: Any) -> None:
    meter.text(len(text) + text.count("\t") * (size if isinstance(size, int) else 0))


def stripped(meter: Meter, text: str, chars: Any = None, *_: Any) -> None:
    meter.charge(len(text) * (len(chars) if isinstance(chars, str) else 1))


def searched_backwards(meter: Meter, text: str, part: Any = None, *_: Any) -> None:
    if isinstance(part, str):
        meter.charge(len(text) * len(part) // 4)


def split(meter: Meter, text: str, part: Any = None, most: Any = -1, *_: Any) -> None:
    searched_backwards(meter, text, part)
    pieces = text.count(part) if isinstance(part, str) and part else len(text) // 2
    if isinstance(most, int) and most >= 0:
        pieces = min(pieces, most)
    if pieces > MOST and not (isinstance(part, str) and part):
        pieces = sum(1 for _ in re.finditer(r"\S+", text))
    meter.entries(pieces + 1)


def split_lines(meter: Meter, text: str, *_: Any) -> None:
    meter.entries(sum(text.count(end) for end in _LINES) + 1)


def joined(meter: Meter, text: str, parts: Any = (), *_: Any) -> None:
    if not isinstance(parts, SIZED):
        raise LimitError("the chat template joins what is no list")
    meter.text(sum(len(part) for part in parts if isinstance(part, str)) + len(text) * len(parts))


def slow(meter: Meter, text: Any, *_: Any) -> None:
    if meter.weigh(text) > _SLOW:
        raise LimitError(f"the chat template gives more than {_SLOW} characters to what takes their square")


METHODS: dict[str, Callable[..., None]] = {
    "replace": replaced,
    "translate": translated,
    "expandtabs": expanded,
    "strip": stripped,
    "lstrip": stripped,
    "rstrip": stripped,
    "rfind": searched_backwards,
    "rindex": searched_backwards,
    "rpartition": searched_backwards,
    "split": split,
    "rsplit": split,
    "splitlines": split_lines,
    "join": joined,
    "striptags": slow,  # of Jinja's own kind of text
    "unescape": slow,
}

# ---- filters: what they are given, and their further arguments by place and by name


def _indented(meter: Meter, value: Any, *given: Any, **named: Any) -> None:
    text, by = str(value), named.get("width", given[0] if given else 4)
    each = by if isinstance(by, int) else len(str(by))
    meter.text(len(text) + (sum(text.count(end) for end in _LINES) + 1) * each)


def _as_json(meter: Meter, value: Any, *given: Any, **named: Any) -> None:
    meter.charge(6 * meter.weigh(value))  # what is escaped grows
    if by := named.get("indent", given[1] if len(given) > 1 else None):
        each = by if isinstance(by, int) else len(str(by))
        columns, depth, level = 0, 0, [value]
        while level:
            level = [x for y in level if isinstance(y, CONTAINERS) for x in _values(y)]
            depth += 1
            columns += (depth + 1) * len(level)
        meter.text(columns * each)


def _wider(meter: Meter, value: Any, *_: Any, **__: Any) -> None:
    meter.charge(12 * meter.weigh(value))


def _number(meter: Meter, value: Any, *_: Any, **__: Any) -> None:
    if isinstance(value, str) and len(value) > _DIGITS:
        raise LimitError(f"the chat template reads a number of more than {_DIGITS} digits")


def _each(meter: Meter, value: Any, *given: Any, **named: Any) -> None:
    """Filters that take each entry, which is each character of a text."""
    if isinstance(value, SIZED):
        meter.entries(len(value))
    _refuse_paths([*given[:1], named.get("attribute")])


def _compared(meter: Meter, value: Any, *given: Any, **named: Any) -> None:
    """Filters that compare entries."""
    _each(meter, value)
    _refuse_paths([*given, *named.values()])


def _refuse_paths(values: Iterable[Any]) -> None:
    if any(isinstance(value, str) and len(value) > _PATH for value in values):
        raise LimitError(f"the chat template names an attribute with more than {_PATH} characters")


def _joined(meter: Meter, value: Any, *given: Any, **named: Any) -> None:
    between = named.get("d", given[0] if given else "")
    _refuse_paths([*given[1:], named.get("attribute")])
    meter.text(meter.weigh(value) + len(value) * len(str(between)))


FILTERS: dict[str, Callable[..., None]] = {
    "indent": _indented,
    "tojson": _as_json,
    "int": _number,
    "float": _number,
    "join": _joined,
    "replace": lambda meter, value, *given, **_: replaced(meter, str(value), *given),
    "format": lambda meter, value, *given, **named: formatted(meter, str(value), *given, *named.values()),
    "trim": lambda meter, value, *given, **named: stripped(meter, str(value), *given, *named.values()),
    **dict.fromkeys(("e", "escape", "forceescape", "urlencode"), _wider),
    **dict.fromkeys(("pprint", "striptags", "urlize", "wordwrap", "xmlattr"), slow),
    **dict.fromkeys(("list", "map", "select", "reject", "selectattr", "rejectattr", "batch", "slice"), _each),
    **dict.fromkeys(("sort", "unique", "groupby", "min", "max", "random", "sum"), _compared),
}
# Filters that do not look into what they are given: it need not be weighed.
SHALLOW = {"length", "count", "first", "last", "list", "map", "select", "reject", "selectattr", "rejectattr"}
SHALLOW |= {"default", "d", "items", "batch", "slice", "reverse", "safe", "attr"}


@pass_environment
def total(environment: Any, iterable: Iterable[Any], attribute: Any = None, start: Any = 0) -> Any:
    """Jinja's `sum`, which takes the square of the time for lists."""
    if attribute is not None:
        iterable = map(make_attrgetter(environment, attribute), iterable)
    if not isinstance(start, list | tuple):
        return sum(iterable, start)
    found = list(start)
    for each in iterable:
        if not isinstance(each, type(start)):
            raise TypeError(f"lists are added to lists, not {type(each).__name__}")
        environment.meter.entries(len(each))
        found += each
    return type(start)(found)


def refuse_widths(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, int) and not -WIDEST <= value <= WIDEST:
            raise LimitError(f"the chat template asks for {value} of something; {WIDEST} is the most")


def _values(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value
