"""The input and the tools of the Responses API, as `LLM.chat` takes them."""

from __future__ import annotations

from typing import Any

import pytest

from olivine import RequestError
from olivine.chat.messages import Media, messages_of, tools_of
from olivine.server.openai.responses_input import Conversation
from olivine.server.openai.responses_tools import Tool, Tools, custom_arguments, custom_input

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def test_a_text_is_a_user_s_message() -> None:
    assert Conversation("Be brief.", "Hi").messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]


def test_items_of_one_turn_are_one_message() -> None:
    found = Conversation(
        None,
        [
            {"role": "developer", "content": [{"type": "input_text", "text": "Rules"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "I look."}],
                "encrypted_content": None,
            },
            {
                "type": "message",
                "role": "assistant",
                "id": "msg_1",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
            },
            {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Kö'},
            {"type": "function_call", "call_id": "call_2", "name": "clock", "arguments": {"zone": 1}},
            {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
            {
                "type": "function_call_output",
                "call_id": "call_2",
                "output": [{"type": "input_text", "text": "12:00"}],
            },
            {
                "type": "function_call",
                "call_id": "call_3",
                "namespace": "home",
                "name": "lamp",
                "arguments": "",
            },
            {"type": "custom_tool_call", "call_id": "call_4", "name": "patch", "input": "*** Begin"},
            {"type": "custom_tool_call_output", "call_id": "call_4", "output": "done"},
        ],
    )
    assert found.messages == [
        {"role": "developer", "content": "Rules"},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "I look.",
            "tool_calls": [
                {"id": "call_1", "function": {"name": "weather", "arguments": '{"city": "Kö'}},
                {"id": "call_2", "function": {"name": "clock", "arguments": {"zone": 1}}},
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        {"role": "tool", "tool_call_id": "call_2", "content": "12:00"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "call_3", "function": {"name": "home.lamp", "arguments": ""}},
                {"id": "call_4", "function": {"name": "patch", "arguments": '{"input": "*** Begin"}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "call_4", "content": "done"},
    ]
    assert len(messages_of(found.messages)) == 7 and found.skipped == []


def test_the_items_of_a_long_turn_are_joined_once() -> None:
    """Joined one after the other, they would be copied for hours."""
    count, text = 100_000, "x" * 1500
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}
    (message,) = Conversation(None, [{"role": "assistant", "content": text}, thought] * count).messages
    whole = (len(text) + 1) * count - 1
    assert (len(message["content"]), len(message["reasoning_content"])) == (whole, whole)


def test_a_thought_may_be_a_text() -> None:
    given = [
        {"type": "reasoning", "content": "I look.", "summary": []},
        {"type": "reasoning", "summary": "Ah."},
    ]
    (message,) = Conversation(None, given).messages
    assert message == {"role": "assistant", "content": "", "reasoning_content": "I look.\nAh."}


def test_what_an_assistant_shows_and_says_is_kept_in_its_order() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
    given = [{"role": "assistant", "content": content} for content in ("Look:", [image], "", "Nice.")]
    (message,) = messages_of(Conversation(None, given).messages)
    assert message.content == ["Look:", Media("image", image["image_url"]), "Nice."]


def test_images_stay_parts() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
    asked = {"role": "user", "content": [{"type": "input_text", "text": "?"}, image]}
    seen = {"type": "function_call_output", "call_id": "call_1", "output": [image]}
    message, result = messages_of(Conversation(None, [asked, seen]).messages)
    assert result.role == "tool" and result.media == message.media
    assert message.media == [Media("image", image["image_url"])] and message.text == "?"


def test_items_that_are_not_known_are_left_out_and_told() -> None:
    tool = {"type": "function", "name": "late", "parameters": CITY}
    found = Conversation(
        None,
        [
            {"type": "web_search_call", "id": "ws_1", "status": "completed"},
            {"type": "additional_tools", "role": "developer", "tools": [tool]},
            {"role": "user", "content": "Hi"},
        ],
    )
    assert (found.skipped, found.tools, len(found.messages)) == (["web_search_call"], [tool], 1)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (
            [{"type": "item_reference", "id": "msg_1"}],
            r"input\[0\] refers to an item .* send the item itself",
        ),
        (["x"], r"input\[0\] is not an object"),
        ([{"role": "king", "content": "x"}], r"input\[0\] has the role 'king'"),
        ([{"role": "user", "content": [{"type": "input_file"}]}], r"content\[0\] has the type 'input_file'"),
        ([{"role": "user", "content": 5}], r"input\[0\].content is neither"),
        ([{"type": "reasoning", "summary": 5}], r"input\[0\].summary is not a list of parts"),
        ([{"type": "reasoning", "content": {"a": 1}}], r"input\[0\].content is not a list of parts"),
        ([{"type": "function_call", "call_id": "x"}], r"input\[0\]: name is missing"),
    ],
)
def test_what_is_refused_names_its_place(given: list[Any], complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        Conversation(None, given)


TOOLS = [
    {"type": "function", "name": "weather", "description": "of a city", "parameters": CITY, "strict": True},
    {
        "type": "namespace",
        "name": "home",
        "description": "The house",
        "tools": [
            {"type": "function", "name": "lamp", "parameters": CITY},
            {"type": "custom", "name": "note"},
        ],
    },
    {
        "type": "custom",
        "name": "patch",
        "description": "Changes files",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x+/"},
    },
    {"type": "web_search"},
    {"type": "local_shell"},
]


def test_namespaces_and_custom_tools_are_functions() -> None:
    tools = Tools.of(TOOLS)
    assert [tool["function"]["name"] for tool in tools_of(tools.declared)] == [
        "weather",
        "home.lamp",
        "home.note",
        "patch",
    ]
    assert tools.declared[0]["function"] == {
        "name": "weather",
        "description": "of a city",
        "parameters": CITY,
    }
    patch = tools.declared[3]["function"]
    assert "start: /x+/" in patch["description"] and patch["parameters"]["required"] == ["input"]
    assert tools.skipped == ["web_search", "local_shell"]
    assert tools.named("home.lamp") == Tool("lamp", "home")
    assert tools.named("patch") == Tool("patch", custom=True)


def test_choices_name_functions() -> None:
    tools = Tools.of(TOOLS)
    assert tools.choice("required") == "required"
    named = {"type": "function", "function": {"name": "home.lamp"}}
    assert tools.choice({"type": "function", "name": "lamp", "namespace": "home"}) == named
    assert tools.choice({"type": "function", "name": "home.lamp"}) == named
    assert tools.choice({"type": "custom", "name": "patch"})["function"] == {"name": "patch"}
    allowed = tools.allowed([{"type": "function", "name": "weather"}])
    assert [tool["function"]["name"] for tool in allowed.declared] == ["weather"]


def test_the_text_of_a_custom_tool() -> None:
    assert custom_input(custom_arguments('a "b"\nö')) == 'a "b"\nö'
    assert custom_input('{"input": "brok') == '{"input": "brok'


@pytest.mark.parametrize(
    ("tools", "complaint"),
    [
        (["x"], r"tools\[0\] is not an object"),
        ([{"type": "function"}], r"tools\[0\] has no name"),
        ([{"type": "namespace", "name": "a"}], r"tools\[0\]: a namespace has a list"),
        (
            [{"type": "namespace", "name": "a", "tools": [{"type": "custom"}]}],
            r"tools\[0\].tools\[0\] has no",
        ),
    ],
)
def test_tools_that_are_refused(tools: list[Any], complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        Tools.of(tools)
