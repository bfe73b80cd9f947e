"""Olivine as an engine of Ray Serve LLM: `LLMConfig(server_cls="olivine.ray.llm:OlivineServer", …)`.

Its requests go to the server's ASGI application, as if a client had sent them, and what comes back is given
in its classes. Those are vLLM's or SGLang's, so that one of the two has to be installed.
"""

from __future__ import annotations

import copy
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from olivine.errors import OlivineError, RequestError

try:
    from ray.llm._internal.serve.core.configs.openai_api_models import (
        ChatCompletionResponse,
        CompletionResponse,
        DetokenizeResponse,
        EmbeddingResponse,
        ErrorInfo,
        ErrorResponse,
        TokenizeResponse,
        TranscriptionResponse,
    )
    from ray.llm._internal.serve.core.engine.protocol import LLMEngine
    from ray.serve.llm import LLMServer
    from starlette.types import Message

    from olivine.ray.app import replica_options
    from olivine.ray.config import Config
    from olivine.ray.hosted import Hosted
except ImportError as error:
    raise OlivineError(
        "Ray Serve LLM cannot be imported here; it needs vLLM or SGLang, whose classes it uses: "
        f"pip install 'olivine[cluster,serve]' 'ray[llm]' ({error})"
    ) from error

__all__ = ["OlivineEngine", "OlivineServer"]

_OF_RAY = {
    "replicas": "deployment_config has num_replicas and autoscaling_config",
    "ingresses": "ingress_deployment_config has num_replicas",
    "alias": "model_loading_config has model_id",
    "model": "model_loading_config has model_source",
}
# What Ray gives a replica; how many there are, and which is chosen, is Ray Serve LLM's own.
_KEPT = (
    "ray_actor_options",
    "max_ongoing_requests",
    "graceful_shutdown_timeout_s",
    "placement_group_bundles",
    "placement_group_strategy",
)
_PASSED_ON = ("authorization", "x-request-timeout")  # headers of clients


def config_of(llm_config: Any) -> Config:
    """From `model_loading_config`, and `engine_kwargs`, which are options of `olivine serve`."""
    for name, instead in _OF_RAY.items():
        if name in llm_config.engine_kwargs:
            raise RequestError(f"{name} is not an option of engine_kwargs: {instead}", param=name)
    if llm_config.lora_config is not None:
        raise RequestError("lora_config: adapters are not run here", param="lora_config")
    if llm_config.placement_group_config is not None:
        message = "device, threads and tensor_parallel of engine_kwargs say what a replica takes"
        raise RequestError(f"placement_group_config: {message}", param="placement_group_config")
    if llm_config.model_loading_config.tokenizer_source is not None:
        raise RequestError("tokenizer_source: a model has its own tokenizer", param="tokenizer_source")
    source = llm_config.model_loading_config.model_source or llm_config.model_id
    return Config.of(
        {"log_format": "none", **llm_config.engine_kwargs, "model": source, "alias": llm_config.model_id}
    )


