"""Broken and hostile media beside good requests: nobody else notices them."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, cycle
from typing import Any

import httpx

from media.mutants import mutants, seeds
from media.test_hostile import bombs
from olivine.llm import LLM
from oracles.waiting import eventually

PATH = "/v1/chat/completions"
TOKENS = 60
PROMPTS = ["one", "two words", "and three words"]


def image(content: bytes) -> dict[str, Any]:
    url = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def sound(content: bytes) -> dict[str, Any]:
    data = base64.b64encode(content).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def chat(url: str, part: dict[str, Any]) -> httpx.Response:
    messages = [{"role": "user", "content": [part, {"type": "text", "text": "what?"}]}]
    return httpx.post(f"{url}{PATH}", json={"messages": messages, "max_tokens": 1}, timeout=200)


def upload(url: str, content: bytes) -> httpx.Response:
    files, form = {"file": ("a.wav", content)}, {"max_tokens": "1", "window": "5"}
    return httpx.post(f"{url}/v1/audio/transcriptions", data=form, files=files, timeout=200)


def events(url: str, prompt: str) -> Iterator[tuple[str, float]]:
    """Tokens and log-probabilities of an answer, as they come."""
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "stream": True,
        "temperature": 0.9,
        "seed": 7,
        "logprobs": True,
    }
    with httpx.stream("POST", f"{url}{PATH}", json=body, timeout=100) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    for each in (choice.get("logprobs") or {}).get("content", []):
                        yield each["token"], each["logprob"]


def good(url: str, prompt: str) -> list[tuple[str, float]]:
    found = list(events(url, prompt))
    assert len(found) == TOKENS
    return found


def test_hostile_media_change_nothing_for_the_others(heard: str) -> None:
    quiet = [good(heard, prompt) for prompt in PROMPTS]
    over = threading.Event()

    def again(send: Callable[[str, Any], httpx.Response], files: Iterator[bytes]) -> set[int]:
        found: set[int] = set()
        for content in files:
            found.add(send(heard, content).status_code)
            if over.is_set():
                return found
        return found

    def images(seed: int) -> Iterator[bytes]:
        return (content for i in count() for _, content in mutants("image", 50, seed + i))

    def sounds(seed: int) -> Iterator[bytes]:
        return (content for i in count() for _, content in mutants("audio", 50, seed + i))

    attacks: list[tuple[Any, Iterator[bytes]]] = [
        (lambda url, content: chat(url, image(content)), images(1000)),
        (lambda url, content: chat(url, image(content)), cycle(bombs().values())),
        (lambda url, content: chat(url, sound(content)), sounds(2000)),
        (upload, sounds(3000)),
    ]
    with ThreadPoolExecutor(len(attacks) + len(PROMPTS)) as pool:
        running = [pool.submit(again, *attack) for attack in attacks]
        try:
            for _ in range(2):
                assert list(pool.map(lambda prompt: good(heard, prompt), PROMPTS)) == quiet
        finally:
            over.set()
        for each in running:
            assert each.result() <= {200, 400}
    assert [good(heard, prompt) for prompt in PROMPTS] == quiet


def test_nobody_else_waits_while_no_decoder_is_free(heard: str, hearing: LLM) -> None:
    """All processes are busy, and more media wait for one than the server has threads: streams go on, and
    other requests are answered."""
    content = seeds("image")["BMP"]
    assert chat(heard, image(content)).status_code == 200
    perception = hearing._perception
    assert perception is not None and perception._processor is not None
    processor = perception._processor
    quiet = good(heard, "one")
    stream = events(heard, "one")
    begun = [next(stream)]
    for _ in range(2):
        processor._places.acquire()
    with ThreadPoolExecutor(40) as pool:
        try:
            waiting = [pool.submit(chat, heard, image(content)) for _ in range(40)]
            eventually(lambda: httpx.get(f"{heard}/health", timeout=100).status_code == 200)
            assert begun + list(stream) == quiet
            assert good(heard, "one") == quiet
            assert not any(each.done() for each in waiting)
        finally:
            processor._places.release(2)
        assert {each.result().status_code for each in waiting} == {200}
