"""Conversations in the browser: found, named, kept, taken away and brought back, and shared by two tabs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from oracles.chat_page import ChatPage, Visit
from oracles.scripted_server import ScriptedServer
from oracles.waiting import eventually


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with two conversations."""
    path = tmp_path_factory.mktemp("export") / "two.jsonl"
    lines = []
    for at, (question, answer) in enumerate(
        [("About foxes", "They have boats."), ("About owls", "They read.")], 1
    ):
        messages = [
            {"id": "q", "parent": None, "role": "user", "text": question, "created": at},
            {"id": "a", "parent": "q", "role": "assistant", "text": answer, "created": at, "finish": "stop"},
        ]
        header = {"title": question, "leaf": "a", "created": at, "updated": at}
        lines.append(json.dumps({"conversation": header, "messages": messages}))
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def two(chat: ChatPage, export: Path) -> ChatPage:
    """Two conversations, the second of which is open."""
    chat.page.get_by_label("Import").set_input_files(export)
    chat.button("About owls").click()
    expect(chat.answer.locator(".markdown")).to_have_text("They read.")
    return chat


def at_end(chat: ChatPage) -> None:
    """The thread is scrolled to its end, and stays there."""
    rest = "t => t.scrollHeight - t.scrollTop - t.clientHeight"
    eventually(lambda: chat.page.locator(".thread").evaluate(rest) < 1)
    expect(chat.button("To the end")).to_have_count(0)


def titles(page: Page) -> object:
    return expect(page.locator(".sidebar button.title"))


def test_conversations_are_there_after_a_reload_and_open(two: ChatPage) -> None:
    two.page.reload()
    titles(two.page).to_have_text(["About owls", "About foxes"])
    expect(two.answer.locator(".markdown")).to_have_text("They read.")
    two.button("About foxes").click()
    expect(two.answer.locator(".markdown")).to_have_text("They have boats.")
    expect(two.button("About foxes")).to_have_attribute("aria-current", "page")
    two.button("New chat").click()
    expect(two.page.get_by_role("heading", level=1)).to_be_visible()


def test_search_reads_titles_and_messages(two: ChatPage) -> None:
    search = two.page.get_by_role("searchbox")
    for text, found in [
        ("OWLS", ["About owls"]),
        ("boats", ["About foxes"]),
        ("about", ["About owls", "About foxes"]),
    ]:
        search.fill(text)
        titles(two.page).to_have_text(found)
    search.fill("badger")
    titles(two.page).to_have_count(0)
    expect(two.page.get_by_text("No conversation has this text.")).to_be_visible()
    search.fill("")
    titles(two.page).to_have_count(2)


def test_a_conversation_is_renamed_and_pinned(two: ChatPage) -> None:
    two.choose("About foxes", "Rename")
    two.page.get_by_role("textbox", name="Rename").fill("Foxes")
    two.page.keyboard.press("Enter")
    titles(two.page).to_have_text(["About owls", "Foxes"])
    two.choose("Foxes", "Pin")
    titles(two.page).to_have_text(["Foxes", "About owls"])
    two.page.reload()
    titles(two.page).to_have_text(["Foxes", "About owls"])
    two.choose("Foxes", "Unpin")
    titles(two.page).to_have_text(["About owls", "Foxes"])


def test_a_name_is_typed_while_an_answer_grows(visit: Visit, stand_in: ScriptedServer) -> None:
    chat = visit(stand_in.url)
    chat.send("Go")
    chat.choose("Go", "Rename")
    name = chat.page.get_by_role("textbox", name="Rename")
    name.fill("A story")
    stand_in.feed("Once upon a time")
    expect(chat.answer.locator(".markdown")).to_have_text("Once upon a time")
    expect(name).to_have_value("A story")
    name.press("Enter")
    titles(chat.page).to_have_text(["A story"])
    stand_in.end()
    chat.finished()


