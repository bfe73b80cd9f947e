"""The chat page in pictures: what it looks like in light, dark and on a phone, in every state.

    python tools/chat_page_images.py FOLDER     all of them, to look at
    python tools/chat_page_images.py --docs     those of docs/images

A stand-in for the server answers, so that the pictures are the same each time. Needs playwright (pip) and
chromium (apt).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from playwright.sync_api import Browser, Page, expect

from oracles.chat_page import ChatPage
from oracles.chromium import chromium
from oracles.scripted_server import MODEL, Delta, ScriptedServer, scripted

ROOT = Path(__file__).resolve().parents[1]
QUESTION = "How does a binary search work, and how many steps does it take?"
THOUGHT = "The user wants the idea, the code and the cost. An invariant makes it easy to see why it ends."
ANSWER = """A binary search finds a value in a **sorted** list. It looks at the middle, and throws away \
the half in which the value cannot be:

```python
def search(values: list[int], wanted: int) -> int | None:
    low, high = 0, len(values)
    while low < high:  # wanted is in values[low:high], if at all
        middle = (low + high) // 2
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low if low < len(values) and values[low] == wanted else None
```

Each step halves what is left, so after $k$ steps there are $n / 2^k$ values. One is left when

$$
\\frac{n}{2^k} = 1 \\quad\\Longleftrightarrow\\quad k = \\log_2 n
$$

| values | linear search | binary search |
| --: | --: | --: |
| 1,000 | 1,000 | 10 |
| 1,000,000 | 1,000,000 | 20 |
| 1,000,000,000 | 1,000,000,000 | 30 |

> The list has to be sorted. Where it changes often, a balanced tree does the same without sorting it again.
"""
SHORT = """**Twenty**: each comparison halves what is left, and $2^{20}$ is a little more than a million.

```python
>>> import math
>>> math.ceil(math.log2(1_000_000))
20
```

A linear search would need half a million on average.
"""
OTHER = """Twenty at most. A list of $n$ values needs

$$
\\lceil \\log_2 n \\rceil
$$

comparisons, and $\\log_2 10^6 \\approx 19.93$.

