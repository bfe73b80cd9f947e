"""The server's description of itself: GET /openapi.json, and docs/openapi.json.

Made of the endpoints and the models of their bodies. `python -m olivine.server.openapi` prints it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pydantic.json_schema import models_json_schema

if TYPE_CHECKING:
    from olivine.server.endpoint import Call, Endpoint

_PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")
_REF = "#/components/schemas/{model}"
_ERROR = "The request was refused; the body says why, in the shape of the API's errors."
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
}


def describe(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """The OpenAPI description of these endpoints. Their paths under /v1 are also known without it."""
    bodies = dict.fromkeys(each.body for each in endpoints if each.body is not None)
    schemas, definitions = models_json_schema(
        [(body, "validation") for body in bodies], ref_template=_REF, title="Bodies of requests"
    )
    paths: dict[str, Any] = {}
    for each in endpoints:
        operation = _operation(each)
        if each.body is not None:
            kind = "multipart/form-data" if each.form else "application/json"
            content = {kind: {"schema": schemas[each.body, "validation"]}}
            operation["requestBody"] = {"required": True, "content": content}
        paths.setdefault(_PARAMETER.sub(r"{\1}", each.path), {})[each.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Olivine",
            "version": "1",  # of the API: the package's own would change the document with every release
            "description": "OpenAI's, Anthropic's and Ollama's APIs over one or several models.",
        },
        "paths": paths,
        "components": {"schemas": _short(definitions.get("$defs", {})), "securitySchemes": _KEYS},
    }


def _short(schema: Any) -> Any:
    """Without pydantic's titles, which repeat the names, and without defaults that are null: all are."""
    if isinstance(schema, list):
        return [_short(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    left_out: dict[str, type] = {"title": str, "default": type(None)}
    return {
        name: _short(each)
        for name, each in schema.items()
        if name not in left_out or not isinstance(each, left_out[name])
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    words = re.findall(r"\w+", _PARAMETER.sub(r"\1", endpoint.path))
    found: dict[str, Any] = {
        "operationId": "_".join([endpoint.method.lower(), *words]),
        "summary": endpoint.summary,
        "responses": {"200": {"description": "The answer."}, "default": {"description": _ERROR}},
        "security": [{}] if endpoint.public else [{}, *({name: []} for name in _KEYS)],
    }
    names = _PARAMETER.findall(endpoint.path)
    if names:
        found["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    return found


@lru_cache(1)
def document() -> dict[str, Any]:
    """The description of this server."""
    from olivine.server.app import ENDPOINTS

    return describe(ENDPOINTS)


async def openapi(call: Call) -> Mapping[str, Any]:
    """GET /openapi.json"""
    return document()


def printed() -> str:
    """The description as docs/openapi.json has it."""
    return json.dumps(document(), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    print(printed(), end="")
