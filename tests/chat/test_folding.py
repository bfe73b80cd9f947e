"""System messages behind others, where a template has no place for them."""

from __future__ import annotations

from olivine.chat import builtin
from olivine.chat.folding import has_later_systems, without_later_systems
from olivine.chat.messages import Media, Message
from olivine.chat.template import ChatTemplate

COUNTDOWN = Message("system", "9 tokens left")
STRICT = """\
{%- for message in messages -%}
    {%- if message.role == 'system' and not loop.first -%}
        {{- raise_exception('System message must be at the beginning.') -}}
    {%- endif -%}
    {{- message.role + ': ' + message.content + '|' -}}
{%- endfor -%}"""
TALK = [Message("system", "Be brief."), Message("user", "Hi"), COUNTDOWN]


def test_later_system_messages_are_found() -> None:
    assert has_later_systems(TALK)
    assert not has_later_systems([Message("system", "a"), Message("developer", "b"), Message("user", "c")])


def test_they_become_the_user_s_words_in_their_place() -> None:
    folded = without_later_systems([*TALK, Message("assistant", "Yes"), COUNTDOWN, Message("user", "Go")])
    assert [(each.role, each.content) for each in folded] == [
        ("system", "Be brief."),
        ("user", "Hi\n\n9 tokens left"),
        ("assistant", "Yes"),
        ("user", "9 tokens left\n\nGo"),
    ]


def test_other_messages_of_a_user_stay_apart() -> None:
    apart = [Message("user", "a"), Message("user", "b")]
    assert without_later_systems(apart) == apart


def test_media_stay_parts() -> None:
    (message,) = without_later_systems([Message("user", ["see", Media("image", "x")]), COUNTDOWN])
    assert message.content == ["see", Media("image", "x"), "9 tokens left"]


def test_a_template_that_takes_them_gets_them() -> None:
    text = ChatTemplate(builtin.source("qwen3")).prompt(TALK).text
    assert "<|im_start|>system\n9 tokens left<|im_end|>" in text


def test_a_template_that_refuses_them_does_not() -> None:
    assert ChatTemplate(STRICT).prompt(TALK).text == "system: Be brief.|user: Hi\n\n9 tokens left|"
