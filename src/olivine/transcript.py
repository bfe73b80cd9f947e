"""What is said in a sound, whole or in deltas; and how a model is asked for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from olivine.engine import Finish, Timings, Usage
from olivine.errors import RequestError
from olivine.languages import language_name
from olivine.options import GenerateKwargs
from olivine.subtitles import srt, vtt
from olivine.token_stream import TokenLogprob

LONGEST = 30.0  # seconds that a model hears at once
LONGEST_PROMPT = 4000  # characters


class TranscribeKwargs(GenerateKwargs, total=False):
    """The keywords of `LLM.transcribe`, for type checkers and editors."""

    language: str | None
    translate: str | None
    prompt: str | None
    window: float


@dataclass(frozen=True)
class Segment:
    """A window's text, and from when to when the window lasts, in seconds."""

    start: float
    end: float
    text: str
    tokens: list[int]
    finish_reason: str  # "length" or "repetition" where the text was cut
    logprobs: list[TokenLogprob] | None = None


@dataclass(frozen=True)
class Transcript:
    """What is said in a sound. `duration` is in seconds, as far as it was heard."""

    text: str
    segments: list[Segment]
    duration: float
    finish_reason: Finish  # "stop", or "cancelled" or "timeout" where the end is missing
    usage: Usage
    timings: Timings

    def __str__(self) -> str:
        return self.text

    @property
    def srt(self) -> str:
        """As SubRip subtitles, a cue for each window."""
        return srt(self.segments)

    @property
    def vtt(self) -> str:
        """As WebVTT subtitles."""
        return vtt(self.segments)


@dataclass(frozen=True)
class TranscriptDelta:
    """A bit of a transcription as it is made: text, and the segments that end with it. The last one carries
    the transcript."""

    text: str = ""
    segments: list[Segment] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    seconds: float = 0.0  # that are through
    total: float = 0.0  # of the sound, as its header says it; 0: not known
    transcript: Transcript | None = None

    def __str__(self) -> str:
        return self.text


def instruction(language: str | None, translate: str | None, prompt: str | None) -> str:
    """What the model is asked, in the words in which Gemma 4 was trained to transcribe and to translate."""
    spoken = None if language is None else language_name(language)
    if translate is not None:
        into = language_name(translate, "translate")
        source = spoken or "its original language"
        text = (
            f"Transcribe the following speech segment in {source}, then translate it into {into}. When "
            f"formatting the answer, first output the transcription in {source}, then one newline, then "
            f"output the string '{into}: ', then the translation in {into}."
        )
    else:
        how = "its original language" if spoken is None else f"{spoken} into {spoken} text"
        text = (
            f"Transcribe the following speech segment in {how}. Follow these specific instructions for "
            "formatting the answer:\n* Only output the transcription, with no newlines.\n* When transcribing "
            "numbers, write the digits, i.e. write 1.7 and not one point seven, and write 3 instead of three."
        )
    if prompt:
        if len(prompt) > LONGEST_PROMPT:
            raise RequestError(
                f"prompt: {len(prompt)} characters, and {LONGEST_PROMPT} is the most", param="prompt"
            )
        text += f"\n* Names and words that may occur, or the text before this segment: {prompt}"
    return text
