"""What a medium may cost: checked before it is decoded, and enforced while it is."""

from __future__ import annotations

from dataclasses import dataclass

MOST_FRAMES_PER_SECOND = 1000  # of videos; what claims more is no video


@dataclass(frozen=True)
class Limits:
    """Sizes of files and of what they claim to hold; memory and time of the process that decodes them."""

    image_bytes: int = 64 << 20
    audio_bytes: int = 1 << 30
    video_bytes: int = 4 << 30
    pixels: int = 100_000_000  # of an image, and of a frame
    audio_seconds: float = 4 * 3600.0
    video_seconds: float = 4 * 3600.0
    memory: int = 2 << 30  # address space of a worker process
    time: float = 60.0  # seconds for an image or a video, or for each part of a sound that is streamed
    idle: float = 60.0  # seconds after which a worker without work ends

    def bytes_of(self, kind: str) -> int:
        return {"image": self.image_bytes, "audio": self.audio_bytes, "video": self.video_bytes}[kind]
