"""The process that decodes: reads requests from its standard input, writes features to its standard output.

Started by `process.py`, it imports only this package and the libraries of formats. Its memory is limited.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import importlib
import io
import json
import os
import select
import signal
import sys
from collections.abc import Iterator
from dataclasses import astuple
from typing import IO, Any

import numpy as np

from olivine.errors import MediaError, printable
from olivine.media import messages
from olivine.media.features import Features, Kind
from olivine.media.limits import Limits
from olivine.media.options import from_json
from olivine.media.sources import check_size, file_size

_LIBRARIES: dict[Kind, tuple[str, ...]] = {
    "image": ("PIL.Image",),
    "audio": ("soundfile", "soxr"),
    "video": ("av", "PIL.Image"),
}
_GRACE = 5  # seconds after the owner's deadline at which a worker without an owner ends


def main() -> None:
    limits = Limits(**json.loads(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's, who closes the pipe
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends this process
    confine(limits)
    source, sink = os.dup(0), os.dup(1)
    quiet = os.open(os.devnull, os.O_RDWR)  # for libraries that print
    os.dup2(quiet, 0)
    os.dup2(quiet, 1)
    with contextlib.suppress(messages.Gone):
        serve(source, sink, limits)


def confine(limits: Limits) -> None:
    """Limits the memory of this process, where the system can."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        resource.setrlimit(resource.RLIMIT_AS, (limits.memory, limits.memory))
    except (OSError, ValueError):
        if sys.platform == "linux":  # macOS may refuse every limit of this kind
            raise


def serve(source: int, sink: int, limits: Limits) -> None:
    messages.send(sink, {"type": "ready"})
    while select.select([source], [], [], limits.idle)[0]:
        request = messages.receive(source)
        if "load" in request:
            load(request["load"])
            messages.send(sink, {"type": "loaded"})
            continue
        payload = bytearray(request["size"])
        messages.receive_into(source, memoryview(payload))
        messages.send(sink, _answered(request, payload, sink, limits))
    messages.send(sink, {"type": "idle"})


def load(kind: Kind) -> None:
    """Imports what reads this kind. One that is missing or broken is told when it is needed."""
    for name in _LIBRARIES[kind]:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _answered(request: dict[str, Any], payload: bytearray, sink: int, limits: Limits) -> dict[str, Any]:
    """Sends the parts of a medium; the last answer. If decoding takes too long and the owner does not notice,
    because it is gone, an alarm ends this process. Time in which the owner does not read is not counted."""
    left = limits.time + _GRACE
    signal.setitimer(signal.ITIMER_REAL, left)
    try:
        for seconds, part in parts_of(request, payload, limits):
            left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
            _send_part(sink, seconds, part)
            signal.setitimer(signal.ITIMER_REAL, limits.time + _GRACE if request["kind"] == "audio" else left)
    except messages.Gone:
        raise
    except Exception as error:
        return {"type": "error", **_described(error, request["kind"], limits)}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return {"type": "end"}


def parts_of(request: dict[str, Any], payload: bytearray, limits: Limits) -> Iterator[tuple[float, Features]]:
    """The features of a medium, part by part."""
    kind, options = request["kind"], from_json(request["options"])
    if request["form"] == "array":
        array = np.frombuffer(payload, np.dtype(request["dtype"])).reshape(request["shape"])
        yield from _of_array(kind, array, request["rate"], options, limits)
        return
    with _opened(request, payload, limits) as file:
        yield from _of_file(kind, file, options, limits)


def _opened(request: dict[str, Any], payload: bytearray, limits: Limits) -> IO[bytes]:
    kind: Kind = request["kind"]
    if request["form"] == "path":
        check_size(file_size(request["path"], kind), kind, limits)
        try:
            return open(request["path"], "rb")
        except OSError as error:
            raise MediaError(kind, f"{printable(request['path'])} cannot be read: {error.strerror}") from None
    if request["form"] == "base64":
        try:
            # Both alphabets are read, with padding or without, and nothing else is.
            text = payload.translate(bytes.maketrans(b"-_", b"+/"), b" \t\r\n=")
            payload.clear()
            text += b"=" * (-len(text) % 4)
            payload = bytearray(base64.b64decode(text, validate=True))
        except binascii.Error as error:
            raise MediaError(kind, f"is not in base64: {error}") from None
    check_size(len(payload), kind, limits)
    return io.BytesIO(payload)


def _of_file(kind: Kind, file: IO[bytes], options: Any, limits: Limits) -> Iterator[tuple[float, Features]]:
    if kind == "image":
        from olivine.media.image import prepare_pillow, read_image
        from olivine.media.patches import image_features

        prepare_pillow()
        yield from ((0.0, part) for part in image_features(read_image(file, limits), options))
    elif kind == "audio":
        from olivine.media.audio import read_audio
        from olivine.media.mel import audio_features

        sound = read_audio(file, limits)
        yield from audio_features(sound, options, sound.seconds)
    else:
        from olivine.media.image import prepare_pillow
        from olivine.media.patches import video_features
        from olivine.media.video import read_video

        prepare_pillow()
        yield from video_features(read_video(file, options.frames, limits), options.image)


def _of_array(
    kind: Kind, array: np.ndarray[Any, Any], rate: float, options: Any, limits: Limits
) -> Iterator[tuple[float, Features]]:
    if kind == "audio":
        from olivine.media.audio import from_samples
        from olivine.media.mel import audio_features

        sound = from_samples(array, int(rate), limits)
        yield from audio_features(sound, options, sound.seconds)
        return
    from olivine.media.image import check_pixels, from_array, prepare_pillow
    from olivine.media.patches import image_features, video_features
    from olivine.media.video import FRAMES_PER_SECOND, evenly

    prepare_pillow()
    if kind == "image":
        image = from_array(array, kind)
        check_pixels(image.width, image.height, limits, kind)
        yield from ((0.0, part) for part in image_features(image, options))
        return
    if array.ndim != 4:
        raise MediaError(kind, f"is an array of shape {array.shape}: give [frames, height, width, 3]")
    chosen = evenly(options.frames, len(array))
    frames = ((at / (rate or FRAMES_PER_SECOND), from_array(array[at], kind)) for at in chosen)
    yield from video_features(frames, options.image)


def _send_part(sink: int, seconds: float, part: Features) -> None:
    header = {
        "type": "part",
        "seconds": seconds,
        "shape": part.rows.shape,
        "tokens": part.tokens,
        "digest": part.digest.hex(),
        "span": None if part.span is None else astuple(part.span),
    }
    rows, coordinates = np.ascontiguousarray(part.rows), np.ascontiguousarray(part.coordinates)
    messages.send(
        sink, header, rows.reshape(-1).view(np.uint8).data, coordinates.reshape(-1).view(np.uint8).data
    )


def _described(error: Exception, kind: Kind, limits: Limits) -> dict[str, str]:
    """An error as the owner is told of it."""
    if isinstance(error, MediaError):
        return {"problem": error.problem}
    if isinstance(error, ImportError):
        return {"missing": error.name or str(error)}
    if isinstance(error, MemoryError):
        return {"problem": f"needs more than {limits.memory / 2**30:.1f} GiB of memory to be decoded"}
    return {"problem": f"is broken: {printable(f'{type(error).__name__}: {error}', 200)}"}
