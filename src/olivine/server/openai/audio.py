"""POST /v1/audio/transcriptions and /v1/audio/translations"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field
from starlette.responses import PlainTextResponse, Response

from olivine.engine import Usage
from olivine.languages import language_name
from olivine.server.answer import SSE, answer, results_of
from olivine.server.body import ListOf, library_options
from olivine.server.endpoint import Call, Endpoint
from olivine.server.errors import ApiError, openai_shape
from olivine.server.openai.fields import OpenAIBody, event, finite
from olivine.transcript import Segment, Transcript, TranscriptDelta

Format = Literal["json", "text", "srt", "verbose_json", "vtt"]


class TranslationBody(OpenAIBody):
    IGNORED: ClassVar[frozenset[str]] = OpenAIBody.IGNORED | {"chunking_strategy"}  # all sounds are cut

    file: bytes = Field(exclude=True, json_schema_extra={"format": "binary"})  # not to be logged
    prompt: str | None = None
    response_format: Format | None = None
    temperature: float | None = None
    # Not OpenAI's own.
    window: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    timeout: float | None = None
    priority: int | None = None

    def options(self) -> dict[str, Any]:
        """The options of `LLM.transcribe`."""
        if not self.file:
            raise ApiError(400, "file: the sound is empty", code="invalid_value", param="file")
        names = ("prompt", "temperature", "window", "max_tokens", "seed", "timeout", "priority")
        given = {name: getattr(self, name) for name in names}
        if self.response_format == "verbose_json":
            given["logprobs"] = 0  # only those of the tokens themselves
        return library_options(given)


class TranscriptionBody(TranslationBody):
    language: str | None = None
    stream: bool | None = None
    timestamp_granularities: ListOf[str] | None = None
    include: ListOf[str] | None = None

    def options(self) -> dict[str, Any]:
        if set(self.timestamp_granularities or ()) - {"segment"}:
            message = "times are known of segments only: timestamp_granularities can be ['segment']"
            raise ApiError(400, message, code="invalid_value", param="timestamp_granularities")
        if self.include:
            message = "include is not known here: avg_logprob of segments is in verbose_json"
            raise ApiError(400, message, code="invalid_value", param="include")
        if self.stream and self.response_format not in (None, "json", "text"):
            message = "a stream has text only: response_format can be json or text"
            raise ApiError(400, message, code="invalid_value", param="response_format")
        language = {"language": language_name(self.language)} if self.language else {}
        return super().options() | language


async def transcriptions(call: Call) -> Mapping[str, Any] | Response | None:
    body: TranscriptionBody = call.body
    options = call.limited(body.options())
    return await _answered(call, body, options, stream=bool(body.stream))


async def translations(call: Call) -> Mapping[str, Any] | Response | None:
    """Into English: OpenAI's has no other language."""
    body: TranslationBody = call.body
    return await _answered(call, body, call.limited({**body.options(), "translate": "English"}))


async def _answered(
    call: Call, body: TranslationBody, options: dict[str, Any], stream: bool = False
) -> Mapping[str, Any] | Response | None:
    async with call.model(body.model) as model, call.server.transcriptions.taken(call):

        def submit(listeners: Sequence[Any]) -> Any:
            return model.llm.submit_transcription(body.file, listeners, **options)

        if stream:
            return await answer(call, submit, TranscriptEncoder(), stream=True)
        recorder = call.server.metrics.recorder(model, call.arrived, 1)
        (found,) = await results_of(call, submit, recorder=recorder)
        return _written(found, body, options)


def _written(
    found: Transcript, body: TranslationBody, options: Mapping[str, Any]
) -> Mapping[str, Any] | Response:
    match body.response_format:
        case "text":
            return PlainTextResponse(found.text + "\n")
        case "srt":
            return Response(found.srt, media_type="application/x-subrip")
        case "vtt":
            return Response(found.vtt, media_type="text/vtt")
        case "verbose_json":
            return _verbose(found, options)
        case _:
            return {"text": found.text, "usage": _usage(found)}


def _verbose(found: Transcript, options: Mapping[str, Any]) -> dict[str, Any]:
    temperature = options.get("temperature", 0.0)
    language = options.get("translate", options.get("language", ""))  # of the text
    return {
        "task": "translate" if "translate" in options else "transcribe",
        "language": str(language).lower(),
        "duration": found.duration,
        "text": found.text,
        "segments": [_segment(i, each, temperature) for i, each in enumerate(found.segments)],
        "usage": {"type": "duration", "seconds": math.ceil(found.duration)},
    }


def _segment(index: int, segment: Segment, temperature: float) -> dict[str, Any]:
    logprobs = [finite(each.logprob) for each in segment.logprobs or ()]
    text = segment.text.encode()
    return {
        "id": index,
        "seek": round(segment.start * 100),  # in frames of 10 ms
        "start": segment.start,
        "end": segment.end,
        "text": segment.text,
        "tokens": segment.tokens,
        "temperature": temperature,
        "avg_logprob": sum(logprobs) / max(1, len(logprobs)),
        "compression_ratio": len(text) / len(zlib.compress(text)),
        "no_speech_prob": 0.0,  # silent windows are left out, and of the others it is not known
    }


def _usage(found: Transcript) -> dict[str, Any]:
    usage = found.usage
    return {
        "type": "tokens",
        "input_tokens": usage.prompt,
        "output_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
    }


class TranscriptEncoder:
    """A stream of text as it is made, and of the whole at its end."""

    media_type = SSE
    ping = b": ping\n\n"

    def begin(self, usage: Usage) -> bytes:
        return b""

    def piece(self, index: int, piece: TranscriptDelta) -> bytes:
        return event({"type": "transcript.text.delta", "delta": piece.text}) if piece.text else b""

    def end(self, results: Sequence[Transcript]) -> bytes:
        (found,) = results
        return event({"type": "transcript.text.done", "text": found.text, "usage": _usage(found)})

    def error(self, error: ApiError) -> bytes:
        return event(openai_shape(error))

    def whole(self, results: Sequence[Transcript]) -> Mapping[str, Any]:
        (found,) = results
        return {"text": found.text, "usage": _usage(found)}


ENDPOINTS = [
    Endpoint(
        "POST",
        "/v1/audio/transcriptions",
        transcriptions,
        "What is said in a sound",
        TranscriptionBody,
        form=True,
    ),
    Endpoint(
        "POST",
        "/v1/audio/translations",
        translations,
        "What is said in a sound, in English",
        TranslationBody,
        form=True,
    ),
]
