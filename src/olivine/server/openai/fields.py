"""Fields that OpenAI's endpoints have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from olivine.engine import Timings, Usage
from olivine.token_stream import TokenLogprob


class Body(BaseModel):
    """The body of a request. A field that is null counts as not given; one that is not known is ignored."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model: str | None = None


class StreamOptions(BaseModel):
    include_usage: bool | None = None


class SamplingBody(Body):
    """What both kinds of completions take."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Not OpenAI's own: what other servers know.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    timeout: float | None = None
    priority: int | None = None

    def options(self) -> dict[str, Any]:
        """The options of `LLM.generate`."""
        repetition = self.repetition_penalty if self.repetition_penalty is not None else self.repeat_penalty
        given = {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
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
        return {name: value for name, value in given.items() if value is not None}


def usage_of(usages: list[Usage], reasoning: int = 0) -> dict[str, Any]:
    """Tokens of all outputs; their prompt counts once."""
    prompt, cached = usages[0].prompt, max(usage.cached for usage in usages)
    completion = sum(usage.completion for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
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


def chat_logprob(report: TokenLogprob) -> Mapping[str, Any]:
    """A token's log-probability as chat completions have it."""
    alternatives = [_logprob(each.text, each.logprob) for each in report.top]
    return {**_logprob(report.text, report.logprob), "top_logprobs": alternatives}


def _logprob(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
