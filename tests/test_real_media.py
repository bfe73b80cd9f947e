"""Real photos, a real video and real speech, from the command line, in Python and over HTTP: one prompt, and
the same answer. The model is small and random; what it says of them means nothing."""

from __future__ import annotations

import base64
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from PIL import Image

from olivine import LLM, load
from olivine.perception import MediaOptions
from olivine.server.models import ServedModel
from oracles import multimodal
from oracles.commands import olivine
from oracles.real_media import ASTRONAUT, BIKES, ROCKET, SPEECH
from oracles.serving import serving

QUESTION = "What do you see and hear?"
GREEDY = {"temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="module")
def media() -> dict[str, Path]:
    return {"image": ROCKET.path(), "video": BIKES.path(), "audio": SPEECH.path()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return multimodal.write("gemma4-e2b", tmp_path_factory.mktemp("seeing"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with load(folder, device="cpu", threads=1, context=4000) as llm:
        yield llm


@pytest.fixture(scope="module")
def python(llm: LLM, media: dict[str, Path]) -> Any:
    """The answer in Python, about files that are named by their paths."""
    parts: list[Any] = [{"type": kind, kind: path} for kind, path in media.items()]
    return llm.chat([{"role": "user", "content": [*parts, QUESTION]}], **GREEDY)


def test_every_form_of_a_source_is_the_same_prompt(llm: LLM, media: dict[str, Path], python: Any) -> None:
    """Bytes, a PIL image, samples; and as many tokens as a photo of 640 × 427, 32 frames and 3 s have."""
    photo = Image.open(media["image"])
    samples = soundfile.read(media["audio"])
    sources = {"image": photo, "video": media["video"].read_bytes(), "audio": samples}
    parts: list[Any] = [{"type": kind, kind: source} for kind, source in sources.items()]
    again = llm.chat([{"role": "user", "content": [*parts, QUESTION]}], **GREEDY)
    assert (again.tokens, again.usage.prompt) == (python.tokens, python.usage.prompt)
    request = llm.conversations.prepare([{"role": "user", "content": [*parts, QUESTION]}])
    image, *frames, sound = (len(block.embeddings) for block in request.media)
    assert photo.size == (640, 427) and image == 20 * 13  # cells within 280, at that aspect ratio
    assert len(frames) == 32 and len(set(frames)) == 1 and 50 < frames[0] <= 70
    assert sound == -(-(95_724 - 44) // 2 // 640)
    assert all(np.isfinite(block.embeddings).all() for block in request.media)


def test_the_command_line_gives_the_same_answer(
    folder: Path, media: dict[str, Path], python: Any, tmp_path: Path
) -> None:
    fixed = ("--temp", "0", "-n", "8", "-t", "1", "--device", "cpu", "--context", "4000", "-q")
    run = functools.partial(
        olivine, "run", folder, QUESTION, *media.values(), *fixed, OLIVINE_STATE=str(tmp_path)
    )
    done = run()
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == python.content.strip()
    shown = run("--show-prompt").stdout
    assert "[260 soft tokens]" in shown and "[75 soft tokens]" in shown and " 00:00 " in f" {shown}"


def test_http_gives_the_same_answer(llm: LLM, media: dict[str, Path], python: Any) -> None:
    data = {kind: base64.b64encode(path.read_bytes()).decode() for kind, path in media.items()}
    parts: list[Any] = [
        {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{data['image']}"}},
        {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{data['video']}"}},
        {"type": "input_audio", "input_audio": {"data": data["audio"], "format": "wav"}},
        {"type": "text", "text": QUESTION},
    ]
    with serving([ServedModel("m", llm)]) as url:
        body = {"messages": [{"role": "user", "content": parts}], **GREEDY}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300)
        assert answer.status_code == 200, answer.text
        found = answer.json()
    assert found["choices"][0]["message"]["content"] == python.content
    assert found["usage"]["prompt_tokens"] == python.usage.prompt


def test_photos_for_gemma_3(tmp_path: Path) -> None:
    """With pan and scan, one that is wide has two crops; one that is square has none."""
    with load(multimodal.write("gemma3", tmp_path), device="cpu", threads=1, context=600) as llm:
        for photo, images in ((ROCKET, 3), (ASTRONAUT, 1)):
            part = {"type": "image", "image": photo.path()}
            messages: list[Any] = [{"role": "user", "content": [part, QUESTION]}]
            request = llm.conversations.prepare(messages, media=MediaOptions(pan_and_scan=True))
            assert len(request.media) == images
            assert llm.chat(messages, pan_and_scan=True, **GREEDY).usage.prompt == len(request.tokens)
