"""The chat page in a browser, as its users handle it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Locator, Page, Route, expect

from oracles.chromium import Faults

PATIENCE = 120_000  # milliseconds: a machine may be busy with other things
expect.set_options(timeout=PATIENCE)


class ChatPage:
    """A tab with the chat page."""

    def __init__(self, page: Page, faults: Faults | None = None) -> None:
        self.page = page
        self.faults = faults or Faults(page.url)
        self.field = page.get_by_role("textbox", name="Message")
        self.answers = page.locator("article.assistant")
        self.questions = page.locator("article.user")
        self.failure = page.get_by_role("alert")
        self.notice = page.locator(".notice")
        self._forced: dict[str, Any] = {}

    @property
    def answer(self) -> Locator:
        return self.answers.last

    def button(self, name: str, within: Locator | None = None) -> Locator:
        return (within or self.page).get_by_role("button", name=name, exact=True)

    def send(self, text: str) -> None:
        """Sends a message once the models are known. The answer has begun."""
        expect(self.page.get_by_role("combobox", name="Model")).not_to_have_value("")
        count = self.answers.count()
        self.field.fill(text)
        self.field.press("Enter")
        expect(self.answers).to_have_count(count + 1)

    def ask(self, text: str) -> Locator:
        """Sends a message and waits for the end of the answer."""
        self.send(text)
        self.finished()
        return self.answer

    def finished(self) -> None:
        expect(self.page.locator("article[aria-busy=true]")).to_have_count(0)
        expect(self.button("Send")).to_be_visible()

    def force(self, text: str | None = None, **fields: Any) -> None:
        """Adds fields to the requests for answers from now on: a grammar that permits this text only."""
        if not self._forced:
            self.page.route("**/v1/chat/completions", self._continue)
        self._forced = {**({"structured_outputs": {"choice": [text]}} if text else {}), "seed": 1, **fields}

    def _continue(self, route: Route) -> None:
        body = {**json.loads(route.request.post_data or "{}"), **self._forced}
        route.continue_(post_data=json.dumps(body))

    def lists(self, *titles: str) -> None:
        """The conversations have these titles."""
        expect(self.page.locator(".sidebar button.title")).to_have_text(list(titles))

    def choose(self, conversation: str, action: str) -> None:
        """An action of the menu of a conversation."""
        self.page.get_by_label(f"More: {conversation}", exact=True).click()
        self.button(action, self.page.locator("details.menu[open]")).click()

    def settings(self) -> Locator:
        self.button("Settings").click()
        return self.page.get_by_role("dialog", name="Settings")


Visit = Callable[..., ChatPage]  # opens the page of a server; options are those of a browser's context
