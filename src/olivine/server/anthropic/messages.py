"""POST /v1/messages and /v1/messages/count_tokens"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from olivine.chat.messages import has_media
from olivine.chat.thinking import Thinking, budget_asked
from olivine.errors import RequestError
from olivine.llm import LLM
from olivine.server.answer import answer
from olivine.server.anthropic.conversation import chat_messages, chat_tools
from olivine.server.anthropic.encoder import MessagesEncoder
from olivine.server.body import (
    Body,
    ListOf,
    check_messages,
    check_stops,
    check_tools,
    library_options,
)
from olivine.server.endpoint import Call, Endpoint
from olivine.server.errors import anthropic_shape
from olivine.server.prompting import count_tokens, possible_budget, possible_thinking

# What no answer depends on.
_IGNORED = frozenset(
    {
        "anthropic_beta",
        "betas",
        "cache_control",
        "container",
        "context_management",
        "diagnostics",
        "inference_geo",
        "metadata",
        "service_tier",
        "speed",
        "user_profile_id",
        "workspace_id",
    }
)


class CountBody(Body):
    """What a prompt is made of."""

    IGNORED = _IGNORED

    messages: ListOf[dict[str, Any]]
    model: str | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None  # the older place of output_config.format
    system: str | ListOf[Any] | None = None
    thinking: dict[str, Any] | None = None
    tool_choice: dict[str, Any] | None = None
    tools: ListOf[dict[str, Any]] | None = None

    def conversation(self) -> list[dict[str, Any]]:
        check_messages("messages", self.messages, beside=self.system)
        check_tools(self.tools)
        return chat_messages(self.system, self.messages)

    def prompt_options(self, call: Call, llm: LLM) -> dict[str, Any]:
        """The options of `LLM.render`."""
        options: dict[str, Any] = {"think": possible_thinking(llm, self._thinking())}
        if self.tools:
            tools = chat_tools(self.tools, self.messages)
            if tools.skipped:
                call.warn(f"tools that this server does not have: {', '.join(tools.skipped)}")
            options["tools"] = tools.declared
        if self.tool_choice is not None:
            options["tool_choice"] = self.tool_choice
        return options

    def _thinking(self) -> Thinking:
        """Effort is nothing where thoughts are off; "adaptive" is as the model's template has it."""
        kind = (self.thinking or {}).get("type")
        effort = (self.output_config or {}).get("effort")
        match kind:
            case "disabled":
                return Thinking(False)
            case None | "enabled" | "adaptive" | "between_tools":
                asked = Thinking.of(effort)
                return Thinking(True, asked.effort) if kind == "enabled" else asked
            case _:
                raise RequestError(
                    f"thinking.type is {str(kind)[:40]!r}; known: enabled, adaptive, disabled",
                    param="thinking",
                )


class MessagesBody(CountBody):
    max_tokens: int
    stop_sequences: ListOf[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    # Not Anthropic's own.
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    timeout: float | None = None
    priority: int | None = None

    def options(self) -> dict[str, Any]:
        """The options of `LLM.chat` that are not the prompt's."""
        check_stops(self.stop_sequences, "stop_sequences")
        given = {
            "max_tokens": self.max_tokens or 1,  # with 0 only the prompt is read: the encoder is silent
            "stop": self.stop_sequences,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "seed": self.seed,
            "timeout": self.timeout,
            "priority": self.priority,
            "response_format": (self.output_config or {}).get("format") or self.output_format,
        }
        if (self.tool_choice or {}).get("disable_parallel_tool_use"):
            given["parallel_tool_calls"] = False
        return library_options(given)


async def messages(call: Call) -> Mapping[str, Any] | None:
    body: MessagesBody = call.body
    options, conversation = call.limited(body.options()), body.conversation()
    thinking = body.thinking or {}
    async with call.model(body.model) as model:
        llm = model.llm

        def submit(listeners: Sequence[Any]) -> Any:
            prompt = body.prompt_options(call, llm) | possible_budget(
                llm, budget_asked({"thinking": thinking})
            )
            return llm.submit_chat(conversation, listeners, **prompt, **options)

        shown, silent = thinking.get("display") != "omitted", body.max_tokens == 0
        encoder = MessagesEncoder(model.name, show_thoughts=shown, silent=silent)
        stream, media = bool(body.stream), has_media(conversation)
        return await answer(call, submit, encoder, stream=stream, media=media)


async def count(call: Call) -> Mapping[str, Any]:
    body: CountBody = call.body
    conversation = body.conversation()
    async with call.model(body.model) as model:
        tokens = await count_tokens(call, model.llm, conversation, lambda llm: body.prompt_options(call, llm))
        return {"input_tokens": tokens}


ENDPOINTS = [
    Endpoint("POST", "/v1/messages", messages, "The next message", MessagesBody, anthropic_shape),
    Endpoint("POST", "/v1/messages/count_tokens", count, "Tokens of a prompt", CountBody, anthropic_shape),
]
