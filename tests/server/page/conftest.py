"""One Chromium for each file of tests of the chat page. Playwright's loop would be in the way of other tests
that run one: both end with a file's last test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from oracles.chat_page import PATIENCE, ChatPage, Visit
from oracles.chromium import CHROMIUM, Faults, chromium
from oracles.scripted_server import ScriptedServer, scripted

# "Copied" and notices show for some seconds only. Here they stay, however slow the machine is, until a test
# calls `timeIsOver`, which gives how many were held.
HOLD = """(() => {
    const later = window.setTimeout, held = [];
    window.setTimeout = (act, delay, ...rest) =>
        delay === 1500 || delay === 10000 ? (held.push(act), 0) : later(act, delay, ...rest);
    window.timeIsOver = () => held.splice(0).map((act) => act()).length;
})()"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with chromium() as browser:
        yield browser


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Opens the page of a server; options are those of a new context. A fault fails the test at its end."""
    contexts, faults = [], []

    def open_page(url: str, path: str = "/", **options: Any) -> ChatPage:
        context = browser.new_context(**{"reduced_motion": "reduce", "accept_downloads": True, **options})
        context.set_default_timeout(PATIENCE)
        context.add_init_script(HOLD)
        contexts.append(context)
        faults.append(Faults(url))
        faults[-1].watch(context)
        page = context.new_page()
        page.goto(url + path)
        return ChatPage(page, faults[-1])

    yield open_page
    for context in contexts:
        context.close()
    assert not [each for fault in faults for each in fault.found]


@pytest.fixture
def chat(visit: Visit, url: str) -> ChatPage:
    """The page of a server on olivine-mini."""
    return visit(url)


@pytest.fixture
def page(chat: ChatPage) -> Page:
    return chat.page


@pytest.fixture
def stand_in() -> Iterator[ScriptedServer]:
    with scripted() as server:
        yield server
