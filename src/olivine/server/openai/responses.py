"""POST /v1/responses, stateless: what went before is sent again, and no response is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from olivine.chat.messages import has_media
from olivine.chat.thinking import Thinking
from olivine.llm import LLM
from olivine.server.answer import answer
from olivine.server.body import (
    MOST_LOGPROBS,
    ListOf,
    at_most,
    check_messages,
    check_stops,
    check_tools,
    library_options,
)
from olivine.server.endpoint import Call, Endpoint
from olivine.server.errors import ApiError
from olivine.server.openai.fields import OpenAIBody, allowed_tools, typed
from olivine.server.openai.responses_encoder import ResponsesEncoder
from olivine.server.openai.responses_input import Conversation
from olivine.server.openai.responses_tools import Tools
from olivine.server.prompting import count_tokens, possible_thinking
from olivine.server.running import cancel

LOGPROBS = "message.output_text.logprobs"  # in `include`


class CountBody(OpenAIBody):
    """What a prompt is made of."""

    # What no answer depends on.
    IGNORED: ClassVar[frozenset[str]] = frozenset(
        {
            "access_programs",
            "client_metadata",
            "context_management",
            "max_tool_calls",
            "moderation",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "safety_identifier",
            "service_tier",
            "store",
            "stream_options",
            "truncation",
            "user",
        }
    )

    input: str | ListOf[Any] | None = None
    instructions: str | ListOf[Any] | None = None
    reasoning: dict[str, Any] | None = None
    tools: ListOf[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    # Refused: there are no earlier responses.
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    background: bool | None = None

    def refuse_state(self) -> None:
        """Refuses what would need responses, conversations or prompts that a server keeps."""
        for field in ("previous_response_id", "conversation", "prompt", "background"):
            if getattr(self, field):
                message = f"{field}: this server keeps no responses; send the whole conversation as input"
                raise ApiError(400, message, code="unsupported_parameter", param=field)

    def asked(self, call: Call) -> tuple[list[dict[str, Any]], Tools, dict[str, Any]]:
        """Messages, tools, and the options of `LLM.render` beside how to think."""
        self.refuse_state()
        items = self.input if isinstance(self.input, list) else []
        check_messages("input", items, "items", beside=self.instructions)
        conversation = Conversation(self.instructions, self.input)
        given = [*(self.tools or ()), *conversation.tools]
        check_tools(given)
        tools = Tools.of(given)
        if left_out := [*conversation.skipped, *tools.skipped]:
            call.warn(f"left out, because this server does not have them: {', '.join(left_out)}")
        choice = self.tool_choice
        if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
            listed, choice = allowed_tools(choice)
            tools = tools.allowed(listed)
        options = {"tools": tools.declared, "tool_choice": tools.choice(choice)}
        return conversation.messages, tools, options

    def thinking(self, llm: LLM) -> Thinking:
        return possible_thinking(llm, Thinking.of((self.reasoning or {}).get("effort")))


class ResponsesBody(CountBody):
    include: ListOf[str] | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, Any] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_logprobs: int | None = None
    top_p: float | None = None
    # Not OpenAI's own.
    min_p: float | None = None
    priority: int | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | ListOf[str] | None = None
    timeout: float | None = None
    top_k: int | None = None

    def options(self) -> dict[str, Any]:
        """The options of `LLM.chat` that are not the prompt's."""
        check_stops(self.stop)
        at_most("top_logprobs", self.top_logprobs or 0, MOST_LOGPROBS, "alternatives")
        given = {
            "max_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "seed": self.seed,
            "stop": self.stop,
            "timeout": self.timeout,
            "priority": self.priority,
            "parallel_tool_calls": self.parallel_tool_calls,
            "response_format": typed((self.text or {}).get("format"), "text.format"),
        }
        if LOGPROBS in (self.include or ()):
            given["logprobs"] = self.top_logprobs or 0
        return library_options(given)

    def echo(self, model: str) -> dict[str, Any]:
        """What a response repeats of its request."""
        return {
            "model": model,
            "background": False,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": None,
            "metadata": self.metadata or {},
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": self.reasoning or {"effort": None, "summary": None},
            "service_tier": "default",
            "store": False,
            "temperature": self.temperature,
            "text": self.text or {"format": {"type": "text"}},
            "tool_choice": "auto" if self.tool_choice is None else self.tool_choice,
            "tools": self.tools or [],
            "top_logprobs": self.top_logprobs or 0,
            "top_p": self.top_p,
            "truncation": "disabled",
        }


async def responses(call: Call) -> Mapping[str, Any] | None:
    body: ResponsesBody = call.body
    messages, tools, prompt = body.asked(call)
    options = call.limited(body.options())
    async with call.model(body.model) as model:
        llm = model.llm

        def submit(listeners: Sequence[Any]) -> Any:
            return llm.submit_chat(messages, listeners, think=body.thinking(llm), **prompt, **options)

        encoder = ResponsesEncoder(body.echo(model.name), tools, llm.tokenizer.token_bytes)
        stream, media = bool(body.stream), has_media(messages)
        return await answer(call, submit, encoder, stream=stream, media=media)


async def cancel_response(call: Call) -> Mapping[str, Any]:
    """Ends a response that is being streamed."""
    return {**await cancel(call), "object": "response", "status": "cancelled", "output": []}


async def input_tokens(call: Call) -> Mapping[str, Any]:
    body: CountBody = call.body
    messages, _, prompt = body.asked(call)
    async with call.model(body.model) as model:
        tokens = await count_tokens(
            call, model.llm, messages, lambda llm: {**prompt, "think": body.thinking(llm)}
        )
        return {"object": "response.input_tokens", "input_tokens": tokens}


ENDPOINTS = [
    Endpoint("POST", "/v1/responses", responses, "The next items of a conversation", ResponsesBody),
    Endpoint("POST", "/v1/responses/{id}/cancel", cancel_response, "Ends a response that is streamed"),
    Endpoint("POST", "/v1/responses/input_tokens", input_tokens, "Tokens of an input", CountBody),
]
