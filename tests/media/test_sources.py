"""Where media come from, and what is not read."""

from __future__ import annotations

import base64
import io
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from olivine.errors import MediaError
from olivine.media.limits import Limits
from olivine.media.sources import kind_of, source_of

CONTENT = bytes(range(256))
TEXT = base64.b64encode(CONTENT).decode()


def refused(given: Any, kind: Any = "image", **options: Any) -> str:
    with pytest.raises(MediaError) as caught:
        source_of(kind, given, **options).check(Limits())
    assert caught.value.code == f"invalid_{kind}" and str(caught.value).isprintable()
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "form"),
    [
        (CONTENT, "bytes"),
        (bytearray(CONTENT), "bytes"),
        (memoryview(CONTENT), "bytes"),
        (TEXT, "base64"),
        (f"data:image/png;base64,{TEXT}", "base64"),
        (f"DATA:;charset=x;BASE64,{TEXT}", "base64"),
        ("data:image/svg+xml,%3Csvg%20/%3E", "bytes"),
        ({"url": f"data:image/png;base64,{TEXT}", "detail": "low"}, "base64"),  # OpenAI's image_url
        ({"data": TEXT, "format": "wav"}, "base64"),  # OpenAI's input_audio
        ({"type": "image", "source": {"type": "base64", "data": TEXT}}, "base64"),  # Anthropic's
        (np.zeros((2, 3, 3), np.uint8), "array"),
        (Image.new("P", (3, 2)), "array"),
    ],
)
def test_sources_have_many_forms(given: Any, form: str) -> None:
    source = source_of("image", given, paths=False)
    source.check(Limits())
    assert source.form == form and source_of("image", source) is source


def test_a_data_url_in_percent_signs_is_its_bytes() -> None:
    assert source_of("image", "data:,%00%ff%20x").payload == b"\0\xff x"


def test_a_pil_image_is_its_pixels() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.new("RGBA", (3, 2), (255, 0, 0, 0))
    image.getexif().update(exif)
    source = source_of("image", image)
    assert source.shape == (3, 2, 3) and bytes(source.payload) == b"\xff" * 18


