"""POST /v1/embeddings"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from starlette.responses import Response

from olivine.errors import ContextError, RequestError
from olivine.llm import LLM
from olivine.scoring import normalized
from olivine.server.answer import results_of
from olivine.server.body import at_most
from olivine.server.endpoint import Call, Endpoint
from olivine.server.errors import ApiError
from olivine.server.events import dumps
from olivine.server.openai.fields import OpenAIBody, Prompts, between, prompts_of

MOST_INPUTS = 2048
AT_ONCE = 64  # inputs that are in the engine's queue: the rest of it is for others


class EmbeddingsBody(OpenAIBody):
    input: Prompts
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    # Not OpenAI's own.
    pooling: Literal["mean", "last"] | None = None
    timeout: float | None = None
    priority: int | None = None


async def embeddings(call: Call) -> Response:
    body: EmbeddingsBody = call.body
    inputs = prompts_of(body.input, "input")
    at_most("input", len(inputs), MOST_INPUTS, "inputs")
    given = {"pooling": body.pooling, "timeout": body.timeout, "priority": body.priority}
    options = call.limited({name: value for name, value in given.items() if value is not None})
    async with call.model(body.model) as model:
        width = model.llm.model.plan.hidden.width
        size = width if body.dimensions is None else between("dimensions", body.dimensions, 1, width)
        rows, tokens = await embedded(call, model.llm, inputs, options)
        # Cut first: a shorter embedding has the length 1 too.
        cut = normalized(rows[:, :size])
        fields = {"model": model.name, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
        text = await asyncio.to_thread(_rendered, cut, body.encoding_format == "base64", fields)
        return Response(text, media_type="application/json")


async def embedded(
    call: Call, llm: LLM, inputs: Sequence[Any], options: dict[str, Any]
) -> tuple[npt.NDArray[np.float32], int]:
    """The embeddings of texts, which are not normalized, and how many tokens those have."""
    rows: list[npt.NDArray[np.float32]] = []
    tokens = 0
    at_once = min(AT_ONCE, llm.most_waiting)
    for start in range(0, len(inputs), at_once):
        some = inputs[start : start + at_once]
        submit = partial(llm.submit_embeddings, some, **options)
        try:
            found = await results_of(call, submit, n=len(some))
        except RequestError as error:
            raise _explained(error, inputs) from None
        rows += [row for row, _ in found]
        tokens += sum(usage.prompt for _, usage in found)
    return np.stack(rows), tokens


def _rendered(rows: npt.NDArray[np.float32], packed: bool, fields: dict[str, Any]) -> str:
    """The response as JSON: in a thread, since it may be long."""
    found = [
        base64.b64encode(row.astype("<f4").tobytes()).decode() if packed else row.tolist() for row in rows
    ]
    data = [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(found)]
    return dumps({"object": "list", "data": data, **fields})


def _explained(error: RequestError, inputs: Sequence[Any]) -> Exception:
    """An error of an input. Ids that are not this model's mostly are those of OpenAI's tokenizer."""
    if isinstance(error, ContextError) or error.code != "invalid_value" or isinstance(inputs[0], str):
        return error
    message = (
        f"input: {error}. Ids must be those of this model's tokenizer; LangChain's OpenAIEmbeddings sends "
        "those of OpenAI's unless check_embedding_ctx_length=False"
    )
    return ApiError(400, message, code=error.code, param="input")


ENDPOINTS = [Endpoint("POST", "/v1/embeddings", embeddings, "Embeddings of texts", EmbeddingsBody)]
