"""Images and audio in the browser: attached, refused, sent, kept."""

from __future__ import annotations

import base64
import io
import json
import struct
import wave
import zlib
from typing import Any

import pytest
from playwright.sync_api import FilePayload, expect

from oracles.chat_page import ChatPage, Visit
from oracles.scripted_server import MODEL, ScriptedServer


def png(width: int = 2, height: int = 2) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + b"\x40\x80\xc0" * width) * height
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def wav(seconds: float = 0.1) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(2 * int(8000 * seconds)))
    return file.getvalue()


def payload(name: str, kind: str, data: bytes) -> FilePayload:
    return {"name": name, "mimeType": kind, "buffer": data}


PICTURE = payload("picture.png", "image/png", png())
SOUND = payload("sound.wav", "audio/wav", wav())
DROP = """([name, type, data, selector, event]) => {
  const bytes = Uint8Array.from(atob(data), (each) => each.charCodeAt(0));
  const given = new DataTransfer();
  given.items.add(new File([bytes], name, { type }));
  const options = { bubbles: true, cancelable: true };
  document.querySelector(selector).dispatchEvent(event === "drop"
    ? new DragEvent("drop", { ...options, dataTransfer: given })
    : new ClipboardEvent("paste", { ...options, clipboardData: given }));
}"""


def attach(chat: ChatPage, *files: FilePayload) -> None:
    chat.page.locator(".composer input[type=file]").set_input_files(list(files))


def able(server: ScriptedServer, **capabilities: bool) -> None:
    server.models = [{**MODEL, "capabilities": {**MODEL["capabilities"], **capabilities}}]


def content(server: ScriptedServer) -> Any:
    return server.requests[-1]["messages"][-1]["content"]


@pytest.mark.parametrize(("file", "words"), [(PICTURE, "cannot see images"), (SOUND, "cannot hear audio")])
def test_a_model_that_cannot_take_it_says_so_before_sending(
    visit: Visit, stand_in: ScriptedServer, file: FilePayload, words: str
) -> None:
    chat = visit(stand_in.url)
    attach(chat, file)
    chat.field.fill("What is this?")
    expect(chat.failure).to_contain_text(f"stand-in {words}. Remove it, or choose another model.")
    expect(chat.button("Send")).to_be_disabled()
    chat.field.press("Enter")
    chat.button(f"Remove {file['name']}").click()
    expect(chat.failure).to_have_count(0)
    expect(chat.button("Send")).to_be_enabled()
    assert not stand_in.requests


def test_images_and_audio_are_sent_as_parts_and_kept(visit: Visit, stand_in: ScriptedServer) -> None:
    able(stand_in, vision=True, audio=True)
    chat = visit(stand_in.url)
    attach(chat, PICTURE, SOUND)
    expect(chat.page.locator(".attached img, .attached audio")).to_have_count(2)
    stand_in.feed("A picture.")
    stand_in.end()
    chat.ask("What is this?")
    assert content(stand_in) == [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded(PICTURE)}"}},
        {"type": "input_audio", "input_audio": {"data": encoded(SOUND), "format": "wav"}},
        {"type": "text", "text": "What is this?"},
    ]
    expect(chat.page.locator(".attached")).to_have_count(0)
    chat.page.reload()
    expect(chat.questions.locator("img, audio")).to_have_count(2)
    chat.button("Show picture.png").click()
    expect(chat.page.get_by_role("dialog", name="picture.png").get_by_role("img")).to_be_visible()
    chat.page.keyboard.press("Escape")
    with chat.page.expect_download() as download:
        chat.choose("What is this?", "Export (JSONL)")
    messages = json.loads(download.value.path().read_text())["messages"]
    (question,) = [message for message in messages if message["role"] == "user"]
    assert question["media"][0]["data"] == encoded(PICTURE)
    chat.page.get_by_label("Import").set_input_files(download.value.path())
    chat.page.locator(".entry .title").nth(1).click()
    expect(chat.questions.locator("img, audio")).to_have_count(2)


def encoded(file: FilePayload) -> str:
    return base64.b64encode(file["buffer"]).decode()


@pytest.mark.parametrize(("event", "selector"), [("drop", ".thread"), ("paste", "#message")])
def test_files_are_dropped_and_pasted(
    visit: Visit, stand_in: ScriptedServer, event: str, selector: str
) -> None:
    able(stand_in, vision=True)
    chat = visit(stand_in.url)
    expect(chat.field).to_be_focused()  # from then on the page takes drops
    chat.page.evaluate(DROP, ["some.png", "image/png", encoded(PICTURE), selector, event])
    expect(chat.button("Show some.png")).to_be_visible()
    expect(chat.button("Send")).to_be_enabled()


def test_large_images_become_smaller_and_what_cannot_be_read_is_told(
    visit: Visit, stand_in: ScriptedServer
) -> None:
    able(stand_in, vision=True, audio=True)
    chat = visit(stand_in.url)
    broken = payload("broken.png", "image/png", b"none")
    binary = payload("binary", "application/octet-stream", b"\0\1\xff")
    attach(chat, payload("large.png", "image/png", png(4096, 64)), broken, binary)
    expect(chat.notice).to_contain_text("This browser cannot read broken.png")
    expect(chat.notice).to_contain_text("binary is neither text nor an image nor audio")
    image = chat.page.locator(".attached img")
    expect(image).to_have_js_property("naturalWidth", 2048)
    expect(image).to_have_js_property("naturalHeight", 32)


def test_earlier_images_are_left_out_for_a_model_that_cannot_see(
    visit: Visit, stand_in: ScriptedServer
) -> None:
    able(stand_in, vision=True)
    chat = visit(stand_in.url)
    attach(chat, PICTURE)
    stand_in.feed("A picture.")
    stand_in.end()
    chat.ask("What is this?")
    able(stand_in)
    chat.page.reload()
    told = chat.page.get_by_text("Those of earlier messages are left out; only their names are sent.")
    expect(told).to_be_visible()
    stand_in.feed("Yes.")
    stand_in.end()
    chat.ask("Really?")
    assert stand_in.requests[-1]["messages"][0]["content"] == "[image: picture.png]\n\nWhat is this?"
