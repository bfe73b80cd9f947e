"""Images and sounds on the command line, on a small random model that sees and hears."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from olivine.cli.chat.commands import Chat, execute
from olivine.cli.chat.session import Session
from olivine.errors import RequestError
from olivine.llm import load
from oracles import multimodal
from oracles.commands import olivine


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, and beside it a photo and half a second of sound."""
    folder = tmp_path_factory.mktemp("seeing")
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (40, 60, 3), np.uint8)).save(folder / "photo.jpg")
    soundfile.write(folder / "note.wav", rng.standard_normal(8000) * 0.1, 16_000)
    multimodal.write("gemma4-e2b", folder / "model")
    return folder


def run(folder: Path, *arguments: str) -> str:
    """What it prints, errors too."""
    fixed = ("--max-tokens", "4", "-t", "1", "--device", "cpu", "--context", "2000")
    done = olivine("run", folder / "model", *arguments, *fixed, XDG_STATE_HOME=str(folder / "state"))
    return done.stdout + done.stderr


def test_files_after_the_question_and_attached_ones(folder: Path) -> None:
    photo, note = str(folder / "photo.jpg"), str(folder / "note.wav")
    shown = run(folder, "What is this?", photo, note, "--show-prompt")
    assert "<|image>[" in shown and " soft tokens]<image|>" in shown
    assert "<|audio>[13 soft tokens]<audio|>" in shown
    assert run(folder, "What is this?", "-a", photo, "--image", note, "--show-prompt") == shown
    assert "Error" not in run(folder, "What is this?", photo, "--temperature", "0")


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
