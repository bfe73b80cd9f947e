"""Texts as OpenAI's older completions."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from olivine.completion import Completion, Piece
from olivine.engine import Timings, Usage
from olivine.server.answer import SSE
from olivine.server.errors import ApiError, openai_shape
from olivine.server.events import dumps
from olivine.server.openai.fields import (
    Head,
    TokenBytes,
    event,
    finish_reason,
    finite,
    timings_of,
    usage_of,
)
from olivine.token_stream import TokenLogprob


@dataclass(frozen=True)
class Echo:
    """A prompt that is repeated before its outputs; with its first token and reports of the others."""

    text: str
    first: int | None = None
    reports: list[TokenLogprob] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)

    @property
    def completion(self) -> Completion:
        """What follows where nothing is generated."""
        return Completion("", [], "length", self.usage, Timings(), 0, [])


class CompletionEncoder:
    """Completions of one or several prompts, `n` of each."""

    media_type = SSE
    ping = b": ping\n\n"

    def __init__(
        self,
        model: str,
        token_bytes: TokenBytes,
        n: int,
        *,
        include_usage: bool,
        echoes: Sequence[Echo] | None = None,
    ) -> None:
        self._head = Head("cmpl", "text_completion", model)
        self._token_bytes = token_bytes
        self._n = n
        self._include_usage = include_usage
        self._echoes = echoes
        self._begun = self._head.begun
        self._usage = ',"usage":null' if include_usage else ""
        self._end = f',"logprobs":null,"finish_reason":null}}]{self._usage}}}\n\n'
        self._starts: dict[int, str] = {}  # of the outputs that have begun: their chunks up to the text
        self._offsets: dict[int, _Offsets] = {}  # of the outputs whose tokens are reported

    def begin(self, usage: Usage) -> bytes:
        return b""

    def piece(self, index: int, piece: Piece) -> bytes:
        if not piece.tokens and piece.completion is None:  # the prompt is read
            return b""
        events = ""
        start = self._starts.get(index)
        if start is None:
            start = self._starts[index] = f'{self._begun}"choices":[{{"index":{index},"text":'
            if self._echoes is not None:
                echo = self._echoes[index // self._n]
                events = self._chunk(start, echo.text, self._echoed(index, echo))
        if piece.logprobs:
            events += self._chunk(start, piece.text, self._logprobs(index, piece.logprobs))
        elif piece.text:
            events += f"{start}{dumps(piece.text)}{self._end}"
        if piece.completion is not None:
            events += self._last(start, piece.completion)
        return events.encode()

    def _chunk(self, start: str, text: str, logprobs: dict[str, Any] | None) -> str:
        reports = dumps(logprobs)
        return f'{start}{dumps(text)},"logprobs":{reports},"finish_reason":null}}]{self._usage}}}\n\n'

    def _last(self, start: str, completion: Completion) -> str:
        reason = dumps(finish_reason(completion.finish_reason))
        timings = ""
        if not self._include_usage:
            timings = f',"timings":{dumps(timings_of(completion.usage, completion.timings))}'
        return f'{start}"","logprobs":null,"finish_reason":{reason}}}]{self._usage}{timings}}}\n\n'

    def end(self, results: Sequence[Completion]) -> bytes:
        usage = ""
        if self._include_usage:
            usage = f'{self._begun}"choices":[],{dumps(self._figures(results))[1:]}\n\n'
        return f"{usage}data: [DONE]\n\n".encode()

    def error(self, error: ApiError) -> bytes:
        return event(openai_shape(error))

    def whole(self, results: Sequence[Completion]) -> Mapping[str, Any]:
        choices = []
        for index, completion in enumerate(results):
            text, logprobs = completion.text, None
            echo = None if self._echoes is None else self._echoes[index // self._n]
            before = None if echo is None else self._echoed(index, echo)
            if completion.logprobs is not None:
                logprobs = self._logprobs(index, completion.logprobs)
                if before is not None:
                    logprobs = {key: before[key] + logprobs[key] for key in logprobs}
            choices.append(
                {
                    "index": index,
                    "text": text if echo is None else echo.text + text,
                    "logprobs": logprobs,
                    "finish_reason": finish_reason(completion.finish_reason),
                }
            )
        return {**self._head.fields("text_completion"), "choices": choices, **self._figures(results)}

    def _figures(self, results: Sequence[Completion]) -> dict[str, Any]:
        return {
            "usage": usage_of([completion.usage for completion in results], n=self._n),
            "timings": timings_of(results[0].usage, results[0].timings),
        }

    def _echoed(self, index: int, echo: Echo) -> dict[str, Any] | None:
        """The reports of a prompt. Nothing stands before its first token, so it has no probability."""
        if echo.first is None:
            return None
        spelled = [self._token_bytes(token) for token in (echo.first, *(each.token for each in echo.reports))]
        shown = b"".join(spelled).decode("utf-8", "replace")
        # A BOS token, or the space that some tokenizers put before a text, is not in the text.
        offsets = _Offsets(len(echo.text) - len(shown) if shown.endswith(echo.text) else 0)
        first = {"tokens": [_name(spelled[0])], "token_logprobs": [None], "top_logprobs": [None]}
        self._offsets[index] = _Offsets(len(echo.text))
        return self._columns(echo.reports, offsets, {**first, "text_offset": [offsets.next(spelled[0])]})

    def _logprobs(self, index: int, reports: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Reports of an output's tokens."""
        none: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        return self._columns(reports, self._offsets.setdefault(index, _Offsets()), none)

    def _columns(
        self, reports: Sequence[TokenLogprob], offsets: _Offsets, found: dict[str, Any]
    ) -> dict[str, Any]:
        """Reports in the shape of this API, a list for each property, behind those that are found already."""
        for report in reports:
            data = self._token_bytes(report.token)
            name, logprob = _name(data), finite(report.logprob)
            top = {_name(self._token_bytes(each.token)): finite(each.logprob) for each in report.top}
            found["tokens"].append(name)
            found["token_logprobs"].append(logprob)
            found["top_logprobs"].append({**top, name: logprob} if top else None)
            found["text_offset"].append(offsets.next(data))
        return found


class _Offsets:
    """Where tokens begin in a text, in characters. One that begins within a character begins behind it."""

    def __init__(self, start: int = 0) -> None:
        """`start` is below 0 where that many characters come before the text."""
        self._at = start
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def next(self, data: bytes) -> int:
        """Where the next token begins, which has these bytes."""
        unfinished, _ = self._utf8.getstate()
        found = self._at + bool(unfinished)
        self._at += len(self._utf8.decode(data))
        return max(0, found)


def _name(data: bytes) -> str:
    """A token's text, or its bytes where they are no text, spelled as OpenAI's API does."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
