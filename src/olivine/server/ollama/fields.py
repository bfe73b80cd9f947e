"""Fields that Ollama's endpoints have in common."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from olivine.llm import LLM
from olivine.server.body import Body, ListOf, check_stops, library_options
from olivine.server.endpoint import Call
from olivine.server.errors import ApiError

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST = 64  # characters of a duration: the pattern looks at digits without a unit again from each of them
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")


class Options(Body):
    """`options` of a request."""

    # How Ollama runs a model: that changes no answer.
    IGNORED: ClassVar[frozenset[str]] = frozenset(
        {
            "numa",
            "num_batch",
            "num_gpu",
            "main_gpu",
            "low_vram",
            "f16_kv",
            "use_mmap",
            "use_mlock",
            "num_thread",
            "num_keep",  # says what may be cut from a prompt that is too long: nothing ever is
            "vocab_only",
            "logits_all",
            "embedding_only",
        }
    )

    num_ctx: int | None = None
    num_predict: int | None = None
    seed: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    stop: str | ListOf[str] | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    def generation(self) -> dict[str, Any]:
        """The options of `LLM.generate`."""
        check_stops(self.stop, "options.stop")
        given = {
            "seed": self.seed,
            "temperature": self.temperature,
            "top_k": None if self.top_k is None else max(0, self.top_k),  # all tokens, below 1
            "top_p": self.top_p,
            "min_p": self.min_p,
            "stop": self.stop,
            "repetition_penalty": self.repeat_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
        }
        # Ollama's default; -1 and -2 are as many as fit.
        limited = self.num_predict is not None and self.num_predict > 0
        return {**library_options(given), "max_tokens": self.num_predict if limited else None}


class ModelBody(Body):
    """A request to a model."""

    model: str | None = None
    options: Options | None = None
    keep_alive: float | str | None = None

    @property
    def name(self) -> str:
        if not self.model:
            raise ApiError(400, "model is required", code="invalid_value", param="model")
        return self.model

    @property
    def kept(self) -> float | None:
        """Seconds that the model stays loaded after this request; negative: for good. None: as the server
        was told."""
        return seconds_of(self.keep_alive)

    def warn(self, call: Call, llm: LLM) -> None:
        """Tells of options that are not followed."""
        given = self.options or Options()
        unknown = sorted(
            name
            for name, value in (given.model_extra or {}).items()
            if value is not None and name not in given.IGNORED
        )
        if unknown:
            call.warn(f"ignored, because they are not known: {', '.join(unknown[:16])}")
        if given.num_ctx is not None and given.num_ctx > llm.context:
            call.warn(
                f"num_ctx is {given.num_ctx}, and the context holds {llm.context}: "
                f"--context {given.num_ctx} of olivine serve sets it"
            )


class GeneratingBody(ModelBody):
    """A request for text."""

    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    def generation(self) -> dict[str, Any]:
        """The options of `LLM.generate`."""
        found = (self.options or Options()).generation()
        if self.logprobs or self.top_logprobs:
            found["logprobs"] = self.top_logprobs or 0
        return found

    @property
    def wanted(self) -> str | Mapping[str, Any] | None:
        """What the text must be: "json", a JSON schema, or anything."""
        if isinstance(self.format, str) and self.format not in ("", "json"):
            told = f'format is "json" or a JSON schema, and not {self.format[:40]!r}'
            raise ApiError(400, told, code="invalid_value", param="format")
        return self.format or None

    @property
    def streams(self) -> bool:
        return self.stream is not False


def seconds_of(duration: float | str | None) -> float | None:
    """A duration in seconds: a number of them, or Go's notation ("5m", "1h30m", "-1")."""
    if duration is None or isinstance(duration, int | float):
        found = duration
    elif len(duration) > _LONGEST:
        found = math.nan
    else:
        text = duration.strip()
        sign, text = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
        parts = _DURATION.findall(text)
        if parts and "".join(map("".join, parts)) == text:
            found = sign * sum(float(count) * _SECONDS[unit] for count, unit in parts)
        elif re.fullmatch(r"\d+(\.\d*)?", text):
            found = sign * float(text)
        else:
            found = math.nan
    if found is not None and not math.isfinite(found):
        told = f'keep_alive is {str(duration)[:40]!r}: give seconds, or "5m", "1h30m"; 0 unloads, -1 keeps'
        raise ApiError(400, told, code="invalid_value", param="keep_alive")
    return found
