"""Folders of conversations in the browser, by mouse and by keyboard."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from oracles.chat_page import ChatPage, Visit
from oracles.scripted_server import ScriptedServer


@pytest.fixture
def chat(visit: Visit, stand_in: ScriptedServer, tmp_path: Path) -> ChatPage:
    """Two conversations, without a folder."""
    lines = []
    for at, title in enumerate(["Owls", "Foxes"]):
        message = {"id": "q", "parent": None, "role": "user", "text": title, "created": at}
        header = {"title": title, "leaf": "q", "created": at, "updated": at}
        lines.append(json.dumps({"conversation": header, "messages": [message]}))
    (tmp_path / "two.jsonl").write_text("\n".join(lines))
    chat = visit(stand_in.url)
    chat.page.get_by_label("Import").set_input_files(tmp_path / "two.jsonl")
    expect(chat.page.locator(".entry")).to_have_count(2)
    return chat


def type_name(chat: ChatPage, name: str) -> None:
    expect(chat.page.get_by_role("textbox", name="Rename")).to_be_focused()
    chat.page.keyboard.type(name)
    chat.page.keyboard.press("Enter")


def make(chat: ChatPage, name: str) -> Locator:
    chat.button("New folder").click()
    type_name(chat, name)
    folder = chat.page.locator(".folder", has_text=name)
    expect(folder.locator(".heading")).to_be_visible()
    return folder


def has_entries(within: Locator, *titles: str) -> None:
    expect(within.locator(".entry .title")).to_have_text(list(titles))


def test_a_conversation_is_dragged_into_a_folder_and_out(chat: ChatPage) -> None:
    folder = make(chat, "Tales")
    chat.page.locator(".entry", has_text="Owls").drag_to(folder)
    expect(folder.locator(".entry .title")).to_have_text(["Owls"])
    chat.page.reload()
    expect(folder.locator(".entry .title")).to_have_text(["Owls"])
    target = {"x": 60.0, "y": 300.0}
    chat.page.locator(".entry", has_text="Owls").drag_to(chat.page.locator(".list"), target_position=target)
    expect(folder.locator(".entry")).to_have_count(0)
    expect(chat.page.locator(".list > .entry")).to_have_count(2)


def test_a_conversation_is_moved_by_keyboard_and_keeps_the_focus(chat: ChatPage) -> None:
    folder = make(chat, "Tales")
    chat.page.get_by_label("More: Foxes", exact=True).focus()
    for key in ("Enter", "ArrowDown", "ArrowDown", "ArrowDown", "Enter"):
        chat.page.keyboard.press(key)
    expect(chat.button("Tales")).to_be_focused()
    chat.page.keyboard.press("Enter")
    expect(folder.locator(".entry .title")).to_have_text(["Foxes"])
    expect(folder.locator(".entry .title")).to_be_focused()
    chat.page.get_by_label("More: Foxes", exact=True).focus()
    chat.page.keyboard.press("Enter")
    chat.page.keyboard.press("Escape")
    expect(chat.page.locator("details.menu[open]")).to_have_count(0)
    expect(chat.page.get_by_label("More: Foxes", exact=True)).to_be_focused()


def test_a_folder_is_renamed_closed_and_deleted_and_its_conversations_stay(chat: ChatPage) -> None:
    folder = make(chat, "Tales")
    chat.page.locator(".entry", has_text="Owls").drag_to(folder)
    expect(folder.locator(".entry")).to_have_count(1)
    chat.choose("Tales", "Rename")
    type_name(chat, "Stories")
    heading = chat.page.locator(".heading .title")
    expect(heading).to_have_text("Stories 1")
    heading.click()
    expect(chat.page.locator(".folder .entry")).to_have_count(0)
    chat.page.reload()
    expect(heading).to_have_attribute("aria-expanded", "false")
    chat.choose("Stories", "Delete folder")
    expect(chat.notice).to_contain_text("its conversations are kept")
    has_entries(chat.page.locator(".list"), "Foxes", "Owls")
    chat.button("Undo").click()
    expect(heading).to_have_text("Stories 1")


def test_folders_are_in_files(chat: ChatPage) -> None:
    folder = make(chat, "Tales")
    chat.page.locator(".entry", has_text="Owls").drag_to(folder)
    expect(folder.locator(".entry")).to_have_count(1)
    with chat.page.expect_download() as download:
        chat.button("Export all").click()
    chat.choose("Tales", "Delete folder")
    expect(folder).to_have_count(0)
    chat.page.get_by_label("Import").set_input_files(download.value.path())
    expect(chat.notice).to_contain_text("2 conversations were imported")
    has_entries(folder, "Owls")
    expect(chat.page.locator(".list .entry")).to_have_count(4)
