"""How a model wants its media: fixed by its tower, with the choices that users have."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

BUDGETS = (70, 140, 280, 560, 1120)  # soft tokens of an image, for Gemma 4


@dataclass(frozen=True)
class SquareImage:
    """Gemma 3 (SigLIP): every image is resized to a square, whatever its shape. Bilinear.

    Pan and scan adds crops of a long image, each resized to the same square.
    """

    size: int = 896
    patch: int = 14
    pool: int = 4
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    pan_and_scan: bool = False
    min_crop: int = 256  # pixels
    max_crops: int = 4
    min_ratio: float = 1.2  # of the long side to the short one


@dataclass(frozen=True)
class BudgetImage:
    """Gemma 4: an image keeps its aspect ratio and fills a budget of soft tokens. Bicubic.

    `merged` is for gemma4_unified, which has no tower: a row is a whole cell of 48 × 48 pixels.
    """

    budget: int = 280
    patch: int = 16
    pool: int = 3
    merged: bool = False

    def __post_init__(self) -> None:
        if self.budget not in BUDGETS:
            raise ValueError(f"an image's budget is one of {BUDGETS}, not {self.budget}")


@dataclass(frozen=True)
class MelAudio:
    """Gemma 4's audio tower: log-mel frames of 10 ms, four in a row. Pieces of 30 s, or shorter ones that end
    where it is quiet."""

    piece: int = 480_000  # samples
    # Samples at the end of a piece, in the quietest place of which it is cut; no part of its digest.
    quiet: int = field(default=0, repr=False)


@dataclass(frozen=True)
class RawAudio:
    """gemma4_unified: the waveform itself, 40 ms in a row. Pieces as of `MelAudio`."""

    frame: int = 640  # samples
    piece: int = 480_000
    quiet: int = field(default=0, repr=False)


ImageOptions = SquareImage | BudgetImage
AudioOptions = MelAudio | RawAudio


@dataclass(frozen=True)
class VideoFrames:
    """Frames evenly spaced over a video, each preprocessed as an image."""

    frames: int = 32
    image: ImageOptions = BudgetImage(70)

    def __post_init__(self) -> None:
        if not 1 <= self.frames <= 4096:
            raise ValueError(f"a video is sampled in 1 to 4096 frames, not {self.frames}")


Options = ImageOptions | AudioOptions | VideoFrames
_KINDS = {each.__name__: each for each in (SquareImage, BudgetImage, MelAudio, RawAudio)}


def to_json(options: Options) -> dict[str, Any]:
    """Options as they are sent to a worker process."""
    if isinstance(options, VideoFrames):
        return {"type": "VideoFrames", "frames": options.frames, "image": to_json(options.image)}
    return {"type": type(options).__name__, **asdict(options)}


def from_json(given: dict[str, Any]) -> Options:
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in given.items()
    }
    kind = fields.pop("type")
    if kind == "VideoFrames":
        image: Any = from_json(fields["image"])
        return VideoFrames(fields["frames"], image)
    return _KINDS[kind](**fields)
