"""What the server is and does: health, metrics, its models, and loading and unloading them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from pydantic import BaseModel, ConfigDict
from starlette.responses import JSONResponse, Response

from olivine import __version__
from olivine.server.answer import SSE, stream_headers
from olivine.server.endpoint import Call, Endpoint
from olivine.server.errors import ApiError, ClientGone
from olivine.server.facts import facts_of
from olivine.server.served import ServedModel

BUILD = f"olivine-{__version__}"


# ---- health


async def health(call: Call) -> Mapping[str, Any] | Response:
    """503 while models are loaded at the start, where an engine failed, while the ranks of a model are
    started again, and where requests wait and no step ends."""
    models = call.server.models
    if models.starting:
        shown = ", ".join(sorted(models.starting))
        return _unhealthy("loading", f"{shown}: is being loaded")
    for model in models.list():
        if model.failed_start:
            return _unhealthy("error", f"{model.name} could not be loaded: {model.failure}")
        llm = model.loaded
        if llm is not None and llm.stats().failed:
            return _unhealthy("failed", f"{model.name}: the engine failed: unload and load the model")
        if llm is not None and (obstacle := getattr(llm.program, "obstacle", None)) is not None:
            given_up = getattr(llm.program, "given_up", False)
            return _unhealthy("failed" if given_up else "restarting", f"{model.name}: {obstacle}")
        if llm is not None and (stalled := llm.stats().stalled) > call.server.settings.stall:
            return _unhealthy(
                "stalled", f"{model.name}: requests wait, and no step ended for {stalled:.0f} s"
            )
    return {"status": "ok"}


def _unhealthy(status: str, message: str) -> Response:
    error = {"code": 503, "type": "unavailable_error", "message": message}
    return JSONResponse({"status": status, "error": error}, 503)


async def metrics(call: Call) -> Response:
    accept = call.request.headers.get("accept", "")
    body, media_type = call.server.metrics.exposition(call.server.models.list(), accept)
    return Response(body, media_type=media_type)


# ---- models


async def list_models(call: Call) -> Mapping[str, Any]:
    found = [await entry(call, model) for model in call.server.models.list()]
    return {"object": "list", "data": found, "has_more": False}


async def one_model(call: Call) -> Mapping[str, Any]:
    return await entry(call, call.server.models.find(call.request.path_params["id"]))


async def entry(call: Call, model: ServedModel) -> dict[str, Any]:
    """A model in OpenAI's words and Anthropic's, with vLLM's, llama.cpp's and LM Studio's additions."""
    facts = await facts_of(model)
    llm = model.loaded
    context = call.server.models.context_of(facts.train_context) if llm is None else llm.context
    meta = {"n_ctx_train": facts.train_context, "n_params": facts.parameters, "size": facts.file_bytes}
    found: dict[str, Any] = {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "olivine",
        "type": "model",
        "display_name": model.name,
        "created_at": datetime.fromtimestamp(model.created, timezone.utc).isoformat(),
        "max_model_len": context,
        "meta": {**meta, "architecture": facts.architecture},
        "capabilities": facts.capabilities,
        "state": model.state,
    }
    if model.aliases:
        found["aliases"] = list(model.aliases)
    if facts.problem is not None:
        found["problem"] = model.without_path(facts.problem)
    return found


async def props(call: Call) -> Mapping[str, Any]:
    """As llama.cpp's server has it; `?model=` names one. Nothing is loaded for it."""
    server = call.server
    model = server.models.find(call.request.query_params.get("model"))
    facts, llm = await facts_of(model), model.loaded
    sampling = None if llm is None else llm.sampling
    params = {} if sampling is None else {name: getattr(sampling, name) for name in _SAMPLING}
    context = server.models.context_of(facts.train_context) if llm is None else llm.context
    found = {
        "default_generation_settings": {"n_ctx": context, "params": params},
        "total_slots": server.models.sequences,
        "model_alias": model.name,
        "modalities": facts.modalities,
        "chat_template": facts.chat_template,
        "n_ctx": context,
        "n_ctx_train": facts.train_context,
        "state": model.state,
        "build_info": BUILD,
    }
    if llm is not None:
        of = llm.tokenizer
        for name, token in (("bos_token", of.bos_id), ("eos_token", of.eos_id)):
            found[name] = None if token is None else of.token(token)
    if server.settings.show_paths:
        found["model_path"] = str(model.path or model.llm.checkpoint.path)
    return found


_SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"
)  # fmt: skip


async def slots(call: Call) -> None:
    message = "what requests say is not shown: /metrics counts them, running and waiting"
    raise ApiError(501, message, code="not_implemented")


# ---- loading and unloading


class ModelBody(BaseModel):
    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model: str | None = None
    stream: bool | None = None


async def load_model(call: Call) -> Mapping[str, Any] | None:
    """Loads a model, and answers when it is there; with `stream`, tells how far it is meanwhile."""
    models = call.server.models
    model = models.find(_named(call))
    if not call.body.stream:
        await call.unless_gone(models.load(model.name))
        return await entry(call, model)
    with models.events() as queue:
        loading = asyncio.ensure_future(models.load(model.name))
        try:
            await send_events(call, queue, [model], until=loading)
        finally:
            loading.cancel()
    return None


async def unload_model(call: Call) -> Mapping[str, Any]:
    return await entry(call, await call.server.models.unload(_named(call)))


def _named(call: Call) -> str:
    name: str | None = call.body.model
    if not name:
        raise ApiError(400, "model: name the model", code="invalid_value", param="model")
    return name


async def model_events(call: Call) -> None:
    """How the models are, and what becomes of them from now on, as server-sent events."""
    with call.server.models.events() as queue:
        await send_events(call, queue, call.server.models.list())


async def send_events(
    call: Call,
    queue: asyncio.Queue[Mapping[str, Any]],
    models: Sequence[ServedModel],
    until: asyncio.Future[Any] | None = None,
) -> None:
    """Sends the events of these models until the client is gone or the server ends, or `until` is done and
    they are told how it ended; pings while there are none."""
    names = {model.name for model in models}
    await call.send({"type": "http.response.start", "status": 200, "headers": stream_headers(call, SSE)})
    for model in models:
        await _send(call, _event(model.event()))
    gone = asyncio.ensure_future(call.gone())
    try:
        while True:
            following = asyncio.ensure_future(queue.get())
            waiting = [gone, following] if until is None else [gone, following, until]
            ping = call.server.settings.ping
            await asyncio.wait(waiting, timeout=ping, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise ClientGone
            if following.done():
                event = following.result()
                if not event and until is None:
                    break
                if event.get("model") in names:
                    await _send(call, _event(event))
            elif until is not None and until.done():
                break
            else:
                await _send(call, b": ping\n\n")
    finally:
        gone.cancel()
        following.cancel()
    if until is not None:
        until.exception()  # so that asyncio does not miss it: an event has told it
    rest = [queue.get_nowait() for _ in range(queue.qsize())]
    last = b"".join(_event(event) for event in rest if event.get("model") in names)
    await call.send({"type": "http.response.body", "body": last})


def _event(event: Mapping[str, Any]) -> bytes:
    return b"data: %b\n\n" % json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()


async def _send(call: Call, body: bytes) -> None:
    await call.send({"type": "http.response.body", "body": body, "more_body": True})


ENDPOINTS = [
    Endpoint("GET", "/v1/health", health, "Whether the server works", public=True),
    Endpoint("GET", "/v1/metrics", metrics, "Figures for Prometheus"),
    Endpoint("GET", "/v1/props", props, "Properties of a model"),
    Endpoint("GET", "/v1/slots", slots, "Not shown"),
    Endpoint("GET", "/models/events", model_events, "Loads and unloads as server-sent events"),
    Endpoint("POST", "/models/load", load_model, "Load a model", ModelBody),
    Endpoint("POST", "/models/unload", unload_model, "Unload a model", ModelBody),
    Endpoint("GET", "/v1/models", list_models, "The models that there are"),
    Endpoint("GET", "/v1/models/{id:path}", one_model, "One model"),
]
