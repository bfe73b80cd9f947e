"""The native resize has every bit of Pillow's."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from olivine.media import resize
from olivine.media.image import prepare_pillow


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    """The library; images of all sizes are large."""
    found = resize._library()
    if found is None:
        pytest.skip("the native library was built before it could resize")
    prepare_pillow()
    monkeypatch.setattr(resize, "_LARGE", 0)
    return found


def picture(width: int, height: int) -> Image.Image:
    rng = np.random.default_rng(width * 31 + height)
    pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
    pixels[rng.random((height, width)) < 0.5] = 255  # cubic weights overshoot at edges
    pixels[rng.random((height, width)) < 0.3] = 0
    return Image.fromarray(pixels)


def expected(image: Image.Image, width: int, height: int, cubic: bool) -> NDArray[np.uint8]:
    filter = Image.Resampling.BICUBIC if cubic else Image.Resampling.BILINEAR
    return np.asarray(image.resize((width, height), filter))


@pytest.mark.parametrize("cubic", [False, True])
@pytest.mark.parametrize(
    ("size", "to"),
    [
        ((640, 480), (96, 48)),
        ((641, 479), (97, 49)),
        ((1000, 31), (17, 5)),
        ((31, 1000), (5, 17)),
        ((200, 200), (199, 199)),
        ((999, 777), (336, 240)),
        ((4000, 20), (1, 1)),
        ((300, 300), (7, 150)),
    ],
    ids=str,
)
def test_a_smaller_image_has_the_bits_of_pillow(
    size: tuple[int, int], to: tuple[int, int], cubic: bool
) -> None:
    image = picture(*size)
    found = resize._native(image, *to, cubic)
    assert (found is None) is (size in ((31, 1000), (4000, 20)))
    if found is not None:
        np.testing.assert_array_equal(found, expected(image, *to, cubic))
    np.testing.assert_array_equal(resize.resized(image, *to, cubic=cubic), expected(image, *to, cubic))


@pytest.mark.parametrize("isa", ["plain", None])
def test_many_sizes_have_the_bits_of_pillow(library: ctypes.CDLL, isa: str | None) -> None:
    library.olv_isa.restype = ctypes.c_char_p
    before = library.olv_isa()
    if isa is not None:
        assert library.olv_set_isa(isa.encode()) == 0
    try:
        _compare_many()
    finally:
        assert library.olv_set_isa(before) == 0


def _compare_many() -> None:
    rng = np.random.default_rng(0)
    for index in range(60):
        width, height = rng.integers(40, 400, 2).tolist()
        to = (int(rng.integers(4, width)), int(rng.integers(4, height)))
        image, cubic = picture(width, height), index % 2 == 0
        np.testing.assert_array_equal(resize.resized(image, *to, cubic=cubic), expected(image, *to, cubic))


@pytest.mark.parametrize("to", [(300, 50), (50, 300), (100, 100), (300, 300)], ids=str)
def test_an_image_that_does_not_shrink_both_ways_is_left_to_pillow(to: tuple[int, int]) -> None:
    image = picture(100, 100)
    assert resize._native(image, *to, True) is None
    np.testing.assert_array_equal(resize.resized(image, *to, cubic=True), expected(image, *to, True))


def test_small_images_and_those_in_pieces_are_left_to_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    image = picture(300, 300)
    assert resize._native(image, 30, 30, True) is not None
    monkeypatch.setattr(resize, "_LARGE", 300 * 300 + 1)
    assert resize._native(image, 30, 30, True) is None
    monkeypatch.setattr(resize, "_LARGE", 0)
    Image.core.set_use_block_allocator(0)
    try:
        scattered = picture(2500, 2500)  # Pillow allocates 16 MiB at a time
        assert resize._native(scattered, 30, 30, True) is None
    finally:
        Image.core.set_use_block_allocator(1)
    np.testing.assert_array_equal(
        resize.resized(scattered, 30, 20, cubic=True), expected(scattered, 30, 20, True)
    )


def test_weights_that_reach_beyond_the_image_are_refused(library: ctypes.CDLL) -> None:
    found = resize.axis(100, 10, True)
    assert found is not None
    first, weights = found
    pixels, to = np.zeros((100, 100, 4), np.uint8), np.zeros((10, 10, 4), np.uint8)

    def answer(first: NDArray[np.int32]) -> int:
        axis = resize._struct(first, weights, 100)
        return int(
            library.olv_resize(pixels.ctypes.data, ctypes.byref(axis), ctypes.byref(axis), to.ctypes.data)
        )

    assert answer(first) == 0
    for wrong in (first + 1, first - 1, first[::-1].copy(), np.full_like(first, 99)):
        assert answer(wrong) != 0
