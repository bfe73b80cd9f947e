"""Speech to text: a sound in windows, each of which the model is asked to transcribe.

A window is no longer than what the model hears at once, and ends where it is quiet. Windows are independent:
a few of them run at the same time, and their texts are put together in order. A thread of the transcription
reads windows, encodes and submits them; who reads the transcription hears of them as of any other request.
"""

from __future__ import annotations

import re
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from olivine.checks import number, of_type, optional, refuse_unknown
from olivine.engine import Finish, Ticket, Update
from olivine.engine.checks import TIMEOUT, Deadline
from olivine.errors import BusyError, OlivineError, RequestError
from olivine.languages import language_name
from olivine.streaming import Tell
from olivine.token_stream import TokenStream
from olivine.transcript import LONGEST, Segment, TranscribeKwargs, Transcript, TranscriptDelta, instruction

if TYPE_CHECKING:  # at run time where they are used: they import Jinja, and the formats of media
    from olivine.media import Prepared
    from olivine.perception import Perception
    from olivine.reply import Delta, Reply

AT_ONCE = 4  # windows of one sound that are submitted and not through
_TOKENS, _TOKENS_PER_SECOND = 64, 24  # the most of a window's text; fast speech has a third of that

# Scripts without spaces between words: kana, Chinese characters and their punctuation.
_UNSPACED = re.compile("[\u3000-\u30ff\u3400-\u9fff\uff00-\uffef]")

_STR = of_type(str, "a text")
_DEFAULTS: dict[str, Any] = {"language": None, "translate": None, "prompt": None, "window": LONGEST}
_CHECKS = {
    "language": optional(_STR),
    "translate": optional(_STR),
    "prompt": optional(_STR),
    "window": number(f"seconds between 1 and {LONGEST:g}", 1, LONGEST),
}
NO_TOWER = (
    "this model has no audio tower, so it cannot hear: Gemma 4 E2B, E4B and 12B have one; a GGUF model needs "
    "its mmproj file beside it"
)


@dataclass
class _Window:
    """A window under way: its updates wait here until the windows before it are through."""

    start: float
    end: float
    stream: TokenStream[Delta, Reply] | None = None  # once `submitted`
    submitted: threading.Event = field(default_factory=threading.Event)
    waiting: deque[Update] = field(default_factory=deque)
    spoken: bool = False  # some of its text is there
    space: str = ""  # white space that text may follow


@dataclass
class _Letter(Update):
    """An update of a window, among those of a transcription; without a window, its last one."""

    window: _Window | None = None
    inner: Update = field(default_factory=Update)


Start = Callable[[Any, Mapping[str, Any], Tell], "TokenStream[Delta, Reply]"]


