"""POST /v1/chat/completions"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from olivine.chat.messages import has_media
from olivine.chat.thinking import Thinking, budget_asked
from olivine.server.answer import answer
from olivine.server.body import MOST_LOGPROBS, ListOf, check_messages, check_tools
from olivine.server.endpoint import Call, Endpoint
from olivine.server.errors import ApiError
from olivine.server.openai.chat_encoder import ChatEncoder
from olivine.server.openai.fields import SamplingBody, allowed_tools, between
from olivine.server.running import cancel, end_thinking


class ChatBody(SamplingBody):
    messages: ListOf[dict[str, Any]]
    max_completion_tokens: int | None = None
    modalities: ListOf[str] | None = None
    tools: ListOf[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: ListOf[Any] | None = None
    function_call: Any = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    reasoning_effort: str | None = None
    # Not OpenAI's own.
    think: bool | str | None = None
    thinking: bool | str | dict[str, Any] | None = None
    reasoning: bool | str | dict[str, Any] | None = None
    enable_thinking: bool | None = None
    thinking_budget: int | None = None
    reasoning_budget: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    def options(self) -> dict[str, Any]:
        """The options of `LLM.chat`."""
        self._refuse()
        tools, choice = self.tools, self.tool_choice
        if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
            listed, choice = allowed_tools(choice)
            names = {name for each in listed if isinstance(name := each.get("name"), str)}
            tools = [tool for tool in tools or () if _name(tool) in names]
        template_options = dict(self.chat_template_kwargs or {})
        for spelling in ("enable_thinking", "thinking", "reasoning_effort"):
            template_options.pop(spelling, None)
        given = {
            **super().options(),
            "tools": tools,
            "tool_choice": choice,
            "parallel_tool_calls": self.parallel_tool_calls,
            "response_format": self.form,
            "think": Thinking.asked(self.model_dump(include=_THINKING)),
            "thinking_budget": budget_asked(self.model_dump(include=_THINKING)),
            "template_options": template_options or None,
            "continue_final_message": self.continue_final_message,
        }
        if self.max_completion_tokens is not None:
            given["max_tokens"] = self.max_completion_tokens
        if given.get("max_tokens") == -1:  # LM Studio's word for as many as fit, which is the default
            del given["max_tokens"]
        if self.logprobs:
            given["logprobs"] = between("top_logprobs", self.top_logprobs or 0, 0, MOST_LOGPROBS)
        return {name: value for name, value in given.items() if value is not None}

    def _refuse(self) -> None:
        """What this server does not do, and what makes no sense."""
        check_messages("messages", self.messages)
        check_tools(self.tools)
        if self.functions or self.function_call is not None:
            raise _refused("functions", "functions and function_call were replaced by tools and tool_choice")
        if self.modalities and self.modalities != ["text"]:
            raise _refused("modalities", "answers are text: modalities can only be ['text']")
        if self.top_logprobs and not self.logprobs:
            raise _refused("top_logprobs", "top_logprobs needs logprobs: true")
        if self.add_generation_prompt is False and not self.continue_final_message:
            raise _refused(
                "add_generation_prompt",
                "without add_generation_prompt an answer has no beginning: leave it out, or continue the "
                "last message with continue_final_message: true",
            )


_THINKING = {
    "think",
    "thinking",
    "reasoning",
    "enable_thinking",
    "reasoning_effort",
    "thinking_budget",
    "reasoning_budget",
    "chat_template_kwargs",
}


def _name(tool: Mapping[str, Any]) -> str | None:
    function = tool.get("function", tool)
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None


def _refused(param: str, message: str) -> ApiError:
    return ApiError(400, message, code="invalid_value", param=param)


async def chat_completions(call: Call) -> Mapping[str, Any] | None:
    body: ChatBody = call.body
    options, messages, n = call.limited(body.options()), body.messages, body.outputs
    if kinds := {str(tool.get("type", "function")) for tool in body.tools or ()} - {"function"}:
        call.warn(f"tools that this server does not have: {', '.join(sorted(kinds))}")
    async with call.model(body.model) as model:
        encoder = ChatEncoder(model.name, model.llm.tokenizer.token_bytes, include_usage=body.usage_in_stream)

        def submit(listeners: Sequence[Any]) -> Any:
            return model.llm.submit_chat(messages, listeners, **options)

        stream, media = bool(body.stream), has_media(messages)
        return await answer(call, submit, encoder, n=n, stream=stream, media=media)


PATH = "/v1/chat/completions"
ENDPOINTS = [
    Endpoint("POST", PATH, chat_completions, "The next message of a conversation", ChatBody),
    Endpoint("POST", f"{PATH}/{{id}}/end_thinking", end_thinking, "Ends the thought of a running answer"),
    Endpoint("POST", f"{PATH}/{{id}}/cancel", cancel, "Ends a running answer"),
]
