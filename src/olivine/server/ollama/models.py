"""GET /api/tags, /api/ps, /api/version, POST /api/show, and what changes models, which is refused"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from starlette.responses import PlainTextResponse, Response

from olivine import __version__
from olivine.server.body import Body
from olivine.server.endpoint import Call, Endpoint, Handler
from olivine.server.errors import ApiError, ollama_shape
from olivine.server.facts import Facts, facts_of
from olivine.server.ollama.encoder import NDJSON, line, timestamp
from olivine.server.ollama.pull import pull as download
from olivine.server.served import ServedModel

# The version of Ollama whose API this is: clients ask for it to know what they may send.
OLLAMA_VERSION = "0.13.0"
# Ollama's words for what a model can do.
_CAPABILITIES = {"vision": "vision", "audio": "audio", "tools": "tools", "reasoning": "thinking"}
_KEPT = "9999-12-31T23:59:59Z"  # when a model expires that is kept


class NameBody(Body):
    """A request about a model. `name` is the older field."""

    model: str | None = None
    name: str | None = None
    stream: bool | None = None
    verbose: bool | None = None

    @property
    def named(self) -> str:
        found = self.model or self.name
        if not found:
            raise ApiError(400, "model is required", code="invalid_value", param="model")
        return found


class AnyBody(Body):
    """A request that is refused, whatever it says."""


async def tags(call: Call) -> Mapping[str, Any]:
    """All models, loaded or not."""
    found = []
    for model in call.server.models.list():
        facts = await facts_of(model)
        found.append({**_identity(model, facts), "modified_at": timestamp(model.created)})
    return {"models": found}


async def ps(call: Call) -> Mapping[str, Any]:
    """The models that are loaded."""
    found = []
    for model in call.server.models.list():
        facts, llm = await facts_of(model), model.loaded
        if llm is None:
            continue
        size = facts.file_bytes + llm.cache_bytes
        found.append(
            {
                **_identity(model, facts),
                "size": size,
                "size_vram": size if model.device == "cuda" else 0,
                "expires_at": _KEPT if model.expires is None else timestamp(model.expires),
                "context_length": llm.context,
            }
        )
    return {"models": found}


async def show(call: Call) -> Mapping[str, Any]:
    models = call.server.models
    model = models.find(call.body.named)
    facts, llm = await facts_of(model), model.loaded
    # What a prompt and its answer may have here, which may be less than what the model was made for.
    context = models.context_of(facts.train_context) if llm is None else llm.context
    sizes = {
        "context_length": context,
        "embedding_length": facts.embedding_length,
        "block_count": facts.layers,
    }
    info = {f"{facts.architecture}.{key}": value for key, value in sizes.items() if value is not None}
    return {
        "modelfile": f"# served by Olivine\nFROM {model.name}\n",
        "parameters": "" if context is None else f"num_ctx {context}",
        "template": facts.chat_template or "",
        "license": "",
        "details": _details(facts),
        "model_info": {
            "general.architecture": facts.architecture,
            "general.parameter_count": facts.parameters,
            **info,
        },
        "capabilities": [
            "completion",
            *(_CAPABILITIES[name] for name, has in facts.capabilities.items() if has),
        ],
        "modified_at": timestamp(model.created),
    }


async def version(call: Call) -> Mapping[str, Any]:
    return {"version": OLLAMA_VERSION, "olivine": __version__}


async def running(call: Call) -> Response:
    """What Ollama's clients look for at `/` before anything else."""
    return PlainTextResponse("Ollama is running (its API, on Olivine)")


async def pull(call: Call) -> Response | Mapping[str, Any] | None:
    """A model that is served is pulled at once; others are downloaded, where the operator allows it."""
    body: NameBody = call.body
    if call.server.models.knows(body.named):
        if body.stream is False:
            return {"status": "success"}
        return Response(line({"status": "pulling manifest"}) + line({"status": "success"}), media_type=NDJSON)
    return await download(call, body.named, body.stream is not False)


def _refusing(what: str) -> Handler:
    async def refuse(call: Call) -> Mapping[str, Any]:
        raise ApiError(
            501,
            f"models are not {what} over HTTP: olivine serve takes the models that are given to it",
            code="not_implemented",
        )

    return refuse


def _identity(model: ServedModel, facts: Facts) -> dict[str, Any]:
    known = f"{model.name}\n{facts.file_bytes}\n{model.created}"
    return {
        "name": model.name,
        "model": model.name,
        "size": facts.file_bytes,
        # Changes when the files do; reading all of them for it would take minutes.
        "digest": hashlib.sha256(known.encode()).hexdigest(),
        "details": _details(facts),
    }


def _details(facts: Facts) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": facts.format,
        "family": facts.architecture,
        "families": [facts.architecture],
        "parameter_size": _count(facts.parameters),
        "quantization_level": next(iter(facts.types), ""),
    }


def _count(parameters: int) -> str:
    """As Ollama writes it: 134.52M, 4.3B."""
    for divisor, unit, digits in ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 2)):
        if parameters >= divisor:
            return f"{parameters / divisor:.{digits}f}{unit}"
    return str(parameters)


def _endpoint(method: str, path: str, handle: Handler, summary: str, body: Any = None) -> Endpoint:
    return Endpoint(method, path, handle, summary, body, shape=ollama_shape)


ENDPOINTS = [
    _endpoint("GET", "/api/tags", tags, "All models"),
    _endpoint("GET", "/api/ps", ps, "The models that are loaded"),
    _endpoint("GET", "/api/version", version, "The version of Ollama's API"),
    _endpoint("POST", "/api/show", show, "What is known about a model", NameBody),
    _endpoint("POST", "/api/pull", pull, "Download a model, and serve it", NameBody),
    _endpoint("POST", "/api/push", _refusing("uploaded"), "Refused", AnyBody),
    _endpoint("POST", "/api/create", _refusing("made"), "Refused", AnyBody),
    _endpoint("POST", "/api/copy", _refusing("copied"), "Refused", AnyBody),
    _endpoint("DELETE", "/api/delete", _refusing("deleted"), "Refused", AnyBody),
]