class Transcription:
    """A sound on its way to a transcript: a source of pieces, as `streaming.Source` has it."""

    def __init__(
        self,
        perception: Perception | None,
        start: Start,
        audio: Any,
        options: Mapping[str, Any],
        tell: Tell | None = None,
        *,
        paths: bool = True,
    ) -> None:
        """Submits the first window; what is wrong with the sound or the options is raised here. `start`
        submits a conversation."""
        refuse_unknown(options, TranscribeKwargs.__annotations__)
        if perception is None or "audio" not in perception.kinds:
            raise RequestError(NO_TOWER)
        from olivine.media.processor import Job

        own = {name: check(name, options.get(name, _DEFAULTS[name])) for name, check in _CHECKS.items()}
        self._translate = None if own["translate"] is None else language_name(own["translate"], "translate")
        self._text = instruction(own["language"], own["translate"], own["prompt"])
        self._options = {name: value for name, value in options.items() if name not in _CHECKS}
        # One for all windows.
        timeout = TIMEOUT("timeout", self._options.get("timeout"))
        self._options["timeout"] = Deadline.of(timeout, time.perf_counter())
        self._start = start
        self.ticket = _ticket(self)
        self._tell = tell or self.ticket.put
        self.result: Transcript | None = None
        self._texts: list[str] = []
        self._segments: list[Segment] = []
        self._windows: deque[_Window] = deque()  # those whose text is not complete, in order
        self._lock = threading.RLock()  # of `_windows`
        self._room = threading.Semaphore(AT_ONCE)
        self._ended = threading.Event()
        self._reason: Finish = "stop"
        self._heard, self._total = 0.0, 0.0  # seconds
        self._job = Job()
        self._sound = perception.listen(audio, own["window"], self._job, paths=paths)
        try:
            more = self._next()
        except BaseException:
            self._sound.close()
            raise
        # A daemon: a program that ends does not wait for it.
        args = (more,)
        threading.Thread(target=self._run, args=args, name="olivine-transcription", daemon=True).start()

    # ---- the thread that submits windows

    def _run(self, more: bool) -> None:
        error: OlivineError | None = None
        try:
            while more and not self._ended.is_set():
                more = self._next()
        except OlivineError as found:
            error = None if self._ended.is_set() else found
        except Exception as found:
            error = OlivineError(f"the transcription failed: {type(found).__name__}: {found}")
        finally:
            with suppress(Exception):
                self._sound.close()
        for _ in range(AT_ONCE):  # what was submitted is heard to its end, also before an error
            self._room.acquire()
        with suppress(Exception):  # an event loop that is closed hears nothing
            self._tell(_Letter(finish=self._reason) if error is None else _Letter(error=error))

    def _next(self) -> bool:
        """Submits the next window in which something can be heard; False where there is none."""
        for at, prepared in self._sound:
            span = prepared.parts[0].span
            assert span is not None
            self._heard, self._total = at + span.seconds, span.total
            if not span.silent:
                self._submit(_Window(at, at + span.seconds), prepared)
                return True
            if self._ended.is_set():
                break
        return False

    def _submit(self, window: _Window, prepared: Prepared) -> None:
        self._room.acquire()
        with self._lock:
            first = not self._windows and not self._segments
            self._windows.append(window)
        try:
            window.stream = self._submitted(window, prepared, patient=not first)
        except BaseException:
            with self._lock:
                self._windows.remove(window)
            self._room.release()
            raise
        window.submitted.set()
        if self._ended.is_set():  # meanwhile
            window.stream.ticket.cancel(self._reason)

    def _submitted(self, window: _Window, prepared: Prepared, patient: bool) -> TokenStream[Delta, Reply]:
        """Submits a window; a `patient` one waits for a place in the queue."""
        from olivine.chat.messages import Media

        messages = [{"role": "user", "content": [Media("audio", prepared), self._text]}]
        while True:
            try:
                return self._start(messages, self._limited(prepared), partial(self._relay, window))
            except BusyError as error:
                if not patient or self._ended.wait(min(error.retry_after, 5.0)):
                    raise

    def _limited(self, prepared: Prepared) -> dict[str, Any]:
        """The options of a window."""
        span = prepared.parts[0].span
        assert span is not None
        most = _TOKENS + int(_TOKENS_PER_SECOND * span.seconds)
        given: dict[str, Any] = {
            "stop_on_repetition": True,
            "max_tokens": most * (2 if self._translate else 1),
        }
        if self._options.get("sampling") is None:
            given["temperature"] = 0.0
        chosen = {name: value for name, value in self._options.items() if value is not None}
        return {**given, **chosen, "think": False}

    def _relay(self, window: _Window, update: Update) -> None:
        """Called by the engine's thread."""
        if update.error is not None or update.finish == "timeout":
            self._stop("timeout" if update.error is None else "cancelled")
        try:
            self._tell(_Letter(error=update.error, window=window, inner=update))
        finally:
            if update.error is not None or update.finish is not None:
                self._room.release()

    # ---- who reads

    def feed(self, update: Update) -> TranscriptDelta:
        """The piece that an update makes."""
        assert isinstance(update, _Letter)
        if update.window is None:
            return self._last()
        update.window.waiting.append(update.inner)
        text, tokens, done = "", list[int](), list[Segment]()
        while self._windows and self._windows[0].waiting:
            window = self._windows[0]
            window.submitted.wait()  # the engine may be faster than `_submit` is to take note
            assert window.stream is not None
            while window.waiting and window.stream.result is None:
                delta = window.stream.feed(window.waiting.popleft())
                tokens += delta.tokens
                if self._translate is None:
                    text += self._joined(delta.content, window)
            if (reply := window.stream.result) is None:
                break
            if self._translate is not None:
                text += self._joined(_translated(reply.content, self._translate), window)
            done.append(self._segment(window, reply))
            with self._lock:
                self._windows.popleft()
        self._segments += done
        through = self._segments[-1].end if self._segments else 0.0
        return TranscriptDelta(text, done, tokens, through, self._total)

    def abandon(self) -> None:
        """Ends what still runs: nothing more is read. A second time is fine."""
        self._end("cancelled")
        with self._lock:
            windows = list(self._windows)
        for window in windows:
            if window.stream is not None:
                window.stream.abandon()
        self._room.release(AT_ONCE)  # for nothing that runs is waited

    def _end(self, reason: Finish) -> None:
        """Lets no further window begin, and ends those that run."""
        self._stop(reason)
        with self._lock:
            windows = list(self._windows)
        for window in windows:
            if window.stream is not None:
                window.stream.ticket.cancel(reason)

    def _stop(self, reason: Finish) -> None:
        if not self._ended.is_set():
            self._reason = reason
            self._ended.set()
            self._job.cancel()

    def _joined(self, text: str, window: _Window) -> str:
        """Text of a window as the transcript has it: white space around a window's text does not count, and
        its first word stands apart from the text before it."""
        text = window.space + text
        window.space = ""
        if not window.spoken:
            text = text.lstrip()
        found = text.rstrip()
        if not found:
            window.space = text if window.spoken else ""
            return ""
        window.space = text[len(found) :]
        if not window.spoken:
            window.spoken = True
            before = self._texts[-1][-1:] if self._texts else ""
            unspaced = _UNSPACED.match(before) and _UNSPACED.match(found)
            found = found if unspaced or not before else f" {found}"
        self._texts.append(found)
        return found

    def _segment(self, window: _Window, reply: Reply) -> Segment:
        text = reply.content if self._translate is None else _translated(reply.content, self._translate)
        for mine, its in ((self.ticket.usage, reply.usage), (self.ticket.timings, reply.timings)):
            for each in fields(mine):
                setattr(mine, each.name, getattr(mine, each.name) + getattr(its, each.name))
        return Segment(
            window.start, window.end, text.strip(), reply.tokens, reply.finish_reason, reply.logprobs
        )

    def _last(self) -> TranscriptDelta:
        self.result = Transcript(
            "".join(self._texts),
            self._segments,
            self._heard,
            self._reason,
            replace(self.ticket.usage),
            replace(self.ticket.timings),
        )
        return TranscriptDelta(seconds=self._heard, total=self._total, transcript=self.result)


def _ticket(transcription: Transcription) -> Ticket:
    """Its ticket, which does not keep it: without a cycle, a model ends with the last reference to it."""
    end = weakref.WeakMethod(transcription._end)

    def cancel(reason: Finish) -> None:
        if (found := end()) is not None:
            found(reason)

    return Ticket(cancel)


def _translated(content: str, into: str) -> str:
    """The translation of an answer that has the transcription first."""
    found = re.search(rf"^\s*{re.escape(into)}:", content, re.MULTILINE)
    return content if found is None else content[found.end() :]
