"""Fields that OpenAI's endpoints have in common."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, ClassVar

from pydantic import BaseModel

from olivine.engine import Timings, Usage
from olivine.server.body import (
    MOST_BIASES,
    MOST_OUTPUTS,
    MOST_STOP_TOKENS,
    MOST_TOOLS,
    Body,
    DictOf,
    ListOf,
    at_most,
    check_stops,
    library_options,
)
from olivine.server.errors import ApiError
from olivine.server.events import dumps
from olivine.token_stream import Alternative, TokenLogprob

_FINISH = {"cancelled": "stop", "timeout": "length", "repetition": "stop"}

TokenBytes = Callable[[int], bytes]  # of a tokenizer


def finish_reason(reason: str) -> str:
    """How an output ended, in the words of OpenAI's API."""
    return _FINISH.get(reason, reason)


class OpenAIBody(Body):
    """A body of any of OpenAI's endpoints."""

    # For OpenAI's own accounts, storage and caches.
    IGNORED: ClassVar[frozenset[str]] = frozenset(
        {
            "user",
            "metadata",
            "store",
            "service_tier",
            "prompt_cache_key",
            "prompt_cache_retention",
            "safety_identifier",
            "prediction",
            "cache_prompt",
        }
    )

    model: str | None = None


class StreamOptions(BaseModel):
    include_usage: bool | None = None


class SamplingBody(OpenAIBody):
    """What both kinds of completions take."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: str | ListOf[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: DictOf[str, float] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: dict[str, Any] | None = None
    # Not OpenAI's own: what other servers know.
    json_schema: dict[str, Any] | None = None
    grammar: str | None = None
    structured_outputs: dict[str, Any] | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: ListOf[int] | None = None
    timeout: float | None = None
    priority: int | None = None
    cache_salt: str | None = None

    def options(self) -> dict[str, Any]:
        """The options of `LLM.generate`."""
        if self.cache_salt:
            message = "prefixes of prompts are computed once for all clients: leave cache_salt out"
            raise ApiError(400, message, code="invalid_value", param="cache_salt")
        repetition = self.repetition_penalty if self.repetition_penalty is not None else self.repeat_penalty
        check_stops(self.stop)
        at_most("stop_token_ids", len(self.stop_token_ids or ()), MOST_STOP_TOKENS, "tokens")
        at_most("logit_bias", len(self.logit_bias or ()), MOST_BIASES, "tokens")
        given = {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": 0 if self.top_k == -1 else self.top_k,  # vLLM's word for all
            "min_p": self.min_p,
            "repetition_penalty": repetition,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": self.logit_bias,
            "seed": self.seed,
            "stop": self.stop,
            "stop_tokens": self.stop_token_ids,
            "min_tokens": self.min_tokens,
            "ignore_eos": self.ignore_eos,
            "timeout": self.timeout,
            "priority": self.priority,
        }
        return library_options(given)

    @property
    def form(self) -> dict[str, Any] | None:
        """What the output must be, in OpenAI's, llama.cpp's or vLLM's words; None where any text will do."""
        wanted = typed(self.response_format, "response_format")
        given = [wanted] if wanted is not None and wanted["type"] != "text" else []
        words = (self.structured_outputs or {}).items()
        structured = {name: value for name, value in words if value is not None and value is not False}
        if unknown := structured.keys() - {name for name, _, _ in _FORMS}:
            named, known = min(unknown)[:60], ", ".join(name for name, _, _ in _FORMS)
            message = f"structured_outputs has {named!r}, which is not known: known are {known}"
            raise ApiError(400, message, code="invalid_value", param="structured_outputs")
        for asked in ({"json": self.json_schema, "grammar": self.grammar}, structured):
            for name, kind, field in _FORMS:
                if asked.get(name) is not None:
                    given.append({"type": kind, field: asked[name]} if field else {"type": kind})
        if len(given) > 1:
            message = "response_format, json_schema, grammar and structured_outputs exclude each other"
            raise ApiError(400, message, code="invalid_value", param="response_format")
        return given[0] if given else None

    @property
    def outputs(self) -> int:
        """`n`, checked."""
        return between("n", 1 if self.n is None else self.n, 1, MOST_OUTPUTS)

    @property
    def usage_in_stream(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


# vLLM's words, the types of `response_format`, and the fields that those have.
_FORMS = (
    ("json", "json_schema", "schema"),
    ("regex", "regex", "regex"),
    ("choice", "choice", "choices"),
    ("grammar", "grammar", "grammar"),
    ("json_object", "json_object", None),
)


def typed(form: Any, param: str) -> dict[str, Any] | None:
    """A form of the output, which has a type; None where there is none."""
    if isinstance(form, Mapping) and form and form.get("type") is None:
        message = f"{param} has no type: a schema has the type json_schema"
        raise ApiError(400, message, code="invalid_value", param=param)
    return form or None


def allowed_tools(choice: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], str]:
    """The tools that a `tool_choice` of the type "allowed_tools" lists, and its mode. In chat completions,
    there is an object around them, and one around each function."""
    inner = choice.get("allowed_tools", choice)
    listed = inner.get("tools") if isinstance(inner, Mapping) else None
    if not isinstance(listed, list):
        message = "tool_choice.tools is not a list of tools"
        raise ApiError(400, message, code="invalid_value", param="tool_choice")
    at_most("tool_choice", len(listed), MOST_TOOLS, "tools")
    functions = [each.get("function", each) for each in listed if isinstance(each, Mapping)]
    return [each for each in functions if isinstance(each, Mapping)], inner.get("mode") or "auto"


