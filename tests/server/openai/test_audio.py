"""/v1/audio/transcriptions and /v1/audio/translations, on a small random model that hears."""

from __future__ import annotations

import io
import json
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
import soundfile

from olivine.llm import LLM
from oracles.waiting import eventually

PATH = "/v1/audio/transcriptions"
SHORT = {"max_tokens": "6"}


def tone(seconds: float) -> bytes:
    """A tone with a pause from 1.6 to 1.9 s."""
    sound = 0.3 * np.sin(2 * np.pi * 440 * np.arange(round(seconds * 16_000)) / 16_000)
    sound[round(1.6 * 16_000) : round(1.9 * 16_000)] = 0
    file = io.BytesIO()
    soundfile.write(file, sound, 16_000, format="FLAC")
    return file.getvalue()


def post(url: str, content: bytes, path: str = PATH, **fields: str) -> httpx.Response:
    form = {"model": "m", **SHORT, **fields}
    return httpx.post(url + path, data=form, files={"file": ("sound.flac", content)}, timeout=200)


def test_every_format(heard: str, hearing: LLM) -> None:
    content = tone(4.0)
    expected = hearing.transcribe(content, window=2, max_tokens=6, logprobs=0)
    assert [each.start for each in expected.segments[:2]] == [0.0, 1.85]
    found = post(heard, content, window="2")
    assert found.status_code == 200, found.text
    usage = {"input_tokens": expected.usage.prompt, "output_tokens": expected.usage.completion}
    assert found.json()["text"] == expected.text
    assert found.json()["usage"] == {"type": "tokens", **usage, "total_tokens": sum(usage.values())}
    for form, kind, text in (
        ("text", "text/plain", expected.text + "\n"),
        ("srt", "application/x-subrip", expected.srt),
        ("vtt", "text/vtt", expected.vtt),
    ):
        found = post(heard, content, window="2", response_format=form)
        assert found.headers["content-type"].startswith(kind) and found.text == text
    told = post(
        heard,
        content,
        window="2",
        response_format="verbose_json",
        **{"timestamp_granularities[]": "segment"},
    ).json()
    assert told["task"] == "transcribe" and told["duration"] == 4.0 and told["text"] == expected.text
    for each, segment in zip(told["segments"], expected.segments, strict=True):
        assert (each["start"], each["end"]) == (segment.start, segment.end)
        assert each["text"] == segment.text and each["tokens"] == segment.tokens
        assert segment.logprobs is not None
        mean = np.mean([report.logprob for report in segment.logprobs])
        assert each["avg_logprob"] == pytest.approx(mean)


def test_a_stream(heard: str, hearing: LLM) -> None:
    content = tone(4.0)
    form = {"model": "m", **SHORT, "window": "2", "stream": "true"}
    with httpx.stream("POST", heard + PATH, data=form, files={"file": content}, timeout=200) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: ")]
    *deltas, done = events
    assert {each["type"] for each in deltas} == {"transcript.text.delta"} and len(deltas) > 3
    assert done["type"] == "transcript.text.done" and done["usage"]["output_tokens"] > 0
    expected = hearing.transcribe(content, window=2, max_tokens=6).text
    assert done["text"] == "".join(each["delta"] for each in deltas) == expected


def test_a_translation_is_into_english(heard: str, hearing: LLM) -> None:
    content = tone(3.0)
    found = post(heard, content, "/v1/audio/translations", response_format="verbose_json")
    assert found.status_code == 200, found.text
    expected = hearing.transcribe(content, translate="English", max_tokens=6)
    assert (found.json()["task"], found.json()["language"]) == ("translate", "english")
    assert found.json()["text"] == expected.text
    assert found.json()["segments"][0]["tokens"] == expected.segments[0].tokens


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"language": "xx"}, "a language's name or its code"),
        ({"response_format": "xml"}, "response_format"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": "-1"}, "temperature"),
        ({"window": "31"}, "window must be seconds between 1 and 30"),
        ({"timestamp_granularities[]": "word"}, "times are known of segments only"),
        ({"include[]": "logprobs"}, "avg_logprob"),
        ({"stream": "true", "response_format": "srt"}, "a stream has text only"),
        ({"model": "other"}, "other"),
    ],
)
def test_what_is_refused(heard: str, fields: dict[str, str], told: str) -> None:
    found = post(heard, tone(2.0), **fields)
    assert found.status_code in (400, 404) and told in found.json()["error"]["message"], found.text


def test_bodies_that_are_no_form_are_refused(heard: str, url: str) -> None:
    assert httpx.post(heard + PATH, json={"model": "m"}).status_code == 415
    assert httpx.post(heard + PATH, data={"model": "m"}).status_code == 415  # not multipart
    kind = {"content-type": "multipart/form-data"}
    for content, headers in (
        (b"", kind),
        (b"", {"content-type": "multipart/form-data; boundary=x"}),
        (b"--x\r\n\r\nno name\r\n--x--\r\n", {"content-type": "multipart/form-data; boundary=x"}),
        (b"\0" * 1000, {"content-type": "multipart/form-data; boundary=x"}),
        (b"--x\r\n" + b"a: " + b"b" * 500_000, {"content-type": "multipart/form-data; boundary=x"}),
    ):
        found = httpx.post(heard + PATH, content=content, headers=headers, timeout=200)
        assert found.status_code == 400, (content[:20], found.text)
    many = [(f"field{i}", (None, "x")) for i in range(100)]
    assert "Too many fields" in httpx.post(heard + PATH, files=many).json()["error"]["message"]
    found = httpx.post(heard + PATH, files={"model": (None, "m")})
    assert found.status_code == 400 and found.json()["error"]["param"] == "file"
    assert post(heard, b"").status_code == 400
    found = post(heard, bytes(2 << 20))
    assert found.status_code == 413 and found.json()["error"]["code"] == "request_too_large"
    found = post(url, tone(2.0), model="olivine-mini")
    assert found.status_code == 400 and "has no audio tower" in found.json()["error"]["message"]


def test_a_client_that_leaves_ends_its_transcription(heard: str, hearing: LLM) -> None:
    """Ten minutes of sound: windows that are not begun are never transcribed."""
    file = io.BytesIO()
    soundfile.write(file, np.sin(np.arange(600_000)) / 2, 1000, format="WAV", subtype="PCM_U8")
    sound = {"file": file.getvalue()}
    host, port = heard.removeprefix("http://").split(":")
    form = {"stream": "true", "max_tokens": "200"}
    request = httpx.Request("POST", heard + PATH, data=form, files=sound)
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    before, encoded = hearing.stats().steps, hearing._perception.encoded  # type: ignore[union-attr]
    with socket.create_connection((host, int(port)), 60) as client:
        client.sendall(f"POST {PATH} HTTP/1.1\r\n{head}\r\n".encode() + request.read())
        assert b" 200 " in client.recv(65536)
        eventually(lambda: hearing.stats().steps > before)
    eventually(lambda: hearing.stats().running == hearing.stats().waiting == 0)
    perception = hearing._perception
    assert perception is not None and perception._listener is not None
    listener = perception._listener
    eventually(lambda: len(listener._all) == len(listener._idle))  # no process decodes any more
    assert perception.encoded - encoded < 20
    assert post(heard, tone(2.0)).status_code == 200


def test_more_transcriptions_than_places_wait_for_their_turn(heard: str, hearing: LLM) -> None:
    content = tone(2.5)
    expected = hearing.transcribe(content, max_tokens=6).text
    with ThreadPoolExecutor(9) as pool:
        found = list(pool.map(lambda _: post(heard, content), range(9)))
    assert [each.json()["text"] for each in found] == [expected] * 9
