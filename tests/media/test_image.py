"""Image files of every kind to RGB."""

from __future__ import annotations

import io
import re
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from transformers.image_transforms import convert_to_rgb

from olivine.errors import MediaError
from olivine.media.image import from_array, prepare_pillow, read_image, to_rgb
from olivine.media.limits import Limits

LIMITS = Limits()


def gradient(width: int = 20, height: int = 12) -> Image.Image:
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack([x, y, 255 - x], axis=-1).astype(np.uint8))


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def read(content: bytes, limits: Limits = LIMITS) -> np.ndarray[Any, Any]:
    prepare_pillow()
    image = read_image(io.BytesIO(content), limits)
    assert image.mode == "RGB"
    return np.asarray(image)


def refused(content: bytes, limits: Limits = LIMITS) -> str:
    with pytest.raises(MediaError) as caught:
        read(content, limits)
    assert caught.value.code == "invalid_image"
    return str(caught.value)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "TGA", "QOI"])
def test_lossless_formats_are_read_exactly(kind: str) -> None:
    np.testing.assert_array_equal(read(saved(gradient(), kind)), np.asarray(gradient()))


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "AVIF"])
def test_lossy_formats_are_read(kind: str) -> None:
    if kind == "AVIF" and kind not in Image.registered_extensions().values():
        pytest.skip("this Pillow has no AVIF")
    found = read(saved(gradient(), kind, quality=95)).astype(int)
    assert np.abs(found - np.asarray(gradient())).mean() < 8


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_that_of_exif(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = saved(gradient(), kind, exif=exif)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB")
    np.testing.assert_array_equal(read(content), np.asarray(expected))
    assert (read(content).shape == (20, 12, 3)) is (orientation > 4)


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_an_orientation_that_means_nothing_turns_nothing(value: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = value
    np.testing.assert_array_equal(read(saved(gradient(), "PNG", exif=exif)), np.asarray(gradient()))


def test_exif_that_is_broken_turns_nothing() -> None:
    content = saved(gradient(), "PNG", exif=b"Exif\0\0" + b"\xff" * 40)
    np.testing.assert_array_equal(read(content), np.asarray(gradient()))


def transparent() -> list[Image.Image]:
    rgba = gradient().convert("RGBA")
    rgba.putalpha(Image.fromarray(np.tile(np.linspace(0, 255, 20).astype(np.uint8), (12, 1))))
    palette = gradient().quantize(8)
    palette.info["transparency"] = 3
    keyed = gradient().convert("L")
    keyed.info["transparency"] = 107
    return [rgba, rgba.convert("LA"), rgba.convert("PA"), palette, keyed]


@pytest.mark.parametrize("image", transparent(), ids=lambda image: image.mode)
def test_transparency_is_white_as_published(image: Image.Image) -> None:
    expected = convert_to_rgb(image, return_numpy=True)
    np.testing.assert_array_equal(np.asarray(to_rgb(image)), expected)
    assert (expected != np.asarray(image.convert("RGB"))).any()


def test_transparency_in_a_palette_is_white() -> None:
    """Pillow gives a quantized RGBA image such a palette."""
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255, 0, 255], "RGBA")
    image.putpixel((1, 0), 1)
    assert np.asarray(to_rgb(image)).tolist() == [[[255, 255, 255], [0, 255, 0]]]


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr", "HSV", "LAB", "RGBX"])
def test_other_modes_are_converted_as_published(mode: str) -> None:
    image = (
        gradient().convert("RGB").convert(mode) if mode != "LAB" else Image.new("LAB", (4, 4), (128, 40, 60))
    )
    np.testing.assert_array_equal(np.asarray(to_rgb(image)), convert_to_rgb(image, return_numpy=True))