def test_a_deletion_is_undone(two: ChatPage) -> None:
    two.choose("About owls", "Delete")
    titles(two.page).to_have_text(["About foxes"])
    expect(two.answers).to_have_count(0)
    expect(two.notice).to_contain_text("“About owls” was deleted.")
    two.button("Undo").click()
    titles(two.page).to_have_text(["About owls", "About foxes"])
    two.button("About owls").click()
    expect(two.answer.locator(".markdown")).to_have_text("They read.")
    two.choose("About owls", "Delete")
    titles(two.page).to_have_text(["About foxes"])
    two.page.reload()
    titles(two.page).to_have_text(["About foxes"])


def test_a_notice_goes_after_a_while(two: ChatPage) -> None:
    two.choose("About owls", "Delete")
    expect(two.notice).to_contain_text("“About owls” was deleted.")
    two.choose("About foxes", "Delete")
    expect(two.notice).to_contain_text("“About foxes” was deleted.")
    assert two.page.evaluate("timeIsOver()") == 3  # that two were imported was told before
    expect(two.notice).to_have_count(0)


def test_a_menu_that_is_opened_while_a_conversation_is_deleted_stays_open(two: ChatPage) -> None:
    two.page.get_by_label("More: About owls", exact=True).click()
    two.button("Delete", two.page.locator("details.menu[open]")).evaluate(
        """(button) => {
            button.click();
            const other = document.querySelector('[aria-label="More: About foxes"]');
            other.focus();
            other.click();
        }"""
    )
    titles(two.page).to_have_text(["About foxes"])
    expect(two.notice).to_contain_text("was deleted")
    two.button("Delete", two.page.locator("details.menu[open]")).click()
    titles(two.page).to_have_count(0)


def test_everything_is_exported_and_imported_with_all_branches(two: ChatPage, tmp_path: Path) -> None:
    two.force("They sleep.")
    two.button("Regenerate").click()
    expect(two.answer.locator(".markdown")).to_have_text("They sleep.")
    two.finished()
    with two.page.expect_download() as download:
        two.button("Export all").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(len(line["messages"]) for line in lines) == [2, 3]
    for title, left in (("About owls", ["About foxes"]), ("About foxes", [])):
        two.choose(title, "Delete")
        titles(two.page).to_have_text(left)
    two.page.get_by_label("Import").set_input_files(path)
    expect(two.notice).to_contain_text("2 conversations were imported.")
    titles(two.page).to_have_text(["About owls", "About foxes"])
    two.button("About owls").click()
    expect(two.answer.locator(".markdown")).to_have_text("They sleep.")
    two.button("Previous branch").click()
    expect(two.answer.locator(".markdown")).to_have_text("They read.")


def test_one_conversation_is_exported_as_markdown_and_as_jsonl(two: ChatPage) -> None:
    with two.page.expect_download() as download:
        two.choose("About foxes", "Export (Markdown)")
    assert download.value.suggested_filename == "About foxes.md"
    assert Path(download.value.path()).read_text().endswith("## Assistant\n\nThey have boats.\n")
    with two.page.expect_download() as download:
        two.choose("About foxes", "Export (JSONL)")
    (line,) = Path(download.value.path()).read_text().splitlines()
    texts = {message["text"] for message in json.loads(line)["messages"]}
    assert texts == {"About foxes", "They have boats."}


