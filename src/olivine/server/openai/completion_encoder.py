"""Texts as OpenAI's older completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from olivine.completion import Completion, Piece
from olivine.engine import Timings, Usage
from olivine.server.answer import SSE
from olivine.server.errors import ApiError, openai_shape
from olivine.server.events import dumps
from olivine.server.openai.fields import (
    FINISH,
    Head,
    TokenBytes,
    event,
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
        self._offsets: dict[int, int] = {}  # characters of the text so far, where tokens are reported

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
        reason = dumps(_finish(completion))
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
                    "finish_reason": _finish(completion),
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
        name = _name(self._token_bytes(echo.first))
        first = {"tokens": [name], "token_logprobs": [None], "top_logprobs": [None], "text_offset": [0]}
        self._offsets[index] = _characters(self._token_bytes(echo.first))
        others = self._logprobs(index, echo.reports)
        return {key: first[key] + others[key] for key in others}

    def _logprobs(self, index: int, reports: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Reports in the shape of this API: a list for each property."""
        offset = self._offsets.get(index, 0)
        tokens, logprobs, tops, offsets = [], [], [], []
        for report in reports:
            data = self._token_bytes(report.token)
            tokens.append(_name(data))
            logprobs.append(finite(report.logprob))
            top = {_name(self._token_bytes(each.token)): finite(each.logprob) for each in report.top}
            tops.append({**top, tokens[-1]: logprobs[-1]} if top else None)
            offsets.append(offset)
            offset += _characters(data)
        self._offsets[index] = offset
        return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}


def _name(data: bytes) -> str:
    """A token's text, or its bytes where they are no text, spelled as OpenAI's API does."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _characters(data: bytes) -> int:
    """How many characters begin in these bytes of UTF-8."""
    return sum(byte & 0xC0 != 0x80 for byte in data)


def _finish(completion: Completion) -> str:
    return FINISH.get(completion.finish_reason, completion.finish_reason)
