"""The chat page in Debian's Chromium: its first paint, and how smooth long answers and conversations are.

    python benches/chat_page.py paint [--loads 15]
    python benches/chat_page.py answer [--tokens 30000] [--rate 800] [--of code]
    python benches/chat_page.py conversation [--messages 500]

`paint` opens the page of `olivine serve` with an empty cache. The others use a stand-in for the server, which
sends an answer of Markdown at a given rate. Needs playwright (pip) and chromium (apt).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from playwright.sync_api import Browser, Page, expect

from oracles.chromium import chromium
from oracles.scripted_server import Delta, ScriptedServer, scripted

SECTION = """## Part {n}

A paragraph with **bold** and *emphasis*, `code`, a [link](https://example.org), and more words.

- one item with `code`
- another, with $a_{n}^2 + b$

```python
def function_{n}(argument: int) -> int:
    # what it gives
    return argument * {n} + sum(range(10))
```

| name | value | note |
| :-- | --: | --- |
| row {n} | {n} | text in a cell |
| next | 12.5 | more |

"""
ROW = {
    "code": "    value_{n} = compute(value, 12.5, name='text {n}')  # what it gives\n",
    "list": "- item {n} with `code` and **bold** words\n",
    "table": "| row {n} | {n} | text in a *cell* |\n",
    "text": "and then word {n} of a paragraph that never ends, ",
}
HEAD = {
    "code": "```python\n",
    "table": "| name | value | note |\n| :-- | --: | --- |\n",
    "list": "",
    "text": "",
}
# The time between frames, from now on until the next call.
FRAMES = """() => {
  cancelAnimationFrame(window.on_);
  window.frames_ = []; let last = performance.now();
  const next = now => { frames_.push(now - last); last = now; window.on_ = requestAnimationFrame(next) };
  window.on_ = requestAnimationFrame(next);
}"""
FRAME = 1000 / 60


def tokens(count: int, of: str = "") -> Iterator[str]:
    """Markdown in pieces of four characters, about a token each: of many parts, or one block of a kind."""
    part = ROW.get(of, SECTION)
    texts = itertools.chain([HEAD.get(of, "")], (part.replace("{n}", str(n)) for n in itertools.count(1)))
    text = itertools.chain.from_iterable(texts)
    for _ in range(count):
        yield "".join(itertools.islice(text, 4))


def paced(count: int, rate: float, of: str = "") -> Iterator[Delta]:
    start = time.perf_counter()
    for at, piece in enumerate(tokens(count, of)):
        ahead = at / rate - (time.perf_counter() - start)
        if ahead > 0.002:
            time.sleep(ahead)
        yield {"content": piece}
    yield {"finish_reason": "stop"}


def spread(values: list[float]) -> str:
    ordered = sorted(values)
    at = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    middle, longest = statistics.median(ordered), ordered[-1]
    return f"median {middle:.1f}, 95 % {at:.1f}, longest {longest:.1f} ms ({len(ordered)})"


class Watch:
    """Frames of a page from a start on, and the processor time of its main thread."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.devtools = page.context.new_cdp_session(page)
        self.devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
        self.start()

    def start(self) -> None:
        self.page.evaluate(FRAMES)
        self.began, self.used = time.perf_counter(), self._used()

    def _used(self) -> float:
        metrics = self.devtools.send("Performance.getMetrics")["metrics"]
        return next(float(each["value"]) for each in metrics if each["name"] == "TaskDuration")

    def tell(self, what: str) -> None:
        frames = self.page.evaluate("frames_")
        missed = sum(max(0, round(each / FRAME) - 1) for each in frames)
        busy = (self._used() - self.used) / (time.perf_counter() - self.began)
        share = missed / (missed + len(frames))
        print(f"{what}: frames {spread(frames)}, {share:.1%} dropped; main thread {busy:.0%} of a core")


def until(page: Page, condition: str, every: float = 100) -> None:
    """Waits without asking for roles, which takes seconds in a long conversation."""
    while not page.evaluate(condition):
        page.wait_for_timeout(every)


def ask(page: Page, text: str) -> None:
    """Sends a message; the answer has come, and what follows its end."""
    busy = "document.querySelector('article[aria-busy=true]') !== null"
    page.locator("#message").fill(text)
    page.locator("#message").press("Enter")
    until(page, busy, 10)
    until(page, f"!({busy})")
    page.wait_for_timeout(1000)


# ---- the first paint


@contextmanager
def olivine_serve() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "olivine", "serve", "olivine-mini", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{url}/health").close()
                break
            except OSError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def paint(browser: Browser, loads: int) -> None:
    found: dict[str, list[float]] = {}
    with olivine_serve() as url:
        for at in range(loads + 1):
            context = browser.new_context()
            page = context.new_page()
            page.goto(url)
            expect(page.get_by_role("combobox", name="Model")).to_have_value("olivine-mini")
            entries = page.evaluate("performance.getEntriesByType('paint').map(e => [e.name, e.startTime])")
            timing = page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
            for name, value in [*entries, ("page's script has run", timing)]:
                found.setdefault(name, []).extend(
                    [value] if at else []
                )  # the first load warms the browser up
            context.close()
    for name, values in found.items():
        print(f"{name}: {spread(values)}")


# ---- smoothness


def typing_delay(page: Page, times: int = 20) -> list[float]:
    """Milliseconds from a key to the frame that shows it."""
    page.evaluate(
        """() => { window.keys_ = []; document.querySelector('#message').oninput = event => {
        const at = event.timeStamp;
        requestAnimationFrame(() => setTimeout(() => keys_.push(performance.now() - at))) } }"""
    )
    for _ in range(times):
        page.locator("#message").press("a")
    until(page, f"keys_.length >= {times}")
    return list(page.evaluate("keys_"))


def answer(browser: Browser, server: ScriptedServer, count: int, rate: float, of: str) -> None:
    server.script = lambda body: paced(count, rate, of)
    page = browser.new_page()
    page.goto(server.url)
    expect(page.get_by_role("combobox", name="Model")).not_to_have_value("")
    watch = Watch(page)
    ask(page, "Go")
    watch.tell(f"{count} tokens at {rate:.0f}/s")
    print(f"typing after the answer: {spread(typing_delay(page))}")


def exported(messages: int) -> str:
    """A conversation as the page exports it."""
    rows: list[dict[str, Any]] = []
    text = "".join(SECTION.replace("{n}", str(n)) for n in range(1, 4))
    for at in range(messages):
        role = "assistant" if at % 2 else "user"
        rows.append(
            {
                "id": f"m{at}",
                "parent": f"m{at - 1}" if at else None,
                "role": role,
                "text": text if at % 2 else f"Question {at}",
                "created": at + 1,
                "finish": "stop",
            }
        )
    header = {"title": "Long", "leaf": rows[-1]["id"], "created": 1, "updated": 2}
    return json.dumps({"conversation": header, "messages": rows}) + "\n"


def conversation(browser: Browser, server: ScriptedServer, messages: int) -> None:
    server.script = lambda body: paced(2000, 800)
    page = browser.new_page()
    page.goto(server.url)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", delete=False) as file:
        file.write(exported(messages))
    page.get_by_label("Import").set_input_files(file.name)
    expect(page.get_by_role("button", name="Long", exact=True)).to_be_visible()
    os.unlink(file.name)
    opening = """async () => {
      const start = performance.now();
      const titles = [...document.querySelectorAll('.sidebar button.title')];
      titles.find(each => each.textContent === 'Long').click();
      const shown = () => document.querySelectorAll('article').length >= COUNT;
      while (!shown()) await new Promise(requestAnimationFrame);
      await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
      return performance.now() - start;
    }""".replace("COUNT", str(min(messages, 10)))
    print(f"{messages} messages: opened in {page.evaluate(opening):.0f} ms")
    page.wait_for_timeout(1000)
    watch = Watch(page)
    page.evaluate(
        """async () => {
      const box = document.querySelector('.thread');
      for (let at = 0; at < 240; at += 1) {
        box.scrollTop -= 200; await new Promise(requestAnimationFrame);
      }
    }"""
    )
    watch.tell("scrolling up, 200 pixels a frame")
    print(f"typing: {spread(typing_delay(page))}")
    watch.start()
    ask(page, "Go on")
    watch.tell("an answer of 2000 tokens at its end")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["paint", "answer", "conversation"])
    parser.add_argument("--loads", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=30000)
    parser.add_argument("--rate", type=float, default=800.0)
    parser.add_argument("--of", choices=sorted(ROW), default="", help="one long block of this kind")
    parser.add_argument("--messages", type=int, default=500)
    options = parser.parse_args()
    with chromium() as browser, scripted() as server:
        if options.what == "paint":
            paint(browser, options.loads)
        elif options.what == "answer":
            answer(browser, server, options.tokens, options.rate, options.of)
        else:
            conversation(browser, server, options.messages)


if __name__ == "__main__":
    main()
