"""Pixels as towers read them, against the published image processors: equal where Pillow resizes in both."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

from olivine.media.options import BUDGETS, BudgetImage, SquareImage
from olivine.media.patches import budget_size, image_features, pan_and_scan

# Width and height.
SIZES = [
    (1, 1),
    (1, 5000),
    (5000, 1),
    (3, 2),
    (47, 49),
    (640, 480),
    (333, 1001),
    (896, 896),
    (768, 768),
    (2001, 77),
]


def picture(width: int, height: int) -> Image.Image:
    rng = np.random.default_rng(width * 7919 + height)
    rough = rng.integers(0, 256, (height, width, 3), np.uint8)
    smooth = np.add.outer(np.arange(height), np.arange(width))[..., None] * np.array([1, 2, 3]) % 256
    return Image.fromarray(np.where(rough > 200, rough, smooth).astype(np.uint8))


def by_cell(width: int, height: int, pool: int) -> list[int]:
    """The row-major index of each patch, in the order of `Features`."""
    return [
        (cy * pool + y) * width + cx * pool + x
        for cy in range(height // pool)
        for cx in range(width // pool)
        for y in range(pool)
        for x in range(pool)
    ]


def square_patches(pixels: NDArray[np.float32], patch: int) -> NDArray[np.float32]:
    """[3, S, S] as the input of SigLIP's convolution, patches row-major."""
    unfolded = torch.nn.functional.unfold(torch.from_numpy(pixels)[None], patch, stride=patch)
    return unfolded[0].T.numpy()


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_gemma3_has_the_published_pixels(size: tuple[int, int]) -> None:
    image = picture(*size)
    processor = Gemma3ImageProcessorPil(size={"height": 896, "width": 896})
    published = processor(image, return_tensors="np")["pixel_values"][0]
    (found,) = image_features(image, SquareImage())
    order = by_cell(64, 64, 4)
    assert found.tokens == 256
    np.testing.assert_array_equal(found.rows, square_patches(published, 14)[order])
    np.testing.assert_array_equal(found.coordinates, [(i % 64, i // 64) for i in order])


@pytest.mark.parametrize("size", [(900, 300), (301, 1200), (600, 600), (2600, 270), (257, 310)], ids=str)
def test_pan_and_scan_crops_as_published(size: tuple[int, int]) -> None:
    image = picture(*size)
    processor = Gemma3ImageProcessorPil(
        size={"height": 56, "width": 56},
        do_pan_and_scan=True,
        pan_and_scan_min_crop_size=256,
        pan_and_scan_max_num_crops=4,
        pan_and_scan_min_ratio_to_activate=1.2,
    )
    published = processor(image, return_tensors="np")
    found = image_features(image, SquareImage(size=56, pan_and_scan=True))
    assert len(found) == 1 + int(published["num_crops"][0])
    for part, pixels in zip(found, published["pixel_values"], strict=True):
        np.testing.assert_array_equal(part.rows, square_patches(pixels, 14)[by_cell(4, 4, 4)])


def test_pan_and_scan_has_the_published_crops_for_many_sizes() -> None:
    processor = Gemma3ImageProcessorPil()
    rng = np.random.default_rng(1)
    for width, height in rng.integers(1, 2000, (500, 2)).tolist():
        blank = np.broadcast_to(np.uint8(0), (3, height, width))
        shapes = [crop.shape[1:] for crop in processor.pan_and_scan(blank, 256, 4, 1.2)]
        boxes = pan_and_scan(width, height, SquareImage())
        assert [(bottom - top, right - left) for left, top, right, bottom in boxes] == shapes


@pytest.mark.parametrize("budget", BUDGETS)
def test_gemma4_resizes_to_the_published_sizes(budget: int) -> None:
    from transformers.models.gemma4.image_processing_pil_gemma4 import get_aspect_ratio_preserving_size

    rng = np.random.default_rng(budget)
    sizes = np.exp(rng.uniform(0, math.log(9000), (1000, 2))).astype(int).tolist()
    for width, height in [*sizes, *SIZES]:
        published = get_aspect_ratio_preserving_size(height, width, 16, budget * 9, 3)
        assert budget_size(width, height, BudgetImage(budget)) == published[::-1]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("budget", [70, 280])
def test_gemma4_has_the_published_pixels(size: tuple[int, int], budget: int) -> None:
    image = picture(*size)
    published = Gemma4ImageProcessorPil(max_soft_tokens=budget)(image, return_tensors="np")
    tokens = published["num_soft_tokens_per_image"][0]
    positions = published["image_position_ids"][0][: tokens * 9]
    (found,) = image_features(image, BudgetImage(budget))
    order = by_cell(positions[:, 0].max() + 1, positions[:, 1].max() + 1, 3)
    assert found.tokens == tokens
    np.testing.assert_array_equal(found.rows, published["pixel_values"][0][: tokens * 9][order])
    np.testing.assert_array_equal(found.coordinates, positions[order])


@pytest.mark.parametrize("size", [(640, 480), (77, 901), (1, 300)], ids=str)
def test_merged_patches_are_the_cells_of_the_others(size: tuple[int, int]) -> None:
    """gemma4_unified: its published processor needs torchvision, and merges the same patches."""
    image = picture(*size)
    (small,) = image_features(image, BudgetImage(70))
    (merged,) = image_features(image, BudgetImage(70, merged=True))
    assert merged.rows.shape == (small.tokens, 48 * 48 * 3) and merged.tokens == small.tokens
    # From [cell, patch row, patch column, row, column, channel].
    cells = small.rows.reshape(-1, 3, 3, 16, 16, 3).transpose(0, 1, 3, 2, 4, 5)
    np.testing.assert_array_equal(merged.rows, cells.reshape(small.tokens, -1))
    np.testing.assert_array_equal(merged.coordinates, small.coordinates[::9] // 3)


def test_torchvision_resizes_to_the_same_within_one_level() -> None:
    """The published processors of videos and of gemma4_unified resize with torchvision, which calls this."""
    image = picture(640, 480)
    size = budget_size(*image.size, BudgetImage(70))
    planes = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    theirs = torch.nn.functional.interpolate(planes, size[::-1], mode="bicubic", antialias=True)[0]
    ours = np.asarray(image.resize(size, Image.Resampling.BICUBIC)).astype(int)
    assert np.abs(ours - theirs.permute(1, 2, 0).numpy().astype(int)).max() <= 1


def test_a_digest_tells_pixels_and_options_apart() -> None:
    image, other = picture(64, 64), picture(65, 64)
    options = [
        BudgetImage(70),
        BudgetImage(140),
        BudgetImage(70, merged=True),
        SquareImage(56),
        SquareImage(112),
    ]
    digests = [image_features(each, option)[0].digest for each in (image, other) for option in options]
    assert len(set(digests)) == len(digests)
    again = image_features(picture(64, 64), SquareImage(56, pan_and_scan=True))[0].digest
    assert again == image_features(image, SquareImage(56))[0].digest


def test_a_budget_is_one_of_five() -> None:
    with pytest.raises(ValueError, match="100"):
        BudgetImage(100)
