"""Frames of videos: which, when, and which way up."""

from __future__ import annotations

import io
import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from transformers.video_utils import VideoMetadata, default_sample_indices_fn, read_video_pyav

from media.clips import clip, number
from olivine.errors import MediaError
from olivine.media.features import timestamp
from olivine.media.limits import Limits
from olivine.media.video import evenly, read_video
from oracles.real_media import BIKES, BUNNY
from oracles.real_models import RealModel

LIMITS = Limits()


def read(content: bytes, count: int = 32, limits: Limits = LIMITS) -> tuple[list[float], list[Any]]:
    found = list(read_video(io.BytesIO(content), count, limits))
    return [seconds for seconds, _ in found], [frame for _, frame in found]


def refused(content: bytes, limits: Limits = LIMITS) -> str:
    with pytest.raises(MediaError) as caught:
        read(content, limits=limits)
    assert caught.value.code == "invalid_video"
    return str(caught.value)


def encodable(codec: str) -> bool:
    try:
        av.codec.Codec(codec, "w")
    except ValueError:
        return False
    return True


def test_indices_are_the_published_ones() -> None:
    for total in (1, 2, 31, 32, 33, 100, 129, 250, 9999):
        count = min(32, total)
        published = default_sample_indices_fn(
            VideoMetadata(total_num_frames=total, fps=24.0), num_frames=count
        )
        assert evenly(32, total) == published.tolist()


@pytest.mark.parametrize(
    ("container", "codec"),
    [
        ("mp4", "mpeg4"),
        ("mov", "mjpeg"),
        ("mp4", "libx264"),
        ("matroska", "libx264"),
        ("webm", "libvpx-vp9"),
        ("avi", "mpeg4"),
        ("mpegts", "mpeg2video"),
        ("flv", "flv1"),
        ("h264", "libx264"),
        ("gif", "gif"),
    ],
)
def test_frames_of_any_container_are_evenly_spaced(container: str, codec: str) -> None:
    if not encodable(codec):
        pytest.skip(f"this FFmpeg does not write {codec}")
    if codec == "gif":
        pytest.skip("made by Pillow below")
    bframes = 2 if codec in ("libx264", "mpeg2video") else 0
    times, frames = read(clip(47, container=container, codec=codec, bframes=bframes), 8)
    indices = evenly(8, 47)
    assert [number(frame) for frame in frames] == indices
    assert times == pytest.approx([index / 25 for index in indices], abs=0.002)


def test_an_animated_gif_is_a_video() -> None:
    from PIL import Image

    frames = [Image.new("RGB", (16, 16), (level, level, level)) for level in (40, 80, 120, 160)]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=500)
    times, found = read(file.getvalue(), 4)
    assert [round(np.asarray(frame).mean(), -1) for frame in found] == [40, 80, 120, 160]
    assert times == pytest.approx([0.0, 0.5, 1.0, 1.5])


@pytest.mark.parametrize("frames", [1, 2, 5, 32])
def test_a_short_video_gives_all_its_frames(frames: int) -> None:
    times, found = read(clip(frames))
    assert [number(frame) for frame in found] == list(range(frames))
    assert times == pytest.approx([index / 25 for index in range(frames)])


@pytest.mark.parametrize("gop", [1, 12, 250])
def test_seeking_finds_the_same_frames_as_decoding_all(gop: int) -> None:
    content = clip(49, codec="libx264", gop=gop, bframes=3) if encodable("libx264") else clip(49, gop=gop)
    for count in (1, 2, 3, 5, 49):
        _, found = read(content, count)
        assert [number(frame) for frame in found] == evenly(count, 49)


def test_times_of_a_variable_rate_are_those_of_the_frames() -> None:
    given = [Fraction(0), Fraction(1, 10), Fraction(2), Fraction(5), Fraction(51, 10), Fraction(130)]
    times, frames = read(clip(given, container="matroska"))
    assert [number(frame) for frame in frames] == list(range(6))
    assert times == pytest.approx([float(each) for each in given], abs=0.002)
    assert [timestamp(each) for each in times] == ["00:00", "00:00", "00:02", "00:05", "00:05", "02:10"]


