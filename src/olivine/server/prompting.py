"""What several APIs ask about the prompt of a conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from olivine.chat.messages import has_media
from olivine.chat.thinking import Thinking
from olivine.llm import LLM
from olivine.server.endpoint import Call
from olivine.streaming import in_thread


def possible_thinking(llm: LLM, asked: Thinking) -> Thinking:
    """How to think, for clients that ask every model for thoughts: nothing is asked of one that has none."""
    return asked if llm.conversations.thinks else Thinking()


def possible_budget(llm: LLM, tokens: Any) -> dict[str, Any]:
    """The option of a thinking budget, where the model's thoughts can be limited."""
    conversations = llm.conversations
    limited = conversations.thinks and conversations.markers.keys() >= set(conversations.format.thought)
    return {"thinking_budget": tokens} if limited and tokens is not None else {}


async def count_tokens(
    call: Call, llm: LLM, messages: Sequence[Mapping[str, Any]], options: Callable[[LLM], Mapping[str, Any]]
) -> int:
    """The tokens of a conversation's prompt, also where the context does not hold them."""

    def count() -> int:
        return llm.conversations.count(messages, **options(llm))

    async with AsyncExitStack() as place:
        if has_media(messages):  # which are decoded
            await place.enter_async_context(call.server.media.taken(call))
        return await in_thread(count, lambda count: None)
