"""Random conversations: well-formed ones, and ones with texts that templates and tokenizers trip over."""

from __future__ import annotations

import random
from typing import Any

WORDS = (
    "hello", "the sea", "ünïcödé", "日本語", "🦙", "a\nb", "  spaced  ", "\n\nlines\n", "", " ", "{}",
    "%s {{ x }}", "<b>bold</b>", "'quoted' \"twice\"", "back\\slash", "1 < 2",
    "</tool_response>", "\t", "a,b:c",
)  # fmt: skip
THOUGHTS = (
    "<think>\nhm\n</think>\n\nyes",
    "no </think> yes",
    "<|channel>thought\nhm<channel|>yes",
    "a<channel|>b",
)


def text(rng: random.Random, *extra: str) -> str:
    return " ".join(rng.choice((*WORDS, *extra)) for _ in range(rng.randint(0, 4)))


def value(rng: random.Random, depth: int = 0) -> Any:
    match rng.randint(0, 7 if depth < 3 else 4):
        case 0:
            return rng.randint(-5, 10**6)
        case 1:
            return rng.choice([0.5, -1.25, 3.0])
        case 2:
            return rng.random() < 0.5
        case 3 | 4:
            return text(rng)
        case 5:
            return [value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
        case _:
            return {rng.choice("abCdEf") + str(i): value(rng, depth + 1) for i in range(rng.randint(0, 3))}


def schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    kind = rng.choice(["string", "integer", "number", "boolean", *(["array", "object"] if depth < 3 else [])])
    found: dict[str, Any] = {"type": kind}
    if rng.random() < 0.6:
        found["description"] = text(rng)
    if rng.random() < 0.2:
        found["nullable"] = True
    if kind == "string" and rng.random() < 0.4:
        found["enum"] = ["a", "b", text(rng)]
    if kind == "array" and rng.random() < 0.8:
        found["items"] = schema(rng, depth + 1)
        if rng.random() < 0.2:
            found["items"]["type"] = ["string", "null"]
    if kind == "object" and rng.random() < 0.8:
        found |= properties(rng, depth + 1)
    return found


def properties(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    names = rng.sample(["city", "Days", "unit", "b_c", "type", "description", "x"], rng.randint(0, 4))
    found: dict[str, Any] = {"properties": {name: schema(rng, depth) for name in names}}
    if names and rng.random() < 0.6:
        found["required"] = names[: rng.randint(1, len(names))]
    return found


def tools(rng: random.Random) -> list[dict[str, Any]] | None:
    if rng.random() < 0.5:
        return None
    found = []
    for i in range(rng.randint(1, 3)):
        function: dict[str, Any] = {"name": f"tool_{i}", "description": text(rng)}
        if rng.random() < 0.9:
            function["parameters"] = {"type": "object", **properties(rng)}
        if rng.random() < 0.2:
            function["response"] = {"type": "object", "description": text(rng)}
        found.append({"type": "function", "function": function})
    return found


def conversation(
    rng: random.Random, *, calls: bool = True, parts: bool = False, alternate: bool = False
) -> Any:
    """Messages as templates are given them. `parts`: some contents are lists; `alternate`: mostly user and
    assistant in turn."""

    def content(*extra: str) -> Any:
        if parts and rng.random() < 0.3:
            kinds = [rng.choice(["text", "text", "image"]) for _ in range(rng.randint(1, 3))]
            return [{"type": k, "text": text(rng, *extra)} if k == "text" else {"type": k} for k in kinds]
        return text(rng, *extra)

    messages: list[dict[str, Any]] = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": text(rng)})
    for turn in range(rng.randint(1, 4)):
        if turn == 0 or alternate or rng.random() < 0.9:
            messages.append({"role": "user", "content": content()})
        for _ in range(rng.randint(0, 2) if calls else 0):
            made = [
                {
                    "id": f"call_{turn}_{i}",
                    "type": "function",
                    "function": {
                        "name": f"tool_{i}",
                        "arguments": {
                            f"{rng.choice('aBc')}{k}": value(rng) for k in range(rng.randint(0, 3))
                        },
                    },
                }
                for i in range(rng.randint(1, 2))
            ]
            said = {"role": "assistant", "content": text(rng, *THOUGHTS), "tool_calls": made}
            if rng.random() < 0.4:
                said["reasoning_content"] = text(rng)
            messages.append(said)
            if rng.random() < 0.9:
                for call in made:
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": text(rng)})
        if rng.random() < 0.95:
            last = {"role": "assistant", "content": content(*THOUGHTS)}
            if rng.random() < 0.3:
                last["reasoning_content"] = text(rng)
            messages.append(last)
    if rng.random() < 0.7:
        messages.append({"role": "user", "content": content()})
    return messages
