"""Conversations in the form that a template takes. The templates here have the forms of published ones."""

from __future__ import annotations

from typing import Any

import pytest

from olivine.chat import builtin
from olivine.chat.messages import messages_of, tools_of
from olivine.chat.template import ChatTemplate

ALTERNATING = (
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}"
)
# The first part of a system message, and the texts of all parts of a user's, as Gemma 3's has it.
FIRST_PART = """\
{%- for m in messages %}[{{ m.role }}]
    {%- if m.content is string %}{{ m.content }}
    {%- elif m.role == 'system' %}{{ m.content[0].text }}
    {%- else %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}
{%- endfor %}"""
# The system message and results are printed as they are, as Gemma 4's and many of Mistral's have it.
PRINTED = """\
{%- for m in messages %}[{{ m.role }}]
    {%- if m.role != 'user' or m.content is string %}{{ m.content }}
    {%- else %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}
{%- endfor %}{% if tools %}{% endif %}"""
# The system message is taken in parts only, as in the first template of Gemma 3.
SYSTEM_IN_PARTS = """\
{%- for m in messages %}[{{ m.role }}]
    {%- if m.role == 'system' %}{{ m.content[0].text }}{% else %}{{ m.content }}{% endif %}
{%- endfor %}"""
# No system message: dropped as Phi 3's does, refused as Gemma 2's and the first of Mistral's do.
DROPPING = "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endfor %}"
REFUSING = "{% for m in messages %}" + ALTERNATING + "[{{ m.role }}]{{ m.content }}{% endfor %}"
# The last system message wins and stands first, as in DeepSeek's distilled models.
LAST_ONE = """\
{%- set ns = namespace(system='') %}
{%- for m in messages if m.role == 'system' %}{% set ns.system = m.content %}{% endfor -%}
[system]{{ ns.system }}
{%- for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endfor %}"""
# All of them are put first: those behind others are moved.
GATHERED = """\
{%- for m in messages if m.role == 'system' %}[system]{{ m.content }}{% endfor %}
{%- for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endfor %}"""
NEEDS_TOOLS = """\
{%- for tool in tools %}{{ tool.function.name }}{% endfor %}
{%- for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"""

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
ONE, TWO = {"role": "system", "content": "Be brief."}, {"role": "system", "content": "Be kind."}
HI, YES = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}


def prompt(source: str, *messages: Any, tools: Any = ()) -> str:
    return ChatTemplate(source).prompt(messages_of(messages), tools_of(list(tools))).text


def parts(role: str, *texts: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text} for text in texts]}


@pytest.mark.parametrize("source", [FIRST_PART, PRINTED, SYSTEM_IN_PARTS])
def test_all_text_of_a_system_message_in_parts_is_shown(source: str) -> None:
    text = prompt(source, parts("system", "Be brief.", "Be kind."), HI)
    assert text == "[system]Be brief.\nBe kind.[user]Hi"


@pytest.mark.parametrize("name", ["gemma3", "gemma4", "qwen3", "chatml"])
def test_built_in_templates_show_all_text_of_parts(name: str) -> None:
    text = prompt(builtin.source(name), parts("system", "Be brief.", "Be kind."), parts("user", "a", "b"))
    assert "Be brief.\nBe kind." in text and "'text'" not in text


def test_a_result_in_parts_is_text() -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"name": "add"}}]}
    result = {**parts("tool", "3", "4"), "tool_call_id": "1"}
    assert prompt(PRINTED, HI, call, result, tools=[TOOL]).endswith("[tool]3\n4")


def test_a_system_message_that_must_be_parts_becomes_parts() -> None:
    assert prompt(SYSTEM_IN_PARTS, ONE, HI) == "[system]Be brief.[user]Hi"


@pytest.mark.parametrize("source", [DROPPING, REFUSING])
def test_without_a_place_for_a_system_message_the_user_says_it(source: str) -> None:
    assert prompt(source, ONE, HI, YES, HI) == "[user]Be brief.\n\nHi[assistant]Yes[user]Hi"
    assert prompt(source, ONE, TWO, HI) == "[user]Be brief.\n\nBe kind.\n\nHi"
    declared = prompt(source, HI, tools=[TOOL])
    assert declared.startswith("[user]You have functions") and '"name": "add"' in declared
    assert declared.endswith("\n\nHi")


@pytest.mark.parametrize("source", [LAST_ONE, builtin.source("gemma3")])
def test_system_messages_at_the_beginning_become_one(source: str) -> None:
    assert "Be brief.\n\nBe kind." in prompt(source, ONE, TWO, HI)


def test_a_template_that_shows_several_gets_several() -> None:
    assert prompt(GATHERED, ONE, TWO, HI) == "[system]Be brief.[system]Be kind.[user]Hi"


@pytest.mark.parametrize("source", [LAST_ONE, GATHERED])
def test_a_later_system_message_keeps_its_place(source: str) -> None:
    text = prompt(source, ONE, HI, YES, TWO, HI)
    assert text == "[system]Be brief.[user]Hi[assistant]Yes[user]Be kind.\n\nHi"


def test_a_developer_is_the_system_where_a_template_does_not_show_developers() -> None:
    source = "{% for m in messages if m.role != 'developer' %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    assert prompt(source, {"role": "developer", "content": "Be brief."}, HI) == "[system]Be brief.[user]Hi"


def test_a_template_that_needs_tools_is_taken_as_it_is() -> None:
    text = prompt(NEEDS_TOOLS, ONE, TWO, HI, tools=[TOOL])
    assert text == "add[system]Be brief.[system]Be kind.[user]Hi"


ONE_CALL = """\
{%- for m in messages %}[{{ m.role }}]
    {%- if m.tool_calls is defined and m.tool_calls | length != 1 %}{{ raise_exception('one!') }}{% endif %}
    {%- for call in m.tool_calls %}{{ call.id }}{% else %}{{ m.content }}{% endfor %}
{%- endfor %}{% if tools %}{% endif %}"""


def test_several_calls_come_one_after_another_where_a_template_wants_that() -> None:
    calls = [{"id": str(number), "function": {"name": "add"}} for number in (1, 2)]
    called = {"role": "assistant", "content": "", "tool_calls": calls}
    one, two = ({"role": "tool", "tool_call_id": each, "content": f"result {each}"} for each in "12")
    expected = "[user]Hi[assistant]1[tool]result 1[assistant]2[tool]result 2[assistant]Yes"
    for results in ([one, two], [two, one]):
        assert prompt(ONE_CALL, HI, called, *results, YES, tools=[TOOL]) == expected
    assert prompt(ONE_CALL, HI, called, tools=[TOOL]) == "[user]Hi[assistant]1[assistant]2"
    together = ONE_CALL.replace("!= 1", "== 0")
    assert prompt(together, HI, called, one, two, tools=[TOOL]).startswith("[user]Hi[assistant]12[tool]")
