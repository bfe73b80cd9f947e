"""docs/reference/http.md: every endpoint and the fields of its body, from docs/openapi.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "openapi.json"
HEAD = """# HTTP API

Every endpoint of `olivine serve`, from the server's own description ([openapi.json](../openapi.json), which
a running server sends at `/openapi.json`). [The server](../server.md) explains them with examples. Paths
that begin with `/v1` are also known without it; all but `/health` and the chat page (`/` and `/assets/`) ask
for a key where the server has one; a request that cannot be answered is refused in the shape of its API's
[errors](../server.md#errors). This page is made by `make docs`.
"""
APIS = {
    "OpenAI": ("/v1/chat", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/models", "/v1/audio"),
    "Anthropic": ("/v1/messages",),
    "Ollama": ("/api/",),
    "Others": ("",),
}


def page() -> str:
    document = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    schemas = document["components"]["schemas"]
    left = [(path, method) for path, methods in document["paths"].items() for method in methods]
    parts = [HEAD]
    for api, beginnings in APIS.items():
        found = [each for each in left if each[0].startswith(beginnings)]
        left = [each for each in left if each not in found]
        parts.append(f"## {api}")
        for path, method in found:
            operation = document["paths"][path][method]
            parts.append(f"### {method.upper()} {path}")
            parts.append(f"{operation['summary']}.")
            if body := operation.get("requestBody"):
                (kind, content), *_ = body["content"].items()
                rows = _rows(_resolved(content["schema"], schemas), schemas)
                told = "A form (`multipart/form-data`):" if "form" in kind else ""
                parts += [part for part in (told, rows) if part]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _resolved(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    return schemas[schema["$ref"].rsplit("/", 1)[1]] if "$ref" in schema else schema


def _rows(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    fields = schema.get("properties", {})
    if not fields:
        return ""
    required = schema.get("required", ())
    rows = [
        f"| `{name}` | {_type(field, schemas)} | {'required' if name in required else ''} |"
        for name, field in fields.items()
    ]
    return "| field | type | |\n| --- | --- | --- |\n" + "\n".join(rows)


def _type(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    if "$ref" in schema:
        inner = _resolved(schema, schemas).get("properties", {})
        return "object" + (f" of {', '.join(f'`{name}`' for name in inner)}" if inner else "")
    if "anyOf" in schema:
        kinds = [_type(each, schemas) for each in schema["anyOf"] if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("type") == "array":
        items = _type(schema.get("items", {}), schemas)
        return "list" if items == "any" else f"list of {items}"
    return str(schema.get("type", "any"))
