"""Frames of a video, by FFmpeg (PyAV): evenly spaced, upright, each with the time at which it is shown."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from olivine.errors import MediaError
from olivine.media.containers import open_container
from olivine.media.image import check_pixels
from olivine.media.limits import MOST_FRAMES_PER_SECOND, Limits

if TYPE_CHECKING:
    from av import VideoFrame
    from av.container import InputContainer
    from av.video.stream import VideoStream
    from PIL import Image

_THREADS = 2  # of a decoder
FRAMES_PER_SECOND = 24  # of a video that does not say it, as the published processor assumes


def evenly(count: int, total: int) -> list[int]:
    """The indices of `count` frames of `total`; all of them, if there are fewer."""
    count = min(count, total)
    return [i * total // count for i in range(count)]


def read_video(file: IO[bytes], count: int, limits: Limits) -> Iterator[tuple[float, Image.Image]]:
    """`count` frames of a video, and their seconds.

    The packets are counted first, without decoding: what a header claims is not believed, and rates may vary.
    Then only the groups of pictures that hold a chosen frame are decoded.
    """
    with open_container(file, "video") as container:
        index = _index(container, _stream(container, limits), limits)
    file.seek(0)
    with open_container(file, "video") as container:
        stream = _stream(container, limits)
        chosen = evenly(count, len(index.times))
        frames = (
            _by_order(container, stream, chosen)
            if index.unordered
            else _by_time(container, stream, index, chosen)
        )
        found = False
        for at, frame in frames:
            check_pixels(frame.width, frame.height, limits, "video")
            found = True
            yield max(0.0, index.seconds(at, frame, stream)), _upright(frame)
        if not found:
            raise MediaError("video", "has no frame that can be decoded")


@dataclass
class _Index:
    """The frames of a stream in the order in which they are shown, and where decoding may begin."""

    times: list[int] = field(default_factory=list)  # in units of the stream's time base
    keys: list[int] = field(default_factory=list)  # times of key frames
    seeks: dict[int, int] = field(default_factory=dict)  # what to seek for a key frame
    unordered: bool = False  # packets do not say when they are shown

    def seconds(self, at: int, frame: VideoFrame, stream: VideoStream) -> float:
        if self.unordered or frame.pts is None or frame.time_base is None:
            return float(at / (stream.average_rate or FRAMES_PER_SECOND))
        return float((frame.pts - self.times[0]) * frame.time_base)


def _stream(container: InputContainer, limits: Limits) -> VideoStream:
    """The first stream of pictures that is no cover, if what it claims is within the limits."""
    from av.stream import Disposition

    streams = [each for each in container.streams.video if not each.disposition & Disposition.attached_pic]
    if not streams:
        raise MediaError(
            "video", "has sound only: give it as audio" if container.streams.audio else "has no pictures"
        )
    stream = streams[0]
    check_pixels(stream.width, stream.height, limits, "video")
    seconds = float(stream.duration * stream.time_base) if stream.duration and stream.time_base else 0.0
    _check_length(stream.frames, seconds, limits)
    stream.codec_context.thread_count = _THREADS
    stream.codec_context.thread_type = "AUTO"
    stream.codec_context.options = {"max_pixels": str(limits.pixels)}
    return stream


def _check_length(frames: int, seconds: float, limits: Limits) -> None:
    if seconds > limits.video_seconds:
        raise MediaError(
            "video", f"lasts {seconds:.0f} s, and the limit is {limits.video_seconds:g} s: cut it"
        )
    most = int(limits.video_seconds * MOST_FRAMES_PER_SECOND)
    if frames > most:
        raise MediaError("video", f"has {frames:,} frames, and the limit is {most:,}: cut it")


def _index(container: InputContainer, stream: VideoStream, limits: Limits) -> _Index:
    found = _Index()
    for packet in container.demux(stream):
        if packet.size == 0 or packet.is_discard:
            continue
        time = packet.pts
        if time is None:
            found.unordered = True
            time = len(found.times)
        found.times.append(time)
        if packet.is_keyframe:
            found.keys.append(time)
            found.seeks[time] = time if packet.dts is None else packet.dts
        if len(found.times) % 1000 == 0:
            _check_length(len(found.times), 0.0, limits)
    if not found.times:
        raise MediaError("video", "has no frames")
    if "mp4" in container.format.name and len(found.times) < stream.frames - 1:
        raise MediaError("video", f"is cut off: it has {len(found.times)} of {stream.frames} frames")
    found.times.sort()
    found.keys.sort()
    if stream.time_base is not None and not found.unordered:
        _check_length(0, float((found.times[-1] - found.times[0]) * stream.time_base), limits)
    return found


def _by_time(
    container: InputContainer, stream: VideoStream, index: _Index, chosen: Sequence[int]
) -> Iterator[tuple[int, VideoFrame]]:
    """The chosen frames, by the times at which they are shown. A frame that is not there (a packet without a
    picture, or a broken one) is replaced by the next."""
    decoded = _decoded(container, stream)
    last: VideoFrame | None = None
    for at in chosen:
        wanted = index.times[at]
        key = bisect_right(index.keys, wanted) - 1
        if key > 0 and (last is None or last.pts is None or last.pts < index.keys[key]):
            container.seek(index.seeks[index.keys[key]], stream=stream)
            decoded = _decoded(container, stream)
            last = None
        while last is None or last.pts is None or last.pts < wanted:
            after = next(decoded, None)
            if after is None:
                break
            last = after
        if last is not None:
            yield at, last


def _by_order(
    container: InputContainer, stream: VideoStream, chosen: Sequence[int]
) -> Iterator[tuple[int, VideoFrame]]:
    """The chosen frames, by counting."""
    wanted = set(chosen)
    for at, frame in enumerate(_decoded(container, stream)):
        if at in wanted:
            yield at, frame
        if at >= chosen[-1]:
            return


def _decoded(container: InputContainer, stream: VideoStream) -> Iterator[VideoFrame]:
    """The frames from here on. Packets that cannot be decoded are passed over, as players do."""
    import av

    for packet in container.demux(stream):
        try:
            frames: list[Any] = packet.decode()
        except av.error.InvalidDataError:
            continue
        yield from frames


def _upright(frame: VideoFrame) -> Image.Image:
    from PIL import Image

    image = Image.fromarray(frame.to_ndarray(format="rgb24"))
    turns = {90: Image.Transpose.ROTATE_90, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_270}
    turn = turns.get(round(frame.rotation) % 360)
    return image if turn is None else image.transpose(turn)
