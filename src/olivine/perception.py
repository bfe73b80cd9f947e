"""What a model sees and hears: media of messages become soft tokens, and each is encoded once.

A medium is decoded in a worker process and encoded in the thread of the caller, before its request is
submitted: a tower takes seconds on a CPU, and in the engine's thread it would stop what others stream for as
long. A tower has a program of its own, and encodes one batch of images at a time.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from olivine.backends import ClosingProgram
from olivine.backends.base import Float32
from olivine.chat.messages import Media
from olivine.chat.placeholders import Inset, Place, Slot
from olivine.checks import INT32, Check, flag, integer, optional
from olivine.engine import MediaBlock
from olivine.errors import ContextError, MediaError, ModelError, RequestError, printable
from olivine.models.siglip import SiglipConfig
from olivine.towers import GEMMA4_VIDEO, Encoder, Markers, Tower

if TYPE_CHECKING:
    from olivine.media import Features, MediaProcessor, Prepared
    from olivine.media.options import AudioOptions, Options
    from olivine.media.processor import Job

LISTENERS = 4  # sounds that are transcribed at the same time; more wait
CACHE_BYTES = 256 << 20  # of encoded media that are kept: a hundred images of Gemma 3 4B
_NAMES = {"image": "images", "audio": "sounds", "video": "videos"}
# Where a tower runs, by the model's device: the first backend that has all of its ops.
_DEVICES = {"cuda": ("cuda", "cpu")}


@dataclass(frozen=True)
class MediaOptions:
    """What users choose about their media; None: as the model's publisher does."""

    image_tokens: int | None = None  # the most soft tokens of an image
    pan_and_scan: bool = False
    video_frames: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> MediaOptions:
        """The options that were given by name."""
        return cls(**{name: _CHECKS[name](name, value) for name, value in given.items()})


_CHECKS: dict[str, Check] = {
    "image_tokens": optional(integer("above 0", 1, INT32)),
    "pan_and_scan": flag,
    "video_frames": optional(integer("between 1 and 4096", 1, 4096)),
}
MEDIA_OPTIONS = tuple(_CHECKS)


