"""Dequantization of GGUF's IQ1, IQ2 and IQ3 types: codes are indices of words in a grid (`../grids.inc`).

A super-block has 256 elements: 32 words of eight, or 64 of four. IQ2 and IQ3 words are magnitudes, and each
element has a sign bit; IQ1 words are signed, and are moved up or down by an eighth.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Blocks = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint16]
Indices = npt.NDArray[np.integer]

_GRID = re.compile(r'GRID\((\w+), (\d), \((.*)\),([ \n"0-9a-f]*)\)')


@cache
def grid(name: str) -> Float32:
    """The words of a type's grid [words, length]; those of IQ1_S are in eighths."""
    text = files("olivine.backends").joinpath("grids.inc").read_text(encoding="utf-8")
    length, values, figures = next(each.group(2, 3, 4) for each in _GRID.finditer(text) if each[1] == name)
    digits = [float(value) for value in values.split(",")]
    bits = [int(figure, 16) >> bit & 1 for figure in re.sub(r'[ \n"]', "", figures) for bit in range(4)]
    place = len(digits) ** np.arange(int(length))
    return np.array(digits, np.float32)[np.flatnonzero(bits)[:, None] // place % len(digits)]


def _half(blocks: Blocks, at: int) -> Float32:
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _u16(blocks: Blocks) -> Words:
    return np.ascontiguousarray(blocks).view("<u2")


def _bits(blocks: Blocks) -> Float32:
    """-1 for a set bit, else 1: eight a byte, the lowest first."""
    return 1 - 2 * np.unpackbits(blocks, axis=-1, bitorder="little").astype(np.float32)


def _with_parity(signs: npt.NDArray[np.uint32]) -> Blocks:
    """Seven sign bits; the eighth makes their number even."""
    seven = (signs & 127).astype(np.uint8)
    folded = seven ^ seven >> 4
    return seven | (np.uint16(0x6996) >> (folded & 15)).astype(np.uint8) << np.uint8(7)


def _nibbles(scales: Blocks) -> Float32:
    """The low nibble of a byte, then its high one."""
    return np.stack([scales & 15, scales >> 4], axis=-1).reshape(len(scales), -1).astype(np.float32)


def _magnitudes(name: str, scale: Float32, index: Indices, signs: Blocks) -> Float32:
    """Scales, each for the same number of elements; indices of words; a sign bit for each element."""
    words = grid(name)[index].reshape(len(index), scale.shape[1], -1)
    return (scale[:, :, None] * words).reshape(len(index), 256) * _bits(signs)


def _scale_and_signs(packed: Blocks) -> tuple[Float32, Blocks]:
    """32 bits for 32 elements: four times seven sign bits, then a scale of four bits."""
    word = np.ascontiguousarray(packed).view("<u4")
    seven = word[:, :, None] >> np.arange(0, 28, 7, dtype=np.uint32)
    return (word >> 28).astype(np.float32), _with_parity(seven).reshape(len(word), 32)


def iq2_xxs(b: Blocks) -> Float32:
    pairs = b[:, 2:].reshape(-1, 8, 8)  # four indices, then signs and scale
    scale, signs = _scale_and_signs(pairs[:, :, 4:].reshape(-1, 32))
    return _magnitudes(
        "IQ2_XXS", _half(b, 0) * (0.5 + scale) * np.float32(0.25), pairs[:, :, :4].reshape(-1, 32), signs
    )


def iq2_xs(b: Blocks) -> Float32:
    words = _u16(b[:, 2:66])
    scale = _half(b, 0) * (0.5 + _nibbles(b[:, 66:74])) * np.float32(0.25)
    return _magnitudes("IQ2_XS", scale, words & 511, _with_parity((words >> 9).astype(np.uint32)))


def iq2_s(b: Blocks) -> Float32:
    high = (b[:, 66:74, None] >> np.arange(0, 8, 2, dtype=np.uint8) & 3).reshape(-1, 32)
    scale = _half(b, 0) * (0.5 + _nibbles(b[:, 74:82])) * np.float32(0.25)
    return _magnitudes("IQ2_S", scale, b[:, 2:34] | high.astype(np.uint16) << 8, b[:, 34:66])


def iq3_xxs(b: Blocks) -> Float32:
    scale, signs = _scale_and_signs(b[:, 66:98])
    return _magnitudes("IQ3_XXS", _half(b, 0) * (0.5 + scale) * np.float32(0.5), b[:, 2:66], signs)


def iq3_s(b: Blocks) -> Float32:
    high = np.unpackbits(b[:, 66:74], axis=-1, bitorder="little")
    scale = _half(b, 0) * (1 + 2 * _nibbles(b[:, 106:110]))
    return _magnitudes("IQ3_S", scale, b[:, 2:66] | high.astype(np.uint16) << 8, b[:, 74:106])


def _moved(index: Indices, up: npt.NDArray[np.bool_], scale: Float32) -> Float32:
    """IQ1: words, each moved by an eighth; scales, each for the same number of elements."""
    words = grid("IQ1_S")[index] + np.where(up, np.float32(1), np.float32(-1))[:, :, None]
    return (scale[:, :, None] * (words / 8).reshape(len(index), scale.shape[1], -1)).reshape(-1, 256)


def iq1_s(b: Blocks) -> Float32:
    packed = _u16(b[:, 34:50])  # for 32 elements: four times three bits of indices, a scale, a sign
    high = (packed[:, :, None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7).reshape(-1, 32)
    scale = _half(b, 0) * (2 * (packed >> 12 & 7) + 1).astype(np.float32)
    return _moved(b[:, 2:34] | high << 8, np.repeat(packed < 0x8000, 4, axis=1), scale)


def iq1_m(b: Blocks) -> Float32:
    high = np.stack([b[:, 32:48] & 15, b[:, 32:48] >> 4], axis=-1).reshape(-1, 32)  # three bits and a sign
    packed = _u16(b[:, 48:56])  # four scales of three bits each; the last four bits are a quarter of the half
    half = (packed >> 12 << np.arange(0, 16, 4, dtype=np.uint16)).sum(axis=1, keepdims=True, dtype=np.uint16)
    scales = (packed[:, :, None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7).reshape(-1, 16)
    scale = half.view("<f2").astype(np.float32) * (2 * scales + 1).astype(np.float32)
    return _moved(b[:, :32] | (high & 7).astype(np.uint16) << 8, high < 8, scale)
