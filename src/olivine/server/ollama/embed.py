"""POST /api/embed, and the older /api/embeddings"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from olivine.llm import LLM
from olivine.scoring import normalized
from olivine.server.body import ListOf, at_most
from olivine.server.endpoint import Call, Endpoint
from olivine.server.errors import ollama_shape
from olivine.server.ollama.fields import ModelBody
from olivine.server.openai.embeddings import MOST_INPUTS, embedded
from olivine.server.openai.fields import between


class EmbedBody(ModelBody):
    input: str | ListOf[str] | None = None
    truncate: bool | None = None
    dimensions: int | None = None


class EmbeddingsBody(ModelBody):
    prompt: str | None = None


async def embed(call: Call) -> Mapping[str, Any]:
    body: EmbedBody = call.body
    began = time.perf_counter()
    texts = [body.input] if isinstance(body.input, str) else body.input or []
    at_most("input", len(texts), MOST_INPUTS, "inputs")
    found: list[list[float]] = []
    tokens = 0
    options = call.limited({})
    async with call.model(body.name, keep_alive=body.kept) as model:
        llm, loaded = model.llm, time.perf_counter()
        body.warn(call, llm)
        width = llm.model.plan.hidden.width
        size = width if body.dimensions is None else between("dimensions", body.dimensions, 1, width)
        if texts:
            inputs = await asyncio.to_thread(_cut, llm, texts) if body.truncate else texts
            rows, tokens = await embedded(call, llm, inputs, options)
            found = normalized(rows[:, :size]).tolist()
    return {
        "model": body.name,
        "embeddings": found,
        "total_duration": int(1e9 * (time.perf_counter() - began)),
        "load_duration": int(1e9 * (loaded - began)),
        "prompt_eval_count": tokens,
    }


def _cut(llm: LLM, texts: Sequence[str]) -> list[str | list[int]]:
    """Texts as they fit into the context, where the client asks for that; nothing is cut otherwise."""
    tokens = [llm.tokenizer.encode(text) for text in texts]
    return [
        text if len(ids) <= llm.context else ids[: llm.context]
        for text, ids in zip(texts, tokens, strict=True)
    ]


async def embeddings(call: Call) -> Mapping[str, Any]:
    """The older endpoint: one text, and its embedding is not normalized."""
    body: EmbeddingsBody = call.body
    if not body.prompt:
        return {"embedding": []}
    options = call.limited({})
    async with call.model(body.name, keep_alive=body.kept) as model:
        body.warn(call, model.llm)
        rows, _ = await embedded(call, model.llm, [body.prompt], options)
    return {"embedding": rows[0].tolist()}


ENDPOINTS = [
    Endpoint("POST", "/api/embed", embed, "Embeddings of texts", EmbedBody, shape=ollama_shape),
    Endpoint(
        "POST", "/api/embeddings", embeddings, "The embedding of a text", EmbeddingsBody, shape=ollama_shape
    ),
]