def test_a_file_that_is_no_export_is_refused(chat: ChatPage, tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text("hello\n")
    chat.page.get_by_label("Import").set_input_files(path)
    expect(chat.notice).to_contain_text("This file cannot be imported: line 1 is no JSON.")


def test_two_tabs_lose_nothing(two: ChatPage) -> None:
    other = ChatPage(two.page.context.new_page())
    other.page.goto(two.page.url)
    expect(other.answer.locator(".markdown")).to_have_text("They read.")
    other.force("In the other tab.")
    two.force("In this tab.")
    two.send("More here")
    other.send("More there")
    for tab in (two, other):
        tab.finished()
    two.choose("About foxes", "Rename")
    two.page.get_by_role("textbox", name="Rename").fill("Foxes")
    two.page.keyboard.press("Enter")
    other.choose("Foxes", "Pin")  # once this tab has heard of the name
    for tab in (two, other):
        titles(tab.page).to_have_text(["Foxes", "About owls"])
    with two.page.expect_download() as download:
        two.choose("About owls", "Export (JSONL)")
    (line,) = Path(download.value.path()).read_text().splitlines()
    texts = {message["text"] for message in json.loads(line)["messages"]}
    assert texts == {
        "About owls",
        "They read.",
        "More here",
        "In this tab.",
        "More there",
        "In the other tab.",
    }


def test_what_is_typed_is_kept_for_each_conversation(two: ChatPage) -> None:
    two.field.fill("half a thought")
    two.button("About foxes").click()
    expect(two.field).to_have_value("")
    two.button("About owls").click()
    expect(two.field).to_have_value("half a thought")
    two.page.reload()
    expect(two.field).to_have_value("half a thought")


def test_messages_far_from_what_is_seen_are_set_when_they_come_near(chat: ChatPage, tmp_path: Path) -> None:
    rows = [
        {"id": f"m{at}", "parent": f"m{at - 1}" if at else None, "role": ("user", "assistant")[at % 2]}
        | {"text": f"**part** {at}\n\n" + "more\n\n" * 20, "created": at + 1, "finish": "stop"}
        for at in range(40)
    ]
    header = {"title": "Long", "leaf": "m39", "created": 1, "updated": 2}
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"conversation": header, "messages": rows}))
    chat.page.get_by_label("Import").set_input_files(path)
    chat.button("Long").click()
    expect(chat.answers).to_have_count(20)
    expect(chat.answer.locator("strong")).to_have_text("part")
    expect(chat.answers.first.locator(".as-typed")).to_contain_text("**part** 1")
    chat.page.locator(".thread").evaluate("thread => thread.scrollTo(0, 0)")
    expect(chat.answers.first.locator("strong")).to_have_text("part")
    expect(chat.answers.locator(".as-typed")).not_to_have_count(0)


def test_the_button_to_the_end_moves_nothing(visit: Visit, stand_in: ScriptedServer) -> None:
    chat = visit(stand_in.url)
    stand_in.feed("more\n\n" * 60)
    stand_in.end()
    chat.ask("Go")
    thread = chat.page.locator(".thread")
    at_end(chat)
    thread.evaluate("thread => thread.scrollTo(0, 0)")
    expect(chat.button("To the end")).to_be_visible()
    with_and_without = thread.evaluate(
        """thread => ["", "none"].map((display) => {
            thread.querySelector(".to-end").style.display = display;
            return thread.scrollHeight;
        })"""
    )
    assert with_and_without[0] == with_and_without[1]
    thread.evaluate("thread => { thread.querySelector('.to-end').style.display = '' }")
    chat.button("To the end").click()
    at_end(chat)


def test_the_page_follows_what_grows_without_being_drawn(visit: Visit, stand_in: ScriptedServer) -> None:
    """As images do that load, and code whose colours come late."""
    chat = visit(stand_in.url)
    stand_in.feed("more\n\n" * 60)
    stand_in.end()
    chat.ask("Go")
    at_end(chat)
    chat.answer.locator(".markdown").evaluate("element => { element.style.paddingBottom = '1000px' }")
    at_end(chat)


def test_what_is_unfolded_stays_where_it_is(visit: Visit, stand_in: ScriptedServer) -> None:
    chat = visit(stand_in.url)
    chat.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    function = {"name": "count", "arguments": json.dumps(list(range(200)))}
    stand_in.feed("more\n\n" * 60)
    stand_in.feed(tool_calls=[{"index": 0, "id": "c1", "type": "function", "function": function}])
    stand_in.end("tool_calls")
    chat.ask("Go")
    at_end(chat)
    summary = chat.answer.locator("details.call summary")
    before = summary.bounding_box()
    summary.click()
    chat.page.keyboard.press("Alt+c")
    expect(chat.notice).to_contain_text("Copied")  # the page is drawn
    expect(chat.button("To the end")).to_be_visible()
    assert summary.bounding_box() == before
