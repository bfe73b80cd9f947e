"""POST /tokenize, /detokenize and /apply-template: what a model's tokenizer and template make of a text. The
shapes are llama.cpp's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from olivine.engine.checks import token_ids
from olivine.server.body import Body, ListOf, at_most
from olivine.server.endpoint import Call, Endpoint
from olivine.server.openai.chat import ChatBody
from olivine.tokenizer import Tokenizer

LONGEST = 1 << 22  # characters of a text


class TokenizeBody(Body):
    content: str
    model: str | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeBody(Body):
    tokens: ListOf[int]
    model: str | None = None


class TemplateBody(ChatBody):
    """What a chat completion takes: its messages become a prompt, and nothing is generated."""


async def tokenize(call: Call) -> Mapping[str, Any]:
    body: TokenizeBody = call.body
    at_most("content", len(body.content), LONGEST, "characters")
    async with call.model(body.model) as model:
        return {"tokens": await asyncio.to_thread(_tokens, model.llm.tokenizer, body)}


def _tokens(tokenizer: Tokenizer, body: TokenizeBody) -> list[Any]:
    special = body.parse_special is not False
    found = tokenizer.encode(body.content, add_special=bool(body.add_special), parse_special=special)
    return [_piece(tokenizer, token) for token in found] if body.with_pieces else found


def _piece(tokenizer: Tokenizer, token: int) -> dict[str, Any]:
    """A token and its text, or its bytes where they are no text."""
    data = tokenizer.token_bytes(token)
    try:
        return {"id": token, "piece": data.decode()}
    except UnicodeDecodeError:
        return {"id": token, "piece": list(data)}


async def detokenize(call: Call) -> Mapping[str, Any]:
    body: DetokenizeBody = call.body
    async with call.model(body.model) as model:
        return {"content": await asyncio.to_thread(_text, model.llm.tokenizer, body.tokens)}


def _text(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    token_ids("tokens", tokens, "tokens", tokenizer.vocab_size)
    return tokenizer.decode(tokens, skip_special=False)


async def apply_template(call: Call) -> Mapping[str, Any]:
    body: TemplateBody = call.body
    options = body.options()
    kept = ("tools", "tool_choice", "think", "template_options", "continue_final_message")
    chosen: Any = {name: options[name] for name in kept if name in options}
    async with call.model(body.model) as model:
        render = model.llm.render
        return {"prompt": await asyncio.to_thread(lambda: render(body.messages, **chosen))}


ENDPOINTS = [
    Endpoint("POST", "/v1/tokenize", tokenize, "The tokens of a text", TokenizeBody),
    Endpoint("POST", "/v1/detokenize", detokenize, "The text of tokens", DetokenizeBody),
    Endpoint("POST", "/v1/apply-template", apply_template, "The prompt of a conversation", TemplateBody),
]