| values | steps |
| --: | --: |
| 1,000 | 10 |
| 1,000,000 | 20 |
"""
TITLES = [
    "Letters to the landlord",
    "A cake without eggs",
    "Rust lifetimes",
    "Names for a sailing boat",
    "Trip to Lisbon",
]
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1200, "height": 800}},
    "dark": {"viewport": {"width": 1200, "height": 800}, "color_scheme": "dark"},
    "phone": {
        "viewport": {"width": 390, "height": 844},
        "device_scale_factor": 1.5,
        "has_touch": True,
        "is_mobile": True,
    },
}
BEST = [("answer", "light"), ("compare", "dark"), ("end", "phone")]


def pieces(
    *texts: str, thought: str = "", reason: str = "stop", **more: Any
) -> Callable[[Any], Iterator[Delta]]:
    def script(body: dict[str, Any]) -> Iterator[Delta]:
        if thought:
            yield {"reasoning_content": thought}
            time.sleep(1.4)
        for text in texts:
            yield from ({"content": text[at : at + 4]} for at in range(0, len(text), 4))
        if more:
            yield dict(more)
        yield {"finish_reason": reason}

    return script


def with_history(chat: ChatPage) -> None:
    """Some conversations in the list."""
    lines = []
    for at, title in enumerate(TITLES, 1):
        messages = [{"id": "q", "parent": None, "role": "user", "text": title, "created": at}]
        header = {
            "title": title,
            "leaf": "q",
            "created": at,
            "updated": at,
            "pinned": title == "Rust lifetimes",
        }
        line: dict[str, Any] = {"conversation": header, "messages": messages}
        if at in (1, 4):
            line["folder"] = "Household"
        lines.append(json.dumps(line))
    data = {"name": "history.jsonl", "mimeType": "application/jsonl", "buffer": "\n".join(lines).encode()}
    narrow = chat.button("Show conversations").is_visible()
    if narrow:
        chat.button("Show conversations").click()
    chat.page.get_by_label("Import").set_input_files(data)  # type: ignore[arg-type]
    expect(chat.notice).to_contain_text("imported")
    chat.button("Dismiss").click()
    if narrow:
        chat.button("Hide conversations").first.click()


def empty(chat: ChatPage, server: ScriptedServer) -> None:
    expect(chat.page.get_by_role("heading", level=1)).to_be_visible()


def answer(chat: ChatPage, server: ScriptedServer) -> None:
    server.script = pieces(ANSWER, thought=THOUGHT)
    chat.ask(QUESTION)
    expect(chat.answer.locator(".hljs-keyword").first).to_be_attached()
    expect(chat.answer.locator("math").first).to_be_attached()
    chat.page.locator(".thread").evaluate("thread => thread.scrollTo(0, 0)")


def end(chat: ChatPage, server: ScriptedServer) -> None:
    answer(chat, server)
    chat.page.locator(".thread").evaluate("thread => thread.scrollTo(0, 1e6)")


def listed(chat: ChatPage, server: ScriptedServer) -> None:
    answer(chat, server)
    if chat.button("Show conversations").is_visible():
        chat.button("Show conversations").click()
    chat.page.get_by_label("More: Trip to Lisbon", exact=True).click()


def thinking(chat: ChatPage, server: ScriptedServer) -> None:
    server.script = None
    chat.send(QUESTION)
    server.feed(reasoning_content=THOUGHT)
    expect(chat.button("Answer now")).to_be_visible()
    chat.answer.locator("details.thinking").evaluate("element => { element.open = true }")


def call(chat: ChatPage, server: ScriptedServer) -> None:
    function = {"name": "get_weather", "arguments": '{"city": "Lisbon", "days": 3}'}
    asked = pieces(reason="tool_calls", tool_calls=[{"index": 0, "id": "c", "function": function}])
    told = pieces("It will be **sunny** in Lisbon, with 24 °C on all three days. Take a hat.")
    server.script = lambda body: (told if body["messages"][-1]["role"] == "tool" else asked)(body)
    chat.ask("What will the weather be like in Lisbon?")
    chat.page.locator(".results textarea").fill('{"sky": "clear", "celsius": [24, 24, 24]}')
    chat.button("Send results").click()
    expect(chat.answer.locator("strong")).to_be_attached()
    chat.finished()
    chat.ask("And in Porto?")
    chat.answer.locator("details.call").evaluate("element => { element.open = true }")


def compare(chat: ChatPage, server: ScriptedServer) -> None:
    server.script = lambda body: pieces(SHORT if body["model"] == server.models[0]["id"] else OTHER)(body)
    chat.button("Compare two answers").click()
    chat.button("Done").click()
    chat.field.fill("How many steps for a million values?")
    chat.field.press("Enter")
    expect(chat.page.locator(".pair .figures")).to_have_count(2)
    expect(chat.page.locator(".pair math").last).to_be_attached()


def failure(chat: ChatPage, server: ScriptedServer) -> None:
    server.refuse(429, "overloaded", "32 requests are waiting: the queue is full")
    chat.send(QUESTION)
    expect(chat.failure).to_be_visible()


def key(chat: ChatPage, server: ScriptedServer) -> None:
    server.refuse(401, "invalid_api_key", "a key is needed")
    chat.send(QUESTION)
    expect(chat.page.get_by_label("API key")).to_be_visible()


def settings(chat: ChatPage, server: ScriptedServer) -> None:
    chat.settings()


def panel(chat: ChatPage, server: ScriptedServer) -> None:
    chat.button("Compare two answers").click()
    expect(chat.page.get_by_role("dialog")).to_be_visible()


def shortcuts(chat: ChatPage, server: ScriptedServer) -> None:
    expect(chat.page.get_by_role("heading", level=1)).to_be_visible()
    chat.page.evaluate("document.activeElement.blur()")
    chat.page.keyboard.press("?")
    expect(chat.page.get_by_role("dialog")).to_be_visible()


def attached(chat: ChatPage, server: ScriptedServer) -> None:
    picture = (ROOT / "src/olivine/server/page/files/assets/icon.svg").read_bytes()
    files = [("olivine.svg", "image/svg+xml", picture), ("notes.txt", "text/plain", b"notes")]
    given = [{"name": name, "mimeType": kind, "buffer": data} for name, kind, data in files]
    chat.page.get_by_label("Attach files").set_input_files(given)  # type: ignore[arg-type]
    chat.field.fill("What is on this picture?")
    expect(chat.page.locator(".attached li")).to_have_count(2)


SCENES = [
    empty,
    answer,
    end,
    listed,
    thinking,
    call,
    compare,
    failure,
    key,
    settings,
    panel,
    shortcuts,
    attached,
]


def shoot(browser: Browser, scene: Callable[[ChatPage, ScriptedServer], None], look: str, path: Path) -> None:
    with scripted() as server:
        server.models = [{**MODEL, "id": "qwen3-8b"}, {**MODEL, "id": "gemma-4-12b"}]
        context = browser.new_context(reduced_motion="reduce", **LOOKS[look])
        page: Page = context.new_page()
        page.goto(server.url)
        chat = ChatPage(page)
        with_history(chat)
        scene(chat, server)
        page.wait_for_timeout(300)
        page.screenshot(path=path)
        server.end()  # of an answer that is being made
        context.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--docs", action="store_true", help="write docs/images")
    parser.add_argument("--only", default="", help="scenes whose name has this in it")
    options = parser.parse_args()
    if options.docs == (options.folder is not None):
        parser.error("a folder, or --docs")
    folder = options.folder or ROOT / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for scene in SCENES:
            for look in LOOKS:
                name = scene.__name__
                if options.only not in name or (options.docs and (name, look) not in BEST):
                    continue
                shoot(browser, scene, look, folder / f"chat-{name}-{look}.png")


if __name__ == "__main__":
    main()
