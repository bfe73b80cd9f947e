"""Images and sounds over HTTP, in the words of each API, on small random models that see and hear."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile
from PIL import Image

from olivine.llm import load
from olivine.server.models import ServedModel
from oracles import multimodal
from oracles.serving import serving

QUESTION = "What is this?"


def png(seed: int) -> str:
    pixels = np.random.default_rng(seed).integers(0, 256, (40, 60, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def wav() -> str:
    file = io.BytesIO()
    samples = np.random.default_rng(0).standard_normal(8000).astype(np.float32) * 0.1
    soundfile.write(file, samples, 16_000, format="WAV")
    return base64.b64encode(file.getvalue()).decode()


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a model that sees and hears."""
    folder = multimodal.write("gemma4-e2b", tmp_path_factory.mktemp("seeing"))
    with load(folder, device="cpu", threads=1, context=2000) as llm, serving([ServedModel("m", llm)]) as url:
        yield url


def chat(url: str, *parts: object) -> httpx.Response:
    content = [*parts, {"type": "text", "text": QUESTION}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 4, "temperature": 0}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300)


def image_url(data: str) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def test_an_image_in_every_api(seeing: str) -> None:
    """The same image and question are the same prompt; it has as many tokens as the image takes, and more."""
    alone = chat(seeing).json()["usage"]["prompt_tokens"]
    found = chat(seeing, image_url(png(1)))
    assert found.status_code == 200, found.text
    usage = found.json()["usage"]
    assert usage["prompt_tokens"] > alone + 100
    again = chat(seeing, image_url(png(1))).json()
    assert again["choices"] == found.json()["choices"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > alone
    other = chat(seeing, image_url(png(2))).json()["usage"]
    assert other["prompt_tokens_details"]["cached_tokens"] < 100, "another image is another prompt"

    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": png(1)}}
    messages = [{"role": "user", "content": [block, {"type": "text", "text": QUESTION}]}]
    body = {"model": "m", "max_tokens": 4, "messages": messages}
    answer = httpx.post(f"{seeing}/v1/messages", json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    told = answer.json()["usage"]
    assert told["input_tokens"] + told["cache_read_input_tokens"] == usage["prompt_tokens"]

    message = {"role": "user", "content": QUESTION, "images": [png(1)]}
    common = {"model": "m", "stream": False, "options": {"num_predict": 4}}
    answer = httpx.post(f"{seeing}/api/chat", json={**common, "messages": [message]}, timeout=300)
    assert answer.status_code == 200, answer.text
    assert answer.json()["prompt_eval_count"] > alone + 100


def test_a_prompt_is_a_message_where_it_needs_the_template_of_the_family(seeing: str) -> None:
    """The model's files have no chat template: /api/generate continues texts, but leaves nothing out."""
    message = {"role": "user", "content": QUESTION, "images": [png(1)]}
    common = {"model": "m", "stream": False, "think": True, "options": {"num_predict": 4, "seed": 7}}
    body = {**common, "messages": [{"role": "system", "content": "Be brief."}, message]}
    expected = httpx.post(f"{seeing}/api/chat", json=body, timeout=300).json()
    body = {**common, "system": "Be brief.", "prompt": QUESTION, "images": [png(1)]}
    found = httpx.post(f"{seeing}/api/generate", json=body, timeout=300).json()
    assert found["prompt_eval_count"] == expected["prompt_eval_count"] > 100
    said = expected["message"]
    assert (found["response"], found.get("thinking")) == (said["content"], said.get("thinking"))
    body = {"model": "m", "stream": False, "prompt": "a", "options": {"num_predict": 4}}
    assert httpx.post(f"{seeing}/api/generate", json=body, timeout=300).json()["prompt_eval_count"] < 4


def response_to(url: str, *items: object) -> httpx.Response:
    body = {"input": [*items], "max_output_tokens": 4, "temperature": 0}
    return httpx.post(f"{url}/v1/responses", json=body, timeout=300)


def test_an_image_in_a_response(seeing: str) -> None:
    """The part of the Responses API has its URL as a text, and not in an object."""
    question = {"type": "input_text", "text": QUESTION}
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{png(1)}", "detail": "auto"}
    found = response_to(seeing, {"role": "user", "content": [image, question]})
    assert found.status_code == 200, found.text
    told = found.json()["usage"]["input_tokens"]
    assert told == chat(seeing, image_url(png(1))).json()["usage"]["prompt_tokens"]
    far = {"type": "input_image", "image_url": "http://127.0.0.1/a.png"}
    refused = response_to(seeing, {"role": "user", "content": [far, question]})
    assert refused.status_code == 400 and "web address" in refused.json()["error"]["message"]


def test_counts_of_tokens_have_those_of_media(seeing: str) -> None:
    expected = chat(seeing, image_url(png(1))).json()["usage"]["prompt_tokens"]
    source = {"type": "base64", "media_type": "image/png", "data": png(1)}
    parts = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
    body: dict[str, object] = {"model": "m", "messages": [{"role": "user", "content": parts}]}
    found = httpx.post(f"{seeing}/v1/messages/count_tokens", json=body, timeout=300)
    assert found.json() == {"input_tokens": expected}
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{png(1)}"}
    body = {"input": [{"role": "user", "content": [image, {"type": "input_text", "text": QUESTION}]}]}
    found = httpx.post(f"{seeing}/v1/responses/input_tokens", json=body, timeout=300)
    assert found.json()["input_tokens"] == expected
    secret = {"type": "input_image", "image_url": "/etc/hostname"}
    body = {"input": [{"role": "user", "content": [secret]}]}
    refused = httpx.post(f"{seeing}/v1/responses/input_tokens", json=body, timeout=300)
    assert (
        refused.status_code == 400 and "neither a data URL nor base64" in refused.json()["error"]["message"]
    )


def test_a_sound(seeing: str) -> None:
    alone = chat(seeing).json()["usage"]["prompt_tokens"]
    found = chat(seeing, {"type": "input_audio", "input_audio": {"data": wav(), "format": "wav"}})
    assert found.status_code == 200, found.text
    assert found.json()["usage"]["prompt_tokens"] == alone + 13 + 2  # half a second, and its two markers


def test_what_cannot_be_read_is_the_clients_fault(seeing: str, tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(base64.b64decode(png(1)))
    for url in ("data:image/png;base64,AAAA", str(tmp_path / "secret.png"), f"file://{tmp_path}/secret.png"):
        answer = chat(seeing, {"type": "image_url", "image_url": {"url": url}})
        assert answer.status_code == 400, (url, answer.text)
        assert answer.json()["error"]["type"] == "invalid_request_error"
    answer = chat(seeing, {"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}})
    assert answer.status_code == 400


def test_models_say_what_they_take(seeing: str, url: str) -> None:
    assert httpx.get(f"{seeing}/props").json()["modalities"] == {"vision": True, "audio": True}
    answer = chat(url, image_url(png(1)))
    assert answer.status_code == 400 and "text" in answer.json()["error"]["message"]
