"""Subtitles of segments of a sound: SubRip (SRT) and WebVTT."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

VTT_HEADER = "WEBVTT\n\n"


class Timed(Protocol):
    """A text, and from when to when it is said, in seconds."""

    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...
    @property
    def text(self) -> str: ...


def srt_cue(number: int, segment: Timed) -> str:
    """A segment in SRT, with the empty line behind it; cues are numbered from 1."""
    text = _line(segment.text).replace("-->", "->")
    return f"{number}\n{timecode(segment.start, ',')} --> {timecode(segment.end, ',')}\n{text}\n\n"


def vtt_cue(segment: Timed) -> str:
    text = _line(segment.text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"{timecode(segment.start, '.')} --> {timecode(segment.end, '.')}\n{text}\n\n"


def srt(segments: Iterable[Timed]) -> str:
    return "".join(srt_cue(number, each) for number, each in enumerate(segments, 1))


def vtt(segments: Iterable[Timed]) -> str:
    return VTT_HEADER + "".join(map(vtt_cue, segments))


def timecode(seconds: float, point: str) -> str:
    """HH:MM:SS.mmm, hours beyond 99 too."""
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}{point}{thousandths:03d}"


def _line(text: str) -> str:
    """On one line: an empty line would end the cue."""
    return " ".join(text.split())
