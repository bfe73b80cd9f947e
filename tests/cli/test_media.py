"""Images and sounds on the command line, on a small random model that sees and hears."""

from __future__ import annotations

import json
import os
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile
from PIL import Image

from olivine.cli.chat.commands import Chat, execute
from olivine.cli.chat.session import Session
from olivine.convert import convert
from olivine.errors import RequestError
from olivine.llm import load
from oracles import folders, multimodal
from oracles.commands import olivine
from oracles.serving import serving_process


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, and beside it a photo and half a second of sound."""
    folder = tmp_path_factory.mktemp("seeing")
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (40, 60, 3), np.uint8)).save(folder / "photo.jpg")
    soundfile.write(folder / "note.wav", rng.standard_normal(8000) * 0.1, 16_000)
    multimodal.write("gemma4-e2b", folder / "model")
    return folder


@pytest.fixture(scope="module")
def gguf(folder: Path) -> tuple[Path, Path]:
    """The same model as GGUF, and its mmproj file, which does not lie beside it."""
    (folder / "text").mkdir()
    made = convert(folder / "model", folder / "text" / "made.gguf", "F32")
    assert made.mmproj is not None
    return made.path, made.mmproj.path.rename(folder / "towers.gguf")


def run(folder: Path, *arguments: str, model: Path | None = None) -> str:
    """What it prints, errors too."""
    fixed = ("--max-tokens", "4", "-t", "1", "--device", "cpu", "--context", "2000")
    given = model or folder / "model"
    done = olivine("run", given, *arguments, *fixed, XDG_STATE_HOME=str(folder / "state"))
    return done.stdout + done.stderr


def test_files_after_the_question_and_attached_ones(folder: Path) -> None:
    photo, note = str(folder / "photo.jpg"), str(folder / "note.wav")
    shown = run(folder, "What is this?", photo, note, "--show-prompt")
    assert "<|image>[" in shown and " soft tokens]<image|>" in shown
    assert "<|audio>[13 soft tokens]<audio|>" in shown
    assert run(folder, "What is this?", "-a", photo, "--image", note, "--show-prompt") == shown
    assert "Error" not in run(folder, "What is this?", photo, "--temperature", "0")


def test_errors_name_the_file(folder: Path, tmp_path: Path) -> None:
    photo, bad, noise = str(folder / "photo.jpg"), tmp_path / "bad.png", tmp_path / "noise.wav"
    bad.write_bytes(b"\x89PNG\r\n\x1a\nand no more")
    noise.write_bytes(b"RIFF\xff\0\0\0WAVE and no more")
    assert "the image bad.png is broken" in run(folder, "What?", "-a", photo, "-a", str(bad))
    assert "the audio noise.wav is broken" in run(folder, "What?", "-a", photo, "-a", str(noise))
    assert f"{tmp_path}: this is a folder" in run(folder, "What?", "-a", str(tmp_path))


def test_a_conversation_with_media_goes_on(folder: Path, tmp_path: Path) -> None:
    """By -c, and from a file: also where the name of a medium is no UTF-8."""
    note = os.fsencode(folder / "note") + b"\xff.wav"
    os.link(folder / "note.wav", note)
    first = run(folder, "what is this?", str(folder / "photo.jpg"), os.fsdecode(note))
    again = run(folder, "-c", "and?")
    assert "Error" not in first + again
    fixed = ("-n", "4", "-t", "1", "--device", "cpu", "--context", "2000")
    saved, state = tmp_path / "saved.json", {"XDG_STATE_HOME": str(tmp_path)}
    lines = f"/image {folder / 'note.wav'}\nhello\n/save {saved}\n/clear\n/load {saved}\nmore\n"
    done = olivine("chat", folder / "model", *fixed, text=lines, **state)
    assert (done.returncode, len(done.stdout.splitlines()) > 1) == (0, True), done.stderr
    sound = {"type": "audio", "audio": str((folder / "note.wav").resolve())}
    (question, _) = json.loads(saved.read_text())["messages"]
    assert question["content"] == [sound, {"type": "text", "text": "hello"}]


def test_cleared_media_are_forgotten_for_continue_too(folder: Path, tmp_path: Path) -> None:
    fixed = ("-n", "4", "-t", "1", "--device", "cpu", "--context", "2000")
    state = {"XDG_STATE_HOME": str(tmp_path)}
    lines = f"/image {folder / 'note.wav'}\nhello\n/clear\n"
    assert olivine("chat", folder / "model", *fixed, text=lines, **state).returncode == 0
    again = olivine("run", folder / "model", "-c", "and?", *fixed, **state)
    assert "no conversation to continue" in again.stderr


def test_what_is_no_medium_is_a_word_or_refused(folder: Path) -> None:
    text = folder / "words.txt"
    text.write_text("nothing to see")
    assert str(text) in run(folder, "What is", str(text), "--show-prompt")
    assert "is no image, sound or video" in run(folder, "What?", "-a", str(text))
    assert "there is no such file" in run(folder, "What?", "-a", str(folder / "none.png"))
    assert "need a question" in run(folder, "-p", "What", "-a", str(folder / "photo.jpg"))


def test_attached_in_a_chat(folder: Path) -> None:
    with load(folder / "model", device="cpu", threads=1, context=2000) as llm:
        session = Session(llm, max_tokens=3, temperature=0.0)
        alone = len(session.prompt("What?"))
        shown = execute(Chat(session, "m"), f"/image {folder / 'photo.jpg'}")
        assert "goes before the next message" in str(shown)
        assert len(session.prompt("What?")) > alone + 100
        list(session.ask("What?"))
        assert session.messages[0].media[0].source == str((folder / "photo.jpg").resolve())
        assert session.attached == []
        with pytest.raises(RequestError, match=r"needs a file, as in /image photo\.jpg"):
            execute(Chat(session, "m"), "/image")


def test_towers_of_a_gguf_model(folder: Path, gguf: tuple[Path, Path]) -> None:
    """Given by --mmproj, or beside the model: the answer is the folder's. Without them, and with those of
    another model, it says so."""
    text, towers = gguf
    question = ("What is this?", str(folder / "photo.jpg"), str(folder / "note.wav"), "--temperature", "0")
    expected = run(folder, *question)
    assert "Error" not in expected
    assert run(folder, *question, "--mmproj", str(towers), model=text) == expected
    assert run(folder, *question, "-mm", str(towers), model=text) == expected
    assert "this model takes text only" in run(folder, *question, model=text)
    beside = text.with_name("mmproj-made-F32.gguf")
    beside.symlink_to(towers)
    assert run(folder, *question, model=text) == expected
    beside.unlink()
    other = folders.write_multimodal("gemma3", folder / "other")
    made = convert(other, folder / "other-mmproj.gguf", "F32", mmproj="only").path
    told = run(folder, *question, "--mmproj", str(made), model=text)
    assert "its vision projector is 'gemma3', and for gemma4 models these are known" in told
    assert "no such file" in run(folder, *question, "--mmproj", "none.gguf", model=text)
    assert "has its towers in itself" in run(folder, *question, "--mmproj", str(towers))


def test_another_model_in_a_chat_has_its_own_towers(folder: Path, gguf: tuple[Path, Path]) -> None:
    """--mmproj is for the model that it was given with: after /model there and back, it is used again."""
    text, towers = gguf
    lines = (f"/image {folder / 'photo.jpg'}", "/model olivine-mini", f"/image {folder / 'photo.jpg'}")
    typed = "\n".join([*lines, f"/model {text}", f"/image {folder / 'photo.jpg'}"])
    fixed = ("-t", "1", "--device", "cpu", "--mmproj", towers)
    done = olivine("chat", text, *fixed, text=typed, XDG_STATE_HOME=str(folder / "state"))
    told = done.stdout + done.stderr
    assert told.count("goes before the next message") == 2, told
    assert told.count("this model takes text only") == 1


def test_towers_of_a_model_that_is_served(folder: Path, gguf: tuple[Path, Path]) -> None:
    text, towers = gguf
    done = olivine("serve", text, "olivine-mini", "--mmproj", towers, "--port", "0")
    assert "--mmproj is for one model, and 2 are served" in done.stderr
    settings = ("-t", "1", "--device", "cpu", "--context", "2000", "--mmproj", str(towers))
    with serving_process(str(text), *settings) as url:
        assert httpx.get(f"{url}/props").json()["modalities"] == {"vision": True, "audio": True}
