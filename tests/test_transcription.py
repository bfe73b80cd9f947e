"""Transcriptions: windows put together in order, times, ends; scripted, and on a small random model."""

from __future__ import annotations

import asyncio
import io
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from media.clips import clip
from olivine.chat.messages import Message
from olivine.engine import Ticket, Timings, Update, Usage
from olivine.errors import BusyError, ClosedError, MediaError, OlivineError, RequestError
from olivine.llm import LLM, load
from olivine.media.features import Features, Prepared, Span
from olivine.reply import Delta, Reply
from olivine.streaming import Stream, result_of
from olivine.transcript import Transcript
from olivine.transcription import AT_ONCE, Transcription
from oracles import multimodal

SPEECH = Path(__file__).parents[2] / "shared" / "data" / "media" / "jfk.wav"
heard = pytest.mark.skipif(not SPEECH.exists(), reason="needs jfk.wav")


# ---- scripted windows


class Scripted:
    """Stands in for `Perception` and for what submits conversations: each window has a text, which comes in
    the bits that the script has."""

    kinds = ("audio",)

    def __init__(self, *windows: Sequence[str] | Exception | None, seconds: float = 10.0) -> None:
        self.windows = windows  # None: a silent one
        self.seconds = seconds
        self.asked: list[tuple[Any, Mapping[str, Any]]] = []
        self.streams: list[ScriptedStream] = []
        self.busy = 0  # times that the engine has no place
        self.order: Callable[[list[ScriptedStream]], None] = lambda streams: None

    def listen(self, source: Any, seconds: float, job: Any, *, paths: bool) -> Iterator[Any]:
        for index, window in enumerate(self.windows):
            if isinstance(window, Exception):
                raise window
            span = Span(self.seconds, len(self.windows) * self.seconds, window is None)
            part = Features(np.zeros((1, 1), np.float32), np.zeros((1, 2), np.int32), 1, bytes(32), span)
            self.next = window
            yield index * self.seconds, Prepared("audio", (part,), (index * self.seconds,))

    def start(self, messages: Any, options: Mapping[str, Any], tell: Any) -> ScriptedStream:
        if self.busy and self.streams:
            self.busy -= 1
            raise BusyError("full", retry_after=0.001)
        self.asked.append((messages, options))
        self.streams.append(ScriptedStream(list(self.next or ()), tell))
        self.order(self.streams)
        return self.streams[-1]

    def transcription(self, **options: Any) -> Transcription:
        return Transcription(self, self.start, b"", options)  # type: ignore[arg-type]

    def stream(self, **options: Any) -> Stream[Any, Transcript]:
        return Stream(self.transcription(**options))


class ScriptedStream:
    """A request of one window."""

    def __init__(self, bits: list[str], tell: Any) -> None:
        self.bits, self.tell = bits, tell
        self.result: Reply | None = None
        self.ticket = Ticket(self.cancel)
        self.over = False
        self.abandoned = False

    def cancel(self, reason: Any) -> None:
        if not self.over:
            self.over = True
            self.tell(Update(finish=reason))

    def run(self) -> None:
        for index in range(len(self.bits)):
            self.tell(Update(tokens=[index]))
        self.over = True
        self.tell(Update(finish="stop"))

    def feed(self, update: Update) -> Delta:
        if update.finish is None:
            return Delta(self.bits[update.tokens[0]], tokens=update.tokens)
        text = "".join(self.bits)
        usage = Usage(prompt=100, completion=len(self.bits))
        message, tokens = Message("assistant", text), list(range(len(self.bits)))
        self.result = Reply(message, update.finish, usage, Timings(decode=1.0), 0, tokens)
        return Delta(reply=self.result)

    def abandon(self) -> None:
        self.abandoned = True
        self.ticket.cancel()


def at_once(streams: list[ScriptedStream]) -> None:
    """Runs a window while it is submitted: its updates come before `start` returns."""
    threading.Thread(target=streams[-1].run).start()


def backwards(streams: list[ScriptedStream]) -> None:
    """The last of four windows is through first."""
    if len(streams) == 4:
        for each in reversed(streams):
            each.run()


