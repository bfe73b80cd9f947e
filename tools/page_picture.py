"""A moving picture of the chat page for README.md: a real server with olivine-mini, filmed as WebP.

    python tools/page_picture.py               writes docs/images/page.webp

Needs playwright and pillow (pip) and chromium (apt).
"""

from __future__ import annotations

import argparse
import io
import sys
import time
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from PIL import Image
from playwright.sync_api import Page, expect

from oracles.chat_page import ChatPage
from oracles.chromium import chromium
from oracles.serving import serving_process

ROOT = Path(__file__).resolve().parents[1]
VIEW = {"width": 840, "height": 520}
QUESTIONS = ("Tell me a story about a fox and a boat", "Tell me a story about a robot")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "images" / "page.webp")
    output = parser.parse_args().output
    frames: list[Image.Image] = []
    times: list[float] = []

    def take(page: Page) -> None:
        frames.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
        times.append(time.monotonic())

    with serving_process("olivine-mini") as url, chromium() as browser:
        page = browser.new_context(viewport=VIEW).new_page()  # type: ignore[arg-type]
        page.goto(url)
        chat = ChatPage(page)
        expect(page.get_by_role("combobox", name="Model")).not_to_have_value("")
        chat.force(seed=5, max_tokens=300)
        take(page)
        for question in QUESTIONS:
            for end in range(4, len(question) + 4, 4):
                chat.field.fill(question[:end])
                take(page)
            chat.send(question)
            while page.locator("article[aria-busy=true]").count():
                take(page)
            take(page)
    lasting = [min(max(b - a, 0.06), 0.25) for a, b in pairwise(times)]
    shown, durations = frames[:1], [0.6]
    for frame, seconds in zip(frames[1:], [*lasting[1:], 3.0], strict=True):
        if frame.tobytes() == shown[-1].tobytes():
            durations[-1] += seconds
        else:
            shown.append(frame)
            durations.append(seconds)
    milliseconds = [round(1000 * min(each, 3.0)) for each in durations]
    shown[0].save(
        output, save_all=True, append_images=shown[1:], duration=milliseconds, loop=0, quality=40, method=6
    )
    seconds, size = sum(milliseconds) / 1e3, output.stat().st_size
    print(f"{output}: {len(shown)} frames, {seconds:.0f} s, {size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