@pytest.mark.parametrize("kind", ["TIFF", "JPEG"])
def test_a_pil_image_that_is_not_loaded_yet_is_turned_once(kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    Image.new("RGB", (3, 2)).save(file, kind, exif=exif)
    assert source_of("image", Image.open(file)).shape == (3, 2, 3)


def test_paths_are_read_if_they_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a photo.jpg"
    path.write_bytes(CONTENT)
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in (path, str(path), path.as_uri(), "~/a photo.jpg"):
        assert source_of("image", given).path == str(path)
        assert "not" in refused(given, paths=False) or "neither" in refused(given, paths=False)


def test_a_text_from_a_client_is_never_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even one that is base64 as well."""
    name = "A" * 64
    (tmp_path / name).write_bytes(b"secret")
    monkeypatch.chdir(tmp_path)
    assert source_of("image", name).form == "path"
    assert source_of("image", name, paths=False).form == "base64"
    assert refused("/etc/passwd", paths=False) == "the image is neither a data URL nor base64"


@pytest.mark.parametrize("address", ["http://x/y.png", "HTTPS://x/y.png", "ftp://x", "s3://bucket/x"])
def test_addresses_are_not_fetched(address: str) -> None:
    assert "none are fetched" in refused(address)
    assert "none are fetched" in refused({"url": address}, paths=False)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("/no/such/file.png", "no such file"),
        (Path("/no/such/file.png"), "cannot be read"),
        ("\0" * 100, "no such file"),
        ("\x1b[31m" * 30, "no such file"),
        ("é" * 100_001, "no such file"),
        ("data:image/png;base64", "comma"),
        ("data:image/png;base64,äöü", "base64"),
        ("/dev/zero", "is no file"),
        ("/", "is no file"),
        (b"", "is empty"),
        (7, "is a int"),
        (None, "is a NoneType"),
        ({}, "no source"),
        ({"url": None}, "no source"),
        (np.zeros((0, 3)), "empty array"),
        (np.array(["text"]), "not numbers"),
        ((np.zeros(3), 16_000), "is a tuple"),
    ],
    ids=lambda given: repr(given)[:30],
)
def test_what_is_no_source_is_refused(given: Any, words: str) -> None:
    assert words in refused(given)


def test_samples_need_a_rate() -> None:
    assert "sampling rate" in refused(np.zeros(3), "audio")
    source = source_of("audio", (np.zeros((3, 2), ">i2"), 8000))
    assert (source.rate, source.shape, source.dtype) == (8000.0, (3, 2), np.dtype("=i2").str)


@pytest.mark.parametrize(
    "rate",
    [np.float32(8000), np.int64(8000), np.uint16(8000), Fraction(8000)],
    ids=lambda rate: type(rate).__name__,
)
def test_a_rate_is_any_real_number(rate: Any) -> None:
    assert source_of("audio", (np.zeros(3), rate)).rate == 8000.0


@pytest.mark.parametrize("rate", [True, 0, -1.0, float("nan"), "8000", 1j])
def test_a_rate_that_is_none_is_refused(rate: Any) -> None:
    assert "is a tuple" in refused((np.zeros(3), rate), "audio")


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is no file" in refused(tmp_path / "pipe")


@pytest.mark.parametrize("kind", ["image", "audio", "video"])
def test_bytes_are_limited(kind: Any, tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(2000)
    limits = Limits(image_bytes=1000, audio_bytes=1000, video_bytes=1000)
    for given in (path, bytes(1001), base64.b64encode(bytes(1010)).decode()):
        with pytest.raises(MediaError, match=r"limit is 0\.0 MB"):
            source_of(kind, given).check(limits)
    source_of(kind, bytes(1000)).check(limits)


@pytest.mark.parametrize(
    ("name", "head", "kind"),
    [
        ("x", b"\xff\xd8\xff\xe0", "image"),
        ("x", b"\x89PNG\r\n", "image"),
        ("x", b"RIFF....WEBP", "image"),
        ("x.heic", b"\0\0\0\x18ftypheic", "image"),
        ("x", b"RIFF....WAVE", "audio"),
        ("x", b"fLaC", "audio"),
        ("x", b"\xff\xfb\x90", "audio"),
        ("x.mp3", b"", "audio"),
        ("x", b"\0\0\0\x18ftypM4A ", "audio"),
        ("x", b"\0\0\0\x18ftypisom", "video"),
        ("x", b"\x1aE\xdf\xa3", "video"),
        ("x.ts", (b"\x47" + bytes(187)) * 2, "video"),
        ("x.m2ts", (bytes(4) + b"\x47" + bytes(187)) * 2, "video"),
        ("x", b"BM\x36\x10\0\0\0\0\0\0\x36", "image"),
        ("x", b"FLV\x01\x05\0\0\0\x09", "video"),
        ("x", b"ID3\x04\0\0\0\0\x1f\x76", "audio"),
        ("x", b"\xff\xf1\x50\x80", "audio"),  # AAC in ADTS
        ("x", b"\xff\xf3\x44\xc4", "audio"),
        ("notes.txt", b"hello", None),
        ("x.json", b"{}", None),
    ],
)
def test_a_file_tells_its_kind(tmp_path: Path, name: str, head: bytes, kind: str | None) -> None:
    path = tmp_path / name
    path.write_bytes(head + bytes(20))
    assert kind_of(path) == kind


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("app.ts", b"export const a = 1;\n" * 30),
        ("APP.MTS", b"Get " + b"x" * 400),
        ("x.mts", b""),
        ("x.txt", "hello, world".encode("utf-16")),
        ("x.txt", "hello, world".encode("utf-32")),
        ("x.txt", "\u4f60\u597d".encode("utf-16")),
        ("x.txt", b"BM25 ranks documents by their words"),
        ("x.txt", b"BM"),
        ("x.txt", b"FLV is a container"),
        ("x.txt", b"ID3 tags hold the title"),
        ("x.txt", b"This is AVI text"),
        ("x.txt", b"The moov box"),
        ("x.bin", b"\xff" * 40),
    ],
    ids=lambda given: ascii(given)[:24],
)
def test_text_is_no_medium(tmp_path: Path, name: str, text: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(text)
    assert kind_of(path) is None


def test_what_is_no_file_has_no_kind(tmp_path: Path) -> None:
    assert kind_of(tmp_path) is None and kind_of(tmp_path / "none") is None and kind_of("a\0b") is None