def test_a_jpeg_in_cmyk_is_read() -> None:
    assert read(saved(gradient().convert("CMYK"), "JPEG")).shape == (12, 20, 3)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_count_by_their_upper_eight(kind: str) -> None:
    values = np.linspace(0, 65535, 240).astype(np.uint16).reshape(12, 20)
    found = read(saved(Image.fromarray(values), kind))
    np.testing.assert_array_equal(found, np.repeat((values >> 8)[..., None], 3, axis=2))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_a_dark_image_of_sixteen_bits_is_dark_in_every_file(kind: str) -> None:
    values = np.full((12, 20), 200, np.uint16)
    assert not read(saved(Image.fromarray(values), kind)).any()
    for order in "<>":
        assert not np.asarray(from_array(values.astype(f"{order}u2"), "image")).any()
    swapped = Image.frombytes("I;16B", (20, 12), values.astype(">u2").tobytes())
    assert not np.asarray(to_rgb(swapped)).any()


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_is_read(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "lime", "blue")]
    content = saved(frames[0], kind, save_all=True, append_images=frames[1:], duration=100, lossless=True)
    np.testing.assert_array_equal(read(content), np.asarray(frames[0]))


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.uint8([[7]]), 7),
        (np.uint16([[0x1234]]), 0x12),
        (np.int64([[200]]), 200),
        (np.float32([[0.5]]), 128),
        (np.bool_([[True]]), 255),
        (np.uint8([[[9, 9, 9, 0]]]), 255),
        (np.full((1, 1, 1), 5, np.uint8), 5),
        (np.full((3, 2, 2), 5, np.uint8), 5),
    ],
    ids=str,
)
def test_arrays_of_any_numbers_are_images(array: np.ndarray[Any, Any], expected: int) -> None:
    assert (np.asarray(from_array(array, "image")) == expected).all()


@pytest.mark.parametrize(
    "array",
    [np.zeros(3), np.zeros((2, 2, 5)), np.float32([[2.0]]), np.float32([[np.nan]]), np.int32([[-1]])],
    ids=str,
)
def test_other_arrays_are_refused(array: np.ndarray[Any, Any]) -> None:
    with pytest.raises(MediaError, match=r"expected|give"):
        from_array(array, "image")


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"\0\0\0\x20ftypheic\0\0\0\0mif1heic", "HEIC.*convert"),
        (b"\0\0\0\x20ftypmif1\0\0\0\0mif1heic", "HEIC.*convert"),
        (b"\0\0\0\x20ftypisom\0\0\0\0isomavc1", "video or a sound"),
        (b"<svg xmlns=", "SVG"),
        (b"%PDF-1.7", "PDF"),
        (b"", "empty"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n", "no known format"),
        (b"\x1b]0;owned\x07 hello", r"no known format .*\\x1b"),
        (b"\x89PNG\r\n\x1a\n", "the image is broken"),
        (b"\xff\xd8\xff\xe0", "the image is broken"),
        (b"GIF89a", "the image is broken"),
    ],
)
def test_what_is_no_image_is_refused_in_words(head: bytes, words: str) -> None:
    message = refused(head + bytes(100) if head else head)
    assert re.search(words, message) and message.isprintable()


def test_avif_without_support_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("olivine.media.image._formats", lambda: ("PNG",))
    assert "AVIF" in refused(b"\0\0\0\x20ftypavif\0\0\0\0avifmif1" + bytes(60))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_a_truncated_file_is_refused(kind: str) -> None:
    content = saved(gradient(200, 120), kind)
    with pytest.raises(Exception):  # noqa: B017 - the worker makes a MediaError of whatever Pillow raises
        read(content[: len(content) // 2])


def test_pixels_are_counted_before_they_are_decoded() -> None:
    content = bytearray(saved(gradient(), "PNG"))
    content[16:24] = (60000).to_bytes(4, "big") * 2  # the size in the header
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    assert "60000 × 60000" in refused(bytes(content), Limits(pixels=1000))
    assert "20 × 12" in refused(saved(gradient(), "PNG"), Limits(pixels=239))
    assert read(saved(gradient(), "PNG"), Limits(pixels=240)).shape == (12, 20, 3)
