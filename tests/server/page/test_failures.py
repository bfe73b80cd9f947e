"""What goes wrong, in the browser: a server that is gone or full, and keys."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from olivine.llm import LLM
from olivine.server.models import ServedModel
from olivine.server.settings import Settings
from oracles.chat_page import Visit
from oracles.scripted_server import ScriptedServer
from oracles.serving import serving


def test_a_key_is_asked_for_and_kept(visit: Visit, mini: LLM) -> None:
    with serving([ServedModel("olivine-mini", mini)], Settings(api_keys=("secret",))) as url:
        chat = visit(url)
        expect(chat.failure).to_contain_text("This server needs an API key.")
        chat.page.get_by_label("API key").fill("wrong")
        chat.button("Use this key").click()
        expect(chat.failure).to_contain_text("This server needs an API key.")
        chat.page.get_by_label("API key").fill("secret")
        chat.button("Use this key").click()
        expect(chat.failure).to_have_count(0)
        chat.force("Welcome.")
        chat.ask("Hello")
        chat.page.reload()
        expect(chat.answers).to_have_count(1)  # the conversation is there again
        chat.ask("Hello again")
        expect(chat.failure).to_have_count(0)


def test_a_server_that_is_gone_is_tried_again_and_nothing_typed_is_lost(visit: Visit, url: str) -> None:
    chat = visit(url)
    chat.force("Here again.")
    chat.ask("Are you there?")
    chat.page.context.set_offline(True)
    chat.send("And now?")
    expect(chat.failure).to_contain_text("The server cannot be reached. What you wrote is kept")
    expect(chat.questions.locator(".typed")).to_have_text(["Are you there?", "And now?"])
    chat.field.fill("half typed")
    chat.page.context.set_offline(False)
    expect(chat.failure).to_have_count(0)  # by itself
    expect(chat.answers.locator(".markdown")).to_have_text(["Here again.", "Here again."])
    expect(chat.field).to_have_value("half typed")


def test_a_page_that_opens_before_its_server_connects_later(visit: Visit, url: str) -> None:
    chat = visit(url)
    chat.page.route("**/v1/models", lambda route: route.abort())
    chat.page.reload()
    expect(chat.failure).to_contain_text("The server cannot be reached.")
    chat.page.unroute("**/v1/models")
    # The page tries it by itself too: if it has just done so, there is no button any more.
    chat.page.evaluate("document.querySelector('[role=alert] button')?.click()")
    expect(chat.failure).to_have_count(0)
    expect(chat.page.get_by_role("combobox", name="Model")).to_have_value("olivine-mini")


def test_a_broken_answer_can_be_continued(visit: Visit, stand_in: ScriptedServer) -> None:
    chat = visit(stand_in.url)
    chat.send("Go")
    stand_in.feed("The first half")
    expect(chat.answer).to_contain_text("The first half")
    stand_in.cut()
    expect(chat.failure).to_contain_text("The server cannot be reached.")
    expect(chat.answer).to_contain_text("The answer is not complete.")
    stand_in.feed(" and the second.")
    stand_in.end()
    chat.button("Continue").click()
    expect(chat.answer.locator(".markdown")).to_have_text("The first half and the second.")
    assert stand_in.requests[-1]["messages"][-1] == {"role": "assistant", "content": "The first half"}


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (429, "overloaded", "The server has too many requests."),
        (503, "shutting_down", "The server is stopping."),
        (503, "model_not_loaded", "The model could not be loaded."),
        (404, "model_not_found", "This model is no longer on the server"),
        (500, "strange", "the server's own words"),
    ],
)
def test_a_refusal_is_told_and_tried_again(
    visit: Visit, stand_in: ScriptedServer, status: int, code: str, words: str
) -> None:
    chat = visit(stand_in.url)
    stand_in.refuse(status, code, "the server's own words")
    chat.send("Go")
    expect(chat.failure).to_contain_text(words)
    expect(chat.failure).to_contain_text("the server's own words")
    stand_in.feed("Now it works.")
    stand_in.end()
    chat.button("Try again").click()
    expect(chat.answer.locator(".markdown")).to_have_text("Now it works.")
    expect(chat.failure).to_have_count(0)
    expect(chat.questions).to_have_count(1)


def test_one_may_try_again_at_once(visit: Visit, stand_in: ScriptedServer) -> None:
    """The page clicks as soon as there is a button: by then the failed answer is no run any more."""
    chat = visit(stand_in.url)
    chat.page.evaluate(
        """() => new MutationObserver((_, observer) => {
            const button = document.querySelector("[role=alert] button");
            if (button) { observer.disconnect(); button.click(); }
        }).observe(document.body, { childList: true, subtree: true })"""
    )
    stand_in.refuse(429, "overloaded", "32 requests are waiting")
    stand_in.feed("Now it works.")
    stand_in.end()
    chat.send("Go")
    expect(chat.answer.locator(".markdown")).to_have_text("Now it works.")
    expect(chat.failure).to_have_count(0)
