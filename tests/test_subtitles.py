"""Subtitles: times, numbers, and texts that would break a cue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from olivine.subtitles import srt, timecode, vtt


def segment(start: float, end: float, text: str) -> Any:
    return SimpleNamespace(start=start, end=end, text=text)


SEGMENTS = [segment(0.0, 29.9995, "Ask not"), segment(3661.25, 3675.0, "a --> b\n\n<i> & so on")]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.0, "00:00:00,000"), (59.9996, "00:01:00,000"), (3661.25, "01:01:01,250"), (360_000, "100:00:00,000")],
)
def test_timecodes_are_rounded_to_milliseconds(seconds: float, expected: str) -> None:
    assert timecode(seconds, ",") == expected


def test_srt() -> None:
    assert srt(SEGMENTS) == (
        "1\n00:00:00,000 --> 00:00:30,000\nAsk not\n\n"
        "2\n01:01:01,250 --> 01:01:15,000\na -> b <i> & so on\n\n"
    )
    assert srt([]) == ""


def test_vtt() -> None:
    assert vtt(SEGMENTS) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:30.000\nAsk not\n\n"
        "01:01:01.250 --> 01:01:15.000\na --&gt; b &lt;i&gt; &amp; so on\n\n"
    )
