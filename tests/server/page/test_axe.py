"""Every state of the page under axe-core: no serious or critical fault."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from oracles.chat_page import ChatPage, Visit
from oracles.scripted_server import MODEL, ScriptedServer

every = pytest.mark.exhaustive
AXE = Path(__file__).parents[3] / "web" / "node_modules" / "axe-core" / "axe.min.js"
LOOKS: dict[str, dict[str, Any]] = {
    "light": {},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}},
}
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
ANSWER = """# A heading

Some **text** with `code` and a [link](https://example.org), and $x^2$.

| a | b |
| - | - |
| 1 | 2 |

```python
# a comment
def f(x): return "text" + str(1.5)
```

> A quotation
"""


def answered(chat: ChatPage, server: ScriptedServer) -> ChatPage:
    """A chat with a thought, an answer with everything in it, and a call."""
    chat.send("A question")
    server.feed(reasoning_content="A *thought*.")
    server.feed(ANSWER)
    server.feed(
        tool_calls=[{"index": 0, "id": "c", "function": {"name": "weather", "arguments": '{"a": 1}'}}]
    )
    server.end("tool_calls")
    chat.finished()
    expect(chat.answer.locator(".hljs-keyword").first).to_be_attached()
    expect(chat.answer.locator("math")).to_be_attached()
    for details in chat.answer.locator("details").all():
        details.evaluate("element => { element.open = true }")
    return chat


def failed(chat: ChatPage, server: ScriptedServer) -> ChatPage:
    server.refuse(429, "overloaded", "32 requests are waiting")
    chat.send("A question")
    expect(chat.failure).to_be_visible()
    return chat


def key_needed(chat: ChatPage, server: ScriptedServer) -> ChatPage:
    server.refuse(401, "invalid_api_key", "a key is needed")
    chat.send("A question")
    expect(chat.page.get_by_label("API key")).to_be_visible()
    return chat


def thinking(chat: ChatPage, server: ScriptedServer) -> ChatPage:
    chat.send("A question")
    server.feed(reasoning_content="Hm")
    expect(chat.button("Answer now")).to_be_visible()
    return chat


def settings(chat: ChatPage, server: ScriptedServer) -> ChatPage:
    chat.settings()
    return chat


def shortcuts(chat: ChatPage, server: ScriptedServer) -> ChatPage:
    expect(chat.field).to_be_focused()  # from then on the page reacts to keys
    chat.page.evaluate("document.activeElement.blur()")
    chat.page.keyboard.press("?")
    expect(chat.page.get_by_role("dialog")).to_be_visible()
    return chat


def menu(chat: ChatPage, server: ScriptedServer) -> ChatPage:
    answered(chat, server)
    if chat.button("Show conversations").is_visible():
        chat.button("Show conversations").click()
    chat.page.get_by_label("More: A question", exact=True).click()
    return chat


def folders(chat: ChatPage, server: ScriptedServer) -> ChatPage:
    """A folder with a conversation, one that is being named, and the menu that moves into them."""
    answered(chat, server)
    if chat.button("Show conversations").is_visible():
        chat.button("Show conversations").click()
    chat.choose("A question", "Move to folder…")
    chat.button("New folder", chat.page.locator("details.menu[open]")).click()
    chat.page.get_by_role("textbox", name="Rename").fill("Kept")
    chat.page.keyboard.press("Enter")
    expect(chat.page.locator(".folder .count")).to_have_text("1")
    chat.page.get_by_role("searchbox").locator("..").get_by_role("button", name="New folder").click()
    expect(chat.page.get_by_role("textbox", name="Rename")).to_be_visible()
    return chat


def comparing(chat: ChatPage, server: ScriptedServer) -> ChatPage:
    """The panel of the second answer."""
    chat.button("Compare two answers").click()
    expect(chat.page.get_by_role("dialog", name="Compare two answers")).to_be_visible()
    return chat


def compared(chat: ChatPage, server: ScriptedServer) -> ChatPage:
    """Two answers that wait for a choice."""
    server.script = lambda body: iter([{"content": ANSWER}, {"finish_reason": "stop"}])
    comparing(chat, server)
    chat.page.get_by_label("Temperature").fill("0.5")
    chat.button("Done").click()
    chat.field.fill("A question")
    chat.field.press("Enter")
    expect(chat.page.locator(".pair .figures")).to_have_count(2)
    return chat


def results(chat: ChatPage, server: ScriptedServer) -> ChatPage:
    """A result that was typed, unfolded, and a field for the next."""
    answered(chat, server)
    for count in (1, 2):
        chat.page.get_by_label("Result of weather").fill('{"celsius": 30}')
        chat.button("Send results").click()
        server.feed(tool_calls=[{"index": 0, "id": "d", "function": {"name": "weather", "arguments": "{}"}}])
        server.end("tool_calls")
        expect(chat.page.locator("article.tool")).to_have_count(count)
        chat.finished()
    for details in chat.page.locator("details.call").all():
        details.evaluate("element => { element.open = true }")
    return chat


def attached(chat: ChatPage, server: ScriptedServer) -> ChatPage:
    """Files that wait to be sent, one of which the model cannot see, and some that were sent."""
    server.models = [{**MODEL, "capabilities": {"vision": True, "reasoning": True}}]
    chat.page.reload()
    files = [("picture.png", "image/png", PIXEL), ("notes.txt", "text/plain", b"notes")]
    given = [{"name": name, "mimeType": kind, "buffer": data} for name, kind, data in files]
    chat.page.get_by_label("Attach files").set_input_files(given)
    expect(chat.page.locator(".attached li")).to_have_count(2)
    answered(chat, server)
    chat.page.get_by_label("Attach files").set_input_files(given)
    expect(chat.page.locator(".attached li")).to_have_count(2)
    for details in chat.page.locator("details.file").all():
        details.evaluate("element => { element.open = true }")
    return chat


def blind(chat: ChatPage, server: ScriptedServer) -> ChatPage:
    """A picture for a model that cannot see."""
    given = {"name": "picture.png", "mimeType": "image/png", "buffer": PIXEL}
    expect(chat.page.get_by_role("combobox", name="Model")).not_to_have_value("")
    chat.page.get_by_label("Attach files").set_input_files(given)
    expect(chat.page.locator(".refusal")).to_be_visible()
    return chat


def edited(chat: ChatPage, server: ScriptedServer) -> ChatPage:
    answered(chat, server)
    chat.button("Edit", chat.questions).click()
    return chat


def empty(chat: ChatPage, server: ScriptedServer) -> ChatPage:
    expect(chat.page.get_by_role("heading", level=1)).to_be_visible()
    return chat


def faults(page: Page) -> list[str]:
    """What axe finds that is serious or critical."""
    page.evaluate(AXE.read_text() + ";0")
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{each['impact']} {each['id']}: {each['help']}: {node['html'][:200]} {node['failureSummary'][:300]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


STATES = [empty, answered, failed, key_needed, thinking, settings, shortcuts, menu, edited]
STATES += [folders, comparing, compared, results, attached, blind]
SAMPLE = [
    *((state, "light") for state in (thinking, settings, compared, results)),
    (answered, "dark"),
    (folders, "phone"),
]
ALL = [(state, look) for state in STATES for look in LOOKS]
CASES = [
    pytest.param(*case, id="-".join((case[0].__name__, case[1])), marks=[] if case in SAMPLE else [every])
    for case in ALL
]


@pytest.mark.skipif(not AXE.is_file(), reason="needs web/node_modules: make test-web installs it")
@pytest.mark.parametrize(("state", "look"), CASES)
def test_axe_finds_no_serious_fault(visit: Visit, stand_in: ScriptedServer, state: Any, look: str) -> None:
    chat = state(visit(stand_in.url, **LOOKS[look]), stand_in)
    assert faults(chat.page) == []
