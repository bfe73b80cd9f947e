"""Jinja for templates from strangers: nothing of Python is within reach, and time and size are limited.

What a template can do in one go is bounded by the sizes of what it works on, so those are checked wherever
they can grow (operators, filters, methods, macros), and so are lists before they are printed or compared: one
that holds another twice, which holds another twice, is small in memory only. Everything longer is a loop or a
recursion, and each turn of one looks at the clock.
"""

from __future__ import annotations

import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

LONGEST = 1 << 25  # characters of a text, entries of a list
WIDEST = 1 << 16  # the largest number that a filter or a method may be given: they pad, repeat and cut by it
MOST = 1 << 20  # entries of a list with all that is in it
SECONDS = 10.0
_WIDTH = re.compile(r"\d{5}")
# Filters that look no deeper than one level: what they are given need not be weighed.
_SHALLOW = {"length", "count", "first", "last", "list", "map", "select", "reject", "selectattr", "rejectattr"}
_SHALLOW |= {"default", "d", "items", "dictsort"}


class LimitError(TemplateError):
    """A template that takes too long or writes too much."""


class _Clock(threading.local):
    """When the rendering of this thread must be over."""

    end = float("inf")


class _Metered(NodeTransformer):
    """Puts a look at the clock into every loop and macro, and checks around every `~` and comparison."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        node.body.insert(0, _tick())
        return self.generic_visit(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        node.body.insert(0, _tick())
        return self.generic_visit(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter("_joined", nodes.Tuple(node.nodes, "load"))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        if not any(map(_is_plain, (node.expr, *(operand.expr for operand in node.ops)))):
            node.expr = _filter("_weighed", node.expr)
            for operand in node.ops:
                operand.expr = _filter("_weighed", operand.expr)
        return node


def _is_plain(node: nodes.Expr) -> bool:
    """Whether a comparison with it does not look into anything."""
    return isinstance(node, nodes.Const) or (
        isinstance(node, nodes.List | nodes.Tuple)
        and all(isinstance(item, nodes.Const) for item in node.items)
    )


def _filter(name: str, value: nodes.Expr) -> nodes.Filter:
    """Filters are called without the sandbox's own checks, which cost more than they do."""
    return nodes.Filter(value, name, [], [], None, None)


def _tick() -> nodes.Node:
    return nodes.ExprStmt(_filter("_tick", nodes.Const(None)))


