"""From 16 kHz mono to the rows of an audio tower: log-mel frames, or the waveform itself.

As the published feature extractor has it: frames of 320 samples every 160, after 160 zeros, each with one
more sample behind it; a periodic Hann window; magnitudes of an FFT of 512; 128 triangular filters on the HTK
mel scale from 0 to 8000 Hz, not normalised; the logarithm of their sum plus 0.001.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from olivine.errors import MediaError
from olivine.media.audio import RATE
from olivine.media.features import Features, Span, digest_of
from olivine.media.options import AudioOptions, MelAudio

MELS = 128
FRAMES = 4  # mel frames in a row
_FRAME, _HOP, _FFT = 320, 160, 512
_FLOOR = 1e-3
_PAUSE = 10  # hops, over which it is measured how quiet a place is
_SILENT = 1e-3  # the loudest sample of what nobody hears: 60 dB below full scale
_LEAST = _FRAME + 1 - _HOP  # samples of the shortest sound that has a frame


def audio_features(
    blocks: Iterable[NDArray[np.float32]], options: AudioOptions, total: float = 0.0
) -> Iterator[tuple[float, Features]]:
    """The parts of a sound, with the seconds at which they begin. A last piece that is too short for a row of
    features is left out. `total`: the seconds that the sound claims to have."""
    least = _LEAST if isinstance(options, MelAudio) else 1
    start = 0
    for piece in _pieces(blocks, options.piece, options.quiet):
        if len(piece) >= least:
            silent = float(np.abs(piece).max()) < _SILENT
            yield start / RATE, _features(piece, options, Span(len(piece) / RATE, total, silent))
        elif start == 0:
            raise MediaError("audio", f"has {len(piece)} samples at 16 kHz: too short to hear anything")
        start += len(piece)
    if start == 0:
        raise MediaError("audio", "has no samples")


def mel_frames(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """The log-mel spectrogram of a sound: [frames, 128]."""
    padded = np.concatenate([np.zeros(_HOP, np.float32), samples])
    count = (len(padded) - _FRAME - 1) // _HOP + 1
    frames = np.lib.stride_tricks.sliding_window_view(padded, _FRAME)[: count * _HOP : _HOP]
    spectrum = np.abs(np.fft.rfft(frames * _window(), n=_FFT, axis=-1)).astype(np.float32)
    return np.log(spectrum @ _filters() + np.float32(_FLOOR))


def _features(samples: NDArray[np.float32], options: AudioOptions, span: Span) -> Features:
    digest = digest_of(options, samples)
    if not isinstance(options, MelAudio):
        rows = -(-len(samples) // options.frame)
        padded = np.zeros(rows * options.frame, np.float32)
        padded[: len(samples)] = samples
        return Features(padded.reshape(rows, -1), np.zeros((rows, 2), np.int32), rows, digest, span)
    frames = mel_frames(samples)
    rows = -(-len(frames) // FRAMES)
    mel = np.zeros((rows * FRAMES, MELS), np.float32)
    mel[: len(frames)] = frames
    coordinates = np.zeros((rows, 2), np.int32)
    coordinates[:, 0] = np.minimum(len(frames) - FRAMES * np.arange(rows), FRAMES)
    return Features(mel.reshape(rows, FRAMES * MELS), coordinates, rows, digest, span)


def _pieces(blocks: Iterable[NDArray[np.float32]], size: int, quiet: int) -> Iterator[NDArray[np.float32]]:
    """The same samples in pieces of `size`, the last one shorter; with `quiet`, all but the last end in the
    quietest place of their last `quiet` samples."""
    held: list[NDArray[np.float32]] = []
    count = 0
    for block in blocks:
        held.append(block)
        count += len(block)
        while count > size:
            whole = np.concatenate(held)
            cut = _quietest(whole[:size], quiet) if quiet else size
            yield whole[:cut]
            held = [whole[cut:]]
            count -= cut
    if count:
        yield np.concatenate(held)


def _quietest(samples: NDArray[np.float32], last: int) -> int:
    """The middle of the quietest tenth of a second among the `last` samples; of equal ones the last."""
    start = len(samples) - last
    energy = np.square(samples[start:][: last // _HOP * _HOP]).reshape(-1, _HOP).sum(axis=1)
    pauses = np.lib.stride_tricks.sliding_window_view(energy, _PAUSE).sum(axis=1)
    at = len(pauses) - 1 - int(np.argmin(pauses[::-1]))
    return start + (at + _PAUSE // 2) * _HOP


@cache
def _window() -> NDArray[np.float32]:
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_FRAME) / _FRAME)).astype(np.float32)


@cache
def _filters() -> NDArray[np.float32]:
    """Triangles, linear in Hz, between points that are evenly spaced in mel: [257, 128]."""
    mels = np.linspace(0.0, 2595 * np.log10(1 + RATE / 2 / 700), MELS + 2)
    points = 700 * (10 ** (mels / 2595) - 1)
    bins = np.linspace(0, RATE / 2, _FFT // 2 + 1)[:, None]
    rising = (bins - points[:-2]) / (points[1:-1] - points[:-2])
    falling = (points[2:] - bins) / (points[2:] - points[1:-1])
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)