@pytest.mark.parametrize("order", [at_once, backwards])
def test_texts_stand_in_the_order_of_their_windows(order: Any) -> None:
    script = Scripted([" Ask", " not", "\n"], ["what ", " your"], None, ["国"], ["家。", " "])
    script.order = order
    pieces = list(script.stream())
    found = pieces[-1].transcript
    assert found.text == "Ask not what  your 国家。" == "".join(piece.text for piece in pieces)
    assert [(each.start, each.end, each.text) for each in found.segments] == [
        (0.0, 10.0, "Ask not"),
        (10.0, 20.0, "what  your"),
        (30.0, 40.0, "国"),
        (40.0, 50.0, "家。"),
    ]
    assert [each for piece in pieces for each in piece.segments] == found.segments
    assert found.finish_reason == "stop" and found.duration == 50.0 == pieces[-1].total
    assert found.usage == Usage(prompt=400, completion=8) and found.timings.decode == 4.0
    assert found.srt.startswith("1\n00:00:00,000 --> 00:00:10,000\nAsk not\n\n2\n")
    assert found.vtt.endswith("00:00:40.000 --> 00:00:50.000\n家。\n\n")


def test_a_few_windows_run_at_once() -> None:
    script = Scripted(*[["a"]] * 9)
    stream = script.stream()
    for index in range(9):
        while len(script.streams) < min(9, AT_ONCE + index):
            pass
        assert len(script.streams) <= AT_ONCE + index
        script.streams[index].run()
    assert result_of(stream).text == "a a a a a a a a a"


def test_options_of_a_window() -> None:
    script = Scripted(["a"])
    script.order = at_once
    result_of(script.stream(language="de", window=20, timeout=100, top_k=3, seed=None))
    ((messages, options),) = script.asked
    (message,) = messages
    medium, text = message["content"]
    assert medium.kind == "audio" and "in German into German text" in text
    assert 0 < options.pop("timeout").at - time.perf_counter() <= 100
    assert options == {
        "stop_on_repetition": True,
        "max_tokens": 64 + 240,
        "temperature": 0.0,
        "top_k": 3,
        "think": False,
    }


def test_a_translation_is_what_follows_the_transcription() -> None:
    script = Scripted(["Frag nicht\n", "English: Ask not"], ["no marker"], ["a\nEnglish:"])
    script.order = at_once
    found = result_of(script.stream(translate="en"))
    assert [each.text for each in found.segments] == ["Ask not", "no marker", ""]
    assert found.text == "Ask not no marker"


def test_silence_has_no_text() -> None:
    script = Scripted(None, None)
    found = result_of(script.stream())
    assert (found.text, found.segments, found.duration) == ("", [], 20.0)
    assert not script.asked


def test_cancelled_with_what_there_is() -> None:
    script = Scripted(*[["a"]] * 100)
    stream = script.stream()
    script.streams[0].run()
    pieces = [next(stream), next(stream)]
    stream.cancel()
    pieces += list(stream)
    found = pieces[-1].transcript
    assert found.finish_reason == "cancelled" and found.segments[0].text == "a"
    assert len(script.streams) < 10


def test_a_stream_that_is_left_ends_its_windows() -> None:
    script = Scripted(*[["a"]] * 100)
    stream = script.stream()
    while len(script.streams) < AT_ONCE:
        pass
    stream.close()
    assert all(each.abandoned for each in script.streams[:AT_ONCE])
    assert len(script.streams) <= AT_ONCE + 1
    assert list(stream) == []


def test_what_was_heard_comes_before_an_error() -> None:
    script = Scripted(["a"], ["b"], MediaError("audio", "is broken"))
    script.order = at_once
    text = ""
    with pytest.raises(MediaError, match="the audio is broken"):
        for piece in script.stream():
            text += piece.text
    assert text == "a b"


