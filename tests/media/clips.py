"""Small videos made by FFmpeg, whose frames tell their number by their brightness."""

from __future__ import annotations

import io
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

STEP = 4  # levels of brightness from one frame to the next


def clip(
    frames: int | Sequence[Fraction],
    *,
    container: str = "mp4",
    codec: str = "mpeg4",
    size: tuple[int, int] = (64, 48),
    rate: int = 25,
    gop: int = 12,
    bframes: int = 0,
    sound: bool = False,
) -> bytes:
    """A video of so many frames, or with frames at these seconds."""
    times = [Fraction(i, rate) for i in range(frames)] if isinstance(frames, int) else list(frames)
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream: Any = output.add_stream(codec, rate=rate)
        stream.width, stream.height = size
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.gop_size = gop
        stream.codec_context.max_b_frames = bframes
        if codec != "libsvtav1":  # which takes none for frames as small as these
            stream.bit_rate = 4_000_000
        base = Fraction(1, 1000)
        stream.codec_context.time_base = base if not isinstance(frames, int) else Fraction(1, rate)
        track: Any = output.add_stream("aac", rate=16_000, layout="mono") if sound else None
        for index, time in enumerate(times):
            frame = av.VideoFrame.from_ndarray(picture(index, size), format="rgb24").reformat(
                format=stream.pix_fmt
            )
            frame.time_base = stream.codec_context.time_base
            frame.pts = int(time / frame.time_base)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
        if sound:
            wave = 0.3 * np.sin(np.arange(int(float(times[-1]) * 16_000) + 16_000) / 5)
            heard = av.AudioFrame.from_ndarray(wave.astype(np.float32)[None], "fltp", "mono")
            heard.sample_rate = 16_000
            output.mux(track.encode(heard))
            output.mux(track.encode(None))
    return file.getvalue()


def picture(index: int, size: tuple[int, int]) -> NDArray[np.uint8]:
    """A frame whose brightness is its number; the upper left quarter is darker, to tell what is up."""
    width, height = size
    pixels = np.full((height, width, 3), 40 + STEP * (index % 50), np.uint8)
    pixels[: height // 2, : width // 2] = 8
    return pixels


def number(frame: Any) -> int:
    """The number of a frame (modulo 50), from the corner that every rotation leaves bright."""
    pixels = np.asarray(frame)
    return round((float(np.sort(pixels.mean(axis=2).reshape(-1))[-pixels.shape[0] :].mean()) - 40) / STEP)
