"""Small media files of every kind, and what chance makes of them."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import soundfile
from PIL import Image

from media.clips import clip
from olivine.media.features import Kind


@cache
def seeds(kind: Kind) -> dict[str, bytes]:
    """Well-formed files, by format."""
    return {"image": _images, "audio": _sounds, "video": _videos}[kind]()


def _images() -> dict[str, bytes]:
    rng = np.random.default_rng(1)
    pixels = np.kron(rng.integers(0, 256, (6, 8, 3), np.uint8), np.ones((6, 6, 1), np.uint8))
    image = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112] = 6
    found = {}
    for name, options in [
        ("JPEG", {"exif": exif}),
        ("JPEG", {"progressive": True}),
        ("PNG", {"exif": exif, "dpi": (72, 72)}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("GIF", {"save_all": True, "append_images": [image.rotate(90)]}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("TIFF", {"compression": "jpeg"}),
        ("BMP", {}),
        ("ICO", {}),
        ("AVIF", {}),
        ("QOI", {}),
        ("PPM", {}),
    ]:
        if name not in Image.SAVE and not Image.init() and name not in Image.SAVE:
            continue
        file = io.BytesIO()
        image.save(file, name, **options)
        found[f"{name}{'-'.join(options)}"] = file.getvalue()
    file = io.BytesIO()
    image.quantize(16).save(file, "PNG", transparency=3)
    found["PNG palette"] = file.getvalue()
    return found


def _sounds() -> dict[str, bytes]:
    samples = 0.3 * np.sin(np.outer(np.arange(3000), [0.1, 0.13]))
    found = {}
    for name, subtype in [
        ("WAV", "PCM_16"),
        ("WAV", "IMA_ADPCM"),
        ("WAVEX", "FLOAT"),
        ("FLAC", "PCM_16"),
        ("OGG", "VORBIS"),
        ("OGG", "OPUS"),
        ("MP3", "MPEG_LAYER_III"),
        ("AIFF", "PCM_24"),
        ("CAF", "ALAC_16"),
        ("AU", "ULAW"),
    ]:
        file = io.BytesIO()
        soundfile.write(file, samples, 24_000, format=name, subtype=subtype)
        found[f"{name} {subtype}"] = file.getvalue()
    found["MP4"] = clip(3, sound=True)
    found["Matroska"] = clip(3, sound=True, container="matroska")
    return found


def _videos() -> dict[str, bytes]:
    found = {
        "MP4": clip(12),
        "MP4 sound": clip(6, sound=True),
        "Matroska": clip(12, container="matroska"),
        "AVI": clip(12, container="avi"),
        "MPEG-TS": clip(12, container="mpegts", codec="mpeg2video"),
        "MOV": clip(6, container="mov", codec="mjpeg"),
        "FLV": clip(8, container="flv", codec="flv1"),
    }
    for name, codec in [("libx264", "H.264"), ("libvpx-vp9", "VP9"), ("libsvtav1", "AV1")]:
        bframes = 2 if name == "libx264" else 0
        try:
            with _scheduled_as_before():
                found[codec] = clip(8, container="matroska", codec=name, bframes=bframes)
        except Exception:
            continue  # this FFmpeg does not write it
    return found


@contextmanager
def _scheduled_as_before() -> Iterator[None]:
    """SVT-AV1 gives the thread that calls it a real-time priority, if root does: this thread, and all that it
    starts, would have the machine to themselves from then on."""
    if not hasattr(os, "sched_setscheduler"):
        yield
        return
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)


def mutants(kind: Kind, count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """So many broken files, with what they are made of."""
    rng = np.random.default_rng(seed)
    files = list(seeds(kind).items())
    for index in range(count):
        name, content = files[index % len(files)]
        yield f"{name} {index}", _mutated(content, files, rng)


def _mutated(content: bytes, files: list[tuple[str, bytes]], rng: Any) -> bytes:
    found = bytearray(content)
    for _ in range(int(rng.integers(1, 4))):
        if not found:
            break
        # Headers are where claims are: half of all changes are there.
        reach = min(len(found), 512) if rng.random() < 0.5 else len(found)
        at = int(rng.integers(reach))
        match int(rng.integers(7)):
            case 0:  # some bytes are others
                for _ in range(int(rng.integers(1, 16))):
                    found[int(rng.integers(reach))] = int(rng.integers(256))
            case 1:  # a bit is another
                found[at] ^= 1 << int(rng.integers(8))
            case 2:  # a number is an extreme
                width = int(rng.choice([1, 2, 4, 8]))
                extremes = [0, 1, 2 ** (8 * width) - 1, 2 ** (8 * width - 1), 2 ** (8 * width - 1) - 1]
                number = extremes[int(rng.integers(len(extremes)))]
                order: Any = "big" if rng.random() < 0.5 else "little"
                found[at : at + width] = number.to_bytes(width, order)
            case 3:  # the end is missing
                del found[at:]
            case 4:  # a piece is missing
                del found[at : at + int(rng.integers(1, 200))]
            case 5:  # a piece is there many times
                piece = found[at : at + int(rng.integers(1, 100))]
                found[at:at] = piece * int(rng.integers(1, 50))
            case 6:  # the rest is of another file
                other = files[int(rng.integers(len(files)))][1]
                found[at:] = other[int(rng.integers(len(other))) :]
    return bytes(found)