def test_an_error_of_ours_is_told() -> None:
    script = Scripted(["a"], ValueError("what"))
    script.order = at_once
    with pytest.raises(OlivineError, match="the transcription failed: ValueError: what"):
        result_of(script.stream())
    with pytest.raises(ValueError):
        Scripted(ValueError("at once")).stream()


def test_a_window_waits_for_a_place_in_the_queue_but_the_first() -> None:
    script = Scripted(["a"], ["b"])
    script.busy, script.order = 3, at_once
    assert result_of(script.stream()).text == "a b"
    script = Scripted(["a"])
    script.start = lambda *args: (_ for _ in ()).throw(BusyError("full"))  # type: ignore[method-assign]
    with pytest.raises(BusyError):
        script.stream()


def test_a_deadline_ends_it_with_what_there_is() -> None:
    script = Scripted(*[["a"]] * 100)
    stream = script.stream(timeout=1e-6)
    script.streams[0].run()
    while len(script.streams) < 2:
        pass
    for each in script.streams[1:]:
        each.cancel("timeout")
    found = result_of(stream)
    assert found.finish_reason == "timeout" and found.segments[0].text == "a"


# ---- a model that hears


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = multimodal.write("gemma4-e2b", tmp_path_factory.mktemp("hearing"))
    with load(folder, device="cpu", threads=1, context=1200, sequences=3) as llm:
        yield llm


def tones(seconds: float, *silences: tuple[float, float]) -> tuple[np.ndarray, int]:
    """A tone with silences in it."""
    time = np.arange(round(seconds * 16_000)) / 16_000
    sound = 0.3 * np.sin(2 * np.pi * 440 * time)
    for begin, end in silences:
        sound[round(begin * 16_000) : round(end * 16_000)] = 0
    return sound.astype(np.float32), 16_000


def test_segments_are_the_windows_and_each_is_transcribed_as_alone(llm: LLM) -> None:
    sound, rate = tones(4.0, (1.6, 1.9), (3.5, 3.7))
    found = llm.transcribe((sound, rate), window=2, max_tokens=6)
    times = [(each.start, each.end) for each in found.segments]
    assert times == [(0.0, 1.85), (1.85, pytest.approx(3.65)), (pytest.approx(3.65), 4.0)]
    assert found.duration == 4.0 and found.finish_reason == "stop"
    for each in found.segments:
        part = sound[round(each.start * rate) : round(each.end * rate)]
        alone = llm.transcribe((part, rate), max_tokens=6)
        assert alone.segments[0].tokens == each.tokens
        content = [{"type": "audio", "audio": (part, rate)}, _question()]
        reply = llm.chat([{"role": "user", "content": content}], max_tokens=6, temperature=0)
        assert reply.tokens == each.tokens


def _question() -> str:
    from olivine.transcript import instruction

    return instruction(None, None, None)


def test_minutes_of_sound_and_of_silence(llm: LLM) -> None:
    """All windows are there, whatever is decoded ahead of them; silent ones are left out."""
    sound, rate = tones(100.0, (20.0, 90.0))
    file = io.BytesIO()
    soundfile.write(file, sound, rate, format="FLAC")
    found = llm.transcribe(file.getvalue(), max_tokens=1)
    assert found.duration == 100.0
    first, last = found.segments
    assert (first.start, last.end) == (0.0, 100.0) and first.end < 31 and last.start > 70


@heard
def test_real_speech_whole_and_as_it_comes(llm: LLM) -> None:
    found = llm.transcribe(SPEECH, max_tokens=12, logprobs=0)
    (segment,) = found.segments
    assert segment.end == found.duration == 11.0 and len(segment.tokens) == 12
    assert segment.logprobs is not None and len(segment.logprobs) == 12
    assert found.text == segment.text and found.usage.prompt > 275
    pieces = list(llm.stream_transcription(SPEECH.read_bytes(), max_tokens=12))
    assert pieces[-1].transcript.segments[0].tokens == segment.tokens

    async def both() -> tuple[Transcript, str]:
        whole = await llm.atranscribe(SPEECH, max_tokens=12, window=4)
        deltas = llm.astream_transcription(SPEECH, max_tokens=12, window=4)
        return whole, "".join([each.text async for each in deltas])

    whole, text = asyncio.run(both())
    assert whole.text == text and len(whole.segments) > 2
    assert [each.start for each in whole.segments[1:]] == [each.end for each in whole.segments[:-1]]


