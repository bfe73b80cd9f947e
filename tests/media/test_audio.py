"""Sound files of any kind, rate and number of channels to 16 kHz mono."""

from __future__ import annotations

import io
from typing import Any

import av
import numpy as np
import pytest
import soundfile
import soxr
from numpy.typing import NDArray

from olivine.errors import MediaError
from olivine.media.audio import from_samples, read_audio
from olivine.media.limits import Limits

LIMITS = Limits()


def tone(seconds: float, rate: int, channels: int = 1) -> NDArray[np.float64]:
    time = np.arange(int(seconds * rate)) / rate
    sound = [0.3 * np.sin(2 * np.pi * (300 + 100 * k) * time) for k in range(channels)]
    return np.stack(sound, axis=1)


def written(samples: NDArray[Any], rate: int, kind: str, subtype: str | None = None) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


def encoded(samples: NDArray[Any], rate: int, container: str, codec: str) -> bytes:
    """A sound in a container that FFmpeg writes."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream(codec, rate=rate, layout="mono" if samples.shape[1] == 1 else "stereo")
        frame = av.AudioFrame.from_ndarray(
            np.ascontiguousarray(samples.T, np.float32), "fltp", stream.layout.name
        )
        frame.sample_rate = rate
        for each in (frame, None):
            output.mux(stream.encode(each))
    return file.getvalue()


def read(content: bytes, limits: Limits = LIMITS) -> NDArray[np.float32]:
    found = np.concatenate(list(read_audio(io.BytesIO(content), limits)))
    assert found.dtype == np.float32
    return found


def refused(content: bytes, limits: Limits = LIMITS) -> str:
    with pytest.raises(MediaError) as caught:
        read(content, limits)
    assert caught.value.code == "invalid_audio"
    return str(caught.value)


@pytest.mark.parametrize("rate", [8000, 11_025, 16_000, 22_050, 44_100, 48_000, 192_000])
@pytest.mark.parametrize("channels", [1, 2, 6])
def test_any_rate_and_channels_become_16_khz_mono(rate: int, channels: int) -> None:
    samples = tone(0.7, rate, channels)
    found = read(written(samples, rate, "WAV", "FLOAT"))
    mono = samples.astype(np.float32).mean(axis=1)
    expected = mono if rate == 16_000 else soxr.resample(mono, rate, 16_000, quality="HQ")
    assert abs(len(found) - len(expected)) <= 1
    shared = min(len(found), len(expected))
    assert np.abs(found[:shared] - expected[:shared]).max() < 1e-6


@pytest.mark.parametrize(
    ("kind", "subtype", "bound"),
    [
        ("WAV", "PCM_U8", 0.01),
        ("WAV", "PCM_16", 1e-4),
        ("WAV", "PCM_24", 1e-6),
        ("WAV", "PCM_32", 1e-6),
        ("WAV", "DOUBLE", 1e-6),
        ("WAV", "ULAW", 0.02),
        ("WAVEX", "PCM_16", 1e-4),
        ("AIFF", "PCM_16", 1e-4),
        ("FLAC", "PCM_16", 1e-4),
        ("FLAC", "PCM_24", 1e-6),
        ("OGG", "VORBIS", 0.05),
        ("OGG", "OPUS", 0.1),
        ("MP3", None, 0.1),
    ],
)
def test_sound_formats_are_read(kind: str, subtype: str | None, bound: float) -> None:
    samples = tone(0.5, 16_000)
    found = read(written(samples, 16_000, kind, subtype))
    assert len(samples) <= len(found) < len(samples) + 3000
    # Lossy formats begin late or softly: the middle is compared by its loudness.
    middle = slice(2000, 6000)
    assert abs(np.std(found[middle]) - np.std(samples[middle])) < bound


@pytest.mark.parametrize(
    ("container", "codec"), [("mp4", "aac"), ("adts", "aac"), ("matroska", "libopus"), ("mov", "alac")]
)
def test_the_sound_of_other_containers_is_read(container: str, codec: str) -> None:
    samples = tone(1.0, 48_000, 2)
    found = read(encoded(samples, 48_000, container, codec))
    assert 15_000 < len(found) < 18_000
    expected = samples.mean(axis=1)
    assert abs(np.std(found[4000:12_000]) - np.std(expected[12_000:36_000])) < 0.02


def test_a_long_file_is_read_in_blocks() -> None:
    samples = np.zeros((16_000 * 60, 2))
    found = list(read_audio(io.BytesIO(written(samples, 16_000, "FLAC")), LIMITS))
    assert sum(map(len, found)) == 16_000 * 60
    assert max(map(len, found)) <= 1 << 17


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "float32", "float64", "uint8"])
@pytest.mark.parametrize("channels", [1, 2])
def test_arrays_are_sounds(dtype: str, channels: int) -> None:
    samples = tone(0.1, 16_000, channels)
    given: NDArray[Any] = samples
    if dtype == "uint8":
        given = ((samples + 1) * 128).astype(dtype)
    elif np.dtype(dtype).kind == "i":
        given = (samples * np.iinfo(dtype).max).astype(dtype)
    found = np.concatenate(list(from_samples(given.astype(dtype), 16_000, LIMITS)))
    assert np.abs(found - samples.mean(axis=1)).max() < 0.02


@pytest.mark.parametrize(
    ("samples", "rate", "words"),
    [
        (np.zeros((2, 2, 2)), 16_000, "shape"),
        (np.zeros((2, 500)), 16_000, "shape"),
        (np.zeros(9, complex), 16_000, "complex"),
        (np.zeros(9), 10, "10 Hz"),
        (np.zeros(9), 10_000_000, "Hz"),
        (np.full(9, np.nan), 16_000, "no numbers"),
        (np.full(9, np.inf), 16_000, "no numbers"),
        (np.full(9, 1e9), 16_000, "beyond"),
    ],
)
def test_other_arrays_are_refused(samples: NDArray[Any], rate: int, words: str) -> None:
    with pytest.raises(MediaError, match=words):
        list(from_samples(samples, rate, LIMITS))


def test_a_float_file_of_infinities_is_refused() -> None:
    assert "no numbers" in refused(written(np.full((100, 1), np.inf), 16_000, "WAV", "FLOAT"))


def test_a_sound_beyond_the_limit_is_refused_by_its_header() -> None:
    content = written(np.zeros((16_000 * 3, 1)), 16_000, "WAV")
    assert "3 s or more, and the limit is 2 s" in refused(content, Limits(audio_seconds=2.0))


def test_a_sound_that_claims_to_be_too_long_is_refused_at_once() -> None:
    content = bytearray(written(np.zeros((16_000, 1)), 16_000, "FLAC"))
    content[21] |= 0x0F  # 36 bits of samples: 49 days
    content[22:26] = b"\xff" * 4
    assert "4294967 s or more, and the limit is 14400 s" in refused(bytes(content))


def test_a_sound_that_understates_its_length_is_stopped_at_the_limit() -> None:
    content = bytearray(written(np.zeros((16_000 * 5, 1)), 16_000, "FLAC"))
    # STREAMINFO: 36 bits of total samples. Zero means unknown.
    content[21] &= 0xF0
    content[22:26] = bytes(4)
    assert len(read(bytes(content))) == 16_000 * 5
    assert "2 s" in refused(bytes(content), Limits(audio_seconds=2.0))


def test_a_video_without_sound_says_so() -> None:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        stream = output.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 32
        for _ in range(3):
            output.mux(stream.encode(av.VideoFrame(32, 32, "yuv420p")))
        output.mux(stream.encode(None))
    assert "no sound track" in refused(file.getvalue())


@pytest.mark.parametrize("content", [b"nothing of that" * 20, b"RIFF\xff\xff\xff\xffWAVE", bytes(1000)])
def test_what_is_no_sound_is_refused(content: bytes) -> None:
    assert "broken" in refused(content)


def test_a_playlist_does_not_read_other_files(tmp_path: Any) -> None:
    """FFmpeg would open what a playlist names."""
    secret = tmp_path / "secret.wav"
    soundfile.write(secret, tone(0.5, 16_000), 16_000)
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{secret}\n#EXT-X-ENDLIST\n"
    concat = f"ffconcat version 1.0\nfile {secret}\n"
    for text in (playlist, concat):
        assert "not read" in refused(text.encode())
