"""Resizing large images: as Pillow does it, to the bit, in the native library, which is three times as fast.

Where the library is missing, or an image is small or enlarged, Pillow itself resizes.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL import Image

_LARGE = 1 << 19  # pixels
_POINT = 22  # bits of a weight behind the point


class _Axis(ctypes.Structure):
    """olv_axis"""

    _fields_ = (
        ("from", ctypes.c_int64),
        ("to", ctypes.c_int64),
        ("taps", ctypes.c_int64),
        ("first", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
    )


class _ArrowArray(ctypes.Structure):
    """The C data interface of Arrow."""


_ArrowArray._fields_ = (
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_ArrowArray))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
)


def resized(image: Image.Image, width: int, height: int, *, cubic: bool) -> NDArray[np.uint8]:
    """An RGB image in another size, bilinear or bicubic: [height, width, 3]."""
    found = _native(image, width, height, cubic)
    if found is not None:
        return found
    from PIL.Image import Resampling

    return np.asarray(image.resize((width, height), Resampling.BICUBIC if cubic else Resampling.BILINEAR))


def _native(image: Image.Image, width: int, height: int, cubic: bool) -> NDArray[np.uint8] | None:
    library = _library()
    if library is None or image.width * image.height < _LARGE or image.mode != "RGB":
        return None
    if image.height - height > 2 * (image.width - width):
        return None  # here Pillow 13 begins with the vertical pass, which rounds otherwise
    across, down = axis(image.width, width, cubic), axis(image.height, height, cubic)
    if across is None or down is None:
        return None
    try:
        held = image.__arrow_c_array__()
    except (AttributeError, ValueError):
        return None  # rows that do not lie together
    to = np.empty((height, width, 4), np.uint8)
    x, y = _struct(*across, image.width), _struct(*down, image.height)
    failed = library.olv_resize(_address(held[1]), ctypes.byref(x), ctypes.byref(y), to.ctypes.data)
    return None if failed else np.ascontiguousarray(to[:, :, :3])


def axis(size: int, to: int, cubic: bool) -> tuple[NDArray[np.int32], NDArray[np.int32]] | None:
    """Pillow's weights for one axis: where each sum begins [to], and its weights [to, taps]. None where an
    axis does not shrink, or is shorter than a sum."""
    if to >= size:
        return None
    scale = size / to
    support = (2.0 if cubic else 1.0) * scale
    taps = math.ceil(support) * 2 + 1
    taps += -taps % 4
    if taps > size:
        return None
    center = (np.arange(to) + 0.5) * scale
    first = np.maximum((center - support + 0.5).astype(np.int64), 0)
    count = np.minimum((center + support + 0.5).astype(np.int64), size) - first
    weights = np.zeros((to, taps))
    total = np.zeros(to)
    for tap in range(taps):  # in this order, for the same bits
        weight = _filter((tap + first - center + 0.5) * (1.0 / scale), cubic)
        weights[:, tap] = np.where(tap < count, weight, 0.0)
        total += weights[:, tap]
    weights /= total[:, None]
    fixed = np.trunc(weights * (1 << _POINT) + np.where(weights < 0, -0.5, 0.5)).astype(np.int32)
    # No sum reads beyond the end: those that would begin earlier, with weights of 0.
    over = np.maximum(first + taps - size, 0)
    index = np.arange(taps) - over[:, None]
    fixed = np.where(index >= 0, np.take_along_axis(fixed, np.maximum(index, 0), axis=1), 0)
    return (first - over).astype(np.int32), np.ascontiguousarray(fixed, np.int32)


def _filter(x: NDArray[np.float64], cubic: bool) -> NDArray[np.float64]:
    x = np.abs(x)
    if not cubic:
        return np.where(x < 1.0, 1.0 - x, 0.0)
    a = -0.5
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


def _struct(first: NDArray[np.int32], weights: NDArray[np.int32], size: int) -> _Axis:
    return _Axis(size, len(first), weights.shape[1], first.ctypes.data, weights.ctypes.data)


def _address(capsule: Any) -> int:
    """Where the pixels are that an Arrow array holds."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    array = _ArrowArray.from_address(pointer(capsule, b"arrow_array"))
    return array.children[0].contents.buffers[1]


@cache
def _library() -> ctypes.CDLL | None:
    """The native library, if it is there and has what is needed. It is loaded by its path, because a worker
    process imports nothing of the backends."""
    name = {"darwin": "libolivine.dylib", "win32": "olivine.dll"}.get(sys.platform, "libolivine.so")
    given = os.environ.get("OLIVINE_LIBRARY") or Path(__file__).parents[1] / "backends" / "cpu" / name
    try:
        library = ctypes.CDLL(str(given))
        library.olv_resize.argtypes = [ctypes.c_void_p] * 4
    except (OSError, AttributeError):
        return None
    return library