def test_windows_are_not_kept_in_the_place_of_what_is_asked_for_again(llm: LLM) -> None:
    perception = llm._perception
    assert perception is not None
    kept = set(perception._encoded._held)
    for _ in range(2):
        before = perception.encoded
        llm.transcribe(tones(1.5), max_tokens=1)
        assert perception.encoded == before + 1
    assert set(perception._encoded._held) == kept


def test_the_sound_of_a_video(llm: LLM) -> None:
    found = llm.transcribe(clip(30, sound=True), max_tokens=2)
    assert len(found.segments) == 1 and found.duration > 0.5
    with pytest.raises(MediaError, match="has no sound track"):
        llm.transcribe(clip(3), max_tokens=2)


def test_a_model_that_takes_the_waveform_itself(tmp_path: Path) -> None:
    """Gemma 4 12B has no tower: rows are pieces of the sound."""
    folder = multimodal.write("gemma4-12b", tmp_path)
    with load(folder, device="cpu", threads=1, context=1200) as unified:
        found = unified.transcribe(tones(4.0, (1.6, 1.9)), window=2, max_tokens=3)
    assert [each.start for each in found.segments[:2]] == [0.0, 1.85] and found.duration == 4.0


def test_a_model_that_is_closed_meanwhile(llm: LLM) -> None:
    with load(llm.checkpoint.path, device="cpu", threads=1, context=1200) as other:
        stream = other.stream_transcription(tones(200.0), max_tokens=200, ignore_eos=True)
        next(stream)
        other.close()
        with pytest.raises(ClosedError):
            list(stream)


@pytest.mark.exhaustive
def test_two_hours_take_no_more_memory_than_a_minute(llm: LLM, tmp_path: Path) -> None:
    path = tmp_path / "long.flac"
    minutes = np.concatenate([tones(5.0)[0], np.zeros(475 * 16_000, np.float32)])
    with soundfile.SoundFile(path, "w", 16_000, 1) as file:
        for _ in range(15):
            file.write(minutes)
    found = llm.transcribe(path, max_tokens=1)
    assert found.duration == 7200.0 and 15 <= len(found.segments) <= 30
    assert llm._perception is not None and llm._perception._listener is not None
    for worker in llm._perception._listener._all:
        status = Path(f"/proc/{worker.pid}/status").read_text()
        (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
        assert int(peak) < 200_000


def test_what_cannot_be_transcribed_is_refused_at_once(llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(MediaError, match="there is no such file"):
        llm.stream_transcription("nothing.wav")
    with pytest.raises(MediaError, match="broken, or in a format that is not read"):
        llm.stream_transcription(b"no sound at all")
    with pytest.raises(RequestError, match="window must be seconds between 1 and 30"):
        llm.transcribe(SPEECH, window=31)
    with pytest.raises(RequestError, match="timeout must be above 0"):
        llm.transcribe(tones(1.0), timeout=-1)
    with pytest.raises(TypeError, match="there is no option 'languge'"):
        llm.transcribe(tones(1.0), languge="de")  # type: ignore[call-arg]
    (tmp_path / "sound.wav").write_bytes(b"")
    with pytest.raises(MediaError, match="neither a data URL nor base64"):
        llm.submit_transcription(str(tmp_path / "sound.wav"), [lambda update: None])  # type: ignore[arg-type]


def test_a_model_without_an_audio_tower_says_so() -> None:
    refused = pytest.raises(RequestError, match=r"has no audio tower.*Gemma 4 E2B")
    with load("olivine-mini", device="cpu", threads=1) as mini:
        with refused:
            mini.transcribe(tones(1.0))
        with pytest.raises(TypeError, match=r"there is no option 'languge'; known: .*language"):
            mini.transcribe(tones(1.0), languge="de")  # type: ignore[call-arg]
