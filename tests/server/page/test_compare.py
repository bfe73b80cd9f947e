"""Two answers side by side in the browser, and functions whose results the user types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from oracles.chat_page import ChatPage, Visit
from oracles.scripted_server import MODEL, Delta, ScriptedServer

WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}


def by_model(body: dict[str, Any]) -> Iterator[Delta]:
    yield {"content": f"{body['model']} at {body.get('temperature', 'its own')}"}
    yield {"finish_reason": "stop"}


@pytest.fixture
def chat(visit: Visit, stand_in: ScriptedServer) -> ChatPage:
    """Two models, compared."""
    stand_in.models = [dict(MODEL), {**MODEL, "id": "second"}]
    stand_in.script = by_model
    chat = visit(stand_in.url)
    chat.button("Compare two answers").click()
    dialog = chat.page.get_by_role("dialog", name="Compare two answers")
    expect(dialog.get_by_label("Model of the second answer")).to_have_value("second")
    dialog.get_by_label("Temperature").fill("0.5")
    dialog.get_by_label("Temperature").press("Tab")
    chat.button("Done").click()
    expect(chat.page.get_by_text("Compared with: second · Temperature 0.5")).to_be_visible()
    return chat


def ask_both(chat: ChatPage, text: str) -> None:
    chat.field.fill(text)
    chat.field.press("Enter")
    expect(chat.page.locator(".pair .figures")).to_have_count(2)


def test_both_answer_with_their_speeds_and_one_goes_on(chat: ChatPage, stand_in: ScriptedServer) -> None:
    ask_both(chat, "Who are you?")
    pair = chat.page.locator(".pair .markdown")
    expect(pair).to_have_text(["stand-in at its own", "second at 0.5"])
    expect(chat.page.locator(".pair .figures").first).to_contain_text("123 tokens/s · prompt 20 (8 cached)")
    expect(chat.button("Send")).to_be_disabled()
    expect(chat.field).to_have_attribute("placeholder", "Choose one of the answers to go on")
    chat.page.reload()
    expect(pair).to_have_text(["stand-in at its own", "second at 0.5"])
    chat.button("Go on with this answer").last.click()
    expect(chat.answers.locator(".markdown")).to_have_text(["second at 0.5"])
    expect(chat.answer).to_contain_text("2/2")
    chat.button("Stop comparing").click()
    chat.ask("And now?")
    assert [each["content"] for each in stand_in.requests[-1]["messages"]] == [
        "Who are you?",
        "second at 0.5",
        "And now?",
    ]
    expect(chat.page.locator(".pair")).to_have_count(0)


def test_both_are_tried_again_where_both_fail(chat: ChatPage, stand_in: ScriptedServer) -> None:
    for _ in range(2):
        stand_in.refuse(429, "overloaded", "32 requests are waiting")
    chat.field.fill("Go")
    chat.field.press("Enter")
    expect(chat.failure).to_contain_text("too many requests")
    expect(chat.page.locator("article[aria-busy=true]")).to_have_count(0)  # both have
    chat.button("Try again").click()
    expect(chat.page.locator(".pair .markdown")).to_have_text(["stand-in at its own", "second at 0.5"])
    expect(chat.failure).to_have_count(0)


def call(body: dict[str, Any]) -> Iterator[Delta]:
    if body["messages"][-1]["role"] == "tool":
        yield {"content": "It is warm."}
        yield {"finish_reason": "stop"}
        return
    for index, city in enumerate(["Rome", "Oslo"]):
        function = {"name": "weather", "arguments": json.dumps({"city": city})}
        yield {"tool_calls": [{"index": index, "id": f"c{index}", "function": function}]}
    yield {"finish_reason": "tool_calls"}


def test_functions_are_sent_and_their_results_typed(visit: Visit, stand_in: ScriptedServer) -> None:
    stand_in.script = call
    chat = visit(stand_in.url)
    settings = chat.settings()
    tools = settings.get_by_label("Tools")
    tools.fill("[{]")
    expect(settings.get_by_text("This is no JSON:")).to_be_visible()
    tools.fill(json.dumps([WEATHER]))
    tools.press("Tab")
    expect(settings.get_by_text("you type the results")).to_be_visible()
    chat.button("Close").click()
    chat.ask("What is the weather?")
    assert stand_in.requests[-1]["tools"] == [{"type": "function", "function": WEATHER}]
    summaries = chat.page.locator(".call summary")
    expect(summaries).to_have_text(['Called weather {"city": "Rome"}', 'Called weather {"city": "Oslo"}'])
    fields = chat.page.get_by_label("Result of weather")
    fields.nth(0).fill('{"celsius": 30}')
    expect(chat.button("Send results")).to_be_disabled()
    fields.nth(1).fill("cold")
    chat.button("Send results").click()
    expect(chat.answer.locator(".markdown").last).to_have_text("It is warm.")
    assert [(each["role"], each.get("tool_call_id")) for each in stand_in.requests[-1]["messages"]] == [
        ("user", None),
        ("assistant", None),
        ("tool", "c0"),
        ("tool", "c1"),
    ]
    results = chat.page.locator("article.tool summary")
    expect(results).to_have_text(['Result of weather {"celsius": 30}', "Result of weather cold"])
    expect(chat.button("Send results")).to_have_count(0)
