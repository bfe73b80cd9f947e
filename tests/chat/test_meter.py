"""Templates that try to take more memory or time than they may. Nothing here is measured by a clock: each one
is stopped by what it was about to do."""

from __future__ import annotations

import pytest

from olivine.chat import meter
from olivine.chat.messages import messages_of
from olivine.chat.meter import LONGEST, WORK, LimitError, Meter
from olivine.chat.sandbox import Sandbox
from olivine.chat.template import ChatTemplate

# n.s is a text of 393,216 characters, n.l a list that may grow.
TEXT = "{% set n = namespace(s='ab ', l=[]) %}{% for i in range(17) %}{% set n.s = n.s + n.s %}{% endfor %}"
ADD = "{% set n.l = n.l + [b] %}"


def keep(value: str) -> str:
    return TEXT + many("{% set b = " + value + " %}" + ADD)


def many(body: str, count: int = 9999) -> str:
    return "{% for i in range(" + str(count) + ") %}" + body + "{% endfor %}"


# n.t and m.t are tuples that hold themselves twice, sixty times over; n.d is deeper than the stack.
TWICE = (
    "{% set n = namespace(t=(1,)) %}{% set m = namespace(t=(1,)) %}"
    "{% for i in range(60) %}{% set n.t = (n.t, n.t) %}{% set m.t = (m.t, m.t) %}{% endfor %}"
)
DEEP = "{% set n = namespace(d=(1,)) %}{% for i in range(9999) %}{% set n.d = (n.d,) %}{% endfor %}"
HOSTILE = {
    # Many that are not large.
    "slices": keep("n.s[1:]"),
    "filters": keep("n.s | upper"),
    "methods": keep("n.s.lower()"),
    "joined": keep("n.s ~ i"),
    "blocks": TEXT + many("{% set b %}{{ n.s }}{% endset %}" + ADD),
    "words": keep("n.s.split()"),
    "pieces": keep("n.s.split(' ')"),
    "lines": keep("n.s.replace(' ', '\n').splitlines()"),
    "characters": keep("n.s | list"),
    "mapped": keep("n.s | map('upper') | list"),
    "keys": keep("{}.fromkeys(range(99999))"),
    "names": keep("namespace(a=n.s[i:])"),
    "variables": TEXT + "".join("{% set a" + str(i) + " = n.s | upper %}" for i in range(500)),
    "arguments": TEXT + "{% macro r(s, k) %}{% if k %}{{ r(s ~ 'x', k - 1) }}{% endif %}{% endmacro %}"
    + many("{{ r(n.s, 99) }}"),
    # One that makes much from little.
    "indent": "{{ ('a\n' * 99999) | indent(65000) }}",
    "indent by a text": TEXT + "{{ ('a\n' * 99999) | indent(n.s) }}",
    "indented JSON": "{% set n = namespace(l=[1]) %}" + many("{% set n.l = [n.l, 1, 1] %}", 190)
    + "{{ n.l | tojson(indent=60000) }}",
    "fields": TEXT + "{{ ('{0}' * 99999).format(n.s) }}",
    "fields with width": "{{ ('{0:>9999}' * 9999).format('a') }}",
    "fields with a given width": "{{ ('{0:>{1}}' * 9999).format('a', 65000) }}",
    "percents": "{{ ('%9999s' * 9999) % (('a',) * 9999) }}",
    "format": "{{ ('%9999s' * 9999) | format('a') }}",
    "translate": TEXT + "{{ n.s.translate({97: n.s}) }}",
    "tabs": "{{ ('\t' * 99999).expandtabs(65000) }}",
    "date": "{{ strftime_now('%c' * 400000) }}",
    "constants": "{{ 'aaaa'" + "| replace('a', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaa')" * 9 + "}}",
    # One that takes long.
    "sum of lists": "{% set n = namespace(l=[[1]]) %}" + many("{% set n.l = n.l + n.l %}", 14)
    + many("{{ n.l | sum(start=[]) | length }}"),
    "strip": TEXT + "{{ n.s.strip(n.s) }}",
    "trim": TEXT + "{{ n.s | trim(n.s) }}",
    "backwards": "{{ ('a' * 900000).rfind('b' ~ 'a' * 450000) }}",
    "split backwards": "{{ ('a' * 900000).rsplit('b' ~ 'a' * 450000) }}",
    "wordwrap": TEXT + "{{ n.s | wordwrap(1) }}",
    "urlize": "{{ ('http://a.b' * 99999) | urlize }}",
    "striptags": "{{ ('<!--' * 99999) | striptags }}",
    "digits": "{{ ('9' * 900000) | int }}",
    "path": "{{ range(99999) | map(attribute='a' ~ '.a' * 400000) | list }}",
    "path of sort": "{{ range(99999) | sort(false, false, 'a' ~ '.a' * 400000) | list }}",
    "unique": many("{{ range(99999) | unique | list | length }}"),
    # What is small in memory only.
    "percent of doubled": TWICE + "{{ '%s' % (n.t,) }}",
    "hash of doubled": TWICE + "{{ {n.t: 1} | length }}",
    "item of doubled": TWICE + "{% set d = {} %}{{ d[n.t] }}",
    "test of doubled": TWICE + "{{ n.t is eq m.t }}",
    "selected doubled": TWICE + "{{ [n.t] | select('equalto', m.t) | list }}",
    "contained doubled": TWICE + "{{ n.t is in [m.t] }}",
    "changed doubled": TWICE + "{% for i in range(9) %}{{ loop.changed(n.t) }}{% endfor %}",
    "hash of deep": DEEP + "{{ {n.d: 1} | length }}",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_template_takes_no_more_than_it_may(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "WORK", WORK // 8)
    monkeypatch.setattr(meter, "MOST", 1 << 17)
    template = ChatTemplate(HOSTILE[name])
    with pytest.raises(LimitError):
        template._sandbox.run(lambda: template._compiled.render(), {})


def test_bytes_are_out_of_reach() -> None:
    sandbox = Sandbox()
    with pytest.raises(Exception, match="encode"):
        sandbox.run(sandbox.from_string("{{ 'a'.encode().replace('a'.encode(), 'b'.encode()) }}").render)


def test_lists_are_added_to_lists() -> None:
    sandbox = Sandbox()
    source = "{{ [[1], [2, 3]] | sum(start=[0]) }}{{ [1, 2] | sum }}{{ [{'a': 2}] | sum('a') }}"
    assert sandbox.run(sandbox.from_string(source).render) == "[0, 1, 2, 3]32"


def test_what_is_used_is_given_back_after_each_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "WORK", 99999)
    template = ChatTemplate("{% for i in range(999) %}{% endfor %}{{ messages[0].content }}")
    for _ in range(9):
        assert template.render([{"role": "user", "content": "hi"}]) == "hi"
    assert template._sandbox.meter.left == float("inf")


@pytest.mark.parametrize("message", ["word " * 400_000, "é" * 600_000])
def test_long_conversations_have_longer_limits(message: str) -> None:
    template = ChatTemplate(
        "{% set n = namespace(s='') %}{% for m in messages %}"
        "{% set n.s = n.s + '<' ~ m.role ~ '>' ~ m.content | trim ~ '</>' %}{% endfor %}{{ n.s }}"
    )
    assert len(message) > LONGEST / 2
    messages = messages_of([{"role": "user", "content": message}] * 20)
    assert len(template.prompt(messages).text) > 20 * (len(message) - 1)


def test_each_thread_has_its_own() -> None:
    own = Meter()
    own.start({}, 10.0)
    assert own.left == WORK + 64  # an empty mapping is one entry, sixty-four times
    own.stop()
