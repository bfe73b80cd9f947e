"""Jinja for untrusted templates: without access to Python, and with limits of time and memory.

Operators, filters, tests, methods, slices, output: all of it goes through `Sandbox` and is charged by the
meter (meter.py) before it is done, with what operations.py knows of those that make much from little.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NoReturn, TypeVar

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from olivine.chat.meter import SECONDS, LimitError, Meter, width
from olivine.chat.operations import (
    FILTERS,
    METHODS,
    SHALLOW,
    SIZED,
    formatted,
    refuse_given_widths,
    refuse_widths,
    total,
)

T = TypeVar("T")
_OF_BYTES = {"encode", "to_bytes", "from_bytes"}
# Tests that look into what they compare.
_COMPARING = {"eq", "equalto", "==", "ne", "!=", "lt", "lessthan", "<", "le", "<=", "gt", "greaterthan", ">"}
_COMPARING |= {"ge", ">=", "in"}


class _Metered(NodeTransformer):
    """Charges every iteration of a loop, every macro, `~`, comparison, slice and key of a dictionary."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        node.body.insert(0, _tick())
        return self.generic_visit(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        node.body.insert(0, _tick())
        return self.generic_visit(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter("_joined", nodes.Tuple(node.nodes, "load"))

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _filter("_made", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        self.generic_visit(node)
        if not _is_plain(node.key):
            node.key = _filter("_weighed", node.key)
        return node

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
        self.meter = Meter()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, loopcontrols],
            finalize=self._weighed,
        )
        self.concat = self._concat  # type: ignore[method-assign]
        self.filters |= {"tojson": _tojson, "sum": total}
        self.filters = {name: self._limited(name, each) for name, each in self.filters.items()}
        self.filters |= {"_tick": self._tick, "_joined": self._joined}
        self.filters |= {"_weighed": self._weighed, "_made": self.meter.made}
        self.tests = {
            name: self._limited_test(each) if name in _COMPARING else each
            for name, each in self.tests.items()
        }
        self.globals = {
            "range": self.globals["range"],
            "cycler": self.globals["cycler"],
            "joiner": self.globals["joiner"],
            "dict": lambda *given, **named: dict(*given, **named),
            "namespace": _PlainNamespace,
            "raise_exception": _raise,
            "strftime_now": _now,
        }

    def run(
        self, work: Callable[[], T], given: Mapping[str, Any] | None = None, seconds: float = SECONDS
    ) -> T:
        """The result of `work` on these variables, within the limits."""
        self.meter.start(given or {}, seconds)
        try:
            return work()
        finally:
            self.meter.stop()

    # ---- what templates call without knowing

    @pass_context  # or it would be computed once, while compiling
    def _tick(self, context: Context, _: None) -> None:
        self.meter.charge()

    def _weighed(self, value: Any) -> Any:
        """The value, if it is within the limits of size."""
        self.meter.weigh(value)
        return value

    def _joined(self, parts: tuple[Any, ...]) -> str:
        return self._concat(str(self._weighed(part)) for part in parts)

    def _concat(self, parts: Iterable[str]) -> str:
        kept, size = [], 0
        for part in parts:
            kept.append(part)
            size += len(part)
            if size > self.meter.longest or not len(kept) % 1024:
                self.meter.text(size)
        self.meter.text(size)
        return "".join(kept)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        parsed = super()._parse(source, name, filename)
        _Metered().visit(parsed)
        return parsed

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter = self.meter
        _refuse_bytes((left, right))
        match operator:
            case "+" if isinstance(left, str) and isinstance(right, str):
                meter.text(width(left) + width(right))
            case "+" if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
                meter.entries(len(left) + len(right))
            case "*":
                for some, times in ((left, right), (right, left)):
                    if isinstance(some, str) and isinstance(times, int):
                        meter.text(width(some) * times)
                    elif isinstance(some, list | tuple) and isinstance(times, int):
                        meter.entries(len(some) * times)
                _refuse_number(left)
                _refuse_number(right)
            case "**":
                _refuse_number(left, 1 << 16)
                _refuse_number(right, 64)
            case "%" if isinstance(left, str):
                values = right if isinstance(right, tuple) else (right,)
                refuse_widths(values)
                formatted(meter, left, *values)
        return super().call_binop(context, operator, left, right)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, tuple):
            self.meter.weigh(argument)  # it is hashed
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # Bytes have no use in a prompt, are of any size, and have the methods of texts once more.
        return attr not in _OF_BYTES and super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        meter = __self.meter
        meter.charge()
        if isinstance(__obj, (Macro, LoopContext)) or __obj is _PlainNamespace:
            return super().call(__context, __obj, *args, **kwargs)  # what is done with it is charged there
        values = (*args, *kwargs.values())
        for value in values:
            meter.weigh(value)
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        _refuse_bytes((owner, *values))
        if isinstance(owner, SIZED):
            refuse_widths(values)
            if name not in ("get", "items", "keys", "values"):
                meter.weigh(owner)
        if name == "join" and len(args) == 1 and not isinstance(args[0], SIZED):
            args = values = (list(args[0]),)
            meter.weigh(args[0])
        if isinstance(owner, str) and name in METHODS:
            METHODS[name](meter, owner, *values)
        return meter.made(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        text = value.__self__

        def checked(*args: Any, **kwargs: Any) -> str:
            refuse_given_widths(text)
            formatted(self.meter, text, *args, *kwargs.values())
            return wrapped(*args, **kwargs)

        return checked

    def _limited(self, name: str, filter: Callable[..., Any]) -> Callable[..., Any]:
        """A filter with limits on its arguments and its result."""
        meter, before = self.meter, FILTERS.get(name)
        deep = name not in SHALLOW
        own = int(hasattr(filter, "jinja_pass_arg"))  # the first argument is Jinja's

        @functools.wraps(filter)
        def checked(*args: Any, **kwargs: Any) -> Any:
            meter.charge()
            if deep:
                for value in (*args[own:], *kwargs.values()):
                    meter.weigh(value)
            if kwargs or len(args) > own + 1:
                refuse_widths((*args[own + 1 :], *kwargs.values()))
            if name == "join" and not isinstance(args[own], SIZED):
                args = (*args[:own], list(args[own]), *args[own + 1 :])
            if before is not None:
                before(meter, *args[own:], **kwargs)
            return meter.made(filter(*args, **kwargs))

        return checked

    def _limited_test(self, test: Any) -> Callable[..., Any]:
        """A test with limits on its arguments."""

        @functools.wraps(test)
        def checked(*args: Any) -> Any:
            for value in args:
                self.meter.weigh(value)
            return test(*args)

        return checked


class _PlainNamespace(Namespace):
    """A namespace without names that have a meaning in Python."""

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


def _refuse_bytes(values: Iterable[Any]) -> None:
    if any(isinstance(value, bytes | bytearray) for value in values):
        raise SecurityError("the chat template works with bytes, which have no use in a prompt")


def _refuse_number(value: Any, limit: int = 1 << 64) -> None:
    if isinstance(value, int) and not -limit <= value <= limit:
        raise LimitError(f"the chat template computes with numbers beyond {limit}")


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


def _now(form: str) -> str:
    if len(form) > 256:
        raise LimitError("the chat template asks for the date in far too many words")
    return datetime.now().strftime(form)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
