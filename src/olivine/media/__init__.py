"""Images, sounds and videos: from a file to the rows that a tower reads.

`MediaProcessor` does it in worker processes with limits; `docs/media.md` says what is read and how.
"""

from __future__ import annotations

from olivine.media.features import Features, Prepared
from olivine.media.limits import Limits
from olivine.media.options import BudgetImage, MelAudio, RawAudio, SquareImage, VideoFrames
from olivine.media.processor import MediaProcessor
from olivine.media.sources import Source, kind_of, source_of

__all__ = [
    "BudgetImage",
    "Features",
    "Limits",
    "MediaProcessor",
    "MelAudio",
    "Prepared",
    "RawAudio",
    "Source",
    "SquareImage",
    "VideoFrames",
    "kind_of",
    "source_of",
]
