"""The page for everyone: themes, phones, keyboards, screen readers, right-to-left text, reduced motion."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from oracles.chat_page import ChatPage, Visit
from oracles.scripted_server import ScriptedServer

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
DARK = "rgb(24, 26, 22)"
LIGHT = "rgb(255, 255, 255)"


def has_ground(page: Page, colour: str) -> None:
    expect(page.locator("body")).to_have_css("background-color", colour)


@pytest.mark.parametrize(("scheme", "colour"), [("light", LIGHT), ("dark", DARK)])
def test_the_theme_follows_the_system_until_one_is_chosen(
    visit: Visit, url: str, scheme: str, colour: str
) -> None:
    chat = visit(url, color_scheme=scheme)
    has_ground(chat.page, colour)
    other = "dark" if scheme == "light" else "light"
    for choice, expected in ((other, DARK if other == "dark" else LIGHT), ("system", colour)):
        chat.settings().get_by_label("Theme").select_option(choice)
        has_ground(chat.page, expected)
        chat.page.reload()
        expect(chat.field).to_be_visible()
        has_ground(chat.page, expected)


def test_a_phone_shows_one_thing_at_a_time_and_never_scrolls_sideways(visit: Visit, url: str) -> None:
    chat = visit(url, **PHONE)
    expect(chat.page.locator(".sidebar")).to_have_count(0)
    chat.force(f"| {'wide | ' * 20}\n| {'- | ' * 20}\n\n```\n{'x' * 300}\n```\n\n{'y' * 300}")
    chat.ask("z" * 200)
    assert chat.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    chat.button("Show conversations").click()
    chat.button("New chat").click()
    expect(chat.page.locator(".sidebar")).to_have_count(0)
    expect(chat.page.get_by_role("heading", level=1)).to_be_visible()


def test_everything_by_keyboard(chat: ChatPage) -> None:
    page = chat.page
    keys = page.keyboard
    expect(chat.field).to_be_focused()
    expect(page.get_by_role("combobox", name="Model")).to_have_value("olivine-mini")
    chat.force("The answer.")
    keys.type("One")
    keys.press("Shift+Enter")
    keys.type("Two")
    keys.press("Enter")
    expect(chat.questions.locator(".typed")).to_have_text("One\nTwo")
    expect(chat.answer).to_contain_text("The answer.")
    chat.finished()
    keys.press("Alt+c")
    expect(chat.notice).to_contain_text("Copied")
    keys.press("Alt+b")
    expect(page.get_by_role("dialog", name="Compare two answers")).to_be_visible()
    chat.button("Stop comparing", page.get_by_role("dialog")).press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    keys.press("Alt+e")
    expect(page.get_by_role("textbox", name="Edit")).to_be_focused()
    keys.press("Control+a")
    keys.type("Edited")
    keys.press("Enter")
    expect(chat.questions.locator(".typed")).to_have_text("Edited")
    expect(chat.answer).to_contain_text("The answer.")
    chat.finished()
    keys.press("Alt+r")
    expect(chat.answer.locator(".branches")).to_contain_text("2/2")
    chat.finished()
    keys.press("Alt+s")
    expect(page.get_by_role("dialog", name="Settings")).to_be_visible()
    keys.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.locator("body").focus()
    page.evaluate("document.activeElement.blur()")
    keys.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    keys.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    keys.press("/")
    expect(chat.field).to_be_focused()
    keys.press("Alt+k")
    expect(page.get_by_role("searchbox")).to_be_focused()
    keys.press("Alt+n")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(chat.field).to_be_focused()


def test_the_focus_goes_through_the_page_and_shows(chat: ChatPage) -> None:
    """Every control is reached by Tab, in the order in which they stand, and has a name."""
    chat.force("Yes.")
    chat.ask("Hello")
    names: list[str] = []
    for _ in range(60):
        chat.page.keyboard.press("Tab")
        name = chat.page.evaluate(
            "(e => e === document.body ? '' : e.ariaLabel || e.labels?.[0]?.innerText || e.innerText || e.id)"
            "(document.activeElement)"
        )
        if names and name == names[0]:
            break
        if name:  # there is none between the last control and the first
            assert chat.page.evaluate("document.activeElement.matches(':focus-visible')")
            names.append(name.strip())
    for wanted in ("New chat", "Search conversations", "Model", "Settings", "Copy", "Regenerate", "Message"):
        assert any(name.startswith(wanted) for name in names), wanted


def test_a_screen_reader_hears_that_an_answer_begins_and_what_it_is(
    visit: Visit, stand_in: ScriptedServer
) -> None:
    chat = visit(stand_in.url)
    heard = chat.page.locator("[aria-live=polite]")
    chat.send("Go")
    stand_in.feed("Half of")
    expect(heard).to_have_text("The answer is being written.")
    expect(chat.answer).to_have_attribute("aria-busy", "true")
    stand_in.feed(" it.")
    stand_in.end()
    expect(heard).to_have_text("The answer is complete. Half of it.")
    expect(chat.answer).to_have_attribute("aria-busy", "false")


def test_right_to_left_text_stands_on_the_right(visit: Visit, stand_in: ScriptedServer) -> None:
    chat = visit(stand_in.url)
    chat.send("שלום עולם")
    stand_in.feed("שלום.\n\nAnd English.\n\n```\nlet x\n```")
    stand_in.end()
    chat.finished()
    paragraphs = chat.answer.locator(".markdown p")
    assert [each.evaluate("e => getComputedStyle(e).direction") for each in paragraphs.all()] == [
        "rtl",
        "ltr",
    ]
    expect(chat.answer.locator("figure")).to_have_css("direction", "ltr")
    expect(chat.questions.locator(".typed")).to_have_css("direction", "rtl")


@pytest.mark.parametrize(("motion", "animation"), [("reduce", "none"), ("no-preference", "wait")])
def test_nothing_moves_for_those_who_ask_for_it(
    visit: Visit, stand_in: ScriptedServer, motion: str, animation: str
) -> None:
    chat = visit(stand_in.url, reduced_motion=motion)
    chat.send("Go")
    expect(chat.answer.locator(".dots i").first).to_have_css("animation-name", animation)
    stand_in.end()
