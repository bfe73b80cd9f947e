"""POST /v1/completions: the text that follows a prompt, or stands between a prompt and a suffix."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from starlette.responses import Response

from olivine.completion import Piece
from olivine.engine.checks import token_ids
from olivine.errors import ContextError
from olivine.llm import LLM
from olivine.server.answer import SSE, answer, results_of
from olivine.server.body import MOST_LOGPROBS, MOST_OUTPUTS, at_most
from olivine.server.endpoint import Call, Endpoint
from olivine.server.errors import ApiError
from olivine.server.openai.completion_encoder import CompletionEncoder, Echo
from olivine.server.openai.fields import Prompts, SamplingBody, between, prompts_of
from olivine.tokenizer import infill

DEFAULT = 16  # tokens, as OpenAI's API has it


class CompletionBody(SamplingBody):
    prompt: Prompts
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None

    def options(self) -> dict[str, Any]:
        """The options of `LLM.generate`, but for the constraint."""
        given = {"max_tokens": DEFAULT, **super().options(), "parse_special": True}
        if given["max_tokens"] == -1:  # other servers' word for as many as fit
            given["max_tokens"] = None
        if self.logprobs is not None:
            given["logprobs"] = between("logprobs", self.logprobs, 0, MOST_LOGPROBS)
        if self.echo and self.suffix:
            raise ApiError(400, "echo and suffix exclude each other", code="invalid_value", param="echo")
        if (self.best_of or 1) > (self.n or 1):
            message = "best_of is not done here: ask for n outputs with logprobs, and choose among them"
            raise ApiError(400, message, code="invalid_value", param="best_of")
        return given


async def completions(call: Call) -> Mapping[str, Any] | Response | None:
    body: CompletionBody = call.body
    options, n = call.limited(body.options()), body.outputs
    prompts, form = prompts_of(body.prompt, "prompt"), body.form
    at_most("prompt", n * len(prompts), MOST_OUTPUTS, "outputs (prompts times n)")
    async with call.model(body.model) as model:
        llm = model.llm
        if body.suffix:
            prompts = await asyncio.to_thread(_infilled, llm, prompts, body.suffix, options)
        echoes = await _echoes(call, llm, prompts, options) if body.echo else None
        token_bytes, usage = llm.tokenizer.token_bytes, body.usage_in_stream
        encoder = CompletionEncoder(model.name, token_bytes, n, include_usage=usage, echoes=echoes)
        if echoes is not None and options["max_tokens"] == 0:
            found = [echo.completion for echo in echoes for _ in range(n)]
            if not body.stream:
                return encoder.whole(found)
            events = [encoder.piece(i, Piece(completion=each)) for i, each in enumerate(found)]
            return Response(b"".join([*events, encoder.end(found)]), media_type=SSE)

        def submit(listeners: Sequence[Any]) -> Any:
            if form is not None:
                options["constraint"] = llm.grammar(form)
            return _submitted(llm, prompts, listeners, options)

        return await answer(call, submit, encoder, n=n * len(prompts), stream=bool(body.stream))


def _submitted(
    llm: LLM, prompts: Sequence[Any], listeners: Sequence[Any], options: dict[str, Any]
) -> Sequence[Any]:
    """The same number of texts after each prompt, of which all are submitted, or none runs."""
    n = len(listeners) // len(prompts)
    streams: list[Any] = []
    try:
        for i, prompt in enumerate(prompts):
            streams += llm.submit(prompt, listeners[i * n : (i + 1) * n], **options)
    except BaseException:
        for stream in streams:
            stream.abandon()
        raise
    return streams


def _infilled(llm: LLM, prompts: Sequence[Any], suffix: str, options: dict[str, Any]) -> list[Any]:
    """Prompts for the text between each prompt and the suffix; adds to the options what ends such a text."""
    found = []
    for prompt in prompts:
        if not isinstance(prompt, str):
            raise _no_infill("suffix goes with a prompt that is a text, not with token ids")
        made = infill(llm.tokenizer, prompt, suffix)
        if made is None:
            raise _no_infill("suffix: this model has no tokens for filling in the middle")
        options["stop_tokens"] = [*options.get("stop_tokens", ()), *made.stop]
        found.append(made.tokens)
    return found


def _no_infill(message: str) -> ApiError:
    return ApiError(400, message, code="invalid_value", param="suffix")


async def _echoes(call: Call, llm: LLM, prompts: Sequence[Any], options: dict[str, Any]) -> list[Echo]:
    """The prompts, to be repeated; with their log-probabilities, where those of the outputs are wanted."""
    texts = await asyncio.to_thread(_texts, llm, prompts)
    if options.get("logprobs") is None:
        return [Echo(text) for text in texts]
    limits: Any = {name: options[name] for name in ("timeout", "priority", "client") if name in options}
    submit = partial(
        llm.submit_prompt_logprobs,
        prompts,
        alternatives=max(1, options["logprobs"]),
        parse_special=True,
        **limits,
    )
    found = await results_of(call, submit, n=len(prompts))
    return [Echo(text, *scored, usage) for text, (scored, usage) in zip(texts, found, strict=True)]


def _texts(llm: LLM, prompts: Sequence[Any]) -> list[str]:
    """Prompts as texts; one of token ids is decoded once it is known to fit."""
    found = []
    for prompt in prompts:
        if not isinstance(prompt, str):
            if not prompt:
                raise ApiError(400, "prompt has an empty list", code="invalid_value", param="prompt")
            if len(prompt) > llm.context:
                raise ContextError(len(prompt), llm.context)
            token_ids("token ids", prompt, "prompt", llm.tokenizer.vocab_size)
            prompt = llm.tokenizer.decode(prompt, skip_special=False)
        found.append(prompt)
    return found


ENDPOINTS = [
    Endpoint("POST", "/v1/completions", completions, "The text that follows a prompt", CompletionBody)
]