class _Generation(Extension):
    """`{% generation %}`, which marks answers for training: here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment that published chat templates are written for, within limits."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, loopcontrols],
            finalize=_weighed,
        )
        self._clock = _Clock()
        self.concat = self._concat  # type: ignore[method-assign]
        self.filters["tojson"] = _tojson
        self.filters = {name: _limited(name, each) for name, each in self.filters.items()}
        self.filters |= {"_tick": self._tick, "_joined": self._joined, "_weighed": _weighed}
        self.globals = {
            "range": self.globals["range"],
            "cycler": self.globals["cycler"],
            "joiner": self.globals["joiner"],
            "dict": lambda *given, **named: dict(*given, **named),
            "namespace": _PlainNamespace,
            "raise_exception": _raise,
            "strftime_now": lambda form: datetime.now().strftime(_format(form)),
        }

    def run(self, render: Callable[[], str], seconds: float = SECONDS) -> str:
        """What `render` gives, if it takes no longer than that."""
        self._clock.end = time.monotonic() + seconds
        try:
            return render()
        finally:
            self._clock.end = float("inf")

    # ---- what templates call without knowing

    @pass_context  # or it would be computed once, while compiling
    def _tick(self, context: Context, _: None) -> None:
        if time.monotonic() > self._clock.end:
            raise LimitError("the chat template takes too long")

    def _joined(self, parts: tuple[Any, ...]) -> str:
        return self._concat(str(_weighed(part)) for part in parts)

    def _concat(self, parts: Iterable[str]) -> str:
        kept, size = [], 0
        for part in parts:
            kept.append(part)
            size += len(part)
            _refuse_size(size)
        return "".join(kept)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        parsed = super()._parse(source, name, filename)
        _Metered().visit(parsed)
        return parsed

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        match operator:
            case "+" if _sized(left) and _sized(right):
                _refuse_size(len(left) + len(right))
            case "*":
                for some, times in ((left, right), (right, left)):
                    if _sized(some) and isinstance(times, int):
                        _refuse_size(len(some) * times)
                _refuse_number(left)
                _refuse_number(right)
            case "**":
                _refuse_number(left, 1 << 16)
                _refuse_number(right, 64)
            case "%" if isinstance(left, str):
                _format(left)
                _refuse_widths(right if isinstance(right, tuple) else (right,))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            _weigh(value)
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str | bytes) or name in ("format", "format_map"):
            _refuse_widths((*args, *kwargs.values()))
        if isinstance(owner, str) and name == "replace" and len(args) >= 2:
            _refuse_size(owner.count(str(args[0])) * len(str(args[1])))
        if isinstance(owner, str) and name == "join" and args:
            args = (list(args[0]),)
            _refuse_size(sum(len(owner) + len(part) for part in args[0] if _sized(part)))
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        _format(value.__self__)
        return wrapped


def _limited(name: str, filter: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is not given, and does not give, what is too large."""

    @functools.wraps(filter)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if name not in _SHALLOW:
            for value in (*args, *kwargs.values()):
                _weigh(value)
            _refuse_widths((*args[2:], *kwargs.values()))
            if not hasattr(filter, "jinja_pass_arg"):  # else the first argument is Jinja's own
                _refuse_widths(args[1:2])
        if name == "format":
            _format(str(args[0]))
        if name == "replace":
            _refuse_size(str(args[1]).count(str(args[2])) * len(str(args[3])))
        if name == "join":
            parts = list(args[1])
            args = (args[0], parts, *args[2:])
            _weigh(parts)
            _refuse_size(len(parts) * len(str(args[2] if len(args) > 2 else kwargs.get("d", ""))))
        found = filter(*args, **kwargs)
        if _sized(found):
            _refuse_size(len(found))
        return found

    return checked


class _PlainNamespace(Namespace):
    """A namespace without names that Python itself looks at."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self = args[0]
        Namespace.__init__(self, *args[1:], **kwargs)
        for name in object.__getattribute__(self, "_Namespace__attrs"):
            _refuse_name(name)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"


def _refuse_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"the chat template may not set {name!r}: names must not begin with _")


def _refuse_size(size: int) -> None:
    if size > LONGEST:
        raise LimitError(f"the chat template makes a text of more than {LONGEST} characters")


def _refuse_number(value: Any, limit: int = 1 << 64) -> None:
    if isinstance(value, int) and not -limit <= value <= limit:
        raise LimitError(f"the chat template computes with numbers beyond {limit}")


def _refuse_widths(values: Sequence[Any]) -> None:
    for value in values:
        if isinstance(value, int) and not -WIDEST <= value <= WIDEST:
            raise LimitError(f"the chat template asks for {value} of something; {WIDEST} is the most")


def _weighed(value: Any) -> Any:
    """The value, if it is not larger than it looks."""
    _weigh(value)
    return value


def _weigh(value: Any) -> None:
    """Refuses what holds too much, counting what it holds twice twice."""
    if not isinstance(value, (list, tuple, dict)):
        return
    stack, entries, characters = [value], 0, 0
    while stack:
        each = stack.pop()
        if isinstance(each, dict):
            stack += each.keys()
            stack += each.values()
        elif isinstance(each, list | tuple):
            stack += each
        elif isinstance(each, str):
            characters += len(each)
        entries += 1
        if entries + len(stack) > MOST or characters > LONGEST:
            raise LimitError(f"the chat template makes lists of more than {MOST} entries")


def _format(text: str) -> str:
    if _WIDTH.search(text):
        raise LimitError("the chat template pads texts by far too much")
    return text


def _sized(value: Any) -> bool:
    return isinstance(value, (str, bytes, list, tuple, dict))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as published templates expect it: nothing is escaped for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
