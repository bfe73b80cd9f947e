"""Another conversation is opened while a message is on its way; settings before there is one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from oracles.chat_page import ChatPage, Visit
from oracles.scripted_server import MODEL, Delta, ScriptedServer


def echo(body: dict[str, Any]) -> Iterator[Delta]:
    yield {"content": f"{body['model']}: {body['messages'][-1]['content']}"}
    yield {"finish_reason": "stop"}


@pytest.fixture
def chat(visit: Visit, stand_in: ScriptedServer, tmp_path: Path) -> ChatPage:
    """Two conversations, "First" of which is with another model, and a new chat that is shown."""
    stand_in.models = [dict(MODEL), {**MODEL, "id": "second"}]
    stand_in.script = echo
    path = tmp_path / "two.jsonl"
    lines = []
    for at, (title, model) in enumerate([("First", "second"), ("Second", "stand-in")], 1):
        messages = [
            {"id": "q", "parent": None, "role": "user", "text": title, "created": at},
            {"id": "a", "parent": "q", "role": "assistant", "text": "Yes.", "created": at, "finish": "stop"},
        ]
        header = {"title": title, "leaf": "a", "created": at, "updated": at, "model": model}
        lines.append(json.dumps({"conversation": header, "messages": messages}))
    path.write_text("\n".join(lines))
    chat = visit(stand_in.url)
    chat.page.get_by_label("Import").set_input_files(path)
    expect(chat.button("First")).to_be_visible()
    expect(chat.page.get_by_role("combobox", name="Model")).to_have_value("stand-in")
    return chat


def send_and_open(chat: ChatPage, text: str, other: str) -> None:
    """Both in one task of the browser, so that nothing of the message is stored yet."""
    chat.field.fill(text)
    expect(chat.button("Send")).to_be_enabled()
    chat.page.evaluate(
        """title => {
          document.querySelector('form.composer').requestSubmit();
          const titles = [...document.querySelectorAll('.sidebar button.title')];
          titles.find(each => each.textContent === title).click();
        }""",
        other,
    )


def shows(chat: ChatPage, questions: list[str], answers: list[str]) -> None:
    expect(chat.questions.locator(".typed")).to_have_text(questions)
    expect(chat.answers.locator(".markdown")).to_have_text(answers)


def test_an_answer_comes_into_the_conversation_that_it_was_asked_in(
    chat: ChatPage, stand_in: ScriptedServer
) -> None:
    chat.button("Second").click()
    shows(chat, ["Second"], ["Yes."])
    send_and_open(chat, "More?", "First")
    shows(chat, ["First"], ["Yes."])
    chat.button("Second").click()
    shows(chat, ["Second", "More?"], ["Yes.", "stand-in: More?"])
    chat.page.reload()
    shows(chat, ["Second", "More?"], ["Yes.", "stand-in: More?"])
    chat.button("First").click()
    shows(chat, ["First"], ["Yes."])
    (request,) = stand_in.requests
    assert request["model"] == "stand-in"
    assert [each["content"] for each in request["messages"]] == ["Second", "Yes.", "More?"]


def test_a_first_message_makes_its_own_conversation(chat: ChatPage, stand_in: ScriptedServer) -> None:
    send_and_open(chat, "Hello?", "First")
    shows(chat, ["First"], ["Yes."])
    chat.button("Hello?").click()
    shows(chat, ["Hello?"], ["stand-in: Hello?"])
    chat.lists("Hello?", "Second", "First")
    chat.page.reload()
    shows(chat, ["Hello?"], ["stand-in: Hello?"])
    assert stand_in.requests[0]["model"] == "stand-in"


def test_one_may_come_back_while_the_answer_grows(chat: ChatPage, stand_in: ScriptedServer) -> None:
    stand_in.script = None
    chat.button("Second").click()
    shows(chat, ["Second"], ["Yes."])
    send_and_open(chat, "More?", "First")
    stand_in.feed("One, ")
    chat.button("Second").click()
    shows(chat, ["Second", "More?"], ["Yes.", "One,"])
    chat.button("First").click()
    shows(chat, ["First"], ["Yes."])
    stand_in.feed("two.")
    stand_in.end()
    chat.button("Second").click()
    shows(chat, ["Second", "More?"], ["Yes.", "One, two."])
    chat.finished()


def test_settings_of_an_empty_page_make_no_conversation(
    visit: Visit, stand_in: ScriptedServer, tmp_path: Path
) -> None:
    stand_in.script = echo
    chat = visit(stand_in.url)
    chat.field.fill("half typed")
    note = tmp_path / "note.txt"
    note.write_text("a note")
    chat.page.get_by_label("Attach files").set_input_files(note)
    chat.button("Compare two answers").click()
    chat.button("Stop comparing", chat.page.get_by_role("dialog")).click()
    chat.settings().get_by_label("Temperature").fill("0.5")
    chat.button("Close").click()
    expect(chat.page.get_by_text("Your conversations are kept in this browser.")).to_be_visible()
    chat.lists()
    expect(chat.field).to_have_value("half typed")
    expect(chat.page.get_by_label("Attached files")).to_contain_text("note.txt")
    chat.field.press("Enter")
    expect(chat.page.locator(".figures")).to_have_count(1)
    assert stand_in.requests[0]["temperature"] == 0.5
    (sent,) = stand_in.requests[0]["messages"]
    assert sent["content"] == '<file name="note.txt">\na note\n</file>\n\nhalf typed'
    chat.lists("half typed")
    chat.page.reload()
    expect(chat.settings().get_by_label("Temperature")).to_have_value("0.5")
    chat.button("Close").click()
    chat.button("New chat").click()
    expect(chat.page.get_by_role("heading", level=1)).to_be_visible()
    expect(chat.settings().get_by_label("Temperature")).to_have_value("")
