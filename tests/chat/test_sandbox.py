"""What templates can and cannot do."""

from __future__ import annotations

import random
from typing import Any

import pytest

from olivine.chat import builtin, meter
from olivine.chat.meter import LimitError
from olivine.chat.sandbox import Sandbox
from olivine.chat.template import ChatTemplate
from olivine.errors import ModelError, RequestError


def render(source: str, **variables: Any) -> str:
    return ChatTemplate(source).render([{"role": "user", "content": "hi"}], variables=variables)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ {'a': '<é>', 'b': [1, none]} | tojson }}", '{"a": "<é>", "b": [1, null]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}"
         "{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}", "013"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "hi!"),
        ("{% set ns = namespace(a=1) %}{% set ns.a = ns.a + 1 %}{{ ns.a ~ 'x' ~ 1.5 }}", "2x1.5"),
        ("{{ dict(a=1).a }}{{ 'a-%s' % 'b' }}{{ 'a{}'.format(1) }}{{ 'x' * 3 }}{{ 2 ** 3 }}", "1a-ba1xxx8"),
        ("  {% if true %}\n  a\n  {% endif %}\nb", "  a\nb"),
        ("{{ ['a', 'b'] | join(', ') }}{{ 'aXa' | replace('a', 'bb') }}", "a, bbbXbb"),
        ("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m(10 ** 9) }}", "[1000000000]"),
    ],
)  # fmt: skip
def test_what_published_templates_use_is_there(source: str, expected: str) -> None:
    assert render(source) == expected


def test_the_clock_is_there() -> None:
    assert render("{{ strftime_now('%Y') }}").isdigit()


def test_a_complaint_of_the_template_is_the_message() -> None:
    with pytest.raises(RequestError, match=r"^roles must alternate$"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize("source", ["{{ messages[5].content }}", "{{ 1 + 'a' }}", "{{ nothing.at.all }}"])
def test_a_failure_of_the_template_is_a_request_error(source: str) -> None:
    with pytest.raises(RequestError, match=r"cannot render this conversation"):
        render(source)


@pytest.mark.parametrize("count", [120, pytest.param(400, marks=pytest.mark.exhaustive)])
def test_broken_templates_fail_as_they_should(count: int) -> None:
    rng = random.Random(0)
    failed = 0
    for _ in range(count):
        source = builtin.source(rng.choice(["qwen3", "gemma3", "gemma4", "chatml"]))
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(source))
            junk = rng.choice(["", "{", "%}", "'", "(", "{%- endif %}", "{{ x }}", "|", "not "])
            source = source[:at] + junk + source[at + rng.randint(0, 30) :]
        try:
            render(source, tools=[{"function": {"name": "f"}}])
        except (RequestError, ModelError):
            failed += 1
    assert count / 4 < failed < count
    with pytest.raises(ModelError):
        ChatTemplate("{% for a in b %}" * 30 + "{% endfor %}" * 30)


def test_a_template_that_is_none_is_a_model_error() -> None:
    with pytest.raises(ModelError, match=r"line 2"):
        ChatTemplate("\n{% if %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ (messages|attr('__class__')) }}",
        "{% set n = namespace() %}{% set n.__class__ = 1 %}",
        "{{ namespace(_a=1) }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ lipsum() }}",
        "{{ self.__init__.__globals__ }}",
        "{% include 'x' %}",
        "{% import 'x' as y %}",
    ],
)
def test_nothing_of_python_is_within_reach(source: str) -> None:
    try:
        shown = render(source)
    except (RequestError, ModelError):
        return
    assert shown == ""  # undefined


