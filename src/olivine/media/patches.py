"""From an RGB image to the rows of a vision tower: resized, in patches by cell, scaled to floats."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from olivine.media.features import Features, digest_of
from olivine.media.options import BudgetImage, ImageOptions, SquareImage
from olivine.media.resize import resized

if TYPE_CHECKING:
    from PIL import Image


def image_features(image: Image.Image, options: ImageOptions) -> list[Features]:
    """The parts of an image: the whole, then the crops of pan and scan if they are asked for."""
    if isinstance(options, BudgetImage):
        return [_budget(image, options)]
    whole = _square(image, options)
    if not options.pan_and_scan:
        return [whole]
    boxes = pan_and_scan(image.width, image.height, options)
    return [whole, *(_square(image.crop(box), options) for box in boxes)]


def pan_and_scan(width: int, height: int, options: SquareImage) -> list[tuple[int, int, int, int]]:
    """The crops (left, top, right, bottom) of an image that is much longer than wide: along its long side."""
    long, short = max(width, height), min(width, height)
    if long / short < options.min_ratio:
        return []
    crops = min(long // options.min_crop, math.floor(long / short + 0.5))
    crops = min(max(crops, 2), options.max_crops)
    length = math.ceil(long / crops)
    if min(length, short) < options.min_crop:
        return []
    spans = [(length * i, min(length * (i + 1), long)) for i in range(crops)]
    if width >= height:
        return [(start, 0, end, height) for start, end in spans]
    return [(0, start, width, end) for start, end in spans]


def budget_size(width: int, height: int, options: BudgetImage) -> tuple[int, int]:
    """The width and height that an image is resized to: whole cells, as many as its budget has room for at
    about its aspect ratio. The floating-point steps are those of the published processor."""
    cell = options.patch * options.pool
    pixels = options.budget * options.pool**2 * options.patch**2
    factor = math.sqrt(pixels / (height * width))
    rows = math.floor(factor * height / cell)
    columns = math.floor(factor * width / cell)
    if rows == 0:  # a strip: one row of cells, of at most the budget
        rows, columns = 1, min(width // height, options.budget)
    elif columns == 0:
        rows, columns = min(height // width, options.budget), 1
    return columns * cell, rows * cell


def _square(image: Image.Image, options: SquareImage) -> Features:
    pixels = resized(image, options.size, options.size, cubic=False)
    scaled = np.divide(pixels, np.float32(255), dtype=np.float32)
    scaled -= np.asarray(options.mean, np.float32)
    scaled /= np.asarray(options.std, np.float32)
    side = options.size // options.patch
    # A patch is (channel, row, column): the order of SigLIP's convolution weights.
    rows = _cells(scaled, options.patch, options.pool).transpose(0, 3, 1, 4, 6, 2, 5)
    return Features(
        np.ascontiguousarray(rows).reshape(side * side, -1),
        _coordinates(side, side, options.pool),
        (side // options.pool) ** 2,
        digest_of(replace(options, pan_and_scan=False), pixels),
    )


def _budget(image: Image.Image, options: BudgetImage) -> Features:
    size = budget_size(image.width, image.height, options)
    pixels = np.asarray(image) if size == image.size else resized(image, *size, cubic=True)
    cells = _cells(pixels, options.patch, options.pool)
    tokens = cells.shape[0] * cells.shape[3]
    if options.merged:
        # A row is a whole cell, (row, column, channel), and its coordinates are the cell's.
        rows = cells.reshape(cells.shape[0], options.pool * options.patch, cells.shape[3], -1)
        rows = rows.transpose(0, 2, 1, 3).reshape(tokens, -1)
        coordinates = _coordinates(cells.shape[3], cells.shape[0], 1)
    else:
        # A patch is (row, column, channel).
        rows = cells.transpose(0, 3, 1, 4, 2, 5, 6).reshape(tokens * options.pool**2, -1)
        columns, lines = size[0] // options.patch, size[1] // options.patch
        coordinates = _coordinates(columns, lines, options.pool)
    scaled = np.divide(rows, np.float32(255), dtype=np.float32)
    return Features(scaled, coordinates, tokens, digest_of(options, pixels))


def _cells(pixels: NDArray[np.generic], patch: int, pool: int) -> NDArray[np.generic]:
    """[H, W, 3] as [cell row, patch row, row, cell column, patch column, column, channel]: a view."""
    height, width, channels = pixels.shape
    cell = patch * pool
    return pixels.reshape(height // cell, pool, patch, width // cell, pool, patch, channels)


def _coordinates(columns: int, rows: int, pool: int) -> NDArray[np.int32]:
    """(x, y) of each patch, cell by cell: [T, 2]."""
    y, x = np.mgrid[:rows, :columns].astype(np.int32)
    grid = np.stack([x, y], axis=-1).reshape(rows // pool, pool, columns // pool, pool, 2)
    return np.ascontiguousarray(grid.transpose(0, 2, 1, 3, 4).reshape(-1, 2))


def video_features(
    frames: Iterator[tuple[float, Image.Image]], options: ImageOptions
) -> Iterator[tuple[float, Features]]:
    for seconds, frame in frames:
        yield seconds, image_features(frame, options)[0]
