"""Media that are broken, that lie, or that are far larger than they look: refused in words, within limits."""

from __future__ import annotations

import io
import struct
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from media.clips import clip
from media.mutants import mutants, seeds
from olivine.errors import MediaError
from olivine.media import BudgetImage, Limits, MediaProcessor, MelAudio, SquareImage, VideoFrames
from olivine.media.features import Kind

OPTIONS: dict[Kind, Any] = {
    "image": SquareImage(size=56, pan_and_scan=True),
    "audio": MelAudio(),
    "video": VideoFrames(4, BudgetImage(70)),
}
KINDS: list[Kind] = ["image", "audio", "video"]
LIMITS = Limits(time=20.0, memory=1 << 30, pixels=20_000_000, audio_seconds=600, video_seconds=600)


def outcome(processor: MediaProcessor, kind: Kind, content: Any) -> str:
    """What became of a file; any other error than a `MediaError` fails the test."""
    try:
        prepared = processor.prepare(kind, content, OPTIONS[kind])
    except MediaError as error:
        assert error.code == f"invalid_{kind}" and str(error).isprintable() and len(str(error)) < 500
        if "more than 20 s" in str(error):
            return "late"
        return "ended" if "ended the process" in str(error) or "given up" in str(error) else "refused"
    assert all(np.isfinite(part.rows).all() for part in prepared.parts)
    return "read"


def peak_memory(processor: MediaProcessor) -> int:
    """The most address space that a worker had, in bytes."""
    found = 0
    for worker in processor._all:
        for line in Path(f"/proc/{worker.pid}/status").read_text().splitlines():
            if line.startswith("VmPeak:"):
                found = max(found, int(line.split()[1]) * 1024)
    return found


def survive(kind: Kind, count: int, seed: int) -> Counter[str]:
    found: Counter[str] = Counter()
    with MediaProcessor(LIMITS, workers=1) as processor:
        for name, content in mutants(kind, count, seed):
            result = outcome(processor, kind, content)
            assert result in ("read", "refused"), f"{name} {result}"
            found[result] += 1
        assert peak_memory(processor) <= LIMITS.memory
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_that_are_broken_below_are_well_formed(kind: Kind) -> None:
    with MediaProcessor(LIMITS, workers=1) as processor:
        for name, content in seeds(kind).items():
            assert outcome(processor, kind, content) == "read", name