class EncodedMedia:
    """Soft tokens by the digest of what they were made of; the least recently used are dropped."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._held: OrderedDict[bytes, Float32] = OrderedDict()

    def get(self, digest: bytes) -> Float32 | None:
        if digest in self._held:
            self._held.move_to_end(digest)
        return self._held.get(digest)

    def put(self, digest: bytes, embeddings: Float32) -> None:
        if digest in self._held or embeddings.nbytes > self._limit:
            return
        self._held[digest] = embeddings
        self._size += embeddings.nbytes
        while self._size > self._limit:
            _, dropped = self._held.popitem(last=False)
            self._size -= dropped.nbytes


class Perception:
    """The towers of one model, for any number of threads."""

    def __init__(
        self,
        towers: Sequence[Tower],
        context: int,
        device: str,
        threads: int | None = None,
        *,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._towers = {tower.kind: tower for tower in towers}
        self._context = context
        self._device, self._threads = device, threads
        self._encoders: dict[str, Encoder] = {}
        self._encoded = EncodedMedia(cache_bytes)
        self._lock = threading.Lock()  # of the encoders, and of what they made
        self._opening = threading.Lock()
        self._processor: MediaProcessor | None = None
        self._listener: MediaProcessor | None = None  # for long sounds
        self.encoded = 0  # parts that a tower has run for

    @property
    def kinds(self) -> tuple[str, ...]:
        """What the model takes, of image, video and audio."""
        return tuple(kind for kind in _NAMES if self._markers(kind) is not None)

    def check(self, media: Sequence[Media]) -> None:
        """Refuses what no tower is for."""
        for each in media:
            if self._markers(each.kind) is None:
                raise RequestError(self._refusal(each.kind), param="messages")

    def insets(
        self, media: Sequence[Media], options: MediaOptions, *, paths: bool, counting: bool = False
    ) -> tuple[Inset, ...]:
        """Decodes media, and says what stands for them in the prompt. Without `paths` a text is never the
        name of a file. Where they are only counted, there may be more than the context holds, and their
        content is dropped."""
        found, tokens = [], 0
        for each in media:
            prepared = self._decoded(each, options, paths)
            tokens += prepared.tokens
            if counting:
                empty = (replace(part, rows=part.rows[:0].copy()) for part in prepared.parts)
                prepared = replace(prepared, parts=tuple(empty))
            elif tokens >= self._context:  # before the next one is decoded
                raise ContextError(tokens, self._context, least=True)
            found.append(self._inset(each.kind, prepared))
        return tuple(found)

    def blocks(self, places: Sequence[Place], length: int) -> tuple[MediaBlock, ...]:
        """The soft tokens at these places of a prompt of `length` tokens."""
        if length >= self._context:  # before anything is encoded
            raise ContextError(length, self._context)
        found: list[MediaBlock] = []
        for kind, tower in self._towers.items():
            some = [place for place in places if place.kind == kind]
            rows = self._encode([place.part for place in some], kind)
            found += [
                MediaBlock(place.start, each, place.part.digest, tower.bidirectional)
                for place, each in zip(some, rows, strict=True)
            ]
        return tuple(sorted(found, key=lambda block: block.start))

    def listen(
        self, source: Any, seconds: float, job: Job, *, paths: bool
    ) -> Generator[tuple[float, Prepared], None, None]:
        """A sound in windows of at most `seconds`, each with the second at which it begins. They are decoded
        as they are read; `job` can be cancelled by another thread."""
        from olivine.media import Limits, MediaProcessor, Prepared
        from olivine.media.audio import RATE

        if self._markers("audio") is None:
            raise RequestError(self._refusal("audio"))
        piece = round(seconds * RATE)
        options: Any = replace(self._audio_options(), piece=piece, quiet=piece // 480 * 160)
        with self._opening:
            if self._listener is None:
                # Processes of their own: one is taken for as long as a file is transcribed. Of a video only
                # the sound is decoded, so it may be as large as a video.
                limits = replace(Limits(), audio_bytes=Limits.video_bytes)
                self._listener = MediaProcessor(limits, workers=LISTENERS)
            listener = self._listener
        for at, part in listener.stream("audio", source, options, paths=paths, job=job):
            # A long sound would drop all that others may ask for again.
            yield at, Prepared("audio", (replace(part, kept=False),), (at,))

    def close(self) -> None:
        """Ends the worker processes and frees the towers' memory."""
        with self._opening:
            processors, self._processor, self._listener = (self._processor, self._listener), None, None
        for processor in processors:
            if processor is not None:
                processor.close()
        with self._lock:
            encoders, self._encoders = self._encoders, {}
        for encoder in encoders.values():
            if isinstance(encoder.compiled.program, ClosingProgram):
                encoder.compiled.program.close()

    # ---- what is seen

    def _markers(self, kind: str) -> Markers | None:
        tower = self._towers.get("audio" if kind == "audio" else "vision")
        if tower is None or kind != "video":
            return None if tower is None else tower.markers
        # Gemma 3 was not made for frames.
        return GEMMA4_VIDEO if tower.markers.begin == GEMMA4_VIDEO.begin else None

    def _refusal(self, kind: str) -> str:
        known = " and ".join(_NAMES[each] for each in self.kinds)
        return f"this model does not take {_NAMES[kind]}, only text and {known}"

    def _inset(self, kind: str, prepared: Prepared) -> Inset:
        markers = self._markers(kind)
        assert markers is not None
        return inset_of(prepared, markers, "audio" if kind == "audio" else "vision")

    def _decoded(self, given: Media, options: MediaOptions, paths: bool) -> Prepared:
        from olivine.media import Prepared

        if isinstance(given.source, Prepared):
            return given.source
        return self._prepared(given, self._options(given.kind, options), paths)

    def _prepared(self, given: Media, options: Options, paths: bool) -> Prepared:
        """Decoded. Errors name the file, of which there may be several."""
        from olivine.media import source_of

        source = source_of(given.kind, given.source, paths=paths)
        try:
            return self._open().prepare(given.kind, source, options, paths=paths)
        except MediaError as error:
            name = printable(os.path.basename(source.path))
            if source.form != "path" or name in error.problem:
                raise
            raise MediaError(error.kind, f"{name} {error.problem}") from None

    def _options(self, kind: str, chosen: MediaOptions) -> Options:
        """How this model wants its media."""
        from olivine.media import BudgetImage, SquareImage, VideoFrames
        from olivine.media.options import BUDGETS

        if kind == "audio":
            return self._audio_options()
        tower = self._towers["vision"]
        c = tower.config
        if isinstance(c, SiglipConfig):
            if chosen.image_tokens not in (None, (c.side // c.pool) ** 2):
                raise RequestError(f"an image of this model has {(c.side // c.pool) ** 2} tokens, always")
            return SquareImage(
                c.image, c.patch, c.pool, tower.mean, tower.deviation, pan_and_scan=chosen.pan_and_scan
            )
        if chosen.pan_and_scan:
            raise RequestError("pan_and_scan is for Gemma 3: this model takes images of any shape")
        budget = chosen.image_tokens or (70 if kind == "video" else 280)
        if budget not in BUDGETS:
            raise RequestError(f"image_tokens must be one of {', '.join(map(str, BUDGETS))}, and is {budget}")
        merged = "unified" in tower.built.architecture.name
        image = BudgetImage(budget, c.patch, c.pool, merged)
        return VideoFrames(chosen.video_frames or 32, image) if kind == "video" else image

    def _audio_options(self) -> AudioOptions:
        from olivine.media import MelAudio, RawAudio

        return RawAudio() if "unified" in self._towers["audio"].built.architecture.name else MelAudio()

    def _open(self) -> MediaProcessor:
        from olivine.media import MediaProcessor

        with self._opening:
            if self._processor is None:
                self._processor = MediaProcessor()
            return self._processor

    # ---- towers

    def _encode(self, parts: Sequence[Features], tower: str) -> list[Float32]:
        """The soft tokens of each part, from the tower or from what was kept."""
        with self._lock:
            known = {part.digest: self._encoded.get(part.digest) for part in parts}
            new = {part.digest: part for part in parts if known[part.digest] is None}
            made = self._encoder(tower).encode(list(new.values())) if new else []
            self.encoded += len(made)
            for part, found in zip(new.values(), made, strict=True):
                if len(found) != part.tokens:
                    raise ModelError(
                        f"the {tower} tower made {len(found)} soft tokens, and not {part.tokens}"
                    )
                own = found.copy()  # not a view of the whole batch
                known[part.digest] = own
                if part.kept:
                    self._encoded.put(part.digest, own)
        return [rows for part in parts if (rows := known[part.digest]) is not None]

    def _encoder(self, kind: Any) -> Encoder:
        if kind not in self._encoders:
            *devices, last = _DEVICES.get(self._device, (self._device,))
            for device in devices:
                try:
                    self._encoders[kind] = Encoder(self._towers[kind], device, self._threads)
                    return self._encoders[kind]
                except ModelError:  # it lacks an op
                    continue
            self._encoders[kind] = Encoder(self._towers[kind], last, self._threads)
        return self._encoders[kind]


def inset_of(prepared: Prepared, markers: Markers, kind: str) -> Inset:
    """What stands in a prompt for a medium that was preprocessed, for a tower of a kind."""
    from olivine.media.features import timestamp

    one = f"{markers.around}{markers.begin}{markers.end}{markers.around}"
    parts = prepared.parts
    if prepared.kind == "audio":  # a long one has several parts, in one pair of markers
        return Inset(markers.placeholder, one, (Slot(markers.begin, markers.end, kind, parts),))
    if prepared.kind == "video":
        text = " ".join(f"{timestamp(seconds)} {one}" for seconds in prepared.times)
    elif len(parts) > 1:  # pan and scan
        crops = " ".join([one] * (len(parts) - 1))
        text = f"Here is the original image {one} and here are some crops to help you see better {crops}"
    else:
        text = one
    slots = tuple(Slot(markers.begin, markers.end, kind, (part,)) for part in parts)
    return Inset(markers.placeholder, text, slots)
