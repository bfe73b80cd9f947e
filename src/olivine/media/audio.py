"""Sound files to 16 kHz mono: libsndfile for sound formats, FFmpeg for the sound of any other container.

Files are read in blocks, so that a long one takes no more memory than a short one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from olivine.errors import MediaError
from olivine.media.containers import open_container
from olivine.media.limits import Limits

RATE = 16_000
_RATES = (1_000, 768_000)  # of files, in Hz
_CHANNELS = 256
_BLOCK = 1 << 18  # samples of all channels
_UNKNOWN = 1 << 60  # libsndfile's count of frames where a file does not say it; it cannot read on then
_LOUDEST = 1000.0  # full scale is 1

Samples = NDArray[np.float32]


class Sound:
    """A sound in 16 kHz mono, block by block, and how many seconds it claims to have; 0: it does not say."""

    def __init__(self, seconds: float, blocks: Iterator[Samples]) -> None:
        self.seconds = seconds
        self._blocks = blocks

    def __iter__(self) -> Iterator[Samples]:
        return self._blocks


def read_audio(file: IO[bytes], limits: Limits) -> Sound:
    """The sound of a file."""
    import soundfile

    try:
        opened = soundfile.SoundFile(file)
    except soundfile.SoundFileError:
        opened = None
    if opened is not None and opened.frames < _UNKNOWN:
        seconds = opened.frames / max(1, opened.samplerate)
        return Sound(seconds, _checked(_from_soundfile(opened, limits), limits))
    file.seek(0)
    container = open_container(file, "audio")
    seconds = max(0, container.duration or 0) / 1e6
    return Sound(seconds, _checked(_from_container(container, limits), limits))


def from_samples(samples: NDArray[Any], rate: int, limits: Limits) -> Sound:
    """Samples [n] or [n, channels] as a sound in 16 kHz mono. Integers are scaled to [-1, 1]."""
    if samples.ndim not in (1, 2) or not (samples.ndim == 1 or 1 <= samples.shape[1] <= _CHANNELS):
        raise MediaError("audio", f"is an array of shape {samples.shape}: give [samples, channels]")
    if samples.dtype.kind not in "iuf":
        raise MediaError("audio", f"is an array of {samples.dtype}: give floats, or integers of 8 to 32 bits")
    _check_rate(rate)
    _check_seconds(len(samples) / rate, limits)
    scale = 1.0
    if samples.dtype.kind != "f":
        scale = 2.0 ** (1 - 8 * samples.dtype.itemsize)
    offset = 1.0 if samples.dtype.kind == "u" else 0.0

    def blocks() -> Iterator[Samples]:
        for start in range(0, len(samples), _BLOCK):
            block = samples[start : start + _BLOCK].astype(np.float32)
            if scale != 1.0:
                block = block * np.float32(scale) - np.float32(offset)
            yield block if block.ndim == 1 else block.mean(axis=1)

    return Sound(len(samples) / rate, _checked(_resampled(blocks(), rate), limits))


def _from_soundfile(opened: Any, limits: Limits) -> Iterator[Samples]:
    rate, channels, frames = opened.samplerate, opened.channels, opened.frames
    _check_rate(rate)
    if not 1 <= channels <= _CHANNELS:
        raise MediaError("audio", f"has {channels} channels, and at most {_CHANNELS} are read")
    _check_seconds(frames / rate, limits)

    def blocks() -> Iterator[Samples]:
        count = max(1, _BLOCK // channels)
        while len(block := opened.read(count, dtype="float32", always_2d=True)):
            yield block[:, 0] if channels == 1 else block.mean(axis=1)

    with opened:
        yield from _resampled(blocks(), rate)


def _from_container(container: Any, limits: Limits) -> Iterator[Samples]:
    """The first sound track of a container."""
    import av

    with container:
        if not container.streams.audio:
            raise MediaError(
                "audio", "has no sound track" if container.streams.video else "has no sound in it"
            )
        stream = container.streams.audio[0]
        rate, channels = stream.rate or 0, stream.channels or 0
        _check_rate(rate)
        if not 1 <= channels <= _CHANNELS:
            raise MediaError("audio", f"has {channels} channels, and at most {_CHANNELS} are read")
        if container.duration:
            _check_seconds(container.duration / av.time_base, limits)
        planar = av.AudioResampler(format="fltp")

        def blocks() -> Iterator[Samples]:
            for frame in container.decode(stream):
                if frame.sample_rate != rate:
                    raise MediaError("audio", f"changes its rate from {rate} to {frame.sample_rate} Hz")
                for each in planar.resample(frame):
                    yield each.to_ndarray().mean(axis=0, dtype=np.float32)

        yield from _resampled(blocks(), rate)


def _resampled(blocks: Iterator[Samples], rate: int) -> Iterator[Samples]:
    if rate == RATE:
        yield from blocks
        return
    import soxr

    stream = soxr.ResampleStream(rate, RATE, 1, dtype="float32", quality="HQ")
    for block in blocks:
        yield stream.resample_chunk(np.ascontiguousarray(block))
    yield stream.resample_chunk(np.zeros(0, np.float32), last=True)


def _checked(blocks: Iterator[Samples], limits: Limits) -> Iterator[Samples]:
    """The blocks, while they are sound: what files claim of their length is not believed."""
    count = 0
    for block in blocks:
        count += len(block)
        _check_seconds(count / RATE, limits)
        if len(block) and not float(np.abs(block).max()) <= _LOUDEST:
            raise MediaError("audio", f"has samples beyond ±{_LOUDEST:g}, or no numbers: full scale is ±1")
        yield block


def _check_rate(rate: int) -> None:
    least, most = _RATES
    if not least <= rate <= most:
        raise MediaError("audio", f"has a rate of {rate} Hz, and {least} to {most} are read")


def _check_seconds(seconds: float, limits: Limits) -> None:
    if seconds > limits.audio_seconds:
        raise MediaError(
            "audio", f"lasts {seconds:.0f} s or more, and the limit is {limits.audio_seconds:g} s"
        )
