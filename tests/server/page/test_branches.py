"""Stop, continue, regenerate, edit and branches in the browser, and an answer that outlasts a reload."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import expect

from olivine.llm import LLM
from oracles.chat_page import ChatPage
from oracles.gate import Gate
from oracles.waiting import eventually

QUESTION = "Tell me a story"
GREEDY = {"temperature": 0, "ignore_eos": True, "max_tokens": 60}


def text(chat: ChatPage) -> str:
    return " ".join(chat.answer.locator(".markdown").inner_text().split())


def test_an_answer_is_stopped_and_continued(chat: ChatPage, mini: LLM, gate: Gate) -> None:
    chat.force(**GREEDY)
    gate.close(after=3)
    chat.send("Tell me a story")
    expect(chat.answer.locator(".markdown")).not_to_be_empty()
    chat.button("Stop").click()
    expect(chat.answer).to_contain_text("Stopped.")
    gate.open()
    chat.finished()
    eventually(lambda: mini.stats().running == 0)
    before = text(chat)
    chat.button("Continue").click()
    expect(chat.answer).not_to_contain_text("Stopped.")
    chat.finished()
    assert text(chat).startswith(before) and len(text(chat)) > len(before)
    expect(chat.answers).to_have_count(1)


def test_a_cut_answer_is_continued(chat: ChatPage) -> None:
    chat.force(max_tokens=6, ignore_eos=True)
    chat.ask("Tell me a story")
    expect(chat.answer).to_contain_text("The answer was cut at the limit of tokens.")
    before = text(chat)
    chat.force(max_tokens=12, ignore_eos=True)
    chat.button("Continue").click()
    expect(chat.answer.locator(".figures")).to_contain_text("12 tokens")
    chat.finished()
    assert text(chat).startswith(before) and len(text(chat)) > len(before)


def test_answers_beside_each_other(chat: ChatPage) -> None:
    for at, words in enumerate(("The first.", "The second.", "The third.")):
        chat.force(words)
        if at:
            chat.button("Regenerate").click()
        else:
            chat.send("Say something")
        expect(chat.answer.locator(".markdown")).to_have_text(words)
        chat.finished()
    expect(chat.answer.locator(".branches")).to_contain_text("3/3")
    chat.button("Previous branch").click()
    expect(chat.answer.locator(".markdown")).to_have_text("The second.")
    chat.page.reload()
    expect(chat.answer.locator(".markdown")).to_have_text("The second.")
    chat.button("Next branch").click()
    expect(chat.answer.locator(".markdown")).to_have_text("The third.")
    expect(chat.button("Next branch")).to_be_disabled()


def test_any_message_is_edited_and_nothing_is_lost(chat: ChatPage) -> None:
    chat.force("To the first.")
    chat.ask("One")
    chat.force("To the second.")
    chat.ask("Two")
    chat.button("Edit", chat.questions.first).click()
    chat.page.get_by_role("textbox", name="Edit").fill("Another one")
    chat.force("To another.")
    chat.button("Save and send").click()
    expect(chat.answers.locator(".markdown")).to_have_text(["To another."])
    chat.finished()
    chat.button("Previous branch", chat.questions.first).click()
    expect(chat.answers.locator(".markdown")).to_have_text(["To the first.", "To the second."])
    chat.button("Edit", chat.answers.first).click()
    chat.page.get_by_role("textbox", name="Edit").fill("Corrected.")
    chat.button("Save").click()
    expect(chat.answers.locator(".markdown")).to_have_text(["Corrected."])
    expect(chat.answer.locator(".branches")).to_contain_text("2/2")


def test_an_edit_is_called_off(chat: ChatPage) -> None:
    chat.force("Yes.")
    chat.ask("One")
    chat.button("Edit", chat.questions.first).click()
    chat.page.get_by_role("textbox", name="Edit").fill("Another")
    chat.page.keyboard.press("Escape")
    expect(chat.questions.locator(".typed")).to_have_text("One")


@pytest.fixture(scope="module")
def story(url: str) -> str:
    """The answer to QUESTION with the options GREEDY, as it reads in the page."""
    body = {"messages": [{"role": "user", "content": QUESTION}], **GREEDY}
    found = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300).json()
    return " ".join(found["choices"][0]["message"]["content"].split())


def test_a_reload_takes_an_answer_up_again(chat: ChatPage, gate: Gate, story: str) -> None:
    chat.force(**GREEDY)
    gate.close(after=4)
    chat.send(QUESTION)
    expect(chat.answer.locator(".markdown")).not_to_be_empty()
    chat.page.reload()
    expect(chat.answer.locator(".markdown")).not_to_be_empty()
    expect(chat.button("Stop")).to_be_visible()
    gate.open()
    chat.finished()
    assert text(chat) == story
    chat.page.reload()
    expect(chat.answer.locator(".markdown")).to_have_text(story)


def test_another_tab_shows_the_answer_that_this_one_receives(chat: ChatPage, gate: Gate, story: str) -> None:
    chat.force(**GREEDY)
    gate.close(after=4)
    chat.send(QUESTION)
    expect(chat.answer.locator(".markdown")).not_to_be_empty()
    other = ChatPage(chat.page.context.new_page())
    other.page.goto(chat.page.url)
    expect(other.questions.locator(".typed")).to_have_text(QUESTION)
    gate.open()
    for tab in (chat, other):
        expect(tab.answer.locator(".markdown")).to_have_text(story)
        tab.finished()