GROWING = (
    "{%% set n = namespace(s=%s) %%}{%% for i in range(99) %%}{%% set n.s = %s %%}{%% endfor %%}{{ n.s %s }}"
)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**12 }}",
        "{{ 10 ** 10 ** 10 }}",
        "{{ 'a' | center(10**12) }}",
        "{{ 'a'.ljust(10**12) }}",
        "{{ '{:>999999999999}'.format('a') }}",
        "{{ '{:>{w}}'.format('a', w=10**12) }}",
        "{{ '%999999999999d' % 1 }}",
        "{{ '%*d' % (10**12, 1) }}",
        "{{ '%999999999999d' | format(1) }}",
        "{{ (1).to_bytes(2000000000, 'big') | length }}",
        "{{ ((1).to_bytes(60000, 'big') * 60000) | length }}",
        "{{ (1 | attr('to_bytes'))(2000000000, 'big') | length }}",
        "{{ (1).from_bytes([255] * 1000000, 'big') }}",
        "{{ (data * 60000) | length }}",
        "{{ data.ljust(60000) }}",
        GROWING % ("'aa'", "n.s + n.s", ""),
        GROWING % ("'aa'", "n.s ~ n.s", ""),
        GROWING % ("'aa'", "n.s.replace('a', n.s)", ""),
        GROWING % ("'aa'", "n.s | replace('a', n.s)", ""),
        GROWING % ("'aa'", "n.s.join([n.s, n.s, n.s])", ""),
        GROWING % ("'aa'", "[n.s, n.s, n.s] | join(n.s)", ""),
        GROWING % ("[1]", "n.s + n.s", ""),
        GROWING % ("[1]", "n.s * 3", ""),
        GROWING % ("[1]", "[n.s, n.s]", ""),
        GROWING % ("[1]", "[n.s, n.s]", "| tojson"),
        GROWING % ("[1]", "[n.s, n.s]", "| string"),
        GROWING % ("[1]", "[n.s, n.s]", "~ ''"),
        GROWING % ("[1]", "[n.s, n.s]", "== [n.s, n.s]"),
        GROWING % ("[1]", "{'a': n.s, 'b': n.s}", ""),
        "{% macro d(s) %}{{ s }}{{ s }}{% endmacro %}" + GROWING % ("'aa'", "d(n.s)", ""),
        "{% macro r(s) %}{{ r(s) }}{% endmacro %}{{ r(1) }}",
    ],
)
def test_what_grows_is_stopped(source: str) -> None:
    with pytest.raises(RequestError):
        render(source, data=b"of a caller's")


@pytest.mark.parametrize("width", ["w=10**12", "w='999999999999'", "w=9"])
@pytest.mark.parametrize("field", ["{:>{w}}", "{:>{w[0]}}", "{{{:{w}}}}"])
def test_a_width_that_is_a_value_is_refused(field: str, width: str) -> None:
    """Before anything is made: a system that promises any memory would give it."""
    with pytest.raises(RequestError, match="pads a text by a width that is a value"):
        render(f"{{{{ {field!r}.format('a', {width}) }}}}")


def test_braces_around_a_field_are_no_width() -> None:
    assert render("{{ '{{\"name\": {{{:>3}}}}}'.format('a') }}") == '{"name": {  a}}'


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
        "{% endfor %}{% endfor %}{% endfor %}",
        "{% macro r(n) %}{% if n %}{{ r(n - 1) }}{{ r(n - 1) }}{% endif %}{% endmacro %}{{ r(60) }}",
        "{% for a in range(100000) %}{% for b in range(1000) %}{{ 'abcdefgh' }}{% endfor %}{% endfor %}",
        "{% for a in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
    ],
)
def test_what_takes_long_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "WORK", 1 << 22)
    with pytest.raises(RequestError, match=r"does too much work|makes a text|nested too deeply"):
        render(source)


def test_the_clock_stops_what_the_counters_do_not() -> None:
    sandbox = Sandbox()
    template = sandbox.from_string("{% for a in range(9) %}{% endfor %}")
    with pytest.raises(LimitError, match="takes too long"):
        sandbox.run(template.render, {}, seconds=-1.0)
    assert sandbox.run(template.render, {}) == ""


def test_what_a_template_says_reaches_nobody_s_terminal_as_it_is() -> None:
    with pytest.raises(RequestError) as caught:
        render("{{ raise_exception('a\x1b]0;title\x07b\r\n\u202ec' ~ 'x' * 9999) }}")
    assert str(caught.value).startswith("a ]0;title b cxxx") and len(str(caught.value)) == 500
    for source in ("{{ messages['\x1b[2J'].x.y }}", "{{ '\x1b[2J' | int + [] }}"):
        with pytest.raises(RequestError) as caught:
            render(source)
        assert str(caught.value).isprintable()
    with pytest.raises(ModelError) as refused:
        ChatTemplate("{{ a | \x1b[2J }}")
    assert str(refused.value).isprintable()


def test_a_template_has_a_size() -> None:
    with pytest.raises(ModelError, match=r"300000 characters, and 262144 is the most"):
        ChatTemplate("x" * 300_000)
