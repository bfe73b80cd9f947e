"""POST /api/generate"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from olivine.chat.builtin import FAMILIES
from olivine.llm import LLM
from olivine.server.answer import answer
from olivine.server.body import MOST_PARTS, ListOf, at_most
from olivine.server.endpoint import Call, Endpoint
from olivine.server.errors import ApiError, ollama_shape
from olivine.server.ollama.chat import preload, with_images
from olivine.server.ollama.encoder import GenerateEncoder, Head, RawEncoder
from olivine.server.ollama.fields import GeneratingBody
from olivine.tokenizer import infill


class GenerateBody(GeneratingBody):
    prompt: str | None = None
    suffix: str | None = None
    images: ListOf[str] | None = None
    system: str | None = None
    template: str | None = None
    raw: bool | None = None
    context: ListOf[int] | None = None

    def check(self) -> None:
        """Refuses what is not followed, and more images than a request may have."""
        at_most("images", len(self.images or ()), MOST_PARTS, "images")
        if self.template:
            raise _refused("template", "the model's own chat template is used; a whole prompt is sent as raw")
        if self.context:
            raise _refused("context", "send the conversation as messages to /api/chat")
        if self.raw:
            self.check_text("raw", "a raw prompt")
        if self.suffix:
            self.check_text("suffix", "a text that is filled in")

    @property
    def is_conversation(self) -> bool:
        """Whether there is something that a text has no place for."""
        return bool(self.system or self.images or self.think)

    def check_text(self, param: str, text: str) -> None:
        """Refuses what only a conversation has a place for."""
        if self.is_conversation:
            raise _refused(param, f"{text} has no place for system, images or think")


def _refused(param: str, why: str) -> ApiError:
    return ApiError(400, f"{param}: {why}", code="invalid_value", param=param)


async def generate(call: Call) -> Mapping[str, Any] | None:
    body: GenerateBody = call.body
    began = time.perf_counter()
    body.check()
    if not body.prompt and not body.suffix and not body.images:
        return {**await preload(call, body), "response": ""}
    options, wanted, prompt = call.limited(body.generation()), body.wanted, body.prompt or ""
    async with call.model(body.name, keep_alive=body.kept) as model:
        llm, head = model.llm, Head(body.name, began)
        body.warn(call, llm)

        def submit_chat(listeners: Sequence[Any]) -> Any:
            return llm.submit_chat(_messages(body), listeners, **chat_options)

        def submit_text(listeners: Sequence[Any]) -> Any:
            constraint = None if wanted is None else llm.grammar(wanted)
            if body.suffix:
                between = infill(llm.tokenizer, prompt, body.suffix)
                if between is None:
                    raise _refused("suffix", "this model has no tokens for filling in the middle")
                stop = list(between.stop)
                return llm.submit(
                    between.tokens, listeners, constraint=constraint, stop_tokens=stop, **options
                )
            # What a raw prompt spells is meant: that is what it is for.
            special = bool(body.raw)
            return llm.submit(prompt, listeners, constraint=constraint, parse_special=special, **options)

        if body.raw or body.suffix or not _chats(llm, body):
            body.check_text("prompt", "a text that a model without a chat template continues")
            return await answer(call, submit_text, RawEncoder(head), stream=body.streams)
        chat_options = {**options, "response_format": wanted, "think": body.think}
        media = bool(body.images)
        return await answer(call, submit_chat, GenerateEncoder(head), stream=body.streams, media=media)


def _chats(llm: LLM, body: GenerateBody) -> bool:
    """Whether the model's files have a chat template. One without continues texts, as base models do, unless
    the request needs the template that we have for its family."""
    checkpoint = llm.checkpoint
    own = checkpoint.chat_template is not None or bool(checkpoint.prompt_files)
    return own or (body.is_conversation and checkpoint.architecture in FAMILIES)


def _messages(body: GenerateBody) -> list[dict[str, Any]]:
    system = [{"role": "system", "content": body.system}] if body.system else []
    content = with_images(body.prompt, body.images) if body.images else body.prompt or ""
    return [*system, {"role": "user", "content": content}]


ENDPOINTS = [
    Endpoint(
        "POST", "/api/generate", generate, "The text that answers a prompt", GenerateBody, shape=ollama_shape
    )
]
