"""What preprocessing gives: the input rows of a tower."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["image", "audio", "video"]


@dataclass(frozen=True)
class Span:
    """How long a part of a sound is, and the whole of it."""

    seconds: float
    total: float  # of the whole, as its header says it; 0: not known
    silent: bool  # nothing can be heard in it


@dataclass(frozen=True, eq=False)
class Features:
    """One image, one frame of a video, or one sound of at most 30 s: a sequence of a tower's batch.

    Patches of an image are ordered by cell (the k × k patches that are pooled into one soft token): cells
    row-major, and patches row-major within their cell. So the mean of each k² rows is a pooled row.
    """

    rows: NDArray[np.float32]  # [T, width]: a patch, four mel frames, or 640 samples
    coordinates: NDArray[np.int32]  # [T, 2]: column and row of the patch; for sound (valid mel frames, 0)
    tokens: int  # soft tokens that the tower makes of it
    digest: bytes  # of the content and the options of its preprocessing
    span: Span | None = None  # of a sound
    kept: bool = True  # whether it may come again, so that its soft tokens are worth keeping


@dataclass(frozen=True, eq=False)
class Prepared:
    """A medium, preprocessed. An image has one part, and one more for each crop of pan and scan; a sound one
    for each 30 s; a video one for each frame. `times` are the seconds at which parts begin."""

    kind: Kind
    parts: tuple[Features, ...]
    times: tuple[float, ...]

    @property
    def tokens(self) -> int:
        return sum(part.tokens for part in self.parts)


def digest_of(options: object, *content: NDArray[np.generic] | str) -> bytes:
    """The hash of a part: its content, with shapes, and how it was preprocessed."""
    found = hashlib.blake2b(repr(options).encode(), digest_size=32)
    for each in content:
        if isinstance(each, str):
            found.update(each.encode())
        else:
            found.update(f"|{each.dtype} {each.shape}|".encode())
            found.update(np.ascontiguousarray(each).data)
    return found.digest()


def timestamp(seconds: float) -> str:
    """Where a frame of a video is, as models are told: MM:SS, minutes beyond 59 too."""
    return f"{int(seconds // 60):02d}:{int(seconds % 60):02d}"