def test_timestamps_count_minutes_beyond_an_hour() -> None:
    assert [timestamp(each) for each in (0, 59.99, 60, 3599, 3600, 36_000)] == [
        "00:00",
        "00:59",
        "01:00",
        "59:59",
        "60:00",
        "600:00",
    ]


def turned(content: bytes, quarter_turns: int) -> bytes:
    """An MP4 whose track is to be shown turned clockwise."""
    found = bytearray(content)
    cos, sin = ((1, 0), (0, 1), (-1, 0), (0, -1))[quarter_turns]
    at = found.index(b"tkhd") + 4 + 40  # after version, times, id, duration, layer, volume
    one = 1 << 16
    found[at : at + 36] = struct.pack(">9i", cos * one, sin * one, 0, -sin * one, cos * one, 0, 0, 0, 1 << 30)
    return bytes(found)


@pytest.mark.parametrize("turns", range(4))
def test_a_turned_video_is_upright(turns: int) -> None:
    content = turned(clip(3), turns)
    _, frames = read(content)
    assert frames[0].size == ((64, 48) if turns % 2 == 0 else (48, 64))
    pixels = np.asarray(frames[0]).mean(axis=2)
    height, width = pixels.shape
    dark = {
        (top, left): pixels[top * height // 2 :, left * width // 2 :][: height // 4, : width // 4].mean() < 25
        for top in (0, 1)
        for left in (0, 1)
    }
    # The dark corner was upper left, and goes clockwise.
    expected = [(0, 0), (0, 1), (1, 1), (1, 0)][turns]
    assert [corner for corner, is_dark in dark.items() if is_dark] == [expected]


def test_a_video_with_sound_has_frames_too() -> None:
    _, frames = read(clip(10, sound=True), 5)
    assert [number(frame) for frame in frames] == [0, 2, 4, 6, 8]


def test_a_sound_is_no_video() -> None:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(1000), 16_000, format="WAV")
    assert "sound only" in refused(file.getvalue())


@pytest.mark.parametrize("content", [b"no video" * 50, bytes(500), b"\0\0\0\x18ftypisom"])
def test_what_is_no_video_is_refused(content: bytes) -> None:
    assert "broken, or in a format" in refused(content)


def test_a_video_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    content = clip(40)
    assert content.index(b"mdat") < content.index(b"moov")
    assert "broken" in refused(content[: content.index(b"moov") - 100])  # its index is at the end
    path = tmp_path / "fast.mp4"
    with (
        av.open(io.BytesIO(content)) as given,
        av.open(str(path), "w", options={"movflags": "faststart"}) as output,
    ):
        stream = output.add_stream_from_template(given.streams.video[0])
        for packet in given.demux(video=0):
            if packet.size:
                packet.stream = stream
                output.mux(packet)
    fast = path.read_bytes()
    assert fast.index(b"moov") < fast.index(b"mdat")
    assert "of 40 frames" in refused(fast[: -len(fast) // 3])


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(pixels=64 * 48 - 1), "64 × 48"),
        (Limits(video_seconds=1.0), "limit is 1 s"),
    ],
)
def test_limits_are_checked(limits: Limits, words: str) -> None:
    assert words in refused(clip(50), limits)


def test_a_billion_frames_by_the_header_are_refused() -> None:
    content = bytearray(clip(3))
    at = content.index(b"stts") + 4 + 8
    assert struct.unpack(">II", content[at : at + 8])[0] == 3
    content[at : at + 4] = struct.pack(">I", 1_000_000_000)
    assert "1,000,000,000 frames" in refused(bytes(content)) or "s, and the limit" in refused(bytes(content))


@pytest.mark.parametrize("video", [BIKES, BUNNY], ids=lambda video: video.file)
def test_a_real_video_has_the_published_frames(video: RealModel) -> None:
    path = video.path()

    def sample(metadata: Any, **_: Any) -> Any:
        return default_sample_indices_fn(metadata, num_frames=32)

    expected, metadata = read_video_pyav(str(path), sample)
    with open(path, "rb") as file:
        found = list(read_video(file, 32, LIMITS))
    assert [timestamp(seconds) for seconds, _ in found] == [timestamp(each) for each in metadata.timestamps]
    for (_, frame), theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(frame), theirs)