@pytest.mark.parametrize("kind", KINDS)
def test_mutated_files_are_read_or_refused(kind: Kind) -> None:
    found = survive(kind, 52, seed=1)
    assert found["refused"] > 10


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_mutated_files_are_read_or_refused(kind: Kind, seed: int) -> None:
    survive(kind, 500, seed + 100)


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(width: int, height: int, *more: bytes, rows: int = 0) -> bytes:
    """An image of one bit a pixel, of which so many rows are there."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(bytes(rows * (1 + (width + 7) // 8)), 1))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(more) + data + chunk(b"IEND", b"")


def resized(content: bytes, marker: bytes, offset: int, form: str, *size: int) -> bytes:
    """A file whose header claims another size."""
    at = content.index(marker) + offset
    return content[:at] + struct.pack(form, *size) + content[at + struct.calcsize(form) :]


def bombs() -> dict[str, bytes]:
    jpeg = seeds("image")["JPEGexif"]
    gif = seeds("image")["GIFsave_all-append_images"]
    return {
        "PNG, 3.6 gigapixels": png(60_000, 60_000),
        "PNG, a line of 2 billion": png(2**31 - 1, 1),
        "PNG, all its pixels are there": png(20_000, 20_000, rows=20_000),
        "JPEG, 4 gigapixels": resized(jpeg, b"\xff\xc0", 5, ">HH", 65_500, 65_500),
        "GIF, 4 gigapixels": resized(gif, b"GIF8", 6, "<HH", 65_535, 65_535),
        "BMP, 4 gigapixels": resized(seeds("image")["BMP"], b"BM", 18, "<ii", 65_535, 65_535),
        "PPM": b"P6 99999 99999 255\n" + bytes(100),
    }


@pytest.mark.parametrize("name", bombs())
def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(name: str) -> None:
    with MediaProcessor(LIMITS, workers=1) as processor:
        with pytest.raises(MediaError, match=r"× .* pixels, and the limit is 20,000,000"):
            processor.prepare("image", bombs()[name], OPTIONS["image"])
        assert peak_memory(processor) < 400 << 20


def test_text_that_unpacks_to_much_is_refused() -> None:
    packed = b"Comment\0\0" + zlib.compress(bytes(200 << 20), 1)
    with MediaProcessor(LIMITS, workers=1) as processor:
        assert outcome(processor, "image", png(8, 8, chunk(b"zTXt", packed), rows=8)) in ("read", "refused")
        assert peak_memory(processor) < 700 << 20


def test_a_gigabyte_that_calls_itself_a_jpeg(tmp_path: Path) -> None:
    path = tmp_path / "large.jpg"
    with path.open("wb") as file:
        content = seeds("image")["JPEGexif"]
        file.write(content[: len(content) // 2])
        file.truncate(1 << 30)
    with MediaProcessor(LIMITS, workers=1) as processor:
        with pytest.raises(MediaError, match=r"1,073\.7 MB, and the limit is 67\.1 MB"):
            processor.prepare("image", path, OPTIONS["image"])
        assert not processor._all  # no process was started for it
    with MediaProcessor(Limits(time=20.0, memory=1 << 30, image_bytes=2 << 30), workers=1) as processor:
        assert outcome(processor, "image", path) in ("read", "refused")


@pytest.mark.parametrize("box", [b"stts", b"stsz"])
def test_a_video_of_a_billion_frames_by_its_header(box: bytes) -> None:
    content = bytearray(clip(6))
    at = content.index(box) + 12
    assert struct.unpack(">I", content[at : at + 4]) == (6,)
    content[at : at + 4] = struct.pack(">I", 1_000_000_000)
    if box == b"stsz":
        content[at - 4 : at] = struct.pack(">I", 1)  # all of one size: the table needs no room
    with MediaProcessor(LIMITS, workers=1) as processor:
        assert outcome(processor, "video", bytes(content)) == "refused"


def test_a_video_whose_frames_are_huge_is_refused() -> None:
    content = clip(2)
    codes = content.index(b"stsd") + 4 + 8 + 8 + 24  # width and height of the sample entry
    assert struct.unpack(">HH", content[codes : codes + 4]) == (64, 48)
    content = content[:codes] + struct.pack(">HH", 65_535, 65_535) + content[codes + 4 :]
    with MediaProcessor(LIMITS, workers=1) as processor:
        assert outcome(processor, "video", content) in ("read", "refused")
        assert peak_memory(processor) <= LIMITS.memory


def test_sounds_that_lie_about_their_length() -> None:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(16_000), 16_000, format="WAV")
    wav = resized(file.getvalue(), b"data", 4, "<I", 0xFFFFFFF0)
    file = io.BytesIO()
    soundfile.write(file, np.zeros(16_000 * 1200), 16_000, format="FLAC")
    silence = file.getvalue()  # 20 minutes
    assert len(silence) < 300_000
    with MediaProcessor(LIMITS, workers=1) as processor:
        assert processor.prepare("audio", wav, OPTIONS["audio"]).tokens == 25
        with pytest.raises(MediaError, match="the limit is 600 s"):
            processor.prepare("audio", silence, OPTIONS["audio"])
        # 36 bits of samples: 49 days.
        claimed = bytearray(silence)
        claimed[21] |= 0x0F
        claimed[22:26] = b"\xff" * 4
        with pytest.raises(MediaError, match="the limit is 600 s"):
            processor.prepare("audio", bytes(claimed), OPTIONS["audio"])
        claimed[21] &= 0xF0
        claimed[22:26] = bytes(4)  # unknown
        with pytest.raises(MediaError, match="the limit is 600 s"):
            processor.prepare("audio", bytes(claimed), OPTIONS["audio"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 3, 11])
def test_almost_nothing_is_refused(kind: Kind, size: int) -> None:
    with MediaProcessor(LIMITS, workers=1) as processor:
        for content in seeds(kind).values():
            assert outcome(processor, kind, content[:size]) == "refused"


def test_a_picture_may_be_an_array_of_any_size_within_the_limit() -> None:
    with MediaProcessor(LIMITS, workers=1) as processor:
        with pytest.raises(MediaError, match="the limit is 20,000,000"):
            processor.prepare("image", np.zeros((5000, 5000), np.uint8), OPTIONS["image"])
        with pytest.raises(MediaError, match="in an array"):
            processor.prepare("image", np.zeros((20_000, 20_000), np.uint8), OPTIONS["image"])
        assert processor.prepare("image", Image.new("L", (1, 3000)), OPTIONS["image"]).tokens == 1
