"""What clients send, in one form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from olivine.chat import builtin
from olivine.chat.folding import without_tools
from olivine.chat.messages import Media, Message, has_media, messages_of, tools_of
from olivine.chat.template import ChatTemplate, template_source
from olivine.chat.thinking import Thinking
from olivine.errors import RequestError
from olivine.models import ARCHITECTURES
from oracles.counting import CountedText


def test_a_text_is_a_users_message() -> None:
    assert messages_of("hi") == [Message("user", "hi")]


def test_parts_and_their_spellings() -> None:
    parts = [
        "plain",
        {"type": "text", "text": "a"},
        {"type": "input_text", "text": "b"},
        {"type": "refusal", "refusal": "c"},
        {"type": "image_url", "image_url": {"url": "data:,"}},
        {"type": "image_url", "image_url": "data:,"},
        {"type": "input_audio", "input_audio": {"data": ""}},
        {"type": "video"},
    ]
    message = Message.of({"role": "user", "content": parts})
    assert message.text == "plain\na\nb\nc"
    assert [media.kind for media in message.media] == ["image", "image", "audio", "video"]
    assert message.media[0] == Media("image", {"url": "data:,"})
    assert message.for_template()["content"][4] == {"type": "image"}


def test_a_refusal_in_place_of_a_content_is_a_text() -> None:
    refused = {"role": "assistant", "content": None, "refusal": "I cannot."}
    assert Message.of(refused) == Message("assistant", "I cannot.")
    assert Message.of({**refused, "content": "Yes."}) == Message("assistant", "Yes.")


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content", "thinking"])
def test_thoughts_have_all_their_names(key: str) -> None:
    message = Message.of({"role": "assistant", "content": None, key: "hm"})
    assert message.content == ""
    seen = message.for_template()
    assert seen["reasoning"] == seen["reasoning_content"] == seen["thinking"] == "hm"


@pytest.mark.parametrize("arguments", ['{"a": [1, "é"]}', {"a": [1, "é"]}])
def test_calls_are_json_for_clients_and_objects_for_templates(arguments: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message = Message.of({"role": "assistant", "tool_calls": [call]})
    assert message.tool_calls[0].arguments == '{"a": [1, "é"]}'
    assert message.for_template()["tool_calls"][0]["function"]["arguments"] == {"a": [1, "é"]}
    assert Message.of(message.as_dict()) == message


@pytest.mark.parametrize("given", [{}, {"arguments": None}, {"arguments": ""}])
def test_a_call_without_arguments(given: dict[str, Any]) -> None:
    """Clients whose maps can be null send null."""
    message = Message.of({"role": "assistant", "tool_calls": [{"function": {"name": "f", **given}}]})
    assert message.for_template()["tool_calls"][0]["function"]["arguments"] == {}


def test_a_text_is_not_looked_through_for_media() -> None:
    """Character by character, a prompt of some megabytes took seconds."""

    class Text(str):
        def __iter__(self) -> Iterator[str]:
            raise AssertionError("it is looked through")

    assert Message("user", Text("long")).media == []


def test_arguments_that_are_no_json_stay_as_they_are() -> None:
    message = Message.of(
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{a"}}]}
    )
    assert message.for_template()["tool_calls"][0]["function"]["arguments"] == "{a"


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([], "at least one"),
        (5, "text or a list"),
        ([{"content": "a"}], r"messages\[0\] has the role None"),
        ([{"role": "user", "content": "a"}, {"role": "wizard"}], r"messages\[1\] has the role 'wizard'"),
        ([{"role": "user", "content": 5}], r"messages\[0\]: content is neither"),
        ([{"role": "user", "content": [{"type": "smell"}]}], r"content\[0\] has the type 'smell'"),
        ([{"role": "user", "content": [{"type": []}]}], r"content\[0\] has the type \[\]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "text is missing"),
        ([{"role": "assistant", "content": [{"type": "refusal", "text": "x"}]}], "refusal is missing"),
        ([{"role": "user", "tool_calls": [{}]}], "only an assistant"),
        ([{"role": "assistant", "tool_calls": [{"function": {}}]}], r"tool_calls\[0\] needs a function"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": {1}}}}]}],
            r"tool_calls\[0\]: its arguments are not JSON",
        ),
        ([{"role": "assistant", "tool_calls": 7}], "tool_calls is not a list"),
        ([{"role": "assistant", "reasoning": 7}], "reasoning is not a text"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(messages: Any, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        messages_of(messages)


def test_a_function_that_is_declared_twice_is_found_in_one_pass() -> None:
    names = [*(CountedText(f"f{i}") for i in range(1000)), CountedText("f999")]
    CountedText.compared = 0
    with pytest.raises(RequestError, match="two functions are named 'f999'"):
        tools_of([{"name": name} for name in names])
    assert CountedText.compared <= 3 * len(names)


def test_tools_in_both_forms() -> None:
    wrapped = tools_of([{"type": "function", "function": {"name": "f", "parameters": {}}}])
    flat = tools_of([{"type": "function", "name": "f", "parameters": {}}, {"type": "web_search"}])
    assert wrapped == flat == [
        {"type": "function", "function": {"name": "f", "parameters": {}}}
    ]  # fmt: skip
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"a": deep}
    for bad in (
        [{"function": {}}],
        [{"name": ""}],
        [{"name": "f", "parameters": deep}],
        [{"name": "f"}] * 2,
        "f",
    ):
        with pytest.raises(RequestError, match="tools"):
            tools_of(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({}, Thinking()),
        ({"think": True}, Thinking(True)),
        ({"think": "high"}, Thinking(True, "high")),
        ({"think": "OFF"}, Thinking(False)),
        ({"think": "auto"}, Thinking()),
        ({"think": " yes "}, Thinking(True)),
        ({"thinking": {"type": "adaptive"}}, Thinking()),
        ({"reasoning": {"enabled": True, "effort": "xhigh"}}, Thinking(True, "xhigh")),
        ({"reasoning_effort": "none"}, Thinking(False)),
        ({"reasoning_effort": "low"}, Thinking(True, "low")),
        ({"reasoning": {"effort": "medium"}}, Thinking(True, "medium")),
        ({"reasoning": {"enabled": False}}, Thinking(False)),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, Thinking(True)),
        ({"thinking": {"type": "disabled"}}, Thinking(False)),
        ({"enable_thinking": False}, Thinking(False)),
        ({"chat_template_kwargs": {"enable_thinking": True}}, Thinking(True)),
        ({"chat_template_kwargs": {"reasoning_effort": "max"}}, Thinking(True, "max")),
        ({"think": False, "chat_template_kwargs": {"enable_thinking": True}}, Thinking(False)),
    ],
)
def test_thinking_however_it_is_spelled(request_: dict[str, Any], expected: Thinking) -> None:
    assert Thinking.asked(request_) == expected


def test_thinking_that_makes_no_sense() -> None:
    with pytest.raises(RequestError, match="'sideways'; known: on, off, minimal"):
        Thinking.of("sideways")


def test_thinking_reaches_the_template() -> None:
    template = ChatTemplate(builtin.source("qwen3"))
    off = template.prompt([Message("user", "hi")], thinking=Thinking.of("off")).text
    assert off.endswith("assistant\n<think>\n\n</think>\n\n")
    assert template.prompt([Message("user", "hi")], thinking=Thinking.of("on")).text.endswith("assistant\n")


def test_developers_are_systems_where_a_template_knows_none() -> None:
    messages = [Message("developer", "be brief"), Message("user", "hi")]
    assert "<|im_start|>system\nbe brief" in ChatTemplate(builtin.source("qwen3")).prompt(messages).text
    assert "<|turn>system\nbe brief" in ChatTemplate(builtin.source("gemma4")).prompt(messages).text


def test_contents_take_the_form_that_a_template_wants() -> None:
    parts = [Message("user", ["a", "b"])]
    assert "user\na\nb<" in ChatTemplate(builtin.source("chatml")).prompt(parts).text
    only_parts = (
        "{% for p in messages[0].content %}{% if p is mapping %}[{{ p.text }}]{% endif %}{% endfor %}"
    )
    assert ChatTemplate(only_parts).prompt([Message("user", "a")]).text == "[a]"


def test_tools_become_text_where_a_template_knows_none() -> None:
    tools = tools_of([{"name": "clock", "description": "the time"}])
    call = {"function": {"name": "clock", "arguments": {"zone": "CET"}}, "id": "1"}
    messages = messages_of(
        [
            {"role": "user", "content": "what time is it?"},
            {"role": "assistant", "tool_calls": [call, {**call, "id": "2"}]},
            {"role": "tool", "tool_call_id": "1", "content": "noon"},
            {"role": "tool", "tool_call_id": "2", "content": "one"},
        ]
    )
    text = ChatTemplate(builtin.source("gemma3")).prompt(messages, tools).text
    assert '"description": "the time"' in text
    assert '[{"name": "clock", "parameters": {"zone": "CET"}}, {"name": "clock"' in text
    assert "The result of clock:\nnoon\n\nThe result of clock:\none<end_of_turn>" in text
    assert [m.role for m in without_tools(messages, tools)] == ["system", "user", "assistant", "user"]


def test_gemma_4_goes_on_after_calls_with_text_and_results() -> None:
    call = {"function": {"name": "f", "arguments": {}}, "id": "1"}
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "let me see", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "7"},
    ]
    template = ChatTemplate(builtin.source("gemma4"))
    assert template.prompt(messages_of(messages)).text.endswith("let me see<turn|>\n<|turn>model\n")
    del messages[1]["content"]
    assert template.prompt(messages_of(messages)).text.endswith('{value:<|"|>7<|"|>}<tool_response|>')


def test_gemma_4s_first_templates_have_results_in_the_message_that_made_the_calls() -> None:
    source = (
        "{# <|tool_call> #}{% for m in messages %}[{{ m.role }}:{{ m.content }}"
        "{% for r in m.tool_responses or [] %}({{ r.name }}={{ r.response }}){% endfor %}]{% endfor %}"
        "{{ tools | length }}"
    )
    calls = [{"function": {"name": name, "arguments": {}}, "id": name} for name in ("f", "g")]
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "g", "content": '{"x": 1}'},
        {"role": "tool", "name": "h", "content": "7 <|turn>"},
    ]
    template = ChatTemplate(source, special=["<|turn>"])
    tools = tools_of([{"name": "f", "parameters": {}}])
    prompt = template.prompt(messages_of(messages), tools)
    assert prompt.text == "[user:?][assistant:(g={'x': 1})(h=7 <|turn>)]1"
    assert prompt.literal == {prompt.text.index("<|turn>")}


def test_the_source_of_a_template() -> None:
    assert template_source("own", "qwen3") == "own"
    assert template_source(None, "gemma3_text") == builtin.source("gemma3")
    assert template_source(None, "llama") == builtin.source("chatml")
    for family in ("gemma3", "gemma4"):
        for kind in {*ARCHITECTURES[family].hf, *ARCHITECTURES[family].gguf}:
            assert template_source(None, kind) == builtin.source(family), kind


def test_qwen3c_templates_are_used_for_a_single_question() -> None:
    files = {
        "": 'U"%s"E',
        "with-thinking": "U%sT",
        "with-system": "S%sU%s{{ x }}",
        "with-system-and-thinking": "S",
    }
    template = ChatTemplate(template_source(None, "qwen3", files))
    user, system = Message("user", "%s {{ y }}"), Message("system", "sys")
    off, on = Thinking(False), Thinking(True)
    assert template.prompt([user], thinking=off).text == 'U"%s {{ y }}"E'
    assert template.prompt([user], thinking=on).text == template.prompt([user]).text == "U%s {{ y }}T"
    assert template.prompt([system, user], thinking=off).text == "SsysU%s {{ y }}{{ x }}"
    ours = ChatTemplate(builtin.source("qwen3"))
    for messages in ([system, user], [user, Message("assistant", "a"), user]):
        assert template.prompt(messages, thinking=on) == ours.prompt(messages, thinking=on)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([{"role": "user", "content": "image"}], False),
        ([{"role": "user", "content": [{"type": "text", "text": "image"}]}], False),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], True),
        ([{"content": "a"}, {"content": [{"type": "text"}, {"type": "input_audio"}]}], True),
        ([{"content": [{"type": ["image"]}, 5, None]}, 7, {}], False),
        ("image", False),
    ],
)
def test_media_are_found_in_what_clients_send(messages: Any, expected: bool) -> None:
    assert has_media(messages) is expected
