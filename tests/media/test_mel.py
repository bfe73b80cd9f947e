"""Log-mel rows and raw rows, against the published feature extractors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor
from transformers.models.gemma4_unified.feature_extraction_gemma4_unified import (
    Gemma4UnifiedAudioFeatureExtractor,
)

from olivine.errors import MediaError
from olivine.media.features import Features
from olivine.media.mel import audio_features, mel_frames
from olivine.media.options import AudioOptions, MelAudio, RawAudio


def speech(count: int) -> NDArray[np.float32]:
    """Something like a voice: harmonics that change, pauses, noise."""
    rng = np.random.default_rng(count)
    time = np.arange(count) / 16_000
    pitch = 120 + 40 * np.sin(2 * np.pi * 0.7 * time)
    phase = 2 * np.pi * np.cumsum(pitch) / 16_000
    sound = sum(np.sin(k * phase) / k for k in range(1, 20)) * (np.sin(2 * np.pi * 1.3 * time) > -0.3)
    return (0.1 * sound + 0.001 * rng.standard_normal(count)).astype(np.float32)


def blocks(samples: NDArray[np.float32], size: int) -> Iterator[NDArray[np.float32]]:
    yield from (samples[start : start + size] for start in range(0, len(samples), size))


def parts(
    samples: NDArray[np.float32], options: AudioOptions, size: int = 10_000
) -> list[tuple[float, Features]]:
    return list(audio_features(blocks(samples, size), options))


def published(samples: NDArray[np.float32]) -> tuple[NDArray[np.float32], int]:
    found: Any = Gemma4AudioFeatureExtractor()([samples], return_tensors="np")
    return found["input_features"][0], int(found["input_features_mask"][0].sum())


# 0.1 s, 11 s and 29.9 s; around a frame, a row of four and the padding to 128 samples; 30 s.
@pytest.mark.parametrize("count", [161, 320, 321, 1600, 1601, 1793, 12_345, 176_000, 478_400, 480_000])
def test_mel_frames_are_the_published_ones(count: int) -> None:
    samples = speech(count)
    expected, valid = published(samples)
    ((seconds, part),) = parts(samples, MelAudio())
    assert seconds == 0.0
    assert part.tokens == len(part.rows) == -(-valid // 4)
    assert part.coordinates[:, 0].sum() == valid and not part.coordinates[:, 1].any()
    assert part.coordinates[:-1, 0].tolist() == [4] * (part.tokens - 1)
    frames = part.rows.reshape(-1, 128)
    assert np.abs(frames[:valid] - expected[:valid]).max() < 1e-4
    assert not frames[valid:].any()


@pytest.mark.parametrize(
    "samples", [np.zeros(4000, np.float32), np.ones(4000, np.float32)], ids=["silence", "direct"]
)
def test_flat_sounds_have_the_published_frames(samples: NDArray[np.float32]) -> None:
    expected, valid = published(samples)
    assert np.abs(mel_frames(samples) - expected[:valid]).max() < 1e-4


@pytest.mark.parametrize("count", [1, 640, 641, 16_000, 100_001])
def test_raw_rows_are_the_published_ones(count: int) -> None:
    samples = speech(count)
    expected: Any = Gemma4UnifiedAudioFeatureExtractor()([samples], return_tensors="np")
    ((_, part),) = parts(samples, RawAudio())
    np.testing.assert_array_equal(part.rows, expected["input_features"][0])
    assert part.tokens == len(part.rows) and part.coordinates.shape == (part.tokens, 2)


@pytest.mark.parametrize("size", [1000, 480_000, 700_000])
def test_a_long_sound_is_cut_every_30_seconds(size: int) -> None:
    samples = speech(2 * 480_000 + 50_000)
    found = parts(samples, MelAudio(), size)
    assert [(seconds, part.tokens) for seconds, part in found] == [(0.0, 750), (30.0, 750), (60.0, 78)]
    for index, (_, part) in enumerate(found):
        piece = samples[index * 480_000 : (index + 1) * 480_000]
        np.testing.assert_array_equal(part.rows, parts(piece, MelAudio())[0][1].rows)
        assert part.digest == parts(piece, MelAudio())[0][1].digest
    assert len({part.digest for _, part in found}) == 3


def test_a_last_piece_without_a_frame_is_left_out() -> None:
    assert [seconds for seconds, _ in parts(speech(480_160), MelAudio())] == [0.0]
    assert [seconds for seconds, _ in parts(speech(480_161), MelAudio())] == [0.0, 30.0]
    assert [seconds for seconds, _ in parts(speech(480_001), RawAudio())] == [0.0, 30.0]


@pytest.mark.parametrize("count", [0, 1, 160])
def test_a_sound_without_a_frame_is_refused(count: int) -> None:
    with pytest.raises(MediaError, match=r"no samples|too short") as caught:
        parts(speech(count), MelAudio())
    assert caught.value.code == "invalid_audio"


def tones(seconds: float, *silences: tuple[float, float]) -> NDArray[np.float32]:
    """A tone with silences in it."""
    time = np.arange(round(seconds * 16_000)) / 16_000
    sound = 0.3 * np.sin(2 * np.pi * 440 * time)
    for begin, end in silences:
        sound[round(begin * 16_000) : round(end * 16_000)] = 0
    return sound.astype(np.float32)


def spans(samples: NDArray[np.float32], options: AudioOptions, size: int = 10_000) -> list[tuple[Any, ...]]:
    return [(seconds, part.span.seconds, part.span.silent) for seconds, part in parts(samples, options, size)]


@pytest.mark.parametrize("options", [MelAudio(quiet=160_000), RawAudio(quiet=160_000)])
@pytest.mark.parametrize("size", [1000, 480_000, 700_000])
def test_windows_end_in_the_middle_of_the_last_tenth_of_a_second_of_a_pause(
    options: AudioOptions, size: int
) -> None:
    """Those that are too early for a window are no place to cut, nor is one behind its end."""
    samples = tones(70.0, (5.0, 6.0), (22.0, 22.5), (31.0, 32.0), (48.0, 48.3))
    assert spans(samples, options, size) == [
        (0.0, 22.45, False),
        (22.45, pytest.approx(48.25 - 22.45), False),
        (48.25, 21.75, False),
    ]
    cut = round(22.45 * 16_000)
    first, second, _ = parts(samples, options, size)
    np.testing.assert_array_equal(first[1].rows, parts(samples[:cut], options)[0][1].rows)
    plain = type(options)()
    assert second[1].digest == parts(samples[cut : round(48.25 * 16_000)], plain)[0][1].digest


def test_what_fits_a_window_is_not_cut() -> None:
    assert spans(tones(30.0, (25.0, 26.0)), MelAudio(quiet=160_000)) == [(0.0, 30.0, False)]
    short = MelAudio(16_000, quiet=4_800)
    assert [span[0] for span in spans(tones(2.0, (0.8, 0.9)), short)][:2] == [0.0, 0.85]


def test_silence_is_told() -> None:
    samples = np.concatenate([tones(30.0), np.full(480_000, 9e-4, np.float32), tones(1.0)])
    assert [span[2] for span in spans(samples, MelAudio())] == [False, True, False]
