"""Debian's Chromium, driven by Playwright: a page whose every fault is noted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, sync_playwright

CHROMIUM = shutil.which("chromium")
# Root has no sandbox. The rest keeps the browser from work and requests of its own.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


@contextmanager
def chromium(*flags: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, *flags], timeout=120_000)
        try:
            yield browser
        finally:
            browser.close()


class Faults:
    """What the chat page must never do: throw, violate its policy, or ask another origin for anything."""

    def __init__(self, url: str) -> None:
        self.origins = {_origin(url)}
        self.found: list[str] = []

    def watch(self, context: BrowserContext) -> None:
        context.on("console", self._console)
        context.on("request", self._request)
        context.on("page", self._page)
        context.on("weberror", lambda error: self.found.append(f"thrown: {error.error}"))

    def _page(self, page: Page) -> None:
        page.on("dialog", lambda dialog: (self.found.append(f"dialog: {dialog.message}"), dialog.dismiss()))

    def _console(self, message: ConsoleMessage) -> None:
        # Responses with an error status are no fault of the page.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.found.append(f"console: {message.text}")

    def _request(self, request: Request) -> None:
        if request.url.split(":")[0] not in ("data", "blob") and _origin(request.url) not in self.origins:
            self.found.append(f"request: {request.url}")


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
