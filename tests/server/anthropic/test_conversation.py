"""Messages and tools of Anthropic's API, as `LLM.chat` takes them."""

from __future__ import annotations

from typing import Any

import pytest

from olivine import RequestError
from olivine.chat.messages import messages_of, tools_of
from olivine.server.anthropic.conversation import chat_messages, chat_tools

PNG = {"type": "base64", "media_type": "image/png", "data": "aGk="}


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def test_a_text_and_a_list_of_one_text_are_the_same() -> None:
    plain = chat_messages("Be brief.", [{"role": "user", "content": "Hi"}])
    cached = {"type": "ephemeral", "ttl": "1h"}
    blocks = chat_messages([text("Be brief.", cache_control=cached)], [user(text("Hi"))])
    assert plain == blocks == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def test_the_billing_header_is_left_out() -> None:
    header = "x-anthropic-billing-header: cc_version=2.1.37; cch=1b2c3;"
    assert chat_messages([text(header), text("You help.")], [user(text("Hi"))])[0]["content"] == "You help."
    assert chat_messages(f"{header}\nYou help.", [user(text("Hi"))])[0]["content"] == "You help."
    assert chat_messages([text(header)], [user(text("Hi"))]) == [{"role": "user", "content": "Hi"}]


def test_system_messages_stay_where_they_stand() -> None:
    found = chat_messages(
        "One",
        [user(text("Hi")), {"role": "system", "content": [text("190000 tokens left")]}, user(text("Go"))],
    )
    assert [(each["role"], each["content"]) for each in found] == [
        ("system", "One"),
        ("user", "Hi"),
        ("system", "190000 tokens left"),
        ("user", "Go"),
    ]


def test_consecutive_messages_of_one_role_are_one_turn() -> None:
    found = chat_messages(None, [user(text("a")), user(text("b"), text("c"))])
    assert found == [{"role": "user", "content": "a\nb\nc"}]


def test_thoughts_calls_and_their_results() -> None:
    found = chat_messages(
        None,
        [
            user(text("Weather?")),
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "I look.", "signature": ""},
                    {"type": "redacted_thinking", "data": "xyz"},
                    text("Let me see."),
                    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Köln"}},
                    {"type": "tool_use", "id": "toolu_2", "name": "clock", "input": {}},
                ],
            },
            user(
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"},
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_2",
                    "content": [text("no clock")],
                    "is_error": True,
                },
                text("And?"),
            ),
        ],
    )
    assert found[1:] == [
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "I look.",
            "tool_calls": [
                {"id": "toolu_1", "function": {"name": "weather", "arguments": {"city": "Köln"}}},
                {"id": "toolu_2", "function": {"name": "clock", "arguments": {}}},
            ],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "name": "weather", "content": "rain"},
        {"role": "tool", "tool_call_id": "toolu_2", "name": "clock", "content": "Error: no clock"},
        {"role": "user", "content": "And?"},
    ]
    assert len(messages_of(found)) == 5


def test_images_survive_also_in_results() -> None:
    image = {"type": "image", "source": PNG}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("a screen"), image]}
    (tool, said) = messages_of(chat_messages(None, [user(result, image)]))
    assert [media.kind for media in (*tool.media, *said.media)] == ["image", "image"]
    assert tool.text == "a screen"


def test_documents_and_search_results_are_text() -> None:
    document = {"type": "document", "title": "Notes", "source": {"type": "text", "data": "Sea."}}
    nested = {"type": "document", "source": {"type": "content", "content": [text("Salt.")]}}
    search = {"type": "search_result", "title": "T", "source": "http://x", "content": [text("found")]}
    (found,) = chat_messages(None, [user(document, nested, search)])
    assert found["content"] == "Notes\nSea.\nSalt.\nT\nhttp://x\nfound"


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([{"role": "tool", "content": "x"}], r"messages\[0\] has the role 'tool'"),
        ([user({"type": "hologram"})], r"messages\[0\].content\[0\] has the type 'hologram'"),
        ([user({"text": "x"})], r"messages\[0\].content\[0\] is no content block"),
        ([{"role": "user", "content": 5}], r"messages\[0\].content is neither"),
        ([user({"type": "text"})], r"messages\[0\].content\[0\]: text is missing"),
        ([user({"type": "document", "source": {"type": "base64"}})], "cannot be read here: give its text"),
        ([user({"type": "tool_result", "content": "x"})], "tool_use_id is missing"),
    ],
)
def test_what_is_refused_names_its_place(messages: list[dict[str, Any]], complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        chat_messages(None, messages)


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def test_tools_are_functions_and_those_of_servers_are_left_out() -> None:
    tools = chat_tools(
        [
            {"name": "weather", "description": "of a city", "input_schema": CITY, "strict": True},
            {"type": "custom", "name": "clock"},
            {"type": "bash_20250124", "name": "bash"},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
        ],
        [],
    )
    assert tools.skipped == ["bash_20250124", "web_search_20250305"]
    assert tools_of(tools.declared)[0]["function"] == {
        "name": "weather",
        "description": "of a city",
        "parameters": CITY,
    }
    assert [tool["function"]["name"] for tool in tools.declared] == ["weather", "clock"]


def test_deferred_tools_are_declared_once_they_are_referred_to() -> None:
    deferred = [
        {"name": name, "input_schema": CITY, "defer_loading": name != "search"}
        for name in ("search", "weather", "clock")
    ]
    reference = {"type": "tool_reference", "tool_name": "weather"}
    found = [user({"type": "tool_result", "tool_use_id": "toolu_1", "content": [reference]})]

    def names(tools: list[dict[str, Any]], messages: list[dict[str, Any]]) -> list[str]:
        return [tool["function"]["name"] for tool in chat_tools(tools, messages).declared]

    assert names(deferred, []) == ["search"]
    assert names(deferred, found) == ["search", "weather"]
    # A search that a server would run: nothing could be found here.
    server_side = [*deferred, {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}]
    assert names(server_side, []) == ["search", "weather", "clock"]