class OlivineEngine(LLMEngine):
    """A model behind Ray Serve LLM's interface."""

    def __init__(self, llm_config: Any) -> None:
        self._hosted = Hosted(config_of(llm_config))

    async def start(self) -> None:
        await self._hosted.start()

    async def shutdown(self) -> None:
        await self._hosted.stop()

    async def check_health(self) -> None:
        await self._hosted.check_health()

    def routing_stats(self) -> dict[str, Any]:
        return {}

    async def build_asgi_app(self) -> Any:
        return self._hosted.app

    async def reset_prefix_cache(self) -> None:
        self._hosted.model.llm.reset_prefix_cache()

    async def resolve_lora(self, lora_model: Any) -> None:
        raise RequestError("adapters (LoRA) are not run here", param="model")

    async def sleep(self, **kwargs: Any) -> None:
        raise NotImplementedError("a loaded model stays in memory: delete the application to free it")

    async def pause(self, **kwargs: Any) -> None:
        raise NotImplementedError("answers cannot be halted and resumed here")

    # ---- requests

    def chat(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        return self._ask("/v1/chat/completions", request, raw_request_info, ChatCompletionResponse)

    def completions(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        return self._ask("/v1/completions", request, raw_request_info, CompletionResponse)

    def embeddings(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        return self._ask("/v1/embeddings", request, raw_request_info, EmbeddingResponse)

    async def transcriptions(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        fields = _fields(request, "file")
        body, kind = _form(fields, await request.file.read())
        scope = _scope("/v1/audio/transcriptions", raw_request_info, kind)
        async with aclosing(self._answer(scope, body, TranscriptionResponse)) as answer:
            async for each in answer:
                yield each

    async def tokenize(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        fields = _fields(request)
        text = fields.pop("prompt", None)
        special = fields.pop("add_special_tokens", text is not None)  # a template has its own
        pieces = fields.pop("return_token_strs", False)
        if text is None:
            rendered = await self._json("/v1/apply-template", fields, raw_request_info)
            if isinstance(rendered, ErrorResponse):
                yield rendered
                return
            text = rendered["prompt"]
        asked = {"content": text, "add_special": special, "with_pieces": bool(pieces)}
        found = await self._json("/v1/tokenize", asked, raw_request_info)
        if isinstance(found, ErrorResponse):
            yield found
            return
        tokens = found["tokens"]
        strings = {}
        if pieces:
            strings["token_strs"] = [_text(each["piece"]) for each in tokens]
            tokens = [each["id"] for each in tokens]
        context = self._hosted.model.llm.context
        yield TokenizeResponse(tokens=tokens, count=len(tokens), max_model_len=context, **strings)

    async def detokenize(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        found = await self._json("/v1/detokenize", {"tokens": request.tokens}, raw_request_info)
        if isinstance(found, ErrorResponse):
            yield found
        elif "prompt" in DetokenizeResponse.model_fields:  # vLLM's
            yield DetokenizeResponse(prompt=found["content"])
        else:
            yield DetokenizeResponse(text=found["content"])

    async def score(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        yield _error(
            400,
            {"message": "models that score pairs of texts are not run here", "type": "invalid_request_error"},
        )

    # ---- from its classes to HTTP, and back

    def _ask(self, path: str, request: Any, raw: Any, shape: Any) -> AsyncGenerator[Any, None]:
        return self._answer(_scope(path, raw), json.dumps(_fields(request)).encode(), shape)

    async def _json(self, path: str, fields: Mapping[str, Any], raw: Any) -> Any:
        """A response's JSON, or an ErrorResponse."""
        async with aclosing(self._answer(_scope(path, raw), json.dumps(fields).encode(), dict)) as found:
            return await anext(found)

    async def _answer(self, scope: dict[str, Any], body: bytes, shape: Any) -> AsyncGenerator[Any, None]:
        """Events of a stream as text, or one object: of this shape, or an ErrorResponse."""
        status, kind, unread = 0, b"", b""
        async with aclosing(self._hosted.answer(scope, body)) as messages:
            async for message in _each(messages):
                if message["type"] == "http.response.start":
                    status, kind = message["status"], dict(message["headers"]).get(b"content-type", b"")
                    continue
                unread += message.get("body", b"")
                if status == 200 and kind.startswith(b"text/event-stream"):
                    *events, unread = unread.split(b"\n\n")
                    for event in events:
                        yield event.decode() + "\n\n"
        if status != 200:
            yield _error(status, json.loads(unread)["error"])
        elif kind.startswith(b"application/json"):
            yield shape(**json.loads(unread))
        elif not kind.startswith(b"text/event-stream"):  # a transcript as text, or as subtitles
            yield shape(text=unread.decode())


async def _each(messages: AsyncGenerator[list[Message], None]) -> AsyncIterator[Message]:
    async for some in messages:
        for message in some:
            yield message


def _fields(request: Any, *without: str) -> dict[str, Any]:
    """What the client gave: defaults are the model's."""
    found: dict[str, Any] = request.model_dump(
        mode="json", exclude_unset=True, exclude={"request_id", *without}
    )
    return found


def _scope(path: str, raw: Any, kind: str = "application/json") -> dict[str, Any]:
    given = {} if raw is None else {name.lower(): value for name, value in raw.headers.items()}
    headers = {"host": "localhost", "content-type": kind}
    headers |= {name: given[name] for name in _PASSED_ON if name in given}
    return {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }


def _form(fields: Mapping[str, Any], file: bytes) -> tuple[bytes, str]:
    """A form with a file, and its content type."""
    mark = secrets.token_hex(16)
    parts = [
        f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="audio"\r\n\r\n'.encode() + file
    ]
    for name, value in fields.items():
        for each in value if isinstance(value, list) else [value]:
            text = each if isinstance(each, str) else json.dumps(each)
            field = f"{name}[]" if isinstance(value, list) else name
            parts.append(f'--{mark}\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{text}'.encode())
    return b"\r\n".join([*parts, f"--{mark}--\r\n".encode()]), f"multipart/form-data; boundary={mark}"


def _error(status: int, found: Mapping[str, Any]) -> Any:
    kind = found.get("type") or "error"
    return ErrorResponse(
        error=ErrorInfo(message=found["message"], type=kind, param=found.get("param"), code=status)
    )


def _text(piece: str | list[int]) -> str:
    return piece if isinstance(piece, str) else bytes(piece).decode(errors="replace")


class OlivineServer(LLMServer):
    """The deployment, for `server_cls`."""

    _default_engine_cls = OlivineEngine

    async def __serve_build_asgi_app__(self) -> Any:
        """With direct streams clients reach the application itself, which has every route already."""
        return await self.engine.build_asgi_app()

    @classmethod
    def get_deployment_options(cls, llm_config: Any) -> dict[str, Any]:
        own = replica_options(config_of(llm_config))
        options = {name: own[name] for name in _KEPT if name in own}
        options |= copy.deepcopy(llm_config.deployment_config)
        options["ray_actor_options"] = own["ray_actor_options"] | options["ray_actor_options"]
        if llm_config.accelerator_type:
            options["ray_actor_options"]["accelerator_type"] = llm_config.accelerator_type
        if llm_config.runtime_env:
            options["ray_actor_options"]["runtime_env"] = llm_config.runtime_env
        return options
