"""Files that are dropped on the terminal: their paths become attachments of the message."""

from __future__ import annotations

import json
import shlex
import wave
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pexpect
import pytest
from PIL import Image

import olivine
from olivine import LLM
from olivine.cli.chat.commands import Chat
from olivine.cli.chat.dropped import dropped
from olivine.cli.chat.loop import converse
from olivine.cli.chat.session import Session
from olivine.cli.chat.view import PlainView
from oracles import multimodal, tiny
from oracles.terminal import spawn

PROMPT = r">>> "
SUMMARY = r"[\d,]+ tok · [^\r\n]*context [\d,]+/[\d,]+ · [^\r\n]*"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """An image, one with blanks and quotes in its name, and a sound."""
    folder = tmp_path_factory.mktemp("dropped files")
    photo, odd, sound = folder / "photo.png", folder / 'it\'s a "big" /photo (1) ü.jpg', folder / "note.wav"
    odd.parent.mkdir()
    for path in (photo, odd):
        Image.new("RGB", (60, 40), "red").save(path)
    with wave.open(str(sound), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(bytes(3200))
    return [photo, odd, sound]


def escaped(path: Path) -> str:
    """As macOS's terminals write it."""
    return "".join(c if c.isalnum() or c in "/._-" else f"\\{c}" for c in str(path))


SPELLINGS: dict[str, Callable[[Path], str]] = {
    "as it is": str,
    "in quotes": lambda path: shlex.quote(str(path)),
    "with backslashes": escaped,
    "a URL": lambda path: f"file://{quote(str(path))}",
    "with a blank after it": lambda path: f"{shlex.quote(str(path))} ",
}


@pytest.mark.parametrize("how", SPELLINGS)
def test_a_path_as_terminals_paste_it(files: list[Path], how: str) -> None:
    spelled = SPELLINGS[how]
    for path in files:
        assert dropped(spelled(path)) == ("", [path])
        assert dropped(f"What's this, isn't it? {spelled(path)}") == ("What's this, isn't it?", [path])
    several = " ".join(map(spelled, files))
    assert dropped(several) == ("", files)
    assert dropped(f"one\ntwo\n{several}\n") == ("one\ntwo", files)


def test_a_text_that_only_mentions_a_path_is_left_alone(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photo = files[0]
    (tmp_path / "words.txt").write_text("words")
    monkeypatch.chdir(photo.parent)
    for text in (
        f"is {photo} large?",
        f"{photo} is large",
        f"{photo}: what is it",
        "what is in photo.png",  # nobody drops that
        "./photo.png",
        str(photo.parent),
        str(photo) + "x",
        str(tmp_path / "words.txt"),
        f"'{photo}",
        f"{photo}'",
        f"https://example.org{photo}",
        "file://\0",
        "~nobody-has-this-name/photo.png",
        "/" + "x" * 5000,
        "'" * 5000,
        "/ " * 5000,
        "",
    ):
        assert dropped(text) == (text, []), text[:60]


class Typed:
    """Lines that somebody types."""

    interactive = True

    def __init__(self, *lines: str) -> None:
        self._lines = iter(lines)

    def read(self) -> str:
        try:
            return next(self._lines)
        except StopIteration:
            raise EOFError from None

    def confirm(self, question: str) -> bool:
        return False


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = multimodal.write("gemma3", tmp_path_factory.mktemp("seeing"))
    with olivine.load(folder, device="cpu", threads=1, context=600) as llm:
        yield llm


def talk(llm: LLM, *lines: str) -> Session:
    session = Session(llm, max_tokens=2, temperature=0.0)
    converse(Chat(session, "m"), Typed(*lines), PlainView())
    return session


def test_what_is_dropped_goes_with_its_message_or_the_next(
    seeing: LLM, files: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setenv("OLIVINE_STATE", str(tmp_path))
    photo, odd, _ = files
    session = talk(seeing, f"What is this? {shlex.quote(str(odd))}", f"{photo} {photo}", "And these?")
    told = capsys.readouterr().err
    asked = [message for message in session.messages if message.role == "user"]
    assert [(message.text, len(message.media)) for message in asked] == [
        ("What is this?", 1),
        ("And these?", 2),
    ]
    assert asked[0].media[0].source == str(odd.resolve())
    assert f"Attached: {odd.name}.\n" in told
    assert "Attached: photo.png, photo.png. Before the next message" in told
    assert session.attached == []


def test_a_model_without_the_tower_says_so_before_it_is_asked(
    seeing: LLM, files: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setenv("OLIVINE_STATE", str(tmp_path))
    photo, _, sound = files
    session = talk(seeing, f"What is this? {sound}", str(sound))
    assert session.messages == [] and session.attached == []
    assert capsys.readouterr().err.count("this model does not take sounds, only text and images") == 2
    with olivine.load("olivine-mini", device="cpu", threads=1, context=300) as llm:
        assert talk(llm, f"What is this? {photo}").messages == []
    assert "this model takes text only" in capsys.readouterr().err


def test_a_broken_image_does_not_wait_for_the_next_message(
    seeing: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLIVINE_STATE", str(tmp_path))
    (tmp_path / "broken.png").write_bytes(b"\x89PNG nothing more")
    session = talk(seeing, f"What is this? {tmp_path / 'broken.png'}", "Well?")
    assert [message.text for message in session.messages if message.role == "user"] == ["Well?"]


def test_a_file_is_dropped_on_a_real_terminal(files: list[Path], tmp_path: Path) -> None:
    model = tiny.write("tiny-llama", "Q8_0", tmp_path)
    with closing(spawn("chat", model, "-t", "1", "-n", "2", state=tmp_path / "state")) as child:
        child.expect(PROMPT)
        child.send(f"\x1b[200~{shlex.quote(str(files[0]))} \x1b[201~\r")  # pasted
        child.expect("this model takes text only")
        child.expect(PROMPT)
        child.send(f"is {files[0]} large?\r")
        child.expect(SUMMARY)
        child.expect(PROMPT)
        child.send(f"/save {tmp_path / 'a.json'}\r")
        child.expect("2 messages")
        child.expect(PROMPT)
        child.sendeof()
        child.expect(pexpect.EOF)
    said: list[Any] = json.loads((tmp_path / "a.json").read_text())["messages"]
    assert said[0]["content"] == f"is {files[0]} large?"
