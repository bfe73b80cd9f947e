"""Images and sounds of random values, as features of our towers and as the published models read them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from oracles import folders


@dataclass(frozen=True)
class Features:
    rows: np.ndarray
    coordinates: np.ndarray


def load(family: str, folder: Path) -> Any:
    """The published model of a folder, in float32."""
    kind, _ = folders.MULTIMODAL[family]
    cls = getattr(transformers, f"{kind}ForConditionalGeneration")
    return cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def cells(columns: int, rows: int, pool: int) -> np.ndarray:
    """The (column, row) of each patch, in our order: cell by cell."""
    at = np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), axis=-1)  # [rows, columns, 2]
    at = at.reshape(rows // pool, pool, columns // pool, pool, 2).swapaxes(1, 2)
    return at.reshape(-1, 2).astype(np.int32)


def _random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).random(shape, np.float32)


def square(model: Any, count: int) -> tuple[list[Features], list[np.ndarray]]:
    """Gemma 3: images of its one size, and their soft tokens by the published model."""
    c = model.config.vision_config
    side, patch = c.image_size // c.patch_size, c.patch_size
    pixels = _random(1, count, 3, c.image_size, c.image_size) * 2 - 1
    at = cells(side, side, side // int(model.config.mm_tokens_per_image**0.5))
    found = []
    for image in pixels:
        patches = image.reshape(3, side, patch, side, patch).transpose(1, 3, 0, 2, 4).reshape(side, side, -1)
        found.append(Features(np.ascontiguousarray(patches[at[:, 1], at[:, 0]]), at))
    with torch.no_grad():
        expected = model.model.get_image_features(torch.from_numpy(pixels)).pooler_output
    return found, [np.asarray(each) for each in expected]


def grids(
    model: Any, sizes: list[tuple[int, int]], pool: int, width: int, merged: bool = False
) -> tuple[list[Features], list[np.ndarray]]:
    """Gemma 4: images of (columns, rows) of patches, together in one padded batch of the published model."""
    step = 1 if merged else pool
    found = [
        Features(_random(i, columns * rows, width), cells(columns, rows, step))
        for i, (columns, rows) in enumerate(sizes)
    ]
    most = max(columns * rows for columns, rows in sizes)
    pixels, at = torch.zeros(len(sizes), most, width), torch.full((len(sizes), most, 2), -1)
    for i, part in enumerate(found):
        order = np.lexsort((part.coordinates[:, 0], part.coordinates[:, 1]))  # row by row
        pixels[i, : len(order)] = torch.from_numpy(part.rows[order])
        at[i, : len(order)] = torch.from_numpy(part.coordinates[order]).long()
    with torch.no_grad():
        expected = model.model.get_image_features(pixels, at).pooler_output
    return found, [np.asarray(each) for each in expected]


def sounds(model: Any, frames: list[int]) -> tuple[list[Features], list[np.ndarray]]:
    """Gemma 4: sounds of so many mel frames, together in one padded batch of the published model."""
    most = max(frames)
    mels = torch.zeros(len(frames), most, 128)
    mask = torch.zeros(len(frames), most, dtype=torch.bool)
    found = []
    for i, count in enumerate(frames):
        values = _random(100 + i, count, 128) * 4 - 5
        rows = -(-count // 4)
        padded = np.zeros((rows * 4, 128), np.float32)
        padded[:count] = values
        at = np.zeros((rows, 2), np.int32)
        at[:, 0] = np.minimum(4, count - 4 * np.arange(rows))
        found.append(Features(padded.reshape(rows, 512), at))
        mels[i, :count], mask[i, :count] = torch.from_numpy(values), True
    with torch.no_grad():
        out = model.model.get_audio_features(mels, mask)
    expected = [
        np.asarray(rows[seen]) for rows, seen in zip(out.pooler_output, out.attention_mask, strict=True)
    ]
    return found, expected


def waves(model: Any, lengths: list[int]) -> tuple[list[Features], list[np.ndarray]]:
    """Gemma 4 12B: sounds of so many rows of 640 samples."""
    found = [Features(_random(i, n, 640) * 2 - 1, np.zeros((n, 2), np.int32)) for i, n in enumerate(lengths)]
    with torch.no_grad():
        expected = [
            np.asarray(model.model.get_audio_features(torch.from_numpy(part.rows)[None]).pooler_output[0])
            for part in found
        ]
    return found, expected
