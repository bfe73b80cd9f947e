"""Errors as clients see them: a status, and a body in the shape of the API that was asked."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from olivine.errors import (
    BusyError,
    ClosedError,
    ContextError,
    DeadlineError,
    OlivineError,
    RankError,
    RequestError,
)


class ApiError(Exception):
    """An error with its HTTP status. `code` is a word for programs, `param` the field that is to blame."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = dict(headers or {})
        self.details = dict(details or {})  # further fields of the error object
        self.request_id: str | None = None  # of the request that failed


class ClientGone(Exception):
    """The client closed the connection: nobody reads what would be sent."""


# Errors of the package that are not the caller's fault. Clients repeat a request after 429 and 5xx.
_STATUS: dict[type[OlivineError], int] = {DeadlineError: 504, ClosedError: 503, RankError: 503}


def api_error(error: BaseException, request_id: str | None = None) -> ApiError:
    """Any exception as a client may hear of it. A defect of ours is a 500 without its details."""
    found = _api_error(error)
    found.request_id = request_id
    return found


def _api_error(error: BaseException) -> ApiError:
    match error:
        case ApiError():
            return error
        case ValidationError():
            return _validation(error)
        case ContextError():
            details = {"n_prompt_tokens": error.tokens, "n_ctx": error.context}
            # Clients that shorten a conversation and ask again know the case by OpenAI's sentence.
            message = f"{error} (this model's maximum context length is {error.context} tokens)"
            return ApiError(400, message, code=error.code, param="messages", details=details)
        case RequestError():
            return ApiError(400, str(error), code=error.code, param=error.param)
        case BusyError():
            seconds = str(math.ceil(error.retry_after))
            return ApiError(429, str(error), code=error.code, headers={"Retry-After": seconds})
        case OlivineError():
            status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
            return ApiError(status, str(error), code=error.code)
        case asyncio.CancelledError():  # only `run.py` cancels requests
            return ApiError(503, "the server is shutting down", code="shutting_down")
        case _:
            return ApiError(
                500, "an error inside of the server; its log has the details", code="internal_error"
            )


def _validation(error: ValidationError) -> ApiError:
    """The first complaint about a body that does not fit the API's description."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    first = errors[0]
    where = ".".join(str(part)[:60] for part in first["loc"])  # a part may be a name of the client's
    message = first["msg"].removeprefix("Value error, ")
    # Where a field may be of several types, there is a complaint for each, and its place ends with the type.
    same = [each for each in errors if each["loc"][:1] == first["loc"][:1]]
    if len({each["loc"][1:2] for each in same}) > 1 and all(isinstance(each["loc"][1], str) for each in same):
        where = str(first["loc"][0])
        wanted = dict.fromkeys(each["msg"].removeprefix("Input should be ") for each in same)
        message = "Input should be " + ", or ".join(wanted)
    return ApiError(
        400, f"{where}: {message}" if where else message, code="invalid_value", param=where or None
    )


def openai_shape(error: ApiError) -> dict[str, Any]:
    """The body of an error as OpenAI's API has it."""
    return {
        "error": {
            "message": error.message,
            "type": _OPENAI_TYPES.get(
                error.status, "api_error" if error.status >= 500 else "invalid_request_error"
            ),
            "param": error.param,
            "code": error.code,
            **error.details,
        }
    }


_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable",
}


def anthropic_shape(error: ApiError) -> dict[str, Any]:
    """The body of an error as Anthropic's API has it."""
    kind = _ANTHROPIC_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    message = error.message
    if error.code == ContextError.code:  # Claude Code shortens a conversation where it reads this sentence
        tokens, context = error.details["n_prompt_tokens"], error.details["n_ctx"]
        message = f"prompt is too long: {tokens} tokens > {context} maximum: {message}"
    detail = {"type": kind, "message": message, **error.details}
    return {"type": "error", "error": detail, "request_id": error.request_id}


_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def ollama_shape(error: ApiError) -> dict[str, Any]:
    """The body of an error as Ollama's API has it."""
    return {"error": error.message}


def shape_of(path: str) -> Callable[[ApiError], dict[str, Any]]:
    """The shape of errors at a path, also where there is no endpoint."""
    if path == "/api" or path.startswith("/api/"):
        return ollama_shape
    return anthropic_shape if path.startswith(("/v1/messages", "/messages")) else openai_shape
