"""Random JSON schemas whose documents are not endless."""

from __future__ import annotations

import json
import random
from typing import Any

TEXTS = ("plain", "é", "日本語", "🦙", 'a"b', "back\\slash", "new\nline", "", "</think>", "0", "null")
KEYS = ("name", "größe", "日付", "a b", "x-y", "n", "list", "deep")


def schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "pattern", "any_of", "types"]
    kinds += ["array", "object", "tuple"] * 2 if depth < 3 else []
    match rng.choice(kinds):
        case "string":
            low = rng.randint(0, 3)
            return {"type": "string", "minLength": low, "maxLength": low + rng.randint(0, 6)}
        case "integer":
            low = rng.randint(-1000, 1000)
            found: dict[str, Any] = {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 2000)}
            if rng.random() < 0.2:
                found = {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + 50}
            return found
        case "number":
            low = rng.choice([-2.5, 0, 0.125, 3])
            return {"type": "number", "minimum": low, "maximum": low + rng.choice([0.5, 1, 100])}
        case "enum":
            return {"enum": rng.sample([*TEXTS, 1, -2.5, None, True, ["a"], {"k": "é"}], 4)}
        case "const":
            return {"const": rng.choice([*TEXTS, 7, None])}
        case "pattern":
            return {
                "type": "string",
                "pattern": rng.choice(["^[a-f]{2,5}$", "^(ja|nein)$", "^\\d{2}:\\d{2}$"]),
            }
        case "any_of":
            return {"anyOf": [schema(rng, depth + 1) for _ in range(2)]}
        case "types":
            return {"type": ["null", "integer", "boolean"], "minimum": 0, "maximum": 99}
        case "array":
            low = rng.randint(0, 2)
            items = schema(rng, depth + 1)
            return {"type": "array", "items": items, "minItems": low, "maxItems": low + rng.randint(0, 2)}
        case "tuple":
            parts = [schema(rng, depth + 1) for _ in range(rng.randint(1, 3))]
            return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}
        case "object":
            keys = rng.sample(KEYS, rng.randint(0, 4))
            return {
                "type": "object",
                "properties": {key: schema(rng, depth + 1) for key in keys},
                "required": [key for key in keys if rng.random() < 0.6],
                "additionalProperties": False,
            }
        case kind:
            return {"type": kind}


def recursive(rng: random.Random) -> dict[str, Any]:
    """A list or a tree that refers to itself, with an end at every level."""
    leaf = schema(rng, 3)
    node = {
        "type": "object",
        "properties": {"value": leaf, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
        "required": ["value", "next"],
        "additionalProperties": False,
    }
    return {"$ref": "#/$defs/node", "$defs": {"node": node}}


def schemas(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Every tenth refers to itself; of the others every third is of any kind, and the rest are objects."""
    rng = random.Random(seed)
    found = []
    for i in range(count):
        if i % 10 == 0:
            found.append(recursive(rng))
        elif i % 3 == 0:
            found.append(schema(rng))
        else:
            parts = {key: schema(rng, 1) for key in rng.sample(KEYS, 3)}
            required = rng.sample(sorted(parts), rng.randint(0, 3))
            shape = {"type": "object", "properties": parts, "required": required}
            found.append({**shape, "additionalProperties": False})
    return found


def is_short(schema: dict[str, Any]) -> bool:
    """Whether no model can go on for long: neither digits without end nor a reference to itself."""
    text = json.dumps(schema)
    return '"number"' not in text and "$ref" not in text