def between(param: str, value: int, low: int, high: int) -> int:
    """An integer of the server's own ranges; the others are checked by `LLM`."""
    if not low <= value <= high:
        message = f"{param} must be between {low} and {high}, and is {value}"
        raise ApiError(400, message, code="invalid_value", param=param)
    return value


class Head:
    """What all chunks of a response begin with, and the whole response too."""

    def __init__(self, prefix: str, object: str, model: str) -> None:
        self.id = f"{prefix}-{secrets.token_hex(12)}"
        self._fields = {
            "id": self.id,
            "object": object,
            "created": int(time.time()),
            "model": model,
        }

    def fields(self, object: str) -> dict[str, Any]:
        """The fields of a whole response."""
        return {**self._fields, "object": object}

    @property
    def begun(self) -> str:
        """The beginning of an event, up to its choices."""
        return f"data: {dumps(self._fields)[:-1]},"


def event(data: Mapping[str, Any]) -> bytes:
    """A server-sent event."""
    return f"data: {dumps(data)}\n\n".encode()


def usage_of(usages: Sequence[Usage], reasoning: int = 0, *, n: int | None = None) -> dict[str, Any]:
    """Tokens of all outputs. A prompt counts once for its `n` outputs; all are of one, by default."""
    # What the others of a prompt took from the cache was computed for the first.
    prompts = [usages[i : i + (n or len(usages))] for i in range(0, len(usages), n or len(usages))]
    prompt = sum(outputs[0].prompt for outputs in prompts)
    completion = sum(usage.completion for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": sum(min(usage.cached for usage in outputs) for outputs in prompts)
        },
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def timings_of(usage: Usage, timings: Timings) -> dict[str, Any]:
    """Speeds, in llama.cpp's words."""
    read = usage.prompt - usage.cached
    return {
        "cache_n": usage.cached,
        "prompt_n": read,
        "prompt_ms": 1000 * timings.prefill,
        "prompt_per_second": _rate(read, timings.prefill),
        "predicted_n": usage.completion,
        "predicted_ms": 1000 * timings.decode,
        # The first token came with the prompt.
        "predicted_per_second": _rate(usage.completion - 1, timings.decode),
    }


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if count > 0 and seconds > 0 else None


def chat_logprob(report: TokenLogprob, token_bytes: TokenBytes) -> Mapping[str, Any]:
    """A token's log-probability as chat completions have it."""
    alternatives = [_logprob(each, token_bytes) for each in report.top]
    return {**_logprob(report, token_bytes), "top_logprobs": alternatives}


def _logprob(report: Alternative, token_bytes: TokenBytes) -> dict[str, Any]:
    return {
        "token": report.text,
        "logprob": finite(report.logprob),
        "bytes": list(token_bytes(report.token)),
    }


def finite(logprob: float) -> float:
    """A log-probability for JSON, which has no infinity: OpenAI's API has -9999 for what cannot come."""
    return -9999.0 if logprob == -inf else logprob


Prompts = str | ListOf[str] | ListOf[int] | ListOf[ListOf[int]]


def prompts_of(given: Prompts, param: str) -> list[str | list[int]]:
    """A prompt or several, each a text or token ids."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise ApiError(400, f"{param} is an empty list", code="invalid_value", param=param)
    if isinstance(given[0], int):
        return [given]
    return given  # type: ignore[return-value]
