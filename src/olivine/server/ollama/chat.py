"""POST /api/chat"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from olivine.chat.messages import has_media
from olivine.server.answer import answer
from olivine.server.body import ListOf, check_messages, check_tools
from olivine.server.endpoint import Call, Endpoint
from olivine.server.errors import ollama_shape
from olivine.server.ollama.encoder import ChatEncoder, Head, now
from olivine.server.ollama.fields import GeneratingBody


class ChatBody(GeneratingBody):
    messages: ListOf[dict[str, Any]] | None = None
    tools: ListOf[dict[str, Any]] | None = None


async def chat(call: Call) -> Mapping[str, Any] | None:
    body: ChatBody = call.body
    began = time.perf_counter()
    check_messages("messages", body.messages or ())
    check_tools(body.tools)
    messages = [_message(each) for each in body.messages or ()]
    if not messages:
        done = await preload(call, body)
        return {**done, "message": {"role": "assistant", "content": ""}}
    chat = {"tools": body.tools, "response_format": body.wanted, "think": body.think}
    options = {**call.limited(body.generation()), **chat}
    async with call.model(body.name, keep_alive=body.kept) as model:
        body.warn(call, model.llm)

        def submit(listeners: Sequence[Any]) -> Any:
            return model.llm.submit_chat(messages, listeners, **options)

        encoder = ChatEncoder(Head(body.name, began))
        media = has_media(messages)
        return await answer(call, submit, encoder, stream=body.streams, media=media)


async def preload(call: Call, body: GeneratingBody) -> dict[str, Any]:
    """A request without a prompt loads the model, or unloads it if it is not to be kept."""
    models = call.server.models
    if body.kept == 0:
        models.keep(body.name, 0)
        reason = "unload"
    else:
        async with call.model(body.name, keep_alive=body.kept):
            reason = "load"
    return {"model": body.name, "created_at": now(), "done": True, "done_reason": reason}


def _message(given: Mapping[str, Any]) -> dict[str, Any]:
    """A message as `LLM.chat` takes it."""
    message = dict(given)
    if images := message.pop("images", None):
        message["content"] = with_images(message.get("content"), images)
    if message.get("tool_name") is not None and message.get("name") is None:
        message["name"] = message["tool_name"]
    return message


def with_images(text: Any, images: Any) -> list[Any]:
    """The parts of a content with images, which are base64."""
    parts = [{"type": "text", "text": text}] if text else []
    sources = images if isinstance(images, list) else [images]
    return [*parts, *({"type": "image", "image": source} for source in sources)]


ENDPOINTS = [
    Endpoint("POST", "/api/chat", chat, "The next message of a conversation", ChatBody, shape=ollama_shape)
]
